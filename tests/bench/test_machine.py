"""The neighbour runs when it is told to; counters are read where there are some."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.machine import counters, neighbour
from bench.machine.neighbour import Neighbour, OneCore, last_cache, neighbour_bytes
from bench.processes import process_seconds
from tests.patience import until

MEGABYTE = 1 << 20


@pytest.fixture
def beside() -> Iterator[Neighbour]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("there is one core only")
    with closing(Neighbour(MEGABYTE, cores[:2])) as found:
        yield found


def test_a_neighbour_works_during_the_block_only(beside: Neighbour) -> None:
    pid = beside.process.pid
    with beside.running([]):
        begun = process_seconds(pid)
        until(lambda: process_seconds(pid) > begun + 0.05)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T"))
    stopped = process_seconds(pid)
    time.sleep(0.05)
    assert process_seconds(pid) == stopped


def test_servers_leave_its_core_and_come_back(beside: Neighbour) -> None:
    own, before = os.getpid(), os.sched_getaffinity(0)
    first, last = sorted(before)[:2]
    with beside.running([own]):
        assert os.sched_getaffinity(own) == {first}
        assert os.sched_getaffinity(beside.process.pid) == {last}
    assert os.sched_getaffinity(own) == before


STARTED = """
import sys
from bench.machine.neighbour import Neighbour
print(Neighbour(1 << 20).process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_benchmark_even_if_it_is_stopped() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core only")
    command = [sys.executable, "-c", STARTED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        state = Path(f"/proc/{pid}/stat")
        assert state.exists()
        benchmark.kill()
    until(lambda: not state.exists() or ") Z " in state.read_text())


def test_one_core_is_too_few() -> None:
    with pytest.raises(OneCore):
        Neighbour(MEGABYTE, {0})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [(["32K", "2048K", "30M"], 30 * MEGABYTE), (["1G"], 1024 * MEGABYTE), ([], neighbour.UNKNOWN)],
)
def test_the_last_cache_is_the_largest(sizes: list[str], expected: int, tmp_path: Path) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert last_cache(tmp_path) == expected


def test_a_neighbour_does_not_take_all_memory() -> None:
    assert 0 < neighbour_bytes() <= neighbour.free_memory() // 2


COUNTED = """# started on Mon Nov 30 02:58:30 2026

123456,,instructions:u,1000,100.00,1.10,insn per cycle
789,,cache-misses,1000,100.00,,
"""


def test_counts_are_read() -> None:
    read = counters.read_counts
    assert read(COUNTED, counters.EVENTS) == {"instructions": 123456, "cache-misses": 789}
    missing = COUNTED.replace("789", "<not supported>")
    assert read(missing, counters.EVENTS) == {"instructions": 123456}
    assert read("perf: command failed", counters.EVENTS) == {}


def test_where_nothing_can_be_counted_nothing_is() -> None:
    with counters.counted(os.getpid(), ("no-such-event",)) as counts:
        pass
    assert counts == {}


@pytest.mark.skipif(shutil.which("perf") is None, reason="perf is not installed")
def test_events_of_the_block_are_counted() -> None:
    """By a clock, which perf counts on every machine where it may look at a process."""
    if not counters.countable(("task-clock",)):
        pytest.skip("perf may count nothing here")
    before = time.process_time()
    with counters.counted(os.getpid(), ("task-clock",)) as counts:
        while time.process_time() < before + 0.1:
            pass
    assert 50 <= counts["task-clock"] <= 1000
