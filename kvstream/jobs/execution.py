"""How one job runs: its arguments, its middleware, and its end in one commit.

A job ends with a result, a retry, or among the dead letters. Each end is one commit that the lease
guards: a late one raises LeaseLost and changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any

from kvstream.engine.queue_arguments import failure_of
from kvstream.errors import (
    Conflict,
    KVStreamError,
    LeaseLost,
    RequestError,
    ServerUnavailable,
    UnknownOutcome,
    describe,
)
from kvstream.jobs.dependents import FINAL, LOST, tell_of_end
from kvstream.jobs.flow.unrun import (
    NotRun,
    PutOff,
    end_not_run,
    put_off,
    refuse_late,
    refuse_unless,
)
from kvstream.jobs.handle import AWAY_S, FAILED
from kvstream.jobs.history.child import tell_parent
from kvstream.jobs.history.links import prepare_link
from kvstream.jobs.job import (
    AnyJobs,
    GiveUp,
    Job,
    JobTimeout,
    Refused,
    Retry,
    RunEnded,
    UnknownTask,
    current,
    id_of,
)
from kvstream.jobs.job_log import (
    Failure,
    log_begun,
    log_done,
    log_failed,
    log_late,
    log_lost,
    log_problem,
    log_retried,
    log_unrun,
    log_waits,
    logger_of,
)
from kvstream.jobs.results import RETRY
from kvstream.jobs.together import end_together
from kvstream.jobs.unknown import leave_to_others
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.queue import Message

_NAME_MAX = 200
"""Characters of a task's name, which any program may have written, in an error."""
RETRY_TTL_S = 60.0
"""The record of a retry is kept for at least so long after its delay: see was_cut_short."""
_TRIES = 20
"""Attempts of a transaction that conflicts with other clients."""
_log = logger_of(__name__)

Wait = Callable[[Awaitable[Any]], Any]
"""Runs a coroutine of a middleware for a sync task."""


def job_of(jobs: AnyJobs, message: Message) -> Job | None:
    """Return the job in a message; None if it was refused.

    A refused message moves to the dead letters: it is no job, it was delivered too often without an
    outcome, or its task is unknown and no other worker has taken it within the grace. The arguments
    are loaded when the job runs.
    """
    job: Job | None = None
    try:
        job = Job.of(message.fields, message.id, message.deliveries)
        task = job.task = jobs.find_task(job.task_name)
        if task is None:
            raise UnknownTask(f"this worker has no task {job.task_name[:_NAME_MAX]}")
        if job.attempt > task.max_deliveries:
            raise Refused(
                f"it was delivered {job.attempt - 1} times, and each of its workers died or lost it"
            )
        job.message = message
        return job
    except Exception as error:  # bytes of any program
        if job is None:
            job = Job("", "", b"", attempt=message.deliveries)
            with suppress(ValueError):
                job.id = id_of(message.fields, message.id)
        job.message = message
        refused = error if isinstance(error, Refused) else Refused(describe(error))
        refuse(jobs, job, refused)
        return None


def refuse(jobs: AnyJobs, job: Job, error: Refused) -> None:
    """End a job that this worker cannot run: leave it to others for a while, or give it up."""
    if isinstance(error, NotRun | PutOff):
        end_unrun(jobs, job, error)
        return
    if isinstance(error, UnknownTask) and leave_to_others(jobs, job, error):
        return
    has_lost_workers = job.task is not None and job.attempt > job.task.max_deliveries
    give_up(jobs, job, error, is_spent=has_lost_workers)


def was_cut_short(jobs: AnyJobs, job: Job) -> bool:
    """Return whether the last try of a job ended without an outcome: perhaps it kills its workers.

    Then the lease of that try has ended; or the job was given back since, and the try has no
    recorded failure.
    """
    message = job.message
    assert message is not None
    if job.attempt == 1 or message.has_lapsed:
        return job.attempt > 1
    try:
        last = jobs.store.stream(jobs.results.own_key(job.id)).revrange(count=1)
    except KVStreamError:
        return True
    return not last or last[0].fields.get(b"attempt") != b"%d" % (job.attempt - 1)


