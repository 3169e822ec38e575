"""Looking at streams and groups, of a store and of a server alike: the library's records."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kvstream.errors import NoGroup, NoSuchKey
from kvstream.ids import MIN_ID, StreamID
from kvstream.records import GroupInfo, PendingEntry, StreamInfo
from kvstream.remote.replies import (
    consumer_info_of,
    group_info_of,
    pending_entries_of,
    stream_info_of,
)
from kvstream.spark.options import Place
from kvstream.spark.reading.pieces import Wanted
from kvstream.spark.reading.servers import ServerReading, client_of
from kvstream.spark.reading.stores import streams_of
from kvstream.store import Store

PENDING_PAGE = 1000


class MemberInfo(Protocol):
    """What is told of a consumer; times in milliseconds."""

    @property
    def name(self) -> bytes: ...
    @property
    def pending(self) -> int: ...
    @property
    def idle(self) -> int: ...
    @property
    def inactive(self) -> int | None: ...


class Looking(Protocol):
    """What tables ask of a place; nothing where a key or a group has gone meanwhile."""

    def keys(self, wanted: Wanted) -> list[bytes]: ...

    def info(self, key: bytes) -> StreamInfo | None: ...

    def groups(self, key: bytes) -> Sequence[GroupInfo]: ...

    def consumers(self, key: bytes, group: bytes) -> Sequence[MemberInfo]: ...

    def pending(self, key: bytes, group: bytes) -> Iterator[PendingEntry]: ...

    def close(self) -> None: ...


def _paged(page: Callable[[StreamID], Sequence[PendingEntry]]) -> Iterator[PendingEntry]:
    start = MIN_ID
    while True:
        found = page(start)
        yield from found
        if len(found) < PENDING_PAGE:
            return
        start = found[-1].id.next()


class StoreLooking:
    """A store that is open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keys(self, wanted: Wanted) -> list[bytes]:
        return streams_of(self._store, wanted)

    def info(self, key: bytes) -> StreamInfo | None:
        return self._store.stream(key).info()

    def groups(self, key: bytes) -> Sequence[GroupInfo]:
        return self._store.stream(key).groups()

    def consumers(self, key: bytes, group: bytes) -> Sequence[MemberInfo]:
        return self._store.stream(key).group(group).consumers()

    def pending(self, key: bytes, group: bytes) -> Iterator[PendingEntry]:
        found = self._store.stream(key).group(group)
        return _paged(lambda start: found.pending_range(start, count=PENDING_PAGE))

    def close(self) -> None:
        self._store.close()


class ServerLooking(ServerReading):
    """A server that is connected to."""

    def keys(self, wanted: Wanted) -> list[bytes]:
        return self.streams(wanted)

    def info(self, key: bytes) -> StreamInfo | None:
        try:
            return stream_info_of(self.connection.ask("XINFO", "STREAM", key))
        except NoSuchKey:
            return None

    def groups(self, key: bytes) -> Sequence[GroupInfo]:
        try:
            reply = self.connection.ask("XINFO", "GROUPS", key)
        except NoSuchKey:
            return []
        return sorted(map(group_info_of, reply), key=lambda info: info.name)

    def consumers(self, key: bytes, group: bytes) -> Sequence[MemberInfo]:
        try:
            reply = self.connection.ask("XINFO", "CONSUMERS", key, group)
        except (NoSuchKey, NoGroup):
            return []
        return sorted(map(consumer_info_of, reply), key=lambda info: info.name)

    def pending(self, key: bytes, group: bytes) -> Iterator[PendingEntry]:
        def page(start: StreamID) -> list[PendingEntry]:
            words = ("XPENDING", key, group, bytes(start), "+", PENDING_PAGE)
            try:
                return pending_entries_of(self.connection.ask(*words))
            except (NoSuchKey, NoGroup):
                return []

        return _paged(page)


def server_looking(place: Place) -> ServerLooking:
    return ServerLooking(client_of(place))
