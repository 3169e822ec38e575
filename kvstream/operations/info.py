"""XINFO, MEMORY USAGE, and the figures of streams and groups that metrics show.

Figures are read often, so reading them is cheap and changes nothing: even expired keys stay. MEMORY
USAGE estimates the bytes of a key's rows on disk, before compression, from a few rows of each kind.
``GroupsSnapshot`` reads the groups of a stream as of one moment, one by one, while other commands
run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from kvstream.layout.keys import (
    ID_BYTES,
    U64,
    database_of,
    expiry_row,
    key_of,
    qualified,
    scan_row,
    successor,
    tree_prefix,
)
from kvstream.layout.rows import Rows
from kvstream.meta import catalog, idempotency, nodes, pel
from kvstream.meta.pel import oldest_delivery, runs_from, runs_of
from kvstream.meta.pel_index import nacked_in, pending_in, pending_with, times_of
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import OWNED_FIRST, TIME_BYTES, Run, RunIndex, Share
from kvstream.meta.strings import Key
from kvstream.meta.trees import SortedRows
from kvstream.meta.txn import Txn
from kvstream.operations import delayed
from kvstream.operations.groups import existing_group, lag
from kvstream.operations.keyspace import KeySummary, key_summary
from kvstream.operations.reads import counts
from kvstream.operations.reads.pages import Steps, read_pages
from kvstream.operations.reads.range import read_whole
from kvstream.operations.reads.rows import first_row, last_row
from kvstream.storage.batch import Family, Row
from kvstream.storage.reads import Snapshot
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.options import FULL_COUNT
from kvstream.types.records import (
    ConsumerDetail,
    ConsumerInfo,
    GroupDetail,
    GroupInfo,
    PendingDetail,
    StreamDetail,
    StreamInfo,
)
from kvstream.types.thresholds import Thresholds


class StreamFigures(NamedTuple):
    """Figures of one stream."""

    length: int
    entries_added: int
    first: StreamID | None
    """None for an empty stream."""
    last: StreamID
    groups: int
    delayed: int
    """Messages that are not in the stream yet."""


class GroupFigures(NamedTuple):
    """Figures of one group."""

    consumers: int
    lag: int | None
    """None if Redis's rules cannot tell."""
    entries_read: int | None
    pending: int
    """Delivered and not acknowledged, including entries given back."""
    nacked: int
    """Entries given back, which have no owner."""
    oldest_ms: int
    """Milliseconds since the oldest delivery that was not acknowledged; 0: none."""
    waiting: int
    """Entries given back that wait for a time, or for another entry of their key."""


class Listed(NamedTuple):
    """One key of a database."""

    generation: int
    name: bytes
    is_stream: bool


def list_keys(txn: Txn, db: int, cursor: int, limit: int) -> list[Listed]:
    """Return up to ``limit`` keys of a database from generation ``cursor`` on."""
    catalog = txn.catalog
    names = islice(catalog.index.names(txn, db, cursor), limit)
    return [
        Listed(generation, name, isinstance(catalog.peek(txn, name), StreamMeta))
        for generation, name in names
    ]


def _stream(txn: Txn, name: bytes) -> StreamMeta | None:
    """Return a stream; None if there is none or it has expired."""
    if not isinstance(txn.catalog.peek(txn, name), StreamMeta):
        return None
    return txn.stream(name)


