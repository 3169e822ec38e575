"""Snapshots of a store for readers in other processes, made by the owner on request.

A reader of a store that another process holds creates a request file in the store. The owner (a
server, a program or the command line) finds it within a tenth of a second and makes a checkpoint: a
store of its own, which shares the tables by hard links and never changes.

::

    copies/TOKEN.wanted       the request: created by the reader, removed by the owner
    copies/TOKEN.refused      the owner's error
    copies/TOKEN/             the snapshot
    TOKEN := PID "-" START "-" SYSTEM "-" RANDOM
                              the reader's process, its start time, and its system

A snapshot is removed after its process has ended, or after a day without being opened, but never
while a reader has it open and locked. If no process writes the store, the reader links the files
itself. This module knows files and opens no store.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from kvstream.errors import KVStreamError, StoreError, StoreLocked
from kvstream.storage import files
from kvstream.storage.directory import Directory
from kvstream.types.clock import monotonic

FOLDER = "copies"
IDLE_S = 86_400.0
"""A snapshot that was not opened for longer is removed."""
PATIENCE_S = 30.0
"""How long a reader waits: the owner's checkpoint waits for the current turn."""
SWEEP_S = 60.0
"""How often an owner removes snapshots that are not needed any more."""
_POLL_S = 0.005
_MTIME_TICK_NS = 1_000_000_000
"""A folder may change twice within one tick of its mtime; an older mtime can be trusted."""
_WANTED, _REFUSED = ".wanted", ".refused"
_TOKEN = re.compile("([0-9]+)-([0-9]+)-([0-9a-f]{8})-[0-9a-f]{16}")
_SYSTEM = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid"))
_STAT_START = 19
"""The index of the start time in /proc/PID/stat, counted after the name."""


def read_start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[_STAT_START])


@cache
def system_id() -> str:
    """Return an ID of this boot and PID namespace: a PID is valid only within it."""
    digest = hashlib.sha256()
    with suppress(OSError):
        digest.update(_SYSTEM[0].read_bytes())
        digest.update(os.readlink(_SYSTEM[1]).encode())
    return digest.hexdigest()[:8]


def new_token(pid: int) -> str:
    """Return a name for a snapshot for a process."""
    return f"{pid}-{read_start_time(pid)}-{system_id()}-{secrets.token_hex(8)}"


LOG_BYTES_MAX = 1 << 20
"""The longest log of a snapshot: each opening replays it."""


# --- the reader's side --------------------------------------------------------------------------


def place_for(directory: Path, token: str) -> Path:
    """Return the path of the snapshot of that name; create the folder that holds it."""
    folder = directory / FOLDER
    folder.mkdir(files.DIRECTORY_MODE, exist_ok=True)
    return folder / token


def ask(directory: Path, token: str, patience_s: float = PATIENCE_S) -> Path:
    """Ask the owner of the store in ``directory`` for a snapshot, and return its path.

    Raises StoreLocked if no owner answers in time, and StoreError if the owner reports an error.
    """
    target = place_for(directory, token)
    wanted, refused = _beside(target, _WANTED), _beside(target, _REFUSED)
    wanted.touch(files.FILE_MODE)
    deadline = monotonic() + patience_s
    try:
        while wanted.exists():
            if monotonic() > deadline:
                raise StoreLocked(
                    f"the process that holds the store in {directory} has given no copy of it "
                    f"within {patience_s:g} s: it is busy, or of an older kvstream"
                )
            time.sleep(_POLL_S)
        if refused.exists():
            reason = files.read(refused).decode()
            raise StoreError(f"the owner of the store in {directory}: {reason}")
    finally:
        wanted.unlink(missing_ok=True)
        refused.unlink(missing_ok=True)
    return target


def link(directory: Path, token: str, log_bytes_max: int | None = LOG_BYTES_MAX) -> Path | None:
    """Link the files of a store that no process writes into a snapshot; others may read it.

    Returns None if its log is longer than ``log_bytes_max``. Raises StoreLocked if a process
    writes the store.
    """
    place = Directory.acquire(directory, create=False, read_only=True)
    try:
        if log_bytes_max is not None and place.size(".log") > log_bytes_max:
            return None
        target = place_for(place.path, token)
        with files.scratch(f".{token}-", target.parent) as stage:
            place.link_into(stage / token)
            (stage / token).rename(target)
        return target
    finally:
        place.release()


def touch(snapshot: Path) -> None:
    """Mark a snapshot as in use now."""
    with suppress(OSError):
        os.utime(snapshot)


# --- the owner's side ---------------------------------------------------------------------------


class SnapshotRequests:
    """The requests of readers, as the owner sees and serves them."""

    def __init__(self, directory: Path, checkpoint: Callable[[Path], None]) -> None:
        self._folder = directory / FOLDER
        self._checkpoint = checkpoint
        self._seen_ns = 0
        self._next_sweep = 0.0

    def serve(self) -> None:
        """Make the requested snapshots; costs one ``stat`` if nothing has changed."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            return
        if changed_ns != self._seen_ns or time.time_ns() - changed_ns < _MTIME_TICK_NS:
            self._seen_ns = changed_ns
            for target in _find_requests(self._folder):
                self._make(target)
        now = monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            sweep(self._folder)

    def _make(self, target: Path) -> None:
        try:
            self._checkpoint(target)
        except (KVStreamError, OSError) as error:
            with suppress(OSError):
                _beside(target, _REFUSED).write_text(str(error))
        with suppress(OSError):  # the thread that serves also deletes expired keys
            _beside(target, _WANTED).unlink(missing_ok=True)


def _find_requests(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob(f"*{_WANTED}")):
        if _TOKEN.fullmatch(path.name.removesuffix(_WANTED)) and not path.is_symlink():
            yield path.with_name(path.name.removesuffix(_WANTED))


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


# --- sweeping -----------------------------------------------------------------------------------


def sweep(folder: Path) -> None:
    """Remove snapshots of processes that have ended, and snapshots not opened for a day.

    Whether a process on another system or in another container has ended is unknown here.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            token = _TOKEN.match(entry.name.removeprefix("."))  # with a dot: unfinished
            if token is not None and _is_abandoned(entry, token):
                _remove(Path(entry.path))


def _is_abandoned(entry: os.DirEntry[str], token: re.Match[str]) -> bool:
    pid, start = int(token[1]), int(token[2])
    if token[3] == system_id() and start and read_start_time(pid) != start:
        return True
    with suppress(OSError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > IDLE_S
    return False


def _remove(path: Path) -> None:
    """Remove a file, or a snapshot that no reader has locked."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
