"""What a simulated power cut leaves of files that were made, emptied, removed or linked."""

import os
import signal
import sys

import pytest

from tests import forking
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.patience import PATIENCE_S

__all__ = ["fault_library", "faulty_disk"]

PROGRAM = """
import os, sys

def write(mode, content, durable):
    with open(f"{folder}/a", mode) as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())

way, steps = sys.argv[2:]
opened = os.open(sys.argv[1], os.O_RDONLY)
folder = {"path": sys.argv[1], "descriptor": f"/proc/self/fd/{opened}"}[way]
exec(steps)
"""
"""A process that reaches the folder in one of two ways; the store uses the second."""
WAYS = ("path", "descriptor")
SYNCED = "write('w', 'old', True)\n"


def run(disk: FaultyDisk, way: str, steps: str, die_at: int = 0) -> int:
    """Run steps of ``PROGRAM``; return the exit code."""
    child = forking.run(
        [sys.executable, "-c", PROGRAM, str(disk.root), way, steps],
        env=disk.environment(die_at=die_at),
        timeout=PATIENCE_S,
    )
    return child.returncode


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ("write('a', 'more', False)", "old"),
        ("write('w', 'a new one', False)", ""),
        ("os.unlink(f'{folder}/a')\nwrite('w', 'a new one', False)", ""),
        ("os.link(f'{folder}/a', f'{folder}/b')\nos.unlink(f'{folder}/b')", "old"),
        ("os.rename(f'{folder}/a', f'{folder}/b')\nos.rename(f'{folder}/b', f'{folder}/a')", "old"),
    ],
    ids=["appended", "emptied", "made again", "one of two names removed", "renamed"],
)
def test_a_power_cut_leaves_what_was_synced_of_each_file(
    faulty_disk: FaultyDisk, way: str, steps: str, left: str
) -> None:
    assert run(faulty_disk, way, SYNCED + steps) == 0
    faulty_disk.cut_power()
    assert (faulty_disk.root / "a").read_text() == left


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("write('x', '', False)", []),
        ("os.unlink(f'{folder}/b')", ["b"]),
        ("os.rename(f'{folder}/b', f'{folder}/c')", ["b"]),
    ],
    ids=["make", "remove", "rename"],
)
def test_a_process_dies_in_place_of_a_change(
    faulty_disk: FaultyDisk, way: str, change: str, names: list[str]
) -> None:
    for name in names:
        (faulty_disk.root / name).touch()
    assert run(faulty_disk, way, change, die_at=1) == -signal.SIGKILL
    assert os.listdir(faulty_disk.root) == names
