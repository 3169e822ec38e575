"""A stream of a live server read by commands: XRANGE by pages, then XINFO STREAM FULL and XPENDING.

This is the way where DUMP is refused, or would be one reply of hundreds of megabytes. The state is
asked for in one transaction with what lies behind the last entry read, again until that is nothing:
so entries and state are of one moment, but for what was deleted while the entries were read.

Streams of a live server: by DUMP, or by commands where that is refused or too large.

A live server: its connections, one for each database, and what it says of itself.

It knows how to ask, and neither what is asked for nor why.

What is pending in a group of a server, by pages of XPENDING, with exact times.

XPENDING tells how long ago an entry was delivered, and not when. All of one reply is counted from
one moment; an entry whose time is known exactly, from XINFO STREAM FULL or from the page before,
tells what moment that was. Where none is known the server's TIME is taken, a few milliseconds off.

A stream put aside in a temporary file, so that its state is known before its entries.

Sources give nodes first and the state last; a target that is written by commands needs it the other
way round, and one that takes a DUMP must know how long that is. Small streams stay in memory.

::

    spool := (length(u32) node)*
    node  := msgpack [first names last appended size ids values]

How much groups have read, where a source's format does not tell: Redis 5.0 to 6.2.

Redis works it out at both ends of a stream and gives up in between. Here all entries pass by: what
lies up to the last ID that a group was given is what it has read, as such a source knows of no
entries but those that are there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, Any, Self

import msgpack

from kvstream.errors import KVStreamError, NoSuchKey, RequestError
from kvstream.layout.values import encode_flat
from kvstream.migration.items import (
    STREAM,
    STRING,
    Content,
    Item,
    Outline,
    Page,
    RawEntry,
    ReadStream,
    Selection,
    nodes_of,
    packed_id,
)
from kvstream.migration.places import Place
from kvstream.rdb.payload import restore
from kvstream.rdb.streams import StreamReading
from kvstream.rdb.versions import Loss, Target, target_of
from kvstream.remote.connection import Connection, Words, connect
from kvstream.remote.replies import members, sections_of
from kvstream.types.ids import MAX_ID, StreamID
from kvstream.types.images import (
    ID_BYTES,
    NEVER,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    PendingImage,
    StreamState,
)

MEMORY_BYTES = 8 << 20
"""What is kept in memory; more goes into a file."""
_LENGTH = Struct(">I")


def temporary() -> IO[bytes]:
    """Return a file in memory, or on disk where it grows; whoever has it closes it."""
    return SpooledTemporaryFile(MEMORY_BYTES, prefix="kvstream-migrate-")


class _PutAside:
    """What is in a temporary file for as long as the block goes."""

    _file: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Spool(_PutAside):
    """The nodes of a stream, to be read any number of times, and its state."""

    def __init__(self, content: Content) -> None:
        self._file = temporary()
        self.node_count = self.entries = 0
        try:
            for node in content.nodes():
                self._put(node)
            self.state: StreamState = content.state()
        except BaseException:
            self._file.close()
            raise

    def _put(self, node: NodeImage) -> None:
        parts = [node.first, node.names, node.last, node.appended, node.size]
        packed: bytes = msgpack.packb([*parts, b"".join(node.ids), node.values])
        self._file.write(_LENGTH.pack(len(packed)) + packed)
        self.node_count += 1
        self.entries += len(node.ids)

    def nodes(self) -> Iterator[NodeImage]:
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            packed = self._file.read(*_LENGTH.unpack(head))
            first, names, last, appended, size, joined, values = msgpack.unpackb(packed)
            ids = [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]
            yield NodeImage(first, tuple(names), ids, values, appended, size, last)

    def ids(self) -> Iterator[PackedID]:
        """Yield the IDs of all entries."""
        for node in self.nodes():
            yield from node.ids


class ChunkFile(_PutAside):
    """Chunks in a temporary file: how long they are together is known before they are sent."""

    def __init__(self, chunks: Iterable[bytes], most: int) -> None:
        """Take chunks until there are more than ``most`` bytes of them."""
        self._file = temporary()
        self.size = 0
        try:
            for chunk in chunks:
                self._file.write(chunk)
                self.size += len(chunk)
                if self.size > most:
                    break
        except BaseException:
            self._file.close()
            raise

    def chunks(self, size: int = 1 << 20) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(size):
            yield chunk


_PAGE_BYTES = 4096 * ID_BYTES


def count_read(state: StreamState, pages: Iterable[Sequence[PackedID]]) -> None:
    """Let each group of a state know how many entries it has read, from the IDs of all of them.

    Nothing is changed where the source has told it. A group beyond the last entry stays unknown.
    """
    if state.entries_added is not None:
        return
    waiting = iter(sorted(state.groups, key=lambda group: group.last_delivered))
    group: GroupImage | None = next(waiting, None)
    passed, last = 0, state.last
    for ids in pages:
        while group is not None and group.last_delivered.packed < ids[-1]:
            group.entries_read = passed + bisect_right(ids, group.last_delivered.packed)
            group = next(waiting, None)
        passed += len(ids)
    while group is not None:
        group.entries_read = passed if group.last_delivered <= last else None
        group = next(waiting, None)


class CountedGroups:
    """Passes a stream on, and counts what its groups have read where it does not tell."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._ids = None if content.tells_counters else temporary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ids is not None:
            self._ids.close()

    def nodes(self) -> Iterator[NodeImage]:
        for node in self._content.nodes():
            if self._ids is not None:
                self._ids.write(b"".join(node.ids))
            yield node

    def state(self) -> StreamState:
        state = self._content.state()
        if self._ids is not None:
            count_read(state, self._pages())
        return state

    def _pages(self) -> Iterator[list[PackedID]]:
        assert self._ids is not None
        self._ids.seek(0)
        while packed := self._ids.read(_PAGE_BYTES):
            yield [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]


