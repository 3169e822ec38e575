"""A live server as a source: streams by DUMP, or page by page with commands.

Commands are used if DUMP is refused, or if its single reply would be too large. Entries come by
XRANGE. The state comes last, in one transaction with an XRANGE after the last entry; this repeats
until no entry is new. So entries and state belong to one moment, except for entries deleted
while the stream was read.

XPENDING reports how long ago an entry was delivered, not when. All rows of one reply count from one
moment. An entry whose exact time is known, from XINFO STREAM FULL or the page before, gives that
moment. Without one the server's TIME is used, which is a few milliseconds off.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kvstream.errors import RequestError
from kvstream.layout.values import encode_flat
from kvstream.migration.items import (
    STAGED_PREFIX,
    STREAM,
    STRING,
    Content,
    Item,
    Outline,
    Page,
    RawEntry,
    ReadStream,
    Selection,
    key_gone,
    nodes_of,
    packed_id,
)
from kvstream.migration.libraries import HAS_FUNCTIONS, find_refused_by
from kvstream.migration.server import Server, is_refused, memory_of
from kvstream.rdb.payload import restore, restore_functions
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Loss
from kvstream.remote.connection import PAGE_MIN, Connection, Words, next_page, raise_first_error
from kvstream.remote.replies import id_or_none, members, unix_ms
from kvstream.types.ids import MAX_ID, StreamID
from kvstream.types.images import (
    NEVER,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    PendingImage,
    QueueRow,
    StreamState,
)

PAGE = 10_000
"""Pending entries of one reply."""
PLAUSIBLE_MS = 60_000
"""How far a moment may be from the server's TIME: if further, its entry was delivered again."""
NOBODY_MS = -1
"""The idle time of an entry that XNACK has released."""

RawPending = list[Any]
"""One row of XPENDING: ID, consumer, idle time, deliveries."""


def page_words(key: bytes, group: bytes, start: bytes) -> Words:
    """Return the XPENDING command for the pending entries from an ID on."""
    return ("XPENDING", key, group, start, "+", PAGE)


class PendingPages:
    """Reads the pending entries of one group."""

    def __init__(
        self, connection: Connection, key: bytes, group: bytes, known: Mapping[PackedID, int]
    ) -> None:
        """``known``: exact delivery times of some entries."""
        self.inexact = False
        """Whether a time was computed from the server's clock."""
        self._connection = connection
        self._key = key
        self._group = group
        self._known = dict(known)

    def images(self, page: list[RawPending], now_ms: int) -> Iterator[PendingImage]:
        """Yield all pending entries, given the first page and the server's time of it."""
        yield from self._images(page, now_ms)
        while len(page) == PAGE:
            last = page[-1]
            words = page_words(self._key, self._group, last[0])
            page, time = raise_first_error(self._connection.ask_all([words, ("TIME",)]))
            now_ms = unix_ms(time)
            above = page[1:] if page and page[0][0] == last[0] else page
            yield from self._images(page, now_ms, above)

    def _images(
        self, page: list[RawPending], clock_ms: int, new: list[RawPending] | None = None
    ) -> Iterator[PendingImage]:
        now_ms = self._moment(page, clock_ms)
        for text, owner, idle_ms, deliveries in page if new is None else new:
            eid = packed_id(text)
            if idle_ms == NOBODY_MS and not owner:
                yield PendingImage(eid, None, 0, deliveries)
                continue
            time_ms = self._known.get(eid, now_ms - idle_ms)
            yield PendingImage(eid, owner, time_ms, deliveries)
        if page:
            text, _, idle_ms, _ = page[-1]
            self._known = {packed_id(text): now_ms - idle_ms} if idle_ms > 0 else {}

    def _moment(self, page: list[RawPending], clock_ms: int) -> int:
        """Return the server's time at which a page was made."""
        for text, _, idle_ms, _ in page:
            time_ms: int | None = self._known.get(packed_id(text))
            # A delivery in the future has idle time 0 as well.
            if time_ms is None or idle_ms <= 0:
                continue
            if abs(time_ms + idle_ms - clock_ms) < PLAUSIBLE_MS:
                return time_ms + int(idle_ms)
        self.inexact = self.inexact or any(idle_ms != NOBODY_MS for _, _, idle_ms, _ in page)
        return clock_ms


