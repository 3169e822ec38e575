"""The folders of tests: in memory, except for tests of disks.

A store on a disk is waited for longer than it is worked on.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")
"""A file system in memory, as Linux has it; in a container it may be small."""
MEMORY_INFO = Path("/proc/meminfo")
ROOM_MIN = 4 << 30
"""A whole run leaves less than a fifth of it, were nothing removed."""


def fast_folder() -> Path | None:
    """Return where files take the least time; None: where they usually are."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_MIN:
        return None
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None  # some tests make programs
    # What is allowed there may be more than there is.
    found = re.search(r"^MemAvailable: +(\d+) kB$", MEMORY_INFO.read_text(), re.MULTILINE)
    return MEMORY if found and int(found[1]) << 10 >= ROOM_MIN else None


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder where files usually are."""
    with TemporaryDirectory(prefix="kvstream-test-") as folder:
        yield Path(folder)


def as_killed(store: Path, copy: Path) -> Path:
    """Copy the files of an open store as kill -9 would leave them; return the copy.

    A compaction may delete a file while it is copied: then the copy begins again.
    """
    while True:
        try:
            return Path(shutil.copytree(store, copy, ignore=shutil.ignore_patterns("LOCK")))
        except shutil.Error:
            if not store.exists():
                raise
            shutil.rmtree(copy)