async def run_async(jobs: AnyJobs, job: Job) -> bool:
    """Run a job of an async task, within its timeout; return whether to ``finish`` it."""
    assert job.task is not None
    current.set(job)
    limit = asyncio.timeout(job.task.timeout)
    try:
        _begin(job)
        admitted = job.task.flow.admits(job)
        refuse_unless(await admitted if inspect.isawaitable(admitted) else admitted)
        for middleware in jobs.middleware:
            await _await_middleware(middleware.before(job))
        async with limit:
            with own_process():
                result = await job.task.call(job)
            _keep_result(jobs, job, result)
        for middleware in reversed(jobs.middleware):
            await _await_middleware(middleware.after(job, job.result))
        job.returned = monotonic()
    except RunEnded as ended:
        job.returned = monotonic()
        for middleware in _who_see(jobs, job):
            with suppress(Exception):
                await _await_middleware(middleware.waits(job))
        end_without_outcome(job, ended)
        return False
    except BaseException as error:
        job.returned = monotonic()
        if isinstance(error, Refused):
            await asyncio.to_thread(refuse, jobs, job, error)
            return False
        failure = _timeout_of(job) if isinstance(error, TimeoutError) and limit.expired() else error
        for middleware in reversed(jobs.middleware):
            with suppress(Exception):
                await _await_middleware(middleware.error(job, failure))
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            log_lost(job, "the worker has cancelled it")
            raise
        await asyncio.to_thread(fail, jobs, job, failure)
        return False
    return True


def _begin(job: Job) -> None:
    """Begin a run: load the arguments, or raise Refused if they do not fit or it is too late."""
    job.begun, job.returned = monotonic(), None
    refuse_late(job.task.jobs, job)
    log_begun(job)
    job.task.load(job)


@contextmanager
def own_process() -> Iterator[None]:
    """End a process that the function of a job has forked, once it leaves that function.

    The fork has the connections of this process and none of its threads: it must not end the job.
    """
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            error = sys.exception()
            code = error.code if isinstance(error, SystemExit) else error and 1
            # Another thread may have held the lock of stdout, so it is not flushed.
            os._exit(code if isinstance(code, int) else int(code is not None))


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
            _begin(job)
            admitted = job.task.flow.admits(job)
            refuse_unless(wait(admitted) if inspect.isawaitable(admitted) else admitted)
            for middleware in jobs.middleware:
                _wait_for_middleware(middleware.before(job), wait)
            with own_process():
                result = job.task.call(job)
            _keep_result(jobs, job, result)
            for middleware in reversed(jobs.middleware):
                _wait_for_middleware(middleware.after(job, job.result), wait)
            job.returned = monotonic()
        except RunEnded as ended:
            job.returned = monotonic()
            for middleware in _who_see(jobs, job):
                with suppress(Exception):
                    _wait_for_middleware(middleware.waits(job), wait)
            end_without_outcome(job, ended)
            return False
        except BaseException as error:
            job.returned = monotonic()
            if isinstance(error, Refused):
                refuse(jobs, job, error)
            else:
                end_with_error(jobs, job, error, wait)
            return False
        return True
    finally:
        current.reset(token)


def _keep_result(jobs: AnyJobs, job: Job, result: Any) -> None:
    if not job.settled:
        job.result = result
        if job.then:
            prepare_link(jobs, job)


def _who_see(jobs: AnyJobs, job: Job) -> Sequence[Any]:
    """Return the middleware that has seen the begin of a run which ends without an outcome."""
    return () if job.run is None else tuple(reversed(jobs.middleware))


def end_without_outcome(job: Job, ended: RunEnded) -> None:
    """Log that a run of a workflow has ended; if it is lost, give its message back."""
    job.settled = True
    if ended.outcome != "lost":
        log_waits(job, ended.why)
        return
    log_lost(job, ended.why)
    assert job.message is not None
    job.message.give_back()


def end_with_error(jobs: AnyJobs, job: Job, error: BaseException, wait: Wait) -> None:
    """Tell the middleware of an error, and end the run with it."""
    for middleware in reversed(jobs.middleware):
        with suppress(Exception):
            _wait_for_middleware(middleware.error(job, error), wait)
    fail(jobs, job, error)


def end_with_timeout(jobs: AnyJobs, job: Job, wait: Wait) -> None:
    """Fail a run that has taken too long; what it does from now on is dropped."""
    end_with_error(jobs, job, _timeout_of(job), wait)