def export_words(key: bytes, *behind: bytes) -> Words:
    """Return the command for what a stream has as a queue, or the page behind a cursor."""
    option: Words = ("BEHIND", *behind) if behind else ()
    return ("KVSTREAM.QUEUE", "EXPORT", key, *option)


def queue_rows(connection: Connection, key: bytes, page: list[Any]) -> list[QueueRow]:
    """Return what a stream has as a queue, given the first page of it."""
    cursor, flat = page
    while cursor:
        cursor, more = connection.ask(*export_words(key, cursor))
        flat += more
    return list(zip(flat[::2], flat[1::2], strict=True))


def id_text(eid: PackedID) -> bytes:
    """Return an ID in its text form."""
    return bytes(StreamID.unpack(eid))


INEXACT_MS = 20
"""Error bound of a time that is computed from the server's clock."""


class PagedStream(Content):
    """A stream that is read once by commands, nodes first."""

    tells_counters = False  # servers before 7.0 do not

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        *,
        after: StreamID | None = None,
        counted: int = 0,
        has_queues: bool = False,
    ) -> None:
        """``after``, ``counted``: the entries up to that ID were read before, and their number.

        ``has_queues``: the server has KVSTREAM.QUEUE.
        """
        super().__init__()
        self._connection = connection
        self._key = key
        self._count = counted
        self._after = after
        self._exports = [export_words(key)] if has_queues else []
        self._is_read = False
        self._state: StreamState | None = None

    def _read(self) -> Iterator[NodeImage]:
        return nodes_of(self._entries())

    def state(self) -> StreamState:
        """Return the state at the time of the last page; if no page was read, the state now."""
        if self._state is None:
            self._ask_state()
        assert self._state is not None
        return self._state

    # --- entries --------------------------------------------------------------------------------

    def _entries(self) -> Iterator[RawEntry]:
        self._is_read = True
        start: bytes | None = b"-" if self._after is None else _behind(bytes(self._after))
        count = PAGE_MIN
        while start is not None:
            words = ("XRANGE", self._key, start, "+", "COUNT", count)
            entries = _entries_of(self._connection.ask(*words))
            if len(entries) < count:
                self._count += len(entries)
                start = _behind(entries[-1][0]) if entries else start
                yield from entries
                entries = self._ask_state(start)
                if not entries:
                    return
            self._count += len(entries)
            start, count = _behind(entries[-1][0]), next_page([flat for _, flat in entries])
            yield from entries

    # --- the state ------------------------------------------------------------------------------

    def _ask_state(self, behind: bytes | None = None) -> list[RawEntry]:
        """Read the state, or return the entries that were added after those already read."""
        connection, key = self._connection, self._key
        names = [members(group)["name"] for group in connection.ask("XINFO", "GROUPS", key)]
        full: Words = ("XINFO", "STREAM", key, "FULL", "COUNT", 1)
        more: list[Words] = [("XRANGE", key, behind, "+", "COUNT", PAGE_MIN)] if behind else []
        pending = [page_words(key, name, b"-") for name in names]
        replies = connection.ask_at_once([("TIME",), full, *more, *pending, *self._exports])
        now_ms, info = unix_ms(replies[0]), members(replies[1])
        if more and replies[2]:
            return _entries_of(replies[2])
        first = 2 + len(more)
        pages = dict(zip(names, replies[first : first + len(names)], strict=True))
        self._state = self._state_of(info, pages, now_ms)
        if self._exports:
            self._state.queue = queue_rows(connection, key, replies[-1])
        if self._is_read and self._state.length != self._count:
            self.corrections.append(
                f"the stream was changed while it was read: {self._count} entries came, "
                f"{self._state.length} were there at the end"
            )
        return []

    def _state_of(
        self, info: Mapping[str, Any], pages: Mapping[bytes, list[Any]], now_ms: int
    ) -> StreamState:
        groups = [
            self._group_of(members(raw), pages, now_ms)
            for raw in info["groups"]
            if members(raw)["name"] in pages
        ]
        return StreamState(
            length=info["length"],
            last=StreamID.parse(info["last-generated-id"]),
            first=id_or_none(info.get("recorded-first-entry-id")),
            max_deleted=id_or_none(info.get("max-deleted-entry-id")),
            entries_added=info.get("entries-added"),
            groups=sorted(groups, key=lambda group: group.name),
            idempotency=self._idempotency_of(info),
        )

    def _group_of(
        self, info: Mapping[str, Any], pages: Mapping[bytes, list[Any]], now_ms: int
    ) -> GroupImage:
        group = GroupImage(
            info["name"], StreamID.parse(info["last-delivered-id"]), info.get("entries-read")
        )
        known = dict(_exact_times(info))
        group.consumers = sorted(map(_consumer_of, map(members, info["consumers"])))
        reading = PendingPages(self._connection, self._key, group.name, known)
        for each in reading.images(pages[group.name], now_ms):
            group.pending.add(*each)
            if each.owner is None:
                group.nacked.append(each.id)
        if reading.inexact:
            self.inexact_ms = INEXACT_MS
        if len(group.nacked) > 1:
            text = (
                "the order of redelivery of entries released by XNACK: no command returns it, "
                "they are redelivered in the order of their IDs"
            )
            self.notes.append(Loss("nacked", len(group.nacked), text))
        return group

    def _idempotency_of(self, info: Mapping[str, Any]) -> IdempotencyImage | None:
        if "idmp-duration" not in info:
            return None
        if info.get("iids-tracked"):
            text = "idempotent IDs remembered of producers: no command returns them"
            self.notes.append(Loss("idempotency", info["iids-tracked"], text))
        return IdempotencyImage(
            info["idmp-duration"],
            info["idmp-maxsize"],
            iids_added=info.get("iids-added", 0),
            iids_duplicates=info.get("iids-duplicates", 0),
        )


