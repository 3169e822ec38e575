"""Small files that survive power loss, and files that only their owner can read.

RocksDB creates its files with mode 0644, at any time, in its own threads. The umask could narrow
that, but it belongs to the whole process. So the directory gets a default access control list once,
which the system applies to new files instead of the umask. This module knows nothing of stores.
"""

import errno
import fcntl
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

DIRECTORY_MODE = 0o700
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
FILE_MODE = 0o600
_DEFAULT_ACL = "system.posix_acl_default"
_ACL_VERSION = Struct("<I").pack(2)
_ENTRY = Struct("<HHI")
_NOBODY_NAMED = 0xFFFFFFFF
_OWNER, _GROUP, _OTHERS = 0x01, 0x04, 0x20
_OWNER_ALONE = _ACL_VERSION + b"".join(
    _ENTRY.pack(tag, permissions, _NOBODY_NAMED)
    for tag, permissions in ((_OWNER, 0o7), (_GROUP, 0), (_OTHERS, 0))
)
"""An ACL as in acl(5): new files in the directory give group and others no permission."""
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


@contextmanager
def scratch(prefix: str, parent: Path) -> Iterator[Path]:
    """Create a folder and remove it at the end; a child forked meanwhile does not remove it."""
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is the one at a path; OSError if there is none."""
    return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, as far as possible."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def keep_private(directory: Path) -> None:
    """Make new files and directories in ``directory`` readable by the owner alone.

    Does nothing on a file system without access control lists, and on macOS.
    """
    if hasattr(os, "setxattr"):
        with suppress(OSError):
            os.setxattr(directory, _DEFAULT_ACL, _OWNER_ALONE)


def make_private(directory: Path) -> None:
    """Remove the permissions of group and others from the files in ``directory``.

    RocksDB may delete files meanwhile.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    take_from_others(entry.path)


def take_from_others(path: str | Path) -> None:
    """Remove the permissions of group and others from a file or folder; leave a link alone."""
    mode = os.stat(path, follow_symlinks=False).st_mode
    if not stat.S_ISLNK(mode) and mode & _OF_OTHERS:
        os.chmod(path, stat.S_IMODE(mode) & stat.S_IRWXU)


PARTIAL_SUFFIX = ".partial"

_OURS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Without O_NONBLOCK opening a named pipe would wait for its other end."""
_REPLACES = os.O_CREAT | os.O_TRUNC | _OURS
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def kind_of(mode: int) -> str:
    """Return the name of the kind of a file that is not a regular one, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file, which the caller closes.

    Raises OSError for anything else; follows no link and waits for no pipe.
    """
    descriptor = os.open(path, flags | _OURS)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"is {kind_of(mode)}, not a regular file", str(path))
    return descriptor


def read(path: Path) -> bytes:
    """Return the bytes of a regular file; raise OSError for anything else."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def sync(descriptor: int) -> None:
    """Make an open file or directory durable.

    On macOS ``fsync`` leaves data in the cache of the drive, and F_FULLFSYNC writes that out
    (fsync(2) of macOS). A file system may lack it, as those of networks do.
    """
    if _FULL_SYNC is not None:
        with suppress(OSError):
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def sync_drive(directory: Path) -> None:
    """Write out the cache of the drive, after files were synced by others, where that is needed."""
    if _FULL_SYNC is not None:
        sync_directory(directory)


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably: power loss leaves the old content or the new."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    descriptor = os.open(partial, os.O_WRONLY | _REPLACES, FILE_MODE)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        sync(descriptor)
        partial.rename(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def overwrite(path: Path, content: bytes) -> None:
    """Write over the beginning of a file in place, durably."""
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, content, 0)
        sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a path to the errors of the block: the system adds it only to errors of opening."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class _Named(io.FileIO):
    """A file whose errors of writing have its name."""

    path: Path

    def write(self, data: Any, /) -> int:
        with naming(self.path):
            return super().write(data)


def open_named(descriptor: int, path: Path) -> BinaryIO:
    """Return a file for reading and writing, whose errors of writing name ``path``."""
    raw = _Named(descriptor, "r+")
    raw.path, raw.name = path, str(path)
    return io.BufferedRandom(raw)


@contextmanager
def replacing(path: Path, mode: int = FILE_MODE) -> Iterator[BinaryIO]:
    """Open a file, by default a private one, that durably replaces ``path`` after the block.

    If the block raises, ``path`` stays as it was. The end of the process may leave a partial file
    beside it, which has the process's number: two processes that write one path do not mix.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL_SUFFIX}")
    try:
        with open_named(os.open(partial, os.O_RDWR | _REPLACES, mode), path) as file:
            yield file
            file.flush()
            with naming(path):
                sync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
