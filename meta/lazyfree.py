"""Delete the rows of deleted keys in the background, a page of keys at a time.

A key is gone for clients at once; whoever reuses its name deletes what stands under it. Three kinds
of keys leave rows behind.

FLUSHDB takes a generation; keys of a lower one are gone with that commit. ``swept`` is the
generation at which the next page begins; the row goes with the last page::

    flushed row := "F" db(u16) -> bound(u64) swept(u64)

DEL of very many keys writes their generations, some in each row, under the first of them::

    unlinked row := "G" db(u16) generation(u64) -> generation(u64)*

A stream with very many groups is renamed, since each group has trees of its own to delete; so are
streams that one commit deletes together, once they have very many groups. This module knows the
rows; the catalog knows what a key leaves behind.
"""

from collections.abc import Collection, Mapping, Sequence
from struct import Struct, iter_unpack, pack
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    COUNTED_MAX,
    FLUSHED_TAG,
    U16,
    U64,
    UNLINKED_TAG,
    database_of,
    decode_number,
    flushed_row,
    key_of,
    qualified,
    scan_row,
    stream_row,
    successor,
    tree_prefix,
    unlinked_row,
)
from kvstream.meta.filling import catch_up
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Row

_METADATA = Family.METADATA
_BOUNDS = Struct(">QQ")


class Bounds(NamedTuple):
    """The generations of a database's keys that are gone and may have rows left."""

    bound: int
    """All of them are below this one."""
    swept: int
    """Rows below this generation are gone too; equal to ``bound`` if the last page was full."""


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
    """The databases that were flushed and may have rows left."""

    def __init__(self) -> None:
        self._known: dict[int, Bounds] = {}
        """The bounds read so far, by stored number."""
        self._unswept: list[int] | None = None
        """The databases that have a row; None if still to be read."""

    def of(self, txn: Txn, db: int) -> Bounds:
        """Return the bounds of a database; raise Corruption if its row is damaged."""
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
            # It would hide every key, even those created later.
            raise Corruption(f"the row {row.hex()} of a flushed database has a bound of no time")
        return bounds

    def unswept(self, txn: Txn) -> list[int]:
        """Return the databases that may have rows left."""
        if self._unswept is None:
            rows = txn.batch.scan(_METADATA, FLUSHED_TAG, successor(FLUSHED_TAG))
            self._unswept = [U16.unpack(key[1:])[0] for key, _ in rows if len(key) == 1 + U16.size]
        return self._unswept

    def put(self, txn: Txn, db: int, bounds: Bounds) -> None:
        """Delete the keys below ``bounds.bound``."""
        self._known[db] = bounds
        self._unswept = None
        txn.batch.put(_METADATA, flushed_row(db), encode_bounds(*bounds))

    def clear(self, txn: Txn, db: int) -> None:
        """Record that no row is left."""
        self._known[db] = _NONE
        self._unswept = None
        txn.batch.delete(_METADATA, flushed_row(db))

    def forget(self) -> None:
        """Read the rows again at the next call."""
        self._known.clear()
        self._unswept = None


ROW_KEYS = 100
"""Keys of one row, which are swept together."""


def decode_unlinked(row: bytes, value: bytes) -> list[int]:
    """Return the generations of a row; raise Corruption if it has none or is damaged."""
    if len(row) == len(unlinked_row(0, 0)) and value and not len(value) % U64.size:
        found = [number for (number,) in iter_unpack(U64.format, value)]
        if found[0] == U64.unpack_from(row, 3)[0] and 0 < min(found) <= max(found) < COUNTED_MAX:
            return found
    raise Corruption(f"the row {row.hex()} of deleted keys is damaged")


def encode_unlinked(db: int, generations: Collection[int]) -> tuple[bytes, bytes]:
    """Return the row of at least one generation."""
    first = next(iter(generations))
    return unlinked_row(db, first), pack(f">{len(generations)}Q", *generations)


class Unlinked:
    """The keys that were deleted one by one and still have rows."""

    def __init__(self) -> None:
        self._known: set[int] | None = None
        """Their generations; None if still to be read."""
        self._rows: dict[bytes, list[int]] = {}

    def known(self, txn: Txn) -> set[int]:
        """Return the generations of such keys, of all databases; no generation is used twice."""
        return self._load(txn) if self._known is None else self._known

    def _load(self, txn: Txn) -> set[int]:
        rows = txn.batch.scan(_METADATA, UNLINKED_TAG, successor(UNLINKED_TAG))
        self._rows = {row: decode_unlinked(row, value) for row, value in rows}
        self._known = {number for found in self._rows.values() for number in found}
        return self._known

    def add(self, txn: Txn, rows: Mapping[bytes, bytes], generations: set[int]) -> None:
        """Delete keys by rows of ``encode_unlinked``; the set is kept, not copied."""
        known = self.known(txn)
        txn.batch.puts[_METADATA].update(rows)
        self._rows.update({row: [] for row in rows})  # decoded when they are swept
        if len(known) > len(generations):
            known |= generations
        else:
            generations |= known
            self._known = generations

    def first(self, txn: Txn) -> tuple[int, list[int]] | None:
        """Return the next row to sweep: its database and generations."""
        self.known(txn)
        row = next(iter(self._rows), None)
        if row is None:
            return None
        found = self._rows[row]
        if not found:
            found = decode_unlinked(row, txn.batch.get(_METADATA, row) or b"")
        return U16.unpack_from(row, 1)[0], found

    def swept(self, txn: Txn, row_db: int, found: list[int]) -> None:
        """Delete the row that ``first`` returned, after the rows of its keys."""
        row = unlinked_row(row_db, found[0])
        txn.batch.delete(_METADATA, row)
        del self._rows[row]
        assert self._known is not None
        self._known.difference_update(found)

    def forget(self) -> None:
        """Read the rows again at the next call."""
        self._known, self._rows = None, {}


