"""The transport ``path``: a store's directory, read from a copy that nobody writes to.

The driver has the owner make the copy, or makes it where nobody writes; tasks open it read-only.
So all of them see one moment, and what is damaged is told by them. Who may open what is a matter of
kvstream/storage; the life of copies is that of kvstream/engine/reader_snapshots.py.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from kvstream.engine import reader_snapshots
from kvstream.errors import Corruption, NoSuchKey, NoSuchStore, StoreLocked, shown
from kvstream.layout.columns import Columns, of_packed, of_rows
from kvstream.layout.keys import ID_BYTES, qualified
from kvstream.operations import keyspace
from kvstream.operations import range as ranges
from kvstream.operations import range as splitting
from kvstream.spark.options import MISSING_HINT, Place
from kvstream.spark.read.partitions import PAGE_MIN, Piece, Wanted, next_page
from kvstream.storage import sst_reads
from kvstream.storage.batch import Family
from kvstream.store import Store
from kvstream.types.clock import ManualClock, SystemClock
from kvstream.types.ids import StreamID

CACHE_BYTES = 8 << 20
"""Blocks that a task keeps: each is read once."""
KEYS_PAGE = 1000
PIECE_LEAST = 1000
"""Entries below which a stream is not cut: ten nodes."""
PIECES_A_PART = 8
"""Pieces for each task, so that tasks can be given about as much, whatever the streams' lengths."""
FIRST_PATIENCE_S = 3.0
"""How long the owner of a store is waited for before it is looked whether the store is free now."""
_JAVA = "java"


@cache
def driver() -> int:
    """Return the process that copies are made for: the JVM of the driver, which is our ancestor."""
    pid = os.getpid()
    while pid > 1:
        try:
            told = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        if told[told.index("(") + 1 : told.rindex(")")] == _JAVA:
            return pid
        pid = int(told.rpartition(")")[2].split()[1])
    return os.getpid()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a store, and the moment that it is of."""

    path: str
    shown: str
    db: int
    now_ms: int = field(default_factory=SystemClock().now_ms)

    def store(self) -> Store:
        """Open the copy as it was: nothing expires in it."""
        return Store.open(
            self.path,
            read_only=True,
            db=self.db,
            clock=ManualClock(self.now_ms),
            block_cache_bytes=CACHE_BYTES,
        )

    def open(self) -> "CopyReading":
        reader_snapshots.touch(Path(self.path))
        try:
            return CopyReading(self.store())
        except NoSuchStore:
            raise NoSuchStore(
                f"the copy of {self.shown} that this read was planned on has been removed, as "
                "after a day in which nobody needed it: load the DataFrame anew"
            ) from None


def copied(place: Place) -> Copy:
    """Have a copy made of a store as it is now."""
    directory = Path(place.address)
    reader_snapshots.sweep(directory / reader_snapshots.FOLDER)
    token = reader_snapshots.new_token(driver())
    for patience_s in (FIRST_PATIENCE_S, reader_snapshots.PATIENCE_S):
        with suppress(StoreLocked):
            return Copy(str(_own_copy(directory, token)), place.shown, place.db or 0)
        try:
            target = reader_snapshots.ask(directory, token, patience_s)
        except StoreLocked:  # perhaps held by another driver only, which has let go of it since
            if patience_s == reader_snapshots.PATIENCE_S:
                raise
        else:
            return Copy(str(target), place.shown, place.db or 0)
    raise AssertionError("the last patience raises")


def _own_copy(directory: Path, token: str) -> Path:
    """Make a copy of a store that nobody writes; StoreLocked where somebody does."""
    target = reader_snapshots.link(directory, token)
    if target is not None:
        return target
    try:
        with Store.open(directory, create=False):
            pass  # what is in the log goes into tables
    except StoreLocked:
        pass  # others read it
    target = reader_snapshots.link(directory, token, log_bytes_max=None)
    assert target is not None
    return target


class CopyReading:
    """An open copy."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece; Corruption where they are not as many as the store says."""
        seen = 0
        for page in copy_pages(self._store, piece):
            seen += len(page)
            yield page
        if piece.exact and seen != piece.entries:
            raise Corruption(
                f"stream {shown(piece.key)} has {seen} entries from {piece.start} to {piece.end}, "
                f"and its nodes count {piece.entries}"
            )

    def close(self) -> None:
        self._store.close()


