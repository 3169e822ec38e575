"""Views: folders of links to the files of a store, through which it is opened but not written to.

A reader's view lies in the folder for temporary files, since readers change nothing in the store.
Its owner holds a lock on it, which goes with the process; so a view that can be locked was left by
one that was killed, and the next reader removes it. This module knows files, not stores.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from kvstream.storage import fork

_PREFIX = "kvstream-view-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class View:
    """A folder of links to the files of a store; RocksDB writes what it must beside them."""

    def __init__(
        self, path: Path, files: Iterable[os.DirEntry[str]], descriptor: int | None = None
    ) -> None:
        self.path = path
        self._descriptor = descriptor
        fork.register(self)
        try:
            for entry in files:
                (path / entry.name).symlink_to(entry.path)
        except BaseException:
            self.remove()
            raise

    @classmethod
    def of_reader(cls, files: Iterable[os.DirEntry[str]]) -> Self:
        """Make a view in the folder for temporary files, and remove those that were left there."""
        sweep()
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            descriptor = _held(path)
            if descriptor is not None:
                return cls(path, files, descriptor)

    def remove(self) -> None:
        """Remove the links; idempotent."""
        fork.unregister(self)
        shutil.rmtree(self.path, ignore_errors=True)
        self.refuse_after_fork()

    def refuse_after_fork(self) -> None:
        """Close this process's descriptor: in a child, the lock then ends with the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def sweep() -> None:
    """Remove the views of readers that were killed: those of this user that nobody has locked."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):  # locked, or gone meanwhile, or not ours to look at
                    _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, _FOLDER)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _held(path: Path) -> int | None:
    """Lock a new view; None where another reader has taken it for one that was left."""
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # where folders cannot be locked nobody sweeps either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if _is_at(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), found)