GROUPS_TOGETHER = 100
"""A deleted stream with more groups than this loses so many of them at a time."""
GROUPS_OF_COMMIT = 300
"""Groups that one commit deletes of all streams together, at 30 us each."""
_HIDDEN_NAME = b"kvstream:gone:"
"""The name of a renamed stream, before its generation.

If a client has such a key, all groups are deleted at once.
"""


def hide(txn: Txn, stream: StreamMeta) -> bool:
    """Rename a stream with many groups, for ``sweep`` to delete; return False if it has few."""
    dropped = txn.groups_dropped + stream.groups_count
    if stream.groups_count <= GROUPS_TOGETHER and dropped <= GROUPS_OF_COMMIT:
        txn.groups_dropped = dropped
        return False
    catalog, generation = txn.catalog, stream.generation
    db = database_of(stream.name)
    hidden = qualified(db, _HIDDEN_NAME + U64.pack(generation))
    txn.frees = True
    txn.finish()  # no later commit may write a record of its groups
    if txn.batch.get(Family.METADATA, stream_row(hidden)) is not None:
        return False
    catalog.hot.forget(stream.prefix)
    catalog.unlist(txn, stream)
    stream.name, stream.row, stream.expire_at = hidden, stream_row(hidden), 0
    catalog.index.note(stream)  # a command may be about to create a key of that name
    txn.reshaped(stream)
    txn.finish()
    txn.batch.put(Family.METADATA, scan_row(db, generation), key_of(hidden))
    if not catalog.is_gone(txn, stream):  # otherwise it is due to be swept already
        catalog.unlinked.add(txn, dict([encode_unlinked(db, [generation])]), {generation})
    return True


_TREES = Family.TREES


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows of up to ``limit`` keys; return their number, ``limit`` if more may wait."""
    left = limit
    flushed = txn.catalog.flushed
    for db in flushed.unswept(txn):
        txn.frees = True
        bound, swept = flushed.of(txn, db)
        page = txn.batch.page(_METADATA, scan_row(db, swept), scan_row(db, bound), left)
        waiting = _drop_listed(txn, db, page)
        if waiting is not None:
            flushed.put(txn, db, Bounds(bound, U64.unpack_from(waiting, 3)[0]))
            return limit
        left -= len(page)
        if left == 0:
            flushed.put(txn, db, Bounds(bound, U64.unpack_from(page[-1][0], 3)[0] + 1))
            return limit
        flushed.clear(txn, db)
    while left > 0:
        keys = _sweep_unlinked(txn)
        if keys is None:
            return limit
        if not keys:
            return limit - left
        left -= keys
    return limit


def _sweep_unlinked(txn: Txn) -> int | None:
    """Delete the rows of one row's keys; return their number, or None if some have to wait."""
    unlinked = txn.catalog.unlinked
    taken = unlinked.first(txn)
    if taken is None:
        return 0
    txn.frees = True
    db, generations = taken
    rows = [scan_row(db, generation) for generation in generations]
    keys = zip(rows, txn.batch.get_many(_METADATA, rows), strict=True)
    listed = [(row, key) for row, key in keys if key is not None]  # else the name is reused
    if _drop_listed(txn, db, listed) is not None:
        return None
    unlinked.swept(txn, db, generations)
    return len(generations)


def _drop_listed(txn: Txn, db: int, listed: Sequence[Row]) -> bytes | None:
    """Delete what keys of a database have left, given by their rows for SCAN.

    Return the first row whose key has more groups than this commit may delete, None for no such.
    """
    catalog = txn.catalog
    names = [qualified(db, key) for _, key in listed]
    records = txn.batch.get_many(_METADATA, [stream_row(name) for name in names])
    for (row, _), name, record in zip(listed, names, records, strict=True):
        key = catalog.gone(txn, name, record)
        if isinstance(key, StreamMeta) and key.groups_count and _waits(txn, key):
            return row
        txn.batch.delete(_METADATA, row)
        if key is not None:
            catalog.drop_rows_of(txn, key, swept=True)
    return None


def _waits(txn: Txn, stream: StreamMeta) -> bool:
    """Return whether a deleted stream has more groups than this commit may delete.

    Some groups are deleted of a stream that has more than any commit may.
    """
    dropped = txn.groups_dropped + stream.groups_count
    if dropped <= GROUPS_TOGETHER:
        txn.groups_dropped = dropped
        return False
    try:
        return txn.groups_dropped > 0 or _drop_groups(txn, stream) == GROUPS_TOGETHER
    except Corruption:  # it is deleted as a whole, as far as it can be read
        txn.forget_stream(stream)
        return False


def _drop_groups(txn: Txn, stream: StreamMeta) -> int:
    groups = tree_prefix(stream.groups_tree)
    page = txn.batch.page(_TREES, groups, successor(groups), GROUPS_TOGETHER)
    found = [txn.catalog.group(txn, stream, row[U64.size :]) for row, _ in page]
    catch_up(txn.batch, stream)
    for group in found:
        assert group is not None
        txn.catalog.drop_group(txn, stream, group)
    return len(page)
