"""Tables made beside the store: rows in ascending order in a file that RocksDB takes in whole.

Whoever writes one needs no open store, and may be another process. This is one of the modules that
import ``rocksdict``; it knows rows and files, nothing of what stands in them.
"""

import os
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from errno import ENOSPC
from itertools import repeat
from operator import setitem
from pathlib import Path
from typing import Any
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
from kvstream.layout.keys import successor
from kvstream.layout.packing import unpack_rows
from kvstream.options import StoreOptions
from kvstream.storage import reads
from kvstream.storage.batch import Family, Row
from kvstream.storage.compiled import twins
from kvstream.storage.failures import classified
from kvstream.storage.families import TEMPLATE, applied, family_settings
from kvstream.storage.private_files import DIRECTORY_MODE
from kvstream.storage.table_file import TableFile

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
