"""A consumer group on a server, with the calls of the library's ``Group`` that commands need."""

from collections.abc import Callable, Sequence

from kvstream.cli.remote import (
    duration,
    flag,
    id_block,
    id_word,
    id_words,
    milliseconds,
    option,
)
from kvstream.errors import NoGroup
from kvstream.operations.ack import NackMode
from kvstream.operations.delete import Outcome
from kvstream.operations.trim import RefPolicy
from kvstream.remote.connection import Connection, Word
from kvstream.remote.replies import (
    RemoteConsumerInfo,
    autoclaimed_of,
    claimed_of,
    consumer_info_of,
    group_info_of,
    pending_entries_of,
    pending_of,
    streams_of,
)
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    Entry,
    GroupInfo,
    HistoryEntry,
    PendingEntry,
    PendingSummary,
)


class RemoteGroup:
    """A consumer group, by its name."""

    def __init__(
        self,
        connection: Connection,
        key: bytes,
        name: bytes,
        count_after: Callable[[IDLike], int | None],
    ) -> None:
        """``count_after`` counts the entries of the stream after an ID."""
        self._connection = connection
        self._key = key
        self._count_after = count_after
        self.name = name

    def consumer(self, name: bytes) -> "RemoteConsumer":
        return RemoteConsumer(self._connection, self._key, self.name, name)

    # --- entries --------------------------------------------------------------------------------

    def ack(self, ids: Sequence[StreamID]) -> int:
        acknowledged: int = self._connection.do("XACK", self._key, self.name, *id_words(ids))
        return acknowledged

    def ack_delete(self, ids: Sequence[StreamID], *, ref_policy: RefPolicy) -> list[Outcome]:
        words = ("XACKDEL", self._key, self.name, str(ref_policy), *id_block(ids))
        return [Outcome(each) for each in self._connection.do(*words)]

    def nack(
        self, ids: Sequence[StreamID], *, mode: NackMode | str, retrycount: int | None, force: bool
    ) -> int:
        options = (*option("RETRYCOUNT", retrycount), *flag("FORCE", force))
        words = ("XNACK", self._key, self.name, str(mode), *id_block(ids), *options)
        released: int = self._connection.do(*words)
        return released

    def claim(
        self,
        consumer: bytes,
        ids: Sequence[StreamID],
        *,
        min_idle: float = 0,
        idle: float | None = None,
        time: float | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: StreamID | None = None,
    ) -> list[Entry] | list[BareEntry]:
        options: tuple[Word, ...] = (
            *duration("TIME", time),
            *duration("IDLE", idle),
            *option("RETRYCOUNT", retrycount),
            *flag("FORCE", force),
            *flag("JUSTID", justid),
            *option("LASTID", None if last_id is None else str(last_id)),
        )
        who = (self._key, self.name, consumer, milliseconds(min_idle))
        return claimed_of(self._connection.do("XCLAIM", *who, *id_words(ids), *options), justid)

    def autoclaim(
        self, consumer: bytes, min_idle: float, start: IDLike, *, count: int, justid: bool
    ) -> Claimed | ClaimedIDs:
        who = (self._key, self.name, consumer, milliseconds(min_idle))
        words = (*who, id_word(start), "COUNT", count, *flag("JUSTID", justid))
        return autoclaimed_of(self._connection.do("XAUTOCLAIM", *words), justid)

    # --- reading --------------------------------------------------------------------------------

    def pending(self) -> PendingSummary:
        return pending_of(self._connection.ask("XPENDING", self._key, self.name))

    def pending_range(
        self,
        start: IDLike = "-",
        end: IDLike = "+",
        count: int = 100,
        *,
        consumer: bytes | None = None,
        min_idle: float = 0,
    ) -> list[PendingEntry]:
        words = (
            *duration("IDLE", min_idle or None),
            id_word(start),
            id_word(end),
            count,
            *(() if consumer is None else (consumer,)),
        )
        return pending_entries_of(self._connection.ask("XPENDING", self._key, self.name, *words))

    def info(self) -> GroupInfo:
        for raw in self._connection.ask("XINFO", "GROUPS", self._key):
            info = group_info_of(raw)
            if info.name == self.name:
                return info
        raise NoGroup("the group was deleted meanwhile")

    def backlog(self) -> int | None:
        """Return the lag; if the server does not know it, count up to ``COUNTED_MAX`` entries."""
        info = self.info()
        return self._count_after(info.last_delivered_id) if info.lag is None else info.lag

    def consumers(self) -> Sequence[RemoteConsumerInfo]:
        reply = self._connection.ask("XINFO", "CONSUMERS", self._key, self.name)
        return sorted(map(consumer_info_of, reply), key=lambda info: info.name)

    # --- changes --------------------------------------------------------------------------------

    def set_id(self, start: IDLike, *, entries_read: int | None = None) -> None:
        options = option("ENTRIESREAD", entries_read)
        self._connection.do("XGROUP", "SETID", self._key, self.name, id_word(start), *options)

    def create_consumer(self, name: bytes) -> bool:
        return bool(self._connection.do("XGROUP", "CREATECONSUMER", self._key, self.name, name))

    def destroy(self) -> bool:
        return bool(self._connection.do("XGROUP", "DESTROY", self._key, self.name))


class RemoteConsumer:
    """A consumer, by its name."""

    def __init__(self, connection: Connection, key: bytes, group: bytes, name: bytes) -> None:
        self._connection = connection
        self._key = key
        self._who = (group, name)

    def read(self, count: int | None = None) -> Sequence[HistoryEntry]:
        options = option("COUNT", count)
        words = ("GROUP", *self._who, *options, "STREAMS", self._key, ">")
        return streams_of(self._connection.do("XREADGROUP", *words)).get(self._key, [])
