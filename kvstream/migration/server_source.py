"""Streams of a live server: by DUMP, or by commands where that is refused or too large."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from kvstream.errors import NoSuchKey, RequestError
from kvstream.migration import paging
from kvstream.migration.items import STREAM, STRING, Content, Item, Outline, Selection
from kvstream.migration.paging import INEXACT_MS, PagedStream, memory_of
from kvstream.migration.pending import unix_ms
from kvstream.migration.read_stream import ReadStream
from kvstream.migration.server import Server
from kvstream.rdb.payload import restore
from kvstream.rdb.streams import StreamReading
from kvstream.remote.connection import Connection, Words

SCAN_COUNT = 1000
DUMP_BYTES_MAX = 64 << 20
"""Memory of a stream above which it is read by pages, where that loses nothing: a DUMP is one
reply, and blocks its server while it is made."""
_EXPIRETIME = (7, 0)
_COMMANDS_TELL_ALL = (8, 6)
"""The first version with something that only DUMP tells: idempotent IDs."""
_NO_SUCH_COMMAND = ("unknown command", "NOPERM", "no permissions", "not allowed")


class ServerSource:
    """A server that is read; keys that come while it is gone through may be missed."""

    ranged = True

    def __init__(self, server: Server) -> None:
        self.remarks: list[str] = []
        if server.is_cluster:
            self.remarks.append("this node of a cluster has only some of the keys")
        self._server = server
        self._dumps = True
        """Whether the server gives out DUMPs to this user."""
        self.may_lose = server.about.version >= _COMMANDS_TELL_ALL

    def close(self) -> None:
        self._server.close()

    def items(self, selection: Selection) -> Iterator[Item]:
        for db in self._server.databases():
            if selection.has_database(db):
                yield from self._items_of(db, selection)

    def size(self, selection: Selection) -> int | None:
        """Return the entries of all streams: one more walk over the keys, which is soon done."""
        return sum(
            length
            for db in self._server.databases()
            if selection.has_database(db)
            for length in self._lengths(db, selection)
        )

    def _lengths(self, db: int, selection: Selection) -> Iterator[int]:
        connection = self._server.connection(db)
        for keys in self._pages(db, selection):
            kinds = _checked(connection.ask_all([("TYPE", key) for key in keys])) if keys else []
            streams = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"stream"]
            if streams:
                replies = connection.ask_all([("XLEN", key) for key in streams])
                yield sum(reply for reply in replies if isinstance(reply, int))

    def position(self) -> int | None:
        return None

    def item(self, db: int, key: bytes) -> Item | None:
        return next(self._described(db, [key]), None)

    def _items_of(self, db: int, selection: Selection) -> Iterator[Item]:
        for keys in self._pages(db, selection):
            yield from self._described(db, keys)

    def _pages(self, db: int, selection: Selection) -> Iterator[list[bytes]]:
        """Yield the selected keys of a database, each once."""
        connection = self._server.connection(db)
        seen: set[bytes] = set()  # SCAN may show a key twice
        cursor: bytes | int = 0
        while True:
            cursor, page = connection.ask("SCAN", cursor, "COUNT", SCAN_COUNT)
            keys = [key for key in page if selection.has(db, key) and key not in seen]
            seen.update(keys)
            yield keys
            if int(cursor) == 0:
                return

    def _described(self, db: int, keys: list[bytes]) -> Iterator[Item]:
        """Yield keys with their kinds and expiries; those that have gone are left out."""
        connection = self._server.connection(db)
        exact = self._server.about.version >= _EXPIRETIME
        word = "PEXPIRETIME" if exact else "PTTL"
        commands: list[Words] = [("TIME",)]
        for key in keys:
            commands += [("TYPE", key), (word, key)]
        now_ms, *replies = _checked(connection.ask_all(commands)) if keys else [None]
        base_ms = 0 if exact or now_ms is None else unix_ms(now_ms)
        for key, kind, left_ms in zip(keys, replies[::2], replies[1::2], strict=True):
            if kind == b"none":
                continue
            expire_at_ms = base_ms + left_ms if left_ms > 0 else 0
            yield self._item(db, key, kind.decode(), expire_at_ms, 0 if exact else INEXACT_MS)

    def _item(self, db: int, key: bytes, kind: str, expire_at_ms: int, inexact_ms: int) -> Item:
        connection = self._server.connection(db)
        item = Item(db, key, kind, expire_at_ms, inexact_ms, again=True)
        if kind == STREAM:
            item.stream = partial(self._stream, connection, key)
            item.between = partial(paging.between, connection, key)
            item.outline = partial(self._outline, connection, key)
        elif kind == STRING:
            item.value = partial(connection.ask, "GET", key)
        return item

    def _stream(self, connection: Connection, key: bytes) -> Content:
        if self._dumps and self._is_dumped(connection, key):
            payload = self._dump(connection, key)
            if payload is not None:
                reading = restore(payload)
                if isinstance(reading, StreamReading):
                    return ReadStream(reading)
                raise RequestError(f"{key!r} was made anew as another kind of value meanwhile")
        return PagedStream(connection, key)

    def _is_dumped(self, connection: Connection, key: bytes) -> bool:
        if memory_of(connection, key) <= DUMP_BYTES_MAX:
            return True
        return self._server.about.version >= _COMMANDS_TELL_ALL

    def _dump(self, connection: Connection, key: bytes) -> bytes | None:
        """Return a DUMP; None where this user or server has none, from then on for all keys."""
        try:
            payload: bytes | None = connection.ask("DUMP", key)
        except RequestError as error:
            self._dumps = False
            if not any(said in str(error) for said in _NO_SUCH_COMMAND):
                raise
            return None
        if payload is None:
            raise NoSuchKey(f"{key!r} has gone while it was about to be read")
        return payload

    def _outline(self, connection: Connection, key: bytes) -> Outline:
        """Say what there is; nothing is lost where the key will come as a DUMP."""
        found = paging.outline(connection, key)
        if self._dumps and self._is_dumped(connection, key):
            return found._replace(notes=[])
        return found


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
