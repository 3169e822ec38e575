"""The program with standard streams that are closed, full, or read by nobody."""

import os
import subprocess
from pathlib import Path

import pytest

from kvstream.cli.exit_codes import ExitCode
from tests.cli.program import Program
from tests.patience import PATIENCE_S

ALL_CLOSED = "<&- >&- 2>&-"


def run(program: Program, redirection: str, *arguments: str) -> tuple[int, str, str]:
    """Run the program as a shell does, and return its exit code, stdout and stderr."""
    line = ["sh", "-c", f'"$@" {redirection}', "sh", *program.command(*arguments)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", "2>/dev/full", ALL_CLOSED])
def test_a_command_does_its_work_with_closed_streams(kvstream: Program, redirection: str) -> None:
    assert run(kvstream, redirection, "add", "events", "a=1")[::2] == (ExitCode.OK, "")
    assert kvstream.lines("len", "events") == ["1"]


def test_an_import_with_closed_streams_adds_all_rows(kvstream: Program, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": "1"}\n' * 1500)
    assert run(kvstream, ALL_CLOSED, "import", "events", str(rows))[0] == ExitCode.OK
    assert kvstream.lines("len", "events") == ["1500"]


@pytest.mark.parametrize(
    "arguments", [["import", "orders", "-"], ["del", "orders", "-"], ["shell"]]
)
def test_what_needs_a_closed_stdin_says_so(orders: Program, arguments: list[str]) -> None:
    code, _, said = run(orders, "<&-", *arguments)
    assert code == ExitCode.UNAVAILABLE
    assert said == "Error: stdin: it is closed: open it, or name a file\n"
    assert orders.lines("len", "orders") == ["5"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "orders", "-"],
        ["read", "orders", "--group", "billing", "--consumer", "c", "--noack"],
    ],
)
def test_what_would_be_lost_with_a_closed_stdout_is_refused(
    orders: Program, arguments: list[str]
) -> None:
    code, _, said = run(orders, ">&-", *arguments)
    assert code == ExitCode.UNAVAILABLE
    assert said.startswith("Error: stdout: it is closed")
    assert orders.one("group", "ls", "orders")["pending"] == 2


@pytest.mark.parametrize(
    "arguments",
    [["range", "orders"], ["export", "orders", "-"], ["ls", "--help"], ["--help"], ["--version"]],
)
def test_output_to_a_full_disk_ends_with_an_error(orders: Program, arguments: list[str]) -> None:
    code, _, said = run(orders, ">/dev/full", *arguments)
    assert code == ExitCode.UNAVAILABLE
    assert said.startswith("Error: stdout: No space left on device (the output is incomplete")
    assert said.count("\n") == 1


def test_a_write_whose_output_fails_says_that_it_is_done(kvstream: Program) -> None:
    code, _, said = run(kvstream, ">/dev/full", "add", "events", "a=1")
    assert code == ExitCode.UNAVAILABLE
    assert "what the command changed stays changed" in said
    assert kvstream.lines("len", "events") == ["1"]


def test_entries_that_could_not_be_shown_stay_pending(orders: Program) -> None:
    arguments = ["read", "orders", "--group", "billing", "--consumer", "c"]
    assert run(orders, ">/dev/full", *arguments)[0] == ExitCode.UNAVAILABLE
    assert orders.one("group", "ls", "orders")["pending"] == 5


def test_an_earlier_error_keeps_its_exit_code_when_stdout_is_full(orders: Program) -> None:
    for redirection in (">/dev/full", ">/dev/full 2>/dev/full"):
        assert run(orders, redirection, "get", "orders", "1-0")[0] == ExitCode.FAILED


@pytest.mark.parametrize("arguments", [["--help"], ["range", "orders"], ["export", "orders", "-"]])
def test_a_reader_that_is_gone_ends_the_program_with_141(
    orders: Program, arguments: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = orders.run(*arguments, stdout=writing)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (ExitCode.BROKEN_PIPE, b"")
