"""The promised processor time of a request, as multiples of another server's in the same run.

Such a multiple hardly depends on the machine: both servers run on the same cores with the same
neighbours. The least server (``least``) shows what Python needs at least. Where it has no such
command the multiple is of redis-server's time.
"""

from typing import NamedTuple

LEAST, REDIS = "least", "Redis"


class Target(NamedTuple):
    """The highest promised multiple of a server's processor time."""

    of: str
    times: float
    """0: nothing is promised, the row is measured beside that server only."""


def _both(name: str, one: float, sixteen: float, of: str = LEAST) -> dict[str, Target]:
    """Return the targets of a command that is sent one by one and sixteen at once."""
    return {f"{name}-p1": Target(of, one), f"{name}-p16": Target(of, sixteen)}


ALONE = Target(LEAST, 1.3)
"""One client alone."""
NONE = Target(LEAST, 0)

TARGETS: dict[str, Target] = {
    **_both("ping", 1.25, 1.5),
    **_both("get", 1.3, 1.3),
    **_both("set", 1.5, 2.0),
    **_both("incr", 1.5, 2.0),
    **_both("xlen", 0, 0),
    **_both("xack", 1.6, 2.0),
    **_both("xdel", 1.6, 2.0),
    **_both("xrange", 1.6, 2.0),
    **_both("xread", 1.6, 2.0),
    **_both("xreadgroup", 0, 0),
    **_both("xinfo-stream", 1.8, 2.2),
    **_both("xinfo-groups", 1.8, 2.2),
    **_both("xpending", 1.8, 2.2),
    # Half of the time that they took beside redis-server on 2026-11-29.
    **_both("evalsha-release", 1.1, 3.0, REDIS),
    **_both("evalsha-three", 1.7, 3.3, REDIS),
    **_both("multi", 4.6, 7.3, REDIS),
    "ping-c1": ALONE,
    "set-c1": ALONE,
    "xadd-c1": ALONE,
    "xreadgroup-c1": NONE,
    "cycle-1": NONE,
    "cycle-16": NONE,
    "cycle-pairs-1": Target(LEAST, 1.8),
    "cycle-pairs-16": Target(LEAST, 2.0),
    "cycle-pairs-c1": ALONE,
    "cycle-mixed-1": Target(LEAST, 1.8),
    "cycle-mixed-16": Target(LEAST, 2.0),
    **_both("mixed", 0, 0),
    "serve-add": NONE,
    "serve-add-16": NONE,
    "serve-add-100": NONE,
    "serve-range": NONE,
    "serve-read": NONE,
    "serve-group": NONE,
}
"""By the key of a row. The rows that stand beside the least server are those named here with it."""


def runs_least(key: str) -> bool:
    """Whether the least server runs a row too."""
    return key in TARGETS and TARGETS[key].of == LEAST
