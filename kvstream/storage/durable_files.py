"""Small files and directory entries that must survive power loss. Knows nothing of stores."""

import os
from pathlib import Path

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


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
