"""What the function of a workflow calls: steps, waits, children, recorded values.

In a workflow that is an ``async def`` function, ``step``, ``pause``, ``wait_for``, ``gather`` and
``first_completed`` are awaited; the others return at once in both forms. Each call is found again
by its number when the function runs once more, so the code between the calls must do the same each
time: it reads no clock and draws no random numbers but those from here, and leaves what has effects
to steps. ``except Exception`` does not catch the end of a run; ``finally`` blocks run at each.
"""

from __future__ import annotations

import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, Self, TypeVar, overload

from kvstream.engine.coerce import at_least_1
from kvstream.engine.queue_arguments import span_ms
from kvstream.errors import InvalidArgument
from kvstream.jobs.arguments import codec_of
from kvstream.jobs.history import events
from kvstream.jobs.history.child import Child, running, running_workflow
from kvstream.jobs.workflows.step import Spec, StepOptions, spec_of

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "first_completed",
    "gather",
    "now",
    "on_failure",
    "patched",
    "pause",
    "publish",
    "random",
    "step",
    "uuid4",
    "wait_for",
]


def __dir__() -> list[str]:
    return __all__


class _WithOptions:
    """What runs functions as steps, with the options of these steps."""

    __slots__ = ("_options",)

    def __init__(self, options: StepOptions | None = None) -> None:
        self._options = StepOptions.of() if options is None else options

    def with_options(
        self,
        *,
        retries: int = 0,
        backoff: Any = None,
        timeout: float | timedelta | None = None,
        name: str = "",
    ) -> Self:
        """Return it with options for the steps that are run through it.

        ``retries``: how often it is tried again after an exception, after the delays of
        ``backoff``: seconds, a list of seconds, or Backoff; meanwhile the workflow waits as in
        ``pause``. ``timeout``: seconds of one try; a function that is not async goes on in its
        thread, in vain. ``name``: that of the function by default. ::

            step.with_options(retries=3, timeout=10)(charge, order)
        """
        return type(self)(StepOptions.of(retries, backoff, timeout, name))


class Steps(_WithOptions):
    """``step``, with the options of the steps that are run through it."""

    __slots__ = ()

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once, and keep its result; later runs of the workflow get that.

        The result must be plain data by the type hint of the function, as that of a task. A step
        that was under way when its worker died runs again; what it writes in
        ``current_job().transaction()`` is written once. Raises StepFailed after its last try. ::

            account = step(create_account, user)
        """
        run = running_workflow("step()")
        spec = spec_of(function, args, kwargs, self._options)
        if run.workflow.is_async:
            run.note_line()
            return run.astep(spec)
        _refuse_async(run, spec)
        return run.step(spec)


class Undoes(_WithOptions):
    """``on_failure``, with the options of the steps that undo others."""

    __slots__ = ()

    def __call__(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a function as a step if the workflow fails later: the last of them first.

        One that fails, after its own tries, does not keep the others from running. Cancelling and
        NonDeterministic undo nothing. ::

            payment = step(charge, order)
            on_failure(refund, payment)
        """
        run = running_workflow("on_failure()")
        spec = spec_of(function, args, kwargs, self._options, prefix=events.UNDO, of=run.seq)
        _refuse_async(run, spec)
        run.undoes.append(spec)


def _refuse_async(run: Any, spec: Spec) -> None:
    if spec.is_async and not run.workflow.is_async:
        raise InvalidArgument(
            f"{spec.name} is async: make the workflow {run.workflow.name} async, too"
        )


step = Steps()
on_failure = Undoes()


def _run(what: str) -> Any:
    run = running_workflow(what)
    if run.workflow.is_async:
        run.note_line()
    return run


def pause(duration: float | timedelta) -> Any:
    """Wait for some seconds, or a timedelta; nothing but a timer on disk is held meanwhile."""
    run = _run("pause()")
    return run.do(run.pause, run.now_ms() + span_ms(duration, "the pause"))


def wait_for(name: str, *, timeout: float | timedelta | None = None) -> Any:
    """Wait for a signal of that name, and return its value; TimeoutError after ``timeout``.

    ``handle.send`` sends it. Each signal ends one wait, in the order in which they were sent, also
    if it was sent before the wait.
    """
    run = _run("wait_for()")
    events.check_name(name, "a signal")
    return run.do(run.wait_for, name, None if timeout is None else span_ms(timeout, "timeout"))


def gather(
    children: Iterable[Child[Any]], *, limit: int | None = None, return_exceptions: bool = False
) -> Any:
    """Wait for children, and return their results in order.

    ``limit``: at most so many run at a time, if ``children`` is a generator that starts each as it
    is asked for it. The first child that fails raises StepFailed, and the others go on; with
    ``return_exceptions`` the StepFailed takes the place of the result. ::

        sizes = gather((resize.start(p) for p in pictures), limit=10)
    """
    run = _run("gather()")
    most = None if limit is None else at_least_1(limit, "limit")
    return run.do(run.gather, children, most, return_exceptions)


def first_completed(children: Iterable[Child[Any]]) -> Any:
    """Wait until one of some children has ended, in whatever way, and return that child."""
    run = _run("first_completed()")
    several = list(children)
    if not several:
        raise InvalidArgument("first_completed() needs at least one child")
    return run.do(run.first_completed, several)


def now() -> datetime:
    """Return the time, in UTC: each run of the workflow gets the same."""
    run = _run("now()")
    return datetime.fromtimestamp(run.value("now", run.now_ms) / 1000, UTC)


def uuid4() -> _uuid.UUID:
    """Return a random UUID: each run of the workflow gets the same."""
    return _uuid.UUID(_run("uuid4()").value("uuid4", lambda: str(_uuid.uuid4())))


def random() -> float:
    """Return a random number from 0 to 1: each run of the workflow gets the same."""
    return float(_run("random()").value("random", _random.random))


def patched(name: str) -> bool:
    """Return True if this workflow has come to this line since the change ``name`` was made.

    So workflows that were under way go on with the old code, and new ones take the new::

        if patched("check-address"):
            step(check_address, order)
    """
    events.check_name(name, "a patch")
    found: bool = _run("patched()").patched(name)
    return found


def publish(name: str, value: Any = None) -> None:
    """Show ``value``, plain data, under ``name`` to those who look from outside: its progress.

    It is written with the next commit of the workflow; in a step at once, and by each try.
    """
    run = running.get(None)
    if run is None:
        raise LookupError("publish() is for the function of a workflow, and its steps")
    events.check_name(name, "what is published")
    form = run.log.jobs.format
    run.publish(name, events.value_fields("value", codec_of(Any).dump(value), form))
