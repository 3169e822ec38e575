"""How long the calls of a command took: counts of times to within a hundredth.

Times are kept in seconds, each rounded to eight binary digits, so a command has a few hundred
counts whatever it was called for, and noting a call costs a quarter of a microsecond.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

_NS = 1_000_000_000
_SPLIT = (1 << 45) + 1.0
"""``x * _SPLIT - (x * _SPLIT - x)`` is ``x`` with 8 of its 53 binary digits."""
_FIRST_BITS = 10
"""The first bound of a histogram is 2^10 nanoseconds."""


class Durations:
    """The times of one command's calls."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[float, int] = {}

    def add(self, seconds: float, calls: int = 1) -> None:
        """Note calls that took ``seconds`` each."""
        widened = seconds * _SPLIT
        rounded = widened - (widened - seconds)
        counts = self._counts
        counts[rounded] = counts.get(rounded, 0) + calls

    @property
    def calls(self) -> int:
        return sum(self._counts.values())

    def percentiles(self, ranks: list[float]) -> list[float]:
        """Return for each rank, from 0 to 100, the time that so many of a hundred calls kept to.

        There must have been a call.
        """
        times = sorted(self._counts)
        seen = list(accumulate(self._counts[time] for time in times))
        ends = [bisect_left(seen, max(1, round(rank / 100 * seen[-1]))) for rank in ranks]
        return [times[min(end, len(times) - 1)] for end in ends]

    def histogram(self) -> Iterator[tuple[int, int]]:
        """Yield bounds in microseconds, each twice the one before, and how many calls kept to them.

        Bounds below which nothing more has come are left out.
        """
        bits, seen, told = _FIRST_BITS, 0, 0
        for seconds, count in sorted(self._counts.items()):
            while seconds * _NS > _bound(bits):
                if seen > told:
                    yield _bound(bits) // 1000, seen
                    told = seen
                bits += 1
            seen += count
        if seen > told:
            yield _bound(bits) // 1000, seen


def _bound(bits: int) -> int:
    """Return what counts as 2^bits nanoseconds: all that is the same to within a hundredth."""
    return (1 << bits) + (1 << bits - 7) - 1
