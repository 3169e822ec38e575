"""Fill nodes: update a stream, its open node and the node rows for XADD.

A new node begins where Redis would begin one: after ``stream-node-max-entries`` entries, or before
the entry that would bring the listpack to ``stream-node-max-bytes``.
"""

from collections.abc import Sequence
from contextlib import suppress

from kvstream.errors import Corruption
from kvstream.layout import twins
from kvstream.layout.keys import ID_BYTES
from kvstream.layout.listpack import counters_size
from kvstream.layout.values import Names, decode_checked
from kvstream.meta.changeset import Changeset
from kvstream.meta.nodes import data_size, measure, put_open, set_names
from kvstream.meta.records import UNREAD, UNRECORDED_MAX, StreamMeta
from kvstream.storage.batch import Batch, Family, Row
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID

_MESSAGES: int = Family.MESSAGES
NODE_BYTES_MAX = 1 << 30
"""Redis's own limit of a listpack, in force if stream-node-max-bytes is 0."""
_NOTED_BYTES_MAX = 4096
"""A longer value is measured at once instead of kept in memory until its node is measured."""
NODE_ENTRIES_MAX = 1 << 30
"""Entries of a node if stream-node-max-entries is 0: no limit."""
_ALL = 1 << 30
_FEW = 16
"""A stream with no more entries in its open node is loaded with all of them."""
_NEAR = 4096
"""Deltas nearer to zero than this take three bytes at most."""
_COUNTERS_MAX = 20
"""Most bytes of a node's two counters."""
_HEAD_FAR = 32
"""Most bytes of an entry's flags, deltas and counters."""


def append(txn: Changeset, stream: StreamMeta, eid: StreamID, value: bytes, names: Names) -> None:
    """Append an entry above the last one: its row, the stream's counters, and its node."""
    limits = txn.catalog.limits
    length = len(value)
    appended = stream.open_appended
    if (
        appended == 0
        or 0 < limits.node_max_entries <= appended
        or stream.open_bytes + stream.slack + length + _COUNTERS_MAX
        >= (limits.node_max_bytes or NODE_BYTES_MAX)
    ) and _is_full(txn.batch, stream, value, limits.node_max_entries, limits.node_max_bytes):
        close(txn, stream)
        _open(stream, eid, names)
        appended = 0
        txn.counters_changed(stream)
    ms, seq = eid
    first_ms, first_seq = stream.open_first
    if (
        length < stream.near
        and ms - first_ms < _NEAR
        and -_NEAR < seq - first_seq < _NEAR
        and (names == stream.names_seen or _same_names(stream, names))
    ):
        stream.slack += length + stream.width
    else:
        stream.slack += 2 * length + 16 * len(names) + _HEAD_FAR
    stream.open_appended = appended + 1
    stream.open_live += 1
    stream.open_last = stream.last = eid
    if stream.length == 0:
        stream.first = eid
    stream.length += 1
    stream.entries_added += 1
    key = stream.prefix + PACKED(ms, seq)
    txn.batch.puts[_MESSAGES][key] = value
    stream.unmeasured.append((key, value))  # type: ignore[union-attr]
    if length > _NOTED_BYTES_MAX:
        measure(txn.batch, stream)
    stream.unrecorded_entries += 1
    if stream.unrecorded_entries > UNRECORDED_MAX:  # until then the row suffices
        txn.counters_changed(stream)


def extend(
    txn: Changeset, stream: StreamMeta, ids: list[StreamID], entries: list[tuple[bytes, Names]]
) -> None:
    """Append many entries, as ``append`` does one."""
    at = 0
    while at < len(ids):
        at = _fill(txn, stream, ids, entries, at)
        if at < len(ids):
            append(txn, stream, ids[at], *entries[at])
            at += 1


def _fill(
    txn: Changeset,
    stream: StreamMeta,
    ids: list[StreamID],
    entries: list[tuple[bytes, Names]],
    start: int,
) -> int:
    """Append entries from ``start`` on while they are plain and certainly fit into the open node.

    Return the index of the first that needs ``append``.
    """
    if stream.open_live == 0 or stream.unmeasured is None:
        return start
    limits = txn.catalog.limits
    room = (limits.node_max_bytes or NODE_BYTES_MAX) - stream.open_bytes - _COUNTERS_MAX
    most = start + (limits.node_max_entries or NODE_ENTRIES_MAX) - stream.open_appended
    at, stream.slack = _fill_while(
        ids,
        entries,
        start,
        min(len(ids), most),
        stream.names_seen,
        stream.open_first,
        (stream.near, stream.width, stream.slack, room, _NEAR),
        stream.prefix,
        stream.unmeasured,
        txn.batch.puts[_MESSAGES],
    )
    if at > start:
        count_joined(stream, ids[start], ids[at - 1], at - start)
        stream.unrecorded_entries += at - start
        if stream.unrecorded_entries > UNRECORDED_MAX:
            txn.counters_changed(stream)
    return at


