"""What a metric is, the histograms of a server, and names as labels.

The histograms of turns, commits, fsyncs and delays of the loop are filled as they happen, through
hooks that are set only if metrics are on. Everything else is read when a scraper asks.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from xxhash import xxh3_64_hexdigest

from kvstream.server.metrics.sample import Sample
from kvstream.server.net.asyncio_server import Listener
from kvstream.server.stats import CommandStatistics
from kvstream.types.clock import monotonic, perf_counter

if TYPE_CHECKING:
    from kvstream.server.runtime.executor import Executor


SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""From a commit in memory, 10 microseconds, to a disk that hangs."""
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""No finer than the timers of a loop; under load, gaps should stay below 20 ms."""
REQUESTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
"""Up to the maximum number of requests in a turn."""


class Histogram:
    """A histogram; one thread at a time adds values, any thread reads them."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` are the ascending upper bounds of the buckets, inclusive."""
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound and the number of values up to it."""
        names = [*map(str, self.bounds), "+Inf"]
        return list(zip(names, accumulate(map(float, self._counts)), strict=True))


PROBE_S = 0.05
"""Interval of the timer that measures the loop; it costs 0.3 % of a core."""


class ServerHistograms:
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
        """Watch the store and the turns, and start the timer in the loop of the server."""
        executor, engine = listener.executor, listener.executor.engine
        engine.watch_commits(self.commit_seconds.add)
        engine.committer.watch_fsyncs(self.fsync_seconds.add)
        statistics, run = executor.statistics, listener.run_turn

        def timed_turn() -> bool:
            before, begun = statistics.requests, perf_counter()
            more = run()
            requests = statistics.requests - before
            if requests > 0:  # none in an empty turn, or after CONFIG RESETSTAT
                self.turn_seconds.add(perf_counter() - begun)
                self.turn_requests.add(requests)
            return more

        listener.run_turns_by(timed_turn)
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop the timer."""
        if self._probe is not None:
            self._probe.cancel()

    def silence(self) -> float:
        """Return the seconds since the loop last ran the timer; for any thread."""
        return monotonic() - self._seen

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._seen = monotonic()
        probe: Callable[[], None] = partial(self._measure, loop, self._seen + PROBE_S)
        self._probe = loop.call_later(PROBE_S, probe)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Add the delay of the timer: a request at that time would have had the same delay."""
        self.loop_gap_seconds.add(max(0.0, monotonic() - due))
        self._schedule(loop)


LABEL_MAX = 200
"""Maximum length: monitoring systems keep every label for months."""
_PREFIX = 160


def label(name: bytes) -> str:
    """Return the label of a name; different names have different labels.

    Bytes that are not UTF-8 are written ``\\xff``, and a backslash is doubled. A long name is cut
    and gets its hash appended.
    """
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if len(text) <= LABEL_MAX:
        return text
    return f"{text[:_PREFIX]}...{xxh3_64_hexdigest(name)}"


Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""A value for each combination of labels."""


class Kind(Enum):
    """Prometheus's kinds of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class View:
    """The state of a server for one scrape; its parts are from slightly different times."""

    executor: "Executor"
    histograms: ServerHistograms
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
    """A metric: its name, its meaning, and how its values are read."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...]
    values: Callable[[View], Values]
    histogram: Callable[[View], Histogram] | None = None


Source: TypeAlias = Callable[[Any], float | None] | str
"""A function of a value's owner, or the path of the attribute in it."""


def getter(source: Source) -> Callable[[Any], Any]:
    """Return the function that reads a value."""
    return attrgetter(source) if isinstance(source, str) else source


def counter(
    name: str, meaning: str, values: Callable[[View], Values], labels: tuple[str, ...]
) -> Metric:
    """Return a metric that only grows, except at a restart or CONFIG RESETSTAT."""
    return Metric(name, Kind.COUNTER, meaning, labels, values)


def gauge(
    name: str, meaning: str, values: Callable[[View], Values], labels: tuple[str, ...]
) -> Metric:
    """Return a metric that goes up and down."""
    return Metric(name, Kind.GAUGE, meaning, labels, values)


def count(name: str, meaning: str, source: Source) -> Metric:
    """Return a counter without labels, of a value of a View."""
    value = getter(source)
    return counter(name, meaning, lambda view: [((), value(view))], ())


def level(name: str, meaning: str, source: Source) -> Metric:
    """Return a gauge without labels, of a value of a View."""
    value = getter(source)
    return gauge(name, meaning, lambda view: [((), value(view))], ())


def histogram(name: str, meaning: str, path: str) -> Metric:
    """Return a metric with the distribution of a value; ``path`` leads to it from a View."""
    return Metric(name, Kind.HISTOGRAM, meaning, (), lambda view: (), attrgetter(path))
