"""How a read is split among tasks, and the interfaces that both transports implement.

A stream is split into pieces (ranges of IDs), and each task gets pieces with about the same number
of entries. ``bounds`` turns pushed-down filters into a range of IDs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from kvstream.arrow.roles import Role
from kvstream.errors import DataError, InvalidArgument, InvalidID, quote
from kvstream.layout.columns import Columns
from kvstream.spark.options import Options, first_id, last_id, patterns, split_list
from kvstream.spark.schema import ReadSchema
from kvstream.types.glob import is_listed, matcher
from kvstream.types.ids import MAX_ID, MIN_ID, U64_MAX, StreamID


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The streams and the range of IDs of a read."""

    names: tuple[bytes, ...]
    patterns: tuple[bytes, ...]
    start: StreamID = MIN_ID
    end: StreamID = MAX_ID

    @classmethod
    def of(cls, options: Options) -> "ReadSpec":
        """Parse the options. Raises InvalidArgument if they name no stream."""
        names = tuple(name.encode() for name in split_list(options, "stream"))
        globs = tuple(glob.encode() for glob in patterns(options))
        if not names and not globs:
            raise InvalidArgument(
                "give the option stream (names) or match (a pattern as KEYS takes it)"
            )
        return cls(names, globs, first_id(options), last_id(options))

    @property
    def several(self) -> bool:
        """Whether the read may have more than one stream."""
        return bool(self.patterns) or len(self.names) > 1

    def within(self, start: StreamID, end: StreamID) -> "ReadSpec":
        """Return the same read, limited to a range of IDs."""
        return replace(self, start=max(self.start, start), end=min(self.end, end))

    def matches(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the keys that match a pattern."""
        matches = [(pattern, matcher(pattern)) for pattern in self.patterns]
        return [
            key
            for key in keys
            if any(match(key) and is_listed(key, pattern) for pattern, match in matches)
        ]


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one stream's IDs."""

    key: bytes
    start: StreamID
    end: StreamID
    entries: int
    """The number of entries, estimated unless ``exact``."""
    exact: bool = False
    anchored: bool = False
    """``start`` is the ID of an entry that existed when the read was planned."""


class DataLoss(DataError):
    """Entries were trimmed before they were read, and ``failOnDataLoss`` is true."""

    @classmethod
    def of(cls, key: bytes, place: str, what: str) -> "DataLoss":
        return cls(
            f"stream {quote(key)} in {place}: {what}. Set the option failOnDataLoss to false to "
            "skip them"
        )


class Reader(Protocol):
    """An open source of entries, for one task in one thread."""

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield all entries of a piece by pages, or raise."""
        ...

    def close(self) -> None: ...


class Source(Protocol):
    """A place that tasks read from. It is pickled to them, so it holds no open handle."""

    @property
    def shown(self) -> str: ...

    def open(self, pieces: Sequence[Piece]) -> Reader:
        """Open what a task reads."""
        ...


class TaskPartition(InputPartition):
    """The pieces that one task reads, by source, in order."""

    def __init__(self, parts: Sequence[tuple[Source, Sequence[Piece]]] = ()) -> None:
        super().__init__(None)
        self.parts = parts

    def __repr__(self) -> str:
        pieces = sum(len(pieces) for _, pieces in self.parts)
        return f"TaskPartition({pieces} ranges of {len(self.parts)} places)"


def task_partitions(
    parts: Sequence[tuple[Source, Sequence[Piece]]], count: int
) -> list[TaskPartition]:
    """Assign pieces to at most ``count`` tasks, in order, with about as many entries each."""
    left = sum(piece.entries for _, pieces in parts for piece in pieces)
    tasks: list[TaskPartition] = []
    task: list[tuple[Source, list[Piece]]] = []
    size = 0
    for source, pieces in parts:
        task.append((source, []))
        for piece in pieces:
            # Each task gets its share of the rest, so the last one gets no remainder.
            if size and size + piece.entries / 2 > left / max(1, count - len(tasks)):
                tasks.append(_task_partition(task))
                task, left, size = [(source, [])], left - size, 0
            task[-1][1].append(piece)
            size += piece.entries
    if any(pieces for _, pieces in task):
        tasks.append(_task_partition(task))
    return tasks


def _task_partition(parts: list[tuple[Source, list[Piece]]]) -> TaskPartition:
    return TaskPartition([(source, _merge(pieces)) for source, pieces in parts if pieces])


def _merge(pieces: Sequence[Piece]) -> list[Piece]:
    """Merge consecutive pieces of a stream."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if last is not None and last.key == piece.key and last.end < piece.start:
            merged[-1] = replace(
                last,
                end=piece.end,
                entries=last.entries + piece.entries,
                exact=last.exact and piece.exact,
            )
        else:
            merged.append(piece)
    return merged


_LOW = (EqualTo, GreaterThan, GreaterThanOrEqual)
_HIGH = (EqualTo, LessThan, LessThanOrEqual)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def bounds(filters: Iterable[Filter], schema: ReadSchema) -> tuple[StreamID, StreamID]:
    """Return the first and last ID that may pass all filters; unknown filters are ignored."""
    low, high = 0, U64_MAX
    start, end = MIN_ID, MAX_ID
    columns = {column.name: column for column in schema.columns}
    for each in filters:
        if not isinstance(each, (*_LOW, *_HIGH)):
            continue
        column = columns.get(each.attribute[0])
        if column is None:
            continue
        ms = _milliseconds(column.role, each.attribute[1:], each.value)
        if ms is not None:
            low = max(low, ms) if isinstance(each, _LOW) else low
            high = min(high, ms) if isinstance(each, _HIGH) else high
        elif column.role is Role.ID and isinstance(each, EqualTo):
            eid = _id(each.attribute[1:], each.value)
            if eid is not None:
                start, end = max(start, eid), min(end, eid)
    return max(start, _id_at(low, 0)), min(end, _id_at(high, U64_MAX))


def _id_at(ms: int, seq: int) -> StreamID:
    if ms < 0:
        return MIN_ID
    return StreamID(ms, seq) if ms <= U64_MAX else MAX_ID


def _milliseconds(role: Role, path: tuple[str, ...], value: Any) -> int | None:
    """Return the operand, in milliseconds, of a filter on the timestamp or ``id.ms``."""
    if role is Role.ID and path == ("ms",) and isinstance(value, int):
        return value
    if role is not Role.TIMESTAMP or path:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // _MILLISECOND
    return value if isinstance(value, int) else None


def _id(path: tuple[str, ...], value: Any) -> StreamID | None:
    """Return the operand of a filter on an ID column of type string."""
    if path or not isinstance(value, str) or "-" not in value:
        return None
    try:
        return StreamID.parse(value)
    except InvalidID:
        return None
