"""A process that removes what was fetched of archives, also after the death of all that used it.

It needs nothing but the standard library, so that it starts at once and stays small::

    python remover.py FOLDER PID START IDLE_SECONDS PAUSE_SECONDS

FOLDER is removed when the process PID, which started at START (clock ticks since boot), has ended,
or when nobody has used it for IDLE_SECONDS: a user holds a shared lock on it, and touches it.
"""

import fcntl
import os
import shutil
import sys
import time
from contextlib import suppress


def main(folder: str, pid: int, start: int, idle_s: float, pause_s: float) -> None:
    """Go into the background, and remove the folder when its time has come."""
    if os.fork():
        return
    os.setsid()
    os.chdir("/")
    while True:
        time.sleep(pause_s)
        has_ended = read_start_time(pid) != start
        with suppress(FileNotFoundError):
            if (has_ended or is_idle(folder, idle_s)) and remove(folder, idle_s, has_ended):
                return
            continue
        return  # somebody else removed it


def read_start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def is_idle(folder: str, idle_s: float) -> bool:
    return time.time() - os.stat(folder).st_mtime > idle_s


def remove(folder: str, idle_s: float, has_ended: bool) -> bool:
    """Remove the folder, unless somebody uses it; return whether it was removed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not has_ended and not is_idle(folder, idle_s):  # it was used in between
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
