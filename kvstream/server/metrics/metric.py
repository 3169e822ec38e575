"""What a metric is, and what its values are read from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from kvstream.server.metrics.histogram import Histogram
from kvstream.server.metrics.meter import Meter
from kvstream.server.metrics.sample import Sample
from kvstream.server.statistics import CommandStatistics

if TYPE_CHECKING:
    from kvstream.server.executor import Executor

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
