"""Databases that were flushed and whose rows have not all left yet.

::

    flushed row := "F" db(u16) -> bound(u64) swept(u64)

FLUSHDB takes a generation: from that commit on nobody sees a key of a lower one. The rows of such
keys go later, a page of keys at a time in the order of their generations; ``swept`` is where the
next page begins, and the row goes with the last of them. This module knows the row; what a key has
left, the catalog knows.
"""

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    COUNTED_MAX,
    FLUSHED_TAG,
    U16,
    decode_number,
    flushed_row,
    successor,
)
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA
_BOUNDS = Struct(">QQ")


class Bounds(NamedTuple):
    """The generations of a database's keys that are gone and may have left rows."""

    bound: int
    """All are below this one."""
    swept: int
    """Below this one the rows are gone, too; the bound itself where the last page was full."""


_NONE = Bounds(0, 0)


def decode_bounds(row: bytes, value: bytes) -> Bounds:
    try:
        bounds = Bounds(*_BOUNDS.unpack(value))
    except StructError:
        bounds = _NONE
    if not (bounds.swept <= bounds.bound and 0 < bounds.bound < COUNTED_MAX):
        raise Corruption(f"the row {row.hex()} of a flushed database is damaged")
    return bounds


def encode_bounds(bound: int, swept: int) -> bytes:
    return _BOUNDS.pack(bound, swept)


class Flushed:
    """Which keys of which databases are gone, though their rows are not."""

    def __init__(self) -> None:
        self._known: dict[int, Bounds] = {}
        """The databases asked for so far."""
        self._unswept: list[int] | None = None
        """Those that have a row; None: not looked up yet."""

    def of(self, txn: Txn, db: int) -> Bounds:
        """Return what is gone of a database; Corruption where that cannot be known."""
        bounds = self._known.get(db)
        if bounds is None:
            bounds = self._known[db] = self._load(txn, flushed_row(db))
        return bounds

    def _load(self, txn: Txn, row: bytes) -> Bounds:
        value = txn.batch.get(_METADATA, row)
        if value is None:
            return _NONE
        bounds = decode_bounds(row, value)
        allocated = decode_number(ALLOCATOR_KEY, txn.batch.get(_METADATA, ALLOCATOR_KEY))
        if allocated <= bounds.bound:
            # It would hide every key, those still to be made among them.
            raise Corruption(f"the row {row.hex()} of a flushed database has a bound of no time")
        return bounds

    def unswept(self, txn: Txn) -> list[int]:
        """Return the databases of which rows may be left."""
        if self._unswept is None:
            rows = txn.batch.scan(_METADATA, FLUSHED_TAG, successor(FLUSHED_TAG))
            self._unswept = [U16.unpack(key[1:])[0] for key, _ in rows if len(key) == 1 + U16.size]
        return self._unswept

    def put(self, txn: Txn, db: int, bounds: Bounds) -> None:
        """Have the keys below ``bounds.bound`` gone."""
        self._known[db] = bounds
        self._unswept = None
        txn.batch.put(_METADATA, flushed_row(db), encode_bounds(*bounds))

    def clear(self, txn: Txn, db: int) -> None:
        """Note that no row is left."""
        self._known[db] = _NONE
        self._unswept = None
        txn.batch.delete(_METADATA, flushed_row(db))

    def forget(self) -> None:
        """Have the rows read again."""
        self._known.clear()
        self._unswept = None
