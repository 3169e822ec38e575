"""The worker: takes jobs as it has room for them, runs them, and keeps their leases.

Async tasks run in one event loop, sync ones in threads. A worker takes a job only when it can begin
it at once. One thread extends the leases of all jobs, three times per lease, and checks timeouts.
Another thread writes the results: those of all jobs that have ended meanwhile go into one commit.

A job may kill its process, and with it all other jobs there. So a job whose last try ended without
an outcome runs alone for its first seconds: if it kills the process again, no other job is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.engine.coerce import at_least_1
from kvstream.engine.lease_renewal import Stop, stop_check, wait_until_set
from kvstream.engine.waiters import Interrupt
from kvstream.errors import KVStreamError, StoreClosed
from kvstream.jobs.execution import (
    end_with_timeout,
    finish,
    job_of,
    run_async,
    run_sync,
    was_cut_short,
)
from kvstream.jobs.flow.rules import queues_of_pools
from kvstream.jobs.job import to_seconds
from kvstream.jobs.job_log import log_lost, log_problem, logger_of
from kvstream.jobs.starting import LINE_S
from kvstream.jobs.together import begin_together
from kvstream.jobs.workers import registry, stacks
from kvstream.jobs.workers.registration import Registration, facts_of
from kvstream.jobs.workers.threads import Threads
from kvstream.logs import NOTICE, Throttle
from kvstream.operations.queues.workers import Run as Listed
from kvstream.queue import take_until
from kvstream.surface import Public
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.jobs.application import Jobs
    from kvstream.jobs.job import Job
    from kvstream.queue import Message

WAIT_S = 60.0
"""Longest wait for a job: new ones, and ends of leases, wake the worker."""
POLL_S = 0.1
"""Pause between two checks whether a job may run alone."""
LOOK_S = 0.05
"""Pause between two checks while the worker stops."""
WATCH_S = 60.0
"""Longest single wait for the stop event; then its thread checks whether the worker has ended."""
GATHER_S = 0.001
"""Longest wait for one more job to end, before the worker takes jobs for the free slots."""
ENDS_MAX = 64
"""Most results in one commit: it takes some milliseconds."""
END_S = 60.0
"""Seconds that writing an outcome may take once the job has returned or raised."""
FAILED_PAUSE_S = 1.0
"""Pause after an error of the store, such as a server that is away."""

_log = logger_of(__name__)


class Times(NamedTuple):
    """Seconds that a worker gives its jobs, beside their own timeouts."""

    alone: float = 30.0
    """How long a job whose last try was cut short runs alone: no other job begins meanwhile, and
    running ones are at least that old. It is limited, since the job may wait for another one."""
    late: float = 5.0
    """How long a cancelled asyncio task may take to end."""
    hangs: float = 1.0
    """An event loop that does not answer within this time is blocked."""


@dataclass(eq=False)
class Run:
    """A job in work."""

    job: Job
    message: Message
    begun: float
    """By ``monotonic``, as all times here."""
    deadline: float | None
    """When the run has taken too long. For an async one it is ``Times.late`` after its timeout, at
    which asyncio cancels it."""
    future: Any = None
    """What cancels an async job."""
    thread: int | None = None
    """The thread of a sync job, from its begin to its end."""
    task: asyncio.Task[Any] | None = None
    """The task of an async job, once it has begun."""
    abandoned: bool = False
    """The lease is lost or given up; the thread may go on."""


class Worker(Public):
    """Runs the jobs of an application in this process, until it is stopped. ::

    Worker(jobs, concurrency=8).run(stop)
    """

    _internal = frozenset({"has_left", "is_spent", "is_stuck", "program", "times"})
    times = Times()

    def __init__(
        self,
        jobs: Jobs,
        *,
        concurrency: int = 8,
        queues: Sequence[str] = (),
        grace: float = 30.0,
        declares: bool = True,
        app_version: str = "",
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        """``grace``: the seconds that running jobs have to finish once the worker stops.

        ``declares``: store the schedules first; False if another process of the program does.
        ``app_version``: what ``jobs.workers()`` shows as the version of the application.
        ``max_jobs``: after so many runs the worker drains, as by ``drain``; so it does after a run
        if the resident memory of the process is above ``max_memory`` bytes then.
        """
        self.jobs = jobs
        self.concurrency = at_least_1(concurrency, "concurrency")
        self.grace = to_seconds(grace, "grace")
        self.max_jobs = None if max_jobs is None else at_least_1(max_jobs, "max_jobs")
        self.max_memory = None if max_memory is None else at_least_1(max_memory, "max_memory")
        self._taken = 0
        """Runs that have begun."""
        self.is_spent = False
        """Whether it drains, or has drained, by ``max_jobs`` or ``max_memory``."""
        self._declares = declares
        self._app_version = app_version
        self.program = ""
        """The ``kvstream work`` that this is a process of."""
        self.given_back = 0
        """Jobs that were not finished by the deadline."""
        self._queues = jobs.queues_to_work(queues)
        self._queue_names = queues_of_pools(jobs.tasks.values(), queues)
        self._state = "working"
        """Also ``"draining"`` and ``"stopping"``; see ``registry.WorkerRecord``."""
        self.has_left = False
        """Whether it was asked through the store to end."""
        self._done = self._failed = 0
        """Jobs that it has finished, and tries that have failed."""
        self._runs: set[Run] = set()
        self._abandoned: set[Run] = set()
        """Runs that were given up and still run."""
        self._stuck = 0
        """Threads and async tasks that still run after the timeout of their job."""
        self._keeps_none = False
        """Whether the thread that keeps leases sleeps until a job begins."""
        self._takes_one = False
        """Whether the last read returned a job whose last try was cut short."""
        self._lock = threading.RLock()
        """Entered in C: to enter a Condition could leave it locked at an interrupt."""
        self._changed = threading.Condition(self._lock)
        self._ending = Interrupt()
        """Set when no more jobs may be taken: the worker is to stop, or is stuck."""
        self._threads = Threads()
        self._lines = Throttle(1, LINE_S)
        """Lines about reads that fail while the store is away."""
        self._returned: SimpleQueue[Run | None] = SimpleQueue()
        """Runs whose results are to be written; None ends the thread that writes them."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._has_taken = threading.Event()
        """Set once no thread takes jobs any more."""
        self._ended = threading.Event()
        self._wakes = threading.Event()
        """Wakes the thread that keeps leases: there is a new deadline, or the worker ends."""

    @property
    def is_stuck(self) -> bool:
        """Whether ``concurrency`` jobs hang, or the event loop does: then it takes no more jobs."""
        return self._stuck >= self.concurrency

    def drain(self) -> None:
        """Take no more jobs: ``run`` returns once those in work have ended, however long it takes.

        A stop of the worker still gives them its grace.
        """
        if self._state == "working":
            self._leave("draining")

    def run(self, stop: Stop, at_once: Stop | None = None) -> None:
        """Work until ``stop`` is set, then finish; once ``at_once`` is set, give jobs back.

        Returns when all jobs have ended or are given back. Threads of jobs that were given back may
        still run: end the process then.
        """
        for event in (stop, at_once):
            stop_check(event)  # or raises TypeError
        if self._declares:
            self.jobs.declare()
        keeper = threading.Thread(target=self._keep, name="kvstream-jobs-leases", daemon=True)
        keeper.start()
        writer = threading.Thread(
            target=self._write_results, name="kvstream-jobs-results", daemon=True
        )
        writer.start()
        watcher = threading.Thread(
            target=self._watch, args=(stop,), name="kvstream-jobs-stop", daemon=True
        )
        watcher.start()
        registration = self._register()
        try:
            while not self._is_to_end(stop):
                self._step(stop)
        finally:
            self._has_taken.set()
            if self._state == "working":
                self._state = "stopping"
            self._finish(stop, at_once)
            self._ended.set()
            self._wakes.set()
            self._returned.put(None)
            keeper.join()
            writer.join(self.times.late)
            registration.end()
            self._threads.close()
            self._close_loop()

    def _watch(self, stop: Stop) -> None:
        """Wait until the worker is to stop, and wake the thread that takes jobs."""
        with suppress(Exception):  # the thread that takes jobs gets the same error
            while not (self._has_taken.is_set() or self.is_stuck or wait_until_set(stop, WATCH_S)):
                pass
        self._wake_taker()

    def _wake_taker(self) -> None:
        """Wake the thread that takes jobs, until it has ended."""
        while not self._has_taken.is_set():  # a wake-up is lost if its wait has not begun yet
            self._end_taking()
            self._has_taken.wait(LOOK_S)

    def _leave(self, state: str) -> None:
        """End, by draining or stopping; return at once."""
        self._state = state
        threading.Thread(target=self._wake_taker, name="kvstream-jobs-end", daemon=True).start()

    def _end_taking(self) -> None:
        """Take no more jobs; end the wait for one."""
        self._ending.set()
        with self._lock:
            self._changed.notify_all()

    def _is_to_end(self, stop: Stop) -> bool:
        """Return whether no more jobs are to be taken."""
        is_leaving = self._state != "working"
        return is_leaving or stop.is_set() or self._ending.is_set() or self.is_stuck

    def _step(self, stop: Stop) -> None:
        """Take as many jobs as there is room for, and begin them."""
        room = self._room()
        if room <= 0 or self._is_to_end(stop):
            return
        try:
            messages = take_until(self._queues, room, WAIT_S, self._ending)
        except KVStreamError as error:
            if isinstance(error, StoreClosed):
                raise
            self._lines.log(_log, logging.WARNING, "no jobs can be taken for now: %s", error)
            self._ending.wait(FAILED_PAUSE_S)
            return
        if messages:
            self._queues.append(self._queues.pop(0))  # each queue is the first in turn
        if stop.is_set():
            self._return(messages)
            return
        found = [(message, job_of(self.jobs, message)) for message in messages]
        self._begin(self._choose([(message, job) for message, job in found if job is not None]))

    def _choose(self, found: Sequence[tuple[Message, Job]]) -> list[Run]:
        """Return the runs of the taken jobs that begin now.

        A job whose last try was cut short begins alone. If it cannot now, it is given back, and
        taken again later.
        """
        suspects = {message for message, job in found if was_cut_short(self.jobs, job)}
        self._takes_one = bool(suspects)
        if suspects and (len(found) > 1 or self._has_young()):
            self._return([message for message, _ in found if message in suspects])
            found = [each for each in found if each[0] not in suspects]
        return [_run_of(job, message, self.times.late) for message, job in found]

    def _has_young(self) -> bool:
        oldest = monotonic() - self.times.alone
        with self._lock:
            return any(run.begun > oldest for run in self._runs)

    def _room(self) -> int:
        """Return how many jobs can begin at once; wait for some to end if there is no room.

        While jobs end one right after the other, wait until half have ended: one read for several
        jobs takes little longer than one for a single job.
        """
        half = (self.concurrency + 1) // 2
        if self._takes_one:
            return self._room_for_one()
        with self._lock:
            while len(self._runs) >= self.concurrency and not self._ending.is_set():
                self._changed.wait()
            while half < len(self._runs) < self.concurrency and self._changed.wait(GATHER_S):
                pass
            room = self.concurrency - len(self._runs)
        return room if self.max_jobs is None else min(room, self.max_jobs - self._taken)

    def _room_for_one(self) -> int:
        """Return 1 if a job can run alone now, else wait a little and return 0."""
        with self._lock:
            if self._has_young() or len(self._runs) >= self.concurrency:
                self._changed.wait(POLL_S)
                return 0
        return 1

    def _begin(self, runs: Sequence[Run]) -> None:
        begin_together(self.jobs, [run.job for run in runs])
        with self._lock:
            self._runs.update(runs)
            self._taken += len(runs)
            is_first, self._keeps_none = self._keeps_none, False
        if is_first or any(run.deadline is not None for run in runs):
            self._wakes.set()
        for run in runs:
            if run.job.task.is_async:
                started = self._run_async(run)
                run.future = asyncio.run_coroutine_threadsafe(started, self._event_loop())
        sync = [partial(self._run_sync, run) for run in runs if not run.job.task.is_async]
        self._threads.start(sync)
        if self.max_jobs is not None and self._taken >= self.max_jobs:
            _log.info("the worker has begun %d jobs, and drains", self._taken)
            self._spend()

    def _run_sync(self, run: Run) -> None:
        has_returned, run.thread = False, threading.get_ident()
        try:
            has_returned = run_sync(self.jobs, run.job, self._wait)
        finally:
            run.thread = None  # other jobs run in it from now on
            self._end_run(run, has_returned)

    async def _run_async(self, run: Run) -> None:
        has_returned, run.task = False, asyncio.current_task()
        try:
            has_returned = await run_async(self.jobs, run.job)
        finally:
            self._end_run(run, has_returned)

    def _end_run(self, run: Run, has_returned: bool) -> None:
        """Pass a run that has returned to the thread of results; end one that has failed."""
        if has_returned:
            self._returned.put(run)
        else:
            self._end([run])

    def _write_results(self) -> None:
        """Write the results of jobs that have returned, as many as there are in one commit."""
        while (run := self._returned.get()) is not None:
            runs = [run]
            while len(runs) < ENDS_MAX and not self._returned.empty():
                if (run := self._returned.get()) is None:
                    self._returned.put(None)
                    break
                runs.append(run)
            try:
                finish(self.jobs, [run.job for run in runs])
            except Exception as error:  # the results of other jobs need this thread
                log_problem(
                    _log,
                    logging.ERROR,
                    "the results of %d jobs were not written",
                    len(runs),
                    error=error,
                )
            self._end(runs)

    def _end(self, runs: Sequence[Run]) -> None:
        if self.max_memory is not None and not self.is_spent:
            self._check_memory(self.max_memory)  # first: a free slot would be filled at once
        with self._lock:
            for run in runs:
                if run in self._runs:
                    self._runs.discard(run)
                    self._count(run)
                elif run.abandoned:
                    self._abandoned.discard(run)
                    self._stuck -= 1
            self._changed.notify_all()

    def _check_memory(self, most: int) -> None:
        """Drain if the process has more memory than it may, now that a job has ended."""
        from kvstream.server.runtime.limits import resident_bytes

        resident = resident_bytes()
        if resident > most:
            _log.log(
                NOTICE,
                "the worker has %d MB of resident memory, more than %d MB, and drains",
                resident >> 20,
                most >> 20,
            )
            self._spend()

    def _spend(self) -> None:
        self.is_spent = True
        self.drain()

    def _count(self, run: Run) -> None:
        """Count a try that has ended; the caller has the lock."""
        self._done += run.job.outcome == "done"
        self._failed += run.job.outcome == "failed"

    # --- the registry ---------------------------------------------------------------------------

    def _register(self) -> Registration:
        """Keep this worker in the registry from now on."""
        facts = partial(
            facts_of,
            self.jobs,
            dict(zip(self._queue_names, self.jobs.queues(self._queue_names), strict=True)),
            self.concurrency,
            self.program,
            self._app_version,
        )
        commands = {
            registry.DRAIN: partial(self._leave_on_request, "draining"),
            registry.STOP: partial(self._leave_on_request, "stopping"),
        }
        registration = Registration(self.jobs, facts, self._work, commands, self._stack_of)
        registration.begin()
        return registration

    def _leave_on_request(self, state: str) -> None:
        self.has_left = True
        if self._state != "stopping":
            self._leave(state)

    def _work(self) -> registry.Work:
        """Return what the worker does now."""
        with self._lock:
            runs, hanging = list(self._runs), self._stuck
        now, now_ms = monotonic(), self.jobs.store.now_ms()
        found = [_listed(run, now_ms - round((now - run.begun) * 1000)) for run in runs]
        return registry.Work(self._state, self._done, self._failed, hanging, found)

    def _stack_of(self, job_id: str) -> tuple[str, str] | None:
        """Return kind and text of the stack of a job; None if it does not run here."""
        with self._lock:
            runs = [*self._runs, *self._abandoned]
        for run in runs:
            if run.job.id != job_id:
                continue
            if run.task is not None and self._loop_thread is not None:
                return "task", stacks.of_task(run.task, self._loop_thread.ident or 0)
            thread = run.thread
            text = "" if thread is None else stacks.of_thread(thread)
            return "thread", text if run.thread == thread else ""
        return None

    # --- the event loop -------------------------------------------------------------------------

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.time = monotonic  # type: ignore[method-assign]  # also for a frozen clock
            self._loop_thread = threading.Thread(
                target=self._run_loop, args=(self._loop,), name="kvstream-jobs-asyncio", daemon=True
            )
            self._loop_thread.start()
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run an event loop until the worker ends; then cancel what is left, and close it.

        A job may stop the loop, and SystemExit in an asyncio task that it starts leaves the loop.
        """
        asyncio.set_event_loop(loop)
        try:
            while not self._ended.is_set() and not loop.is_closed():
                try:
                    loop.run_forever()
                except BaseException as error:
                    _log.error("a job has left the event loop with %s", type(error).__name__)
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=self.times.late))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    def _close_loop(self) -> None:
        if self._loop is not None and self._loop_thread is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop_thread.join(self.times.late)
            self._loop = None

    def _wait(self, awaitable: Any, seconds: float | None = None) -> Any:
        """Wait in a thread for what a middleware has returned; TimeoutError after ``seconds``."""

        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._event_loop()).result(seconds)

    def _check_loop(self) -> None:
        """End the worker if an async task that has taken too long blocks the event loop."""
        answer = threading.Event()
        self._event_loop().call_soon_threadsafe(answer.set)
        if not answer.wait(self.times.hangs):
            _log.error("a job blocks the event loop of async tasks")
            with self._lock:
                self._stuck = max(self._stuck, self.concurrency)
            self._end_taking()

    # --- leases and timeouts --------------------------------------------------------------------

    def _keep(self) -> None:
        """Extend the leases of all jobs, and give up jobs that have run for too long."""
        every_s = self.jobs.lease_s / 3
        due, was_due = monotonic() + every_s, False
        while True:
            self._wakes.clear()
            if self._ended.is_set():  # looked at after ``clear``: that may undo its wake-up
                return
            with self._lock:
                runs = list(self._runs)
                is_idle = self._keeps_none = was_due and not runs
            was_due = False
            if is_idle:
                self._wakes.wait()
                due = monotonic() + every_s
                continue
            deadlines = [run.deadline for run in runs if run.deadline is not None]
            if self._wakes.wait(max(0.0, min([due, *deadlines]) - monotonic())):
                continue
            with self._lock:
                runs = list(self._runs)
            now = monotonic()
            try:
                late_s = self.times.late
                late = [run for run in runs if _is_late(run, now, late_s) and self._abandon(run)]
                for run in late:
                    # The event loop may hang.
                    end_with_timeout(self.jobs, run.job, partial(self._wait, seconds=late_s))
                    self._count_late(run)
                if any(run.future is not None for run in late):
                    self._check_loop()
                if now >= due:
                    due, was_due = now + every_s, True
                    self._extend([run for run in runs if not run.abandoned])
            except Exception as error:  # this thread keeps all leases, so it must go on
                log_problem(
                    _log,
                    logging.ERROR,
                    "the leases of jobs are not kept as they should be",
                    error=error,
                )

    def _count_late(self, run: Run) -> None:
        with self._lock:
            self._count(run)

    def _extend(self, runs: Sequence[Run]) -> None:
        by_queue: dict[Any, list[Run]] = {}
        for run in runs:
            by_queue.setdefault(run.message.queue, []).append(run)
        for queue, some in by_queue.items():
            try:
                outcomes = queue.extend(*(run.message for run in some))
            except KVStreamError as error:
                _log.warning("the leases of %d jobs were not extended: %s", len(some), error)
                continue
            for run, outcome in zip(some, outcomes, strict=True):
                if outcome != 1 and not run.job.ending:
                    self._stop_lost(run)

    def _stop_lost(self, run: Run) -> None:
        """Stop a job that was cancelled, or that another worker has."""
        _log.warning("the lease of job %s of %s is lost", run.job.id, run.job.task_name)
        if run.future is None:
            self._abandon(run)
        else:
            run.future.cancel()

    def _abandon(self, run: Run) -> bool:
        """Count a run as stuck, which frees its slot; return False if it has ended."""
        with self._lock:
            if run not in self._runs:
                return False
            run.abandoned = True
            self._runs.discard(run)
            self._abandoned.add(run)
            self._stuck += 1
            self._changed.notify_all()
        if self.is_stuck:
            self._end_taking()
        return True

    # --- the end --------------------------------------------------------------------------------

    def _finish(self, stop: Stop, at_once: Stop | None) -> None:
        """Wait for the jobs in work until the deadline, then give back the rest.

        A worker that drains has none until it is stopped, too.
        """
        deadline: float | None = None
        while not (at_once is not None and at_once.is_set()):
            if deadline is None and (self._state != "draining" or stop.is_set()):
                deadline = monotonic() + self.grace
            if deadline is not None and monotonic() >= deadline:
                break
            with self._lock:
                if not self._runs:
                    break
                self._changed.wait(LOOK_S)
        with self._lock:
            unfinished = list(self._runs)
            self._runs.clear()
        for run in unfinished:
            run.abandoned = True
            if run.future is not None:
                run.future.cancel()
            else:
                log_lost(run.job, "the worker stops, and gives it back")
        self.given_back += len(unfinished)
        self._return([run.message for run in unfinished])

    def _return(self, messages: Sequence[Message]) -> None:
        """Give jobs back as not tried, unless another worker has them by now."""
        for message in messages:
            message.give_back()
            _log.info("message %s is given back", message.id)


def _listed(run: Run, since_ms: int) -> Listed:
    """Return a run as a beat lists it."""
    job, message = run.job, run.message
    where = os.fsdecode(message.key), str(message.id)
    return Listed(job.id, job.task_name, *where, since_ms, job.task.timeout)


def _run_of(job: Job, message: Message, late_s: float) -> Run:
    timeout, now = job.task.timeout, monotonic()
    if timeout is None:
        return Run(job, message, now, None)
    return Run(job, message, now, now + timeout + (late_s if job.task.is_async else 0))


def _is_late(run: Run, now: float, late_s: float) -> bool:
    """Return whether a run hangs.

    A run whose outcome is being written gets more time: to make the text of an exception may take a
    while, and is not the job's time.
    """
    deadline = run.deadline
    if deadline is None or now < deadline:
        return False
    returned = run.job.returned
    if returned is not None and now < returned + END_S:
        run.deadline = returned + END_S
        return False
    if run.future is not None and run.job.ending:
        run.deadline = now + late_s
        return False
    return True
