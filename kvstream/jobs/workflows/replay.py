"""The calls that the function of a workflow makes, found again in the history by their numbers.

Where the history has the outcome of a call, that is given back. At the first call without one the
run does new work. When the workflow must wait, RunEnded leaves the function.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from kvstream.errors import InvalidArgument, JobError, NonDeterministic
from kvstream.jobs.history import events
from kvstream.jobs.history.events import FAILED, OPEN, Call, Event, Fields
from kvstream.jobs.history.log import WAITING, State, WorkflowLog
from kvstream.jobs.job import Job, JobTimeout, RunEnded
from kvstream.jobs.workflows.commits import AnyWorkflow, Commits, News
from kvstream.jobs.workflows.step import attempt_here
from kvstream.storage.contexts import contextmanager

if TYPE_CHECKING:
    from kvstream.jobs.history.events import History

T = TypeVar("T")

_PACKAGE = "kvstream.jobs"
_UNDO_ROOM = 1000
"""Events beyond the bound of a history that the end of a workflow may need."""


class Replay(Commits):
    """The calls of one run, in order."""

    def __init__(
        self, workflow: AnyWorkflow, job: Job, log: WorkflowLog, state: State, past: History
    ) -> None:
        super().__init__(workflow, job, log, state, past)
        self.seq = 0
        """The number of the last call."""
        self.undoing = False
        self.wrong: NonDeterministic | None = None
        """The code does not fit the history, even if it catches the exception."""
        self.failed: Event | None = None
        """The event that says how the function has failed."""
        self._busy = self._line = ""
        self._cut = ""
        """The call whose await was cancelled: whether it was depends on the clock."""
        self._old = set[str]()
        """Patches of lines that this workflow had passed before they were changed."""

    # --- time -----------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """When the workflow has taken too long; None without a limit, and while it is undone."""
        limit_s = self.workflow.limit_s
        if limit_s is None or self.undoing:
            return None
        return self.history.begun_ms + round(limit_s * 1000)

    def left_s(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        deadline = self.deadline_ms
        return None if deadline is None else max(0.0, (deadline - self.now_ms()) / 1000)

    def refuse_late(self) -> None:
        """Raise JobTimeout after the deadline."""
        if self.left_s() == 0.0:
            raise JobTimeout(
                f"{self.workflow.name} has taken more than {self.workflow.limit_s:g} s"
            )

    # --- the calls of the function ----------------------------------------------------------------

    def refuse_within_step(self, what: str) -> None:
        """Raise for a call that no replay could find: within a step, or after the end."""
        if self.ended is not None:
            raise self.ended
        attempt = attempt_here.get()
        if attempt is not None:
            raise InvalidArgument(
                f"{what} is called within the step {attempt.spec.name}: a step is a plain "
                "function; the workflow itself calls its steps"
            )

    def note_line(self) -> None:
        """Note the line of a call in an async workflow, which other threads may end."""
        self._line = line_of_caller()

    @property
    def line(self) -> str:
        """The file and line of the code that has made the call."""
        return self._line or line_of_caller()

    def call(self, kind: str, name: str, digest: str = "") -> Call | None:
        """Begin the next call of the function; return what the history has of it.

        Raises NonDeterministic if the history has another call in its place.
        """
        if self.wrong is not None:
            raise self.wrong
        if self._cut and not self.undoing:
            raise InvalidArgument(
                f"{self._cut} was cancelled while it was awaited, which no replay would repeat: "
                "use the timeout of step.with_options(), wait_for() or the workflow"
            )
        seq = self.seq + 1
        call = self.history.calls.get(seq)
        if call is None:
            self._refuse_more()
            self.seq = seq
            return None
        self.fail_again(call)
        if (call.kind, call.name) != (kind, name):
            found = Call(kind, name).shown
            raise self.refuse(
                f"call {seq} of {self.workflow.name} is {found} at {self.line}, but the history "
                f"has {call.shown} there: the code has changed, or depends on what is not "
                "recorded; see patched()"
            )
        if digest and call.digest and digest != call.digest:
            raise self.refuse(
                f"call {seq} of {self.workflow.name}, {call.shown} at {self.line}, has other "
                "arguments than in the history: take the time and random numbers from now(), "
                "uuid4() and random(), or see patched()"
            )
        self.seq = seq
        return call

    def fail_again(self, call: Call | None) -> None:
        """Raise what the function has failed with, if ``call`` is its failure."""
        if call is not None and call.kind == events.FAILING and not self.undoing:
            assert call.event is not None
            self.failed = call.event
            raise JobError(call.event.text("error"))

    def fail_here_again(self) -> None:
        """Raise what the function has failed with, if it did so within the call that goes on."""
        self.fail_again(self.history.calls.get(self.seq + 1))

    def refuse(self, text: str) -> NonDeterministic:
        self.wrong = NonDeterministic(text)
        return self.wrong

    def _refuse_more(self) -> None:
        """Raise if the workflow may make no more calls."""
        self.refuse_late()
        room = self.state.bound + (_UNDO_ROOM if self.undoing else 0)
        if self.history.count >= room:
            raise JobError(
                f"the history of {self.workflow.name} has {self.history.count} events, and may "
                f"have {self.state.bound}: give it a larger max_events, or let it end and enqueue "
                "another workflow for the rest"
            )

    def do(self, function: Callable[..., T], *args: Any) -> Any:
        """Call a method that may wait; in an async workflow return an awaitable of it."""
        if self.workflow.is_async:
            return self._in_thread(function, *args)
        return function(*args)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        with self.busy(getattr(function, "__name__", "this")):
            return await to_end(function, *args)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Refuse a second call while one is awaited: their order would be another in a replay."""
        if self._busy:
            raise InvalidArgument(
                f"{what} is called while {self._busy} is awaited: await one after the other, and "
                "give what runs side by side to gather() as children"
            )
        self._busy, before = what, self.seq
        try:
            yield
        except asyncio.CancelledError:
            self._cut = what
            if self.seq not in self.history.calls:
                self.seq = before
            raise
        finally:
            self._busy = ""

    # --- waiting ----------------------------------------------------------------------------------

    def wait(
        self,
        why: str,
        *,
        until_ms: int | None = None,
        names: Iterable[str] = (),
        left: int = 0,
        raises: bool = False,
        child: str = "",
    ) -> None:
        """Return if others have added events since; else end the run until there is something.

        ``names`` are signals, ``left`` is a number of children, ``raises``: the first that fails
        wakes, too. ``child``: it waits for this one alone.
        """
        self.fail_here_again()
        self.refuse_late()
        times = [at for at in (until_ms, self.deadline_ms) if at is not None]
        state = replace(
            self.state, status=WAITING, generation=self.state.generation + 1, names=list(names)
        )
        state.left, state.raises, state.why, state.lives = left, raises, why, 0
        state.child = child
        try:
            self.commit(lambda: self.suspend(state, min(times, default=None)))
        except News:
            self.refresh()
            return
        raise self.end_run("waits", why)

    def pause(self, until_ms: int) -> None:
        """Wait until a time."""
        call = self.call(events.PAUSE, "pause")
        if call is None:
            self.note(events.PAUSE, seq=str(self.seq), until=str(until_ms))
            call = self.history.calls[self.seq]
        until_ms = call.until_ms or 0
        while self.history.last_seq <= self.seq and self.now_ms() < until_ms:
            self.wait("pause", until_ms=until_ms)

    def wait_for(self, name: str, timeout_ms: int | None) -> Any:
        """Wait for a signal; return its value, or raise TimeoutError."""
        call = self.call(events.WAIT, name)
        if call is None:
            until = {} if timeout_ms is None else {"until": str(self.now_ms() + timeout_ms)}
            self.note(events.WAIT, seq=str(self.seq), name=name, **until)
            call = self.history.calls[self.seq]
        until_ms = call.until_ms
        while call.status == OPEN:
            self.fail_here_again()
            if (signal := self.history.next_signal(name)) is not None:
                self.note(events.RECEIVED, seq=str(self.seq), signal=str(signal.id))
            elif until_ms is not None and self.now_ms() >= until_ms:
                self._time_out(name)
            else:
                self.wait(f"signal {name}", until_ms=until_ms, names=[name])
        if call.status == FAILED:
            raise TimeoutError(f"no signal {name!r} has come in time")
        assert call.event is not None
        return call.event.value("value")

    def _time_out(self, name: str) -> None:
        """End a wait at its timeout, unless its signal has come at the last moment."""
        self.refresh()
        if self.history.next_signal(name) is None:
            self.note(events.RECEIVED, seq=str(self.seq))

    # --- values -----------------------------------------------------------------------------------

    def value(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a recorded value, which the first run makes."""
        call = self.call(events.VALUE, name)
        if call is not None:
            assert call.event is not None
            return call.event.value("result")
        plain = make()
        fields = events.value_fields("result", plain, self.log.jobs.format)
        self.note(events.VALUE, seq=str(self.seq), name=name, **fields)
        return plain

    def patched(self, name: str) -> bool:
        """Return whether this workflow came to this line with the new code."""
        if name in self.history.patches:
            return True
        if name in self._old or self.history.last_seq > self.seq:
            self._old.add(name)
            return False
        self.note(events.PATCHED, name=name)
        return True

    def publish(self, name: str, fields: Fields) -> None:
        """Publish a value: once, or with each try of the step that does so."""
        attempt = attempt_here.get()
        if attempt is not None:
            attempt.refuse_late()
            self.log.commit(lambda: self.log.add(events.PUBLISHED, name=name, **fields))
            return
        if self.call(events.PUBLISHED, name) is None:
            self.note(events.PUBLISHED, seq=str(self.seq), name=name, **fields)


def line_of_caller() -> str:
    """Return the file and line of the code that has made the call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_of_jobs(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_of_jobs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__package__")).startswith(_PACKAGE)


async def to_end(function: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread, and wait for its end even if the task is cancelled."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        if not work.cancelled() and isinstance(work.exception(), RunEnded):
            return work.result()
        raise
