"""A stream on a server, with the calls of the library's ``Stream`` that commands need."""

from collections.abc import Iterable, Iterator, Sequence

from kvstream.cli.remote import (
    flag,
    id_block,
    id_word,
    id_words,
    option,
    trim_words,
)
from kvstream.cli.remote.group import RemoteGroup
from kvstream.errors import BusyGroup, InvalidArgument, shown
from kvstream.layout.values import FieldPart, FieldsLike, flat_bytes, to_bytes
from kvstream.operations.delete import Outcome
from kvstream.operations.groups import text
from kvstream.operations.trim import RefPolicy
from kvstream.remote.connection import PAGE_MIN, Connection, Words, next_page
from kvstream.remote.replies import (
    entries_of,
    group_detail_of,
    group_info_of,
    id_or_none,
    members,
    stream_info_of,
    streams_of,
)
from kvstream.types.ids import IDLike, StreamID, range_end, range_start
from kvstream.types.records import Entry, GroupInfo, HistoryEntry, StreamDetail, StreamInfo

COUNTED_MAX = 10_000
"""Entries that are read in order to count them, if the server does not know their number."""


class RemoteStream:
    """A stream, by its key."""

    def __init__(self, connection: Connection, key: bytes) -> None:
        self._connection = connection
        self.key = key

    # --- writing --------------------------------------------------------------------------------

    def add(
        self,
        fields: FieldsLike,
        id: str = "*",
        *,
        maxlen: int | None = None,
        minid: StreamID | None = None,
        approximate: bool = False,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmp: tuple[FieldPart, FieldPart] | None = None,
        idmpauto: FieldPart | None = None,
        nomkstream: bool,
    ) -> StreamID | None:
        options = (
            *flag("NOMKSTREAM", nomkstream),
            *_idempotency_words(idmp, idmpauto),
            *trim_words(maxlen, minid, approximate, limit, ref_policy),
        )
        return id_or_none(self._connection.do(*add_words(self.key, fields, id, options)))

    def add_many(self, entries: Iterable[FieldsLike]) -> list[StreamID]:
        added = self._connection.do_all(add_words(self.key, fields) for fields in entries)
        return [StreamID.parse(eid) for eid in added]

    def trim(
        self,
        *,
        maxlen: int | None,
        minid: StreamID | None,
        approximate: bool,
        limit: int | None,
        ref_policy: RefPolicy | None,
    ) -> int:
        words = trim_words(maxlen, minid, approximate, limit, ref_policy)
        trimmed: int = self._connection.do("XTRIM", self.key, *words)
        return trimmed

    def delete(self, ids: Sequence[StreamID]) -> int:
        deleted: int = self._connection.do("XDEL", self.key, *id_words(ids))
        return deleted

    def delete_entries(self, ids: Sequence[StreamID], *, ref_policy: RefPolicy) -> list[Outcome]:
        reply = self._connection.do("XDELEX", self.key, str(ref_policy), *id_block(ids))
        return [Outcome(each) for each in reply]

    # --- reading --------------------------------------------------------------------------------

    def __len__(self) -> int:
        length: int = self._connection.ask("XLEN", self.key)
        return length

    def count_after(self, id: IDLike) -> int | None:
        """Return the number of entries after an ID; None if there are too many to count."""
        start = StreamID.parse(id)
        if start == StreamID(0, 0):
            return len(self)
        count = 0
        for _ in self.scan(f"({start}"):
            count += 1
            if count > COUNTED_MAX:
                return None
        return count

    def range(self, start: IDLike, end: IDLike, count: int | None = None) -> list[Entry]:
        bounds = (id_word(start), id_word(end), *option("COUNT", count))
        return entries_of(self._connection.ask("XRANGE", self.key, *bounds))

    def revrange(
        self, end: IDLike = "+", start: IDLike = "-", count: int | None = None
    ) -> list[Entry]:
        bounds = (id_word(end), id_word(start), *option("COUNT", count))
        return entries_of(self._connection.ask("XREVRANGE", self.key, *bounds))

    def scan(self, start: IDLike = "-", end: IDLike = "+") -> Iterator[Entry]:
        """Yield the entries from ``start`` to ``end``; a page holds fewer if they are large."""
        following, last = range_start(start), range_end(end)
        page = PAGE_MIN
        while True:
            entries = self.range(following, last, page)
            yield from entries
            if len(entries) < page or entries[-1].id >= last:
                return
            following = entries[-1].id.next()
            page = next_page([entry.flat for entry in entries])

    def read(
        self, after: IDLike, count: int | None = None, block: float | None = None
    ) -> Sequence[HistoryEntry]:
        """Return the entries after an ID; waits at most ``block`` seconds for them."""
        options = (*option("COUNT", count), *self._connection.block_words(block))
        where = ("STREAMS", self.key, id_word(after))
        reply = streams_of(self._connection.ask("XREAD", *options, *where))
        return reply.get(self.key, [])

    def info(self) -> StreamInfo:
        return stream_info_of(self._connection.ask("XINFO", "STREAM", self.key))

    def info_full(self, count: int) -> StreamDetail:
        words = ("XINFO", "STREAM", self.key, "FULL", "COUNT", count)
        values = members(self._connection.ask(*words))
        groups = [group_detail_of(group) for group in values["groups"]]
        return StreamDetail(self.info(), entries_of(values["entries"]), groups)

    # --- groups ---------------------------------------------------------------------------------

    def create_group(
        self, name: bytes, start: IDLike = "$", *, entries_read: int | None = None
    ) -> RemoteGroup:
        options = ("MKSTREAM", *option("ENTRIESREAD", entries_read))
        try:
            self._connection.do("XGROUP", "CREATE", self.key, name, id_word(start), *options)
        except BusyGroup:
            which = f"group {shown(text(name))} of stream {shown(text(self.key))}"
            raise BusyGroup(detail=which) from None
        return self.group(name)

    def group(self, name: bytes) -> RemoteGroup:
        return RemoteGroup(self._connection, self.key, name, self.count_after)

    def groups(self) -> list[GroupInfo]:
        reply = self._connection.ask("XINFO", "GROUPS", self.key)
        return sorted(map(group_info_of, reply), key=lambda info: info.name)


def add_words(key: bytes, fields: FieldsLike, id: str = "*", options: Words = ()) -> Words:
    """Return the words of XADD."""
    return ("XADD", key, *options, id, *flat_bytes(fields))


def _idempotency_words(
    idmp: tuple[FieldPart, FieldPart] | None, idmpauto: FieldPart | None
) -> Words:
    if idmp is not None and idmpauto is not None:
        raise InvalidArgument("syntax error, IDMP/IDMPAUTO specified multiple times")
    if idmp is not None:
        return ("IDMP", *map(to_bytes, idmp))
    return option("IDMPAUTO", None if idmpauto is None else to_bytes(idmpauto))
