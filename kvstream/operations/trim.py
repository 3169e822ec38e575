"""XTRIM, the trim of XADD, and the policies KEEPREF, DELREF and ACKED.

A trim moves the bound below which entries are dead; their rows are deleted later, many in one
range. Whole nodes go by their counts; only the node at the bound is read. DELREF and ACKED look at
each entry, even with ``~``, as in Redis.

A group refers to an entry that it has pending or has not delivered yet, as in Redis 8.2.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvstream.errors import InvalidArgument, show
from kvstream.layout.keys import ID_BYTES, successor, tree_prefix
from kvstream.layout.listpack import SMALL_INTEGER_MAX
from kvstream.meta import nodes
from kvstream.meta.events.keys import XTRIM
from kvstream.meta.pel import discard, pending_among, signal_freed
from kvstream.meta.records import Node, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.storage.options import LARGE_VALUE
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID
from kvstream.types.options import SWEEP_ENTRIES, Limits, RefPolicy


def find_referenced(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> set[StreamID]:
    """Return which of ``ids``, ascending, a group has pending or has not delivered yet."""
    groups = list(txn.catalog.groups(txn, stream))
    reached = min([bisect_right(ids, group.last_delivered) for group in groups], default=len(ids))
    packed = [PACKED(*eid) for eid in ids[:reached]]
    pending = set(ids[reached:])
    for group in groups:
        pending.update(map(StreamID.unpack, pending_among(txn, group, packed)))
    return pending


def drop_references(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Remove ``ids``, ascending and distinct, from the PEL of every group."""
    packed = [PACKED(*eid) for eid in ids]
    for group in txn.catalog.groups(txn, stream):
        if discard(txn, group, packed) and group.policy is not None:
            signal_freed(txn, txn.catalog.databases.shown_name(txn, stream.name), group)


_MESSAGES, _TREES = Family.MESSAGES, Family.TREES
APPROXIMATE_NODES = 100
"""``~`` without LIMIT removes the entries of up to this many full nodes."""
APPROXIMATE_LIMIT, APPROXIMATE_LIMIT_MAX = 10_000, 1_000_000
"""The default LIMIT if nodes have no limit of entries, and its maximum."""
UNLIMITED = 0
_ABOVE_ALL = b"\xff" * 17
LOOK_AHEAD = 100
"""IDs of live entries that a trim looks up after the one that it needs."""


class Strategy(StrEnum):
    """The measure of a trim: the length of the stream, or its smallest ID."""

    MAXLEN = "MAXLEN"
    MINID = "MINID"


@dataclass(frozen=True, slots=True)
class Trim:
    """Options of a trim."""

    strategy: Strategy
    maxlen: int = 0
    minid: StreamID = MIN_ID
    approximate: bool = False
    limit: int | None = None
    """The most entries that ``~`` removes; None: Redis's default; 0: no limit."""
    policy: RefPolicy = RefPolicy.KEEPREF

    def __post_init__(self) -> None:
        refuse_maxlen(self.maxlen)
        refuse_limit(self.limit)
        if self.limit is not None and not self.approximate:
            raise InvalidArgument(
                "syntax error, LIMIT cannot be used without the special ~ option"
            ).with_detail("in the library, approximate=True")


def refuse_maxlen(maxlen: int) -> None:
    """Raise InvalidArgument if a MAXLEN is negative."""
    if maxlen < 0:
        raise InvalidArgument("The MAXLEN argument must be >= 0.").with_detail(show(maxlen))


def refuse_limit(limit: int | None) -> None:
    """Raise InvalidArgument if a LIMIT is negative."""
    if limit is not None and limit < 0:
        raise InvalidArgument("The LIMIT argument must be >= 0.").with_detail(show(limit))


def limit_without_strategy(limit: int) -> InvalidArgument:
    """Return the error of a LIMIT without MAXLEN or MINID."""
    requirement = "specifying a trimming strategy" if limit else "the special ~ option"
    return InvalidArgument(f"syntax error, LIMIT cannot be used without {requirement}")


