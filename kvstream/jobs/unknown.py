"""Jobs of tasks that a worker does not know: it leaves them to the workers of others for a while.

Several applications, or two versions of one while it is deployed, may work on one queue. If a
worker lacks the task of a job, or has a version of it that the arguments do not fit, it gives the
job back as not tried. After a delay any worker may take it. Delays are random: of two workers that
wait in step the same one would take the job each time. Once the grace has passed since the first
time, the job is given up; a workflow waits for ever. That time is a record of the job's outcome, so
it holds for all workers and survives them; ``error`` of the handle has the reason.
"""

from __future__ import annotations

import logging
from math import inf
from random import random
from typing import TYPE_CHECKING

from kvstream.engine.queue_arguments import failure_of
from kvstream.errors import KVStreamError, LeaseLost, describe
from kvstream.jobs.handle import FAILED
from kvstream.jobs.job_log import logger_of
from kvstream.jobs.results import RETRY
from kvstream.logs import Throttle

if TYPE_CHECKING:
    from kvstream.jobs.job import AnyJobs, Job, UnknownTask

DELAY_S, DELAY_SHARE = 0.2, 5
"""The mean delay: 0.2 s, and later a fifth of the time that the job has waited."""
DELAY_MAX_S = 30.0
KEPT_S = 60.0
"""How long a record is kept beyond the grace."""
_LISTED = 20
"""The most tasks of a worker that an error names."""
_UNKNOWN = "unknown"
"""The field of the records of a job that was left to other workers."""
_log, _lines = logger_of(__name__), Throttle()


def leave_to_others(jobs: AnyJobs, job: Job, error: UnknownTask) -> bool:
    """Give a job back for other workers; return False, and note why, if its grace is over."""
    grace_s = jobs.unknown_grace if job.generation is None else inf
    try:
        waited_s = _unknown_for_s(jobs, job)
        if waited_s is None and grace_s:
            _lines.log(
                *(_log, logging.WARNING, "job %s is left to other workers for %g s: %s"),
                *(job.id, grace_s, error),
            )
        if (waited_s or 0.0) < grace_s:
            _put_off(jobs, job, error, waited_s, grace_s)
            return True
    except LeaseLost:
        return True
    except KVStreamError as problem:  # it comes again when its lease ends
        _log.warning("job %s of %s was not given back: %s", job.id, job.task_name, problem)
        return True
    error.args = (f"{error}; {_worker(jobs, grace_s)}",)
    return False


def _unknown_for_s(jobs: AnyJobs, job: Job) -> float | None:
    """Return the seconds since a worker first did not know the job; None if none has so far."""
    since_ms: int | None = None
    for record in jobs.results.own_records(job.id):
        if record.fields.get(b"status") == FAILED:  # it was given up, and redriven
            since_ms = None
        elif since_ms is None and _UNKNOWN.encode() in record.fields:
            since_ms = record.id.ms
    if since_ms is None:
        return None
    return max(0, jobs.store.now_ms() - since_ms) / 1000


def _put_off(
    jobs: AnyJobs, job: Job, error: UnknownTask, waited_s: float | None, grace_s: float
) -> None:
    assert job.message is not None
    left_s = min(grace_s - (waited_s or 0.0), DELAY_MAX_S)
    delay_s = min(max(DELAY_S, (waited_s or 0.0) / DELAY_SHARE) * (0.5 + random()), left_s)
    with jobs.store.brief_transaction():
        if waited_s is None:
            fields = {"error": describe(error), "traceback": "", _UNKNOWN: job.task_name}
            jobs.record(job.id, RETRY, max(jobs.unknown_grace + KEPT_S, jobs.result_ttl), fields)
        said = failure_of(delay_s, False, error, "")
        job.message.nack_with(**said, untried=True)


def _worker(jobs: AnyJobs, grace_s: float) -> str:
    """Return a text that names this worker and the tasks that it has."""
    names = list(jobs.tasks)
    listed = ", ".join(names[:_LISTED]) or "none"
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED} more"
    of = f" of {jobs.application}" if jobs.application else ""
    return (
        f"no other worker has run it within {grace_s:g} s; worker {jobs.consumer}{of} has: {listed}"
    )