def stream_figures(txn: Txn, name: bytes) -> StreamFigures | None:
    """Return the figures of a stream, None if there is none."""
    stream = _stream(txn, name)
    if stream is None:
        return None
    first = stream.first if stream.length else None
    return StreamFigures(
        stream.length,
        stream.entries_added,
        first,
        stream.last,
        stream.groups_count,
        delayed.count(txn, stream),
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
    """Pending entries of a group counted so far."""

    pending: int = 0
    nacked: int = 0
    oldest: int | None = None
    """The earliest delivery time."""
    waiting: int = 0
    following: bytes | None = b""
    """The ID at which the next step starts; None: all are counted."""


def count_pending(txn: Txn, name: bytes, group_name: bytes, so_far: Counted) -> Counted:
    """Count more pending entries of a group.

    An index in memory has the counts. No index is built to count, since every delivery would have
    to update it.
    """
    group = _group(txn, name, group_name)
    if group is None:
        return so_far._replace(following=None)
    if group.indexed or group.index is not None:
        oldest, nacked = oldest_delivery(txn, group), nacked_in(txn, group)
        waiting = nacked - count_given_back(txn, group, b"", OWNED_FIRST)[0] if nacked else 0
        return Counted(pending_in(txn, group), nacked, oldest, waiting, None)
    runs = group.runs.some(txn.batch, so_far.following or b"", txn.thresholds.runs_together)
    times = [run.time_ms for run in runs if run.owned]
    if so_far.oldest is not None:
        times.append(so_far.oldest)
    return Counted(
        so_far.pending + sum(run.length for run in runs),
        so_far.nacked + sum(run.length for run in runs if not run.owned),
        min(times, default=None),
        so_far.waiting + sum(run.length for run in runs if not run.owned and run.time_ms),
        runs[-1].anchor + b"\0" if len(runs) == txn.thresholds.runs_together else None,
    )


def group_figures(
    txn: Txn, name: bytes, group_name: bytes, counted: Counted | None = None
) -> GroupFigures | None:
    """Return the figures of a group, None if there is none.

    ``counted`` has the counts of its pending entries; None: count them now, however long it takes.
    """
    stream, group = _stream(txn, name), _group(txn, name, group_name)
    if stream is None or group is None:
        return None
    if counted is None:
        counted = Counted()
        while counted.following is not None:
            counted = count_pending(txn, name, group_name, counted)
    return GroupFigures(
        consumers=group.consumers_count,
        lag=lag(stream, group),
        entries_read=group.known_entries_read,
        pending=counted.pending,
        nacked=counted.nacked,
        oldest_ms=0 if counted.oldest is None else max(0, txn.now_ms - counted.oldest),
        waiting=counted.waiting,
    )


def count_given_back(txn: Txn, group: GroupMeta, start: bytes, end: bytes) -> tuple[int, bool]:
    """Count the entries given back between two keys of the times tree, up to a number of runs.

    Also return whether these are all.
    """
    count = 0
    for looked, suffix in enumerate(times_of(txn, group, start)):
        if suffix >= end:
            break
        if looked == txn.thresholds.given_back_runs:
            return count, False
        run = group.runs.get(txn.batch, suffix[TIME_BYTES:])
        if run is not None and not run.owned:
            count += run.length
    return count, True


def _group(txn: Txn, name: bytes, group_name: bytes) -> GroupMeta | None:
    stream = _stream(txn, name)
    return None if stream is None else txn.catalog.group(txn, stream, group_name)


SAMPLES = 5
"""Rows of each kind that are sampled by default, as in Redis."""


def usage(txn: Txn, name: bytes, samples: int | None = SAMPLES) -> int | None:
    """Return the bytes of a key's rows, None if there is no key.

    It is estimated from ``samples`` rows each of entries, nodes, groups, consumers, runs and
    producers; None: all rows are read.
    """
    key = txn.key(name)
    return None if key is None else _key_size(txn, key, samples)


def _key_size(txn: Txn, key: Key, samples: int | None) -> int:
    total = _listing_size(key)
    if isinstance(key, StreamMeta):
        total += _stream_size(txn, key, samples)
    elif key.pieces is not None:
        total += key.length + key.pieces.count * len(key.pieces.row(0))
    return total


def _listing_size(key: Key) -> int:
    """Return the bytes of the record and of the rows that every key has."""
    listed = len(scan_row(database_of(key.name), key.generation)) + len(key_of(key.name))
    expiring = len(expiry_row(key.expire_at, key.name)) if key.expire_at else 0
    return len(key.row) + len(key.encode()) + listed + expiring


def _stream_size(txn: Txn, stream: StreamMeta, samples: int | None) -> int:
    groups = [
        _group_size(txn, group, samples)
        for group in islice(txn.catalog.groups(txn, stream), samples)
    ]
    nodes = tree_prefix(stream.nodes_tree)
    producers = tree_prefix(stream.idmp_tree)
    counted = (
        (Family.MESSAGES, stream.prefix, stream.first.packed, stream.length),
        (Family.TREES, nodes, stream.head.packed, stream.closed_nodes),
        (Family.TREES, producers + b"P", b"", stream.pids),
        (Family.TREES, producers + b"I", b"", stream.iids),
        (Family.TREES, producers + b"O", b"", stream.iids),
    )
    rows = sum(_rows_size(txn, *kind, samples) for kind in counted)
    return rows + _scale(groups, stream.groups_count)


def _rows_size(
    txn: Txn, family: Family, prefix: bytes, start: bytes, count: int, samples: int | None
) -> int:
    """Return the bytes of the ``count`` rows under a prefix from ``start`` on."""
    if not count:
        return 0
    lower, upper = prefix + start, successor(prefix)
    rows: Iterable[Row]
    if samples is None:
        rows = txn.batch.scan(family, lower, upper)
    else:
        rows = txn.batch.page(family, lower, upper, samples)
    return _scale([len(key) + len(value) for key, value in rows], count)


def _scale(sizes: Sequence[int], count: int) -> int:
    """Estimate the size of ``count`` rows from some sizes."""
    return sum(sizes) * count // len(sizes) if sizes else 0


def _group_size(txn: Txn, group: GroupMeta, samples: int | None) -> int:
    consumers = [
        len(consumer.row) + len(consumer.encode())
        for consumer in islice(txn.catalog.consumers(txn, group), samples)
    ]
    own = len(group.row) + len(group.encode())
    return own + _scale(consumers, group.consumers_count) + _pending_size(txn, group, samples)


def _pending_size(txn: Txn, group: GroupMeta, samples: int | None) -> int:
    """Return the bytes of runs, and of their index rows in an indexed group."""
    size = ids = 0
    for run in islice(pel.runs_from(txn, group, b""), samples):
        suffixes = [run.anchor]
        if group.indexed:
            suffixes += [run.times_suffix, *([run.anchor] if run.owned else [])]
        size += len(run.encode()) + sum(len(tree_prefix(0)) + len(suffix) for suffix in suffixes)
        ids += run.length
    return size * pending_in(txn, group) // ids if ids else 0


_TREES = Family.TREES


class GroupsSnapshot:
    """The groups of a stream as they are now; the transaction must have changed nothing."""

    def __init__(self, txn: Txn, stream: StreamMeta) -> None:
        self.stream = copy(stream)
        self.stream.groups = {}
        rows = Snapshot(txn.batch.committed, (_TREES,))
        self.txn = Txn(rows, txn.catalog, txn.now_ms, read_only=True)
        """The transaction in which to read the groups; its catalog serves them alone."""
        self._seen = {row: consumer.seen_ms for row, consumer in txn.catalog.seen.items()}
        """Seen times of consumers, which are not written at once."""
        most = txn.thresholds.copied_runs
        self._copies = {
            name: _copy_runs(txn.thresholds, group)
            for name, group in stream.groups.items()
            if group.runs.memory is not None and len(group.runs.memory.keys) > most
        }

    def __len__(self) -> int:
        return self.stream.groups_count

    def __iter__(self) -> Iterator[GroupMeta]:
        for row, record in self._rows(self.stream.groups_tree):
            name = row[U64.size :]
            group = GroupMeta.decode(name, row, record, self.txn.thresholds)
            copy = self._copies.pop(name, None)
            if copy is not None:
                group.runs.memory, group.index = copy
            for row, record in self._rows(group.consumers_tree):
                consumer = ConsumerMeta.decode(row[U64.size :], row, record, self.txn.thresholds)
                catalog.recall_activity(group, consumer)
                consumer.seen_ms = self._seen.get(row, consumer.seen_ms)
                group.consumers[consumer.name] = consumer
            yield group

    def _rows(self, tree: int) -> Iterator[Row]:
        prefix = tree_prefix(tree)
        return self.txn.batch.scan(_TREES, prefix, successor(prefix)) if tree else iter(())


def _copy_runs(sizes: Thresholds, group: GroupMeta) -> tuple[SortedRows[Run], RunIndex | None]:
    """Return copies of a group's runs in memory, and of their index if there is one."""
    index = group.index
    if index is not None:
        shares = index.shares.items()
        copies = {owner: Share(share.anchors.copy(), share.pending) for owner, share in shares}
        index = RunIndex(index.times.copy(), copies, index.pending, index.sizes)
    memory = group.runs.memory
    assert memory is not None
    return SortedRows(sizes, {key: memory.items[key] for key in memory.keys}), index


NOTHING = 0
"""A limit that shows no pending entries."""


_Producers = tuple[int, int, int, int, int, int]
StreamRow = tuple[int, int, int, StreamID, StreamID, int, StreamID, *_Producers, int]
"""The fields of StreamInfo without the entries, in its order; a tuple takes a tenth of the time."""


def stream_info(txn: Txn, name: bytes) -> StreamInfo:
    """Return XINFO STREAM."""
    return _stream_info(txn, txn.existing_stream(name))


def _stream_info(txn: Txn, stream: StreamMeta) -> StreamInfo:
    row, (first, last) = stream_row(txn, stream), stream_ends(txn, stream)
    return StreamInfo(*row, first[0] if first else None, last[0] if last else None)


def stream_ends(txn: Txn, stream: StreamMeta) -> tuple[Rows | None, Rows | None]:
    """Return the first and the last entry of a stream."""
    return first_row(txn, stream), last_row(txn, stream)


def stream_row(txn: Txn, stream: StreamMeta) -> StreamRow:
    """Return the row of XINFO STREAM, without the first and the last entry."""
    if stream.idmp_tree and not txn.read_only:
        for pid in idempotency.producers(txn, stream):
            idempotency.Producer(txn, stream, pid).expire()
    limits, nodes = txn.catalog.limits, stream.nodes
    return (
        stream.length,
        nodes,
        nodes + 1,
        stream.last,
        stream.max_deleted,
        stream.entries_added,
        stream.first if stream.length else MIN_ID,
        stream.idmp_duration or limits.idmp_duration_s,
        idempotency.maxsize(txn, stream),
        stream.pids,
        stream.iids,
        stream.iids_added,
        stream.iids_duplicates,
        stream.groups_count,
    )


GroupRow = tuple[bytes, int, int, StreamID, int | None, int | None]
"""The fields of GroupInfo, in its order; a tuple takes a tenth of the time."""
ConsumerRow = tuple[bytes, int, int, int]
"""The fields of ConsumerInfo, in its order."""


def group_infos(txn: Txn, name: bytes) -> list[GroupInfo]:
    """Return XINFO GROUPS, sorted by name."""
    return [GroupInfo(*row) for row in group_rows(txn, name)]


def group_rows(txn: Txn, name: bytes) -> list[GroupRow]:
    """Return the rows of XINFO GROUPS, sorted by name."""
    stream = txn.existing_stream(name)
    return [_group_row(txn, stream, group) for group in txn.catalog.groups(txn, stream)]


def group_info(txn: Txn, name: bytes, group_name: bytes) -> GroupInfo:
    """Return one group's part of XINFO GROUPS."""
    txn.existing_stream(name)
    return GroupInfo(*_group_row(txn, *existing_group(txn, name, group_name)))


def _group_row(txn: Txn, stream: StreamMeta, group: GroupMeta) -> GroupRow:
    pending, last = pending_in(txn, group), group.last_delivered
    read = group.known_entries_read
    return group.name, group.consumers_count, pending, last, read, lag(stream, group)


class KeyUsage(NamedTuple):
    """A key in a list of keys, with its lag and size if they are wanted."""

    summary: KeySummary
    lag: int | None = None
    """The largest lag of the stream's groups."""
    size: int | None = None
    """The result of ``usage``."""


def key_usages(
    txn: Txn, db: int, cursor: int, count: int, wanted: Callable[[bytes], bool], sized: bool
) -> tuple[int, list[KeyUsage]]:
    """Return SCAN's next cursor, 0 at the end, and the wanted ones of the next ``count`` keys.

    ``sized``: with lag and size. Each stream's record is read once, and the rows of each family by
    one iterator.
    """
    names, following = txn.catalog.index.page(txn, db, cursor, count)
    keys = txn.catalog.peek_all(txn, [qualified(db, key) for key in names if wanted(key)])
    if not sized:
        return following, [KeyUsage(key_summary(key)) for key in keys]
    view = copy(txn)
    view.batch = txn.batch.copy_onto(partial(Snapshot, families=(Family.MESSAGES, Family.TREES)))
    return following, [
        KeyUsage(key_summary(key), _lag_of(view, key), _key_size(view, key, SAMPLES))
        for key in keys
    ]


def _lag_of(txn: Txn, key: Key) -> int | None:
    """Return the largest lag of a stream's groups; None for a string."""
    if not isinstance(key, StreamMeta):
        return None
    return largest_lag([lag(key, group) for group in txn.catalog.groups(txn, key)])


def largest_lag(lags: Sequence[int | None]) -> int | None:
    """Return the lag of the slowest group; None without groups, or if one lag is unknown."""
    known = [lag for lag in lags if lag is not None]
    return max(known) if known and len(known) == len(lags) else None


def backlog(txn: Txn, name: bytes, group_name: bytes) -> int:
    """Return the exact number of entries not yet delivered, even if ``lag`` is None."""
    txn.existing_stream(name)
    stream, group = existing_group(txn, name, group_name)
    return nodes.live_after(txn, stream, group.last_delivered)


def count_after(txn: Txn, name: bytes, eid: StreamID) -> int:
    """Return the exact number of entries after an ID; 0 if there is no stream."""
    return 0 if eid == MAX_ID else counts.count(txn, name, eid.next(), MAX_ID)


def consumer_infos(txn: Txn, name: bytes, group_name: bytes) -> list[ConsumerInfo]:
    """Return XINFO CONSUMERS, sorted by name."""
    return [ConsumerInfo(*row) for row in consumer_rows(txn, name, group_name)]


def consumer_rows(txn: Txn, name: bytes, group_name: bytes) -> list[ConsumerRow]:
    """Return the rows of XINFO CONSUMERS, sorted by name."""
    txn.existing_stream(name)
    _, group = existing_group(txn, name, group_name)
    now_ms = txn.now_ms
    return [
        (
            consumer.name,
            pending_with(txn, group, consumer),
            max(0, now_ms - consumer.seen_ms),
            -1 if consumer.active_ms < 0 else max(0, now_ms - consumer.active_ms),
        )
        for consumer in txn.catalog.consumers(txn, group)
    ]


@dataclass(frozen=True, slots=True)
class GroupPages:
    """One group of StreamPages; a step of pending entries is a run."""

    detail: GroupDetail
    """Everything except the pending entries."""
    pending: Steps[Run]
    of_consumers: list[Steps[Run]]
    """The pending entries of each consumer of ``detail``."""


@dataclass(frozen=True, slots=True)
class StreamPages:
    """XINFO STREAM FULL, with entries and pending entries in steps."""

    info: StreamRow
    entries: Steps[Rows]
    groups_count: int
    groups: Iterable[GroupPages]
    """To be iterated once."""


def has_much(txn: Txn, stream: StreamMeta) -> bool:
    """Return whether FULL takes steps even with a small COUNT."""
    return stream.groups_count >= txn.thresholds.long_groups


def stream_pages(txn: Txn, name: bytes, count: int) -> StreamPages:
    """Return XINFO STREAM FULL in steps, as it is now.

    If there are many groups, each is decoded from committed rows when it is needed, unless the
    transaction has changed something.
    """
    stream = txn.existing_stream(name)
    limit = count if count > 0 else None
    steps = read_pages(txn, stream, MIN_ID, MAX_ID, limit)
    groups: Iterable[GroupPages]
    if stream.groups_count < txn.thresholds.long_groups or txn.dirty:
        found = txn.catalog.groups(txn, stream)
        groups = [_group_pages(txn, stream, group, limit) for group in found]
    else:
        snapshot = GroupsSnapshot(txn, stream)
        groups = (_group_pages(snapshot.txn, snapshot.stream, group, limit) for group in snapshot)
    # stream_row may change the stream, so it comes after the snapshot.
    return StreamPages(stream_row(txn, stream), steps, stream.groups_count, groups)


def _group_pages(txn: Txn, stream: StreamMeta, group: GroupMeta, limit: int | None) -> GroupPages:
    detail, step = _group_detail(txn, stream, group, NOTHING), txn.thresholds.runs_together
    runs, *others = group.runs.snapshot(txn.batch, times=1 + len(detail.consumers))
    owners = [consumer.name for consumer in detail.consumers]
    of_consumers = [
        run_steps(step, own, limit, owner) for own, owner in zip(others, owners, strict=True)
    ]
    return GroupPages(detail, run_steps(step, runs, limit), of_consumers)


def run_steps(
    step: int, runs: Iterator[Run], limit: int | None, owner: bytes | None = None
) -> Steps[Run]:
    """Return steps of ``step`` runs for the first ``limit`` IDs; with ``owner``, for its own."""
    found: list[Run] = []
    total = 0
    for at, run in enumerate(runs, 1):
        if not at % step:
            yield None
        if owner is not None and (run.rank or run.owner != owner):
            continue
        if limit is not None and total + run.length >= limit:
            found.append(run._replace(packed=run.packed[: ID_BYTES * (limit - total)]))
            total = limit
            break
        found.append(run)
        total += run.length
    yield total
    yield from found


def stream_detail(txn: Txn, name: bytes, count: int = FULL_COUNT) -> StreamDetail:
    """Return XINFO STREAM FULL with ``count`` entries and pending entries; 0: all."""
    stream = txn.existing_stream(name)
    limit = count if count > 0 else None
    return StreamDetail(
        info=_stream_info(txn, stream),
        entries=read_whole(txn, stream, MIN_ID, MAX_ID, limit, room=0).entries(),
        groups=[
            _group_detail(txn, stream, group, limit) for group in txn.catalog.groups(txn, stream)
        ],
    )


def _group_detail(txn: Txn, stream: StreamMeta, group: GroupMeta, limit: int | None) -> GroupDetail:
    return GroupDetail(
        name=group.name,
        last_delivered_id=group.last_delivered,
        entries_read=group.known_entries_read,
        lag=lag(stream, group),
        pel_count=pending_in(txn, group),
        nacked_count=nacked_in(txn, group),
        pending=_details(runs_from(txn, group, b""), limit),
        consumers=[
            _consumer_detail(txn, group, consumer, limit)
            for consumer in txn.catalog.consumers(txn, group)
        ],
    )


def _consumer_detail(
    txn: Txn, group: GroupMeta, consumer: ConsumerMeta, limit: int | None
) -> ConsumerDetail:
    return ConsumerDetail(
        name=consumer.name,
        seen_time_ms=consumer.seen_ms,
        active_time_ms=consumer.active_ms,
        pel_count=pending_with(txn, group, consumer),
        pending=_details(runs_of(txn, group, consumer), limit),
    )


def _details(runs: Iterator[Run], limit: int | None) -> list[PendingDetail]:
    details: list[PendingDetail] = []
    for run in runs:
        time_ms = run.time_ms if run.owned else 0
        for eid in run.ids:
            if len(details) == limit:
                return details
            details.append(PendingDetail(StreamID.unpack(eid), run.owner, time_ms, run.deliveries))
    return details
