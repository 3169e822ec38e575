"""The test mode of jobs: they run inline, in the thread that enqueues them, by a clock to turn.

The store is a real one in a temporary directory, with a clock that only ``turn`` moves. So retries,
delays, schedules and dead letters are those of production, at the same times, without waiting.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from typing import Any, Self

from kvstream.engine import timer_thread
from kvstream.engine.engine import Engine
from kvstream.engine.queue_arguments import span_ms
from kvstream.jobs.execution import finish, job_of, run_async, run_sync
from kvstream.jobs.job import AnyJobs, Job
from kvstream.meta.txn import Txn
from kvstream.queue import take
from kvstream.storage.contexts import contextmanager
from kvstream.store import Store
from kvstream.types.clock import ManualClock
from kvstream.types.records import Entry

__all__ = ["Testing"]


def __dir__() -> list[str]:
    return __all__


TIMERS = 500
_RUNS_MAX = 100_000


class _Engine(Engine):
    """An engine that calls a function after each transaction of the program that was committed."""

    def call_after_commits(self, ended: Callable[[], object]) -> None:
        self._ended = ended

    @contextmanager
    def transaction(self) -> Iterator[Txn]:
        with super().transaction() as txn:
            yield txn
        self._ended()

    def brief_transaction(self) -> AbstractContextManager[Any]:
        return super().transaction()


class _Store(Store[bytes]):
    engine_type = _Engine


class Testing:
    """Runs the jobs of a ``Jobs`` inline, for a ``with`` block; see ``Jobs.test``."""

    __test__ = False  # pytest takes it for a test class by its name

    def __init__(self, jobs: AnyJobs, start_ms: int | None = None) -> None:
        self.jobs = jobs
        self.clock = ManualClock() if start_ms is None else ManualClock(start_ms)
        self.ran: list[Job] = []
        """The runs so far, in order; a job that is retried is there once for each run."""
        self._folder = ""
        self._running = False

    def __enter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="kvstream-jobs-")
        store = _Store.open(self._folder, durability="no", clock=self.clock)
        engine = store.engine
        assert isinstance(engine, _Engine)
        engine.call_after_commits(self.run)
        self.jobs.testing = self
        self.jobs.use(store)
        self.jobs.declare()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.jobs.use(None)
        finally:
            self.jobs.testing = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self) -> int:
        """Run the jobs that are due now, and those that they enqueue; return how many runs.

        ``enqueue`` calls this by itself, except in a job that runs and in a transaction: the end of
        the transaction's block calls it.
        """
        if self._running or self.jobs.store.has_transaction():
            return 0
        self._running = True
        done = 0
        try:
            while done < _RUNS_MAX:
                self._fire()
                messages = take(self.jobs.queues(), 1, None)
                if not messages:
                    return done
                done += 1
                job = job_of(self.jobs, messages[0])
                if job is not None:
                    self.ran.append(job)
                    self._run(job)
        finally:
            self._running = False
        raise RuntimeError(f"jobs have enqueued others {done} times: is there a loop?")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Run nothing within the block; ``run`` or ``turn`` do so later."""
        before, self._running = self._running, True
        try:
            yield
        finally:
            self._running = before

    def turn(self, seconds: float | timedelta) -> int:
        """Turn the clock forward, and run each job at its time; return how many runs."""
        until = self.clock.ms + span_ms(seconds, "the time to turn")
        done = self.run()
        while (at := self._next_ms()) is not None and at <= until:
            self.clock.ms = max(self.clock.ms, at)
            done += self.run()
        self.clock.ms = until
        return done + self.run()

    def dead(self) -> list[Entry]:
        """Return the dead letters of all queues, oldest first."""
        keys = dict.fromkeys(self.jobs.dead_keys())
        return [entry for key in keys for entry in self.jobs.store.stream(key).range()]

    def _fire(self) -> None:
        """Fire the timers that are due."""
        engine = self.jobs.store.engine
        while engine.run(timer_thread.run_due, TIMERS):
            pass

    def _next_ms(self) -> int | None:
        """Return when the next timer is due; None if there is none."""
        streams = [stream for queue in self.jobs.queues() for stream in queue.streams()]
        times = [at for stream in streams if (at := self._first_due(stream.key))]
        later = [at for at in times if at > self.clock.ms]
        return min(later, default=None)

    def _first_due(self, key: bytes) -> int:
        return self.jobs.store.run(first_timer, key)

    def _run(self, job: Job) -> None:
        assert job.task is not None
        if job.task.is_async:
            has_returned = _run_to_end(run_async(self.jobs, job))
        else:
            has_returned = run_sync(self.jobs, job, _run_to_end)
        if has_returned:
            finish(self.jobs, [job])


def first_timer(txn: Any, name: bytes) -> int:
    """Return when the first timer of a stream is due, 0 if it has none."""
    stream = txn.stream(name)
    return 0 if stream is None else int(stream.due_at)


def _run_to_end(awaitable: Awaitable[Any]) -> Any:
    """Run a coroutine to its end, in a thread of its own if this one has an event loop."""

    async def run() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    outcome: list[Any] = []

    def in_thread() -> None:
        with suppress(BaseException):
            outcome.append(asyncio.run(run()))

    thread = threading.Thread(target=in_thread, name="kvstream-jobs-test")
    thread.start()
    thread.join()
    return outcome[0] if outcome else None