PAGE = 10_000
"""Pending entries of one reply."""
PLAUSIBLE_MS = 60_000
"""How far the moment of a page may lie from the server's TIME: beyond, the entry that told it has
been delivered again meanwhile."""
NOBODY_MS = -1
"""The idle time of an entry that XNACK gave back."""

RawPending = list[Any]
"""One row of XPENDING: ID, consumer, idle time, deliveries."""


def page_words(key: bytes, group: bytes, start: bytes) -> Words:
    """Return the command for the pending entries from an ID on."""
    return ("XPENDING", key, group, start, "+", PAGE)


class PendingPages:
    """The pending entries of one group."""

    def __init__(
        self, connection: Connection, key: bytes, group: bytes, known: Mapping[PackedID, int]
    ) -> None:
        """``known``: exact times of delivery of some of them."""
        self.inexact = False
        """Whether a time had to be calculated from the server's clock."""
        self._connection = connection
        self._key = key
        self._group = group
        self._known = dict(known)

    def images(self, page: list[RawPending], now_ms: int) -> Iterator[PendingImage]:
        """Yield all of them, given the first page and the server's time of it."""
        yield from self._images(page, now_ms)
        while len(page) == PAGE:
            last = page[-1]
            words = page_words(self._key, self._group, last[0])
            page, time = self._connection.ask_all([words, ("TIME",)])
            for reply in (page, time):
                if isinstance(reply, Exception):
                    raise reply
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
        """Return the server's time from which a page counts."""
        for text, _, idle_ms, _ in page:
            time_ms: int | None = self._known.get(packed_id(text))
            # A delivery that lies in the future counts as idle 0, and tells nothing.
            if time_ms is None or idle_ms <= 0:
                continue
            if abs(time_ms + idle_ms - clock_ms) < PLAUSIBLE_MS:
                return time_ms + int(idle_ms)
        self.inexact = self.inexact or any(idle_ms != NOBODY_MS for _, _, idle_ms, _ in page)
        return clock_ms


def unix_ms(time: list[bytes]) -> int:
    """Return the milliseconds of TIME's reply."""
    seconds, microseconds = map(int, time)
    return seconds * 1000 + microseconds // 1000


def id_text(eid: PackedID) -> bytes:
    """Return an ID as commands have it."""
    return bytes(StreamID.unpack(eid))


PAGE_MIN, PAGE_MAX = 10, 2000
"""Entries of one reply: the first, and the most."""
PAGE_BYTES = 4 << 20
"""What one reply may hold in about, so that large entries come few at a time."""
PAGE_GROWTH = 4
"""How many times longer than the last a page may be: large entries may follow small ones."""

INEXACT_MS = 20
"""By how much a time may be off that is counted back from the server's clock."""


