"""What the tests of the storage floor share: small stores, and pictures of crashed ones."""

from collections.abc import Mapping
from pathlib import Path

from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions

SMALL = StoreOptions(
    write_buffer_bytes=256 << 10,
    tree_write_buffer_bytes=64 << 10,
    wal_bytes_max=2 << 20,
    free_space_reserve=0,
)
"""Small buffers, so that tables are written and compacted within a short test."""

EVERYTHING = (b"", b"\xff" * 64)
"""Bounds of every row that a test writes."""


def put(database: Database, rows: Mapping[bytes, bytes], family: int = Family.MESSAGES) -> int:
    """Write rows in one batch."""
    batch = Batch(database)
    for key, value in rows.items():
        batch.put(family, key, value)
    return database.write(batch)


def put_one_by_one(database: Database, numbers: range) -> int:
    """Write a batch of one message for each number."""
    sequence = database.sequence
    for number in numbers:
        sequence = put(database, {key_of(number): value_of(number)})
    return sequence


def key_of(number: int) -> bytes:
    return b"%08d" % number


def value_of(number: int) -> bytes:
    return b"value of %d;" % number * 8


def keys(database: Database, family: int = Family.MESSAGES) -> list[bytes]:
    return [key for key, _ in database.scan(family, *EVERYTHING)]


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file of a store, but for the log that RocksDB keeps of its own doings."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(("LOG", "LOCK"))
    }
