"""The processor's counters of a process, by ``perf stat``: instructions and cache misses.

They are not there in most virtual machines and containers; then nothing is counted.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

EVENTS = ("instructions", "cache-misses")
WAIT_S = 10


class PerfFailed(Exception):
    """perf has stopped, or does not answer."""


Counts = dict[str, float]
"""Numbers by event."""


def read_counts(output: str, events: Sequence[str]) -> Counts:
    """Read what ``perf stat -x,`` has written; events that were not counted are left out."""
    counts = {}
    for line in output.splitlines():
        value, _, name, *_ = (*line.split(","), "", "")
        event = name.partition(":")[0]  # instructions:u, if the kernel's are hidden
        if event in events and value.replace(".", "", 1).isdigit():
            counts[event] = float(value)
    return counts


@cache
def countable(events: tuple[str, ...] = EVENTS) -> bool:
    """Whether perf can count these events here."""
    if shutil.which("perf") is None:
        return False
    command = ["perf", "stat", "-x,", "-e", ",".join(events), "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    return read_counts(done.stderr, events).keys() == set(events)


class _Perf:
    """A perf process that is attached to the threads of another process, and counts on command."""

    def __init__(self, pid: int, events: Sequence[str], folder: Path) -> None:
        self._output = folder / "counts"
        commands, self._commands = os.pipe()
        self._acks, acks = os.pipe()
        control, output = f"fd:{commands},{acks}", str(self._output)
        options = ["-x,", "-D", "-1", "--control", control, "-o", output]
        self._process = subprocess.Popen(
            ["perf", "stat", *options, "-e", ",".join(events), "-p", str(pid)],
            pass_fds=(commands, acks),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(acks)

    def ask(self, command: bytes) -> None:
        """Send a command and wait until it is done."""
        os.write(self._commands, command)
        if not os.read(self._acks, 100).startswith(b"ack"):
            raise PerfFailed(f"perf stat did not {command.decode().strip()} its counters")

    def end(self) -> str:
        """Stop perf; return what it has written."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(WAIT_S)
        os.close(self._commands)
        os.close(self._acks)
        return self._output.read_text()


@contextmanager
def counted(pid: int, events: tuple[str, ...] = EVENTS) -> Iterator[Counts]:
    """Count the events of a process during the block; yield a dict that is filled at its end.

    It stays empty where they cannot be counted.
    """
    counts: Counts = {}
    if not countable(events):
        yield counts
        return
    with TemporaryDirectory(prefix="kvstream-perf-") as folder:
        perf = _Perf(pid, events, Path(folder))
        try:
            perf.ask(b"enable\n")
            yield counts
            perf.ask(b"disable\n")
        finally:
            output = perf.end()
        counts.update(read_counts(output, events))