class PagedStream:
    """A stream by its key; read once, nodes first."""

    tells_counters = False  # servers before 7.0 do not

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        *,
        after: StreamID | None = None,
        counted: int = 0,
    ) -> None:
        """``after``: the entries up to there, so many, were read by others."""
        self.notes: list[Loss] = []
        self.corrections: list[str] = []
        self.inexact_ms = 0
        self._connection = connection
        self._key = key
        self._count = counted
        self._after = after
        self._is_read = False
        self._state: StreamState | None = None

    def nodes(self) -> Iterator[NodeImage]:
        return nodes_of(self._entries())

    def state(self) -> StreamState:
        """Return the state of the moment in which the last page was read, or of now."""
        if self._state is None:
            self._ask_state()
        assert self._state is not None  # of a moment that others' entries do not end
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
            start, count = _behind(entries[-1][0]), next_page(entries)
            yield from entries

    # --- the state ------------------------------------------------------------------------------

    def _ask_state(self, behind: bytes | None = None) -> list[RawEntry]:
        """Take the state; or return entries that have come behind those read."""
        connection, key = self._connection, self._key
        names = [members(group)["name"] for group in connection.ask("XINFO", "GROUPS", key)]
        full: Words = ("XINFO", "STREAM", key, "FULL", "COUNT", 1)
        more: list[Words] = [("XRANGE", key, behind, "+", "COUNT", PAGE_MIN)] if behind else []
        pending = [page_words(key, name, b"-") for name in names]
        replies = connection.ask_at_once([("TIME",), full, *more, *pending])
        now_ms, told = unix_ms(replies[0]), members(replies[1])
        if more and replies[2]:
            return _entries_of(replies[2])
        pages = dict(zip(names, replies[2 + len(more) :], strict=True))
        self._state = self._state_of(told, pages, now_ms)
        if self._is_read and self._state.length != self._count:
            self.corrections.append(
                f"the stream was changed while it was read: {self._count} entries came, "
                f"{self._state.length} were there at the end"
            )
        return []

    def _state_of(
        self, told: Mapping[str, Any], pages: Mapping[bytes, list[Any]], now_ms: int
    ) -> StreamState:
        groups = [
            self._group_of(members(raw), pages, now_ms)
            for raw in told["groups"]
            if members(raw)["name"] in pages
        ]
        return StreamState(
            length=told["length"],
            last=StreamID.parse(told["last-generated-id"]),
            first=_id_or_none(told.get("recorded-first-entry-id")),
            max_deleted=_id_or_none(told.get("max-deleted-entry-id")),
            entries_added=told.get("entries-added"),
            groups=sorted(groups, key=lambda group: group.name),
            idempotency=self._idempotency_of(told),
        )

    def _group_of(
        self, told: Mapping[str, Any], pages: Mapping[bytes, list[Any]], now_ms: int
    ) -> GroupImage:
        group = GroupImage(
            told["name"], StreamID.parse(told["last-delivered-id"]), told.get("entries-read")
        )
        known = dict(_exact_times(told))
        group.consumers = sorted(map(_consumer_of, map(members, told["consumers"])))
        reading = PendingPages(self._connection, self._key, group.name, known)
        for each in reading.images(pages[group.name], now_ms):
            group.pending.add(*each)
            if each.owner is None:
                group.nacked.append(each.id)
        if reading.inexact:
            self.inexact_ms = INEXACT_MS
        if len(group.nacked) > 1:
            self._note(
                "nacked",
                len(group.nacked),
                "the order in which entries given back are handed out again: no command tells it, "
                "they come in the order of their IDs",
            )
        return group

    def _idempotency_of(self, told: Mapping[str, Any]) -> IdempotencyImage | None:
        if "idmp-duration" not in told:
            return None
        if told.get("iids-tracked"):
            self._note(
                "idempotency",
                told["iids-tracked"],
                "idempotent IDs remembered of producers: no command tells them",
            )
        return IdempotencyImage(
            told["idmp-duration"],
            told["idmp-maxsize"],
            iids_added=told.get("iids-added", 0),
            iids_duplicates=told.get("iids-duplicates", 0),
        )

    def _note(self, name: str, count: int, text: str) -> None:
        self.notes.append(Loss(name, count, text))


def outline(connection: Connection, key: bytes) -> Outline:
    """Return what a stream is, without its entries."""
    stream = PagedStream(connection, key)
    state = stream.state()
    return Outline(state.length, memory_of(connection, key), state, stream.notes)


def between(connection: Connection, key: bytes, first: PackedID, last: PackedID) -> Iterator[Page]:
    """Yield the entries from one ID to another, by pages."""
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
        start, count = _behind(entries[-1][0]), next_page(entries)


def memory_of(connection: Connection, key: bytes) -> int:
    """Return about how many bytes a key takes; 0 where the server does not tell."""
    try:
        return connection.ask("MEMORY", "USAGE", key) or 0
    except NoSuchKey:
        raise
    except RequestError:
        return 0


def next_page(entries: list[RawEntry]) -> int:
    """Return how many entries to ask for, by the size of those that came."""
    size = sum(sum(map(len, flat)) for _, flat in entries)
    fitting = PAGE_BYTES * len(entries) // max(size, 1)
    return max(1, min(PAGE_MAX, PAGE_GROWTH * len(entries), fitting))


