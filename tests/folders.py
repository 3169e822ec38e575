"""The folders of tests: in memory, except for tests of disks.

A store on a disk spends more time waiting than working.
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
"""A full run would need less than a fifth of it if nothing was removed."""


def fast_folder() -> Path | None:
    """Return the fastest folder for files, or None for the default one."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM_MIN:
        return None
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return None  # some tests start programs from there
    # The limit may be above the space that exists.
    found = re.search(r"^MemAvailable: +(\d+) kB$", MEMORY_INFO.read_text(), re.MULTILINE)
    return MEMORY if found and int(found[1]) << 10 >= ROOM_MIN else None


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a folder on the default disk."""
    with TemporaryDirectory(prefix="kvstream-test-") as folder:
        yield Path(folder)


def as_killed(store: Path, copy: Path) -> Path:
    """Copy the files of an open store as kill -9 would leave them; return the copy.

    If a compaction deletes a file during the copy, the copy starts again.
    """
    while True:
        try:
            return Path(shutil.copytree(store, copy, ignore=shutil.ignore_patterns("LOCK")))
        except shutil.Error:
            if not store.exists():
                raise
            shutil.rmtree(copy)
