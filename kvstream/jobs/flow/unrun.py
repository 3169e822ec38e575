"""Jobs that a worker does not run: they have expired, or ``run_if`` skips them or puts them off."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kvstream.jobs.dependents import tell_of_end
from kvstream.jobs.handle import EXPIRED, FAILED, SKIPPED, is_late
from kvstream.jobs.history.child import tell_parent
from kvstream.jobs.job import AnyJobs, Job, Refused, to_seconds


class NotRun(Refused):
    """A job that ends without a run: it is ``expired`` or ``skipped``."""

    def __init__(self, status: bytes, why: str) -> None:
        super().__init__(why)
        self.status, self.outcome = status, status.decode()


class PutOff(Refused):
    """A job that ``run_if`` has put off for some seconds; this does not count as a try."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"run_if has put it off for {delay_s:g} s")
        self.delay_s, self.outcome = delay_s, "put off"


def refuse_late(jobs: AnyJobs, job: Job) -> None:
    """Raise NotRun for a job that has waited for too long."""
    assert job.message is not None
    if is_late(jobs, job.id, job.expires_ms, job.message.id):
        raise NotRun(EXPIRED, "it has waited for longer than it may (expires)")


def refuse_unless(admitted: Any) -> None:
    """Raise NotRun or PutOff, as ``run_if`` says."""
    if isinstance(admitted, timedelta):
        raise PutOff(to_seconds(admitted, "the delay of run_if"))
    if not admitted:
        raise NotRun(SKIPPED, "run_if was false")


def put_off(job: Job, error: PutOff) -> None:
    """Give a job back for a later try; this one does not count."""
    assert job.message is not None
    job.message.nack_with(delay_ms=round(error.delay_s * 1000), untried=True)


def end_not_run(jobs: AnyJobs, job: Job, error: NotRun, recorded: bool) -> None:
    """Take a job that is not run out of its queue, in the open transaction."""
    assert job.message is not None
    if recorded:
        jobs.record(job.id, error.status, job.task.result_ttl, {"error": str(error)})
    tell_of_end(jobs, job.id, error.outcome)
    if job.parent is not None:
        ended = {"error": f"the job is {error.outcome}: {error}", "traceback": ""}
        tell_parent(jobs, job.parent, job.id, FAILED.decode(), ended)
    jobs.note_end(job, error.outcome, str(error))
    job.message.ack()
    jobs.store.stream(job.message.key).delete(job.message.id)
