"""A step of a workflow: a call of a plain function, with its options, and one try of it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

from kvstream.engine.coerce import whole
from kvstream.errors import InvalidArgument, LeaseLost, show
from kvstream.jobs.arguments import Signature, digest, function_of, pack
from kvstream.jobs.execution import own_process
from kvstream.jobs.history.child import check_result
from kvstream.jobs.history.events import check_name
from kvstream.jobs.job import GiveUp, JobTimeout, Retry, to_seconds
from kvstream.jobs.task import Task, backoff_of
from kvstream.meta.policy import GroupPolicy
from kvstream.storage.contexts import contextmanager

_SETTLING_S = 0.5
"""Pause between two checks of a late step that is in its transaction."""
_CANCEL_S = 5.0
"""Seconds that a cancelled async step has to end."""


@dataclass(frozen=True)
class StepOptions:
    """How a step is run."""

    retries: int = 0
    backoff: GroupPolicy | None = None
    timeout_s: float | None = None
    name: str = ""

    @classmethod
    def of(
        cls, retries: int = 0, backoff: Any = None, timeout: Any = None, name: str = ""
    ) -> StepOptions:
        """Return checked options; InvalidArgument if one is wrong."""
        if whole(retries, "retries") < 0:
            raise InvalidArgument(f"retries must be at least 0, not {retries}")
        timeout_s = None if timeout is None else to_seconds(timeout, "timeout")
        if timeout_s is not None and timeout_s <= 0:
            raise InvalidArgument(f"timeout must be above 0, not {timeout_s:g}")
        if name != "":
            check_name(name, "a step")
        return cls(retries, backoff_of(backoff), timeout_s, name)


@dataclass(frozen=True)
class Spec:
    """One step: its function, arguments and options."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: StepOptions
    signature: Signature
    name: str
    digest: str
    """A digest of the arguments, before the function changes them; empty if they have none."""
    of: int = 0
    """For a step that undoes another one: the last call before ``on_failure``."""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(function_of(self.function))

    def delay_s(self, tries: int, error: BaseException) -> float | None:
        """Return the seconds before the next try after ``tries`` failed ones; None: no more."""
        if tries > self.options.retries or isinstance(error, GiveUp):
            return None
        if isinstance(error, Retry) and error.delay is not None:
            return error.delay
        assert self.options.backoff is not None
        return self.options.backoff.delay_ms(tries) / 1000

    def pack_result(self, result: Any, form: str) -> bytes:
        """Return a result as bytes; TypeError if they would not give the same value again."""
        return check_result(pack(self.signature.dump_result(result), form))

    def load_result(self, plain: Any) -> Any:
        return self.signature.load_result(plain)


def spec_of(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: StepOptions,
    *,
    prefix: str = "",
    of: int = 0,
) -> Spec:
    """Return the step that calls a function; TypeError if the arguments do not fit it."""
    if isinstance(function, Task):
        signature, name, function = function.signature, function.name, function.function
    elif callable(function):
        signature, name = _signature(function), _name(function)
    else:
        raise TypeError(f"a step is a function and its arguments, not {show(function)}")
    try:
        of_arguments = digest(signature.without_defaults(signature.dump(args, kwargs)))
    except (TypeError, ValueError):
        signature.bind(args, kwargs)  # raises TypeError if that is why
        of_arguments = ""
    name = f"{prefix}{options.name or name}"
    return Spec(function, args, kwargs, options, signature, name, of_arguments, of)


def _name(function: Any) -> str:
    return str(getattr(function_of(function), "__name__", type(function).__name__))


@functools.lru_cache(maxsize=1024)
def _signature_of(function: Any) -> Signature:
    return Signature(function)


def _signature(function: Any) -> Signature:
    try:
        return _signature_of(function)
    except TypeError:  # it is unhashable
        return Signature(function)
    except ValueError:
        raise InvalidArgument(
            f"Python knows no signature of {show(function)}: call it in a function of your own"
        ) from None


attempt_here: ContextVar[Attempt | None] = ContextVar("kvstream-step", default=None)
"""The try that this thread or asyncio task runs; its time may be over."""


class Attempt:
    """One try of a step."""

    def __init__(
        self, spec: Spec, seq: int, number: int, from_ms: int, left_s: float | None
    ) -> None:
        """``left_s``: the seconds that the workflow has left; None without a limit."""
        self.spec, self.seq, self.number, self.from_ms = spec, seq, number, from_ms
        self.is_late = False
        """The time of the whole workflow has passed."""
        self.settled = False
        """A transaction has ended the step."""
        self._left_s = left_s
        self._abandoned = self._settling = False
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def _limit_s(self) -> float | None:
        limits = [each for each in (self.spec.options.timeout_s, self._left_s) if each is not None]
        return min(limits, default=None)

    def settle(self) -> None:
        """Begin the end of the step by a transaction; LeaseLost if its time is over."""
        with self._lock:
            self.refuse_late()
            self._settling = True

    def unsettle(self) -> None:
        """The transaction was undone: the step goes on within its time."""
        self._settling = False

    def has_settled(self) -> None:
        """The commit of the transaction is done."""
        self.settled = True

    def _timeout(self) -> JobTimeout:
        limit = self._limit_s or 0.0
        timeout = self.spec.options.timeout_s
        self.is_late = timeout is None or limit < timeout
        return JobTimeout(f"{self.spec.name} has run for more than {limit:g} s")

    def run(self) -> Any:
        """Call the function; JobTimeout if it takes too long: its thread goes on without effect."""
        if self._limit_s is None:
            return self._call()
        outcome: list[tuple[bool, Any]] = []

        def call() -> None:
            try:
                outcome.append((True, self._call()))
            except BaseException as error:
                outcome.append((False, error))
            finally:
                self._over.set()

        thread = threading.Thread(
            target=copy_context().run, args=(call,), name="kvstream-step", daemon=True
        )
        thread.start()
        left_s: float | None = self._limit_s
        while not self._over.wait(left_s):
            if self._abandon():
                raise self._timeout()
            left_s = _SETTLING_S
        has_returned, found = outcome[0]
        if has_returned:
            return found
        raise found

    @contextmanager
    def _is_here(self) -> Iterator[None]:
        token = attempt_here.set(self)
        try:
            with own_process():
                yield
        finally:
            attempt_here.reset(token)

    def refuse_late(self) -> None:
        """Raise LeaseLost if its time is over: nothing that it does now counts."""
        if self._abandoned:
            raise LeaseLost(f"the step {self.spec.name} has run for too long")

    def _call(self) -> Any:
        with self._is_here():
            return self.spec.function(*self.spec.args, **self.spec.kwargs)

    def _abandon(self) -> bool:
        """Drop what the step does from now on; False if it has just ended."""
        with self._lock:
            self._abandoned = not self._settling and not self._over.is_set()
            return self._abandoned

    async def arun(self) -> Any:
        """Call the function, a coroutine function or one that runs in a thread."""
        if not self.spec.is_async:
            try:
                return await asyncio.to_thread(self.run)
            except asyncio.CancelledError:
                self._abandon()
                raise
        task = asyncio.ensure_future(self._acall())
        try:
            await asyncio.wait({task}, timeout=self._limit_s)
        except asyncio.CancelledError:
            self._abandon()
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
            raise
        if not task.done():  # one that has ended just now counts
            with self._lock:
                self._abandoned = True
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
            if not self.settled:
                raise self._timeout()
            return None
        return task.result()

    async def _acall(self) -> Any:
        with self._is_here():
            return await self.spec.function(*self.spec.args, **self.spec.kwargs)
