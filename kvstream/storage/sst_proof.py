"""Tables that somebody else has made: whether one may be taken in as it is.

RocksDB believes what stands in a table, so only such are taken in that are, byte for byte, what our
own writer makes of the rows that they are said to have: then there is nothing else in them, no
deletion of ranges for one. Rows are looked at by _proofs.pyx, without the GIL; where that is not
installed nothing can be proved.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvstream.errors import Corruption
from kvstream.storage.sst import (
    FOOTER_BYTES,
    PROPERTIES,
    TRAILER_BYTES,
    Filled,
    proofs,
    tail,
    varint,
)

Streams = list[tuple[bytes, bytes]]
"""Prefix and nodes of each stream, ascending; a node is first ID, last ID and its rows (u64 LE)."""

_READ_BYTES = 4 << 20
_TAIL_MAX = 64 << 20
"""Bytes of an index and of what stands behind it: no table of ours comes near."""
_SHIFT_MAX = 63
_SIZES = ("num.entries", "raw.key.size", "raw.value.size", "num.data.blocks")


class _Block(NamedTuple):
    at: int
    size: int
    last: bytes


def is_proved(path: Path, streams: Streams, session: bytes) -> bool:
    """Tell whether a table has the rows of some streams and nothing else, and bears a name.

    False where it is not of our own making, which need not be a fault: its rows must be written
    once more. Corruption where it is, and its rows are not those. ``session`` is the name by which
    RocksDB is to tell it from all others, whose blocks it would else be taken for.
    """
    if proofs is None:
        return False
    with open(path, "rb") as file:
        try:
            blocks, filled = _described(file, session)
        except (ValueError, IndexError, KeyError):
            return False
        try:
            proof = proofs.Proof(streams)
            for data, found in _read(file, blocks):
                proof.take(data, found)
            sizes = proof.end()
        except ValueError as error:
            raise Corruption(f"{path.name}: {error}") from None
    if sizes is not None and Filled(*sizes, len(blocks)) != filled:
        raise Corruption(f"{path.name}: it has other rows than it says")
    return sizes is not None


def _read(file: BinaryIO, blocks: list[_Block]) -> Iterator[tuple[bytes, list[_Block]]]:
    """Yield some blocks at a time, placed in what was read of the file."""
    begun = 0
    while begun < len(blocks):
        ended, start = begun, blocks[begun].at
        while ended < len(blocks) and (
            ended == begun or blocks[ended].at + blocks[ended].size - start < _READ_BYTES
        ):
            ended += 1
        some = blocks[begun:ended]
        file.seek(start)
        data = file.read(some[-1].at + some[-1].size + TRAILER_BYTES - start)
        yield data, [each._replace(at=each.at - start) for each in some]
        begun = ended


def _described(file: BinaryIO, session: bytes) -> tuple[list[_Block], Filled]:
    """Return the blocks of rows, and what the table says of them.

    ValueError, IndexError, KeyError: nothing that stands behind the rows is as we write it.
    """
    length = file.seek(0, 2)
    file.seek(max(0, length - FOOTER_BYTES))
    handles = _Bytes(file.read(FOOTER_BYTES)[1:])
    meta, index = handles.handle(), handles.handle()
    if not index[0] <= meta[0] <= length or length - index[0] > _TAIL_MAX:
        raise ValueError("the tail is none")
    file.seek(index[0])
    told = file.read()
    blocks = list(_blocks(told[: index[1]], index[0]))
    [[name, place]] = _entries(_at(told, index[0], meta))
    if name != PROPERTIES:
        raise ValueError("there is more than properties")
    properties = dict(_entries(_at(told, index[0], _Bytes(place).handle())))
    sizes = [_Bytes(properties[f"rocksdb.{name}".encode()]).varint() for name in _SIZES]
    filled = Filled(*sizes)
    if told != tail(filled, _index(blocks), index[0], session):
        raise ValueError("it was written by somebody else")
    return blocks, filled


def _at(told: bytes, start: int, handle: tuple[int, int]) -> bytes:
    at, size = handle
    if at < start:
        raise ValueError("a block lies before the tail")
    return told[at - start : at - start + size]


def _blocks(index: bytes, end: int) -> Iterator[_Block]:
    """Yield the blocks of an index, which must lie close from the begin of the file to ``end``."""
    expected = 0
    for last, handle in _entries(index):
        at, size = _Bytes(handle).handle()
        if at != expected:
            raise ValueError("blocks do not lie close")
        yield _Block(at, size, last)
        expected = at + size + TRAILER_BYTES
    if expected != end:
        raise ValueError("blocks do not lie close")


def _index(blocks: list[_Block]) -> bytes:
    """Return the index of blocks as it is written, each of them led to."""
    rows, restarts = bytearray(), bytearray()
    for at, size, last in blocks:
        restarts += len(rows).to_bytes(4, "little")
        handle = varint(at) + varint(size)
        rows += varint(0) + varint(len(last)) + varint(len(handle)) + last + handle
    return bytes(rows + restarts + len(blocks).to_bytes(4, "little"))


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a block that share nothing; what leads to them is not looked at."""
    restarts = int.from_bytes(block[-4:], "little")
    rows = _Bytes(block[: len(block) - 4 * (restarts + 1)])
    while rows.left:
        if rows.varint():
            raise ValueError("rows share what opens their keys")
        size, length = rows.varint(), rows.varint()
        yield rows.take(size), rows.take(length)


class _Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > _SHIFT_MAX:
                raise ValueError("a number is too large")

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError("the block ends before")
        self._at += size
        return self._data[self._at - size : self._at]

    def handle(self) -> tuple[int, int]:
        return self.varint(), self.varint()
