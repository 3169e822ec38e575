"""``kvstream doctor``: does this machine have what a store needs, and what to do where it does not.

Each check is one function, which yields findings; a check that cannot be made on a system yields
none.
"""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click

from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.output import Output, output_only_options
from kvstream.cli.parameters import PathOnly, example
from kvstream.cli.tables import Column, number, size
from kvstream.errors import DISTRIBUTION, install_command
from kvstream.types.clock import perf_counter

OK, WARNING, PROBLEM = "ok", "warning", "problem"
PYTHONS = ((3, 11), (3, 14))
FILES_LEAST = 4096
"""Open files of a busy server: RocksDB's tables, clients, and a few more."""
BUILT = datetime(2026, 11, 1, tzinfo=UTC)
"""A clock before this is wrong: the program did not exist."""
NETWORKS = frozenset(("9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3"))
FLEETING = {
    "overlay": "it ends with the container: mount a volume",
    "ramfs": "it ends with the machine's power: use a disk",
    "tmpfs": "it ends with the machine's power: use a disk",
}
SYNCS = 20
HONEST_S = 30e-6
"""An fsync of a drive takes longer; one with a cache that survives power loss takes this long."""
SLOW_S = 20e-3
INODES_LEAST = 10_000
EXTRAS = {
    "server": ("redis", "hiredis", "lupa", "prometheus_client"),
    "archive": ("obstore", "zstandard", "cryptography"),
    "arrow": ("pyarrow", "numpy"),
    "console": ("starlette", "uvicorn", "jinja2"),
    "spark": ("pyspark", "pandas"),
}
"""The packages of each extra that its code imports first."""
_COLUMNS = (
    Column("check", "check"),
    Column("result", "result"),
    Column("found", "found", wraps=True),
    Column("what to do", "advice", wraps=True),
)


class Finding(NamedTuple):
    """The result of one check: ``ok``, a ``warning`` or a ``problem``."""

    check: str
    result: str
    found: str
    advice: str = ""


@click.command(epilog=example("kvstream doctor", "kvstream doctor /var/lib/kvstream --json"))
@click.argument("directory", type=PathOnly(file_okay=False), default=".")
@output_only_options
def doctor(out: Output, directory: Path) -> None:
    """Check that this machine has what a store needs.

    Checks Python, the compiled parts, packages, limits and the clock; and of the file system of
    DIRECTORY (by default the current one) its kind, locks, fsync, space and owner. A file is
    written there for a moment; a store in it is not opened. The exit code is 1 if there is a
    problem; a warning is something to know.
    """
    rows = [finding._asdict() for check in CHECKS for finding in check(directory)]
    out.table(_COLUMNS, rows)
    if any(row["result"] == PROBLEM for row in rows):
        raise click.exceptions.Exit(int(ExitCode.FAILED))


# --- the program ----------------------------------------------------------------------------------


def _python(_: Path) -> Iterator[Finding]:
    version = sys.version_info[:2]
    least, newest = PYTHONS
    known = f"{least[0]}.{least[1]} to {newest[0]}.{newest[1]}"
    good = least <= version <= newest
    advice = "" if good else f"kvstream is tested on {known}"
    yield Finding("python", OK if good else WARNING, platform.python_version(), advice)


def _compiled_parts(_: Path) -> Iterator[Finding]:
    from kvstream.layout import compiled_state  # not for a help text

    state = compiled_state()
    advice = (
        "install a C compiler and python3-dev, then kvstream again: requests cost twice as much"
    )
    yield Finding("compiled parts", *((OK, state) if state == "yes" else (WARNING, state, advice)))


def _distribution(_: Path) -> Iterator[Finding]:
    """Find the other project that PyPI has under the name kvstream."""
    names = sorted(set(packages_distributions().get("kvstream", ())))
    advice = f"pip uninstall kvstream; pip install --force-reinstall {DISTRIBUTION}"
    if names == ["kvstream"]:
        yield Finding("package", WARNING, "kvstream, the name of another project", advice)
    elif "kvstream" in names:
        yield Finding("package", PROBLEM, "another project may have replaced files of this", advice)
    else:
        yield Finding("package", OK, ", ".join(names) or "not installed by pip")


def _extras(_: Path) -> Iterator[Finding]:
    there = [name for name, packages in EXTRAS.items() if all(map(find_spec, packages))]
    missing = [name for name in EXTRAS if name not in there]
    found = f"{', '.join(there) or 'none'}" + (f"; not {', '.join(missing)}" if missing else "")
    advice = f"where one is wanted: {install_command(','.join(missing))}" if missing else ""
    yield Finding("extras", OK, found, advice)


# --- the machine ----------------------------------------------------------------------------------


