"""A table of RocksDB as a file, without RocksDB: what stands behind its blocks of rows.

RocksDB's own writer takes a row at a time, under the GIL; here a thread compresses blocks while
others are filled. The grammar, and the blocks, are in _tables.pyx. The format is version 5, which
every release since 6.6 reads; what a table says of itself is what RocksDB's writer says.

Tables made beside the store: rows in ascending order in a file that RocksDB takes in whole.

Whoever writes one needs no open store, and may be another process. This is one of the modules that
import ``rocksdict``; it knows rows and files, nothing of what stands in them.

The compiled writer and reader of tables, and what proves them, each where it is installed.

Else RocksDB's own writer and reader do the work.
"""

import hashlib
import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from errno import ENOSPC
from itertools import repeat
from operator import setitem
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from rocksdict import (
    Checkpoint,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    ReadOptions,
    SstFileWriter,
)

from kvstream.errors import StoreError, StoreFull
from kvstream.layout.compiled import PURE_VARIABLE
from kvstream.layout.keys import successor
from kvstream.layout.packing import unpack_rows
from kvstream.storage import reads
from kvstream.storage.batch import Family, Row
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.storage.options import TEMPLATE, applied, family_settings
from kvstream.storage.write_guard import classified
from kvstream.types.options import StoreOptions

_pure = os.environ.get(PURE_VARIABLE) == "1"

try:
    if _pure:
        raise ImportError(f"{PURE_VARIABLE} is set")
    from kvstream.storage import _tables as twins
except ImportError:
    twins = None  # type: ignore[assignment]

try:
    if twins is None:
        raise ImportError("what it compares with cannot be written")
    from kvstream.storage import _proofs as proofs
except ImportError:
    proofs = None  # type: ignore[assignment]

try:
    if twins is None:
        raise ImportError("none of them is wanted, or can be had")
    from kvstream.storage import _reading as reading
except ImportError:
    reading = None  # type: ignore[assignment]

__all__ = ["proofs", "reading", "twins"]


BATCH_BYTES = 4 << 20
"""Bytes of rows that are handed to the thread at once; two such batches may wait.

It takes the thread some ms to get the GIL between two of them.
"""
_WAITING_MAX = 2

_MORE_BYTES = 4
"""Bytes that a row takes in a table, before compression, beyond its prefix and its packed form."""
_MAGIC = 0x88E241B785F4CFF7
_VERSION = 5
_XXH64 = 3
_HANDLES_BYTES = 40
FOOTER_BYTES = 1 + _HANDLES_BYTES + 12
TRAILER_BYTES = 5
"""Of each block: the kind of compression, and the sum."""
PROPERTIES = b"rocksdb.properties"
_SESSION_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SESSION_BITS = 62 + 41
"""Of 20 digits: RocksDB reads 62 bits out of the last twelve."""
_UNKNOWN_FAMILY = (1 << 31) - 1


class TableFile:
    """A table under way; an error may come with a later call than what it is about."""

    def __init__(self, path: Path, block_bytes: int, session: bytes = b"") -> None:
        """``session`` is the name that RocksDB tells the table by; none: one that nobody has."""
        assert twins is not None
        self._builder = twins.Builder(block_bytes)
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by finish and close
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="table")
        self._waiting: deque[Future[None]] = deque()
        self._prefix = b""
        self._packed: list[bytes] = []
        self._packed_bytes = self.size = 0
        self._completed = False
        self._session = session or _session(secrets.randbits(_SESSION_BITS))

    def __del__(self) -> None:
        if file := getattr(self, "_file", None):  # it may be that it could not be opened
            file.close()

    @property
    def rows(self) -> int:
        """How many rows were put, when all that was handed on is done."""
        self._settle()
        return self._builder.rows

    def put(self, prefix: bytes, ids: list[bytes], values: list[bytes]) -> None:
        """Write rows, each above all before it; ValueError where one is not."""
        self.put_packed(prefix, twins.pack_rows(ids, values), len(ids))

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None:
        """Do the same with packed rows, ``count`` of them."""
        if prefix != self._prefix:
            self._hand_on()
            self._prefix = prefix
        self._packed.append(rows)
        self._packed_bytes += len(rows)
        self.size += len(rows) + count * (len(prefix) + _MORE_BYTES)
        if self._packed_bytes >= BATCH_BYTES:
            self._hand_on()

    def _hand_on(self) -> None:
        """Give what was put to the thread."""
        if self._packed:
            if len(self._waiting) >= _WAITING_MAX:
                self._waiting.popleft().result()
            work = self._thread.submit(self._build, self._prefix, self._packed)
            self._waiting.append(work)
            self._packed, self._packed_bytes = [], 0

    def _settle(self) -> None:
        """Have the thread done with all that was put."""
        self._hand_on()
        while self._waiting:
            self._waiting.popleft().result()

    def _build(self, prefix: bytes, packed: list[bytes]) -> None:
        self._builder.put(prefix, packed)
        self._write(self._builder.take())

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def complete(self) -> None:
        """Have the thread complete the file behind what was put; once."""
        self._hand_on()
        self._waiting.append(self._thread.submit(self._complete))
        self._completed = True

    def _complete(self) -> None:
        self._builder.end()
        self._write(self._builder.take())
        builder = self._builder
        filled = Filled(builder.rows, builder.key_bytes, builder.value_bytes, builder.blocks)
        self._write(tail(filled, builder.index_block(), builder.offset, self._session))
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Complete the file, durably."""
        if not self._completed:
            self.complete()
        self._settle()
        self.close()

    def close(self) -> None:
        """Let go of file and thread; idempotent."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._file.close()