def two_strategies() -> InvalidArgument:
    """Return the error of a trim that has both MAXLEN and MINID."""
    return InvalidArgument(
        "syntax error, MAXLEN and MINID options at the same time are not compatible"
    )


def trim(txn: Txn, name: bytes, trimming: Trim) -> int:
    """Trim a stream as XTRIM does, and return how many entries were removed."""
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    removed = trim_stream(txn, stream, trimming)
    if txn.catalog.disk_full and stream.unswept:  # by earlier trims
        sweep(txn, stream)
        txn.counters_changed(stream)
    return removed


def trim_stream(txn: Txn, stream: StreamMeta, trimming: Trim) -> int:
    """Trim a loaded stream."""
    if _is_satisfied(stream, trimming):
        return 0
    if trimming.policy is not RefPolicy.KEEPREF:
        removed = _trim_each(txn, stream, trimming)
    else:
        removed = _trim_nodes(txn, stream, trimming)
    if removed:
        txn.counters_changed(stream)
        if txn.wanted_events:
            txn.notify_stream(XTRIM, stream)
    return removed


def trim_head(txn: Txn, stream: StreamMeta, most: int, below: StreamID) -> int:
    """Remove the first entries of a stream that are below an ID, at most ``most``."""
    most = min(most, stream.length)
    if most <= 0 or stream.first >= below:
        return 0
    whole, removed, boundary = nodes.whole_from_head(txn, stream, most, below.packed)
    part = 0
    if boundary is not None and removed < most:
        how = Trim(Strategy.MINID, minid=below)
        part = _part_of(txn, stream, how, boundary, stream.length - removed, whole == 0)
        part = min(part, most - removed)
    if whole or part:
        _cut(txn, stream, boundary, whole, removed, part)
        txn.counters_changed(stream)
    return removed + part


def may_trim_once(limits: Limits, stream: StreamMeta, trimming: Trim, count: int) -> bool:
    """Return whether one trim after ``count`` new entries has the result of a trim after each.

    The results differ if a LIMIT would stop one of the trims; if one would remove the open node, so
    that a new node begins; or if nodes are so large that deletions decide whether one more entry
    fits.
    """
    limit, head = _limit(limits, trimming), stream.head_node
    small = 0 < limits.node_max_entries <= SMALL_INTEGER_MAX
    if trimming.policy is not RefPolicy.KEEPREF:
        return False
    if limit and head is not None and head.live > limit:
        return True
    if trimming.strategy is Strategy.MAXLEN:
        if not trimming.approximate:
            return small or 0 < limits.node_max_entries <= trimming.maxlen
        return not limit or stream.length + count - trimming.maxlen <= limit
    if not stream.open_live or stream.first >= trimming.minid:
        return bool(stream.open_live)
    if trimming.minid > (stream.open_last if trimming.approximate or small else stream.open_first):
        return False
    return not limit or stream.length <= limit or (head is not None and head.last >= trimming.minid)


def is_long(limits: Limits, stream: StreamMeta, trimming: Trim, count: int) -> bool:
    """Guess whether each of ``count`` new entries may trim as much as its LIMIT allows."""
    limit, head = _limit(limits, trimming), stream.head_node
    if not limit or (head is not None and head.live > limit):
        return False
    if trimming.strategy is Strategy.MAXLEN:
        return stream.length + count - trimming.maxlen > limit
    if stream.length <= limit or stream.first >= trimming.minid:
        return False
    first_ms, last_ms = stream.first.ms, stream.last.ms
    below_ms = min(trimming.minid.ms, last_ms) - first_ms
    return below_ms * stream.length > (last_ms - first_ms + 1) * limit


def _is_satisfied(stream: StreamMeta, trimming: Trim) -> bool:
    if trimming.strategy is Strategy.MAXLEN:
        return stream.length <= trimming.maxlen
    return stream.length == 0 or stream.first >= trimming.minid


