"""How long the calls of a command took: counts of times to within a hundredth.

Times are in seconds, and counted by their first eight binary digits, so a command has a few hundred
counts whatever it was called for. They are counted a thousand together: sorted, they cost a tenth
of a microsecond each.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import frexp, ldexp

RECENT = 1024
"""Times that wait to be counted together."""
_DIGITS = 8
_NS = 1_000_000_000
_FIRST_BITS = 10
"""The first bound of a histogram is 2^10 nanoseconds."""


class Durations:
    """The times of one command's calls."""

    __slots__ = ("_counts", "_together", "recent")

    def __init__(self) -> None:
        self.recent: list[float] = []
        """Times of calls that are not counted yet; whoever adds one looks whether it is full."""
        self._together: list[tuple[float, int]] = []
        """Times of calls that were run together, with their number; not counted yet."""
        self._counts: dict[float, int] = {}

    def add(self, seconds: float, calls: int) -> None:
        """Note calls that took ``seconds`` each."""
        self._together.append((seconds, calls))
        if len(self._together) >= RECENT:
            self._count_together()

    def _count_together(self) -> None:
        together, counts = sorted(self._together), self._counts
        self._together.clear()
        at = 0
        while at < len(together):
            low, high = _rounded(together[at][0])
            end = bisect_left(together, (high, 0), at)
            counts[low] = counts.get(low, 0) + sum([calls for _, calls in together[at:end]])
            at = end

    def count(self) -> None:
        """Count those that wait."""
        self._count_together()
        recent, counts = sorted(self.recent), self._counts
        self.recent.clear()
        at = 0
        while at < len(recent):
            low, high = _rounded(recent[at])
            end = bisect_left(recent, high, at)
            counts[low] = counts.get(low, 0) + end - at
            at = end

    def _rows(self) -> list[tuple[float, int]]:
        self.count()
        return sorted(self._counts.items())

    @property
    def calls(self) -> int:
        together = sum([calls for _, calls in self._together])
        return len(self.recent) + together + sum(self._counts.values())

    def percentiles(self, ranks: list[float]) -> list[float]:
        """Return for each rank, from 0 to 100, the time that so many of a hundred calls kept to.

        There must have been a call.
        """
        rows = self._rows()
        times = [seconds for seconds, _ in rows]
        seen = list(accumulate(count for _, count in rows))
        ends = [bisect_left(seen, max(1, round(rank / 100 * seen[-1]))) for rank in ranks]
        return [times[min(end, len(times) - 1)] for end in ends]

    def histogram(self) -> Iterator[tuple[int, int]]:
        """Yield bounds in microseconds, each twice the one before, and how many calls kept to them.

        Bounds below which nothing more has come are left out.
        """
        bits, seen, told = _FIRST_BITS, 0, 0
        for seconds, count in self._rows():
            while seconds * _NS > _bound(bits):
                if seen > told:
                    yield _bound(bits) // 1000, seen
                    told = seen
                bits += 1
            seen += count
        if seen > told:
            yield _bound(bits) // 1000, seen


def _rounded(seconds: float) -> tuple[float, float]:
    """Return the times from which, and to which, one counts the same as ``seconds``."""
    share, power = frexp(max(seconds, 1 / _NS))
    low = int(ldexp(share, _DIGITS))
    return ldexp(low, power - _DIGITS), ldexp(low + 1, power - _DIGITS)


def _bound(bits: int) -> int:
    """Return what counts as 2^bits nanoseconds: all that is the same to within a hundredth."""
    return (1 << bits) + (1 << bits - 7) - 1