# --- behind the rows ----------------------------------------------------------------------------


class Filled(NamedTuple):
    """What there is in the blocks of a table."""

    rows: int
    key_bytes: int
    value_bytes: int
    blocks: int


def tail(filled: Filled, index: bytes, start: int, session: bytes) -> bytes:
    """Return index, properties, the index of these, and the footer, as they stand from ``start``.

    ``session`` is the name that RocksDB tells the table by.
    """
    made = bytearray()

    def add(block: bytes) -> bytes:
        handle = varint(start + len(made)) + varint(len(block))
        plain = block + b"\0"
        made.extend(plain + twins.sum_of(plain).to_bytes(4, "little"))
        return handle

    index_handle = add(index)
    properties = _properties(filled, start, len(index), session)
    meta = _block({PROPERTIES: add(_block(properties))})
    meta_handle = add(meta)
    handles = (meta_handle + index_handle).ljust(_HANDLES_BYTES, b"\0")
    version = _VERSION.to_bytes(4, "little") + _MAGIC.to_bytes(8, "little")
    return bytes(made) + bytes([_XXH64]) + handles + version


def _properties(
    filled: Filled, data_bytes: int, index_bytes: int, session: bytes
) -> dict[bytes, bytes]:
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
        "num.data.blocks": filled.blocks,
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
        "creating.session.identity": session,
        "external_sst_file.global_seqno": bytes(8),
        "external_sst_file.version": (2).to_bytes(4, "little"),
        "merge.operator": b"nullptr",
        "prefix.extractor.name": b"nullptr",
    }
    every = {name: varint(number) for name, number in numbers.items()} | texts
    return {f"rocksdb.{name}".encode(): every[name] for name in sorted(every)}


def session_of(name: bytes) -> bytes:
    """Return the name of a table for RocksDB that is made of one which no other table has.

    RocksDB tells the blocks of tables apart by it in its cache: of two tables with the same name
    one would be read where the other is asked for.
    """
    digest = hashlib.sha256(name).digest()
    return _session(int.from_bytes(digest) % (1 << _SESSION_BITS))


def _session(number: int) -> bytes:
    high, low = divmod(number, 1 << 62)
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
        b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in rows.items()
    )
    return b"".join(each) + bytes(4) + (1).to_bytes(4, "little")


def varint(number: int) -> bytes:
    """Return a number in as many bytes as it takes, seven bits in each."""
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


_BLOCK_BYTES = 16 << 10
_ABOVE = b"\xff" * 64
_STAGING = "staging"
"""The folder in the store's own where tables wait to be taken in; it ends with the process."""


class TableWriter:
    """A table of messages under way; it must get a row at least."""

    def __init__(self, path: Path, session: bytes = b"") -> None:
        """``session``: see TableFile."""
        self.path = path
        self._table: TableFile | _RocksTable
        try:
            if twins is None:
                self._table = _RocksTable(path)
            else:
                self._table = TableFile(path, _BLOCK_BYTES, session)
        except Exception as error:
            raise _told(error) from None

    @property
    def rows(self) -> int:
        return self._table.rows

    @property
    def size(self) -> int:
        """Bytes of the rows, before compression."""
        return self._table.size

    def put(self, prefix: bytes, ids: list[bytes], values: list[bytes]) -> None:
        """Write rows under a prefix, each above all before it.

        StoreError where one is not, here or in a later call.
        """
        try:
            self._table.put(prefix, ids, values)
        except Exception as error:
            raise _told(error) from None

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None:
        """Do the same with rows in one string (layout/packing.py), ``count`` of them."""
        try:
            self._table.put_packed(prefix, rows, count)
        except Exception as error:
            raise _told(error) from None

    def complete(self) -> None:
        """Begin to do what ``finish`` does; no row may be put from now on."""
        self._table.complete()

    def finish(self) -> None:
        """Complete the file, durably."""
        try:
            self._table.finish()
        except Exception as error:
            raise _told(error) from None

    def abandon(self) -> None:
        """Remove the file; idempotent."""
        self._table.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


