"""Keep the idempotent IDs that each producer used lately, and the entries that they created.

::

    producer row := tree(u64) "P" pid                        -> oldest(u64) next(u64)
    iid row      := tree(u64) "I" pid_length(u32) pid iid    -> id stamp_ms(u64) order(u64)
    order row    := tree(u64) "O" pid_length(u32) pid order(u64)  -> stamp_ms(u64) iid

Each producer forgets its IDs first in, first out: those above the stream's ``maxsize``, and those
older than its ``duration``. Age is measured by our own clock, so that an entry ID in the future
does not keep one for ever. If the clock steps back, an ID can expire behind a younger one; using it
again leaves a gap in the orders.
"""

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from struct import error as StructError
from typing import Any

from kvstream.errors import Corruption
from kvstream.layout.keys import COUNTED_MAX, U64, successor, tree_prefix
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID
from kvstream.types.images import IdempotencyImage

_TREES = Family.TREES
_PRODUCER = Struct(">QQ")
_IID = Struct(">16sQQ")
_LENGTH = Struct(">I")
_MS = 1000
DURATION_MAX_S = 86_400
MAXSIZE_MAX = 10_000
COUNT_MAX = (1 << 63) - 1
"""The greatest count accepted from a source: RESP has no greater integer."""
SWEPT = 4
"""Other producers whose old IDs a new one forgets."""
ORDERS_MAX = 1 << 20
"""More orders than any producer has, gaps included: far above Redis's greatest maxsize."""


