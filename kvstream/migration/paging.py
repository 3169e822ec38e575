"""A stream of a live server read by commands: XRANGE by pages, then XINFO STREAM FULL and XPENDING.

This is the way where DUMP is refused, or would be one reply of hundreds of megabytes. The state is
asked for in one transaction with what lies behind the last entry read, again until that is nothing:
so entries and state are of one moment, but for what was deleted while the entries were read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kvstream.errors import NoSuchKey, RequestError
from kvstream.ids import MAX_ID, StreamID
from kvstream.images import (
    NEVER,
    ConsumerImage,
    GroupImage,
    IdempotencyImage,
    NodeImage,
    PackedID,
    StreamState,
)
from kvstream.layout.values import encode_flat
from kvstream.migration.items import Outline, Page
from kvstream.migration.nodes import RawEntry, nodes_of, packed_id
from kvstream.migration.pending import PendingPages, id_text, page_words, unix_ms
from kvstream.rdb.targets import Loss
from kvstream.remote.connection import Connection, Words
from kvstream.remote.replies import members

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