def _entries_of(reply: list[Any] | None) -> list[RawEntry]:
    return [(eid, flat) for eid, flat in reply or ()]


def _behind(text: bytes) -> bytes | None:
    """Return the ID right above one, None at the greatest: servers before 6.2 know no ``(id``."""
    if text == b"-":
        return text
    eid = StreamID.parse(text)
    return None if eid == MAX_ID else bytes(eid.next())


def _id_or_none(text: bytes | None) -> StreamID | None:
    return None if text is None else StreamID.parse(text)


def _exact_times(told: Mapping[str, Any]) -> Iterator[tuple[PackedID, int]]:
    """Yield what XINFO STREAM FULL shows of pending entries: when they were delivered."""
    for eid, _, time_ms, _ in told["pending"]:
        yield packed_id(eid), time_ms
    for consumer in map(members, told["consumers"]):
        for eid, time_ms, _ in consumer["pending"]:
            yield packed_id(eid), time_ms


def _consumer_of(told: Mapping[str, Any]) -> ConsumerImage:
    """Return a consumer; before Redis 7.2 nothing tells when it was active: when it was seen."""
    seen_ms = told["seen-time"]
    active_ms = told.get("active-time", seen_ms)
    return ConsumerImage(told["name"], seen_ms, NEVER if active_ms is None else active_ms)


BULK_BYTES_MAX = 512 << 20
"""The longest value of a request where the server does not tell another: Redis's default."""
REPLY_S = 300.0
"""How long a reply is waited for: a RESTORE of half a gigabyte keeps a server busy."""

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class About:
    """What a server is."""

    name: str
    """``Redis``, ``Valkey`` or ``kvstream``."""
    version: Version
    """Of Redis, whose commands it has: what decides which may be sent."""
    shown: str
    target: Target
    """What it can hold."""


class Server:
    """A server that is read or written, by one thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._connections: dict[int, Connection] = {}
        self._clients: dict[int, Any] = {}
        self._raw: dict[int, Any] = {}
        self.about = self._about()
        self.bulk_bytes_max = self._bulk_bytes_max()
        self.is_cluster = "cluster" in self._mode
        """Whether it has only a part of the keys, and takes no others."""

    def connection(self, db: int) -> Connection:
        """Return the connection to a database; nothing is sent before the first command."""
        if db not in self._connections:
            client = connect(self.place.address, reply_s=REPLY_S)
            settings = client.connection_pool.connection_kwargs
            if self.place.user is not None:
                settings["username"] = self.place.user
            if self.place.password is not None:
                settings["password"] = self.place.password
            self._connections[db] = Connection(client, db)
            self._clients[db] = client
        return self._connections[db]

    def client(self, db: int) -> Any:
        """Return the client of redis-py below the connection to a database."""
        self.connection(db)
        return self._clients[db]

    def raw(self, db: int) -> Any:
        """Return a connection of redis-py, for requests that are sent in parts."""
        if db not in self._raw:
            self._raw[db] = self.client(db).connection_pool.make_connection()
        return self._raw[db]

    def close(self) -> None:
        for connection in self._raw.values():
            connection.disconnect()
        for connection in self._connections.values():
            connection.close()

    def databases(self) -> list[int]:
        """Return the databases in which there is a key."""
        told = sections_of(self.connection(0).ask("INFO", "keyspace")).get("keyspace", {})
        return sorted(int(name.removeprefix("db")) for name in told if name.startswith("db"))

    def _about(self) -> About:
        first = self.connection(self.place.database or 0)
        first.greet()
        told = sections_of(first.ask("INFO", "server")).get("server", {})
        self._mode = str(told.get("redis_mode") or told.get("server_mode") or "standalone")
        redis_version = str(told.get("redis_version", "0.0"))
        valkey = told.get("valkey_version")
        own = told.get("kvstream_version")
        name = "Valkey" if valkey else "kvstream" if own else "Redis"
        return About(
            name,
            _version(redis_version),
            f"{name} {valkey or own or redis_version}",
            target_of(redis_version, valkey=valkey is not None),
        )

    def _bulk_bytes_max(self) -> int:
        try:
            reply = self.connection(0).ask("CONFIG", "GET", "proto-max-bulk-len")
        except KVStreamError:  # hosted servers tell nobody
            return BULK_BYTES_MAX
        return int(reply[1]) if reply else BULK_BYTES_MAX


def _version(text: str) -> Version:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise RequestError(f"the server does not tell its version: {text!r}")
    return int(major), int(minor)


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
            item.between = partial(between, connection, key)
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
        found = outline(connection, key)
        if self._dumps and self._is_dumped(connection, key):
            return found._replace(notes=[])
        return found


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
