"""XINFO: what a stream, its groups and its consumers look like."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvstream.errors import NoSuchKey
from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.layout.rows import Rows
from kvstream.meta import idempotency, nodes
from kvstream.meta.indexes import nacked_in, pending_in, pending_with
from kvstream.meta.pending import runs_from, runs_of
from kvstream.meta.records import UNKNOWN, ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.groups import existing_group
from kvstream.operations.lag import lag
from kvstream.operations.pages import RUNS_TOGETHER, Steps, entry_steps
from kvstream.operations.still import MANY_GROUPS, StillGroups
from kvstream.records import (
    ConsumerDetail,
    ConsumerInfo,
    GroupDetail,
    GroupInfo,
    PendingDetail,
    StreamDetail,
    StreamInfo,
)

NOTHING = 0
"""A limit of pending entries that lets none by."""
FULL_COUNT = 10
"""Entries and pending entries that XINFO STREAM FULL shows by default."""


def _existing(txn: Txn, name: bytes) -> StreamMeta:
    stream = txn.stream(name)
    if stream is None:
        raise NoSuchKey
    return stream


def stream_info(txn: Txn, name: bytes) -> StreamInfo:
    """Return XINFO STREAM."""
    return _stream_info(txn, _existing(txn, name))


def _stream_info(txn: Txn, stream: StreamMeta) -> StreamInfo:
    if not txn.read_only:
        for pid in idempotency.producers(txn, stream):
            idempotency.expire(txn, stream, pid)
    return StreamInfo(
        length=stream.length,
        radix_tree_keys=stream.nodes,
        radix_tree_nodes=stream.nodes + 1,
        last_generated_id=stream.last,
        max_deleted_entry_id=stream.max_deleted,
        entries_added=stream.entries_added,
        recorded_first_entry_id=stream.first if stream.length else MIN_ID,
        idmp_duration=stream.idmp_duration or txn.catalog.limits.idmp_duration_s,
        idmp_maxsize=idempotency.maxsize(txn, stream),
        pids_tracked=stream.pids,
        iids_tracked=stream.iids,
        iids_added=stream.iids_added,
        iids_duplicates=stream.iids_duplicates,
        groups=stream.groups_count,
        first_entry=entries.first_entry(txn, stream),
        last_entry=entries.last_entry(txn, stream),
    )


GroupRow = tuple[bytes, int, int, StreamID, int | None, int | None]
"""What GroupInfo has, in its order: a tenth of its time to make."""
ConsumerRow = tuple[bytes, int, int, int]
"""What ConsumerInfo has, in its order."""


def group_infos(txn: Txn, name: bytes) -> list[GroupInfo]:
    """Return XINFO GROUPS, sorted by name."""
    return [GroupInfo(*row) for row in group_rows(txn, name)]


def group_rows(txn: Txn, name: bytes) -> list[GroupRow]:
    """Return the same in rows."""
    stream = _existing(txn, name)
    return [_group_row(txn, stream, group) for group in txn.catalog.groups(txn, stream)]


def group_info(txn: Txn, name: bytes, group: bytes) -> GroupInfo:
    """Return one group's part of XINFO GROUPS."""
    _existing(txn, name)
    return GroupInfo(*_group_row(txn, *existing_group(txn, name, group)))


def _group_row(txn: Txn, stream: StreamMeta, group: GroupMeta) -> GroupRow:
    read = _known(group.entries_read)
    pending, last = pending_in(txn, group), group.last_delivered
    return group.name, group.consumers_count, pending, last, read, lag(stream, group)


def _known(entries_read: int) -> int | None:
    return None if entries_read == UNKNOWN else entries_read


def backlog(txn: Txn, name: bytes, group: bytes) -> int:
    """Return the exact number of entries not yet delivered, also where ``lag`` is None."""
    stream, found = existing_group(txn, name, group)
    return nodes.live_after(txn, stream, found.last_delivered)


def count_after(txn: Txn, name: bytes, eid: StreamID) -> int:
    """Return the exact number of entries after an ID; 0 where there is no stream."""
    stream = txn.stream(name)
    return 0 if stream is None else nodes.live_after(txn, stream, eid)


def consumer_infos(txn: Txn, name: bytes, group: bytes) -> list[ConsumerInfo]:
    """Return XINFO CONSUMERS, sorted by name."""
    return [ConsumerInfo(*row) for row in consumer_rows(txn, name, group)]


def consumer_rows(txn: Txn, name: bytes, group: bytes) -> list[ConsumerRow]:
    """Return the same in rows."""
    _existing(txn, name)
    _, found = existing_group(txn, name, group)
    now_ms = txn.now_ms
    return [
        (
            member.name,
            pending_with(txn, found, member),
            max(0, now_ms - member.seen_ms),
            -1 if member.active_ms < 0 else max(0, now_ms - member.active_ms),
        )
        for member in txn.catalog.consumers(txn, found)
    ]