def fill_in_python(
    ids: Sequence[StreamID],
    entries: Sequence[tuple[bytes, Names]],
    start: int,
    stop: int,
    names: Names,
    first: StreamID,
    bounds: tuple[int, int, int, int, int],
    prefix: bytes,
    noted: list[Row],
    puts: dict[bytes, bytes | None],
) -> tuple[int, int]:
    """Append entries while they have the node's names and certainly fit.

    Return the index where it stopped and the slack there. ``bounds`` are the stream's ``near``,
    ``width`` and ``slack``, the room that the slack must stay below, and how far an ID may be from
    the first.
    """
    near, width, slack, room, far = bounds
    first_ms, first_seq = first
    for at in range(start, stop):
        value, entry_names = entries[at]
        length = len(value)
        ms, seq = ids[at]
        if (
            length >= near
            or slack + length >= room
            or entry_names != names
            or ms - first_ms >= far
            or not -far < seq - first_seq < far
        ):
            return at, slack
        slack += length + width
        key = prefix + PACKED(ms, seq)
        puts[key] = value
        noted.append((key, value))
    return max(start, stop), slack


_fill_while = fill_in_python if twins is None else twins.fill


def count_joined(stream: StreamMeta, first: StreamID, last: StreamID, count: int) -> None:
    """Count entries whose rows are written into the open node."""
    stream.open_appended += count
    stream.open_live += count
    stream.open_last = stream.last = last
    if stream.length == 0:
        stream.first = first
    stream.length += count
    stream.entries_added += count


def catch_up(batch: Batch, stream: StreamMeta) -> None:
    """Count the entries by which a loaded stream's record lags behind its rows.

    All of them are in the open node, since the record is written whenever a node is opened.
    """
    if not stream.open_live or stream.last < stream.open_last or stream.last == MAX_ID:
        return
    recorded = stream.prefix + stream.last.packed
    whole = stream.unmeasured is not None or stream.open_appended <= _FEW
    start = max(stream.open_first, stream.measured.next()) if whole else stream.last.next()
    rows = _rows_from(batch, stream.prefix, start)
    unrecorded = sum(key > recorded for key, _ in rows)
    if unrecorded:
        last = StreamID.unpack(rows[-1][0][-ID_BYTES:])
        count_joined(stream, stream.first, last, unrecorded)
        stream.unrecorded_entries = unrecorded
        stream.unmeasured, stream.slack = None, UNREAD
    if whole and stream.unmeasured is None:
        with suppress(Corruption):  # reported to whoever reads the entry
            decode_checked([value for _, value in rows])
            stream.unmeasured = rows


def _rows_from(batch: Batch, prefix: bytes, start: StreamID) -> list[Row]:
    """Return the rows of a stream from an ID on; there are few."""
    lower, upper = prefix + start.packed, prefix + b"\xff" * ID_BYTES + b"\0"
    rows = batch.page(_MESSAGES, lower, upper, _FEW)
    if len(rows) == _FEW:
        rows += batch.page(_MESSAGES, rows[-1][0] + b"\0", upper, _ALL)
    size = len(lower)
    return [row for row in rows if len(row[0]) == size]


def _is_full(
    batch: Batch, stream: StreamMeta, value: bytes, max_entries: int, max_bytes: int
) -> bool:
    """Tell exactly whether Redis would begin a new node for an entry."""
    if stream.open_appended == 0 or 0 < max_entries <= stream.open_appended:
        return True
    measure(batch, stream)
    dead = stream.open_appended - stream.open_live
    counters = counters_size(stream.open_live, dead)
    limit = max_bytes or NODE_BYTES_MAX
    return stream.open_bytes + counters + data_size(value) >= limit


def _same_names(stream: StreamMeta, names: Names) -> bool:
    """Return whether ``names``, as text or as bytes, are the node's; remember the form."""
    if plain_names(names) != stream.names:
        return False
    stream.names_seen = names
    return True


def close(txn: Changeset, stream: StreamMeta) -> None:
    """Close the open node by writing its row."""
    if stream.open_live:
        if stream.unmeasured != [] or stream.slack:
            measure(txn.batch, stream)
        put_open(txn.batch, stream)


def _open(stream: StreamMeta, eid: StreamID, names: Names) -> None:
    same = names == stream.names_seen
    begin_node(stream, eid, stream.names if same else plain_names(names), names)


def plain_names(names: Names) -> tuple[bytes, ...]:
    """Return field names, given as text or as bytes, as bytes."""
    if str not in map(type, names):
        return tuple(names)  # type: ignore[arg-type]
    return tuple(name.encode() if isinstance(name, str) else name for name in names)


def begin_node(
    stream: StreamMeta, eid: StreamID, plain: tuple[bytes, ...], names_seen: Names, size: int = 0
) -> None:
    """Open a new node; the caller then appends its first entry.

    ``size`` is the number of bytes of its listpack, if known.
    """
    if names_seen != stream.names_seen or plain != stream.names or not stream.empty_bytes:
        set_names(stream, plain, names_seen)
    if stream.nodes == 0:
        stream.head = eid
    stream.nodes += 1
    stream.open_first = stream.open_last = eid
    stream.open_appended = stream.open_live = 0
    stream.open_bytes = size or stream.empty_bytes
    stream.measured = MIN_ID
    stream.unmeasured, stream.slack, stream.open_ids = [], 0, None
