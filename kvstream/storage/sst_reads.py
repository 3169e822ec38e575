"""Tables of a store that nobody writes, read without RocksDB: many blocks at once, as packed rows.

RocksDB's iterator makes two objects a row, under the GIL; here a row is never an object. Only what
is plain beyond doubt is read so: a table that no other one reaches into, without deletions, and of
a family that has nothing in memory. Sums are checked. Whatever is not so, damage included, is left
to RocksDB, which reads it or tells what is wrong. The grammar of tables is in _tables.pyx.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from kvstream.storage.sst import reading
from kvstream.storage.write_guard import classified

CHUNK_BYTES = 512 << 10
"""Compressed bytes that are read at once, unless one block has more."""
CHUNK_BLOCKS = 64
"""Blocks that are read at once: a megabyte of rows, where no single row is larger than a block."""

_TRAILER = 5
_FOOTER = 53
_META_MAX = 256 << 20
_MAGIC = (0x88E241B785F4CFF7).to_bytes(8, "little")
_EXTENDED = bytes.fromhex("3e007a00")
_BINARY_SEARCH = bytes(4)
_REFUSED = frozenset({b"rocksdb.range_del", b"rocksdb.compression_dict"})
"""What no table may have that is read here: deletions of ranges, words that blocks are told by."""
_IN_MEMORY = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
_FILES = [f"rocksdb.num-files-at-level{level}" for level in range(7)]
_LISTED = re.compile(
    r"^ (\d+):(\d+)\[.*\]\['([0-9A-F]*)' seq:\d+, type:\d+ \.\. '([0-9A-F]*)' seq:\d+, type:\d+\]",
    re.MULTILINE,
)


Zstd = Callable[[bytes, int], bytes | None]
"""Returns what bytes hold that ZSTD has compressed, of a size that is given; None: they do not."""


class NotPlain(Exception):
    """A table is for RocksDB to read."""


class Table(NamedTuple):
    """A table of a family: the keys that it reaches from and to."""

    path: Path
    size: int
    first: bytes
    last: bytes


class Stretch(NamedTuple):
    """Keys that follow each other, ``first`` and ``last`` included, and the one table of them."""

    first: bytes
    last: bytes
    table: Table | None
    """None where there are several, whose rows RocksDB has to merge."""


class Block(NamedTuple):
    """Where a block of rows lies, and a key that none of its rows is above."""

    last: bytes
    offset: int
    size: int


_new_block = partial(tuple.__new__, Block)


def tables_of(family: Any, directory: Path) -> list[Table] | None:
    """Return the tables that hold all rows of an open family; None where they cannot be told.

    That is so where memory holds some.
    """
    try:
        if any(family.property_int_value(name) for name in _IN_MEMORY):
            return None
        found = listed(family.property_value("rocksdb.sstables") or "", directory)
        there = sum(int(family.property_value(name) or 0) for name in _FILES)
        return found if len(found) == there else None  # told in another way than we read
    except Exception as error:
        raise classified(error) from None


def listed(text: str, directory: Path) -> list[Table]:
    """Return the tables that RocksDB's property ``sstables`` of a family tells of."""
    return [
        Table(
            directory / f"{int(number):06}.sst",
            int(size),
            bytes.fromhex(first),
            bytes.fromhex(last),
        )
        for number, size, first, last in _LISTED.findall(text)
    ]


def stretches(tables: list[Table], lower: bytes, upper: bytes) -> list[Stretch]:
    """Return the stretches that hold all rows of ``lower <= key <= upper``, in their order."""
    found: list[Stretch] = []
    for table in sorted(tables, key=attrgetter("first")):
        if table.last < lower or table.first > upper:
            continue
        first, last = max(table.first, lower), min(table.last, upper)
        if found and first <= found[-1].last:
            found[-1] = Stretch(found[-1].first, max(found[-1].last, last), None)
        else:
            found.append(Stretch(first, last, table))
    return found


