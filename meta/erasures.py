"""What is deleted of streams while long commands look at them bit by bit.

Entries are only ever appended, trimmed at the head, or deleted from the middle. Who looks at a
stream between the commits of others sees the first two in its record; the third is told here.
"""

from collections.abc import Sequence
from weakref import WeakSet

from kvstream.ids import StreamID
from kvstream.meta.records import StreamMeta


class ErasureWatch:
    """The entries that were deleted from one stream since somebody began to look at it."""

    def __init__(self, stream: StreamMeta) -> None:
        self.stream = stream
        self._before = stream.erased
        self._noted: list[Sequence[StreamID]] = []

    def note(self, ids: Sequence[StreamID]) -> None:
        self._noted.append(ids)

    def holds(self, stream: StreamMeta) -> bool:
        """Tell whether it is still that stream, and its last ID was not set back."""
        return stream is self.stream and stream.erased == self._before + len(self._noted)

    def erased(self) -> set[StreamID]:
        """Return what was deleted."""
        return set().union(*self._noted)


class Erasures:
    """Those who are told of deletions."""

    def __init__(self) -> None:
        self._watches: WeakSet[ErasureWatch] = WeakSet()

    def watch(self, stream: StreamMeta) -> ErasureWatch:
        """Have what is deleted of a stream told to who keeps what is returned."""
        watch = ErasureWatch(stream)
        self._watches.add(watch)
        return watch

    def note(self, stream: StreamMeta, ids: Sequence[StreamID]) -> None:
        """Count one deletion of entries of a stream, and tell of it."""
        stream.erased += 1
        if self._watches:
            for watch in self._watches:
                if watch.stream is stream:
                    watch.note(ids)
