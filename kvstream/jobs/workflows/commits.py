"""The commits of a run of a workflow: its new events, guarded by the lease of its wake.

Each commit checks the lease and the generation, so that of two workers only one goes on. The commit
that suspends the workflow writes what it waits for, puts the timer and acknowledges the wake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kvstream.errors import (
    Conflict,
    KVStreamError,
    LeaseLost,
    RequestError,
    ServerUnavailable,
    describe,
)
from kvstream.jobs.handle import AWAY_S
from kvstream.jobs.history import events
from kvstream.jobs.history.events import Event, Fields
from kvstream.jobs.history.log import RUNNING, State, WorkflowLog
from kvstream.jobs.job import Job, RunEnded
from kvstream.queue import finish
from kvstream.types.clock import monotonic
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from kvstream.jobs.history.events import History

T = TypeVar("T")


class News(Exception):
    """Others have added events since the run has read them."""


class AnyWorkflow(Protocol):
    """The workflow, as its runs see it."""

    name: str
    is_async: bool
    limit_s: float | None


class Commits:
    """What one run of a workflow knows and writes."""

    def __init__(
        self, workflow: AnyWorkflow, job: Job, log: WorkflowLog, state: State, past: History
    ) -> None:
        self.workflow, self.job, self.log, self.state = workflow, job, log, state
        self.history = past
        self._begun = (log.written, state)
        """What this run has begun with, packed and unpacked: others seldom change it."""
        self.ended: RunEnded | None = None
        self.unwritten: list[tuple[str, Fields]] = []
        self.puts: list[Callable[[], None]] = []
        """Put the children that were started since the last commit."""
        clock = log.jobs
        self._ahead_ms = 0 if log.store.own_engine else log.store.now_ms() - clock.now_ms()

    def now_ms(self) -> int:
        """Return the Unix milliseconds by the clock of the store."""
        own = self.log.store.own_engine
        return self.log.jobs.now_ms() + self._ahead_ms if own is None else self.log.store.now_ms()

    def note(self, kind: str, **values: str | bytes) -> None:
        """Add an event: at once to what this run knows, and to the store with the next commit."""
        stored = {
            name: value if isinstance(value, bytes) else value.encode()
            for name, value in values.items()
        }
        self.history.take(Event(kind, stored, StreamID(self.now_ms(), 0)))
        self.unwritten.append((kind, values))

    def mark(self) -> tuple[Any, ...]:
        """Return what ``go_back`` needs if the commits from here on are undone."""
        return [*self.unwritten], [*self.puts], self.ended

    def go_back(self, mark: tuple[Any, ...]) -> None:
        """Take back the commits since ``mark``: their transaction was undone."""
        self.unwritten[:], self.puts[:], self.ended = mark

    def write_new(self) -> None:
        """Put new children and add new events, in the open transaction."""
        for put in self.puts:
            put()
        self.log.add_all(self.unwritten)

    def commit(self, block: Callable[[], T]) -> T:
        """Run a block with the new events as one commit; end the run if it may not go on."""
        try:
            done = self._commit(lambda: self.guarded(block))
        except RunEnded as ended:
            self.ended = ended
            if ended.outcome == "ended":
                self.drop_wake()
            raise
        except LeaseLost as error:
            raise self.end_run("lost", str(error)) from error
        except (RequestError, News) as error:
            if isinstance(error, Conflict):
                raise self.end_run("lost", str(error)) from error
            raise
        except KVStreamError as error:
            raise self.end_run("lost", describe(error)) from error
        self.unwritten.clear()
        self.puts.clear()
        return done

    def _commit(self, block: Callable[[], T]) -> T:
        """Run a block as one commit; wait for a server that is away, for as long as a lease."""
        until = monotonic() + self.log.jobs.lease_s
        while True:
            try:
                return self.log.commit(block)
            except ServerUnavailable:
                if monotonic() >= until or _has_loop():
                    raise
            sleep(AWAY_S)

    def guarded(self, block: Callable[[], T]) -> T:
        assert self.job.message is not None
        self.job.message.guard()
        state = self.log.state(self._begun)
        if state is None or (state.generation, state.status) != (self.state.generation, RUNNING):
            raise RunEnded("ended", "it was cancelled or retried by hand, or has expired")
        return block()

    def end_run(self, outcome: str, why: str) -> RunEnded:
        self.ended = RunEnded(outcome, why)
        return self.ended

    def drop_wake(self) -> None:
        """Acknowledge a wake that leads to nothing."""
        assert self.job.message is not None
        with suppress(KVStreamError):
            finish([self.job.message])

    def flush(self) -> None:
        """Write the new events, if there are any."""
        if self.unwritten:
            self.commit(self.write_new)

    def suspend(self, state: State, wake_ms: int | None) -> None:
        assert self.job.message is not None
        entries = self.log.entries(self.history.read_to)
        if any(Event.of(entry).kind in events.OF_OTHERS for entry in entries):
            raise News
        self.write_new()
        if wake_ms is not None:
            self.log.wake(state, wake_ms)
        self.log.write(state)
        finish([self.job.message])

    def refresh(self) -> None:
        """Take the events that others have added."""
        try:
            self.history.take_new(self.log.entries(self.history.read_to))
        except KVStreamError as error:  # another run goes on once the server is back
            raise self.end_run("lost", describe(error)) from error


def _has_loop() -> bool:
    """Return whether an event loop runs in this thread, which must not block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
