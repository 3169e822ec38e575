"""Hot paths call few Python functions: the gate of `python -m bench calls`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import calls
from bench.__main__ import main
from kvstream.resp import twins

pytestmark = pytest.mark.skipif(twins is None, reason="compiled code does a part of the calls")


def test_no_hot_path_calls_many_more_functions_than_before(tmp_path: Path) -> None:
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
    assert calls.excesses(known, known) == []
    (line,) = calls.excesses(known, {**known, "XADD": less})
    assert line == f"XADD: {known['XADD'].calls} calls, expected {less.calls}"
    file.write_text("{}")
    failed = CliRunner().invoke(main, command)
    assert failed.exit_code == 1
    assert line.partition(",")[0] in failed.output
