"""Remove the entries that a stream need not keep, in the background and in bounded steps.

A check applies every rule (meta/policy.py). It removes at most ``retained_entries`` at the head of
the stream, and some of the next ``thinned_entries`` behind it. A timer runs the next check: at once
if there is more, when the first entry reaches its age, or while acknowledgements are missing.
``check_changed_streams`` finds the streams in memory that have changed since their last check; the
engine calls it once a second. So an idle stream costs one comparison, and XADD costs nothing.

Unless FORCE is set, no rule removes what a group needs: entries that it has not delivered yet or
has pending. Below the first of these, XTRIM's code removes whole nodes. Above it, entries that no
group needs are removed one by one, so an entry that is never acknowledged keeps only itself.

LATEST compacts the stream: ``compact`` reads the entries that no group needs once, in order, up to
a cursor that is a row. For each value a row has the last entry with it; an entry that takes that
place deletes the one before. So a step costs what it reads, the memory is that of one step, and
after a crash the next step continues at the cursor. The alternative, passes over all nodes with a
bounded table of values, would read the stream again and again. ``sweep`` deletes the rows of values
whose entries were removed in other ways, by age for example, a few at a time.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kvstream.errors import Corruption, InvalidArgument
from kvstream.layout.keys import ID_BYTES, successor, tree_prefix
from kvstream.layout.values import decode_checked
from kvstream.meta import nodes, timers
from kvstream.meta.events.keys import XTRIM
from kvstream.meta.pel import runs_from
from kvstream.meta.policy import (
    ADDED_ROW,
    CURSOR_ROW,
    LATEST_ROWS,
    RULES_ROW,
    TIMER_ROW,
    Progress,
    Retention,
    Segment,
    latest_row,
)
from kvstream.meta.records import GroupMeta, Node, StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations.delete import erase
from kvstream.operations.reads.rows import find_live, read_rows
from kvstream.operations.trim import entry_ids, remove_entries, trim_head
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from kvstream.types.images import PackedID

_TREES = Family.TREES
SWEPT_ROWS = 50
"""Rows of values whose entries one check looks up."""
LOOKED_REMOVES = 5000
"""Removed entries after which a commit checks no further stream."""
SEGMENT_NODES = 256
COUNTED_SEGMENTS = 16
"""Segments of nodes whose bytes one check adds up."""
RULE_MAX = 1 << 62
AGE_CHECK_MS, AGE_SHARE = 100, 64
"""The least time between two checks for entries that reach their age: 100 ms, or a 64th of the age.

