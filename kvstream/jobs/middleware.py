"""Middleware: what happens around every job.

A middleware is called when a job is enqueued, in the program that does so, and before and after
each run, in the worker. ``before``, ``after``, ``waits`` and ``error`` may be ``async``. For an
async task they run in its asyncio task, for a sync task in its thread. They are called in the order
of ``Jobs(middleware=[...])``, those after a run in reverse order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvstream.errors import optional_package
from kvstream.jobs.job import Job, current
from kvstream.types.clock import perf_counter

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["Middleware", "OpenTelemetryMiddleware", "PrometheusMiddleware"]


def __dir__() -> list[str]:
    return __all__


class Middleware:
    """Does nothing; override what you need."""

    def enqueued(self, job: Job) -> None:
        """Change a job that is about to be enqueued, such as its ``headers``."""

    def before(self, job: Job) -> Awaitable[None] | None:
        """A run begins; an exception fails it."""
        return None

    def after(self, job: Job, result: Any) -> Awaitable[None] | None:
        """The task has returned; its result is about to be written."""
        return None

    def waits(self, job: Job) -> Awaitable[None] | None:
        """A run of a workflow has ended, since the workflow waits; another run follows."""
        return None

    def error(self, job: Job, error: BaseException) -> Awaitable[None] | None:
        """The run has failed; it is about to be retried or given up.

        ``error`` is a CancelledError if the worker has cancelled an async task, since its lease is
        lost or the worker stops.
        """
        return None


class PrometheusMiddleware(Middleware):
    """Counts jobs and measures them, with prometheus-client.

    ``kvstream_jobs_total{task,outcome}`` with outcome enqueued, done, error, or waits (of a
    workflow), ``kvstream_job_seconds{task}`` and ``kvstream_jobs_running{task}``.
    """

    def __init__(self, registry: Any = None) -> None:
        """``registry``: the one of prometheus-client by default."""
        client = optional_package("prometheus_client", "prometheus-client")
        registry = client.REGISTRY if registry is None else registry
        self._count = client.Counter(
            "kvstream_jobs", "Jobs, by task and outcome.", ["task", "outcome"], registry=registry
        )
        self._seconds = client.Histogram(
            "kvstream_job_seconds", "Seconds that runs of jobs took.", ["task"], registry=registry
        )
        self._running = client.Gauge(
            "kvstream_jobs_running", "Jobs that run now.", ["task"], registry=registry
        )

    def enqueued(self, job: Job) -> None:
        self._count.labels(job.task_name, "enqueued").inc()

    def before(self, job: Job) -> None:
        self._running.labels(job.task_name).inc()
        job.state[self] = perf_counter()

    def after(self, job: Job, result: Any) -> None:
        self._end(job, "done")

    def waits(self, job: Job) -> None:
        self._end(job, "waits")

    def error(self, job: Job, error: BaseException) -> None:
        self._end(job, "error")

    def _end(self, job: Job, outcome: str) -> None:
        begun = job.state.pop(self, None)
        if begun is not None:
            self._running.labels(job.task_name).dec()
            self._seconds.labels(job.task_name).observe(perf_counter() - begun)
            self._count.labels(job.task_name, outcome).inc()


class OpenTelemetryMiddleware(Middleware):
    """Makes a span for each enqueued job and each run, with opentelemetry-api.

    The context travels in the headers of the job, so a run belongs to the trace of the program that
    enqueued it.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        self._trace = optional_package("opentelemetry.trace", "opentelemetry-api")
        self._context = optional_package("opentelemetry.context", "opentelemetry-api")
        self._propagate = optional_package("opentelemetry.propagate", "opentelemetry-api")
        self._tracer = self._trace.get_tracer("kvstream.jobs", tracer_provider=tracer_provider)

    def enqueued(self, job: Job) -> None:
        with self._tracer.start_as_current_span(
            f"{job.task_name} enqueue",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=self._attributes(job, "create"),
        ):
            self._propagate.inject(job.headers)

    def before(self, job: Job) -> None:
        span = self._tracer.start_span(
            f"{job.task_name} process",
            context=self._propagate.extract(job.headers),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={**self._attributes(job, "process"), "kvstream.job.attempt": job.attempt},
        )
        token = self._context.attach(self._trace.set_span_in_context(span))
        job.state[self] = span, token

    def after(self, job: Job, result: Any) -> None:
        self._end(job, None)

    def waits(self, job: Job) -> None:
        self._end(job, None)

    def error(self, job: Job, error: BaseException) -> None:
        self._end(job, error)

    @staticmethod
    def _attributes(job: Job, operation: str) -> dict[str, str]:
        return {
            "messaging.system": "kvstream",
            "messaging.operation.type": operation,
            "messaging.message.id": job.id,
            "kvstream.task": job.task_name,
        }

    def _end(self, job: Job, error: BaseException | None) -> None:
        span, token = job.state.pop(self, (None, None))
        if span is None:
            return
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
        if current.get(None) is job:  # else a watchdog ends the run, in another thread
            self._context.detach(token)
        span.end()