def _limit(limits: Limits, trimming: Trim) -> int:
    if not trimming.approximate:
        return UNLIMITED
    if trimming.limit is not None:
        return trimming.limit
    default = APPROXIMATE_NODES * limits.node_max_entries
    return min(default or APPROXIMATE_LIMIT, APPROXIMATE_LIMIT_MAX)


def _takes_whole(trimming: Trim, length: int, node: Node) -> bool:
    if trimming.strategy is Strategy.MAXLEN:
        return length - node.live >= trimming.maxlen
    return node.last < trimming.minid


# --- KEEPREF: by nodes --------------------------------------------------------------------------


def _trim_nodes(txn: Txn, stream: StreamMeta, trimming: Trim) -> int:
    limit = _limit(txn.catalog.limits, trimming)
    most, below = stream.length, _ABOVE_ALL
    if trimming.strategy is Strategy.MAXLEN:
        most -= trimming.maxlen
    else:
        below = trimming.minid.packed
    most = min(most, limit) if limit else most
    whole, removed, boundary = stream.nodes, stream.length, None
    if below != _ABOVE_ALL or most < stream.length:  # otherwise no entry stays, and no node is read
        whole, removed, boundary = nodes.whole_from_head(txn, stream, most, below)
    part = 0
    if boundary is not None and not trimming.approximate:
        part = _part_of(txn, stream, trimming, boundary, stream.length - removed, whole == 0)
    if whole == 0 and part == 0:
        return 0
    _cut(txn, stream, boundary, whole, removed, part)
    return removed + part


def _part_of(
    txn: Txn, stream: StreamMeta, trimming: Trim, node: Node, length: int, at_head: bool
) -> int:
    """Return how many live entries of the node at the bound must go."""
    if trimming.strategy is Strategy.MAXLEN:
        return max(0, length - trimming.maxlen)
    first = stream.first if at_head else node.first
    if first >= trimming.minid:
        return 0
    first_ids = stream.first_ids
    if not first_ids or first_ids[0] != first or first_ids[-1] < trimming.minid:
        first_ids = _look_ahead(txn, stream, first, node.last, node.live)
    return bisect_left(first_ids, trimming.minid)


def _cut(
    txn: Txn, stream: StreamMeta, boundary: Node | None, whole: int, removed: int, part: int
) -> None:
    """Move the stream's lower bound over ``whole`` nodes and ``part`` of the next."""
    stream.shrinks += 1
    stream.length -= removed + part
    stream.unswept += removed + part
    stream.nodes -= whole
    if boundary is None or stream.length == 0:
        stream.nodes = 0
        stream.first = stream.head = MIN_ID
        stream.cached_nodes.clear()
        stream.first_ids.clear()
        stream.deleted_to = stream.last
        nodes.clear_open(stream)
        txn.catalog.reply_cache.forget(stream.prefix)
    else:
        if whole:
            nodes.begin_at(stream, boundary)
        if part or boundary.live < boundary.appended:  # otherwise all of its entries are live
            more = LOOK_AHEAD if removed + part < LOOK_AHEAD else 0
            last = boundary.last if part < boundary.live else stream.last
            stream.first = _live_at(txn, stream, last, part, more)
        if part:
            nodes.subtract_first(txn, stream, boundary, part)
        txn.catalog.reply_cache.drop_before(stream.prefix, stream.first.packed)
    sweep(txn, stream)


def _live_at(txn: Txn, stream: StreamMeta, last: StreamID, skip: int, more: int) -> StreamID:
    """Return the live entry after ``skip`` live ones from ``stream.first`` on, up to ``last``.

    A stream kept at a length loses one entry for each new one, so the IDs of the ``more`` next
    entries are looked up too and kept in ``first_ids``, which every other deletion clears.
    """
    first_ids = stream.first_ids
    if len(first_ids) <= skip or first_ids[0] != stream.first:
        first_ids = _look_ahead(txn, stream, stream.first, last, skip + 1 + more)
    for _ in range(min(skip, len(first_ids))):
        first_ids.popleft()
    if not first_ids:
        raise nodes.damage_error(stream, "has fewer entries than it counts")
    return first_ids[0]


