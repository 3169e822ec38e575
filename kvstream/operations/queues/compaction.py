"""Compaction of a stream to the latest entry of each value of a field (LATEST of retention).

The entries are read once, in order, up to a cursor that is a row. For each value a row has the last
entry with it (meta/retention.py); an entry that takes that place deletes the one before. So a step
costs what it reads, the memory is that of one step, and a crash continues at the cursor. The other
way, passes over all nodes with a bounded table of values, would read the stream again and again.

Only entries below the first that a group needs are looked at. Rows of entries that have gone in
other ways, by age for example, are deleted a few at a time.
"""

from kvstream.errors import Corruption
from kvstream.layout.keys import successor, tree_prefix
from kvstream.layout.values import decode_checked
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.retention import CURSOR_ROW, LATEST_ROWS, Retention, latest_row
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.delete import erase
from kvstream.storage.batch import Family
from kvstream.types.ids import MIN_ID, StreamID

STEP_ENTRIES = 500
"""Entries of one step: some 5 ms."""
SWEPT_ROWS = 50
"""Rows of values that one step looks at for entries that have gone."""
_TREES = Family.TREES


def step(txn: Txn, stream: StreamMeta, rules: Retention, below: StreamID) -> tuple[int, bool]:
    """Compact the next entries below an ID; return how many went, and whether there are more."""
    cursor = _cursor(txn, stream)
    if not stream.length or cursor >= stream.last or cursor.next() >= below:
        return 0, False
    rows = entries.rows(txn, stream, cursor.next(), stream.last, STEP_ENTRIES)
    lower = stream.prefix + below.packed
    rows = [row for row in rows if row[0] < lower]
    if not rows:
        return 0, False
    latest: dict[bytes, StreamID] = {}
    gone: list[StreamID] = []
    ids = [StreamID.unpack(key[-16:]) for key, _ in rows]
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
    gone = entries.live(txn, stream, sorted(gone)) if gone else []
    erase(txn, stream, gone)
    return len(gone), len(rows) == STEP_ENTRIES


def _cursor(txn: Txn, stream: StreamMeta) -> StreamID:
    """Return the last entry that was compacted; MIN_ID if the last ID was set back since."""
    packed = timers.get_row(txn, stream, CURSOR_ROW)
    if packed is None:
        return MIN_ID
    cursor = unpacked(packed)
    if cursor <= stream.last:
        return cursor
    prefix = tree_prefix(stream.queue_tree) + LATEST_ROWS
    txn.batch.delete_range(_TREES, prefix, successor(prefix))
    timers.delete_row(txn, stream, CURSOR_ROW)
    return MIN_ID


def _take_places(txn: Txn, stream: StreamMeta, latest: dict[bytes, StreamID]) -> list[StreamID]:
    """Write the last entries of some values; return those whose places they take."""
    prefix = timers.tree(txn, stream)
    rows = [prefix + row for row in latest]
    before = [unpacked(old) for old in txn.batch.get_many(_TREES, rows) if old is not None]
    for row, eid in zip(rows, latest.values(), strict=True):
        txn.batch.put(_TREES, row, eid.packed)
    return before


def unpacked(packed: bytes) -> StreamID:
    """Return the ID of a row; raise Corruption if it is damaged."""
    if len(packed) != len(MIN_ID.packed):
        raise Corruption(f"a row of retention has no ID but {packed.hex()}")
    return StreamID.unpack(packed)


def sweep(txn: Txn, stream: StreamMeta, start: bytes) -> bytes:
    """Delete rows of values whose entries have gone, the next few from ``start`` on.

    Return where to go on.
    """
    prefix = tree_prefix(stream.queue_tree)
    head = prefix + LATEST_ROWS
    page = txn.batch.page(_TREES, max(prefix + start, head), successor(head), SWEPT_ROWS)
    ids = {key: unpacked(value) for key, value in page}
    live = set(entries.live(txn, stream, sorted(set(ids.values()))))
    for key, eid in ids.items():
        if eid not in live:
            txn.batch.delete(_TREES, key)
    return page[-1][0][len(prefix) :] + b"\0" if len(page) == SWEPT_ROWS else b""
