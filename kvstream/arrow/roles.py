"""The columns of a read as Arrow batches, and what happens to values that do not fit."""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What happens to an entry with a value that does not fit its column's type."""

    PERMISSIVE = "PERMISSIVE"
    """The value is null, and the corrupt-record column holds the entry."""
    DROPMALFORMED = "DROPMALFORMED"
    """The entry is left out."""
    FAILFAST = "FAILFAST"
    """The read fails."""


class Role(StrEnum):
    """The content of a column."""

    ID = "id"
    TIMESTAMP = "timestamp"
    STREAM = "stream"
    STORE = "store"
    FIELDS = "fields"
    FIELD = "a field"
    CORRUPT = "corrupt record"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a read."""

    role: Role
    name: str
    kind: str
    """Its type, for messages."""
