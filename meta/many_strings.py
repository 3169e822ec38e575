"""Read and write plain strings by the hundred, without an object for each.

It handles strings that are whole in their record and never expire. The caller treats any other key
on its own.
"""

from collections.abc import Mapping, Sequence

from kvstream.layout.keys import COUNTED_MAX, U64, key_of, scan_row, stream_row
from kvstream.meta.strings import STRING_KIND, WHOLE_VERSION
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

TOGETHER = 100
"""Records read by one call: each may have 16 KB, or belong to a stream with long field names."""
_METADATA = Family.METADATA
_PLAIN = bytes([STRING_KIND, WHOLE_VERSION]) + bytes(U64.size)
"""How the record of a plain string begins; its generation follows."""
HEAD = len(_PLAIN) + U64.size
"""Bytes before the value."""


def records(txn: Txn, names: Sequence[bytes]) -> list[bytes | None]:
    """Return the record of each stored name, None for those without one."""
    values: list[bytes | None] = []
    for at in range(0, len(names), TOGETHER):
        rows = [stream_row(name) for name in names[at : at + TOGETHER]]
        values += txn.batch.get_many(_METADATA, rows)
    return values


class Plain:
    """The test for records of plain strings."""

    def __init__(self, txn: Txn) -> None:
        self._unlinked = txn.catalog.unlinked.known(txn)

    def has(self, record: bytes) -> bool:
        """Return whether a record is a plain string's that has not been deleted."""
        if not record.startswith(_PLAIN) or len(record) < HEAD:
            return False
        generation = int.from_bytes(record[len(_PLAIN) : HEAD])
        return 0 < generation < COUNTED_MAX and generation not in self._unlinked


def made(
    stored_db: int, values: Mapping[bytes, bytes], numbers: Sequence[int]
) -> dict[bytes, bytes]:
    """Return the rows of new plain strings with the given generations."""
    rows = {}
    for name, number in zip(values, numbers, strict=True):
        rows[stream_row(name)] = _PLAIN + U64.pack(number) + values[name]
        rows[scan_row(stored_db, number)] = key_of(name)
    return rows


def rewritten(record: bytes, value: bytes) -> bytes:
    """Return the record of a plain string with another value."""
    return record[:HEAD] + value
