"""The handle of a workflow: its steps, signals, updates, and its end by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from kvstream.errors import InvalidArgument, JobUnknown, show
from kvstream.jobs.arguments import codec_of
from kvstream.jobs.handle import LOOK_S, JobHandle
from kvstream.jobs.history import events
from kvstream.jobs.history.events import CANCELLED, CHILD, DONE, FAILED, OPEN, STEP, Call, Event
from kvstream.jobs.history.log import QUEUED, WAITING, State, WorkflowLog
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.results import RETRY
from kvstream.jobs.workflows.run import end_workflow
from kvstream.surface import Public
from kvstream.types.ids import MIN_ID, StreamID, Ticket

R = TypeVar("R")

CANVAS = "kvstream.canvas"
"""The name of the built-in workflow that runs canvases."""
TOTAL = "total"
"""What a batch publishes: the number of its children."""
_PAGE = 500


class Step(NamedTuple):
    """What a workflow has done, or does: a step, a child, a pause or a wait."""

    kind: str
    """"step", "child", "pause" or "wait"."""
    name: str
    """Its name in the workflow."""
    status: str
    """"done", "failed", "cancelled" (a child), or "open"."""
    attempt: int
    """The tries so far of a step."""
    begun: datetime
    """When it began, in UTC."""
    ended: datetime | None
    """When it ended, in UTC; None: it has not."""
    result: Any
    """Plain data."""
    error: str | None
    """Its error; None: it has not failed."""
    traceback: str | None
    """The traceback of that error; None if there is none."""


class Update(NamedTuple):
    """What a workflow has published."""

    name: str
    """The name under which it was published."""
    value: Any
    """What was published, as plain data."""
    at: datetime
    """When, in UTC."""


class Counts(NamedTuple):
    """The children of a workflow by their state."""

    total: int
    """Those started so far; of a batch, all of them."""
    done: int
    """Those that are done."""
    failed: int
    """Those that have failed."""
    cancelled: int
    """Those that were cancelled."""
    open: int
    """Those that have not ended, or of a batch not begun."""


_ReadUpdates = Callable[[StreamID], tuple[StreamID, list[Update], bool]]


class Updates(Public):
    """What a workflow publishes, for ``for`` and ``async for``; each update comes once."""

    def __init__(self, read: _ReadUpdates) -> None:
        self._read, self._after, self._more = read, MIN_ID, True
        self._found: deque[Update] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Update:
        while not self._found:
            if not self._more:
                raise StopIteration
            self._take(self._read(self._after))
        return self._found.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Update:
        while not self._found:
            if not self._more:
                raise StopAsyncIteration
            self._take(await asyncio.to_thread(self._read, self._after))
        return self._found.popleft()

    def _take(self, read: tuple[StreamID, list[Update], bool]) -> None:
        self._after, found, self._more = read
        self._found.extend(found)


class WorkflowHandle(JobHandle[R]):
    """A workflow that was enqueued; ``await`` it for its result in asyncio."""

    __slots__ = ()

    def __init__(self, jobs: AnyJobs, workflow_id: str, task: Any = None) -> None:
        # ``task`` loads the result by its type hint.
        super().__init__(jobs, workflow_id, task)
        self._jobs = jobs

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id}>"

    @property
    def _workflow_log(self) -> WorkflowLog:
        return WorkflowLog(self._jobs, self.id)

    def _state(self) -> State:
        """Return the state; JobUnknown if there is none."""
        state = self._workflow_log.state()
        if state is None:
            raise self._unknown()
        return state

    def _unknown(self) -> JobUnknown:
        return JobUnknown(
            f"there is no workflow {self.id}: it was not enqueued, or ended longer ago than its "
            "history is kept"
        )

    @property
    def status(self) -> str:
        """Where the workflow is.

        ``"scheduled"`` (delayed), ``"queued"``, ``"running"``, ``"waiting"`` (see ``waits_for``),
        ``"done"``, ``"failed"``, ``"cancelled"``, or ``"unknown"``: there is none, or it ended
        longer ago than its history is kept.
        """
        state = self._workflow_log.state()
        return "unknown" if state is None else state.status

    @property
    def waits_for(self) -> str | None:
        """What the workflow waits for, such as ``"signal confirmed"``; None if it does not wait.

        For a workflow whose version no worker knows, it says so.
        """
        state = self._workflow_log.state()
        if state is not None and state.after:
            return super().waits_for
        return (state.why or None) if state is not None else None

    def steps(self) -> list[Step]:
        """Return what the workflow has done so far, in order; JobUnknown if there is none."""
        self._state()
        past = self._workflow_log.history()
        kinds = (STEP, CHILD, events.PAUSE, events.WAIT)
        calls = [call for _, call in sorted(past.calls.items()) if call.kind in kinds]
        return [_shown(call, past) for call in calls]

    def counts(self) -> Counts:
        """Return the numbers of children by state."""
        self._state()
        past = self._workflow_log.history()
        children = [call.child for call in past.calls.values() if call.kind == CHILD]
        ended = [
            past.children[child].text("status") for child in children if child in past.children
        ]
        done, failed, cancelled = (ended.count(each) for each in (DONE, FAILED, CANCELLED))
        total = len(children)
        if TOTAL in past.published and self._state().task == CANVAS:
            total = max(total, past.published[TOTAL].value("value"))
        return Counts(total, done, failed, cancelled, total - len(ended))

    # --- signals and updates --------------------------------------------------------------------

    def send(self, name: str, value: Any = None) -> bool:
        """Send a signal, which ``wait_for(name)`` returns; False if the workflow has ended.

        It is kept until the workflow waits for it. Two signals of one name end two waits, in
        order. ``value`` is plain data. Raises JobUnknown if there is no such workflow. In a
        transaction it is part of that.
        """
        events.check_name(name, "a signal")
        form = self._jobs.format
        fields = events.value_fields("value", codec_of(Any).dump(value), form)
        log = self._workflow_log

        def add() -> bool:
            state = log.state()
            if state is None:
                raise self._unknown()
            if state.has_ended:
                return False
            if len(log.stream) >= state.bound:
                raise InvalidArgument(
                    f"the history of the workflow {self.id} is full: it has {state.bound} events"
                )
            log.add(events.SIGNAL, name=name, **fields)
            if state.status == WAITING and name in state.names:
                log.wake_now(state)
            return True

        done = log.commit(add)
        if self._jobs.testing is not None:
            self._jobs.testing.run()
        return done

    async def asend(self, name: str, value: Any = None) -> bool:
        """Send the signal ``name`` with ``value`` as ``send`` does, without blocking the loop."""
        return await asyncio.to_thread(partial(self.send, name, value))

    def published(self) -> dict[str, Any]:
        """Return the last value of each name that the workflow has published."""
        self._state()
        found = self._workflow_log.history().published
        return {name: event.value("value") for name, event in found.items()}

    def updates(self) -> Updates:
        """Yield what the workflow publishes, from its begin to its end; JobUnknown without one.

        In asyncio use ``async for``, which blocks no event loop. ::

            async for update in handle.updates():
                print(update.name, update.value)
        """
        return Updates(self._read_updates)

    def aupdates(self) -> AsyncIterator[Update]:
        """Yield what the workflow publishes as ``async for`` does with ``updates``."""
        return self.updates()

    def _read_updates(self, after: StreamID) -> tuple[StreamID, list[Update], bool]:
        """Wait for events; return the ID of the last, the updates, and whether more may come."""
        state = self._workflow_log.state()
        if state is None and after == MIN_ID:
            raise self._unknown()
        is_over = state is None or state.has_ended
        block = None if is_over or self._jobs.testing is not None else LOOK_S
        entries = self._workflow_log.stream.read(after, count=_PAGE, block=block)
        found = [Event.of(entry) for entry in entries]
        updates = [
            Update(event.text("name"), event.value("value"), _time(event.id.ms))
            for event in found
            if event.kind == events.PUBLISHED
        ]
        more = bool(entries) or not (is_over or self._jobs.testing is not None)
        return (entries[-1].id if entries else after), updates, more

    # --- by hand --------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Cancel the workflow and its children; return False if it had ended before.

        A step that runs goes on to its end, and its result is dropped. Nothing is undone.
        """
        log = self._workflow_log

        def end() -> list[Call] | None:
            state = log.state()
            if state is None or state.has_ended:
                return None
            children = log.history().open_children()
            end_workflow(log, state, CANCELLED, {})
            if children:  # a worker cancels them if this process dies now
                log.wake(state)
            return children

        children = log.commit(end)
        if children is None:
            return False
        self._jobs.after_commit()
        cancel_children(self._jobs, children)
        return True

    def retry(self, from_step: str | None = None) -> bool:
        """Run a failed workflow on; return whether it had failed.

        It resumes at the step or child whose error ended it, at the first step that was undone, or
        at the first one named ``from_step``: what came before is not run again. InvalidArgument if
        no step has that name.
        """
        log = self._workflow_log

        def go_back() -> bool:
            state = log.state()
            if state is None or state.status != FAILED:
                return False
            past = log.history()
            to = past.retry_seq(from_step)
            if to is None:
                raise InvalidArgument(
                    f"the workflow {self.id} has no step {show(from_step)}: it has "
                    f"{', '.join(dict.fromkeys(past.step_names())) or 'none'}"
                )
            state.status, state.generation, state.lives = QUEUED, state.generation + 1, 0
            log.add(events.RETRIED, to=str(to))
            log.wake(state)
            log.write(state)
            log.persist()
            end = past.end
            failed = {name: end.text(name) if end else "" for name in ("error", "traceback")}
            self._jobs.record(self.id, RETRY, state.ttl_ms / 1000, failed)
            return True

        done = log.commit(go_back)
        if self._jobs.testing is not None:
            self._jobs.testing.run()
        return done


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _shown(call: Call, past: events.History) -> Step:
    """Return a call as the handle shows it."""
    event, status, ended_ms = call.event, call.status, call.ended_ms
    if call.kind == CHILD and call.child in past.children:
        event = past.children[call.child]
        status, ended_ms = event.text("status"), event.id.ms
    if call.kind == events.PAUSE and past.end is None and call is past.calls[past.last_seq]:
        status, ended_ms = OPEN, 0
    elif call.kind == events.PAUSE:
        status, ended_ms = DONE, call.until_ms or 0
    name = {STEP: "result", CHILD: "result", events.WAIT: "value"}.get(call.kind, "")
    assert event is not None
    has_result = status == DONE and name in event.fields
    return Step(
        kind=call.kind,
        name=call.name,
        status=status,
        attempt=max(1, event.number("attempt")),
        begun=_time(call.from_ms),
        ended=_time(ended_ms) if status != OPEN else None,
        result=event.value(name) if has_result else None,
        error=event.text("error") or None,
        traceback=event.text("traceback") or None,
    )


def _place_of(text: str) -> StreamID | Ticket:
    return Ticket.parse(text) if text.startswith("@") else StreamID.parse(text)


def cancel_children(jobs: AnyJobs, children: Sequence[Call]) -> None:
    """Cancel children of a cancelled workflow; those that have ended stay as they are."""
    for call in children:
        with suppress(InvalidArgument):
            handle = jobs.handle(call.child)
            if call.where and not isinstance(handle, WorkflowHandle):  # its queue is not searched
                task, where = jobs.find_task(call.name), _place_of(call.where)
                handle = JobHandle(jobs, call.child, task, where)
            handle.cancel()


def is_workflow(jobs: AnyJobs, job_id: str) -> bool:
    """Return whether there is a workflow with an ID."""
    return WorkflowLog(jobs, job_id).state() is not None
