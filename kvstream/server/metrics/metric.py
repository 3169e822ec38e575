"""What is measured as it happens: turns, commits, fsyncs, and how long the loop is held.

Nothing of it is asked for where metrics are off, and the hooks then cost a comparison each.

What a metric is, and what its values are read from.

Counts of values by size, as Prometheus takes them; adding one costs a fifth of a microsecond.

Names of streams and groups as labels: text, each name another, and never long.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_64_hexdigest

from kvstream.server.metrics.sample import Sample
from kvstream.server.net.asyncio_server import Listener
from kvstream.server.stats import CommandStatistics

if TYPE_CHECKING:
    from kvstream.server.runtime.executor import Executor


SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""From a commit in memory, ten microseconds, to a disk that hangs."""
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""No finer than the timers of a loop; 20 ms is what a loop under load is held to."""
REQUESTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
"""Up to the most that one turn takes."""


class Histogram:
    """One histogram; values are added by one thread at a time, and read by any."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` ascend; a value belongs to the first that is not below it."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound with the number of values up to it."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(map(float, self._counts)), strict=True))


PROBE_S = 0.05
"""How often the loop is looked at: twenty times a second take 0.3 % of a core."""


class Meter:
    """The histograms of one server."""

    def __init__(self) -> None:
        self.turn_seconds = Histogram(SECONDS)
        self.turn_requests = Histogram(REQUESTS)
        self.commit_seconds = Histogram(SECONDS)
        self.fsync_seconds = Histogram(SECONDS)
        self.loop_gap_seconds = Histogram(GAP_SECONDS)
        self._seen = monotonic()
        self._probe: asyncio.TimerHandle | None = None

    def start(self, listener: Listener) -> None:
        """Begin to measure, in the loop of the server."""
        executor = listener.executor
        executor.engine.on_commit = self.commit_seconds.add
        executor.engine.committer.on_fsync = self.fsync_seconds.add
        statistics, run = executor.statistics, listener.run_turn

        def timed_turn() -> None:
            before, begun = statistics.requests, perf_counter()
            run()
            requests = statistics.requests - before
            if requests > 0:  # none: nothing was left to be run, or CONFIG RESETSTAT was
                self.turn_seconds.add(perf_counter() - begun)
                self.turn_requests.add(requests)

        listener.run_turn = timed_turn
        self._await_next(asyncio.get_running_loop())

    def stop(self) -> None:
        """Look at the loop no more."""
        if self._probe is not None:
            self._probe.cancel()

    def silence(self) -> float:
        """Return the seconds since the loop was last seen at work; for any thread."""
        return monotonic() - self._seen

    def _await_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._seen = monotonic()
        come: Callable[[], None] = partial(self._come, loop, self._seen + PROBE_S)
        self._probe = loop.call_later(PROBE_S, come)

    def _come(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Note by how much a timer was late: so late would a request have been, had it come."""
        self.loop_gap_seconds.add(max(0.0, monotonic() - due))
        self._await_next(loop)


LABEL_MAX = 200
"""Characters; a name may have megabytes, and a monitoring system keeps every label for months."""
_KEPT = 160


def label(name: bytes) -> str:
    """Return the text for a name.

    Valid UTF-8 stays as it is; other bytes stand as ``\\xff``, and a backslash doubled, so that no
    two names look alike. A long name is cut and told apart by its hash.
    """
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if len(text) <= LABEL_MAX:
        return text
    return f"{text[:_KEPT]}...{xxh3_64_hexdigest(name)}"


Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""A value for each combination of labels."""


class Kind(Enum):
    """Prometheus's kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class View:
    """A server as one scrape sees it; its parts may be of slightly different times."""

    executor: "Executor"
    meter: Meter
    sample: Sample
    sample_failures: int = 0

    @property
    def commands(self) -> list[tuple[str, CommandStatistics]]:
        return sorted(self.executor.statistics.commands.items())

    @property
    def sample_age(self) -> float:
        return monotonic() - self.sample.taken


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: what it is called, what it means, and how it is read."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]
    values: Callable[[View], Values]
    histogram: Callable[[View], Histogram] | None = None


def counter(
    name: str, meaning: str, values: Callable[[View], Values], labels: tuple[str, ...]
) -> Metric:
    """Return a metric that only grows, but for a restart and CONFIG RESETSTAT."""
    return Metric(name, Kind.COUNTER, meaning, labels, values)


def gauge(
    name: str, meaning: str, values: Callable[[View], Values], labels: tuple[str, ...]
) -> Metric:
    """Return a metric that goes up and down."""
    return Metric(name, Kind.GAUGE, meaning, labels, values)


def count(name: str, meaning: str, value: Callable[[View], float]) -> Metric:
    """Return a counter without labels."""
    return counter(name, meaning, lambda view: [((), value(view))], ())


def level(name: str, meaning: str, value: Callable[[View], float]) -> Metric:
    """Return a gauge without labels."""
    return gauge(name, meaning, lambda view: [((), value(view))], ())


def histogram(name: str, meaning: str, value: Callable[[View], Histogram]) -> Metric:
    """Return a metric that tells how often a value had which size."""
    return Metric(name, Kind.HISTOGRAM, meaning, (), lambda view: (), value)
