"""A stream put aside in a temporary file, so that its state is known before its entries.

Sources give nodes first and the state last; a target that is written by commands needs it the other
way round, and one that takes a DUMP must know how long that is. Small streams stay in memory.

::

    spool := (length(u32) node)*
    node  := msgpack [first names last appended size ids values]
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import IO, Self

import msgpack

from kvstream.images import ID_BYTES, NodeImage, PackedID, StreamState
from kvstream.migration.items import Content

MEMORY_BYTES = 8 << 20
"""What is kept in memory; more goes into a file."""
_LENGTH = Struct(">I")


def temporary() -> IO[bytes]:
    """Return a file in memory, or on disk where it grows; whoever has it closes it."""
    return SpooledTemporaryFile(MEMORY_BYTES, prefix="kvstream-migrate-")


class _PutAside:
    """What is in a temporary file for as long as the block goes."""

    _file: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Spool(_PutAside):
    """The nodes of a stream, to be read any number of times, and its state."""

    def __init__(self, content: Content) -> None:
        self._file = temporary()
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
            first, names, last, appended, size, joined, values = msgpack.unpackb(packed)
            ids = [joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES)]
            yield NodeImage(first, tuple(names), ids, values, appended, size, last)

    def ids(self) -> Iterator[PackedID]:
        """Yield the IDs of all entries."""
        for node in self.nodes():
            yield from node.ids


class ChunkFile(_PutAside):
    """Chunks in a temporary file: how long they are together is known before they are sent."""

    def __init__(self, chunks: Iterable[bytes], most: int) -> None:
        """Take chunks until there are more than ``most`` bytes of them."""
        self._file = temporary()
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