def packed_pages(stretch: Stretch, prefix: bytes, zstd: Zstd | None = None) -> Iterator[bytes]:
    """Yield the rows of a stretch whose keys are ``prefix`` and an ID, packed, page by page.

    Raises NotPlain before the first row that is not; rows that were yielded are whole. Without
    ``zstd`` no block is plain that ZSTD has compressed.
    """
    table, size = stretch.table, len(prefix)
    if table is None or reading is None:
        raise NotPlain
    reader = reading.Reader(prefix, stretch.first[size:], stretch.last[size:], zstd)
    try:
        file = os.open(table.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise NotPlain from None
    try:
        meta = _Meta.of(file, table.size, zstd)
        blocks = meta.blocks()
        at = bisect_left(blocks, stretch.first, key=attrgetter("last"))
        while at < len(blocks) and not reader.ended:
            end = _end_of_chunk(blocks, at)
            start = blocks[at].offset
            size = blocks[end - 1].offset + blocks[end - 1].size + _TRAILER - start
            packed = reader.read(
                _bytes_at(file, start, size),
                [each.size for each in blocks[at:end]],
                meta.kind,
                meta.context,
                start,
            )
            if packed is None:
                raise NotPlain
            if packed:
                yield packed
            at = end
    finally:
        os.close(file)


def _end_of_chunk(blocks: list[Block], at: int) -> int:
    """Return where a chunk ends that begins with a block: there is no gap between its blocks."""
    most = blocks[at].offset + CHUNK_BYTES
    end = at + 1
    for block in blocks[end : at + CHUNK_BLOCKS]:
        before = blocks[end - 1]
        if block.offset + block.size > most:
            break
        if block.offset != before.offset + before.size + _TRAILER:
            break
        end += 1
    return end


def _bytes_at(file: int, offset: int, size: int) -> bytes:
    try:
        found = os.pread(file, size, offset)
    except OSError:
        raise NotPlain from None
    if len(found) != size:
        raise NotPlain
    return found


# --- what a table says of itself ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Meta:
    """What stands behind the rows of a table, and how its blocks are summed."""

    file: int
    kind: int
    context: int
    index: tuple[int, int] | None
    """Where the index is; None: that is told where everything else is told too."""
    told: tuple[int, int]
    zstd: Zstd | None

    @classmethod
    def of(cls, file: int, size: int, zstd: Zstd | None) -> "_Meta":
        """Read the footer; NotPlain where it is of no version that is known here."""
        if size < _FOOTER:
            raise NotPlain
        footer = _bytes_at(file, size - _FOOTER, _FOOTER)
        version = int.from_bytes(footer[-12:-8], "little")
        if footer[-8:] != _MAGIC or version not in (5, 6):
            raise NotPlain
        if version == 6:
            length = int.from_bytes(footer[13:17], "little")
            told = size - _FOOTER - _TRAILER - length, length
            context = int.from_bytes(footer[9:13], "little")
            if footer[1:5] != _EXTENDED:
                raise NotPlain
            return cls(file, footer[0], context, None, told, zstd)
        try:
            *told_, at = _handle(footer, 1)
            *index, _ = _handle(footer, at)
        except IndexError:
            raise NotPlain from None
        return cls(file, footer[0], 0, (index[0], index[1]), (told_[0], told_[1]), zstd)

    def blocks(self) -> list[Block]:
        """Return the blocks of rows; NotPlain where there may be more than plain rows in them."""
        with suppress(IndexError, ValueError, KeyError):
            about = dict(_rows_of(self._block(self.told)))
            properties = dict(_rows_of(self._block(_handle(about[b"rocksdb.properties"], 0)[:2])))
            if not _REFUSED.isdisjoint(about) or not _is_plain(properties):
                raise NotPlain
            index = self._block(self.index or _handle(about[b"rocksdb.index"], 0)[:2])
            deltas = _varint(properties[b"rocksdb.index.value.is.delta.encoded"], 0)[0]
            assert reading is not None
            found = reading.blocks(index, bool(deltas))
            if found is not None:
                return list(map(_new_block, found))
        raise NotPlain

    def _block(self, handle: tuple[int, int]) -> bytes:
        """Return a block that is not of rows."""
        offset, size = handle
        if offset < 0 or size > _META_MAX:
            raise NotPlain
        assert reading is not None
        block = _bytes_at(self.file, offset, size + _TRAILER)
        found = reading.plain(block, self.kind, self.context, offset, self.zstd)
        if found is None:
            raise NotPlain
        return found


def _is_plain(properties: dict[bytes, bytes]) -> bool:
    numbers = [
        _varint(properties[b"rocksdb." + name], 0)[0]
        for name in (b"deleted.keys", b"merge.operands", b"num.range-deletions")
    ]
    return (
        not any(numbers)
        and _varint(properties[b"rocksdb.index.key.is.user.key"], 0)[0] == 1
        and properties[b"rocksdb.comparator"] == b"leveldb.BytewiseComparator"
        and properties[b"rocksdb.block.based.table.index.type"] == _BINARY_SEARCH
    )


def _end_of_rows(block: bytes) -> int:
    return len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Return where a block is, its size, and where that ends; IndexError where it does not."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _rows_of(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a block; IndexError, ValueError where it is none."""
    at, end, key = 0, _end_of_rows(block), b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if at + own + length > end or shared > len(key):
            raise ValueError("a row is not whole")
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends; IndexError where it does not."""
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
        shift += 7
