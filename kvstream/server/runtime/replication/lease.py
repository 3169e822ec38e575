"""The lease of a primary: for how long the answers of its replicas count.

Replicas send back the primary's own clock with each heartbeat. So answers that a stopped process
finds in its sockets are as old as they are, and no clocks of two machines are compared.
"""

from collections.abc import Iterable
from math import inf


def lease_s(max_lag_s: int, lease_ms: int) -> float:
    """Return for how long an answer counts, by both settings; 0 is no limit."""
    return min(max_lag_s or inf, lease_ms / 1000 or inf)


def lease_end(echoes: Iterable[float], wanted: int, seconds: float) -> float:
    """Return until when at least ``wanted`` replicas count as present.

    ``echoes`` are the newest times that each has sent back. Infinite if none is wanted, and in the
    past if there are too few.
    """
    if wanted <= 0:
        return inf
    newest = sorted(echoes, reverse=True)
    return newest[wanted - 1] + seconds if wanted <= len(newest) else -inf


def next_change(ends: Iterable[float], now: float) -> float:
    """Return when the first lease ends that has not ended yet; infinite if none does."""
    return min((end for end in ends if end >= now), default=inf)
