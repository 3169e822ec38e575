"""Copies of an open RocksDB: its files as a crash would leave them at one moment.

RocksDB's own checkpoint blocks all threads of the process while it waits for the disk; this one
blocks none. It earns the row "p99 of XADD while checkpoints are made", which RocksDB's own made
83 ms. SST files and files of large values never change, and are linked; the manifest only
grows, and is copied up to its present length; the log is copied after both. So the copy has every
write before it began, and perhaps some later ones, up to one write: opening it recovers the log.

The copy begins at a moment when no SST file is being written or removed: then the manifest names
the files that RocksDB has in memory. No file may be ingested until the log is copied, since rows in
the log may refer to its rows.
"""

import errno
import os
from contextlib import AbstractContextManager, ExitStack
from os import link
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from kvstream.storage import files
from kvstream.storage.files import DIRECTORY_MODE, FILE_MODE
from kvstream.storage.options import LARGE_VALUES_SUFFIX
from kvstream.storage.write_guard import classify
from kvstream.types.clock import monotonic

PATIENCE_S = 5.0
"""How long to wait for such a moment: a compaction may take longer."""
PAUSE_S = 0.002
_CURRENT, _LOG, _OPTIONS = "CURRENT", ".log", "OPTIONS-"
_CHUNK = 1 << 20
_MAKES = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_AT_WORK = ("rocksdb.num-running-flushes", "rocksdb.num-running-compactions")
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


class LiveTables:
    """The SST files of an open RocksDB, and whether it is writing or removing some."""

    def __init__(self, rows: Any, ingest_lock: AbstractContextManager[object]) -> None:
        """``ingest_lock`` is a lock that is held while files are ingested."""
        self._rows = rows
        self.ingest_lock = ingest_lock

    def at_work(self) -> bool:
        """Return whether SST files are being written or removed."""
        try:
            return any(self._rows.property_int_value(name) for name in _AT_WORK)
        except Exception as error:
            raise classify(error) from None

    def names(self) -> list[str]:
        """Return the file names of the tables that hold rows."""
        try:
            return sorted(table["name"].removeprefix("/") for table in self._rows.live_files())
        except Exception as error:
            raise classify(error) from None


class _Moment(NamedTuple):
    """The files at one moment."""

    manifest: str
    size: int
    """The length of the manifest."""
    linked: list[str]
    """The SST files and the files of large values."""
    logs: dict[str, int]
    """Descriptors of the logs, which may be deleted meanwhile."""


def copy_database(
    source: Path, target: Path, tables: LiveTables, patience_s: float = PATIENCE_S
) -> bool:
    """Make ``target`` a copy of the RocksDB in ``source``; return whether that was possible.

    It is not if files cannot be linked, or no moment comes in time; ``target`` is removed then.
    """
    target.mkdir(DIRECTORY_MODE)
    until = monotonic() + patience_s
    try:
        while not _copy_once(source, target, tables):
            if monotonic() >= until:
                _remove(target)
                return False
            sleep(PAUSE_S)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _remove(target)
        return False
    files.sync_directory(target)
    return True


def copy_across(source: Path, target: Path, tables: LiveTables, stage: Path) -> bool:
    """Do what ``copy_database`` does, but to another file system.

    ``stage`` is a folder on the file system of ``source``, for links. Nobody waits while the
    files are copied.
    """
    if not copy_database(source, stage, tables):
        return False
    try:
        target.mkdir(DIRECTORY_MODE)
        for name in os.listdir(stage):
            with ExitStack() as opened:
                file = _open_file(stage / name, opened)
                _copy(file, target / name, os.fstat(file).st_size)
    finally:
        _remove(stage)
    files.sync_directory(target)
    return True


def _copy_once(source: Path, target: Path, tables: LiveTables) -> bool:
    with tables.ingest_lock, ExitStack() as opened:
        try:
            moment = _moment(source, target, tables, opened)
        except FileNotFoundError:  # an SST file or a log was removed meanwhile
            moment = None
        if moment is None:
            return False
        for name in set(os.listdir(target)).difference(moment.linked):
            (target / name).unlink()  # linked in an earlier attempt
        _copy(_open_file(source / moment.manifest, opened), target / moment.manifest, moment.size)
        for name, log in sorted(moment.logs.items()):
            _copy(log, target / name, os.fstat(log).st_size)
        for name in (_newest_options(source), _CURRENT):
            file = _open_file(source / name, opened)
            _copy(file, target / name, os.fstat(file).st_size)
    return _manifest(target) == moment.manifest


def _moment(source: Path, target: Path, tables: LiveTables, opened: ExitStack) -> _Moment | None:
    """Link the SST files and open the logs; return None if RocksDB changed files meanwhile.

    All files of large values are linked; RocksDB removes those that the manifest does not name.
    """
    if tables.at_work():
        return None
    manifest = _manifest(source)
    size = (source / manifest).stat().st_size
    live = tables.names()
    linked = live + [name for name in os.listdir(source) if name.endswith(LARGE_VALUES_SUFFIX)]
    for name in linked:
        if not (target / name).exists():
            link(source / name, target / name)
    logs = {
        name: _open_file(source / name, opened)
        for name in os.listdir(source)
        if name.endswith(_LOG)
    }
    # A flush or compaction that runs now may have written the manifest already; one that has ended
    # since shows itself by the names.
    if tables.at_work() or tables.names() != live or (source / manifest).stat().st_size != size:
        return None
    return _Moment(manifest, size, linked, logs)


def _manifest(folder: Path) -> str:
    """Return the name of the manifest that a RocksDB would open."""
    return files.read(folder / _CURRENT).decode().strip()


def _newest_options(source: Path) -> str:
    names = [name for name in os.listdir(source) if name.startswith(_OPTIONS)]
    return max(names, key=lambda name: (len(name), name))


def _open_file(path: Path, opened: ExitStack) -> int:
    descriptor = files.open_regular(path)
    opened.callback(os.close, descriptor)
    return descriptor


def _copy(source: int, target: Path, size: int) -> None:
    """Copy the first bytes of a file, durably."""
    descriptor = os.open(target, _MAKES, FILE_MODE)
    try:
        at = 0
        while at < size:
            data = os.pread(source, min(size - at, _CHUNK), at)
            if not data:
                raise OSError(errno.EIO, "a file has become shorter", target.name)
            at += len(data)
            while data:
                data = data[os.write(descriptor, data) :]
        files.sync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    for name in os.listdir(folder):
        (folder / name).unlink()
    folder.rmdir()
