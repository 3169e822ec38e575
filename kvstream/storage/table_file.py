"""A table of RocksDB as a file, without RocksDB: what stands behind its blocks of rows.

RocksDB's own writer takes a row at a time, under the GIL; here a thread compresses blocks while
others are filled. The grammar, and the blocks, are in _tables.pyx. The format is version 5, which
every release since 6.6 reads; what a table says of itself is what RocksDB's writer says.
"""

import os
import secrets
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvstream.storage.compiled import twins

BATCH_BYTES = 1 << 20
"""Bytes of blocks that are handed to the thread at once; two such batches may wait."""
_WAITING_MAX = 2

_MAGIC = 0x88E241B785F4CFF7
_VERSION = 5
_XXH64 = 3
_HANDLES_BYTES = 40
_SESSION_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNKNOWN_FAMILY = (1 << 31) - 1


class TableFile:
    """A table under way."""

    def __init__(self, path: Path, block_bytes: int) -> None:
        assert twins is not None
        self._filler = twins.Filler(block_bytes)
        self._squeezer = twins.Squeezer()
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by finish and close
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="table")
        self._waiting: list[Future[None]] = []

    @property
    def rows(self) -> int:
        return self._filler.rows

    @property
    def size(self) -> int:
        """Bytes of the rows, before compression."""
        return self._filler.key_bytes + self._filler.value_bytes

    def put(self, prefix: bytes, ids: list[bytes], values: list[bytes]) -> None:
        """Write rows, each above all before it; ValueError where one is not."""
        self._filler.put(prefix, ids, values)
        self._hand_on()

    def put_packed(self, prefix: bytes, rows: bytes) -> None:
        """Do the same with packed rows."""
        self._filler.put_packed(prefix, rows)
        self._hand_on()

    def _hand_on(self) -> None:
        if self._filler.waiting >= BATCH_BYTES:
            if len(self._waiting) >= _WAITING_MAX:
                self._waiting.pop(0).result()
            self._waiting.append(self._thread.submit(self._write_blocks, self._filler.take()))

    def _write_blocks(self, blocks: Any) -> None:
        self._write(self._squeezer.squeezed(blocks))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def finish(self) -> None:
        """Complete the file, durably."""
        for each in self._waiting:
            each.result()
        self._waiting.clear()
        self._write_blocks(self._filler.take(all_=True))
        self._write(self._tail(self._squeezer.offset))
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Let go of file and thread; idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._file.close()

    # --- behind the rows ------------------------------------------------------------------------

    def _tail(self, start: int) -> bytes:
        """Return index, properties, the index of these, and the footer."""
        made = bytearray()

        def add(block: bytes) -> bytes:
            handle = _varint(start + len(made)) + _varint(len(block))
            plain = block + b"\0"
            made.extend(plain + twins.sum_of(plain).to_bytes(4, "little"))
            return handle

        index = self._squeezer.index_block()
        index_handle = add(index)
        properties = _properties(self._filler, start, len(index))
        meta = _block({b"rocksdb.properties": add(_block(properties))})
        meta_handle = add(meta)
        handles = (meta_handle + index_handle).ljust(_HANDLES_BYTES, b"\0")
        version = _VERSION.to_bytes(4, "little") + _MAGIC.to_bytes(8, "little")
        return bytes(made) + bytes([_XXH64]) + handles + version


def _properties(filled: Any, data_bytes: int, index_bytes: int) -> dict[bytes, bytes]:
    numbers = {
        "column.family.id": _UNKNOWN_FAMILY,
        "creation.time": 0,
        "data.size": data_bytes,
        "deleted.keys": 0,
        "filter.size": 0,
        "fixed.key.length": 0,
        "format.version": _VERSION,
        "index.key.is.user.key": 1,
        "index.size": index_bytes,
        "index.value.is.delta.encoded": 0,
        "key.largest.seqno": 0,
        "merge.operands": 0,
        "num.data.blocks": filled.data_blocks,
        "num.entries": filled.rows,
        "num.filter_entries": 0,
        "num.range-deletions": 0,
        "oldest.key.time": 0,
        "original.file.number": 1,
        "raw.key.size": filled.key_bytes,
        "raw.value.size": filled.value_bytes,
        "tail.start.offset": data_bytes,
    }
    texts = {
        "block.based.table.index.type": bytes(4),
        "block.based.table.prefix.filtering": b"0",
        "block.based.table.whole.key.filtering": b"1",
        "comparator": b"leveldb.BytewiseComparator",
        "compression": b"LZ4",
        "creating.db.identity": b"SST Writer",
        "creating.session.identity": _session(),
        "external_sst_file.global_seqno": bytes(8),
        "external_sst_file.version": (2).to_bytes(4, "little"),
        "merge.operator": b"nullptr",
        "prefix.extractor.name": b"nullptr",
    }
    every = {name: _varint(number) for name, number in numbers.items()} | texts
    return {f"rocksdb.{name}".encode(): every[name] for name in sorted(every)}


def _session() -> bytes:
    """Return a name that no other table has: RocksDB tells tables apart by it in its cache."""
    high, low = secrets.randbelow(36**8), secrets.randbelow(1 << 62)
    return (_digits(high, 8) + _digits(low, 12)).encode()


def _digits(number: int, count: int) -> str:
    found = ""
    for _ in range(count):
        number, digit = divmod(number, len(_SESSION_DIGITS))
        found = _SESSION_DIGITS[digit] + found
    return found


def _block(rows: Mapping[bytes, bytes]) -> bytes:
    """Return a block of rows in order that share nothing, which one restart leads to."""
    each = (
        b"\0" + _varint(len(key)) + _varint(len(value)) + key + value for key, value in rows.items()
    )
    return b"".join(each) + bytes(4) + (1).to_bytes(4, "little")


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)