class _RocksTable:
    """A table under way by RocksDB's own writer."""

    def __init__(self, path: Path) -> None:
        self.rows = self.size = 0
        self._writer: Any = SstFileWriter(_options(Family.MESSAGES))
        self._writer.open(str(path))

    def put(self, prefix: bytes, ids: list[bytes], values: list[bytes]) -> None:
        keys = [prefix + eid for eid in ids]
        deque(map(setitem, repeat(self._writer), keys, values), maxlen=0)
        self.rows += len(ids)
        self.size += sum(map(len, keys)) + sum(map(len, values))

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None:
        self.put(prefix, *unpack_rows(rows))

    def complete(self) -> None:
        """RocksDB's writer would hold the GIL."""

    def finish(self) -> None:
        self._writer.finish()
        self.close()

    def close(self) -> None:
        self._writer = None


def _told(error: Exception) -> Exception:
    """Return the error of ours for one of a table."""
    if isinstance(error, OSError) and error.errno == ENOSPC:
        return StoreFull(f"IO error: {error}")
    return StoreError(str(error)) if isinstance(error, ValueError) else classified(error)


def _options(family: Family) -> Options:
    settings = family_settings(StoreOptions())[family]
    _, templates = Options.load_latest(str(TEMPLATE))
    options: Options = applied(templates[settings.name], settings.options)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def checkpoint(rows: Rdict, target: Path) -> None:
    """Have RocksDB copy itself; it holds all threads of the process, and nobody may write."""
    try:
        Checkpoint(rows).create_checkpoint(str(target))
    except Exception as error:
        raise classified(error) from None


def take_in(family: Any, paths: list[Path]) -> None:
    """Move tables into an open column family, all or none; later rows of a key win.

    They are durable, and to be read, when this returns. Whatever RocksDB raises comes as it is.
    """
    how = IngestExternalFileOptions()
    how.set_move_files(True)
    family.ingest_external_file([str(path) for path in paths], how)
    for path in paths:
        path.unlink(missing_ok=True)


def brought(path: Path, folder: Path) -> Path:
    """Return a table under a name of its own in a folder: linked there, or copied."""
    place = folder / f"{uuid4().hex}.sst"
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError:
        shutil.copyfile(path, place, follow_symlinks=False)
    return place


def staging_of(store: Path) -> Path:
    """Return the folder for tables of an open store, made where it is not there."""
    folder = store / _STAGING
    with suppress(FileExistsError):
        os.mkdir(folder, DIRECTORY_MODE)
    return folder


def clear_staging(store: Path) -> None:
    """Remove what a process that was killed has left there."""
    shutil.rmtree(store / _STAGING, ignore_errors=True)


class Merged:
    """The rows of several tables in one order, in a RocksDB of their own until it is closed."""

    def __init__(self, folder: Path, paths: list[Path]) -> None:
        """``folder`` is made, and removed in the end; the tables are linked or copied, and stay."""
        self._folder = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        try:
            self._rows: Any = Rdict(str(folder), options)
            for path in paths:
                self._rows.ingest_external_file([str(path)], IngestExternalFileOptions())
        except Exception as error:
            raise classified(error) from None

    def page(self, lower: bytes, upper: bytes, limit: int) -> list[Row]:
        """Return the first ``limit`` rows of ``lower <= key < upper``."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(upper)
        return reads.page(self._rows, bounds, lower, upper, limit, reverse=False)

    def only(self, prefixes: Iterable[bytes]) -> bool:
        """Tell whether there are no rows but under some prefixes, none of which opens another."""
        lower = b""
        for prefix in sorted(prefixes):
            if self.page(lower, prefix, 1):
                return False
            lower = successor(prefix)
        return not self.page(lower, _ABOVE, 1)

    def close(self) -> None:
        self._rows.close()
        self._rows = None
        shutil.rmtree(self._folder, ignore_errors=True)
