"""Small files and directory entries that must survive power loss. Knows nothing of stores.

Files that only their owner can read, whoever makes them and whatever the umask is.

RocksDB makes its files with mode 0644, at any time and in threads of its own; only the umask would
narrow that, and it belongs to the whole process, so it cannot be changed for a while. But the
directory can be told, once, what its new files are like: by a default access control list, which
the system applies in place of the umask. This module knows directories, not stores.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import BinaryIO

DIRECTORY_MODE = 0o700
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
"""As in acl(5): what is made in the directory has no permission for group and others."""


@contextlib.contextmanager
def scratch(prefix: str, parent: Path) -> Iterator[Path]:
    """Give a new folder that goes at the end; a child forked meanwhile leaves it to its parent."""
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder)


def keep_private(directory: Path) -> None:
    """Have new files in ``directory``, and in directories made there, be the owner's alone.

    On a file system without access control lists this does nothing, and new files are as RocksDB
    and the umask make them.
    """
    with contextlib.suppress(OSError):
        os.setxattr(directory, _DEFAULT_ACL, _OWNER_ALONE)


def make_private(directory: Path) -> None:
    """Take from others what they may do with the files that are in ``directory``.

    RocksDB may be at work there: a compaction of its own deletes files that were just listed.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                _close_to_others(entry)


def _close_to_others(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
        os.chmod(entry.path, FILE_MODE)


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
