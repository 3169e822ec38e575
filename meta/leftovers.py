"""Sweeping: the rows of keys that are gone already, a page of keys at a time.

A flush names its keys by a bound (meta/flushed.py), a command about very many keys one by one
(meta/doomed.py). Nobody sees them; whoever takes a name that they had drops what stands under it.
"""

from kvstream.errors import Corruption
from kvstream.layout.keys import U64, qualified, scan_row, stream_row, successor, tree_prefix
from kvstream.meta import burying
from kvstream.meta.filling import catch_up
from kvstream.meta.flushed import Bounds
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import decode_key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA, _TREES = Family.METADATA, Family.TREES


def sweep(txn: Txn, limit: int) -> int:
    """Delete what up to ``limit`` keys have left; return how many, ``limit`` where more may be."""
    left = limit
    flushed = txn.catalog.flushed
    for db in flushed.unswept(txn):
        txn.frees = True
        bound, swept = flushed.of(txn, db)
        lower, upper = scan_row(db, swept), scan_row(db, bound)
        page = txn.batch.page(_METADATA, lower, upper, left)
        for row, key in page:
            if _waits(txn, qualified(db, key)):
                flushed.put(txn, db, Bounds(bound, U64.unpack_from(row, 3)[0]))
                return limit
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key), swept=True)
        left -= len(page)
        if left == 0:
            flushed.put(txn, db, Bounds(bound, U64.unpack_from(page[-1][0], 3)[0] + 1))
            return limit
        flushed.clear(txn, db)
    while left > 0:
        keys = _sweep_doomed(txn)
        if keys is None:
            return limit
        if not keys:
            return limit - left
        left -= keys
    return limit


def _sweep_doomed(txn: Txn) -> int | None:
    """Delete what the keys of one row have left; return how many, None where more are to wait."""
    doomed = txn.catalog.doomed
    taken = doomed.first(txn)
    if taken is None:
        return 0
    txn.frees = True
    db, generations = taken
    rows = [scan_row(db, generation) for generation in generations]
    for row, key in zip(rows, txn.batch.get_many(_METADATA, rows), strict=True):
        if key is not None:  # nobody has taken the name meanwhile
            if _waits(txn, qualified(db, key)):
                return None
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key), swept=True)
    doomed.swept(txn, db, generations)
    return len(generations)


def _waits(txn: Txn, name: bytes) -> bool:
    """Tell whether what is gone, by its stored name, has more groups than this commit may delete.

    Some are deleted of one that has more than any commit may.
    """
    record = txn.batch.get(_METADATA, stream_row(name))
    stream = None
    try:
        stream = None if record is None else decode_key(name, record)
        if not isinstance(stream, StreamMeta) or not txn.catalog.is_gone(txn, stream):
            return False
        dropped = txn.groups_dropped + stream.groups_count
        if dropped <= burying.GROUPS_TOGETHER or not stream.groups_count:
            txn.groups_dropped = dropped
            return False
        return txn.groups_dropped > 0 or _drop_groups(txn, stream) == burying.GROUPS_TOGETHER
    except Corruption:  # it goes as a whole, as far as it can be read
        if isinstance(stream, StreamMeta):
            txn.forget_stream(stream)
        return False


def _drop_groups(txn: Txn, stream: StreamMeta) -> int:
    groups = tree_prefix(stream.groups_tree)
    page = txn.batch.page(_TREES, groups, successor(groups), burying.GROUPS_TOGETHER)
    found = [txn.catalog.group(txn, stream, row[U64.size :]) for row, _ in page]
    catch_up(txn.batch, stream)
    for group in found:
        assert group is not None
        txn.catalog.drop_group(txn, stream, group)
    return len(page)