def _producer_row(stream: StreamMeta, pid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"P" + pid


def _iid_row(stream: StreamMeta, pid: bytes, iid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"I" + _LENGTH.pack(len(pid)) + pid + iid


def _order_prefix(stream: StreamMeta, pid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"O" + _LENGTH.pack(len(pid)) + pid


def _order_row(stream: StreamMeta, pid: bytes, order: int) -> bytes:
    return _order_prefix(stream, pid) + U64.pack(order)


def _unpacked(layout: Struct, row: bytes, value: bytes) -> Any:
    """Return the numbers of a row; raise Corruption if it is damaged."""
    try:
        return layout.unpack(value)
    except StructError:
        raise Corruption(f"the row {row.hex()} of an idempotent producer is damaged") from None


def duration_ms(txn: Txn, stream: StreamMeta) -> int:
    return (stream.idmp_duration or txn.catalog.limits.idmp_duration_s) * _MS


def maxsize(txn: Txn, stream: StreamMeta) -> int:
    return stream.idmp_maxsize or txn.catalog.limits.idmp_maxsize


def lookup(txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes) -> StreamID | None:
    """Return the entry that a producer created with an idempotent ID, if it is still remembered."""
    if not stream.idmp_tree:
        return None
    row = _iid_row(stream, pid, iid)
    value = txn.batch.get(_TREES, row)
    if value is None:
        return None
    eid, stamp_ms, _ = _unpacked(_IID, row, value)
    if stamp_ms <= txn.now_ms - duration_ms(txn, stream):
        return None
    return StreamID.unpack(eid)


def remember(txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes, eid: StreamID) -> None:
    """Record the entry that a producer created with a new idempotent ID."""
    if not stream.idmp_tree:
        stream.idmp_tree = txn.allocate()
    oldest, following = expire(txn, stream, pid)
    row = _iid_row(stream, pid, iid)
    value = txn.batch.get(_TREES, row)
    if value is not None:  # it expired behind a younger one, after the clock stepped back
        order = _unpacked(_IID, row, value)[2]
        txn.batch.delete(_TREES, _order_row(stream, pid, order))
        stream.iids -= 1
    if following == oldest:
        oldest = following = 0
        stream.pids += 1
        _expire_others(txn, stream, pid)
    _put(txn, stream, pid, iid, eid, txn.now_ms, following)
    following += 1
    stream.iids += 1
    while following - oldest > maxsize(txn, stream):
        oldest = _drop(txn, stream, pid, oldest)
    txn.batch.put(_TREES, _producer_row(stream, pid), _PRODUCER.pack(oldest, following))
    txn.reshaped(stream)


def _producer(txn: Txn, stream: StreamMeta, pid: bytes) -> tuple[int, int]:
    row = _producer_row(stream, pid)
    value = txn.batch.get(_TREES, row)
    if value is None:
        return 0, 0
    oldest, following = _unpacked(_PRODUCER, row, value)
    if not 0 < following - oldest <= ORDERS_MAX or following >= COUNTED_MAX:
        raise Corruption(f"the row {row.hex()} of an idempotent producer has impossible bounds")
    return oldest, following


def expire(txn: Txn, stream: StreamMeta, pid: bytes) -> tuple[int, int]:
    """Forget a producer's IDs that are older than the stream's duration; return what is left.

    That is the order of the oldest ID, and of the next one.
    """
    first, following = _producer(txn, stream, pid)
    bound = txn.now_ms - duration_ms(txn, stream)
    oldest = first
    while oldest < following:
        row = _order_row(stream, pid, oldest)
        value = txn.batch.get(_TREES, row)
        if value is not None and _unpacked(U64, row, value[: U64.size])[0] > bound:
            break
        oldest = _drop(txn, stream, pid, oldest)
    if oldest > first:
        row = _producer_row(stream, pid)
        if oldest == following:
            stream.pids -= 1
            txn.batch.delete(_TREES, row)
        else:
            txn.batch.put(_TREES, row, _PRODUCER.pack(oldest, following))
        txn.reshaped(stream)
    return oldest, following


def _expire_others(txn: Txn, stream: StreamMeta, pid: bytes) -> None:
    """Forget old IDs of the producers that follow a new one: producers that ended never come back.

    A new producer looks at SWEPT others, so they do not become more and more.
    """
    prefix = tree_prefix(stream.idmp_tree) + b"P"
    start = prefix + pid + b"\0"
    after = islice(txn.batch.scan(_TREES, start, successor(prefix)), SWEPT)
    others = [key[len(prefix) :] for key, _ in after]
    if len(others) < SWEPT:  # go on at the first one
        first = islice(txn.batch.scan(_TREES, prefix, start), SWEPT - len(others))
        others += [key[len(prefix) :] for key, _ in first]
    for other in others:
        if other != pid:
            expire(txn, stream, other)


def _drop(txn: Txn, stream: StreamMeta, pid: bytes, order: int) -> int:
    """Forget the oldest ID of a producer, and return the next order."""
    row = _order_row(stream, pid, order)
    value = txn.batch.get(_TREES, row)
    if value is not None:
        txn.batch.delete(_TREES, row)
        txn.batch.delete(_TREES, _iid_row(stream, pid, value[U64.size :]))
        stream.iids -= 1
    return order + 1


def producers(txn: Txn, stream: StreamMeta) -> list[bytes]:
    """Return the producers that have idempotent IDs."""
    if not stream.idmp_tree:
        return []
    prefix = tree_prefix(stream.idmp_tree) + b"P"
    rows = txn.batch.scan(_TREES, prefix, successor(prefix))
    return [key[len(prefix) :] for key, _ in rows]


def remembered(txn: Txn, stream: StreamMeta, pid: bytes) -> Iterator[tuple[bytes, StreamID, int]]:
    """Yield a producer's (iid, entry, stamp in ms), oldest first."""
    prefix = _order_prefix(stream, pid)
    for _, order in txn.batch.scan(_TREES, prefix, successor(prefix)):
        iid = order[U64.size :]
        row = _iid_row(stream, pid, iid)
        value = txn.batch.get(_TREES, row)
        if value is not None:
            eid, stamp_ms, _ = _unpacked(_IID, row, value)
            yield iid, StreamID.unpack(eid), stamp_ms


def restore(txn: Txn, stream: StreamMeta, image: IdempotencyImage) -> list[str]:
    """Load the idempotent IDs of an image into a stream that has none; return the notes made.

    The image has no stamps: an ID is taken to be as old as its entry's ID.
    """
    notes: list[str] = []
    stream.idmp_duration = min(image.duration_s, DURATION_MAX_S)
    stream.idmp_maxsize = min(image.maxsize, MAXSIZE_MAX)
    if (stream.idmp_duration, stream.idmp_maxsize) != (image.duration_s, image.maxsize):
        notes.append(f"idempotent IDs: {image.duration_s} s and {image.maxsize} are out of range")
    stream.iids_added = min(image.iids_added, COUNT_MAX)
    stream.iids_duplicates = min(image.iids_duplicates, COUNT_MAX)
    for pid, iids in image.producers:
        latest: dict[bytes, StreamID] = {}
        for iid, eid in reversed(iids):
            latest.setdefault(iid, eid)
        kept = list(latest.items())[: maxsize(txn, stream)][::-1]
        if len(kept) != len(iids):
            notes.append(f"producer {pid!r} had {len(iids)} idempotent IDs, of which some are kept")
        if not kept or txn.batch.get(_TREES, _producer_row(stream, pid)) is not None:
            continue
        for order, (iid, eid) in enumerate(kept):
            stamp = min(eid.ms, txn.now_ms)
            _put(txn, stream, pid, iid, eid, stamp, order)
        txn.batch.put(_TREES, _producer_row(stream, pid), _PRODUCER.pack(0, len(kept)))
        stream.pids += 1
        stream.iids += len(kept)
    return notes


def _put(
    txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes, eid: StreamID, stamp: int, order: int
) -> None:
    """Write the two rows of an idempotent ID."""
    txn.batch.put(_TREES, _iid_row(stream, pid, iid), _IID.pack(eid.packed, stamp, order))
    txn.batch.put(_TREES, _order_row(stream, pid, order), U64.pack(stamp) + iid)


def forget_all(txn: Txn, stream: StreamMeta) -> None:
    """Forget every producer of the stream."""
    if stream.idmp_tree:
        prefix = tree_prefix(stream.idmp_tree)
        txn.batch.delete_range(_TREES, prefix, successor(prefix))
    stream.pids = stream.iids = 0
    txn.reshaped(stream)