So of entries that come one by one several are removed in a commit.
"""
CHECK_MS = 1000
"""The first pause while acknowledgements are missing; it doubles while nothing changes."""
WAIT_MAX_MS = 60_000
"""The longest pause before a check for acknowledgements."""
_ALL = 1 << 62


class Needs(NamedTuple):
    """The entries that the groups of a stream need."""

    first: StreamID
    """The first ID that a group has pending or has not delivered; MAX_ID: there is none."""
    undelivered: StreamID
    """The first ID that a group has not delivered."""


NOTHING = Needs(MAX_ID, MAX_ID)


# --- the rules ----------------------------------------------------------------------------------


def set_rules(txn: Txn, name: bytes, rules: Retention) -> None:
    """Replace the rules of a stream, created if missing, and check it at once.

    Raise InvalidArgument for rules that are empty or out of range.
    """
    refuse_wrong(rules)
    stream = txn.stream(name) or txn.catalog.create_stream(txn, name)
    before = rules_of(txn, name)
    if before is not None and before.latest != rules.latest:
        _forget_latest(txn, stream)
    timers.put_row(txn, stream, RULES_ROW, rules.encode())
    stream.retained = Progress(rules)
    txn.catalog.retained[name] = None
    if stream.closed_nodes:
        timers.arm(txn, stream, Kind.RETENTION, txn.now_ms)
    else:  # a commit of the timer thread for each of many new streams would take longer
        check(txn, stream)


def begin_with(txn: Txn, name: bytes, rules: Retention, group: bytes = b"") -> bool:
    """Set the rules of a new stream; return False, and change nothing, if it is not new.

    A stream is new until it gets an entry, rules or a group. ``group``, if it has a policy, does
    not count, nor do entries of delayed messages and schedules: they belong to a queue.
    """
    stream = txn.stream(name)
    if stream is not None:
        own = txn.catalog.group(txn, stream, group) if group else None
        others = stream.groups_count - (own is not None and own.policy is not None)
        added = stream.entries_added - timers.count_added(txn, stream)
        if added or others or rules_of(txn, name) is not None:
            return False
        timers.delete_row(txn, stream, ADDED_ROW)
    set_rules(txn, name, rules)
    return True


def refuse_wrong(rules: Retention) -> None:
    """Raise InvalidArgument for rules that are empty or out of range."""
    numbers = rules.max_age_ms, rules.max_length, rules.max_bytes
    if min(numbers) < 0 or max(numbers) > RULE_MAX:
        raise InvalidArgument("MAXAGE, MAXLEN and MAXBYTES must be between 1 and 2^62")
    if rules.is_empty:
        raise InvalidArgument("set at least one of MAXAGE, MAXLEN, MAXBYTES, ACKED and LATEST")


def rules_of(txn: Txn, name: bytes) -> Retention | None:
    """Return the rules of a stream, None if it has none."""
    stream = txn.stream(name)
    progress = None if stream is None else progress_of(txn, stream)
    return None if progress is None else progress.rules


def drop_rules(txn: Txn, name: bytes) -> bool:
    """Remove the rules of a stream; return whether it had any."""
    stream = txn.stream(name)
    if stream is None or progress_of(txn, stream) is None:
        return False
    _forget_latest(txn, stream)
    timers.disarm(txn, stream, Kind.RETENTION)
    timers.delete_row(txn, stream, RULES_ROW)
    stream.retained = None
    return True


def _forget_latest(txn: Txn, stream: StreamMeta) -> None:
    prefix = tree_prefix(stream.queue_tree) + LATEST_ROWS
    timers.delete_row(txn, stream, CURSOR_ROW)
    txn.batch.delete_range(_TREES, prefix, successor(prefix))


def progress_of(txn: Txn, stream: StreamMeta) -> Progress | None:
    """Return the progress of the rules of a stream, None if it has none."""
    if stream.retained is None and stream.queue_tree:
        packed = timers.get_row(txn, stream, RULES_ROW)
        if packed is not None:
            try:
                stream.retained = Progress(Retention.decode(packed))
            except ValueError as error:
                raise nodes.damage_error(
                    stream, f"has damaged rules of retention: {error}"
                ) from error
    return stream.retained


# --- checks -------------------------------------------------------------------------------------


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Check a stream whose timer is due."""
    timers.delete_row(txn, stream, TIMER_ROW)
    check(txn, stream)


def run(txn: Txn, name: bytes) -> tuple[int, bool]:
    """Check a stream now; return how many entries were removed, and whether there is more to do."""
    stream = txn.existing_stream(name)
    removed, more = check(txn, stream)
    progress = stream.retained
    if progress is not None:
        more = more or progress.thinned_to > MIN_ID or progress.excess_to > MIN_ID
    return removed, more


def check_changed_streams(txn: Txn) -> tuple[int, int]:
    """Look at the next streams in memory, and check those that have changed.

    Return how many were checked and how many looked at: ``retained_streams``, or fewer if many
    entries are removed, so that a commit stays small. The next call goes on with the others.
    """
    retained, looked, checked, removed = txn.catalog.retained, 0, 0, 0
    for name in list(islice(retained, txn.thresholds.retained_streams)):
        looked += 1
        del retained[name]  # a damaged stream comes back when it is loaded again
        stream = txn.catalog.streams.get(name)
        try:
            progress = None if stream is None else progress_of(txn, stream)
        except Corruption:
            continue
        if stream is None or progress is None:
            continue
        version = _version(txn, stream, progress.rules)
        if progress.seen != version and _has_only_grown(stream, progress):
            progress.seen = version
        elif progress.seen != version:
            checked += 1
            removed += check(txn, stream)[0]
        retained[name] = None  # behind the others
        if removed >= LOOKED_REMOVES or checked >= txn.thresholds.retained_checks:
            break
    return checked, looked


def _version(txn: Txn, stream: StreamMeta, rules: Retention) -> tuple[object, ...]:
    """Return cheap numbers that change whenever there may be more to remove."""
    groups: tuple[object, ...] = ()
    if not rules.force or rules.acked:
        loaded = stream.groups.values()
        groups = tuple([(group.last_delivered, _first_anchor(txn, group)) for group in loaded])
    return stream.last, stream.length, stream.shrinks, stream.groups_count, groups


def _has_only_grown(stream: StreamMeta, progress: Progress) -> bool:
    """Return whether nothing can be removed before the timer that is set: too few entries came."""
    rules = progress.rules
    others = rules.max_bytes or rules.acked or rules.latest or stream.groups_count
    return (
        not others
        and bool(stream.length)
        and stream.first == progress.timed
        and (not rules.max_length or stream.length <= rules.max_length)
    )


