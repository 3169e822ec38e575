"""The transport ``path``: a store's directory, read from a copy that does not change.

The process that holds the store makes the copy, or the planner if no process holds it. Tasks open
it read-only, so they all see the same snapshot. kvstream/engine/reader_snapshots.py makes and
removes copies.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kvstream.arrow.batches import stream_pages
from kvstream.engine import reader_snapshots
from kvstream.errors import Corruption, NoSuchKey, NoSuchStore, StoreLocked, quote
from kvstream.layout.columns import Columns
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace
from kvstream.operations.reads import counts
from kvstream.spark.options import MISSING_HINT, Place, is_stream
from kvstream.spark.read.partitions import Piece, ReadSpec
from kvstream.store import Store
from kvstream.types.clock import ManualClock, SystemClock

CACHE_BYTES = 8 << 20
"""The block cache of a task: small, since each block is read once."""
KEYS_PAGE = 1000
PIECE_LEAST = 1000
"""Streams with fewer entries, about ten nodes, are not split."""
PIECES_PER_TASK = 8
"""Several, so that tasks get about as many entries each, also from streams of unequal lengths."""
FIRST_PATIENCE_S = 3.0
"""The wait for the owner of a store before trying again whether the store is free."""
_JAVA = "java"


@cache
def driver() -> int:
    """Return the process whose life a copy has: the driver's JVM, an ancestor of this process."""
    pid = os.getpid()
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        if stat[stat.index("(") + 1 : stat.rindex(")")] == _JAVA:
            return pid
        pid = int(stat.rpartition(")")[2].split()[1])
    return os.getpid()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a store, and the time at which it was made."""

    path: str
    shown: str
    db: int
    now_ms: int = field(default_factory=SystemClock().now_ms)

    def store(self) -> Store:
        """Open the copy with its clock stopped, so that no key expires in it."""
        return Store.open(
            self.path,
            read_only=True,
            db=self.db,
            clock=ManualClock(self.now_ms),
            block_cache_bytes=CACHE_BYTES,
        )

    def open(self, pieces: Sequence[Piece]) -> "CopyReader":
        reader_snapshots.touch(Path(self.path))
        try:
            return CopyReader(self.store())
        except NoSuchStore:
            raise NoSuchStore(
                f"the copy of {self.shown} for this read was removed after a day without use: "
                "call load() again"
            ) from None


def make_copy(place: Place) -> Copy:
    """Make a copy of a store, or let the process that holds it make one."""
    directory = Path(place.address)
    reader_snapshots.sweep(directory / reader_snapshots.FOLDER)
    token = reader_snapshots.new_token(driver())
    for patience_s in (FIRST_PATIENCE_S, reader_snapshots.PATIENCE_S):
        with suppress(StoreLocked):
            return Copy(str(_own_copy(directory, token)), place.shown, place.db or 0)
        try:
            target = reader_snapshots.ask(directory, token, patience_s)
        except StoreLocked:  # another driver may have held it, and released it since
            if patience_s == reader_snapshots.PATIENCE_S:
                raise
        else:
            return Copy(str(target), place.shown, place.db or 0)
    raise AssertionError("the last patience raises")


def _own_copy(directory: Path, token: str) -> Path:
    """Copy a store that no process holds. Raises StoreLocked if another process holds it."""
    target = reader_snapshots.link(directory, token)
    if target is not None:
        return target
    try:
        with Store.open(directory, create=False):
            pass  # opening writes the log's entries into tables
    except StoreLocked:
        pass  # a reader holds it
    target = reader_snapshots.link(directory, token, log_bytes_max=None)
    assert target is not None
    return target


class CopyReader:
    """An open copy."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece. Raises Corruption if the store counts another number."""
        seen = 0
        for page in store_pages(self._store, piece):
            seen += len(page)
            yield page
        if piece.exact and seen != piece.entries:
            raise Corruption(
                f"stream {quote(piece.key)} has {seen} entries from {piece.start} to {piece.end}, "
                f"but its nodes count {piece.entries}"
            )

    def close(self) -> None:
        self._store.close()


def store_pages(store: Store, piece: Piece) -> Iterator[Columns]:
    """Yield the entries of a piece by pages, read through RocksDB."""
    return stream_pages(store.engine, qualified(store.db, piece.key), piece.start, piece.end)


def streams_of(store: Store, spec: ReadSpec) -> list[bytes]:
    """Return the existing streams of a read. Raises WrongType for a key that is no stream."""
    keys = dict.fromkeys(name for name in spec.names if is_stream(name, store.type(name)))
    if spec.patterns:
        keys |= dict.fromkeys(spec.matches(_all_streams(store)))
    return list(keys)


def _all_streams(store: Store) -> list[bytes]:
    streams: list[bytes] = []
    cursor = 0
    while True:
        cursor, page = store.engine.run(keyspace.scan, store.db, cursor, KEYS_PAGE, "stream")
        streams += page
        if cursor == 0:
            return streams


def pieces_of(
    store: Store, keys: list[bytes], spec: ReadSpec, tasks: int, most: int = 1 << 40
) -> list[Piece]:
    """Split streams for a number of tasks, into pieces of at most ``most`` entries."""
    total = sum(store.engine.run(counts.length, qualified(store.db, key)) for key in keys)
    size = min(most, max(PIECE_LEAST, total // (PIECES_PER_TASK * tasks)))
    pieces = []
    for key in keys:
        name = qualified(store.db, key)
        for span in store.engine.run(counts.spans, name, spec.start, spec.end, size):
            pieces.append(Piece(key, *span))
    return pieces


def require(spec: ReadSpec, keys: list[bytes], place: str) -> None:
    """Raise NoSuchKey if a named stream does not exist."""
    missing = [name for name in spec.names if name not in keys]
    if missing:
        raise NoSuchKey(f"there is no stream {quote(missing[0])} in {place}: {MISSING_HINT}")
