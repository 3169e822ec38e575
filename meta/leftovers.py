"""Sweeping: the rows of keys that are gone already, a page of keys at a time.

A flush names its keys by a bound (meta/flushed.py), a command about very many keys one by one
(meta/doomed.py). Nobody sees them; whoever takes a name that they had drops what stands under it.
"""

from kvstream.layout.keys import U64, qualified, scan_row
from kvstream.meta.flushed import Bounds
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA


def sweep(txn: Txn, limit: int) -> int:
    """Delete what up to ``limit`` keys have left; return how many, ``limit`` where more may be."""
    left = limit
    flushed = txn.catalog.flushed
    for db in flushed.unswept(txn):
        bound, swept = flushed.of(txn, db)
        lower, upper = scan_row(db, swept), scan_row(db, bound)
        page = txn.batch.page(_METADATA, lower, upper, left)
        for row, key in page:
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key))
        left -= len(page)
        if left == 0:
            flushed.put(txn, db, Bounds(bound, U64.unpack_from(page[-1][0], 3)[0] + 1))
            return limit
        flushed.clear(txn, db)
    return limit if _sweep_doomed(txn) else limit - left


def _sweep_doomed(txn: Txn) -> bool:
    """Delete what the keys of one row have left; tell whether there was one."""
    doomed = txn.catalog.doomed
    taken = doomed.take(txn)
    if taken is None:
        return False
    db, generations = taken
    rows = [scan_row(db, generation) for generation in generations]
    for row, key in zip(rows, txn.batch.get_many(_METADATA, rows), strict=True):
        if key is not None:  # nobody has taken the name meanwhile
            txn.batch.delete(_METADATA, row)
            txn.catalog.drop_gone(txn, qualified(db, key))
    doomed.swept(db, generations)
    return True
