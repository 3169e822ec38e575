"""Helpers of the storage tests: small stores, rows, and a stop of all writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from struct import pack

from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.options import LEVEL0_STOP
from kvstream.types.options import StoreOptions

SMALL = StoreOptions(
    write_buffer_bytes=256 << 10,
    tree_write_buffer_bytes=64 << 10,
    wal_bytes_max=2 << 20,
    free_space_reserve=0,
)
"""Small buffers, so that a short test writes and compacts tables."""

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
    """Return every file of a store, except RocksDB's log of its own actions."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith(("LOG", "LOCK"))
    }


def stops_at(tables: int) -> dict[str, str]:
    """Return the options that stop writes at this many tables at level 0."""
    return dict.fromkeys(
        ("level0_slowdown_writes_trigger", "level0_stop_writes_trigger"), str(tables)
    )


def stalled(database: Database) -> Callable[[], None]:
    """Stop writes of messages, as when compaction is behind; return what resumes them."""
    messages = database._families[Family.MESSAGES]
    # Two tables stop the writes, but compaction starts at four.
    messages.set_options(stops_at(2))
    for number in range(2):
        put(database, {b"%d" % number: b""})
        messages.flush(True)

    def release() -> None:
        messages.set_options(stops_at(LEVEL0_STOP))

    return release


def pack_rows(ids: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Return rows packed in one string, as compiled code packs them."""
    pairs = zip(ids, values, strict=True)
    return b"".join(pack("<16sI", eid, len(value)) + value for eid, value in pairs)
