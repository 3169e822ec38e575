"""Copies of a store for readers in other processes, which its owner makes when they ask.

Whoever wants to read a store that another process holds puts a file beside its rows; the owner,
be it a server, a program or the command line, finds it within a tenth of a second and makes a
checkpoint: a store of its own, which shares the tables by hard links and never changes.

::

    copies/TOKEN.wanted       asked for: made by the reader, removed by the owner
    copies/TOKEN.refused      why there is none
    copies/TOKEN/             the copy
    TOKEN := PID "-" START "-" WHERE "-" RANDOM
                              the process that the copy is for, when it began, and on which system

A copy is removed once that process has gone, or after a day in which nobody has opened it; not
while a reader has it open, which locks it. Where nobody writes the reader makes the copy itself, of
links to the files. This module knows files and opens no store.
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

FOLDER = "copies"
IDLE_S = 86_400.0
"""A copy that nobody has opened for so long is taken for one that was forgotten."""
PATIENCE_S = 30.0
"""How long an owner may take: its checkpoint waits for the turn that is under way."""
SWEEP_S = 60.0
"""How often an owner looks for copies that nobody needs any more."""
_LOOK_S = 0.005
_COARSE_NS = 1_000_000_000
"""A folder may change twice within one tick of its time; after this nothing can hide so."""
_WANTED, _REFUSED = ".wanted", ".refused"
_TOKEN = re.compile("([0-9]+)-([0-9]+)-([0-9a-f]{8})-[0-9a-f]{16}")
_SYSTEM = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid"))
_STAT_START = 19
"""The field of /proc/PID/stat that tells the start, counted behind the name."""


def began(pid: int) -> int:
    """Return when a process began, in the system's ticks; 0 where there is none or nobody tells."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(told.rpartition(")")[2].split()[_STAT_START])


@cache
def where() -> str:
    """Return what tells apart systems, or containers, in which numbers of processes mean others."""
    told = hashlib.sha256()
    with suppress(OSError):
        told.update(_SYSTEM[0].read_bytes())
        told.update(os.readlink(_SYSTEM[1]).encode())
    return told.hexdigest()[:8]


def new_token(pid: int) -> str:
    """Return a name for a copy that is there for a process."""
    return f"{pid}-{began(pid)}-{where()}-{secrets.token_hex(8)}"


LOG_MOST = 1 << 20
"""Bytes of the log that every opening of a copy may have to go through."""


# --- the reader's side --------------------------------------------------------------------------


def place_for(directory: Path, token: str) -> Path:
    """Return where the copy of that name is to be, with the folder for it made."""
    folder = directory / FOLDER
    folder.mkdir(0o700, exist_ok=True)
    return folder / token


def ask(directory: Path, token: str, patience_s: float = PATIENCE_S) -> Path:
    """Have the owner of the store in ``directory`` make a copy, and return where it is.

    Raises StoreLocked where no owner answers in time, StoreError where it cannot.
    """
    target = place_for(directory, token)
    wanted, refused = _beside(target, _WANTED), _beside(target, _REFUSED)
    wanted.touch(0o600)
    deadline = time.monotonic() + patience_s
    try:
        while wanted.exists():
            if time.monotonic() > deadline:
                raise StoreLocked(
                    f"the process that holds the store in {directory} has given no copy of it "
                    f"within {patience_s:g} s: it is busy, or of an older kvstream"
                )
            time.sleep(_LOOK_S)
        if refused.exists():
            why = files.read(refused).decode()
            raise StoreError(f"the owner of the store in {directory}: {why}")
    finally:
        wanted.unlink(missing_ok=True)
        refused.unlink(missing_ok=True)
    return target


def linked(directory: Path, token: str, log_most: int | None = LOG_MOST) -> Path | None:
    """Make a copy of a store that nobody writes, as it lies on disk; others may read meanwhile.

    None where more than ``log_most`` bytes of its log would have to be recovered from. Raises
    StoreLocked where somebody writes.
    """
    place = Directory.acquire(directory, create=False, read_only=True)
    try:
        if log_most is not None and place.size(".log") > log_most:
            return None
        target = place_for(place.path, token)
        with files.scratch(f".{token}-", target.parent) as stage:
            place.link_into(stage / token)
            (stage / token).rename(target)
        return target
    finally:
        place.release()


def touch(copy: Path) -> None:
    """Say that somebody needs a copy now."""
    with suppress(OSError):
        os.utime(copy)


# --- the owner's side ---------------------------------------------------------------------------


class Copying:
    """What an owner does about its copies, each time that it looks."""

    def __init__(self, directory: Path, checkpoint: Callable[[Path], None]) -> None:
        self._folder = directory / FOLDER
        self._checkpoint = checkpoint
        self._seen_ns = 0
        self._next_sweep = 0.0

    def look(self) -> None:
        """Make the copies that are wanted; one ``stat`` where nothing has changed."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except OSError:
            return
        if changed_ns != self._seen_ns or time.time_ns() - changed_ns < _COARSE_NS:
            self._seen_ns = changed_ns
            for target in _wanted(self._folder):
                self._make(target)
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            sweep(self._folder)

    def _make(self, target: Path) -> None:
        try:
            self._checkpoint(target)
        except (KVStreamError, OSError) as error:
            with suppress(OSError):
                _beside(target, _REFUSED).write_text(str(error))
        _beside(target, _WANTED).unlink(missing_ok=True)


def _wanted(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob(f"*{_WANTED}")):
        if _TOKEN.fullmatch(path.name.removesuffix(_WANTED)) and not path.is_symlink():
            yield path.with_name(path.name.removesuffix(_WANTED))


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


# --- sweeping -----------------------------------------------------------------------------------


def sweep(folder: Path) -> None:
    """Remove the copies that nobody needs: of processes that have ended, or long not opened.

    Of a process on another system, or in another container, nobody here knows whether it has ended.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            token = _TOKEN.match(entry.name.removeprefix("."))  # being made
            if token is not None and _is_left(entry, token):
                _remove(Path(entry.path))


def _is_left(entry: os.DirEntry[str], token: re.Match[str]) -> bool:
    pid, start = int(token[1]), int(token[2])
    if token[3] == where() and start and began(pid) != start:
        return True
    with suppress(OSError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > IDLE_S
    return False


def _remove(path: Path) -> None:
    """Remove a copy unless somebody reads it, or a file that was left."""
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
