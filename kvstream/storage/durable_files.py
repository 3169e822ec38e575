"""Small files and directory entries that must survive power loss. Knows nothing of stores."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PARTIAL_SUFFIX = ".partial"


def write(path: Path, content: bytes) -> None:
    """Put a file with ``content`` at ``path``, at once: power loss leaves it or the old one."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(partial, flags, 0o600)
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
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(partial, flags, 0o600), "w+b") as file:
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
