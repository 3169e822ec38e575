"""Figures of streams and groups for those who watch a store: read often, and cheap each time.

Nothing is changed by them, not even what has expired; and none takes long, whatever there is.
"""

from itertools import islice
from typing import NamedTuple

from kvstream.ids import StreamID
from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta.indexes import nacked_in, pending_in
from kvstream.meta.pending import oldest_delivery
from kvstream.meta.records import UNKNOWN, GroupMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.lag import lag
from kvstream.storage.batch import Family

COUNTED_RUNS = 256
"""Up to so many runs of pending entries are counted anew each time: a queue that keeps up has few,
and an index in memory would have to be kept up with each of its deliveries."""


class StreamFigures(NamedTuple):
    """What one stream is like."""

    length: int
    entries_added: int
    first: StreamID | None
    """None where it has no entry."""
    last: StreamID
    groups: int


class GroupFigures(NamedTuple):
    """How far one group is."""

    consumers: int
    lag: int | None
    """None where Redis's rules cannot tell."""
    entries_read: int | None
    pending: int
    """Delivered and not acknowledged, those given back included."""
    nacked: int
    """Given back, and nobody's."""
    oldest_ms: int
    """Milliseconds since the oldest delivery that still waits for its acknowledgement; 0: none."""


class Listed(NamedTuple):
    """One key of a database."""

    generation: int
    name: bytes
    is_stream: bool


def listed(txn: Txn, db: int, cursor: int, limit: int) -> list[Listed]:
    """Return up to ``limit`` keys of a database from generation ``cursor`` on."""
    catalog = txn.catalog
    found = islice(catalog.index.names(txn, db, cursor), limit)
    return [
        Listed(generation, name, isinstance(catalog.peek(txn, name), StreamMeta))
        for generation, name in found
    ]


def _stream(txn: Txn, name: bytes) -> StreamMeta | None:
    """Return a stream as it is; None where there is none, or it has expired."""
    if not isinstance(txn.catalog.peek(txn, name), StreamMeta):
        return None
    return txn.stream(name)


def stream_figures(txn: Txn, name: bytes) -> StreamFigures | None:
    """Return the figures of a stream, None where there is none."""
    stream = _stream(txn, name)
    if stream is None:
        return None
    first = stream.first if stream.length else None
    return StreamFigures(
        stream.length, stream.entries_added, first, stream.last, stream.groups_count
    )


def group_names(txn: Txn, name: bytes, limit: int) -> list[bytes]:
    """Return the first ``limit`` groups of a stream by name."""
    stream = _stream(txn, name)
    if stream is None or not stream.groups_count:
        return []
    prefix = tree_prefix(stream.groups_tree)
    rows = txn.batch.page(Family.TREES, prefix, successor(prefix), limit)
    return [key[len(prefix) :] for key, _ in rows]


def group_figures(txn: Txn, name: bytes, group: bytes) -> GroupFigures | None:
    """Return the figures of a group, None where there is none."""
    stream = _stream(txn, name)
    found = None if stream is None else txn.catalog.group(txn, stream, group)
    if stream is None or found is None:
        return None
    pending, nacked, oldest = _pending(txn, found)
    return GroupFigures(
        consumers=found.consumers_count,
        lag=lag(stream, found),
        entries_read=None if found.entries_read == UNKNOWN else found.entries_read,
        pending=pending,
        nacked=nacked,
        oldest_ms=0 if oldest is None else max(0, txn.now_ms - oldest),
    )


def _pending(txn: Txn, group: GroupMeta) -> tuple[int, int, int | None]:
    """Return how many are pending, how many of them given back, and the oldest delivery time."""
    if not group.indexed and group.index is None:
        runs = list(islice(group.runs.scan(txn.batch), COUNTED_RUNS + 1))
        if len(runs) <= COUNTED_RUNS:
            pending = sum(len(run.ids) for run in runs)
            nacked = sum(len(run.ids) for run in runs if not run.owned)
            return pending, nacked, min((run.time_ms for run in runs if run.owned), default=None)
    return pending_in(txn, group), nacked_in(txn, group), oldest_delivery(txn, group)