def outline(connection: Connection, key: bytes, has_queues: bool = False) -> Outline:
    """Return the outline of a stream without reading its entries."""
    stream = PagedStream(connection, key, has_queues=has_queues)
    state = stream.state()
    return Outline(state.length, partial(memory_of, connection, key), state, stream.notes)


def read_range(
    connection: Connection, key: bytes, first: PackedID, last: PackedID
) -> Iterator[Page]:
    """Yield the pages of entries from one ID to another."""
    start: bytes | None = id_text(first)
    count = PAGE_MIN
    while start is not None:
        words = ("XRANGE", key, start, id_text(last), "COUNT", count)
        entries = _entries_of(connection.ask(*words))
        if entries:
            ids = [packed_id(eid) for eid, _ in entries]
            yield ids, [encode_flat(flat)[0] for _, flat in entries]
        if len(entries) < count or ids[-1] >= last:
            return
        start, count = _behind(entries[-1][0]), next_page([flat for _, flat in entries])


def _entries_of(reply: list[Any] | None) -> list[RawEntry]:
    return [(eid, flat) for eid, flat in reply or ()]


def _behind(text: bytes) -> bytes | None:
    """Return the ID after one, None after the greatest: servers before 6.2 have no ``(id``."""
    if text == b"-":
        return text
    eid = StreamID.parse(text)
    return None if eid == MAX_ID else bytes(eid.next())


def _exact_times(group: Mapping[str, Any]) -> Iterator[tuple[PackedID, int]]:
    """Yield the delivery times of pending entries in a group of XINFO STREAM FULL."""
    for eid, _, time_ms, _ in group["pending"]:
        yield packed_id(eid), time_ms
    for consumer in map(members, group["consumers"]):
        for eid, time_ms, _ in consumer["pending"]:
            yield packed_id(eid), time_ms


