"""Delete the rows of deleted keys in the background, a page of keys at a time.

A key is gone for clients at once. Three kinds of keys leave rows behind.

FLUSHDB gives a database with many keys another stored number (``kvstream.meta.keyspace``). Nobody
finds the keys of the former number; the row goes with the last page::

    flushed row := "F" db(u16) -> ""

DEL of very many keys writes their generations, some in each row, under the first of them. Whoever
reuses the name of such a key deletes what stands under it::

    unlinked row := "G" db(u16) generation(u64) -> generation(u64)*

A stream with very many groups is renamed, since each group has trees of its own to delete; so are
streams that one commit deletes together, once they have very many groups. This module knows the
rows; the catalog knows what a key leaves behind.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from struct import iter_unpack, pack

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    COUNTED_MAX,
    FLUSHED_TAG,
    U16,
    U64,
    UNLINKED_TAG,
    database_of,
    database_of_row,
    flushed_row,
    generation_of_row,
    key_of,
    qualified,
    record_bounds,
    scan_bounds,
    scan_row,
    stream_row,
    successor,
    tree_prefix,
    unlinked_row,
)
from kvstream.meta.filling import catch_up
from kvstream.meta.records import StreamMeta
from kvstream.meta.strings import decode_key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Row

_METADATA = Family.METADATA


class Flushed:
    """The stored numbers that a flush has left with keys."""

    def __init__(self) -> None:
        self._next: dict[int, bytes] | None = None
        """By number, the record from which the sweep goes on, b"" for the first; None: still to be
        read."""

    def numbers(self, txn: Txn) -> dict[int, bytes]:
        """Return where the sweep of each number goes on."""
        if self._next is None:
            rows = txn.batch.scan(_METADATA, FLUSHED_TAG, successor(FLUSHED_TAG))
            databases = (row for row, _ in rows if len(row) == 1 + U16.size)
            self._next = {database_of_row(row): b"" for row in databases}
        return self._next

    def add(self, txn: Txn, db: int) -> None:
        """Record that all keys of a number are deleted, and have rows."""
        self.numbers(txn)[db] = b""
        txn.batch.put(_METADATA, flushed_row(db), b"")

    def clear(self, txn: Txn, db: int) -> None:
        """Record that no row is left."""
        self.numbers(txn).pop(db, None)
        txn.batch.delete(_METADATA, flushed_row(db))

    def forget(self) -> None:
        """Read the rows again at the next call."""
        self._next = None


def decode_unlinked(row: bytes, value: bytes) -> list[int]:
    """Return the generations of a row; raise Corruption if it has none or is damaged."""
    if len(row) == len(unlinked_row(0, 0)) and value and not len(value) % U64.size:
        numbers = [number for (number,) in iter_unpack(U64.format, value)]
        if numbers[0] == generation_of_row(row) and 0 < min(numbers) <= max(numbers) < COUNTED_MAX:
            return numbers
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
        generations = self._rows[row]
        if not generations:
            generations = decode_unlinked(row, txn.batch.get(_METADATA, row) or b"")
        return database_of_row(row), generations

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


_HIDDEN_NAME = b"kvstream:gone:"
"""The name of a renamed stream, before its generation.

