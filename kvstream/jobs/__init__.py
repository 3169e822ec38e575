"""Jobs: functions that workers run, with retries, schedules and results.

::

    from kvstream import Jobs

    jobs = Jobs("data")


    @jobs.task(retries=3, backoff=[1, 10, 60], timeout=30)
    async def send_mail(to: str) -> str: ...


    handle = send_mail.with_options(delay=60).enqueue("a@b.c")
    handle.result(timeout=90)

``kvstream work app:jobs`` runs them. A job is a message of a queue (``kvstream.queue``).
"""

from kvstream.engine.queue_arguments import Backoff
from kvstream.errors import (
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobSkipped,
    JobUnknown,
    NonDeterministic,
    StepFailed,
)
from kvstream.jobs.application import Jobs
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history.child import Child
from kvstream.jobs.job import GiveUp, Job, JobTimeout, Retry, current_job
from kvstream.jobs.listing.changes import Changed
from kvstream.jobs.listing.counts import JobCounts
from kvstream.jobs.listing.filters import JobInfo
from kvstream.jobs.listing.pages import JobPage
from kvstream.jobs.middleware import Middleware, OpenTelemetryMiddleware, PrometheusMiddleware
from kvstream.jobs.schedules import Schedule
from kvstream.jobs.task import Task
from kvstream.jobs.tries import Try
from kvstream.jobs.worker import Worker
from kvstream.jobs.workers.registry import RunningJob, WorkerRecord
from kvstream.jobs.workers.stacks import JobStack
from kvstream.jobs.workflows.calls import (
    first_completed,
    gather,
    now,
    on_failure,
    patched,
    pause,
    publish,
    random,
    step,
    uuid4,
    wait_for,
)
from kvstream.jobs.workflows.canvas import batch, chain, chord, each, group
from kvstream.jobs.workflows.handle import Counts, Step, Update, Updates, WorkflowHandle
from kvstream.jobs.workflows.workflow import Workflow

__all__ = [
    "Backoff",
    "Changed",
    "Child",
    "Counts",
    "GiveUp",
    "Job",
    "JobCancelled",
    "JobCounts",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobHandle",
    "JobInfo",
    "JobPage",
    "JobSkipped",
    "JobStack",
    "JobTimeout",
    "JobUnknown",
    "Jobs",
    "Middleware",
    "NonDeterministic",
    "OpenTelemetryMiddleware",
    "PrometheusMiddleware",
    "Retry",
    "RunningJob",
    "Schedule",
    "Step",
    "StepFailed",
    "Task",
    "Try",
    "Update",
    "Updates",
    "Worker",
    "WorkerRecord",
    "Workflow",
    "WorkflowHandle",
    "batch",
    "chain",
    "chord",
    "current_job",
    "each",
    "first_completed",
    "gather",
    "group",
    "now",
    "on_failure",
    "patched",
    "pause",
    "publish",
    "random",
    "step",
    "uuid4",
    "wait_for",
]


def __dir__() -> list[str]:
    return __all__
