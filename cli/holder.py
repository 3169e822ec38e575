"""Which process holds a store, as far as the system tells: Linux lists the locks in a file."""

import os
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path("/proc/locks")
COMMAND_LENGTH_MAX = 60


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a store."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")


def holder_of(directory: Path) -> Holder | None:
    """Return a process that holds the lock on ``directory``; None where nobody can tell."""
    try:
        status = os.stat(directory)
        listed = LOCKS.read_text("ascii", "replace")
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in listed.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:262147 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == device:
            pid = int(words[4])
            return Holder(pid, _command(pid)) if pid > 0 else None
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace")
    return text if len(text) <= COMMAND_LENGTH_MAX else text[: COMMAND_LENGTH_MAX - 3] + "..."