If a client has such a key, all groups are deleted at once.
"""


def hide(txn: Txn, stream: StreamMeta) -> bool:
    """Rename a stream with many groups, for ``sweep`` to delete; return False if it has few."""
    dropped = txn.groups_dropped + stream.groups_count
    sizes = txn.thresholds
    if stream.groups_count <= sizes.groups_together and dropped <= sizes.groups_of_commit:
        txn.groups_dropped = dropped
        return False
    catalog, generation = txn.catalog, stream.generation
    db = database_of(stream.name)
    hidden = qualified(db, _HIDDEN_NAME + U64.pack(generation))
    txn.frees = True
    txn.finish()  # no later commit may write a record of its groups
    if txn.batch.get(_METADATA, stream_row(hidden)) is not None:
        return False
    catalog.reply_cache.forget(stream.prefix)
    catalog.unlist(txn, stream)
    stream.name, stream.row, stream.expire_at = hidden, stream_row(hidden), 0
    catalog.index.report_change(stream)  # a command may be about to create a key of that name
    txn.record_changed(stream)
    txn.finish()
    txn.batch.put(_METADATA, scan_row(db, generation), key_of(hidden))
    if not catalog.is_gone(txn, stream):  # otherwise it is due to be swept already
        catalog.unlinked.add(txn, dict([encode_unlinked(db, [generation])]), {generation})
    return True


_TREES = Family.TREES


def sweep(txn: Txn, limit: int) -> int:
    """Delete the rows of up to ``limit`` keys; return their number, ``limit`` if more may wait."""
    left = limit
    for db in list(txn.catalog.flushed.numbers(txn)):
        txn.frees = True
        keys = _sweep_flushed(txn, db, left)
        if keys is None:
            return limit
        left -= keys
        if left <= 0:
            return limit
    while left > 0:
        keys = _sweep_unlinked(txn)
        if keys is None:
            return limit
        if not keys:
            return limit - left
        left -= keys
    return limit


def _sweep_flushed(txn: Txn, db: int, limit: int) -> int | None:
    """Delete rows of a flushed number; return the number of its last keys, or None if some wait.

    Records that are all that a key has stay until the end, and go as a range.
    """
    flushed, (first, upper) = txn.catalog.flushed, record_bounds(db)
    lower = flushed.numbers(txn)[db]
    if txn.catalog.databases.has(txn, db):  # damage: a database is about to lose its keys
        flushed.clear(txn, db)
        return 0
    gone = None if lower else drop_few(txn, db, limit)
    if gone is not None:
        if gone:
            flushed.clear(txn, db)
        return limit if gone else None
    page = txn.batch.page(_METADATA, lower or first, upper, limit)
    for row, record in page:
        if not _drop_flushed(txn, row[1:], record):
            flushed.numbers(txn)[db] = row
            return None
    if len(page) == limit:
        flushed.numbers(txn)[db] = page[-1][0] + b"\0"
        return None
    txn.batch.delete_range(_METADATA, first, upper)
    txn.batch.delete_range(_METADATA, *scan_bounds(db))
    flushed.clear(txn, db)
    return len(page)


def drop_few(txn: Txn, db: int, most: int) -> bool | None:
    """Delete all keys of a stored number, given that its messages are deleted, row by row.

    Return None if there are more than ``most``: none is deleted. Return False if they have more
    groups than this commit may delete: some are deleted.
    """
    records = txn.batch.page(_METADATA, *record_bounds(db), most + 1)
    listed = txn.batch.page(_METADATA, *scan_bounds(db), most + 1)
    if max(len(records), len(listed)) > most:
        return None
    for row, record in records:
        if not _drop_flushed(txn, row[1:], record):
            return False
    for row, _ in chain(records, listed):  # together: one without the other is a fault
        txn.batch.delete(_METADATA, row)
    return True


def _drop_flushed(txn: Txn, name: bytes, record: bytes) -> bool:
    """Delete a key of a flushed number if it has more rows than every key has.

    Return False if it has more groups than this commit may delete.
    """
    try:
        key = decode_key(name, record)
    except Corruption:  # check reports its other rows, which belong to none
        return True
    if isinstance(key, StreamMeta):
        if key.groups_count and _waits(txn, key):
            return False
        if key.has_trees or key.due_at or key.expire_at:
            txn.catalog.drop_flushed(txn, key)
    elif key.expire_at:
        txn.catalog.drop_flushed(txn, key)
    return True


def _sweep_unlinked(txn: Txn) -> int | None:
    """Delete the rows of one row's keys; return their number, or None if some have to wait."""
    unlinked = txn.catalog.unlinked
    taken = unlinked.first(txn)
    if taken is None:
        return 0
    txn.frees = True
    db, generations = taken
    if not txn.catalog.databases.has(txn, db):  # a flush took the whole number
        unlinked.swept(txn, db, generations)
        return len(generations)
    rows = [scan_row(db, generation) for generation in generations]
    keys = zip(rows, txn.batch.get_many(_METADATA, rows), strict=True)
    listed = [(row, key) for row, key in keys if key is not None]  # else the name is reused
    if not _drop_listed(txn, db, listed):
        return None
    unlinked.swept(txn, db, generations)
    return len(generations)


def _drop_listed(txn: Txn, db: int, listed: Sequence[Row]) -> bool:
    """Delete what keys of a database have left, given by their rows for SCAN.

    Return False at the first key that has more groups than this commit may delete.
    """
    catalog = txn.catalog
    names = [qualified(db, key) for _, key in listed]
    records = txn.batch.get_many(_METADATA, [stream_row(name) for name in names])
    for (row, _), name, record in zip(listed, names, records, strict=True):
        key = catalog.gone(txn, name, record)
        if isinstance(key, StreamMeta) and key.groups_count and _waits(txn, key):
            return False
        txn.batch.delete(_METADATA, row)
        if key is not None:
            catalog.drop_rows_of(txn, key, swept=True)
    return True


def _waits(txn: Txn, stream: StreamMeta) -> bool:
    """Return whether a deleted stream has more groups than this commit may delete.

    If it has more than any commit may, the first of them are deleted now.
    """
    dropped = txn.groups_dropped + stream.groups_count
    if dropped <= txn.thresholds.groups_together:
        txn.groups_dropped = dropped
        return False
    try:
        return txn.groups_dropped > 0 or _drop_groups(txn, stream) == txn.thresholds.groups_together
    except Corruption:  # it is deleted as a whole, as far as it can be read
        txn.forget_stream(stream)
        return False


def _drop_groups(txn: Txn, stream: StreamMeta) -> int:
    groups = tree_prefix(stream.groups_tree)
    page = txn.batch.page(_TREES, groups, successor(groups), txn.thresholds.groups_together)
    found = [txn.catalog.group(txn, stream, row[U64.size :]) for row, _ in page]
    catch_up(txn.batch, stream)
    for group in found:
        assert group is not None
        txn.catalog.drop_group(txn, stream, group)
    return len(page)