def _first_anchor(txn: Txn, group: GroupMeta) -> bytes:
    """Return the first pending entry of a group whose pending entries are in memory."""
    memory = group.runs.memory
    first = None if memory is None else group.runs.first(txn.batch)
    return b"" if first is None else first.ids[0]


def check(txn: Txn, stream: StreamMeta) -> tuple[int, bool]:
    """Remove entries by the rules of a stream; return how many, and whether there is more."""
    progress = progress_of(txn, stream)
    if progress is None or txn.read_only:
        return 0, False
    rules, before = progress.rules, progress.seen
    txn.frees = True
    needs = needs_of(txn, stream)
    protected = NOTHING if rules.force else needs
    removed, more = _apply_bounds(txn, stream, progress, needs, protected)
    if removed:
        txn.notify_stream(XTRIM, stream)
    if rules.latest:
        gone, has_more = compact(txn, stream, rules, protected.first)
        removed, more = removed + gone, more or has_more
        progress.swept_to = sweep(txn, stream, progress.swept_to)
    if removed:
        txn.catalog.queue_events.retained_removed += removed
        txn.catalog.index.report_change(stream)  # no client's command has made the change
    progress.seen = _version(txn, stream, rules)
    if more:
        next_ms = txn.now_ms
    else:
        progress.pause_ms = 0 if removed or progress.seen != before else progress.pause_ms
        next_ms = _next_check(txn, stream, progress, needs)
    progress.timed = stream.first if next_ms and stream.length and rules.max_age_ms else MIN_ID
    if next_ms:
        timers.arm(txn, stream, Kind.RETENTION, next_ms)
    else:
        timers.disarm(txn, stream, Kind.RETENTION)
    return removed, more


