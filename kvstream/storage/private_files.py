"""Files that only their owner can read, whoever makes them and whatever the umask is.

RocksDB makes its files with mode 0644, at any time and in threads of its own; only the umask would
narrow that, and it belongs to the whole process, so it cannot be changed for a while. But the
directory can be told, once, what its new files are like: by a default access control list, which
the system applies in place of the umask. This module knows directories, not stores.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

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
