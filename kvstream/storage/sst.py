"""SST files made outside a store, by RocksDB's own writer, and ingested whole.

A writer needs no open store and may be another process: it writes rows in ascending order, and the
owner of the store ingests the file. This module knows files and rows, not what the rows mean. It is
one of the modules that import ``rocksdict``.
"""

import os
import shutil
from collections import deque
from contextlib import suppress
from itertools import repeat
from operator import add, setitem
from pathlib import Path
from typing import Any
from uuid import uuid4

from rocksdict import (
    Checkpoint,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
)

from kvstream.layout.columns import put_rows
from kvstream.storage import reads
from kvstream.storage.batch import Family, Row
from kvstream.storage.files import DIRECTORY_MODE
from kvstream.storage.options import TEMPLATE, apply_settings, below, family_settings
from kvstream.storage.write_guard import classify
from kvstream.types.options import StoreOptions

_STAGING = "staging"
"""The folder in a store where SST files wait to be ingested; it is emptied at every opening."""


class TableWriter:
    """Writes an SST file of the messages family; it must get at least one row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.size = 0
        """Bytes of the rows before compression."""
        try:
            self._writer: Any = SstFileWriter(_messages_options())
            self._writer.open(str(path))
        except Exception as error:
            raise classify(error) from None

    def put(self, prefix: bytes, ids: list[bytes], values: list[bytes]) -> None:
        """Write rows under a prefix; raise StoreError if one is not above the row before it."""
        try:
            deque(map(setitem, repeat(self._writer), map(add, repeat(prefix), ids), values), 0)
        except Exception as error:
            raise classify(error) from None
        self.rows += len(ids)
        self.size += len(prefix) * len(ids) + sum(map(len, ids)) + sum(map(len, values))

    def put_packed(self, prefix: bytes, rows: bytes, count: int) -> None:
        """Do the same with ``count`` rows in one string (layout/columns.py)."""
        try:
            put_rows(self._writer, prefix, rows)
        except Exception as error:
            raise classify(error) from None
        self.rows += count
        self.size += len(prefix) * count + len(rows)

    def finish(self) -> None:
        """Complete the file and fsync it."""
        try:
            self._writer.finish()
        except Exception as error:
            raise classify(error) from None
        self._writer = None

    def abandon(self) -> None:
        """Remove the file; idempotent."""
        self._writer = None
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _messages_options() -> Options:
    settings = family_settings(StoreOptions())[Family.MESSAGES]
    _, templates = Options.load_latest(str(TEMPLATE))
    options: Options = apply_settings(templates[settings.name], settings.options)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def checkpoint(rows: Rdict, target: Path) -> None:
    """Make RocksDB copy itself; blocks all threads of the process. No other thread may write."""
    try:
        Checkpoint(rows).create_checkpoint(str(target))
    except Exception as error:
        raise classify(error) from None


def ingest(family: Any, paths: list[Path]) -> None:
    """Move SST files into an open column family, all or none; later rows of a key win.

    The rows are durable and visible on return. RocksDB's errors are raised as they are.
    """
    how = IngestExternalFileOptions()
    how.set_move_files(True)
    family.ingest_external_file([str(path) for path in paths], how)
    for path in paths:
        path.unlink(missing_ok=True)


def link_into(folder: Path, path: Path) -> Path:
    """Link a file into a folder under a new name, or copy it; return its path there."""
    place = folder / f"{uuid4().hex}.sst"
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError:
        shutil.copyfile(path, place, follow_symlinks=False)
    return place


def staging_of(store: Path) -> Path:
    """Return the staging folder of an open store; make it if it is missing."""
    folder = store / _STAGING
    with suppress(FileExistsError):
        os.mkdir(folder, DIRECTORY_MODE)
    return folder


def clear_staging(store: Path) -> None:
    """Remove the staging folder that a killed process left behind."""
    shutil.rmtree(store / _STAGING, ignore_errors=True)


class Merged:
    """The rows of several SST files in one order, in a temporary RocksDB."""

    def __init__(self, folder: Path, paths: list[Path]) -> None:
        """``folder`` is created here and removed by ``close``; the SST files stay."""
        self._folder = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        try:
            self._rows: Any = Rdict(str(folder), options)
        except Exception as error:
            raise classify(error) from None
        try:
            for path in paths:
                self._rows.ingest_external_file([str(path)], IngestExternalFileOptions())
        except BaseException as error:
            self.close()
            raise (classify(error) if isinstance(error, Exception) else error) from None

    def page(self, lower: bytes, upper: bytes, limit: int) -> list[Row]:
        """Return the first ``limit`` rows of ``lower <= key < upper``."""
        return reads.page(self._rows, below, lower, upper, limit, reverse=False)

    def close(self) -> None:
        self._rows.close()
        self._rows = None
        shutil.rmtree(self._folder, ignore_errors=True)
