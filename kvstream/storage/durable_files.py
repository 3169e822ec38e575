"""Small files and directory entries that must survive power loss. Knows nothing of stores."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL_SUFFIX = ".partial"

_OURS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A named pipe would else be waited at for whoever opens its other end."""
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
    """Return what a file is that is no regular one, by the mode that ``stat`` tells."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file, to be closed by the caller.

    OSError where it is anything else, without waiting for it and without following a link.
    """
    descriptor = os.open(path, flags | _OURS)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"is {kind_of(mode)}, not a regular file", str(path))
    return descriptor


def read(path: Path) -> bytes:
    """Return the bytes of a regular file; OSError where it is anything else."""
    with open(opened(path), "rb") as file:
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Put a file with ``content`` at ``path``, at once: power loss leaves it or the old one."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    descriptor = os.open(partial, os.O_WRONLY | _REPLACES, 0o600)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(path)
    sync_directory(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write, for its owner alone, that takes the place of ``path`` at the end.

    It is durable then. Where the block raises nothing has happened; power loss may leave a partial
    file beside, which the next writer replaces.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        with open(os.open(partial, os.O_RDWR | _REPLACES, 0o600), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
