"""Places as the driver of a streaming query watches them: how far their streams have come.

A store is watched beside the process that writes it, as a secondary of RocksDB; a server is asked.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from kvstream.errors import BusyGroup, Corruption, DataError, InvalidArgument, StoreError, shown
from kvstream.layout.columns import Columns
from kvstream.layout.keys import qualified
from kvstream.operations import info
from kvstream.operations import range as splitting
from kvstream.spark.options import Place
from kvstream.spark.read.partitions import DataLoss, Ends, Piece, Source, Wanted
from kvstream.spark.read.servers import Server, ServerReading, client_of
from kvstream.spark.read.stores import CACHE_BYTES, pieces_of, store_pages, streams_of
from kvstream.store import Store
from kvstream.types.ids import MAX_ID, StreamID

PIECE_MOST = 50_000
"""Entries of a piece that a task holds in memory until they are known to be all."""
CATCH_UP_S = 30.0
"""How long a task waits to see what the driver has seen."""
CATCH_UP_PAUSE_S = 0.01
TRIES = 5
"""How often a piece is read again that was met in the middle of a change."""
NTH_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream has been read."""

    id: StreamID
    added: int | None
    """The entries that the stream had been given up to there; None where that is not known."""


class Watch(Protocol):
    """One place."""

    @property
    def shown(self) -> str: ...

    def refresh(self) -> None:
        """See what has been written since."""
        ...

    def keys(self, wanted: Wanted) -> list[bytes]: ...

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]: ...

    def live_after(self, key: bytes, ends: Ends, eid: StreamID) -> int | None:
        """Return the entries above an ID; None where it would cost too much to know."""
        ...

    def nth_after(self, key: bytes, after: StreamID, count: int) -> StreamID: ...

    def source(self, fail_on_loss: bool) -> Source: ...

    def pieces(self, key: bytes, above: StreamID, end: StreamID, parts: int) -> list[Piece]: ...

    def show_progress(self, group: bytes, positions: dict[bytes, Position]) -> None: ...


def follower(path: str, db: int) -> Store:
    """Open a store beside the process that writes it."""
    return Store.open(path, db=db, read_only=True, following=True, block_cache_bytes=CACHE_BYTES)


def catch_up(store: Store) -> None:
    """See what was written since; whatever was known of streams is looked up again."""
    txn = store.engine.begin_turn()
    try:
        store.engine.database.catch_up()
    finally:
        store.engine.undo_turn(txn)


class StoreWatch:
    """A store in a directory."""

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
        try:
            catch_up(self.store)
        except (StoreError, DataError):
            # A table may go before it was seen; a new look finds what there is instead.
            self.store.close()
            self._store = None
            catch_up(self.store)

    def keys(self, wanted: Wanted) -> list[bytes]:
        return streams_of(self.store, wanted)

    def _name(self, key: bytes) -> bytes:
        return qualified(self.store.db, key)

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        found = [self.store.engine.run(splitting.ends, self._name(key)) for key in keys]
        return [None if each is None else Ends(*each) for each in found]

    def live_after(self, key: bytes, ends: Ends, eid: StreamID) -> int | None:
        return self.store.engine.run(info.count_after, self._name(key), eid)

    def nth_after(self, key: bytes, after: StreamID, count: int) -> StreamID:
        return self.store.engine.run(splitting.nth_after, self._name(key), after, count)

    def source(self, fail_on_loss: bool) -> Source:
        return Following(self._place, fail_on_loss)

    def pieces(self, key: bytes, above: StreamID, end: StreamID, parts: int) -> list[Piece]:
        wanted = Wanted((key,), (), above.next(), end)
        return pieces_of(self.store, [key], wanted, parts, PIECE_MOST)

    def show_progress(self, group: bytes, positions: dict[bytes, Position]) -> None:
        raise InvalidArgument("the option group needs url: by path nothing is written to the store")


