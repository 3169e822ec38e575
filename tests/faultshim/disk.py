"""Steers the fault shim: what fails, and what a power cut leaves of a directory."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("faultshim.c")


def compiler() -> str | None:
    """Return the path of the C compiler, None where there is none."""
    return shutil.which("cc")


def build(directory: Path) -> Path:
    """Compile the shim into ``directory``."""
    library = directory / "faultshim.so"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE), "-ldl"], check=True, timeout=60)
    return library


class FaultyDisk:
    """One directory, as processes that are started with ``environment()`` see it."""

    def __init__(self, library: Path, root: Path, notes: Path) -> None:
        root.mkdir(exist_ok=True, mode=0o700)
        self.root = root
        self.library = library
        self.notes = notes
        self._synced = notes / "synced"
        self._control = notes / "control"

    def environment(self, *, die_at: int = 0, delay_us: int = 0) -> dict[str, str]:
        """Return the environment for a child; it dies in place of its ``die_at``-th change."""
        return os.environ | {
            "LD_PRELOAD": str(self.library),
            "KVSTREAM_FAULT_ROOT": str(self.root),
            "KVSTREAM_FAULT_SYNCED": str(self._synced),
            "KVSTREAM_FAULT_CONTROL": str(self._control),
            "KVSTREAM_FAULT_DIE_AT": str(die_at),
            "KVSTREAM_FAULT_DELAY_US": str(delay_us),
        }

    def fail(self, call: str, number: int, suffix: str = "") -> None:
        """Make every ``call`` (sync, write or open) on files with that suffix fail from now on."""
        assert number in errno.errorcode
        partial = self._control.with_suffix(".partial")
        partial.write_text(f"{call} {number} {suffix}\n")
        partial.rename(self._control)

    def heal(self) -> None:
        """Let every call succeed again."""
        self._control.unlink()

    def syncs(self) -> int:
        """Return how many files were made durable so far."""
        return sum(line.startswith("sync") for line in self._lines())

    def cut_power(self) -> int:
        """Cut every file to what was durable, once its writers are dead; return the bytes lost."""
        durable: dict[int, int] = {}
        for line in self._lines():
            change, inode, *size = line.split()
            if change == "sync":
                durable[int(inode)] = int(size[0])
            else:
                durable.pop(int(inode), None)
        lost = 0
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                if not status.st_size:  # its process may be killed before it notes a new file
                    continue
                kept = durable.get(status.st_ino, 0)
                assert kept <= status.st_size, f"{path.name}: its creation was missed"
                lost += status.st_size - kept
                os.truncate(path, kept)
        return lost

    def forget(self) -> None:
        """Take what lies on the disk now as durable: a new process starts."""
        lines = []
        for path in self.root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                lines.append(f"sync {path.stat().st_ino} {path.stat().st_size}\n")
        self._synced.write_text("".join(lines))

    def _lines(self) -> list[str]:
        return self._synced.read_text().splitlines() if self._synced.exists() else []
