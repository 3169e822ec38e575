"""Idempotent producers: which IDs each has used lately, and the entries that they made.

::

    producer row := tree(u64) "P" pid                        -> oldest(u64) next(u64)
    iid row      := tree(u64) "I" pid_length(u32) pid iid    -> id stamp_ms(u64) order(u64)
    order row    := tree(u64) "O" pid_length(u32) pid order(u64)  -> stamp_ms(u64) iid

IIDs leave first in, first out, per producer: above the stream's ``maxsize`` and once older than its
``duration``. Their age is measured by a stamp of our own clock, so that an entry ID in the future
cannot keep them for ever. An IID given again after it expired out of turn, the clock having stepped
back, leaves a gap in the orders.
"""

from collections.abc import Iterator
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
"""The greatest number of a source that is believed: no reply could tell a greater one."""
ORDERS_MAX = 1 << 20
"""A producer's orders, gaps included, are never more than Redis's greatest maxsize; far below."""


def _producer_row(stream: StreamMeta, pid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"P" + pid


def _iid_row(stream: StreamMeta, pid: bytes, iid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"I" + _LENGTH.pack(len(pid)) + pid + iid


def _order_prefix(stream: StreamMeta, pid: bytes) -> bytes:
    return tree_prefix(stream.idmp_tree) + b"O" + _LENGTH.pack(len(pid)) + pid


def _unpacked(layout: Struct, row: bytes, value: bytes) -> Any:
    """Return what a row holds; Corruption where it is none of its kind."""
    try:
        return layout.unpack(value)
    except StructError:
        raise Corruption(f"the row {row.hex()} of an idempotent producer is damaged") from None


def duration_ms(txn: Txn, stream: StreamMeta) -> int:
    return (stream.idmp_duration or txn.catalog.limits.idmp_duration_s) * _MS


def maxsize(txn: Txn, stream: StreamMeta) -> int:
    return stream.idmp_maxsize or txn.catalog.limits.idmp_maxsize


def lookup(txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes) -> StreamID | None:
    """Return the entry that a producer made under an idempotent ID still remembered."""
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
    """Note that a producer's idempotent ID, not remembered so far, made an entry."""
    if not stream.idmp_tree:
        stream.idmp_tree = txn.allocate()
    expire(txn, stream, pid)
    _replace(txn, stream, pid, iid)
    oldest, following = _producer(txn, stream, pid)
    if following == oldest:
        stream.pids += 1
    _put(txn, stream, pid, iid, eid, txn.now_ms, following)
    following += 1
    txn.batch.put(_TREES, _producer_row(stream, pid), _PRODUCER.pack(oldest, following))
    stream.iids += 1
    while following - oldest > maxsize(txn, stream):
        oldest = _drop_oldest(txn, stream, pid, oldest, following)
    txn.reshaped(stream)


def _replace(txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes) -> None:
    """Forget the order of an ID that expired behind a younger one: the clock has stepped back."""
    row = _iid_row(stream, pid, iid)
    value = txn.batch.get(_TREES, row)
    if value is not None:
        order = _unpacked(_IID, row, value)[2]
        txn.batch.delete(_TREES, _order_prefix(stream, pid) + U64.pack(order))
        stream.iids -= 1


def _producer(txn: Txn, stream: StreamMeta, pid: bytes) -> tuple[int, int]:
    row = _producer_row(stream, pid)
    value = txn.batch.get(_TREES, row)
    if value is None:
        return 0, 0
    oldest, following = _unpacked(_PRODUCER, row, value)
    if not 0 < following - oldest <= ORDERS_MAX or following >= COUNTED_MAX:
        raise Corruption(f"the row {row.hex()} of an idempotent producer has impossible bounds")
    return oldest, following


def expire(txn: Txn, stream: StreamMeta, pid: bytes) -> None:
    """Forget a producer's IDs that are older than the stream's duration."""
    oldest, following = _producer(txn, stream, pid)
    bound = txn.now_ms - duration_ms(txn, stream)
    while oldest < following:
        row = _order_prefix(stream, pid) + U64.pack(oldest)
        value = txn.batch.get(_TREES, row)
        if value is not None and _unpacked(U64, row, value[: U64.size])[0] > bound:
            return
        oldest = _drop_oldest(txn, stream, pid, oldest, following)


def _drop_oldest(txn: Txn, stream: StreamMeta, pid: bytes, oldest: int, following: int) -> int:
    batch = txn.batch
    order = _order_prefix(stream, pid) + U64.pack(oldest)
    value = batch.get(_TREES, order)
    if value is not None:
        batch.delete(_TREES, order)
        batch.delete(_TREES, _iid_row(stream, pid, value[U64.size :]))
        stream.iids -= 1
    oldest += 1
    if oldest == following:
        stream.pids -= 1
        batch.delete(_TREES, _producer_row(stream, pid))
    else:
        batch.put(_TREES, _producer_row(stream, pid), _PRODUCER.pack(oldest, following))
    txn.reshaped(stream)
    return oldest


def producers(txn: Txn, stream: StreamMeta) -> list[bytes]:
    """Return the producers that have idempotent IDs remembered."""
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
    """Have a stream with an empty tree remember what an image does; return what was set right.

    The image has no stamps: an ID is as old as its entry, which had its ID from a clock.
    """
    told: list[str] = []
    stream.idmp_duration = min(image.duration_s, DURATION_MAX_S)
    stream.idmp_maxsize = min(image.maxsize, MAXSIZE_MAX)
    if (stream.idmp_duration, stream.idmp_maxsize) != (image.duration_s, image.maxsize):
        told.append(f"idempotent IDs: {image.duration_s} s and {image.maxsize} are out of range")
    stream.iids_added = min(image.iids_added, COUNT_MAX)
    stream.iids_duplicates = min(image.iids_duplicates, COUNT_MAX)
    for pid, iids in image.producers:
        latest: dict[bytes, StreamID] = {}
        for iid, eid in reversed(iids):
            latest.setdefault(iid, eid)
        kept = list(latest.items())[: maxsize(txn, stream)][::-1]
        if len(kept) != len(iids):
            told.append(f"producer {pid!r} had {len(iids)} idempotent IDs, of which some are kept")
        if not kept or txn.batch.get(_TREES, _producer_row(stream, pid)) is not None:
            continue
        for order, (iid, eid) in enumerate(kept):
            stamp = min(eid.ms, txn.now_ms)
            _put(txn, stream, pid, iid, eid, stamp, order)
        txn.batch.put(_TREES, _producer_row(stream, pid), _PRODUCER.pack(0, len(kept)))
        stream.pids += 1
        stream.iids += len(kept)
    return told


def _put(
    txn: Txn, stream: StreamMeta, pid: bytes, iid: bytes, eid: StreamID, stamp: int, order: int
) -> None:
    """Put the two rows of an idempotent ID."""
    txn.batch.put(_TREES, _iid_row(stream, pid, iid), _IID.pack(eid.packed, stamp, order))
    place = _order_prefix(stream, pid) + U64.pack(order)
    txn.batch.put(_TREES, place, U64.pack(stamp) + iid)


def forget_all(txn: Txn, stream: StreamMeta) -> None:
    """Forget every producer of the stream."""
    if stream.idmp_tree:
        prefix = tree_prefix(stream.idmp_tree)
        txn.batch.delete_range(_TREES, prefix, successor(prefix))
    stream.pids = stream.iids = 0
    txn.reshaped(stream)
