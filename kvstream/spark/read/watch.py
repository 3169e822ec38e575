"""How a streaming query follows its places: the ends of their streams, and new entries.

A store is opened as a secondary instance of RocksDB, beside the process that writes it. A server is
asked by XINFO STREAM.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from kvstream.errors import (
    BusyGroup,
    Corruption,
    DataError,
    InvalidArgument,
    ServerUnavailable,
    StoreError,
    quote,
)
from kvstream.layout.columns import Columns
from kvstream.layout.keys import qualified
from kvstream.operations import info
from kvstream.operations.reads import counts
from kvstream.operations.reads.counts import Ends
from kvstream.remote.connection import Connection
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import DataLoss, Piece, ReadSpec, Source
from kvstream.spark.read.servers import Server, ServerReader, client_of
from kvstream.spark.read.stores import CACHE_BYTES, pieces_of, store_pages, streams_of
from kvstream.store import Store
from kvstream.types.clock import monotonic
from kvstream.types.ids import MAX_ID, StreamID

T = TypeVar("T")

PIECE_MOST = 50_000
"""Entries of a piece at most: a task holds them in memory until it has checked their number."""
CATCH_UP_S = 30.0
"""How long a task waits until it sees the entries that the driver has seen."""
CATCH_UP_PAUSE_S = 0.01
TRIES = 5
"""Attempts to read a piece whose entries and counts come from different moments."""
NTH_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Position:
    """The last entry of a stream that was read."""

    id: StreamID
    added: int | None
    """``entries-added`` of the stream at that entry; None if unknown."""
    ahead: bool = False
    """The query begins here, above the last ID that the stream had then."""


def follower(path: str, db: int) -> Store:
    """Open a store as a secondary, beside the process that writes it."""
    return Store.open(path, db=db, read_only=True, following=True, block_cache_bytes=CACHE_BYTES)


def catch_up(store: Store) -> None:
    """Catch up with the writer, and drop the cached metadata of streams."""
    txn = store.engine.begin_turn()
    try:
        store.engine.database.catch_up()
    finally:
        store.engine.undo_turn(txn)


class StoreWatch:
    """A followed store in a directory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._store: Store | None = None

    @property
    def shown(self) -> str:
        return self._place.shown

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = follower(self._place.address, self._place.db or 0)
        return self._store

    def refresh(self) -> None:
        """Read what was written since the last call."""
        try:
            catch_up(self.store)
        except (StoreError, DataError):
            # The writer may have removed a table that was not read yet: open the store again.
            self.store.close()
            self._store = None
            catch_up(self.store)

    def keys(self, spec: ReadSpec) -> list[bytes]:
        return streams_of(self.store, spec)

    def _name(self, key: bytes) -> bytes:
        return qualified(self.store.db, key)

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        return [self.store.engine.run(counts.ends, self._name(key)) for key in keys]

    def live_after(self, key: bytes, ends: Ends, eid: StreamID) -> int | None:
        return self.store.engine.run(info.count_after, self._name(key), eid)

    def nth_after(self, key: bytes, after: StreamID, count: int) -> StreamID:
        return self.store.engine.run(counts.nth_after, self._name(key), after, count)

    def source(self, fail_on_loss: bool) -> Source:
        return FollowedStore(self._place, fail_on_loss)

    def pieces(self, key: bytes, above: StreamID, end: StreamID, parts: int) -> list[Piece]:
        spec = ReadSpec((key,), (), above.next(), end)
        return pieces_of(self.store, [key], spec, parts, PIECE_MOST)

    def show_progress(self, group: bytes, positions: dict[bytes, Position]) -> None:
        raise InvalidArgument("the option group needs url: by path nothing is written to the store")


@dataclass(frozen=True, slots=True)
class FollowedStore:
    """A store that tasks follow, as a value that is pickled to them."""

    place: Place
    fail_on_loss: bool

    @property
    def shown(self) -> str:
        return self.place.shown

    def open(self, pieces: Sequence[Piece]) -> "FollowReader":
        return FollowReader(follower(self.place.address, self.place.db or 0), self)


