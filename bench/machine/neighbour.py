"""A neighbour: a process that streams through memory, as others do on a shared machine.

It copies more than the last cache holds from end to end on a core of its own, while the servers
have the other cores. What they then fetch is seldom in a cache that they share with it.
``python -m bench.machine.neighbour BYTES CORE`` runs it.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PR_SET_PDEATHSIG = 1
UNKNOWN = 32 << 20
"""The size of a last cache of which the system tells nothing."""
TIMES = 2
"""The memory of the neighbour, in last caches."""
MEMORY_SHARE = 0.25
"""The most that it takes of the free memory: a virtual machine may show the cache of its host."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class OneCore(Exception):
    """There is no core for a neighbour."""


def last_cache(caches: Path = CACHES) -> int:
    """Return the bytes of the largest cache of the first core."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    return max((int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size), default=UNKNOWN)


def free_memory() -> int:
    """Return the bytes of memory that a process may take without swapping."""
    with open("/proc/meminfo") as lines:
        found = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    return found["MemAvailable"] << 10


def neighbour_bytes() -> int:
    """Return the size of the memory through which a neighbour streams."""
    return min(TIMES * last_cache(), int(MEMORY_SHARE * free_memory()))


class Neighbour:
    """The process, which is stopped except during ``running``."""

    def __init__(self, size: int, cores: Iterable[int] = os.sched_getaffinity(0)) -> None:
        """Start it on the last of the cores. Raises OneCore."""
        *self._others, own = sorted(cores)
        if not self._others:
            raise OneCore("a neighbour needs a core of its own, and there is one core only")
        command = [sys.executable, "-m", "bench.machine.neighbour", str(size), str(own)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self._output: IO[bytes] = self.process.stdout
        self._output.readline()  # it has its memory
        self.process.send_signal(signal.SIGSTOP)

    @contextmanager
    def running(self, servers: Sequence[int]) -> Iterator[None]:
        """Let it run during the block, with the processes of these IDs on the other cores."""
        with ExitStack() as stack:
            for pid in servers:
                stack.enter_context(on_cores(pid, self._others))
            self.process.send_signal(signal.SIGCONT)
            stack.callback(self.process.send_signal, signal.SIGSTOP)
            yield

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


def _threads(pid: int) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


@contextmanager
def on_cores(pid: int, cores: Sequence[int]) -> Iterator[None]:
    """Run all threads of a process on some cores during the block."""
    before = os.sched_getaffinity(pid)
    _move(pid, cores)
    try:
        yield
    finally:
        _move(pid, before)


def _move(pid: int, cores: Iterable[int]) -> None:
    for thread in _threads(pid):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cores)


def stream(size: int, core: int) -> None:
    """Copy one half of the memory onto the other until the process that started this ends."""
    os.sched_setaffinity(0, [core])
    # A stopped process cannot see that its parent has ended: the kernel has to kill it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    memory = memoryview(bytearray(b"x") * size)  # written: unwritten pages share one page
    half = size // 2
    print(flush=True)
    while True:
        memory[:half] = memory[half : 2 * half]


if __name__ == "__main__":
    stream(int(sys.argv[1]), int(sys.argv[2]))
