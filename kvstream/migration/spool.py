"""Streams in temporary files, for targets that need the state first or the length of a payload.

A source gives nodes first and the state last. A target that is written by commands needs the state
first, and RESTORE needs the length of its payload. Small streams stay in memory.

::

    spool := (length(u32) node)*
    node  := msgpack [first names last appended size ids values]
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import IO, Self

import msgpack

from kvstream.migration.items import Content
from kvstream.types.images import ID_BYTES, GroupImage, NodeImage, PackedID, StreamState

MEMORY_BYTES = 8 << 20
"""Size up to which a spool stays in memory."""
_LENGTH = Struct(">I")
_IDS_PAGE_BYTES = 4096 * ID_BYTES


class _Temporary:
    """A context manager around a temporary file, which moves to disk when it grows."""

    def __init__(self) -> None:
        self._file: IO[bytes] = SpooledTemporaryFile(MEMORY_BYTES, prefix="kvstream-migrate-")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Spool(_Temporary):
    """The nodes of a stream, readable any number of times, and its state."""

    def __init__(self, content: Content) -> None:
        super().__init__()
        self.node_count = self.entries = 0
        try:
            for node in content.nodes():
                self._put(node)
            self.state: StreamState = content.state()
        except BaseException:
            self._file.close()
            raise

    def _put(self, node: NodeImage) -> None:
        parts = [node.first, node.names, node.last, node.appended, node.size]
        packed: bytes = msgpack.packb([*parts, b"".join(node.ids), node.values])
        self._file.write(_LENGTH.pack(len(packed)) + packed)
        self.node_count += 1
        self.entries += len(node.ids)

    def nodes(self) -> Iterator[NodeImage]:
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            packed = self._file.read(*_LENGTH.unpack(head))
            first, names, last, appended, size, ids, values = msgpack.unpackb(packed)
            yield NodeImage(first, tuple(names), _split(ids), values, appended, size, last)

    def ids(self) -> Iterator[PackedID]:
        """Yield the IDs of all entries."""
        for node in self.nodes():
            yield from node.ids


class ChunkFile(_Temporary):
    """Chunks in a temporary file, whose total size is known before they are sent."""

    def __init__(self, chunks: Iterable[bytes], most: int) -> None:
        """Write chunks until their size exceeds ``most``."""
        super().__init__()
        self.size = 0
        try:
            for chunk in chunks:
                self._file.write(chunk)
                self.size += len(chunk)
                if self.size > most:
                    break
        except BaseException:
            self._file.close()
            raise

    def chunks(self, size: int = 1 << 20) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(size):
            yield chunk


class CountedGroups(_Temporary):
    """Passes a stream on, and computes the entries-read of groups that the source lacks.

    Redis 5.0 to 6.2 do not report it. Redis itself computes it at both ends of a stream only. Here
    all entries pass by, and such a source keeps no counters of deleted entries: entries-read is
    the number of entries up to the last ID delivered.
    """

    def __init__(self, content: Content) -> None:
        super().__init__()
        self._content = content

    def nodes(self) -> Iterator[NodeImage]:
        for node in self._content.nodes():
            if not self._content.tells_counters:
                self._file.write(b"".join(node.ids))
            yield node

    def state(self) -> StreamState:
        state = self._content.state()
        if not self._content.tells_counters:
            count_read(state, self._pages())
        return state

    def _pages(self) -> Iterator[list[PackedID]]:
        self._file.seek(0)
        while packed := self._file.read(_IDS_PAGE_BYTES):
            yield _split(packed)


def count_read(state: StreamState, pages: Iterable[Sequence[PackedID]]) -> None:
    """Set the entries-read of each group, from the IDs of all entries.

    Does nothing if the source has counters. A group beyond the last entry stays unknown.
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


def _split(packed: bytes) -> list[PackedID]:
    return [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]
