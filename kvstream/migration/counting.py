"""How much groups have read, where a source's format does not tell: Redis 5.0 to 6.2.

Redis works it out at both ends of a stream and gives up in between. Here all entries pass by: what
lies up to the last ID that a group was given is what it has read, as such a source knows of no
entries but those that are there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from kvstream.images import ID_BYTES, GroupImage, NodeImage, PackedID, StreamState
from kvstream.migration.items import Content
from kvstream.migration.spool import temporary

_PAGE_BYTES = 4096 * ID_BYTES


def count_read(state: StreamState, pages: Iterable[Sequence[PackedID]]) -> None:
    """Let each group of a state know how many entries it has read, from the IDs of all of them.

    Nothing is changed where the source has told it. A group beyond the last entry stays unknown.
    """
    if state.entries_added is not None:
        return
    waiting = iter(sorted(state.groups, key=lambda group: group.last_delivered))
    group: GroupImage | None = next(waiting, None)
    passed, last = 0, state.last
    for ids in pages:
        while group is not None and group.last_delivered.packed < ids[-1]:
            group.entries_read = passed + bisect_right(ids, group.last_delivered.packed)
            group = next(waiting, None)
        passed += len(ids)
    while group is not None:
        group.entries_read = passed if group.last_delivered <= last else None
        group = next(waiting, None)


class CountedGroups:
    """Passes a stream on, and counts what its groups have read where it does not tell."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._ids = None if content.tells_counters else temporary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ids is not None:
            self._ids.close()

    def nodes(self) -> Iterator[NodeImage]:
        for node in self._content.nodes():
            if self._ids is not None:
                self._ids.write(b"".join(node.ids))
            yield node

    def state(self) -> StreamState:
        state = self._content.state()
        if self._ids is not None:
            count_read(state, self._pages())
        return state

    def _pages(self) -> Iterator[list[PackedID]]:
        assert self._ids is not None
        self._ids.seek(0)
        while packed := self._ids.read(_PAGE_BYTES):
            yield [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]