def end_child_with_timeout(jobs: AnyJobs, job: Job, seconds: float) -> None:
    """Fail a job of another process by its timeout, after it has run for ``seconds``."""
    job.begun = monotonic() - seconds
    fail(jobs, job, _timeout_of(job))


def _timeout_of(job: Job) -> JobTimeout:
    assert job.task is not None
    return JobTimeout(f"{job.task.name} has run for more than {job.task.timeout:g} s")


async def _await_middleware(found: Any) -> None:
    if inspect.isawaitable(found):
        await found


def _wait_for_middleware(found: Any, wait: Wait) -> None:
    if inspect.isawaitable(found):
        wait(found)


# --- the end of a run ---------------------------------------------------------------------------


def finish(jobs: AnyJobs, done: Sequence[Job]) -> None:
    """Write the results of jobs and acknowledge them, in one commit.

    If that commit is refused, since one job has lost its lease or has a wrong result, each job ends
    in a commit of its own.
    """
    begun = monotonic()
    ending: list[Job] = []
    for job in done:
        if job.done:
            _note_done(job)
        elif job.settled:
            _log.info("job %s of %s had ended before its task returned", job.id, job.task_name)
        else:
            ending.append(job)
    if len(ending) > 1:
        _finish_several(jobs, ending, begun)
    for job in ending:
        if not job.settled:
            _finish_one(jobs, job, begun)
        elif job.run is not None:
            _note_done(job)
    jobs.after_commit()


def _finish_several(jobs: AnyJobs, ending: Sequence[Job], begun: float) -> None:
    """End the jobs that can end together: those without a parent, children, and the workflows.

    Children only in the process that owns the store: elsewhere those of one parent conflict.
    """
    plain = [job for job in ending if job.generation is None]
    children = [job for job in plain if job.parent is not None]
    if jobs.store.own_engine is None:
        children = []
    for alike in ([job for job in plain if job.parent is None], children):
        if len(alike) < 2:
            continue
        with suppress(Exception):
            _retry(jobs, begun, partial(jobs.finish, alike))
            for job in alike:
                job.settled = True
            for job in alike:
                _note_done(job)
    end_together(jobs, ending)


def _finish_one(jobs: AnyJobs, job: Job, begun: float) -> None:
    try:
        _retry(jobs, begun, partial(job.task.end, job))
        job.settled = True
    except LeaseLost:
        _note_lost(job)
    except Conflict as error:
        _note_unwritten(job, "ended", error)
    except (TypeError, RequestError) as error:
        give_up(jobs, job, error)  # the result cannot be stored: trying again would not help
    except Exception as error:
        _note_unwritten(job, "ended", error)
    else:
        _note_done(job)