def _next_check(txn: Txn, stream: StreamMeta, progress: Progress, needs: Needs) -> int:
    """Return when to check the stream even if it shows no change; 0: never."""
    if not stream.length:
        return 0
    rules, now_ms, times = progress.rules, txn.now_ms, []
    blocked = not rules.force and stream.first >= needs.first
    if rules.max_age_ms and not blocked:
        due = stream.first.ms + rules.max_age_ms
        times.append(max(due, now_ms + max(AGE_CHECK_MS, rules.max_age_ms // AGE_SHARE)))
    if needs.first < needs.undelivered and (rules.acked or not rules.force):
        ended = progress.thinned_to == progress.excess_to == MIN_ID
        longer = 2 * progress.pause_ms if ended else 0
        progress.pause_ms = min(max(CHECK_MS, longer), WAIT_MAX_MS)
        times.append(now_ms + progress.pause_ms)
    return min(times, default=0)


def _apply_bounds(
    txn: Txn, stream: StreamMeta, progress: Progress, needs: Needs, protected: Needs
) -> tuple[int, bool]:
    """Apply every rule except LATEST; return how many entries went, and whether more may go."""
    rules, most, uncounted = progress.rules, txn.thresholds.retained_entries, False
    old = MIN_ID
    if rules.max_age_ms:
        old = StreamID(max(0, txn.now_ms - rules.max_age_ms + 1), 0)
    removed = trim_head(txn, stream, most, min(old, protected.first))
    acked = rules.acked and stream.groups_count > 0
    if acked:
        removed += trim_head(txn, stream, most - removed, needs.first)
    excess = stream.length - rules.max_length if rules.max_length else 0
    if rules.max_bytes and stream.length:
        uncounted = not _count_bytes(txn, stream, progress)
        excess = max(excess, 0 if uncounted else _excess_entries(txn, stream, progress))
    gone = trim_head(txn, stream, min(excess, most - removed), protected.first)
    removed, thinned = removed + gone, 0
    if removed < most:
        upto = MAX_ID if acked else MIN_ID if rules.force else old
        left = 0 if rules.force else excess - gone
        thinned = _thin_by_bounds(txn, stream, progress, upto, left, needs)
    removed += thinned
    return removed, removed >= most or thinned >= txn.thresholds.thinned_more or uncounted


def needs_of(txn: Txn, stream: StreamMeta) -> Needs:
    """Return which entries the groups of a stream need."""
    needs = [needs_of_group(txn, group, stream.first) for group in txn.catalog.groups(txn, stream)]
    if not needs:
        return NOTHING
    return Needs(min(need.first for need in needs), min(need.undelivered for need in needs))


def needs_of_group(txn: Txn, group: GroupMeta, first: StreamID) -> Needs:
    """Return which of the entries from ``first`` on a group needs."""
    last, start = group.last_delivered, first.packed
    undelivered = last.next() if last < MAX_ID else MAX_ID
    for run in runs_from(txn, group, start):
        ids = run.ids
        at = bisect_left(ids, start)
        if at < len(ids):
            return Needs(min(StreamID.unpack(ids[at]), undelivered), undelivered)
    return Needs(undelivered, undelivered)


# --- entries behind the first that a group needs -------------------------------------------------


def _thin_by_bounds(
    txn: Txn, stream: StreamMeta, progress: Progress, upto: StreamID, excess: int, needs: Needs
) -> int:
    """Remove single entries that no group needs: those below ``upto``, then up to ``excess``.

    Each call goes on at the node where the call before stopped. After the last node, the next call
    begins at the first one.
    """
    removed, ahead, above = 0, progress.thinned_to, progress.excess_to
    progress.thinned_to = progress.excess_to = MIN_ID
    first, last = max(stream.first, needs.first), needs.undelivered
    if stream.length and min(upto, last) > first:
        removed, progress.thinned_to = _thin(txn, stream, ahead, _ALL, min(upto, last))
    if stream.length and excess > removed and last > first:
        gone, progress.excess_to = _thin(txn, stream, above, excess - removed, last)
        removed += gone
    return removed


def _thin(
    txn: Txn, stream: StreamMeta, start: StreamID, most: int, upto: StreamID
) -> tuple[int, StreamID]:
    """Remove up to ``most`` entries below ``upto`` that no group needs, from a node on.

    Return how many, and the node at which to go on; MIN_ID after the last one.
    """
    chosen: list[Node] = []
    live, following = 0, MIN_ID
    for node in _nodes_from(txn, stream, max(start, stream.head)):
        if node.first >= upto:
            break
        if live >= txn.thresholds.thinned_entries:
            following = node.first
            break
        chosen.append(node)
        live += node.live
    ids = [eid for node in chosen for eid in entry_ids(txn, stream, node)]
    ids = ids[: bisect_left(ids, upto)]
    needed = _pending_ids(txn, stream, ids[0], ids[-1]) if ids else set()
    gone = [eid for eid in ids if eid not in needed][:most] if needed else ids[:most]
    if gone:
        remove_entries(txn, stream, gone)
    return len(gone), following


def _pending_ids(txn: Txn, stream: StreamMeta, first: StreamID, last: StreamID) -> set[StreamID]:
    """Return the entries of a range, and perhaps some around it, that groups have pending."""
    pending: set[PackedID] = set()
    upper = last.packed
    for group in txn.catalog.groups(txn, stream):
        for run in runs_from(txn, group, first.packed):
            if run.anchor > upper:
                break
            pending.update(run.ids)
    return set(map(StreamID.unpack, pending))


def _nodes_from(txn: Txn, stream: StreamMeta, start: StreamID) -> Iterator[Node]:
    """Yield the nodes that begin at or above an ID, the open one last."""
    yield from _closed_nodes(txn, stream, start, MAX_ID)
    if stream.open_live:
        yield nodes.open_node(stream)


# --- bytes --------------------------------------------------------------------------------------


def _count_bytes(txn: Txn, stream: StreamMeta, progress: Progress) -> bool:
    """Add up the bytes of new closed nodes; return whether all are counted.

    Nodes are counted in segments, so that trimmed ones can be subtracted.
    """
    segments = progress.segments
    while len(segments) > 1 and segments[1].first <= stream.head:
        del segments[0]
    if segments and segments[0].last < stream.head:
        segments.clear()
    if segments and segments[0].first < stream.head:
        left = list(_closed_nodes(txn, stream, stream.head, segments[0].last))
        segments[:1] = [_segment(left)] if left else []
    total = sum([segment.nodes for segment in segments])
    if progress.counted and segments and segments[-1].last >= _last_closed(txn, stream):
        if total == stream.closed_nodes:
            return True
        segments.clear()  # nodes went in the middle
    start = segments[-1].last.next() if segments else stream.head
    if segments and segments[-1].nodes < SEGMENT_NODES // 2:
        start = segments.pop().first
    for _ in range(COUNTED_SEGMENTS):
        closed_nodes = list(islice(_closed_nodes(txn, stream, start, MAX_ID), SEGMENT_NODES))
        if closed_nodes:
            segments.append(_segment(closed_nodes))
            start = segments[-1].last.next()
        if len(closed_nodes) < SEGMENT_NODES:
            progress.counted = True
            return True
    progress.counted = False
    return False


def _segment(adjacent: Sequence[Node]) -> Segment:
    size = sum([node.size for node in adjacent])
    return Segment(adjacent[0].first, adjacent[-1].first, len(adjacent), size)


def _closed_nodes(txn: Txn, stream: StreamMeta, start: StreamID, last: StreamID) -> Iterator[Node]:
    """Yield the closed nodes that begin between two IDs."""
    if stream.closed_nodes <= 0:
        return
    for node in nodes.scan_closed(txn, stream, start):
        if node.first > last:
            return
        yield node


def _last_closed(txn: Txn, stream: StreamMeta) -> StreamID:
    if stream.closed_nodes <= 0:
        return MIN_ID
    last = next(nodes.scan_closed(txn, stream, stream.head, reverse=True), None)
    return MIN_ID if last is None else last.first


def _excess_entries(txn: Txn, stream: StreamMeta, progress: Progress) -> int:
    """Return the number of entries in the first nodes whose bytes exceed the limit.

    The node that XADD fills always stays.
    """
    size = sum([segment.size for segment in progress.segments]) + stream.open_bytes
    excess, entries = size - progress.rules.max_bytes, 0
    if excess <= 0:
        return 0
    for node in _closed_nodes(txn, stream, stream.head, MAX_ID):
        if excess <= 0 or entries >= txn.thresholds.retained_entries:
            break
        excess -= node.size
        entries += node.live
    return entries


def compact(txn: Txn, stream: StreamMeta, rules: Retention, below: StreamID) -> tuple[int, bool]:
    """Compact the next entries below an ID; return how many went, and whether there are more."""
    cursor = _last_compacted(txn, stream)
    if not stream.length or cursor >= stream.last or cursor.next() >= below:
        return 0, False
    rows = read_rows(txn, stream, cursor.next(), stream.last, txn.thresholds.compacted_entries)
    lower = stream.prefix + below.packed
    rows = [row for row in rows if row[0] < lower]
    if not rows:
        return 0, False
    latest: dict[bytes, StreamID] = {}
    gone: list[StreamID] = []
    ids = [StreamID.unpack(key[-ID_BYTES:]) for key, _ in rows]
    for eid, found in zip(ids, decode_checked([value for _, value in rows]), strict=True):
        value = found.get(rules.latest)  # the last one if the field repeats
        if value is None:
            continue
        row = latest_row(value)
        if row in latest:
            gone.append(latest[row])
        latest[row] = eid
    gone += _take_places(txn, stream, latest)
    timers.put_row(txn, stream, CURSOR_ROW, ids[-1].packed)
    gone = find_live(txn, stream, sorted(gone)) if gone else []
    erase(txn, stream, gone)
    return len(gone), len(rows) == txn.thresholds.compacted_entries


def _last_compacted(txn: Txn, stream: StreamMeta) -> StreamID:
    """Return the last entry that was compacted; MIN_ID if the last ID was set back since."""
    packed = timers.get_row(txn, stream, CURSOR_ROW)
    if packed is None:
        return MIN_ID
    cursor = _id_of(packed)
    if cursor <= stream.last:
        return cursor
    _forget_latest(txn, stream)
    return MIN_ID


def _take_places(txn: Txn, stream: StreamMeta, latest: dict[bytes, StreamID]) -> list[StreamID]:
    """Record the last entries of some values; return the entries recorded before."""
    prefix = timers.tree(txn, stream)
    rows = [prefix + row for row in latest]
    before = [_id_of(old) for old in txn.batch.get_many(_TREES, rows) if old is not None]
    for row, eid in zip(rows, latest.values(), strict=True):
        txn.batch.put(_TREES, row, eid.packed)
    return before


def _id_of(packed: bytes) -> StreamID:
    """Return the ID of a row; raise Corruption if it is damaged."""
    if len(packed) != len(MIN_ID.packed):
        raise Corruption(f"a row of retention has no ID but {packed.hex()}")
    return StreamID.unpack(packed)


def sweep(txn: Txn, stream: StreamMeta, start: bytes) -> bytes:
    """Delete rows of values whose entries were removed, among the next ones from ``start`` on.

    Return the start of the next call.
    """
    prefix = tree_prefix(stream.queue_tree)
    head = prefix + LATEST_ROWS
    page = txn.batch.page(_TREES, max(prefix + start, head), successor(head), SWEPT_ROWS)
    ids = {key: _id_of(value) for key, value in page}
    live = set(find_live(txn, stream, sorted(set(ids.values()))))
    for key, eid in ids.items():
        if eid not in live:
            txn.batch.delete(_TREES, key)
    return page[-1][0][len(prefix) :] + b"\0" if len(page) == SWEPT_ROWS else b""
