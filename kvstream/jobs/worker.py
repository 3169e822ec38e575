"""The worker: takes jobs as it has room for them, runs them, and keeps their leases.

Async tasks run in one event loop, sync ones in threads. A worker takes a job only when it can begin
it at once. One thread extends the leases of all jobs, three times in each, and watches timeouts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from kvstream.errors import KVStreamError, StoreClosed
from kvstream.jobs.execution import job_of, run_async, run_sync, timed_out
from kvstream.queue import take

if TYPE_CHECKING:
    from kvstream.jobs.application import Jobs
    from kvstream.jobs.job import Job
    from kvstream.queue import Message

POLL_S = 0.1
"""Longest wait for a job: a signal to stop is noticed after it."""
LOOK_S = 0.05
"""Pause between two looks while the worker stops."""
GATHER_S = 0.001
"""Longest wait for one more job to end, before a read for the room that there is."""
LATE_S = 5.0
"""Seconds that cancelled tasks have to end."""
FAILED_PAUSE_S = 1.0
"""Pause after an error of the store, such as a server that is away."""

_log = logging.getLogger(__name__)


class Stop(Protocol):
    """When the worker stops: a ``threading.Event``, or what ``stop_on_signals`` gives."""

    def is_set(self) -> bool: ...


@dataclass(eq=False)
class Run:
    """A job in work."""

    job: Job
    message: Message
    deadline: float | None
    """When a thread's run has taken too long; asyncio watches its own."""
    future: Any = None
    """The asyncio task."""
    abandoned: bool = False
    """The lease is lost or given up; the thread may go on."""