class FollowReader:
    """Reads a store beside its writer, for one task."""

    def __init__(self, store: Store, source: FollowedStore) -> None:
        self._store = store
        self._source = source

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece, once all have arrived.

        A secondary may show entries and nodes of different moments, so their counts are compared:
        Corruption if they differ in every attempt. Raises DataLoss if entries were trimmed.
        """
        name = qualified(self._store.db, piece.key)
        self._catch_up(name, piece)
        for left in reversed(range(TRIES)):
            pages = list(store_pages(self._store, piece))
            seen = sum(map(len, pages))
            counted = [
                self._store.engine.run(info.count_after, name, eid)
                for eid in (piece.start.previous(), piece.end)
            ]
            if seen == counted[0] - counted[1]:
                break
            if not left:
                raise Corruption(
                    f"stream {quote(piece.key)} has {seen} entries from {piece.start} to "
                    f"{piece.end}, but its nodes count {counted[0] - counted[1]}"
                )
            time.sleep(CATCH_UP_PAUSE_S)
            catch_up(self._store)
        if self._source.fail_on_loss and seen < piece.entries:
            self._refuse_loss(name, piece)
        yield from pages

    def _catch_up(self, name: bytes, piece: Piece) -> None:
        deadline = monotonic() + CATCH_UP_S
        while True:
            ends = self._store.engine.run(counts.ends, name)
            if ends is not None and ends.last >= piece.end:
                return
            if monotonic() > deadline:
                raise DataLoss.of(
                    piece.key, self._source.shown, f"it no longer reaches {piece.end}"
                )
            time.sleep(CATCH_UP_PAUSE_S)
            catch_up(self._store)

    def _refuse_loss(self, name: bytes, piece: Piece) -> None:
        ends = self._store.engine.run(counts.ends, name)
        if ends is None or ends.first > piece.start:
            what = f"entries from {piece.start} on were trimmed before they were read"
            raise DataLoss.of(piece.key, self._source.shown, what)

    def close(self) -> None:
        self._store.close()


class ServerWatch:
    """A followed server; after a failover, the primary that Sentinels name then."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open_reader: ServerReader | None = None

    @property
    def _reader(self) -> ServerReader:
        if self._open_reader is None:
            self._open_reader = ServerReader(client_of(self._place))
        return self._open_reader

    def _ask(self, call: Callable[[ServerReader], T]) -> T:
        """Call with the reader; with a new one, once more, if its server is gone or replaced."""
        try:
            return call(self._reader)
        except ServerUnavailable:
            self._close()
        except BaseException:
            self._close()
            raise
        return call(self._reader)

    def _close(self) -> None:
        reader, self._open_reader = self._open_reader, None
        if reader is not None:
            reader.close()

    @property
    def shown(self) -> str:
        return self._place.shown

    def refresh(self) -> None:
        """Do nothing: each command returns the current state."""

    def keys(self, spec: ReadSpec) -> list[bytes]:
        return self._ask(lambda reader: reader.streams(spec))

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        return self._ask(lambda reader: reader.ends(keys))

    def live_after(self, key: bytes, ends: Ends, eid: StreamID) -> int | None:
        """Return the number of entries above an ID; None if counting them costs too much."""
        if eid >= ends.last:
            return 0
        return ends.length if ends.first > eid else None

    def _ids(self, piece: Piece, size: int) -> list[StreamID]:
        return self._ask(lambda reader: reader.ids(piece, size))

    def nth_after(self, key: bytes, after: StreamID, count: int) -> StreamID:
        last = after
        while count > 0:
            piece = Piece(key, last.next(), MAX_ID, 0)
            size = min(count, NTH_PAGE)
            ids = self._ids(piece, size)
            if not ids:
                break
            last, count = ids[-1], count - len(ids)
        return last

    def source(self, fail_on_loss: bool) -> Source:
        return Server(self._place, fail_on_loss)

    def pieces(self, key: bytes, above: StreamID, end: StreamID, parts: int) -> list[Piece]:
        spec = ReadSpec((key,), (), above.next(), end)
        return self._ask(lambda reader: reader.pieces([key], spec, parts))

    def show_progress(self, group: bytes, positions: dict[bytes, Position]) -> None:
        """Set a consumer group to the query's positions, so that XINFO GROUPS shows its lag."""
        self._ask(lambda reader: _set_groups(reader.connection, group, positions))


def _set_groups(connection: Connection, group: bytes, positions: dict[bytes, Position]) -> None:
    for key, position in positions.items():
        read = () if position.added is None else ("ENTRIESREAD", position.added)
        words = (key, group, bytes(position.id))
        with suppress(BusyGroup):
            connection.do("XGROUP", "CREATE", *words, *read)
            continue
        connection.do("XGROUP", "SETID", *words, *read)


Watch = StoreWatch | ServerWatch
"""One followed place."""


def watch(place: Place) -> Watch:
    return StoreWatch(place) if place.kind == "path" else ServerWatch(place)
