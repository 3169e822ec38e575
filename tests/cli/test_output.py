"""Tables, records and bars, as a terminal shows them."""

import csv
import io
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvstream import Entry, Store, StreamID
from kvstream.cli import main
from kvstream.cli.maintenance import _report_text
from kvstream.cli.output import PAGE, Output, progress_bar
from kvstream.cli.tables import Column, count_column, id_columns, name_column, plain
from kvstream.storage.database import RecoveryReport
from tests.cli.program import Program, completed


class TerminalText(io.StringIO):
    """Text that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal() -> Iterator[TerminalText]:
    """Make stdout and stderr a terminal of 60 columns."""
    text = TerminalText()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(text), redirect_stderr(text):
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "60")
        yield text


COLUMNS = (name_column("name"), count_column("count"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (True, "yes"), (False, "no"), (5, "5"), (b"\xff", r"\xff"), ("a\n", r"a\n")],
)
def test_values_are_shown_plainly(value: object, shown: str) -> None:
    assert plain(value) == shown


def test_tables_in_pipes_are_aligned_without_frames(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": b"a", "count": 5}, {"name": b"long name", "count": 1000}]
    assert Output(for_programs=False, max_width=None).table(COLUMNS, rows) == 2
    assert capsys.readouterr().out == "name       count\na              5\nlong name  1,000\n"


def test_columns_without_room_are_named_once() -> None:
    rows = [{"name": b"orders", "count": at, "other": 1500} for at in range(PAGE + 1)]
    columns = (*COLUMNS, Column("kind", "other", spare=True), *id_columns("id", "other"))
    with on_terminal() as terminal:
        Output(for_programs=False, max_width=60).table(columns, rows)
    lines = terminal.getvalue().splitlines()
    assert [line for line in lines if "not shown" in line] == [lines[0]]
    assert click.unstyle(lines[0]) == "not shown: time (widen the terminal, or use --json)"
    assert "kind" in lines[1]


def test_an_empty_table_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert Output(for_programs=False, max_width=None).table(COLUMNS, []) == 0
    assert capsys.readouterr().out == ""


def test_tables_on_a_terminal_are_framed_and_show_markup_as_text() -> None:
    with on_terminal() as terminal:
        rows = [{"name": b"[red]x[/]", "count": 1000}]
        Output(for_programs=False, max_width=None).table(COLUMNS, rows)
    shown = terminal.getvalue()
    assert "[red]x[/]" in shown
    assert "1,000" in shown
    assert "─" in shown


def test_names_are_cut_before_numbers_on_a_terminal_and_nothing_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"name": b"orders:" + b"x" * 300, "count": 856_000, "other": 1500}]
    columns = (*COLUMNS, count_column("other"), *id_columns("id", "other"))
    Output(for_programs=False, max_width=None).table(columns, rows)
    assert "x" * 300 in capsys.readouterr().out
    with on_terminal() as terminal:
        Output(for_programs=False, max_width=60).table(columns, rows)
    line = terminal.getvalue().splitlines()[-1]
    assert line.split() == [line.split()[0], "856,000", "1,500", "1500"]
    assert line.startswith("orders:xxx")
    assert "…" in line
    assert len(line) <= 60


def test_the_second_page_of_a_table_has_no_title() -> None:
    rows = [{"name": b"a", "count": at} for at in range(PAGE + 1)]
    with on_terminal() as terminal:
        Output(for_programs=False, max_width=None).table(COLUMNS, rows)
    assert terminal.getvalue().count("count") == 1
    assert terminal.getvalue().count("\n") == PAGE + 3


def test_a_record_on_a_terminal_is_a_line_for_each_value() -> None:
    with on_terminal() as terminal:
        Output(for_programs=False, max_width=None).record({"some_name": 1, "b": None}, {"b": repr})
    assert [line.split() for line in terminal.getvalue().splitlines()] == [
        ["some", "name", "1"],
        ["b", "None"],
    ]


def test_json_is_ascii_on_an_ascii_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(StreamID(1, 0), {b"a": "ü".encode()})
    for encoding, shown in (("ascii", r"\u00fc"), ("utf-8", "ü"), (None, r"\u00fc")):
        text = TerminalText()
        text.encoding = encoding  # type: ignore[assignment]
        monkeypatch.setattr(sys, "stdout", text)
        Output(for_programs=True, max_width=None).entries([entry])
        assert shown in text.getvalue()


@pytest.mark.parametrize("total", [None, 10])
def test_a_bar_shows_rows_and_their_rate_on_a_terminal(total: int | None) -> None:
    with on_terminal() as terminal, progress_bar("import [x]", total, quiet=False) as watch:
        watch(5, 1234)
    shown = terminal.getvalue()
    assert "import [x]" in shown
    assert "1,234 rows" in shown


def test_quiet_shows_no_bar() -> None:
    with on_terminal() as terminal, progress_bar("import", 10, quiet=True) as watch:
        watch(5, 5)
    assert terminal.getvalue() == ""


def test_a_recovery_reports_the_loss() -> None:
    report = RecoveryReport(
        Path("store"), 7, 5, damage="the log is torn", promised=9, skipped_records=True
    )
    lines = _report_text(report).splitlines()
    assert lines[0] == "recovered: 7 rows read, all sound"
    assert lines[2] == "lost: writes 6 to 9 (4)"
    assert "check --repair" in lines[3]


def test_the_shell_completes_only_printable_names(orders: Program) -> None:
    orders("add", "bell\x07", "a=1")
    assert completed("--store", str(orders.directory)) == ["orders", "orders:2025"]
    assert completed() == []
    assert completed("--store", str(orders.directory / "missing")) == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["range", "s"]], ids=" ".join)
def test_characters_missing_from_the_encoding_are_escaped(
    kvstream: Program, arguments: list[str], encoding: str
) -> None:
    with Store.open(kvstream.directory) as store:
        for name in ("s", "sü", b"s\xff\xc3\xbc"):
            store.stream(name).add({"Grüße": "☃", "raw": b"\xff"})
    words = ["--store", str(kvstream.directory), *arguments]
    result = CliRunner(charset=encoding).invoke(main, words)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = result.stdout_bytes.decode(encoding)
    assert ("☃" in shown) is (encoding == "utf-16" and arguments[0] == "range")


def test_csv_has_a_title_line_and_the_values_of_json(orders: Program) -> None:
    shown = orders.lines("ls", "--format", "csv")
    assert shown[0] == "stream,type,length,groups,last_id,ttl,lag,size"
    assert next(csv.reader(shown[1:]))[:5] == ["orders", "stream", "5", "1", "1700000004000-0"]
    assert shown[2].startswith("orders:2025,stream,1,0,1600000000000-0,,,")
    assert orders.lines("len", "orders", "--format", "csv") == ["length", "5"]
    assert orders.one("len", "orders") == json.loads(
        orders("len", "orders", "--format", "json").stdout
    )


def test_import_reads_entries_in_csv(orders: Program) -> None:
    orders("add", "orders", "note=", "bin=\udcff")
    shown = orders("range", "orders", "--format", "csv").stdout
    assert shown.startswith("kvstream:id,sku,qty,note,bin,kvstream:fields\n")
    orders("import", "copy", "--format", "csv", input=shown)
    assert orders.json("range", "copy") == orders.json("range", "orders")
    read = orders.lines(
        "read", "orders", "--group", "billing", "--consumer", "c", "--format", "csv"
    )
    assert read[0].startswith(("kvstream:id", "stream,id"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls 'nobody:*'", "no streams"),
        ("group ls bare", "no groups"),
        ("consumer ls bare g", "no consumers"),
        ("pending bare g --list", "no pending entries"),
        ("queue ls", "no queues: a stream becomes one with its first worker"),
        ("jobs ls", "no jobs"),
        ("delayed ls bare", "no delayed messages"),
        ("schedule ls", "no schedules"),
    ],
)
def test_an_empty_list_has_a_message_only_on_a_terminal(
    orders: Program, words: str, said: str
) -> None:
    orders("add", "bare", "n=1")
    if " g" in words and "group" not in words:
        orders("group", "create", "bare", "g")
    result = orders(*shlex.split(words))
    assert (result.stdout, result.stderr) == ("", f"{said}\n")
    result = orders(*shlex.split(words), "--json")
    assert (result.stdout, result.stderr) == ("", "")
