"""Count what happens in queues, and log limits that are hit and dead letters.

One object of a store, ``txn.catalog.queue_events``, has all counters. Operations add to them where
the event happens; a commit that fails afterwards is counted nevertheless. INFO, the metrics and
``store.stats()`` show them.
"""

from collections.abc import Mapping
from enum import StrEnum

from kvstream.layout.keys import key_of
from kvstream.logs import NOTICE, DeferredLogger, Throttle
from kvstream.types.ids import StreamID

LIMITS = ("in-flight", "rate", "paused")
"""What may keep a group from delivering an entry."""
LIMIT_LINE_S = 60.0
"""The limits that a group hits are logged at most once in this time, each."""
THROTTLES_MAX = 1000
"""Groups whose last log line is remembered; the oldest is forgotten first."""

MEANINGS: Mapping[str, str] = {
    "delayed_fired": "Delayed messages that became due and were added",
    "cron_fired": "Messages that schedules added",
    "cron_missed": "Times of schedules that were skipped, because the store was not open",
    "retries": "Delayed entries that became due for another delivery",
    "leases_lapsed": "Entries delivered again because their lease had run out",
    "duplicates_skipped": "Messages skipped because their unique ID was taken",
    "retained_removed": "Entries that retention removed",
    "consumers_reaped": "Idle consumers that were removed by policy",
    "redriven": "Dead letters that were added to a stream again",
}
"""The plain counters and what they count."""

_log = DeferredLogger(__name__)


class Reason(StrEnum):
    """Why an entry was given up, and moved to the dead letters."""

    MAX_DELIVERIES = "max-deliveries"
    """It was delivered as often as the policy of the group allows."""
    FATAL = "fatal"
    """Its consumer said that it must not be repeated."""
    EXPIRED = "expired"
    """Its time to live was over."""


class QueueEvents:
    """The counters of a store's queues since it was opened."""

    __slots__ = (*MEANINGS, "_throttles", "dead", "limited")

    delayed_fired: int
    cron_fired: int
    cron_missed: int
    retries: int
    leases_lapsed: int
    duplicates_skipped: int
    retained_removed: int
    consumers_reaped: int
    redriven: int

    def __init__(self) -> None:
        for name in MEANINGS:
            setattr(self, name, 0)
        self.dead = dict.fromkeys(Reason, 0)
        """Dead letters by reason. ``bury`` counts them."""
        self.limited = dict.fromkeys(LIMITS, 0)
        """Reads that a limit kept from entries, by limit. ``limit`` counts them."""
        self._throttles: dict[tuple[bytes, bytes, str], Throttle] = {}

    def bury(self, name: bytes, group: bytes, eid: StreamID, reason: Reason) -> None:
        """Count and log a dead letter; ``name`` is the stored name of the stream."""
        self.dead[reason] += 1
        self._throttle(name, group, "dead").log(
            _log,
            NOTICE,
            "entry %s of stream %s is a dead letter of group %s: %s",
            eid,
            _text(key_of(name)),
            _text(group),
            reason,
        )

    def reap(self, name: bytes, group: bytes, consumer: bytes) -> None:
        """Count and log a consumer that was removed because it was idle."""
        self.consumers_reaped += 1
        self._throttle(name, group, "reaped").log(
            _log,
            NOTICE,
            "stream %s: consumer %s of group %s was idle and is removed",
            _text(key_of(name)),
            _text(consumer),
            _text(group),
        )

    def limit(self, name: bytes, group: bytes, kind: str) -> None:
        """Count and log a read that one of LIMITS kept from entries."""
        self.limited[kind] += 1
        self._throttle(name, group, kind).log(
            _log,
            NOTICE,
            "stream %s: group %s delivers no more entries now: %s",
            _text(key_of(name)),
            _text(group),
            kind,
        )

    def _throttle(self, name: bytes, group: bytes, kind: str) -> Throttle:
        throttle = self._throttles.get((name, group, kind))
        if throttle is None:
            if len(self._throttles) >= THROTTLES_MAX:
                del self._throttles[next(iter(self._throttles))]
            throttle = Throttle(1, LIMIT_LINE_S) if kind in LIMITS else Throttle()
            self._throttles[name, group, kind] = throttle
        return throttle

    def counts(self) -> dict[str, int]:
        """Return all counters by name."""
        counts: dict[str, int] = {name: getattr(self, name) for name in MEANINGS}
        counts |= {f"dead_{reason.replace('-', '_')}": n for reason, n in self.dead.items()}
        return counts | {f"limited_{kind.replace('-', '_')}": n for kind, n in self.limited.items()}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
