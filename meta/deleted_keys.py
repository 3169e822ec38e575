"""Rows that name deleted keys, whose own rows wait for the sweep (``lazyfree.py``).

FLUSHDB gives a database with many keys another stored number (``keyspace.py``). No command finds
the keys of the former number. The sweep deletes this row after the last key::

    flushed row := "F" db(u16) -> ""

DEL of very many keys writes their generations, some in each row, under the first of them. A command
that reuses the name of such a key deletes the rows of that key first::

    unlinked row := "G" db(u16) generation(u64) -> generation(u64)*
"""

from collections.abc import Collection, Mapping
from struct import iter_unpack, pack

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    COUNTED_MAX,
    FLUSHED_TAG,
    U16,
    U64,
    UNLINKED_TAG,
    database_of_row,
    flushed_row,
    generation_of_row,
    successor,
    unlinked_row,
)
from kvstream.meta.changeset import Changeset
from kvstream.storage.batch import Family

_METADATA = Family.METADATA


class Flushed:
    """The stored numbers of flushed databases whose keys still have rows."""

    def __init__(self) -> None:
        self._next: dict[int, bytes] | None = None
        """By number, the record from which the sweep goes on, b"" for the first; None: still to be
        read."""

    def numbers(self, txn: Changeset) -> dict[int, bytes]:
        """Return the place from which the sweep of each number continues."""
        if self._next is None:
            rows = txn.batch.scan(_METADATA, FLUSHED_TAG, successor(FLUSHED_TAG))
            databases = (row for row, _ in rows if len(row) == 1 + U16.size)
            self._next = {database_of_row(row): b"" for row in databases}
        return self._next

    def add(self, txn: Changeset, db: int) -> None:
        """Record that the keys of a number are deleted and still have rows."""
        self.numbers(txn)[db] = b""
        txn.batch.put(_METADATA, flushed_row(db), b"")

    def clear(self, txn: Changeset, db: int) -> None:
        """Record that the keys of a number have no rows any more."""
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

    __slots__ = ("_known", "_rows")

    def __init__(self) -> None:
        self._known: set[int] | None = None
        """Their generations; None if still to be read."""
        self._rows: dict[bytes, list[int]] = {}

    def generations(self, txn: Changeset) -> set[int]:
        """Return the generations of such keys, of all databases; no generation is used twice."""
        return self._load(txn) if self._known is None else self._known

    def _load(self, txn: Changeset) -> set[int]:
        rows = txn.batch.scan(_METADATA, UNLINKED_TAG, successor(UNLINKED_TAG))
        self._rows = {row: decode_unlinked(row, value) for row, value in rows}
        self._known = {number for found in self._rows.values() for number in found}
        return self._known

    def add(self, txn: Changeset, rows: Mapping[bytes, bytes], generations: set[int]) -> None:
        """Delete keys by rows of ``encode_unlinked``; the set is kept, not copied."""
        known = self.generations(txn)
        txn.batch.puts[_METADATA].update(rows)
        self._rows.update({row: [] for row in rows})  # decoded when they are swept
        if len(known) > len(generations):
            known |= generations
        else:
            generations |= known
            self._known = generations

    def first(self, txn: Changeset) -> tuple[int, list[int]] | None:
        """Return the next row to sweep: its database and generations."""
        self.generations(txn)
        row = next(iter(self._rows), None)
        if row is None:
            return None
        generations = self._rows[row]
        if not generations:
            generations = decode_unlinked(row, txn.batch.get(_METADATA, row) or b"")
        return database_of_row(row), generations

    def clear_first(self, txn: Changeset, row_db: int, found: list[int]) -> None:
        """Delete the row that ``first`` returned, after the rows of its keys."""
        row = unlinked_row(row_db, found[0])
        txn.batch.delete(_METADATA, row)
        del self._rows[row]
        assert self._known is not None
        self._known.difference_update(found)

    def forget(self) -> None:
        """Read the rows again at the next call."""
        self._known, self._rows = None, {}
