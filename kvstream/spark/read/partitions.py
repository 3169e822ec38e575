"""What a read is cut into, and what both transports have to do for it. Knows neither of them.

Filters of a query as the range of IDs that can pass; what is not known narrows nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
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

from kvstream.errors import DataError, InvalidArgument, InvalidID, shown
from kvstream.layout.columns import Columns
from kvstream.spark.options import Options, first_id, last_id, listed
from kvstream.spark.schema import Role, Shape
from kvstream.types.glob import matcher
from kvstream.types.ids import MAX_ID, MIN_ID, U64_MAX, StreamID

OWN_PREFIX = b"kvstream:"
"""What names of streams begin with in which imports note how far they are, and the like."""
PAGE_MIN, PAGE_MAX = 64, 8192
"""Entries of one page: the first of a piece, and the most."""
PAGE_BYTES = 4 << 20
"""What one page may hold in about, so that large entries come few at a time."""
PAGE_GROWTH = 8
"""How many times longer than the last a page may be: large entries may follow small ones."""


def next_page(entries: int, size: int) -> int:
    """Return how many entries to ask for, when so many of ``size`` bytes came."""
    fitting = PAGE_BYTES * entries // max(size, 1)
    return max(1, min(PAGE_MAX, PAGE_GROWTH * entries, fitting))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries a read is of."""

    names: tuple[bytes, ...]
    patterns: tuple[bytes, ...]
    start: StreamID = MIN_ID
    end: StreamID = MAX_ID

    @classmethod
    def of(cls, options: Options) -> "Wanted":
        """Return what the options ask for; InvalidArgument where they name no stream."""
        names = tuple(name.encode() for name in listed(options, "stream"))
        patterns = tuple(name.encode() for name in listed(options, "pattern"))
        if not names and not patterns:
            raise InvalidArgument("give the option stream (names) or pattern (as KEYS takes it)")
        return cls(names, patterns, first_id(options), last_id(options))

    @property
    def several(self) -> bool:
        """Whether there may be more than one stream."""
        return bool(self.patterns) or len(self.names) > 1

    def within(self, start: StreamID, end: StreamID) -> "Wanted":
        """Return the same, of these IDs alone."""
        return replace(self, start=max(self.start, start), end=min(self.end, end))

    def matches(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of the keys that a pattern fits."""
        fits = [(pattern, matcher(pattern)) for pattern in self.patterns]
        return [key for key in keys if any(fit(key) and is_meant(key, each) for each, fit in fits)]


def is_meant(key: bytes, pattern: bytes) -> bool:
    """Tell whether a pattern that fits means a key: notes of kvstream's own only if it says so."""
    return not key.startswith(OWN_PREFIX) or pattern.startswith(OWN_PREFIX)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one stream's IDs."""

    key: bytes
    start: StreamID
    end: StreamID
    entries: int
    """How many there are, or are thought to be."""
    exact: bool = False
    anchored: bool = False
    """``start`` is an entry that was there when the read was planned."""


class DataLoss(DataError):
    """Entries were trimmed before they were read, and ``failOnDataLoss`` is true."""

    @classmethod
    def of(cls, key: bytes, place: str, what: str) -> "DataLoss":
        return cls(
            f"stream {shown(key)} in {place}: {what}. With the option failOnDataLoss false the "
            "query would go on behind them"
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a stream begins and ends, and how many entries it has and was ever given."""

    length: int
    added: int
    first: StreamID
    """The first entry; the last ID where there is none."""
    last: StreamID
    """The last ID given out."""


class Reading(Protocol):
    """An open source of entries; of one task, in one thread."""

    def pages(self, piece: Piece) -> Iterator[Columns]:
        """Yield the entries of a piece by pages, every one of them, or raise."""
        ...

    def close(self) -> None: ...


class Source(Protocol):
    """Where tasks read from; pickled to them, so it holds no handle."""

    @property
    def shown(self) -> str: ...

    def open(self) -> Reading: ...


class Share(InputPartition):
    """What one task reads: pieces of sources, in order."""

    def __init__(self, parts: Sequence[tuple[Source, Sequence[Piece]]] = ()) -> None:
        super().__init__(None)
        self.parts = parts

    def __repr__(self) -> str:
        pieces = sum(len(pieces) for _, pieces in self.parts)
        return f"Share({pieces} ranges of {len(self.parts)} stores)"


def shares(parts: Sequence[tuple[Source, Sequence[Piece]]], count: int) -> list[Share]:
    """Deal pieces out to ``count`` tasks at most, about as many entries to each, in their order."""
    left = sum(piece.entries for _, pieces in parts for piece in pieces)
    found: list[Share] = []
    share: list[tuple[Source, list[Piece]]] = []
    held = 0
    for source, pieces in parts:
        share.append((source, []))
        for piece in pieces:
            # Each task gets its part of what is left: no remainder is left to the last one.
            if held and held + piece.entries / 2 > left / max(1, count - len(found)):
                found.append(_share(share))
                share, left, held = [(source, [])], left - held, 0
            share[-1][1].append(piece)
            held += piece.entries
    if any(pieces for _, pieces in share):
        found.append(_share(share))
    return found


def _share(parts: list[tuple[Source, list[Piece]]]) -> Share:
    return Share([(source, _joined(pieces)) for source, pieces in parts if pieces])


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Make one of pieces that follow each other in a stream."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and last.key == piece.key and last.end < piece.start:
            found[-1] = replace(
                last,
                end=piece.end,
                entries=last.entries + piece.entries,
                exact=last.exact and piece.exact,
            )
        else:
            found.append(piece)
    return found


_LOW = (EqualTo, GreaterThan, GreaterThanOrEqual)
_HIGH = (EqualTo, LessThan, LessThanOrEqual)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bounds(filters: Iterable[Filter], shape: Shape) -> tuple[StreamID, StreamID]:
    """Return the first and the last ID that may pass all of the filters."""
    low, high = 0, U64_MAX
    start, end = MIN_ID, MAX_ID
    columns = {column.name: column for column in shape.columns}
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
    """Return the millisecond that a filter on the time, or on ``id.ms``, compares with."""
    if role is Role.ID and path == ("ms",) and isinstance(value, int):
        return value
    if role is not Role.TIMESTAMP or path:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        since = moment - _EPOCH
        return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    return value if isinstance(value, int) else None


def _id(path: tuple[str, ...], value: Any) -> StreamID | None:
    """Return the ID that a column of text is compared with."""
    if path or not isinstance(value, str) or "-" not in value:
        return None
    try:
        return StreamID.parse(value)
    except InvalidID:
        return None
