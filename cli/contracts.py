"""What the commands need of a store, of its streams and of their groups.

Two have it: the library's own classes, for a store in a directory, and those of
``kvstream.cli.remote``, for one behind a server. No command knows which of them it works on. What
each call does is said where the library defines it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from kvstream.engine.coerce import Name
from kvstream.layout.values import FieldPart, FieldsLike
from kvstream.operations.ack import NackMode
from kvstream.operations.delete import Outcome
from kvstream.operations.trim import RefPolicy
from kvstream.types.ids import IDLike, StreamID
from kvstream.types.records import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    Entry,
    Fault,
    GroupInfo,
    HistoryEntry,
    PendingEntry,
    PendingSummary,
    StreamDetail,
    StreamInfo,
)

T = TypeVar("T")

IDList = Sequence[StreamID]


class AnyConsumerInfo(Protocol):
    """One consumer of a group; times in milliseconds."""

    @property
    def name(self) -> bytes: ...

    @property
    def pending(self) -> int: ...

    @property
    def idle(self) -> int: ...

    @property
    def inactive(self) -> int | None:
        """-1: never given anything; None: a server before Redis 7.2 does not tell."""
        ...


class AnyConsumer(Protocol):
    """One consumer of a group, as a benchmark reads through it."""

    def read(self, count: int | None = None) -> Sequence[HistoryEntry]: ...


class AnyGroup(Protocol):
    """A consumer group."""

    def ack(self, ids: IDList, /) -> int: ...

    def ack_delete(self, ids: IDList, /, *, ref_policy: RefPolicy) -> list[Outcome]: ...

    def nack(
        self, ids: IDList, /, *, mode: NackMode, retrycount: int | None, force: bool
    ) -> int: ...

    def claim(
        self,
        consumer: bytes,
        ids: IDList,
        /,
        *,
        min_idle: float = 0,
        idle: float | None = None,
        time: float | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: StreamID | None = None,
    ) -> list[Entry] | list[BareEntry]: ...

    def autoclaim(
        self, consumer: bytes, min_idle: float, start: IDLike, /, *, count: int, justid: bool
    ) -> Claimed | ClaimedIDs: ...

    def pending(self) -> PendingSummary: ...

    def pending_range(
        self,
        start: IDLike = "-",
        end: IDLike = "+",
        count: int = 100,
        *,
        consumer: bytes | None = None,
        min_idle: float = 0,
    ) -> list[PendingEntry]: ...

    def info(self) -> GroupInfo: ...

    def backlog(self) -> int | None:
        """Return the exact number of entries not yet delivered; None where it is not known."""
        ...

    def consumers(self) -> Sequence[AnyConsumerInfo]: ...

    def set_id(self, start: IDLike, /, *, entries_read: int | None = None) -> None: ...

    def consumer(self, name: bytes, /) -> AnyConsumer: ...

    def create_consumer(self, name: bytes, /) -> bool: ...

    def destroy(self) -> bool: ...


class AnyStream(Protocol):
    """A stream."""

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
    ) -> StreamID | None: ...

    def add_many(self, entries: Iterable[FieldsLike], /) -> list[StreamID]: ...

    def trim(
        self,
        *,
        maxlen: int | None,
        minid: StreamID | None,
        approximate: bool,
        limit: int | None,
        ref_policy: RefPolicy | None,
    ) -> int: ...

    def delete(self, ids: IDList, /) -> int: ...

    def delete_entries(self, ids: IDList, /, *, ref_policy: RefPolicy) -> list[Outcome]: ...

    def __len__(self) -> int: ...

    def count_after(self, id: IDLike, /) -> int | None:
        """Return the exact number of entries after an ID; None where it is not known."""
        ...

    def range(self, start: IDLike, end: IDLike, count: int | None = None) -> list[Entry]: ...

    def revrange(
        self, end: IDLike = "+", start: IDLike = "-", count: int | None = None
    ) -> list[Entry]: ...

    def scan(self, start: IDLike = "-", end: IDLike = "+") -> Iterator[Entry]: ...

    def read(
        self, after: IDLike, count: int | None = None, block: float | None = None
    ) -> Sequence[HistoryEntry]: ...

    def info(self) -> StreamInfo: ...

    def info_full(self, count: int, /) -> StreamDetail: ...

    def create_group(
        self, name: bytes, start: IDLike = "$", /, *, entries_read: int | None = None
    ) -> AnyGroup: ...

    def group(self, name: bytes, /) -> AnyGroup: ...

    def groups(self) -> list[GroupInfo]: ...


class Changes(Protocol):
    """Writes that are done together or not at all; none of them answers anything."""

    def add(
        self, stream: bytes, fields: FieldsLike, id: str = "*", maxlen: int | None = None
    ) -> None: ...

    def expire(self, key: bytes, seconds: float) -> None: ...

    def persist(self, key: bytes) -> None: ...

    def ack(self, stream: bytes, group: bytes, ids: IDList) -> None: ...

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None: ...

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None: ...


class Listed(NamedTuple):
    """A key as ``ls`` shows it."""

    key: bytes
    type: str
    info: StreamInfo | None
    """None where it is no stream."""
    ttl: float | None


class AnyStore(Protocol):
    """One database of a store."""

    @property
    def db(self) -> int: ...

    @property
    def shared(self) -> bool:
        """Whether others write while it is open, so that a read may wait for them."""
        ...

    def stream(self, key: Name, /) -> AnyStream: ...

    def atomically(self, keys: Sequence[bytes], work: Callable[[Changes], T], /) -> T:
        """Do all that ``work`` writes in one commit, as long as nobody else writes to ``keys``.

        ``work`` reads before it writes, and leaves no trace of its own: where another was faster it
        is run again.
        """
        ...

    def read(
        self,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: float | None = None,
        /,
    ) -> Mapping[bytes, Sequence[HistoryEntry]]: ...

    def read_group(
        self,
        group: bytes,
        consumer: bytes,
        streams: Mapping[Name, IDLike],
        count: int | None = None,
        block: float | None = None,
        /,
        *,
        noack: bool,
        claim_min_idle: float | None,
    ) -> Mapping[bytes, Sequence[HistoryEntry]]: ...

    def scan_keys(self, pattern: bytes | None = None, /) -> Iterator[bytes]: ...

    def listed(self, pattern: bytes | None, /) -> Iterator[Listed]: ...

    def size(self) -> int: ...

    def exists(self, key: bytes, /) -> bool: ...

    def type(self, key: bytes, /) -> str: ...

    def delete(self, *keys: bytes) -> int: ...

    def rename(self, source: bytes, target: bytes, /, *, replace: bool) -> bool: ...

    def expire(self, key: bytes, seconds: float, /) -> bool: ...

    def expire_at(self, key: bytes, unix_seconds: float, /) -> bool: ...

    def persist(self, key: bytes, /) -> bool: ...

    def ttl(self, key: bytes, /) -> float | None: ...

    def check(self, *, repair: bool) -> list[Fault]: ...

    def back_up(self, target: Path | None, /) -> str:
        """Write a consistent copy, and return where it is."""
        ...

    def compact(self) -> None: ...

    def size_on_disk(self) -> int: ...

    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a benchmark may write: what it leaves is removed."""

    store: AnyStore
    keys: tuple[bytes, bytes]
    """Of the streams that it may make."""
    told: str
    """What people are told of the place."""
    slow: bool = False
    """Whether each write waits for a disk."""


class Session(Protocol):
    """Where one command line works."""

    @property
    def path(self) -> Path:
        """The directory of the store; a usage error where there is none."""
        ...

    @property
    def wait_s(self) -> float:
        """How long to wait for a store that cannot be had at once."""
        ...

    def reading(self) -> AbstractContextManager[AnyStore]:
        """Open the store for looking only."""
        ...

    def writing(self, *, create: bool = False) -> AbstractContextManager[AnyStore]:
        """Open the store for changing it."""
        ...

    def scratch(self, place: Path | None) -> AbstractContextManager[Scratch]:
        """Open a place for a benchmark; ``place``: the directory in which to make it."""
        ...