@dataclass(frozen=True, slots=True)
class Following:
    """A store that tasks follow."""

    place: Place
    fail_on_loss: bool

    @property
    def shown(self) -> str:
        return self.place.shown

    def open(self) -> "FollowingTask":
        path, db = self.place.address, self.place.db or 0
        try:
            catch_up(_kept(path, db))
        except (StoreError, DataError):  # the store was made anew, or a table went unseen
            _kept.cache_clear()
        return FollowingTask(_kept(path, db), self)


@cache
def _kept(path: str, db: int) -> Store:
    """Return a store that this worker follows from batch to batch."""
    return follower(path, db)


class FollowingTask:
    """A store that one task reads beside its writer."""

    def __init__(self, store: Store, source: Following) -> None:
        self._store = store
        self._source = source

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece once all are there; DataLoss, or Corruption if they differ.

        A secondary may show rows and nodes of different moments, so these are compared.
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
                    f"stream {shown(piece.key)} has {seen} entries from {piece.start} to "
                    f"{piece.end}, and its nodes count {counted[0] - counted[1]}"
                )
            time.sleep(CATCH_UP_PAUSE_S)
            catch_up(self._store)
        if self._source.fail_on_loss and seen < piece.entries:
            self._refuse_loss(name, piece)
        yield from pages

    def _catch_up(self, name: bytes, piece: Piece) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while True:  # ``open`` has caught up already
            ends = self._store.engine.run(splitting.ends, name)
            if ends is not None and ends.last >= piece.end:
                return
            if time.monotonic() > deadline:
                raise DataLoss.of(
                    piece.key, self._source.shown, f"there is nothing up to {piece.end} any more"
                )
            time.sleep(CATCH_UP_PAUSE_S)
            catch_up(self._store)

    def _refuse_loss(self, name: bytes, piece: Piece) -> None:
        ends = self._store.engine.run(splitting.ends, name)
        if ends is None or ends.first > piece.start:
            what = f"entries from {piece.start} on were trimmed before they were read"
            raise DataLoss.of(piece.key, self._source.shown, what)

    def close(self) -> None:
        """Leave the store open for the next batch."""


class ServerWatch:
    """A server."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._reading = ServerReading(client_of(place))

    @property
    def shown(self) -> str:
        return self._place.shown

    def refresh(self) -> None:
        """Do nothing: each question is answered as things are."""

    def keys(self, wanted: Wanted) -> list[bytes]:
        return self._reading.streams(wanted)

    def ends(self, keys: Sequence[bytes]) -> list[Ends | None]:
        return self._reading.ends(keys)

    def live_after(self, key: bytes, ends: Ends, eid: StreamID) -> int | None:
        if eid >= ends.last:
            return 0
        return ends.length if ends.first > eid else None

    def nth_after(self, key: bytes, after: StreamID, count: int) -> StreamID:
        last = after
        while count > 0:
            piece = Piece(key, last.next(), MAX_ID, 0)
            ids = self._reading.ids(piece, min(count, NTH_PAGE))
            if not ids:
                break
            last, count = ids[-1], count - len(ids)
        return last

    def source(self, fail_on_loss: bool) -> Source:
        return Server(self._place, fail_on_loss)

    def pieces(self, key: bytes, above: StreamID, end: StreamID, parts: int) -> list[Piece]:
        return self._reading.pieces([key], Wanted((key,), (), above.next(), end), parts)

    def show_progress(self, group: bytes, positions: dict[bytes, Position]) -> None:
        """Move a consumer group to where the query is, so that its lag shows there."""
        for key, position in positions.items():
            read = () if position.added is None else ("ENTRIESREAD", position.added)
            words = (key, group, bytes(position.id))
            with suppress(BusyGroup):
                self._reading.connection.do("XGROUP", "CREATE", *words, *read)
                continue
            self._reading.connection.do("XGROUP", "SETID", *words, *read)


def watch(place: Place) -> Watch:
    return StoreWatch(place) if place.kind == "path" else ServerWatch(place)