def _open_files(_: Path) -> Iterator[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = "no limit" if hard == resource.RLIM_INFINITY else number(hard)
    good = hard == resource.RLIM_INFINITY or hard >= FILES_LEAST
    advice = "" if good else f"allow {number(FILES_LEAST)}: ulimit -n, or LimitNOFILE of systemd"
    yield Finding("open files", OK if good else WARNING, most, advice)


def _clock(directory: Path) -> Iterator[Finding]:
    now = datetime.now(UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    advice = "set the clock, and keep it by NTP: IDs and timers follow it"
    yield Finding("clock", *((OK, found) if now >= BUILT else (PROBLEM, found, advice)))
    with suppress(OSError):
        times = [each.lstat().st_mtime for each in _existing(directory).iterdir()]
        if (ahead_s := max(times, default=0.0) - now.timestamp()) > 60:
            found = f"a file in the directory is {ahead_s:,.0f} s newer than the clock"
            yield Finding("clock", WARNING, found, advice)


# --- the directory --------------------------------------------------------------------------------


def _existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that exists."""
    path = directory.resolve()
    return next(each for each in (path, *path.parents) if each.is_dir())


def _kind_of(directory: Path) -> str:
    """Return the kind of a file system as Linux names it; empty if it is unknown."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[2] == wanted:
                return line.partition(" - ")[2].split()[0]
    return ""


def _file_system(directory: Path) -> Iterator[Finding]:
    kind = _kind_of(_existing(directory))
    if kind in FLEETING:
        yield Finding("file system", WARNING, kind, FLEETING[kind])
    elif kind in NETWORKS or kind.startswith("fuse"):
        advice = "a store belongs on a local disk: locks and fsync of a network may not hold"
        yield Finding("file system", WARNING, kind, advice)
    else:
        yield Finding("file system", OK, kind or "unknown")


def _owner(directory: Path) -> Iterator[Finding]:
    if not directory.exists():
        parent = _existing(directory)
        good = os.access(parent, os.W_OK | os.X_OK)
        advice = "" if good else f"make {directory} yours, or choose another directory"
        where = f"it does not exist; {parent} can {'' if good else 'not '}be written to"
        yield Finding("directory", OK if good else PROBLEM, where, advice)
        return
    status = directory.stat()
    mode = f"owner {status.st_uid}, mode {status.st_mode & 0o7777:04o}"
    if status.st_uid != os.geteuid():
        advice = f"it is not yours (you are user {os.geteuid()}): sudo chown, or run as its owner"
        yield Finding("directory", PROBLEM, mode, advice)
    else:
        yield Finding("directory", OK, mode)


def _locks(directory: Path) -> Iterator[Finding]:
    """Lock one file by two descriptors: the second lock must fail."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=_existing(directory)) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(file.name, "rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield Finding("locks", OK, "flock keeps a second process out")
                return
        advice = "two processes could write to one store: use a local disk"
        yield Finding("locks", PROBLEM, "flock lets a second process in", advice)


def _fsync(directory: Path) -> Iterator[Finding]:
    with suppress(OSError), tempfile.TemporaryFile(dir=_existing(directory)) as file:
        took = []
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            begun = perf_counter()
            os.fsync(file.fileno())
            took.append(perf_counter() - begun)
        seconds = median(took)
        found = f"{seconds * 1000:.2f} ms for 4 KiB"
        if seconds < HONEST_S:
            advice = "no drive is so fast: what is acknowledged may be lost with the power"
            yield Finding("fsync", WARNING, found, advice)
        elif seconds > SLOW_S:
            advice = 'writes with durability="always" wait so long; many share one fsync'
            yield Finding("fsync", WARNING, found, advice)
        else:
            yield Finding("fsync", OK, found)


def _space(directory: Path) -> Iterator[Finding]:
    from kvstream.types.options import free_space_reserve

    figures = os.statvfs(_existing(directory))
    free, reserve = figures.f_bavail * figures.f_frsize, free_space_reserve()
    found = f"{size(free)} free"
    advice = f"below {size(reserve)} a store refuses to grow: free some, or use a larger disk"
    yield Finding("space", *((OK, found) if free > 4 * reserve else (WARNING, found, advice)))
    if figures.f_files:  # some file systems have no limit
        found = f"{number(figures.f_favail)} files can be added"
        good = figures.f_favail > INODES_LEAST
        advice = "a store makes a file for each table: remove small files of others"
        yield Finding("inodes", *((OK, found) if good else (WARNING, found, advice)))


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    *(_python, _compiled_parts, _distribution, _extras, _open_files, _clock),
    *(_file_system, _owner, _locks, _fsync, _space),
)