def _consumer_of(info: Mapping[str, Any]) -> ConsumerImage:
    """Return a consumer; Redis before 7.2 has no active time, so the seen time is used."""
    seen_ms = info["seen-time"]
    active_ms = info.get("active-time", seen_ms)
    return ConsumerImage(info["name"], seen_ms, NEVER if active_ms is None else active_ms)


DUMP_BYTES_MAX = 64 << 20
"""Memory of a stream above which it is read by pages, if that loses nothing: DUMP is one reply and
blocks the server."""
_EXPIRETIME = (7, 0)
_ONLY_DUMP_HAS_ALL = (8, 6)
"""The first version with data that only DUMP returns: idempotent IDs."""


class ServerSource:
    """A server that is read. Keys that are added meanwhile may be missed."""

    ranged = True

    def __init__(self, server: Server, dump_bytes_max: int = DUMP_BYTES_MAX) -> None:
        self.remarks: list[str] = []
        self._dump_bytes_max = dump_bytes_max
        if server.is_cluster:
            self.remarks.append("this node of a cluster has only some of the keys")
        self._server = server
        self.may_lose = server.about.version >= _ONLY_DUMP_HAS_ALL
        self._dumps = not self.may_lose or self._has_dump()
        """Whether this user may run DUMP, as far as it is known."""
        self.has_queues = server.has_queues

    def close(self) -> None:
        self._server.close()

    def functions(self) -> list[bytes]:
        """Return the libraries; none if the server has no functions or does not show them."""
        try:
            return restore_functions(self._server.connection(0).ask("FUNCTION", "DUMP"))
        except RequestError as error:
            if not is_refused(error):
                raise
            if self._server.about.version >= HAS_FUNCTIONS:
                self._remark(f"the functions cannot be read, and are not migrated: {error}")
            return []

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        return find_refused_by(self._server, libraries, self.functions() if libraries else [])

    def _has_dump(self) -> bool:
        """Ask for a key that does not exist: losses are reported before the first write.

        A user who may read other keys alone is refused the key, and not the command.
        """
        try:
            connection = self._server.connection(self._server.place.database or 0)
            connection.ask("DUMP", STAGED_PREFIX + b"probe")
        except RequestError as error:
            return not is_refused(error) or "command" not in str(error)
        return True

    def note_rest(self) -> None:
        """Add remarks about what is neither a key nor a library, and is never migrated."""
        connection = self._server.connection(self._server.place.database or 0)
        with suppress(RequestError):
            if scripts := connection.info("memory").get("number_of_cached_scripts"):
                self._remark(
                    f"scripts that the server keeps ({scripts}) are not migrated: clients load "
                    "them again"
                )
        with suppress(RequestError):
            if len(users := connection.ask("ACL", "USERS")) > 1:
                self._remark(f"users of the server ({len(users)}) are not migrated: see ACL LIST")

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def items(self, selection: Selection) -> Iterator[Item]:
        for db in self._server.databases():
            if selection.has_database(db):
                yield from self._items_of(db, selection)

    def size(self, selection: Selection) -> int | None:
        """Return the number of entries of all streams, by one more scan of the keys."""
        return sum(
            length
            for db in self._server.databases()
            if selection.has_database(db)
            for length in self._lengths(db, selection)
        )

    def _lengths(self, db: int, selection: Selection) -> Iterator[int]:
        connection = self._server.connection(db)
        for keys in self._pages(db, selection):
            commands = [("TYPE", key) for key in keys]
            kinds = raise_first_error(connection.ask_all(commands)) if keys else []
            streams = [key for key, kind in zip(keys, kinds, strict=True) if kind == b"stream"]
            if streams:
                replies = connection.ask_all([("XLEN", key) for key in streams])
                yield sum(reply for reply in replies if isinstance(reply, int))

    def position(self) -> int | None:
        return None

    def item(self, db: int, key: bytes) -> Item | None:
        if not self._server.has_database(db):
            return None
        return next(self._describe(db, [key]), None)

    def _items_of(self, db: int, selection: Selection) -> Iterator[Item]:
        for keys in self._pages(db, selection):
            yield from self._describe(db, keys)

    def _pages(self, db: int, selection: Selection) -> Iterator[list[bytes]]:
        """Yield pages of the selected keys of a database."""
        return self._server.connection(db).key_pages(wanted=partial(selection.has, db))

    def _describe(self, db: int, keys: list[bytes]) -> Iterator[Item]:
        """Yield items with type and expiry; keys that no longer exist are left out."""
        connection = self._server.connection(db)
        exact = self._server.about.version >= _EXPIRETIME
        word = "PEXPIRETIME" if exact else "PTTL"
        commands: list[Words] = [("TIME",)]
        for key in keys:
            commands += [("TYPE", key), (word, key)]
        now_ms, *replies = raise_first_error(connection.ask_all(commands)) if keys else [None]
        base_ms = 0 if exact or now_ms is None else unix_ms(now_ms)
        for key, kind, left_ms in zip(keys, replies[::2], replies[1::2], strict=True):
            if kind == b"none":
                continue
            expire_at_ms = base_ms + left_ms if left_ms > 0 else 0
            yield self._item(db, key, kind.decode(), expire_at_ms, 0 if exact else INEXACT_MS)

    def _item(self, db: int, key: bytes, kind: str, expire_at_ms: int, inexact_ms: int) -> Item:
        connection = self._server.connection(db)
        item = Item(db, key, kind, expire_at_ms, inexact_ms, rereadable=True)
        if kind == STREAM:
            item.stream = partial(self._stream, connection, key)
            item.read_range = partial(read_range, connection, key)
            item.outline = partial(self._outline, connection, key)
        elif kind == STRING:
            item.value = partial(connection.ask, "GET", key)
        return item

    def _stream(self, connection: Connection, key: bytes) -> Content:
        if self._dumps and self._is_dumped(connection, key):
            content = self._dump(connection, key)
            if content is not None:
                return content
        return PagedStream(connection, key, has_queues=self.has_queues)

    def _is_dumped(self, connection: Connection, key: bytes) -> bool:
        if memory_of(connection, key) <= self._dump_bytes_max:
            return True
        return self._server.about.version >= _ONLY_DUMP_HAS_ALL

    def _dump(self, connection: Connection, key: bytes) -> Content | None:
        """Return a stream by DUMP; None if that is refused, and then it is not tried again.

        What it has as a queue is read in the same transaction, but for pages behind the first.
        """
        page = connection.ask(*export_words(key)) if self.has_queues else [b"", []]
        try:
            if page[1]:
                words: list[Words] = [("DUMP", key), export_words(key), ("XINFO", "STREAM", key)]
                payload, page, before = connection.ask_at_once(words)
            else:
                payload, before = connection.ask("DUMP", key), None
        except RequestError as error:
            self._dumps = False
            if not is_refused(error):
                raise
            return None
        if payload is None:
            raise key_gone(key)
        reading = restore(payload)
        if not isinstance(reading, StreamReading):
            raise RequestError(f"{key!r} was replaced by another type meanwhile: run again")
        rows = queue_rows(connection, key, page) if self.has_queues else None
        if page[0] and connection.ask("XINFO", "STREAM", key) != before:
            reading.corrections.append(
                "the stream was changed while its queue was read in pages: run verify"
            )
        return ReadStream(reading, rows)

    def _outline(self, connection: Connection, key: bytes) -> Outline:
        """Return the outline of a stream; a DUMP loses nothing."""
        content = outline(connection, key, self.has_queues)
        if self._dumps and self._is_dumped(connection, key):
            return content._replace(notes=[])
        return content
