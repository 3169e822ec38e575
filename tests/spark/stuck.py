"""Show the stacks of the processes of a program that hangs.

Python that has imported this module writes the stacks of its threads, and Java those of its own,
to their outputs. So a program must use the same file for both of its outputs.
"""

import faulthandler
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LIMIT_S = 250.0
"""A program of a test takes a tenth of it, and a third of it on a busy machine."""
SHOWING_S = 10.0
"""The time for writing the stacks."""
TOLD_MOST = 30_000

faulthandler.register(signal.SIGUSR1)


def run(
    words: Sequence[str],
    mark: str,
    output: BinaryIO,
    limit_s: float = LIMIT_S,
    showing_s: float = SHOWING_S,
    **options: object,
) -> int:
    """Run a program, and return its exit code; raise AssertionError with all stacks if it hangs.

    ``mark`` is a setting in the environment of all its processes, and of no others: ``NAME=value``.
    """
    process = subprocess.Popen(
        words, stdout=output, stderr=output, start_new_session=True, **options
    )  # type: ignore[call-overload]
    try:
        return int(process.wait(limit_s))
    except subprocess.TimeoutExpired:
        found = show_stacks(mark)
        with suppress(subprocess.TimeoutExpired):
            process.wait(showing_s)
        text = f"no end within {limit_s:g} s:\n{found}\n{text_of(output)}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    raise AssertionError(text)


def text_of(output: BinaryIO) -> str:
    """Return the end of the text of a file."""
    return Path(output.name).read_text(errors="replace")[-TOLD_MOST:]


def show_stacks(mark: str) -> str:
    """Make the processes with a mark show their stacks; return their descriptions."""
    lines = []
    for pid, words in _marked(mark):
        is_java = b"java" in words.split(b"\0", 1)[0]
        number = signal.SIGQUIT if is_java else signal.SIGUSR1
        heeds = is_java or _heeds(pid, number)
        with suppress(OSError):
            place = Path(f"/proc/{pid}/wchan").read_text()
            lines.append(f"{pid} in {place}, shown: {heeds}: {words[:200]!r}")
            if heeds:
                os.kill(pid, number)
    return "\n".join(lines)


def _marked(mark: str) -> Iterator[tuple[int, bytes]]:
    """Yield the IDs of the processes with a mark, and their arguments."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes().split(b"\0"):
                yield int(place.name), (place / "cmdline").read_bytes()


def _heeds(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal: it would end the others."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status: Mapping[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
        return bool(int(status["SigCgt"], 16) >> number - 1 & 1)
    return False
