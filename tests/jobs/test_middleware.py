"""Middleware: called around each job in the documented order, and two for monitoring."""

import pytest

from kvstream import ClientMissing, JobFailed, Jobs
from kvstream.errors import optional_package
from kvstream.jobs import Job, Middleware, OpenTelemetryMiddleware, PrometheusMiddleware


class Noting(Middleware):
    """Records its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def enqueued(self, job: Job) -> None:
        job.headers[self._name] = "here"
        self._calls.append(f"{self._name} enqueued")

    def before(self, job: Job) -> None:
        assert job.headers[self._name] == "here"
        self._calls.append(f"{self._name} before {job.args}")

    def after(self, job: Job, result: object) -> None:
        self._calls.append(f"{self._name} after {result}")

    def error(self, job: Job, error: BaseException) -> None:
        self._calls.append(f"{self._name} error {error}")


class Awaiting(Middleware):
    """Has asynchronous methods."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def before(self, job: Job) -> None:
        self._calls.append("awaited before")

    async def after(self, job: Job, result: object) -> None:
        self._calls.append("awaited after")


@pytest.mark.parametrize("is_async", [False, True])
def test_middleware_wraps_each_run_from_outside_in(is_async: bool) -> None:
    calls: list[str] = []
    jobs = Jobs("nowhere", middleware=[Noting("a", calls), Noting("b", calls), Awaiting(calls)])

    if is_async:

        @jobs.task
        async def run(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n
    else:

        @jobs.task
        def run(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n

    with jobs.test():
        run.enqueue(1)
        first = [*calls]
        calls.clear()
        run.enqueue(-1)
    assert first == [
        *("a enqueued", "b enqueued", "a before (1,)", "b before (1,)", "awaited before"),
        *("awaited after", "b after 1", "a after 1"),
    ]
    assert calls[-2:] == ["b error negative", "a error negative"]


def test_a_middleware_that_raises_before_a_job_fails_it() -> None:
    class Refusing(Middleware):
        def before(self, job: Job) -> None:
            raise PermissionError("not today")

    jobs = Jobs("nowhere", middleware=[Refusing()])
    ran = []

    @jobs.task
    def run() -> None:
        ran.append(1)

    with jobs.test(), pytest.raises(JobFailed, match="not today"):
        run.enqueue().result()
    assert ran == []


def test_prometheus_counts_and_measures_jobs() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    jobs = Jobs("nowhere", middleware=[PrometheusMiddleware(registry)])

    @jobs.task(retries=1, backoff=1)
    def run(n: int) -> None:
        if n:
            raise ValueError

    with jobs.test() as testing:
        run.enqueue(0)
        run.enqueue(1)
        testing.turn(1)

    def value(name: str, **labels: str) -> float | None:
        found: float | None = registry.get_sample_value(name, {"task": "run", **labels})
        return found

    assert value("kvstream_jobs_total", outcome="enqueued") == 2
    assert value("kvstream_jobs_total", outcome="done") == 1
    assert value("kvstream_jobs_total", outcome="error") == 2
    assert value("kvstream_job_seconds_count") == 3
    assert value("kvstream_jobs_running") == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_belongs_to_the_trace_of_the_program_that_enqueued_it(is_async: bool) -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("program")
    jobs = Jobs("nowhere", middleware=[OpenTelemetryMiddleware(provider)])

    if is_async:

        @jobs.task
        async def run(n: int) -> None:
            with tracer.start_as_current_span("inside"):
                assert n

    else:

        @jobs.task
        def run(n: int) -> None:
            with tracer.start_as_current_span("inside"):
                assert n

    with jobs.test():
        with tracer.start_as_current_span("program"):
            run.enqueue(1)
        run.enqueue(0)
    spans = {span.name: span for span in exporter.get_finished_spans()[:4]}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert spans["run enqueue"].parent.span_id == spans["program"].context.span_id
    assert spans["run process"].parent.span_id == spans["run enqueue"].context.span_id
    assert spans["inside"].parent.span_id == spans["run process"].context.span_id
    failed = exporter.get_finished_spans()[-1]
    assert (failed.name, failed.status.description) == ("run process", "AssertionError")


def test_an_error_names_a_missing_package() -> None:
    with pytest.raises(ClientMissing, match="pip install no-such-package"):
        optional_package("no_such_package", "no-such-package")
