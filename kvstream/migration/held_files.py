"""Files that one process holds and others look at: whether it is at work is told by the lock.

A process that dies lets go of its files; so nothing has to be cleared away behind a kill.
"""

import fcntl
import os
import time
from pathlib import Path

from kvstream.errors import StoreLocked

_MODE = 0o600
_FOLDER_MODE = 0o700
_TRIES, _PAUSE_S = 5, 0.02


def hold(path: Path, flags: int = 0) -> int:
    """Open a file, made where there is none, and return its descriptor, locked.

    StoreLocked where another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, _MODE)
    if not _lock(descriptor):
        os.close(descriptor)
        raise StoreLocked(f"the same migration is running already ({path})")
    return descriptor


def _lock(descriptor: int) -> bool:
    """Hold the file, against all but those who only look whether somebody does."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def is_held(descriptor: int) -> bool:
    """Tell whether a process holds a file that we have opened to look at."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
