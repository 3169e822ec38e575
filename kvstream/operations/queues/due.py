"""What happens when timers of streams are due, in bounded steps.

``run_due`` is one step: one commit that takes timers and does what they are for, so neither a crash
nor a second caller makes a timer fire twice. The engine's timer thread runs it when the first timer
is due (engine/timing.py).
"""

from collections.abc import Callable, Mapping
from itertools import groupby
from operator import attrgetter

from kvstream.errors import Corruption
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations import delayed, unique
from kvstream.operations.delivery import retries
from kvstream.operations.queues import reaping, redrive, retention, schedules

Fire = Callable[[Txn, bytes, StreamMeta, list[Timer]], None]
"""Does what timers of one kind of a stream, given by its name, are for; they are taken already."""

KINDS: Mapping[int, Fire] = {
    Kind.DELAYED: delayed.fire,
    Kind.RETRY: retries.fire,
    Kind.CRON: schedules.fire,
    Kind.RETENTION: retention.fire,
    Kind.REAP: reaping.fire,
    Kind.REDRIVE: redrive.fire,
    Kind.EXPIRED: delayed.fire_ttl,
    Kind.UNIQUE: unique.fire,
}
"""By the kind of the timer."""

_STREAMS = 16
"""Streams of one step."""


def run_due(txn: Txn, limit: int) -> int:
    """Fire up to about ``limit`` timers that are due; return how many, 0 if no more are due.

    Blocked readers whose time has come are woken, too: a lease has ended, or a rate allows more.
    """
    txn.signal_some(txn.catalog.index.take_wakes(txn.now_ms))
    fired = 0
    listed = txn.catalog.index.timers_due(txn, _STREAMS)
    share = max(1, limit // max(1, len(listed)))  # one stream's backlog does not hold up another
    for at_ms, name in listed:
        stream = txn.stream(name)
        if stream is None or stream.due_at != at_ms:  # a flush or an expiry left the row
            txn.catalog.index.drop_timer(txn, at_ms, name)
            fired += 1
            continue
        found = timers.take_due(txn, stream, min(share, limit - fired))
        fired += max(1, len(found))
        for kind, same in groupby(found, attrgetter("kind")):
            _fire(txn, name, stream, kind, list(same))
        if fired >= limit:
            break
    return fired


def _fire(txn: Txn, name: bytes, stream: StreamMeta, kind: int, found: list[Timer]) -> None:
    fire = KINDS.get(kind)
    if fire is None:
        raise Corruption(f"the stream {name[2:]!r} has timers of an unknown kind {kind}")
    fire(txn, name, stream, found)
