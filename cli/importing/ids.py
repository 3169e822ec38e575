"""Which ID an imported row gets: its own, that of a column, that of a time, or a new one.

And whether it can have it: whoever adds many at once must know before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial

from kvstream.cli.contracts import AnyStore
from kvstream.cli.parameters import time_ms
from kvstream.cli.rows import Pairs, Row
from kvstream.errors import InvalidArgument
from kvstream.types.ids import MIN_ID, U64_MAX, AddID, StreamID, parse_add_id

UNIX_UNITS = {
    "s": Decimal(1000),
    "ms": Decimal(1),
    "us": Decimal("0.001"),
    "ns": Decimal("0.000001"),
}
TIME_FORMATS = ("iso", *UNIX_UNITS)

TimeParser = Callable[[str], int | None]


class Unplaceable(ValueError):
    """A row whose ID or time is none."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Where the IDs of rows come from."""

    id_column: bytes | None = None
    time_column: bytes | None = None
    parse_time: TimeParser = time_ms
    new_ids: bool = False

    def asks(self, row: Row) -> bool:
        """Tell whether a row asks for an ID, which depends on what is in the stream."""
        columns = self.id_column is not None or self.time_column is not None
        return not self.new_ids and (columns or row.eid is not None)

    def __call__(self, row: Row) -> tuple[str, AddID, Pairs]:
        """Return the ID to ask for, as text and read, and the fields to add; raises Unplaceable.

        The column of IDs does not stay a field; that of times does.
        """
        pairs = row.pairs or []
        eid = row.eid
        if self.id_column is not None:
            eid, pairs = _taken(pairs, self.id_column)
        elif self.time_column is not None:
            eid = self._of_time(pairs, self.time_column)
        if self.new_ids or eid is None:
            return "*", None, pairs
        try:
            return eid, parse_add_id(eid), pairs
        except InvalidArgument:
            raise Unplaceable(f"{eid!r} is no ID (ms-seq)") from None

    def _of_time(self, pairs: Pairs, column: bytes) -> str:
        value = _value(pairs, column)
        ms = self.parse_time(value)
        if ms is None or not 0 <= ms <= U64_MAX:
            raise Unplaceable(f"{value!r} is no time of the format asked for")
        return f"{ms}-*"


@dataclass(slots=True)
class StreamEnd:
    """The end of a stream, as it is and as it will be once the rows taken so far are in it."""

    last_id: StreamID
    entries_added: int
    is_exact: bool = True
    """False after an ID that the store chooses: it lies above ``last_id``."""

    @classmethod
    def of(cls, store: AnyStore, target: bytes) -> "StreamEnd":
        if not store.exists(target):
            return cls(MIN_ID, 0)
        info = store.stream(target).info()
        return cls(info.last_generated_id, info.entries_added)

    def following(self, eid: AddID) -> StreamID | None:
        """Return the ID that an entry gets which asks for ``eid``; None where it cannot have it."""
        if isinstance(eid, StreamID):
            return eid if eid > self.last_id else None
        if eid is None or eid == self.last_id.ms:
            following = self.last_id.next()
            return following if eid in (None, following.ms) else None
        return StreamID(eid, 0) if eid > self.last_id.ms else None

    def count(self, eid: StreamID, exact: bool) -> None:
        """Count an entry as added; ``exact``: with this very ID."""
        self.last_id = eid
        self.entries_added += 1
        self.is_exact = exact


def _value(pairs: Pairs, column: bytes) -> str:
    for name, value in pairs:
        if name == column:
            return value.decode("utf-8", "replace").strip()
    raise Unplaceable(f"no {column.decode('utf-8', 'replace')!r}")


def _taken(pairs: Pairs, column: bytes) -> tuple[str, Pairs]:
    value = _value(pairs, column)
    rest = [pair for pair in pairs if pair[0] != column]
    if not rest:
        raise Unplaceable("no fields beside the ID")
    return value, rest


def time_parser(text: str) -> TimeParser:
    """Return what reads times of a format: one of ``TIME_FORMATS``, or a pattern of strptime."""
    if text in UNIX_UNITS:
        return partial(_unix_ms, UNIX_UNITS[text])
    return time_ms if text == "iso" else partial(_pattern_ms, text)


def _unix_ms(unit: Decimal, text: str) -> int | None:
    try:
        return int(Decimal(text) * unit)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _pattern_ms(pattern: str, text: str) -> int | None:
    try:
        moment = datetime.strptime(text, pattern)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
