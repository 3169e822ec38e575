"""Rows into the changes of one commit: added, there already, or bad.

A server answers only when all are in, so that what it would answer is found out before.
"""

from enum import Enum, auto

from kvstream.cli.contracts import AnyStore, Changes
from kvstream.cli.json_values import Pairs
from kvstream.cli.placing import Placing, StreamEnd, Unplaceable
from kvstream.cli.rows import Row
from kvstream.errors import RequestError
from kvstream.ids import MIN_ID, AddID, StreamID

_LOOKED_UP = 100
"""Entries that are read together where a row is there already: in a file the next ones follow."""


class Bad(RequestError):
    """A row that cannot be added."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(f"line {row.line}: {reason}")


class Undecided(Exception):
    """Whether a row can be added is known once those before it are in the stream."""


class Taken(Enum):
    """What became of a row."""

    ADDED = auto()
    PRESENT = auto()
    """With its ID and the same fields."""
    BLANK = auto()


class Taking:
    """Takes the rows of one commit, one by one."""

    def __init__(
        self,
        store: AnyStore,
        target: bytes,
        end: StreamEnd,
        placing: Placing,
        changes: Changes,
    ) -> None:
        self._stream = store.stream(target)
        self._target = target
        self._end = end
        self._placing = placing
        self._changes = changes
        self._known: dict[StreamID, Pairs] = {}
        """Entries that are there, or will be."""

    def take(self, row: Row) -> Taken:
        """Add one row, unless it is there; raises Bad and Undecided."""
        if row.pairs is None:
            raise Bad(row, row.error)
        if not row.pairs:
            return Taken.BLANK
        try:
            return self._add(*self._placing(row))
        except (Unplaceable, RequestError) as error:
            raise Bad(row, str(error)) from None

    def _add(self, text: str, asked: AddID, pairs: Pairs) -> Taken:
        if asked is not None and not self._end.is_exact:
            raise Undecided
        eid = self._end.following(asked)
        if eid is None:
            self._see_present(text, asked, pairs)
            return Taken.PRESENT
        self._changes.add(self._target, pairs, text)
        self._end.count(eid, exact=asked is not None)
        self._known[eid] = pairs
        return Taken.ADDED

    def _see_present(self, text: str, eid: AddID, pairs: Pairs) -> None:
        """Raise RequestError unless an entry with that ID and these fields is there."""
        there = self._found(eid) if isinstance(eid, StreamID) else None
        if there == pairs:
            return
        if there is not None:
            raise RequestError(f"the stream has {text} with other fields")
        if eid == MIN_ID:
            raise RequestError(f"{MIN_ID} is no ID of an entry")
        last = self._end.last_id
        raise RequestError(f"{text} does not lie above {last}, the last ID of the stream")

    def _found(self, eid: StreamID) -> Pairs | None:
        if eid not in self._known:
            for entry in self._stream.range(eid, "+", _LOOKED_UP):
                self._known[entry.id] = list(entry.pairs)
        return self._known.get(eid)