def copy_pages(store: Store, piece: Piece) -> Iterator[Columns]:
    """Yield the entries of a piece of a store that nobody writes, by pages.

    What is plain is read out of tables; the rest, damage included, by RocksDB.
    """
    database = store.engine.database
    name = qualified(store.db, piece.key)
    reach = store.engine.run(splitting.reach, name, piece.start, piece.end)
    tables = database.plain_tables(Family.MESSAGES)
    if reach is None or tables is None:
        yield from store_pages(store, piece)
        return
    for stretch in sst_reads.stretches(tables, reach.lower, reach.upper):
        following: StreamID | None
        following, end = _ids_of(stretch, len(reach.prefix))
        with suppress(sst_reads.NotPlain):
            for packed in sst_reads.packed_pages(stretch, reach.prefix, unpacked):
                page = of_packed(packed)
                yield page
                following = page.last.next() if page.last < end else None
            following = None
        if following is not None:
            yield from store_pages(store, replace(piece, start=following, end=end))


def unpacked(data: bytes, size: int) -> bytes | None:
    """Return the ``size`` bytes that ZSTD has made ``data`` of; None where it has not."""
    import pyarrow as pa

    try:
        found: bytes = pa.decompress(data, size, codec="zstd", asbytes=True)
    except (OSError, pa.ArrowException):
        return None
    return found


def _ids_of(stretch: sst_reads.Stretch, prefix: int) -> tuple[StreamID, StreamID]:
    ids = stretch.first[prefix:], stretch.last[prefix:]
    if any(len(eid) != ID_BYTES for eid in ids):
        raise Corruption("the key of a message is not of its stream's length")
    return StreamID.unpack(ids[0]), StreamID.unpack(ids[1])


def store_pages(store: Store, piece: Piece) -> Iterator[Columns]:
    """Yield the entries of a piece by pages."""
    name = qualified(store.db, piece.key)
    following, count = piece.start, PAGE_MIN
    while True:
        rows = store.engine.run(ranges.scan, name, following, piece.end, count)
        if not rows:
            return
        page = of_rows(rows.page, rows.prefix)
        yield page
        if len(page) < count or page.last >= piece.end:
            return
        following, count = page.last.next(), next_page(len(page), page.size)


def streams_of(store: Store, wanted: Wanted) -> list[bytes]:
    """Return the streams that a read is of, those that exist; WrongType for another kind of key."""
    keys = dict.fromkeys(name for name in wanted.names if length_of(store, name) is not None)
    if wanted.patterns:
        keys |= dict.fromkeys(wanted.matches(_all_streams(store)))
    return list(keys)


def length_of(store: Store, key: bytes) -> int | None:
    """Return the entries of a stream; None where there is no such key."""
    name = qualified(store.db, key)
    length = store.engine.run(ranges.length, name)
    return length if length or store.engine.run(keyspace.exists, name) else None


def _all_streams(store: Store) -> list[bytes]:
    found: list[bytes] = []
    cursor = 0
    while True:
        cursor, page = store.engine.run(keyspace.scan, store.db, cursor, KEYS_PAGE, "stream")
        found += page
        if cursor == 0:
            return found


def pieces_of(
    store: Store, keys: list[bytes], wanted: Wanted, parts: int, most: int = 1 << 40
) -> list[Piece]:
    """Cut streams so that ``parts`` tasks can have about as much each; in ``most`` entries each."""
    total = sum(length_of(store, key) or 0 for key in keys)
    size = min(most, max(PIECE_LEAST, total // (PIECES_A_PART * parts)))
    found = []
    for key in keys:
        name = qualified(store.db, key)
        for span in store.engine.run(splitting.spans, name, wanted.start, wanted.end, size):
            found.append(Piece(key, *span))
    return found


def require(wanted: Wanted, keys: list[bytes], place: str) -> None:
    """Raise NoSuchKey where a stream that was named does not exist."""
    missing = [name for name in wanted.names if name not in keys]
    if missing:
        raise NoSuchKey(f"there is no stream {shown(missing[0])} in {place}: {MISSING_HINT}")
