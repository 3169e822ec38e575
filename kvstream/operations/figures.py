"""Figures of streams and groups for those who watch a store: read often, and cheap each time.

Nothing is changed by them, not even what has expired; and each step is short, whatever there is.
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

RUNS_A_STEP = 256
"""Runs of pending entries that are counted at once: a third of a millisecond."""


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


class Counted(NamedTuple):
    """What is pending in a group, as far as it has been counted."""

    pending: int = 0
    nacked: int = 0
    oldest: int | None = None
    """The least time of a delivery."""
    following: bytes | None = b""
    """Where the next step goes on; None: all is counted."""


def count_pending(txn: Txn, name: bytes, group: bytes, so_far: Counted) -> Counted:
    """Count some more of what is pending in a group.

    An index that is there tells it at once; none is made for it, since it would have to be kept up
    with each delivery from then on.
    """
    found = _group(txn, name, group)
    if found is None:
        return so_far._replace(following=None)
    if found.indexed or found.index is not None:
        oldest = oldest_delivery(txn, found)
        return Counted(pending_in(txn, found), nacked_in(txn, found), oldest, None)
    runs = found.runs.some(txn.batch, so_far.following or b"", RUNS_A_STEP)
    times = [run.time_ms for run in runs if run.owned]
    if so_far.oldest is not None:
        times.append(so_far.oldest)
    return Counted(
        so_far.pending + sum(len(run.ids) for run in runs),
        so_far.nacked + sum(len(run.ids) for run in runs if not run.owned),
        min(times, default=None),
        runs[-1].anchor + b"\0" if len(runs) == RUNS_A_STEP else None,
    )


def group_figures(
    txn: Txn, name: bytes, group: bytes, counted: Counted | None = None
) -> GroupFigures | None:
    """Return the figures of a group, None where there is none.

    ``counted`` is what is pending in it; None: that is counted now, however long it takes.
    """
    stream, found = _stream(txn, name), _group(txn, name, group)
    if stream is None or found is None:
        return None
    if counted is None:
        counted = Counted()
        while counted.following is not None:
            counted = count_pending(txn, name, group, counted)
    return GroupFigures(
        consumers=found.consumers_count,
        lag=lag(stream, found),
        entries_read=None if found.entries_read == UNKNOWN else found.entries_read,
        pending=counted.pending,
        nacked=counted.nacked,
        oldest_ms=0 if counted.oldest is None else max(0, txn.now_ms - counted.oldest),
    )


def _group(txn: Txn, name: bytes, group: bytes) -> GroupMeta | None:
    stream = _stream(txn, name)
    return None if stream is None else txn.catalog.group(txn, stream, group)