def _look_ahead(
    txn: Txn, stream: StreamMeta, first: StreamID, last: StreamID, count: int
) -> deque[StreamID]:
    """Look up the first live IDs of ``first <= id <= last``."""
    lower, upper = stream.prefix + first.packed, stream.prefix + last.packed + b"\x00"
    rows = txn.batch.page(_MESSAGES, lower, upper, count)
    stream.first_ids = deque([StreamID.unpack(key[-ID_BYTES:]) for key, _ in rows])
    return stream.first_ids


def sweep(txn: Txn, stream: StreamMeta, every: int = SWEEP_ENTRIES) -> None:
    """Delete the rows of trimmed entries and nodes if at least ``every`` of them wait.

    If space is scarce, one is enough.
    """
    if stream.unswept < (1 if txn.catalog.disk_full else every):
        return
    if stream.length == 0 and stream.last == MAX_ID:  # no ID can bound the range
        return sweep_emptied(txn, stream)
    bound = stream.first if stream.length else stream.last.next()
    head = stream.head if stream.nodes else bound
    prefix, tree = stream.prefix, tree_prefix(stream.nodes_tree)
    txn.batch.delete_range(_MESSAGES, prefix + stream.swept.packed, prefix + bound.packed)
    txn.batch.delete_range(_TREES, tree + stream.swept.packed, tree + head.packed)
    stream.swept, stream.unswept = min(bound, head), 0


def sweep_streams(txn: Txn) -> None:
    """Delete the rows of trimmed entries of all streams in memory, however few wait."""
    for name in [name for name, stream in txn.catalog.streams.items() if stream.unswept]:
        if stream := txn.stream(name):
            txn.frees = True
            sweep(txn, stream, 1)
            txn.counters_changed(stream)


def sweep_emptied(txn: Txn, stream: StreamMeta) -> None:
    """Delete all rows of an empty stream, so that its IDs may be used again."""
    tree = tree_prefix(stream.nodes_tree)
    txn.batch.delete_range(_MESSAGES, stream.prefix, successor(stream.prefix))
    txn.batch.delete_range(_TREES, tree, successor(tree))
    stream.swept, stream.unswept = MIN_ID, 0


# --- DELREF and ACKED: entry by entry -----------------------------------------------------------


def _trim_each(txn: Txn, stream: StreamMeta, trimming: Trim) -> int:
    limit, length = _limit(txn.catalog.limits, trimming), stream.length
    deleted: list[StreamID] = []
    for node in nodes.from_head(txn, stream):
        left = length - len(deleted)
        if trimming.strategy is Strategy.MAXLEN and left <= trimming.maxlen:
            break
        if trimming.strategy is Strategy.MINID and node.first >= trimming.minid:
            break
        if limit and len(deleted) + node.live > limit:
            break
        deleted += _entries_to_delete(txn, stream, trimming, node, left)
        if not _takes_whole(trimming, left, node):
            break
    if deleted:
        if trimming.policy is RefPolicy.DELREF:
            drop_references(txn, stream, deleted)
        remove_entries(txn, stream, deleted)
    return len(deleted)


def _entries_to_delete(
    txn: Txn, stream: StreamMeta, trimming: Trim, node: Node, length: int
) -> list[StreamID]:
    """Return the entries of a node that must go, if ``length`` entries are left from it on."""
    ids = entry_ids(txn, stream, node)
    if trimming.strategy is Strategy.MINID:
        ids = ids[: bisect_left(ids, trimming.minid)]
    if trimming.policy is RefPolicy.ACKED:
        kept = find_referenced(txn, stream, ids)
        ids = [eid for eid in ids if eid not in kept]
    return ids if trimming.strategy is Strategy.MINID else ids[: length - trimming.maxlen]


