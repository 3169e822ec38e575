"""A database of a server, with the calls of the library's ``Store`` that commands need."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from kvstream.cli.remote import duration, flag, id_word, id_words, milliseconds, option
from kvstream.cli.remote.stream import RemoteStream, add_words
from kvstream.engine.coerce import Name, name_bytes
from kvstream.errors import InvalidArgument, KVStreamError, NoSuchKey, RequestError, WrongType
from kvstream.layout.values import FieldsLike
from kvstream.remote.connection import Connection, Word, Words
from kvstream.remote.replies import sections_of, stream_info_of, streams_of
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import Fault, HistoryEntry

T = TypeVar("T")

_JOB_PAUSE_S = 0.1
"""Pause before a background job of the server is asked about again."""


class KeyInfo(NamedTuple):
    """A key with its type, counters and expiry."""

    key: bytes
    type: str
    length: int | None
    """None, as the next two, if the key is no stream."""
    groups: int | None
    last_id: StreamID | None
    ttl: float | None
    """Seconds until the key expires; None if it does not."""


class RemoteStore:
    """A database of a server."""

    shared: ClassVar[bool] = True
    """Whether other clients write while it is open, so that a read may wait for them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    @property
    def db(self) -> int:
        return self._connection.db

    # --- streams --------------------------------------------------------------------------------

    def stream(self, key: Name) -> RemoteStream:
        return RemoteStream(self._connection, name_bytes(key))

    def atomically(self, keys: Sequence[bytes], work: Callable[["RemoteChanges"], T]) -> T:
        """Run all writes of ``work`` in one transaction, unless a client has changed ``keys``.

        ``work`` reads before it writes. If another client was faster, it runs again.
        """
        return self._connection.optimistically(keys, lambda words: work(RemoteChanges(words)))

    def read(
        self,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: float | None = None,
    ) -> Mapping[bytes, Sequence[HistoryEntry]]:
        """Read the entries after an ID of each stream; waits at most ``block`` seconds."""
        words = (*self._bounds(count, block), *_positions(streams))
        return streams_of(self._connection.ask("XREAD", *words))

    def read_group(
        self,
        group: bytes,
        consumer: bytes,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: float | None = None,
        *,
        noack: bool,
        claim_min_idle: float | None,
    ) -> Mapping[bytes, Sequence[HistoryEntry]]:
        """Read several streams as a consumer; waits at most ``block`` seconds."""
        words = (
            "GROUP",
            group,
            consumer,
            *self._bounds(count, block),
            *duration("CLAIM", claim_min_idle),
            *flag("NOACK", noack),
            *_positions(streams),
        )
        return streams_of(self._connection.do("XREADGROUP", *words))

    def _bounds(self, count: int | None, block: float | None) -> Words:
        return (*option("COUNT", count), *self._connection.block_words(block))

    # --- keys -----------------------------------------------------------------------------------

    def scan_keys(self, pattern: bytes | None = None) -> Iterator[bytes]:
        """Yield the keys; a key that exists all the while comes exactly once."""
        for page in self._connection.key_pages(*option("MATCH", pattern)):
            yield from page

    def key_infos(self, pattern: bytes | None) -> Iterator[KeyInfo]:
        """Yield the keys with type, counters and expiry: two round trips per page of keys."""
        for page in self._connection.key_pages(*option("MATCH", pattern)):
            about = self._asked([(word, key) for word in ("TYPE", "PTTL") for key in page])
            kinds = {key: about[at].decode() for at, key in enumerate(page)}
            ttls = dict(zip(page, about[len(page) :], strict=True))
            streams = [key for key in page if kinds[key] == "stream"]
            infos = self._asked([("XINFO", "STREAM", key) for key in streams])
            known = {key: info for key, info in zip(streams, infos, strict=True) if info}
            for key in page:
                if key in known:
                    info, ttl = stream_info_of(known[key]), _seconds(ttls[key])
                    last_id = info.last_generated_id
                    yield KeyInfo(key, "stream", info.length, info.groups, last_id, ttl)
                elif kinds[key] not in ("none", "stream"):
                    yield KeyInfo(key, kinds[key], None, None, None, _seconds(ttls[key]))

    def _asked(self, commands: Sequence[Words]) -> list[Any]:
        """Return the replies; None if the stream was deleted meanwhile."""
        replies = self._connection.ask_all(commands) if commands else []
        for reply in replies:
            if isinstance(reply, Exception) and not isinstance(reply, NoSuchKey | WrongType):
                raise reply
        return [None if isinstance(reply, Exception) else reply for reply in replies]

    def size(self) -> int:
        size: int = self._connection.ask("DBSIZE")
        return size

    def exists(self, key: bytes) -> bool:
        return bool(self._connection.ask("EXISTS", key))

    def type(self, key: bytes) -> str:
        kind: bytes = self._connection.ask("TYPE", key)
        return kind.decode()

    def delete(self, *keys: bytes) -> int:
        deleted: int = self._connection.do("UNLINK", *keys)
        return deleted

    def rename(self, source: bytes, target: bytes, *, replace: bool) -> bool:
        if replace:
            self._connection.do("RENAME", source, target)
            return True
        return bool(self._connection.do("RENAMENX", source, target))

    def expire(self, key: bytes, seconds: float) -> bool:
        return bool(self._connection.do("PEXPIRE", key, milliseconds(seconds)))

    def expire_at(self, key: bytes, unix_seconds: float) -> bool:
        return bool(self._connection.do("PEXPIREAT", key, milliseconds(unix_seconds)))

    def persist(self, key: bytes) -> bool:
        return bool(self._connection.do("PERSIST", key))

    def ttl(self, key: bytes) -> float | None:
        return _seconds(self._connection.ask("PTTL", key))

    # --- maintenance ----------------------------------------------------------------------------

    def check(self, *, repair: bool) -> list[Fault]:
        """Raise InvalidArgument: a server does not give out its files."""
        raise InvalidArgument(
            "check reads the files of a store, which a server does not give out: "
            "stop the server and use --store DIR"
        )

    def save(self) -> str:
        """Run BGSAVE, wait for its end, and return the server's directory."""
        self._connection.do("BGSAVE")
        self._await_job("rdb_bgsave_in_progress", "rdb_last_bgsave_status", "save")
        try:
            found = self._connection.ask("CONFIG", "GET", "dir")
        except KVStreamError:  # hosted servers do not allow CONFIG
            return "its directory"
        return os.fsdecode(found[1])

    def compact(self) -> None:
        """Run BGREWRITEAOF, and wait for its end."""
        if not self._connection.info("persistence").get("aof_enabled"):
            raise RequestError(
                "the server has no append-only file (appendonly no): there is nothing to compact"
            )
        self._connection.do("BGREWRITEAOF")
        self._await_job("aof_rewrite_in_progress", "aof_last_bgrewrite_status", "compaction")

    def size_on_disk(self) -> int:
        size: int = self._connection.info("persistence").get("aof_current_size", 0)
        return size

    def stats(self) -> dict[str, Any]:
        """Return the sections of INFO."""
        return sections_of(self._connection.ask("INFO"))

    def _await_job(self, running: str, status: str, job: str) -> None:
        while (info := self._connection.info("persistence")).get(running):
            time.sleep(_JOB_PAUSE_S)
        if info.get(status, "ok") != "ok":
            raise RequestError(f"the {job} has failed: see the log of the server")


def _positions(streams: Mapping[Name, IDLike]) -> Words:
    return ("STREAMS", *streams, *map(id_word, streams.values()))


def _seconds(pttl: int) -> float | None:
    """Return the seconds of PTTL; None if the key does not expire or exist."""
    return None if pttl < 0 else pttl / 1000


class RemoteChanges:
    """Writes that are sent in one transaction."""

    def __init__(self, words: list[Sequence[Word]]) -> None:
        self._words = words

    def add(
        self, stream: bytes, fields: FieldsLike, id: str = "*", maxlen: int | None = None
    ) -> None:
        self._words.append(add_words(stream, fields, id, option("MAXLEN", maxlen)))

    def expire(self, key: bytes, seconds: float) -> None:
        self._words.append(("PEXPIRE", key, milliseconds(seconds)))

    def persist(self, key: bytes) -> None:
        self._words.append(("PERSIST", key))

    def ack(self, stream: bytes, group: bytes, ids: Sequence[StreamID]) -> None:
        self._words.append(("XACK", stream, group, *id_words(ids)))

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None:
        self._words.append(("XGROUP", "SETID", stream, group, str(id)))

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None:
        self._words.append(("XGROUP", "DELCONSUMER", stream, group, consumer))
