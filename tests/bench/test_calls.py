"""Hot paths call few Python functions and allocate little: the gate of `python -m bench calls`."""

import gc
from pathlib import Path
from shutil import which

import pytest
from click.testing import CliRunner

from bench import calls
from bench.__main__ import main
from bench.machine.allocations import AllocationCounter
from kvstream.server.compiled import twins

pytestmark = [
    pytest.mark.skipif(twins is None, reason="compiled code does a part of the calls"),
    pytest.mark.skipif(which("cc") is None, reason="a library that counts is built"),
]


def test_no_hot_path_does_much_more_than_before(tmp_path: Path) -> None:
    counts, expected = calls.measure(tmp_path), calls.read_expected()
    assert counts.keys() == expected.keys()
    assert calls.excesses(counts, expected) == []


def test_the_command_fails_above_the_expected_numbers(
    tmp_path: Path,
) -> None:
    file = tmp_path / "calls.json"
    command = ["calls", "--file", str(file)]
    assert CliRunner().invoke(main, [*command, "--write"]).exit_code == 0
    known = calls.read_expected(file)
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
    file.write_text("{}")
    failed = CliRunner().invoke(main, command)
    assert failed.exit_code == 1
    assert line.partition(",")[0] in failed.output


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
