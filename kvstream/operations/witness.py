"""Whether what a long command has seen of a stream still holds.

Such a command looks at a stream bit by bit, while others change it. Entries are only ever appended,
taken away at the head, or deleted: what was seen is true but for what lies before the first, unless
something was deleted, or the last ID set back.
"""

from dataclasses import dataclass
from typing import Self

from kvstream.meta.records import StreamMeta

LONG_ROWS = 2000
"""Entries, some milliseconds of work, from which on a command is done bit by bit."""
STEP_ROWS = 500
"""Entries that one step is about: half a millisecond or so."""
TRIES = 3
"""So often a command begins anew, and then it is done in one go."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A stream as it was when something began to look at it."""

    stream: StreamMeta
    erased: int

    @classmethod
    def of(cls, stream: StreamMeta) -> Self:
        return cls(stream, stream.erased)

    def holds(self, stream: StreamMeta) -> bool:
        """Tell whether what was seen of the stream is still so."""
        return stream is self.stream and stream.erased == self.erased
