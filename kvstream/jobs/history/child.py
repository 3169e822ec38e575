"""The children of a workflow: jobs that it starts, and whose ends its history has.

A child is a job like any other, and its message names its parent. The commit that ends it, in
whatever way, adds that to the history of the parent and wakes the parent if it waits for no other
child. So no end is lost, whichever process dies.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kvstream.errors import InvalidArgument, StepFailed
from kvstream.jobs.history.events import DONE, ENDED, Event, Fields
from kvstream.jobs.history.links import Link, go_on
from kvstream.jobs.history.log import NUDGE, WAITING, State, WorkflowLog
from kvstream.surface import Public

if TYPE_CHECKING:
    from kvstream.jobs.job import AnyJobs, Job

R = TypeVar("R")

RESULT_MAX = 16 << 20
"""Most bytes of a result that a history keeps."""
LARGE_RESULT = 1_000_000
"""Bytes of a result above which a server may refuse it (stream-entry-max-bytes)."""
NO_CHILD_OPTIONS = (
    *("unique", "window", "on_conflict", "ttl", "id"),
    *("depends_on", "if_failed", "debounce", "max_wait", "throttle", "over_limit"),
)
running: ContextVar[Any] = ContextVar("kvstream-workflow")
"""The run of the workflow whose function this thread or asyncio task executes."""


def running_workflow(what: str) -> Any:
    """Return the run of the workflow that calls ``what``; LookupError if none does."""
    try:
        run = running.get()
    except LookupError:
        raise LookupError(f"{what} is for the function of a workflow") from None
    run.refuse_within_step(what)
    return run


class Child(Public, Generic[R]):
    """A job that a workflow has started: ``result()`` waits for it, ``gather`` for many."""

    __slots__ = ("_run", "_task", "id", "name")
    _internal = frozenset({"load"})

    def __init__(self, run: Any, task: Any, child_id: str, *, is_plain: bool = False) -> None:
        # ``is_plain``: the result stays plain data.
        self.id, self.name = child_id, str(task.name)
        """The ID and the task of the job."""
        self._run, self._task = run, None if is_plain else task

    def __repr__(self) -> str:
        return f"<Child {self.id} of {self.name}>"

    def result(self) -> R:
        """Wait for the child, and return its result; StepFailed if it has failed.

        In an async workflow the child itself is awaited.
        """
        return cast(R, self._run.do(self._run.gather_one, self))

    def __await__(self) -> Generator[Any, Any, R]:
        return cast("Generator[Any, Any, R]", self._run.do(self._run.gather_one, self).__await__())

    def load(self, plain: Any) -> Any:
        """Return the result in plain data."""
        return plain if self._task is None else self._task.signature.load_result(plain)


def start_child(
    task: Any, options: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Child[Any]:
    """Start a job as a child of the workflow that runs here."""
    run = running_workflow(f"{task.name}.start()")
    for name in NO_CHILD_OPTIONS:
        if options.get(name) is not None:
            raise InvalidArgument(f"a child has no {name}: leave it out")
    child: Child[Any] = run.start(task, options, args, kwargs)
    return child


def check_result(packed: bytes) -> bytes:
    """Return a packed result; TypeError if it is too long for a history."""
    if len(packed) > RESULT_MAX:
        raise TypeError(f"a result has {len(packed)} bytes, and may have {RESULT_MAX}")
    return packed


def tell_parent(
    jobs: AnyJobs,
    parent: str,
    child_id: str,
    status: str,
    outcome: Mapping[str, Any],
    link: Link | None = None,
) -> None:
    """Add the end of a child to the history of its parent, in the open transaction.

    A parent that waits for no other child, or for the first failure, is woken; with ``link``, what
    follows the child in a chain, it waits for that instead.
    """
    log = WorkflowLog(jobs, parent)
    state = log.state()
    if state is None or state.has_ended:
        return
    log.add(ENDED, child=child_id, status=status, **outcome)
    if link is not None and state.status == WAITING and state.child == child_id:
        go_on(log, state, link)
    else:
        _count_end(log, state, status)


def _count_end(log: WorkflowLog, state: State, status: str) -> None:
    """Wake a parent, if it has waited for the end of a child that has this status."""
    if state.status != WAITING or not state.left:
        return
    state.left -= 1
    if state.left == 0 or (state.raises and status != DONE):
        log.wake_now(state)
    else:
        log.write(state)


def tell_of_result(jobs: AnyJobs, job: Job) -> None:
    """Tell the parent of a job that is done its result, in the open transaction."""
    assert job.parent is not None
    tell_parent(jobs, job.parent, job.id, DONE, _outcome_of(jobs, job), job.link)


def _outcome_of(jobs: AnyJobs, job: Job) -> Fields:
    outcome: Fields = {"result": job.result_packed}
    return outcome if jobs.format == "json" else {**outcome, "format": jobs.format}


def parent_to_nudge(jobs: AnyJobs, job: Job) -> State | None:
    """Return the state of the parent of a job, to be read before the job's transaction.

    None if the parent has ended.
    """
    assert job.parent is not None
    state = WorkflowLog(jobs, job.parent).state()
    return None if state is None or state.has_ended else state


def nudge_parent(jobs: AnyJobs, job: Job, state: State | None) -> None:
    """Tell the parent of a job its result, in a transaction on a server that reads nothing of it.

    What a transaction has read may not change until its end, and the ends of other children change
    the state of the parent. So a message, the *nudge*, lets a worker count the end.
    """
    if state is not None and job.parent is not None:
        log = WorkflowLog(jobs, job.parent)
        log.add(ENDED, child=job.id, status=DONE, **_outcome_of(jobs, job))
        log.wake(replace(state, generation=NUDGE))


def take_nudge(jobs: AnyJobs, job: Job) -> None:
    """Count the end of a child of which a nudge tells, in the open transaction."""
    log = WorkflowLog(jobs, job.id)
    state = log.state()
    if state is not None:
        _count_end(log, state, DONE)


def step_failed(name: str, event: Event) -> StepFailed:
    """Return the exception of a step or child that has failed, or was cancelled."""
    text = event.text("error") or event.text("status")
    failed = StepFailed(f"{name}: {text}")
    failed.step, failed.error, failed.traceback = name, text, event.text("traceback")
    failed._event = event
    return failed