def _retry(jobs: AnyJobs, begun: float, call: Callable[[], None]) -> None:
    """Repeat a call while it conflicts with other clients, or the server is away.

    It raises ServerUnavailable one lease after ``begun``: another worker may have the job then. A
    call whose outcome is unknown may be repeated: if it was done, the next one raises LeaseLost.
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
            if monotonic() >= begun + jobs.lease_s:
                raise
            sleep(AWAY_S)


def fail(jobs: AnyJobs, job: Job, error: BaseException) -> None:
    """Give the job back for another try, or give it up after the last one."""
    task, message = job.task, job.message
    assert task is not None
    assert message is not None
    if job.settled:
        log_late(job, Failure.of(error))
        return
    if job.generation is not None:
        end_workflow(jobs, job, error)
        return
    if isinstance(error, GiveUp) or job.attempt > task.retries:
        give_up(jobs, job, error, is_spent=not isinstance(error, GiveUp))
        return
    job.ending = True
    failure = Failure.of(error)
    delay = error.delay if isinstance(error, Retry) else None
    delay = task.delay_s(job.attempt) if delay is None else delay

    def give_back(recorded: bool) -> None:
        if recorded:
            fields: dict[str, str | bytes | int] = {"attempt": job.attempt}
            if task.result_ttl > 0:
                fields = _fields_of(jobs, job, failure)
            jobs.record(job.id, RETRY, delay + max(task.result_ttl, RETRY_TTL_S), fields)
        message.nack(delay, error=failure.text, traceback=failure.trace)

    if _write_failure(jobs, job, give_back, "given back"):
        job.outcome = "failed"
        log_retried(job, failure, delay)


def give_up(jobs: AnyJobs, job: Job, error: BaseException, *, is_spent: bool = False) -> None:
    """Move the job to the dead letters, with its error, and write that it failed.

    ``is_spent``: the dead letter says that the job had its last try.
    """
    task, message = job.task, job.message
    assert message is not None
    if task is not None and job.generation is not None:
        end_workflow(jobs, job, error)
        return
    job.ending = True
    failure = Failure.of(error)

    is_letter = task is None or task.dead_letter is not False

    def bury(recorded: bool) -> None:
        if recorded and job.id:
            ttl = None if task is None else task.result_ttl
            final: dict[str, str | bytes | int] = {} if is_letter else {FINAL: 1}
            jobs.record(job.id, FAILED, ttl, _fields_of(jobs, job, failure) | final)
        if job.id:
            tell_of_end(jobs, job.id, FAILED.decode() if is_letter else LOST)
        if job.parent is not None:
            ended = {"error": failure.text, "traceback": failure.trace}
            tell_parent(jobs, job.parent, job.id, FAILED.decode(), ended)
        if not is_letter:  # a dead letter is listed by itself
            jobs.note_end(job, FAILED.decode(), failure.text)
            message.ack()
            jobs.store.stream(message.key).delete(message.id)
        else:
            options = failure_of(None, not is_spent, failure.text, failure.trace)
            message.nack_with(**options, max_deliveries=int(is_spent))

    if _write_failure(jobs, job, bury, "given up"):
        job.outcome = "failed"
        log_failed(job, failure)
    jobs.after_commit()


def end_unrun(jobs: AnyJobs, job: Job, error: NotRun | PutOff) -> None:
    """End a job that is not run, or put it off; neither is a failure."""
    job.ending = True

    def end(recorded: bool) -> None:
        if isinstance(error, NotRun):
            end_not_run(jobs, job, error, recorded)
        else:
            put_off(job, error)

    if _write_failure(jobs, job, end, "ended"):
        job.outcome = error.outcome
        log_unrun(job, error.outcome, str(error))
    jobs.after_commit()


def end_workflow(jobs: AnyJobs, job: Job, error: BaseException) -> None:
    """End a workflow that has failed."""
    job.ending = True
    failure = Failure.of(error)
    if _write_failure(jobs, job, partial(job.task.end_failed, job, failure), "ended"):
        job.outcome = "failed"
        log_failed(job, failure)
    jobs.after_commit()


def _write_failure(jobs: AnyJobs, job: Job, write: Callable[[bool], None], outcome: str) -> bool:
    """Write that a run has failed; return whether it was written, and log why if it was not.

    ``write(False)``, which adds no record of the outcome, is called if that record is refused: any
    program may have chosen the ID of the job, which is part of the record's key.
    """

    def commit(recorded: bool) -> None:
        if job.generation is not None and job.task is not None:
            write(recorded)
            return
        with jobs.store.brief_transaction():
            write(recorded)

    done, begun = False, monotonic()
    try:
        try:
            _retry(jobs, begun, partial(commit, True))
        except (LeaseLost, Conflict):
            raise
        except RequestError:
            _retry(jobs, begun, partial(commit, False))
        done = True
    except LeaseLost:
        _note_lost(job)
    except KVStreamError as problem:
        _note_unwritten(job, outcome, problem)
    job.settled = True
    return done


def _fields_of(jobs: AnyJobs, job: Job, failure: Failure) -> dict[str, str | bytes | int]:
    run = {name.decode(): value for name, value in jobs.run_fields(job).items()}
    return {"error": failure.text, "traceback": failure.trace, **run}


def _note_done(job: Job) -> None:
    job.outcome = "done"
    log_done(job)


def _note_lost(job: Job) -> None:
    job.settled = True
    log_lost(job, "its outcome is refused, since its lease has ended")


def _note_unwritten(job: Job, outcome: str, problem: BaseException) -> None:
    words = (job.id, job.task_name, outcome)
    log_problem(_log, logging.ERROR, "job %s of %s was not %s", *words, error=problem)
