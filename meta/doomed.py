"""Keys that one command has deleted together with very many others, and whose rows are still there.

::

    doomed row := "G" db(u16) generation(u64) -> generation(u64)*

Such a command writes down the generations of its keys, some in each row, under the first of them:
from that commit on nobody sees a key of one of them. Rows of the keys leave later, those of one
such row at a time. This module knows these rows; what a key has left, the catalog knows.
"""

from collections.abc import Collection, Mapping
from struct import iter_unpack, pack

from kvstream.errors import Corruption
from kvstream.layout.keys import COUNTED_MAX, DOOMED_TAG, U16, U64, doomed_row, successor
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA
ROW_KEYS = 100
"""Keys of one row: so many are swept at once."""


def decode_doomed(row: bytes, value: bytes) -> list[int]:
    """Return the generations of a row; Corruption where it has none, or anything else."""
    if len(row) == len(doomed_row(0, 0)) and value and not len(value) % U64.size:
        found = [number for (number,) in iter_unpack(U64.format, value)]
        if found[0] == U64.unpack_from(row, 3)[0] and 0 < min(found) <= max(found) < COUNTED_MAX:
            return found
    raise Corruption(f"the row {row.hex()} of deleted keys is damaged")


def encode_doomed(db: int, generations: Collection[int]) -> tuple[bytes, bytes]:
    """Return the row of some generations, of which there must be one."""
    first = next(iter(generations))
    return doomed_row(db, first), pack(f">{len(generations)}Q", *generations)


class Doomed:
    """The keys that are gone one by one, though their rows are not."""

    def __init__(self) -> None:
        self._known: set[int] | None = None
        """Their generations; None: to be read."""
        self._rows: dict[bytes, list[int]] = {}

    def known(self, txn: Txn) -> set[int]:
        """Return the generations of such keys, of all databases: none is given out twice."""
        return self._load(txn) if self._known is None else self._known

    def _load(self, txn: Txn) -> set[int]:
        rows = txn.batch.scan(_METADATA, DOOMED_TAG, successor(DOOMED_TAG))
        self._rows = {row: decode_doomed(row, value) for row, value in rows}
        self._known = {number for found in self._rows.values() for number in found}
        return self._known

    def add(self, txn: Txn, rows: Mapping[bytes, bytes], generations: set[int]) -> None:
        """Have keys gone by rows that ``encode_doomed`` has made; the set is kept."""
        known = self.known(txn)
        txn.batch.puts[_METADATA].update(rows)
        self._rows.update({row: [] for row in rows})  # read when its turn comes
        if len(known) > len(generations):
            known |= generations
        else:
            generations |= known
            self._known = generations

    def first(self, txn: Txn) -> tuple[int, list[int]] | None:
        """Return the row whose keys are to be swept next: its database and their generations."""
        self.known(txn)
        row = next(iter(self._rows), None)
        if row is None:
            return None
        found = self._rows[row]
        if not found:
            found = decode_doomed(row, txn.batch.get(_METADATA, row) or b"")
        return U16.unpack_from(row, 1)[0], found

    def swept(self, txn: Txn, row_db: int, found: list[int]) -> None:
        """Delete the row that ``first`` has returned, and forget its keys: theirs have left."""
        row = doomed_row(row_db, found[0])
        txn.batch.delete(_METADATA, row)
        del self._rows[row]
        assert self._known is not None
        self._known.difference_update(found)

    def forget(self) -> None:
        """Have the rows read again."""
        self._known, self._rows = None, {}
