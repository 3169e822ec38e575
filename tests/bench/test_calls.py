"""Hot paths call few Python functions and allocate little: the gate of `python -m bench calls`.

It counts in a process of its own: what other tests of a process have left, allocates too.
"""

import gc
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from bench import calls
from bench.machine.allocations import AllocationCounter
from kvstream.server.compiled import twins
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.skipif(twins is None, reason="compiled code does a part of the calls"),
    pytest.mark.skipif(which("cc") is None, reason="a library that counts is built"),
]


def count(file: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the command with a file of expected numbers."""
    command = [sys.executable, "-m", "bench", "calls", "--file", str(file), *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> calls.Counts:
    """The numbers that the command finds, and writes as the expected ones."""
    file = tmp_path_factory.mktemp("calls") / "calls.json"
    done = count(file, "--write")
    assert done.returncode == 0, done.stderr
    return calls.read_expected(file)


def test_no_hot_path_does_much_more_than_before(known: calls.Counts) -> None:
    expected = calls.read_expected()
    assert known.keys() == expected.keys()
    assert calls.excesses(known, expected) == []


def test_the_command_fails_above_the_expected_numbers(tmp_path: Path, known: calls.Counts) -> None:
    less = known["XADD"]._replace(calls=int(known["XADD"].calls / (1 + calls.SLACK)) - 1)
    fewer = known["PING"]._replace(
        allocations=int(known["PING"].allocations / (1 + calls.SLACK)) - 1
    )
    assert calls.excesses(known, known) == []
    (line,) = calls.excesses(known, {**known, "XADD": less})
    assert line == f"XADD: {known['XADD'].calls} calls, expected {less.calls}"
    (second,) = calls.excesses(known, {**known, "PING": fewer})
    found, limit = known["PING"].allocations, fewer.allocations
    assert second == f"PING: {found} allocations, expected {limit}"
    file = tmp_path / "calls.json"
    file.write_text("{}")
    failed = count(file)
    assert failed.returncode == 1
    assert line.partition(",")[0] in failed.stderr


def test_allocations_are_counted(tmp_path: Path) -> None:
    """Of a list of ten objects: the objects, the list, and the array of its items."""
    counter, kept = AllocationCounter(tmp_path), [[object()]]

    def keep() -> None:
        kept[0] = [object() for _ in range(10)]

    assert counter.count(lambda: None) == (0, 0)
    for _ in range(3):  # the list comprehension grows its array some times
        found = counter.count(keep)
    assert 12 <= found.made <= 20
    assert found.kept == 0
    assert counter.count(kept.clear).kept <= -11
    assert gc.isenabled()


def test_a_call_that_fails_ends_the_counting(tmp_path: Path) -> None:
    counter = AllocationCounter(tmp_path)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            counter.count(lambda: 1 // 0)
    assert counter.count(lambda: None) == (0, 0)
