"""The IDs of imported rows: given in the row, in a column, by a time, or new.

A server replies only after all rows of a commit were sent, so ``StreamEnd`` works out beforehand
whether a row can have its ID.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial

from kvstream.cli.file_formats import Row
from kvstream.cli.json_values import Pairs
from kvstream.cli.parameters import time_ms
from kvstream.cli.session import AnyStore
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


class BadID(ValueError):
    """A row has no valid ID or time."""


@dataclass(frozen=True, slots=True)
class RowIDs:
    """Chooses the ID of each row."""

    id_column: bytes | None = None
    time_column: bytes | None = None
    parse_time: TimeParser = time_ms
    new_ids: bool = False

    def depends_on_stream(self, row: Row) -> bool:
        """Tell whether a row asks for an ID, which the stream may refuse."""
        columns = self.id_column is not None or self.time_column is not None
        return not self.new_ids and (columns or row.eid is not None)

    def __call__(self, row: Row) -> tuple[str, AddID, Pairs]:
        """Return the ID to ask for, as text and decoded, and the fields to add; raises BadID.

        The column with the ID does not become a field; the column with the time does.
        """
        pairs = row.pairs or []
        eid = row.eid
        if self.id_column is not None:
            eid, pairs = _without_id(pairs, self.id_column)
        elif self.time_column is not None:
            eid = self._of_time(pairs, self.time_column)
        if self.new_ids or eid is None:
            return "*", None, pairs
        try:
            return eid, parse_add_id(eid), pairs
        except InvalidArgument:
            raise BadID(f"{eid!r} is not an ID (ms-seq)") from None

    def _of_time(self, pairs: Pairs, column: bytes) -> str:
        value = _value(pairs, column)
        ms = self.parse_time(value)
        if ms is None or not 0 <= ms <= U64_MAX:
            raise BadID(f"{value!r} is not a time in the chosen --time-format")
        return f"{ms}-*"


@dataclass(slots=True)
class StreamEnd:
    """The end of a stream, including the rows of this commit so far."""

    last_id: StreamID
    entries_added: int
    is_exact: bool = True
    """False after a row whose ID the store chooses: that ID is above ``last_id``."""

    @classmethod
    def of(cls, store: AnyStore, target: bytes) -> "StreamEnd":
        if not store.exists(target):
            return cls(MIN_ID, 0)
        info = store.stream(target).info()
        return cls(info.last_generated_id, info.entries_added)

    def following(self, eid: AddID) -> StreamID | None:
        """Return the ID of an entry that asks for ``eid``; None if it is too small."""
        if isinstance(eid, StreamID):
            return eid if eid > self.last_id else None
        if eid is None or eid == self.last_id.ms:
            following = self.last_id.next()
            return following if eid in (None, following.ms) else None
        return StreamID(eid, 0) if eid > self.last_id.ms else None

    def count(self, eid: StreamID, exact: bool) -> None:
        """Count an added entry; ``exact`` is false if the store chooses its ID."""
        self.last_id = eid
        self.entries_added += 1
        self.is_exact = exact


def _value(pairs: Pairs, column: bytes) -> str:
    for name, value in pairs:
        if name == column:
            return value.decode("utf-8", "replace").strip()
    raise BadID(f"the row has no field {column.decode('utf-8', 'replace')!r}")


def _without_id(pairs: Pairs, column: bytes) -> tuple[str, Pairs]:
    value = _value(pairs, column)
    rest = [pair for pair in pairs if pair[0] != column]
    if not rest:
        raise BadID("the row has no fields beside the ID")
    return value, rest


def time_parser(text: str) -> TimeParser:
    """Return the parser of a format: one of ``TIME_FORMATS``, or a pattern of strptime."""
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