@dataclass(frozen=True, slots=True)
class GroupPages:
    """One group of StreamPages; each step of pending entries is a run of them."""

    detail: GroupDetail
    """All but the pending entries."""
    pending: Steps[Run]
    of_consumers: list[Steps[Run]]
    """The pending entries of each consumer of ``detail``."""


@dataclass(frozen=True, slots=True)
class StreamPages:
    """XINFO STREAM FULL, but for the entries and pending entries, which come in steps."""

    info: StreamInfo
    entries: Steps[Rows]
    groups_count: int
    groups: Iterable[GroupPages]
    """To be gone through once."""


def has_much(stream: StreamMeta) -> bool:
    """Tell whether FULL takes steps even where few entries are wanted of everything."""
    return stream.groups_count >= MANY_GROUPS


def stream_pages(txn: Txn, name: bytes, count: int) -> StreamPages:
    """Return what ``stream_detail`` does in steps, as it is now.

    Many groups are decoded one after the other, from committed rows; where the transaction has
    changed something they are all looked at now.
    """
    stream = _existing(txn, name)
    limit = count if count > 0 else None
    steps = entry_steps(txn, stream, MIN_ID, MAX_ID, limit)
    groups: Iterable[GroupPages]
    if stream.groups_count < MANY_GROUPS or txn.dirty:
        found = txn.catalog.groups(txn, stream)
        groups = [_group_pages(txn, stream, each, limit) for each in found]
    else:
        still = StillGroups(txn, stream)
        groups = (_group_pages(still.txn, still.stream, each, limit) for each in still)
    total = stream.groups_count
    return StreamPages(_stream_info(txn, stream), steps, total, groups)  # the first may change it


def _group_pages(txn: Txn, stream: StreamMeta, group: GroupMeta, limit: int | None) -> GroupPages:
    detail = _group_detail(txn, stream, group, NOTHING)
    runs, *others = group.runs.snapshot(txn.batch, times=1 + len(detail.consumers))
    owners = [member.name for member in detail.consumers]
    each = [run_steps(own, limit, owner) for own, owner in zip(others, owners, strict=True)]
    return GroupPages(detail, run_steps(runs, limit), each)


def run_steps(runs: Iterator[Run], limit: int | None, owner: bytes | None = None) -> Steps[Run]:
    """Return the steps of the first ``limit`` IDs of runs, those of one owner alone if given."""
    found: list[Run] = []
    total = 0
    for at, run in enumerate(runs, 1):
        if not at % RUNS_TOGETHER:
            yield None
        if owner is not None and (run.rank or run.owner != owner):
            continue
        if limit is not None and total + len(run.ids) >= limit:
            found.append(run._replace(ids=run.ids[: limit - total]))
            total = limit
            break
        found.append(run)
        total += len(run.ids)
    yield total
    yield from found


def stream_detail(txn: Txn, name: bytes, count: int = FULL_COUNT) -> StreamDetail:
    """Return XINFO STREAM FULL with ``count`` entries and pending entries; 0: all."""
    stream = _existing(txn, name)
    limit = count if count > 0 else None
    return StreamDetail(
        info=_stream_info(txn, stream),
        entries=entries.between(txn, stream, MIN_ID, MAX_ID, limit).entries(),
        groups=[
            _group_detail(txn, stream, group, limit) for group in txn.catalog.groups(txn, stream)
        ],
    )


def _group_detail(txn: Txn, stream: StreamMeta, group: GroupMeta, limit: int | None) -> GroupDetail:
    return GroupDetail(
        name=group.name,
        last_delivered_id=group.last_delivered,
        entries_read=_known(group.entries_read),
        lag=lag(stream, group),
        pel_count=pending_in(txn, group),
        nacked_count=nacked_in(txn, group),
        pending=_details(runs_from(txn, group, b""), limit),
        consumers=[
            _consumer_detail(txn, group, member, limit)
            for member in txn.catalog.consumers(txn, group)
        ],
    )


def _consumer_detail(
    txn: Txn, group: GroupMeta, member: ConsumerMeta, limit: int | None
) -> ConsumerDetail:
    return ConsumerDetail(
        name=member.name,
        seen_time_ms=member.seen_ms,
        active_time_ms=member.active_ms,
        pel_count=pending_with(txn, group, member),
        pending=_details(runs_of(txn, group, member), limit),
    )


def _details(runs: Iterator[Run], limit: int | None) -> list[PendingDetail]:
    details: list[PendingDetail] = []
    for run in runs:
        for eid in run.ids:
            if len(details) == limit:
                return details
            details.append(
                PendingDetail(StreamID.unpack(eid), run.owner, run.time_ms, run.deliveries)
            )
    return details
