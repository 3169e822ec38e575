"""What a check finds: faults by place and kind, and the rows that mend them.

Faults of one kind in one place are told as one, with the first few as examples, so that a stream
with a million wrong rows does not make a million faults. Mending rows are kept apart from the
transaction until the walk is over: the walk reads the rows as they are.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from kvstream.records import Fault
from kvstream.storage.batch import Batch, Rows

T = TypeVar("T")

EXAMPLES = 3
"""Examples that the message of a fault gives."""


def shown(name: bytes) -> str:
    """Return a name for a message: as text where it is text."""
    return repr(name.decode()) if name.isascii() else repr(name)


def group_place(stream: str, name: bytes) -> str:
    return f"{stream}, group {shown(name)}"


def consumer_place(group: str, name: bytes) -> str:
    return f"{group}, consumer {shown(name)}"


@dataclass(slots=True)
class _Kind:
    """The faults of one kind in one place."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def message(self, kind: str) -> str:
        if not any(self.examples):
            return kind if self.count == 1 else f"{kind} ({self.count} times)"
        more = self.count - len(self.examples)
        rest = f"; and {more} more" if more else ""
        return f"{kind}: {'; '.join(self.examples)}{rest}"


class Findings:
    """The faults found so far, and what would mend them."""

    def __init__(self, rows: Rows, repair: bool) -> None:
        self.repair = repair
        self.mending = Batch(rows)
        """The rows to write, in effect after the walk."""
        self._kinds: dict[tuple[str, str, bool], _Kind] = {}

    def fault(self, place: str, kind: str, detail: str = "", mended: bool = True) -> None:
        """Note a fault; ``mended``: a repair sets it right."""
        found = self._kinds.setdefault((place, kind, mended), _Kind())
        found.count += 1
        if len(found.examples) < EXAMPLES:
            found.examples.append(detail)

    def settle(self, place: str, what: str, recorded: T, true: T) -> T:
        """Return what a value must be, and note a fault where the recorded one is another."""
        if recorded != true:
            self.fault(place, f"{what} is wrong", f"{recorded}, but {true} by count")
        return true

    def put(self, family: int, key: bytes, value: bytes) -> None:
        if self.repair:
            self.mending.put(family, key, value)

    def delete(self, family: int, key: bytes) -> None:
        if self.repair:
            self.mending.delete(family, key)

    def delete_range(self, family: int, lower: bytes, upper: bytes) -> None:
        if self.repair:
            self.mending.delete_range(family, lower, upper)

    def faults(self) -> list[Fault]:
        """Return the faults in the order in which the walk met them."""
        return [
            Fault(place, found.message(kind), self.repair and mended)
            for (place, kind, mended), found in self._kinds.items()
        ]