def entry_ids(txn: Txn, stream: StreamMeta, node: Node) -> list[StreamID]:
    """Return the live entries of a node."""
    lower = stream.prefix + max(stream.first, node.first).packed
    upper = stream.prefix + node.last.packed + b"\x00"
    rows = txn.batch.page(_MESSAGES, lower, upper, node.live)
    return [StreamID.unpack(key[-ID_BYTES:]) for key, _ in rows]


def remove_entries(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Delete live entries of one stream, in ascending order, and update its counters."""
    first, last, catalog = ids[0], ids[-1], txn.catalog
    if first == last:
        nodes.subtract(txn, stream, nodes.node_of(txn, stream, first), ids)
        txn.batch.puts[_MESSAGES][stream.prefix + PACKED(*first)] = None
    else:
        parts = nodes.parts_of(txn, stream, ids)
        nodes.subtract_parts(txn, stream, parts)
        _delete_rows(txn, stream, parts)
    if catalog.reply_cache.memory:
        catalog.reply_cache.drop_between(stream.prefix, PACKED(*first), PACKED(*last))
    catalog.deletions.report(stream, ids)
    stream.shrinks += 1
    if last > stream.deleted_to:
        stream.deleted_to = last
    stream.length -= len(ids)
    if stream.first_ids:
        _leave_out(stream, ids)
    if stream.length == 0:
        stream.first = MIN_ID
    elif stream.first == first:
        stream.first = _first_live(txn, stream)
    txn.counters_changed(stream)


def _leave_out(stream: StreamMeta, ids: list[StreamID]) -> None:
    """Remove deleted entries from ``first_ids``."""
    first_ids = stream.first_ids
    if ids[0] > first_ids[-1]:
        return
    if len(ids) == 1 and ids[0] in first_ids:
        first_ids.remove(ids[0])
    else:
        gone = set(ids)
        stream.first_ids = deque([eid for eid in first_ids if eid not in gone])


def _first_live(txn: Txn, stream: StreamMeta) -> StreamID:
    """Return the first live entry after the one at ``stream.first`` was deleted."""
    first_ids = stream.first_ids
    if first_ids and first_ids[0] > stream.first:
        return first_ids[0]
    head = nodes.head_of(txn, stream)
    if head.live == head.appended:
        return head.first
    known = nodes.live_ids(txn, stream, head, at_once=True)
    if known:
        return StreamID.unpack(bytes(known[:ID_BYTES]))
    # Rows after the node are not read: one of them may be large.
    return _live_at(txn, stream, head.last, 0, 0 if head.size >= LARGE_VALUE else LOOK_AHEAD)


def _delete_rows(txn: Txn, stream: StreamMeta, parts: list[nodes.Part]) -> None:
    """Delete the rows of entries; delete rows of many whole adjacent nodes as one range."""
    if len(parts) == 1 and len(parts[0].ids) < txn.thresholds.span_rows:
        return _delete_each(txn, stream, parts[0].ids)
    span: list[StreamID] = []
    for part in parts:
        if not (part.whole and part.follows):
            _delete_span(txn, stream, span)
            span = []
        if part.whole:
            span += part.ids
        else:
            _delete_each(txn, stream, part.ids)
    _delete_span(txn, stream, span)


def _delete_span(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Delete entries that have no live ones between them."""
    if len(ids) < txn.thresholds.span_rows:
        return _delete_each(txn, stream, ids) if ids else None
    lower, upper = stream.prefix + ids[0].packed, stream.prefix + ids[-1].packed + b"\x00"
    txn.batch.delete_range(_MESSAGES, lower, upper)


def _delete_each(txn: Txn, stream: StreamMeta, ids: Sequence[StreamID]) -> None:
    prefix = stream.prefix
    gone = dict.fromkeys([prefix + PACKED(*eid) for eid in ids])
    txn.batch.puts[_MESSAGES].update(gone)