class Worker:
    """Runs the jobs of an application in this process, until it is stopped. ::

    Worker(jobs, concurrency=8).run(stop)
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        concurrency: int = 8,
        queues: Sequence[str] = (),
        grace: float = 30.0,
    ) -> None:
        """``grace``: the seconds that running jobs have to finish once it stops."""
        self.jobs = jobs
        self.concurrency = concurrency
        self.grace = grace
        self.given_back = 0
        """Jobs that were not finished by the deadline."""
        self._queues = jobs.queues(queues)
        self._runs: set[Run] = set()
        self._stuck = 0
        """Threads whose jobs have taken too long and go on."""
        self._changed = threading.Condition()
        self._threads = Threads()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._wakes = threading.Event()
        """A deadline is new, or all is over."""

    @property
    def is_stuck(self) -> bool:
        """Return whether as many threads hang as it runs jobs: it takes no more."""
        return self._stuck >= self.concurrency

    def run(self, stop: Stop, at_once: Stop | None = None) -> None:
        """Work until ``stop`` is set, then finish; once ``at_once`` is set, give jobs back.

        Returns when all jobs have ended or are given back. Threads of jobs that were given back may
        still run: end the process then.
        """
        self.jobs.declare()
        keeper = threading.Thread(target=self._keep, name="kvstream-jobs-leases", daemon=True)
        keeper.start()
        try:
            while not stop.is_set() and not self.is_stuck:
                self._step(stop)
        finally:
            self._finish(at_once)
            self._ended.set()
            self._wakes.set()
            keeper.join()
            self._threads.close()
            self._close_loop()

    def _step(self, stop: Stop) -> None:
        """Take as many jobs as there is room for, and begin them."""
        room = self._room()
        if room <= 0:
            return
        try:
            found = take(self._queues, room, POLL_S)
        except KVStreamError as error:
            if isinstance(error, StoreClosed):
                raise
            _log.warning("no jobs can be taken for now", exc_info=error)
            self._ended.wait(FAILED_PAUSE_S)
            return
        for message in found:
            if stop.is_set():
                self._return([message])
                continue
            job = job_of(self.jobs, message)
            if job is not None:
                self._begin(job, message)

    def _room(self) -> int:
        """Return how many jobs can begin at once; wait for some to end if there is no room.

        While jobs end one right after the other, wait until half have ended: one read for several
        jobs takes little longer than one for a single job.
        """
        half = (self.concurrency + 1) // 2
        with self._changed:
            if len(self._runs) >= self.concurrency:
                self._changed.wait(POLL_S)
            while half < len(self._runs) < self.concurrency and self._changed.wait(GATHER_S):
                pass
            return self.concurrency - len(self._runs)

    def _begin(self, job: Job, message: Message) -> None:
        assert job.task is not None
        timeout = None if job.task.is_async else job.task.timeout
        run = Run(job, message, None if timeout is None else monotonic() + timeout)
        with self._changed:
            self._runs.add(run)
        if run.deadline is not None:
            self._wakes.set()
        if job.task.is_async:
            run.future = asyncio.run_coroutine_threadsafe(self._run_async(run), self._event_loop())
        else:
            self._threads.start(lambda: self._run_sync(run))

    def _run_sync(self, run: Run) -> None:
        try:
            run_sync(self.jobs, run.job, self._wait)
        finally:
            self._end(run)

    async def _run_async(self, run: Run) -> None:
        try:
            await run_async(self.jobs, run.job)
        finally:
            self._end(run)

    def _end(self, run: Run) -> None:
        with self._changed:
            if run in self._runs:
                self._runs.discard(run)
            elif run.abandoned and run.future is None:
                self._stuck -= 1
            self._changed.notify_all()

    # --- the event loop -------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="kvstream-jobs-asyncio", daemon=True
            )
            self._loop_thread.start()
        return self._loop

    def _close_loop(self) -> None:
        if self._loop is not None and self._loop_thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(LATE_S)
            self._loop = None

    def _wait(self, coroutine: Any) -> Any:
        """Run a coroutine of a middleware for a sync task."""
        return asyncio.run_coroutine_threadsafe(
            _as_coroutine(coroutine), self._event_loop()
        ).result()

    # --- leases and timeouts --------------------------------------------------------------------

    def _keep(self) -> None:
        """Extend the leases of all jobs, and give up jobs that have run for too long."""
        every_s = self.jobs.lease_s / 3
        due = monotonic() + every_s
        while not self._ended.is_set():
            self._wakes.clear()
            with self._changed:
                runs = list(self._runs)
            deadlines = [run.deadline for run in runs if run.deadline is not None]
            if self._wakes.wait(max(0.0, min([due, *deadlines]) - monotonic())):
                continue
            with self._changed:
                runs = list(self._runs)
            now = monotonic()
            try:
                for run in runs:
                    if run.deadline is not None and now >= run.deadline and self._abandon(run):
                        timed_out(self.jobs, run.job, self._wait)
                if now >= due:
                    due = now + every_s
                    self._extend([run for run in runs if not run.abandoned])
            except Exception as error:  # this thread keeps all leases, so it must go on
                _log.error("the leases of jobs are not kept as they should be", exc_info=error)

    def _extend(self, runs: Sequence[Run]) -> None:
        by_queue: dict[Any, list[Run]] = {}
        for run in runs:
            by_queue.setdefault(run.message.queue, []).append(run)
        for queue, some in by_queue.items():
            try:
                outcomes = queue.extend(*(run.message for run in some))
            except KVStreamError as error:
                _log.warning("the leases of %d jobs were not extended", len(some), exc_info=error)
                continue
            for run, outcome in zip(some, outcomes, strict=True):
                if outcome != 1 and not run.job.ending:
                    self._lost(run)

    def _lost(self, run: Run) -> None:
        """Stop a job that was cancelled, or that another worker has."""
        _log.warning("the lease of job %s of %s is lost", run.job.id, run.job.task_name)
        if run.future is None:
            self._abandon(run)
        else:
            run.future.cancel()

    def _abandon(self, run: Run) -> bool:
        """Let a thread go on by itself, with another in its place; return False if it has ended."""
        with self._changed:
            if run not in self._runs:
                return False
            run.abandoned = True
            self._runs.discard(run)
            self._stuck += 1
            self._changed.notify_all()
            return True

    # --- the end --------------------------------------------------------------------------------

    def _finish(self, at_once: Stop | None) -> None:
        """Wait for the jobs in work until the deadline, then give back the rest."""
        deadline = monotonic() + self.grace
        with self._changed:
            while self._runs and monotonic() < deadline:
                if at_once is not None and at_once.is_set():
                    break
                self._changed.wait(LOOK_S)
            left = list(self._runs)
            self._runs.clear()
        for run in left:
            run.abandoned = True
            if run.future is not None:
                run.future.cancel()
        self.given_back += len(left)
        self._return([run.message for run in left])

    def _return(self, messages: Sequence[Message]) -> None:
        """Give jobs back as not tried."""
        for message in messages:
            with suppress(KVStreamError):
                stream = message.queue.store.stream(message.key)
                stream.group(self.jobs.group).nack(message.id, mode="SILENT")
            _log.info("message %s is given back", message.id)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped; then cancel what is left, and close it."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LATE_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


class Threads:
    """Threads that are kept for the next job, as many as run at a time."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Any] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def start(self, call: Any) -> None:
        """Run a function in a thread, in a new one if none is idle."""
        with self._lock:
            new = self._idle == 0
            if not new:
                self._idle -= 1
        if new:
            threading.Thread(
                target=self._run, args=(call,), name="kvstream-job", daemon=True
            ).start()
        else:
            self._work.put(call)

    def _run(self, call: Any) -> None:
        while call is not None:
            call()
            with self._lock:
                self._idle += 1
            call = self._work.get()

    def close(self) -> None:
        """End the idle threads; others end with what they run."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._work.put(None)
