"""The folder of a machine with what tasks have fetched of archives.

The tasks of one executor share it, and with a master such as ``local[2]`` so does the planner::

    BASE/kvstream-archives-UID/TOKEN/
    TOKEN := PID "-" START "-" SYSTEM "-" ARCHIVE        the JVM, as in the names of copies

``BASE`` is the option ``stagingPath``, or the folder of temporary files. A folder is removed when
its JVM has ended, or ten minutes after its last use: a later task fetches again. remover.py does
that; what it leaves if it is killed, the next read of an archive removes.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from kvstream.engine import reader_snapshots
from kvstream.errors import UnsafeDirectory
from kvstream.spark.read import remover
from kvstream.spark.read.stores import driver
from kvstream.storage import files

IDLE_S = 600.0
PAUSE_S = 5.0
"""How often the remover looks."""


@contextmanager
def shared_folder(url: str, base: str | None = None, idle_s: float = IDLE_S) -> Iterator[Path]:
    """Give the folder of an archive, and keep it while it is used."""
    parent = _private(Path(base or tempfile.gettempdir()) / f"kvstream-archives-{os.geteuid()}")
    reader_snapshots.sweep(parent)
    pid = driver()
    archive = sha256(url.encode()).hexdigest()[:16]
    start = reader_snapshots.read_start_time(pid)
    folder = parent / f"{pid}-{start}-{reader_snapshots.system_id()}-{archive}"
    descriptor = _lock(folder, (pid, start), idle_s)
    try:
        reader_snapshots.touch(folder)
        yield folder
    finally:
        reader_snapshots.touch(folder)
        os.close(descriptor)


def _private(parent: Path) -> Path:
    """Return the folder of this user; UnsafeDirectory if another user can write to it."""
    parent.mkdir(files.DIRECTORY_MODE, parents=True, exist_ok=True)
    status = parent.lstat()
    if parent.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UnsafeDirectory(f"{parent} is not a folder of this user alone: remove it")
    return parent


def _lock(folder: Path, owner: tuple[int, int], idle_s: float) -> int:
    """Return a descriptor of the folder with a shared lock; make the folder if it is not there."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(files.DIRECTORY_MODE)
            _start_remover(folder, owner, idle_s)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if files.is_at(descriptor, folder):
                    return descriptor
            os.close(descriptor)  # it was removed while we waited


def _start_remover(folder: Path, owner: tuple[int, int], idle_s: float) -> None:
    words = [sys.executable, "-I", "-S", remover.__file__, str(folder)]
    words += [*map(str, owner), str(idle_s), str(PAUSE_S)]
    with suppress(OSError):  # then the next read removes it
        subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
