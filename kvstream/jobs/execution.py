"""How one job runs: its arguments, its middleware, and its end in one commit.

A job ends with a result, a retry, or among the dead letters. Each end is one commit that the lease
guards: a late one raises LeaseLost and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import sleep
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from kvstream.engine.queue_arguments import failure_of
from kvstream.errors import (
    Conflict,
    DataError,
    KVStreamError,
    LeaseLost,
    RequestError,
    ServerUnavailable,
    StoreError,
    UnknownOutcome,
    described,
)
from kvstream.jobs.handle import AWAY_S, FAILED, RETRY
from kvstream.jobs.job import (
    AnyJobs,
    GiveUp,
    Job,
    JobTimeout,
    Refused,
    Retry,
    UnknownTask,
    current,
)
from kvstream.jobs.unknown import is_left_to_others
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.queue import Message

_TRIES = 20
"""Attempts of a transaction that other clients overtake."""
_log = logging.getLogger(__name__)

Wait = Callable[[Awaitable[Any]], Any]
"""Runs a coroutine of a middleware for a sync task."""


def job_of(jobs: AnyJobs, message: Message) -> Job | None:
    """Return the job in a message, with its arguments; None if it was refused.

    A refused one moves to the dead letters: it has taken too many workers with it, or its task is
    unknown or of another version, and no other worker has taken it within the grace.
    """
    job = Job("", "", b"")
    try:
        job = Job.of(message.fields, message.id, message.deliveries)
        job.message = message
        task = job.task = jobs.tasks.get(job.task_name)
        if task is None:
            raise UnknownTask(f"this worker has no task {job.task_name}")
        if job.attempt > task.max_deliveries:
            raise Refused(
                f"it was delivered {job.attempt - 1} times, and each of its workers died or lost it"
            )
        task.load(job)
        return job
    except Refused as error:
        job.message = message
        if not (isinstance(error, UnknownTask) and is_left_to_others(jobs, job, error)):
            give_up(jobs, job, error, is_spent=_has_lost_workers(job))
        return None


def _has_lost_workers(job: Job) -> bool:
    """Return whether a job was delivered so often that it is not run again."""
    return job.task is not None and job.attempt > job.task.max_deliveries


async def run_async(jobs: AnyJobs, job: Job) -> bool:
    """Run a job of an async task, within its timeout; return whether to ``finish`` it."""
    assert job.task is not None
    current.set(job)
    limit = asyncio.timeout(job.task.timeout)
    try:
        for middleware in jobs.middleware:
            await _awaited(middleware.before(job))
        async with limit:
            result = await job.task.function(*job.args, **job.kwargs)
            if not job.settled:
                job.result = result
        for middleware in reversed(jobs.middleware):
            await _awaited(middleware.after(job, job.result))
    except BaseException as error:
        failure = _timeout_of(job) if isinstance(error, TimeoutError) and limit.expired() else error
        for middleware in reversed(jobs.middleware):
            with suppress(Exception):
                await _awaited(middleware.error(job, failure))
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        await asyncio.to_thread(fail, jobs, job, failure)
        return False
    return True


def _is_cancelled() -> bool:
    """Return whether the worker has cancelled this asyncio task.

    If not, the job has raised CancelledError by itself, for example by awaiting what was cancelled.
    """
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0


def run_sync(jobs: AnyJobs, job: Job, wait: Wait) -> bool:
    """Run a job of a sync task in this thread; return whether to ``finish`` it."""
    assert job.task is not None
    token = current.set(job)
    try:
        try:
            for middleware in jobs.middleware:
                _waited(middleware.before(job), wait)
            result = job.task.function(*job.args, **job.kwargs)
            if not job.settled:
                job.result = result
            for middleware in reversed(jobs.middleware):
                _waited(middleware.after(job, job.result), wait)
        except BaseException as error:
            failed(jobs, job, error, wait)
            return False
        return True
    finally:
        current.reset(token)


def failed(jobs: AnyJobs, job: Job, error: BaseException, wait: Wait) -> None:
    """Tell the middleware of an error, and end the run with it."""
    for middleware in reversed(jobs.middleware):
        with suppress(Exception):
            _waited(middleware.error(job, error), wait)
    fail(jobs, job, error)


def timed_out(jobs: AnyJobs, job: Job, wait: Wait) -> None:
    """End the run of a sync task that takes too long; its thread goes on for nothing."""
    failed(jobs, job, _timeout_of(job), wait)


def _timeout_of(job: Job) -> JobTimeout:
    assert job.task is not None
    return JobTimeout(f"{job.task.name} has run for more than {job.task.timeout:g} s")


async def _awaited(found: Any) -> None:
    if inspect.isawaitable(found):
        await found


def _waited(found: Any, wait: Wait) -> None:
    if inspect.isawaitable(found):
        wait(found)


# --- the end of a run ---------------------------------------------------------------------------


def finish(jobs: AnyJobs, done: Sequence[Job]) -> None:
    """Write the results of jobs and acknowledge them, in one commit.

    If that is refused, since one job has lost its lease, each ends by a commit of its own.
    """
    until = monotonic() + jobs.lease_s
    ending = [job for job in done if not job.settled]
    if len(ending) > 1:
        with suppress(KVStreamError, TypeError):
            _repeated(lambda: jobs.finish(ending), until)
            for job in ending:
                job.settled = True
    for job in done:
        if job not in ending:
            _log.info("job %s of %s had ended before its task returned", job.id, job.task_name)
        elif not job.settled:
            _finish_one(jobs, job, until)


def _finish_one(jobs: AnyJobs, job: Job, until: float) -> None:
    try:
        _repeated(lambda: jobs.finish([job]), until)
        job.settled = True
    except LeaseLost:
        _note_lost(job)
    except (Conflict, StoreError, DataError) as error:
        _log.error("the end of job %s of %s was not written", job.id, job.task_name, exc_info=error)
    except (TypeError, RequestError) as error:
        give_up(jobs, job, error)  # the result cannot be stored: trying again would not help


def _repeated(call: Callable[[], None], until: float) -> None:
    """Call again while other clients change what the transaction has read, or the server is away.

    ``until`` is when the lease has ended, so that another worker may have the job. A call whose
    outcome is unknown may be repeated: if it was done, the lease is another's.
    """
    tries = _TRIES
    while True:
        try:
            call()
            return
        except Conflict:
            tries -= 1
            if not tries:
                raise
        except (ServerUnavailable, UnknownOutcome):
            if monotonic() >= until:
                raise
            sleep(AWAY_S)


def fail(jobs: AnyJobs, job: Job, error: BaseException) -> None:
    """Give the job back for another try, or give it up after the last one."""
    task, message = job.task, job.message
    assert task is not None
    assert message is not None
    if job.settled:
        _log.error("job %s of %s failed after its end", job.id, task.name, exc_info=error)
        return
    if isinstance(error, GiveUp | Refused) or job.attempt > task.retries:
        give_up(jobs, job, error, is_spent=not isinstance(error, GiveUp | Refused))
        return
    job.ending = True
    delay = error.delay if isinstance(error, Retry) else None
    delay = task.delay_s(job.attempt) if delay is None else delay

    def give_back() -> None:
        with jobs.store._engine.brief_transaction():
            jobs.record(job.id, RETRY, task.result_ttl, _failure(job, error))
            message.nack(delay, error=error)

    if _is_written(jobs, job, give_back, "given back"):
        _log.info("job %s of %s failed, and is tried again in %g s", job.id, task.name, delay)


def give_up(jobs: AnyJobs, job: Job, error: BaseException, *, is_spent: bool = False) -> None:
    """Move the job to the dead letters, with its error, and write that it failed.

    ``is_spent``: it was tried as often as it may be, which is the reason of its dead letter.
    """
    task, message = job.task, job.message
    assert message is not None
    job.ending = True

    def bury() -> None:
        with jobs.store._engine.brief_transaction():
            if job.id:
                ttl = None if task is None else task.result_ttl
                jobs.record(job.id, FAILED, ttl, _failure(job, error))
            if task is not None and task.dead_letter is False:
                message.ack()
                jobs.store.stream(message.key).delete(message.id)
            else:
                options = failure_of(None, not is_spent, error, None)
                message._nack(**options, max_deliveries=int(is_spent))

    if _is_written(jobs, job, bury, "given up"):
        _log.warning("job %s of %s is given up", job.id, job.task_name, exc_info=error)


def _is_written(jobs: AnyJobs, job: Job, write: Callable[[], None], outcome: str) -> bool:
    """Write that a run has failed, and return whether that was done; else log why not."""
    done = False
    try:
        _repeated(write, monotonic() + jobs.lease_s)
        done = True
    except LeaseLost:
        _note_lost(job)
    except KVStreamError as problem:
        _log.error("job %s of %s was not %s", job.id, job.task_name, outcome, exc_info=problem)
    job.settled = True
    return done


def _failure(job: Job, error: BaseException) -> dict[str, str | bytes | int]:
    return {
        "error": described(error).encode("utf-8", "backslashreplace"),
        "traceback": "".join(format_exception(error)).encode("utf-8", "backslashreplace"),
        "attempt": job.attempt,
    }


def _note_lost(job: Job) -> None:
    job.settled = True
    _log.warning(
        "the outcome of job %s of %s is refused: its lease has ended", job.id, job.task_name
    )
