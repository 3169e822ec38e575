"""Import: every kind of row, bad lines, IDs, and resuming where an earlier run stopped."""

import json
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvstream import Store
from kvstream.cli import session
from kvstream.cli.importing import batches
from kvstream.cli.importing.batches import BATCH_ROWS
from kvstream.cli.importing.command import REPORTED_MAX
from kvstream.cli.session import IMPORT_PREFIX, atomically
from kvstream.errors import StoreFull, UnknownOutcome
from tests.cli.program import Program

pytestmark = pytest.mark.places("store", "server", "redis")


def rows_of(program: Program, stream: str = "s") -> list[Any]:
    """Return the entries of a stream, as JSON shows them."""
    return program.json("range", stream)


def fields_of(program: Program, stream: str = "s") -> list[Any]:
    return [row["fields"] for row in rows_of(program, stream)]


def note_of(program: Program) -> Any:
    """Return the output of ``ls`` for the only import note."""
    (row,) = program.json("ls", f"{IMPORT_PREFIX.decode()}*", "--all")
    return row


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit two rows at a time, so that few rows make several commits."""
    monkeypatch.setattr(batches, "BATCH_ROWS", 2)


def lines(*numbers: int) -> str:
    return "".join(f'{{"n": {number}}}\n' for number in numbers)


def test_json_lines_are_read_from_stdin_with_their_ids(kvstream: Program) -> None:
    text = '{"id": "5-1", "fields": {"a": "1"}}\n\n{"id": "5-2", "fields": [["b", 2], ["b", 3]]}'
    assert kvstream.one("import", "s", input=text) == {
        "added": 2,
        "present": 0,
        "skipped": 0,
        "resumed_after_line": 0,
    }
    assert rows_of(kvstream) == [
        {"id": "5-1", "fields": {"a": "1"}},
        {"id": "5-2", "fields": [["b", "2"], ["b", "3"]]},
    ]


def test_csv_has_its_fields_in_the_header(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbfname,text\nx,"two\nlines"\n\n"q""q",\n')
    kvstream("import", "s", str(path))
    assert fields_of(kvstream) == [{"name": "x", "text": "two\nlines"}, {"name": 'q"q'}]


def test_empty_cells_are_kept_on_request(kvstream: Program) -> None:
    csv = ("--format", "csv")
    kvstream("import", "s", *csv, "--keep-empty", input="a,b\n1,\n")
    assert fields_of(kvstream) == [{"a": "1", "b": ""}]


def test_other_delimiters_are_named_or_implied(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("a\tb\n1\t2\n")
    kvstream("import", "s", str(path))
    kvstream("import", "s", "--format", "csv", "--delimiter", ";", input="a;b\n3;4\n")
    assert fields_of(kvstream) == [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]
    assert "one character" in kvstream("import", "s", "--delimiter", "::", code=2).stderr


@pytest.mark.places("store")
def test_bytes_that_are_no_utf8_survive_csv(kvstream: Program) -> None:
    words = ("import", "s", "--format", "csv", "--encoding", "bytes")
    kvstream(*words, input=b"a\xff,b\n1,\xfe\n")
    with Store.open(kvstream.directory) as store:
        assert store.stream("s").range()[0].pairs == ((b"a\xff", b"1"), (b"b", b"\xfe"))


def test_a_column_can_be_the_id(kvstream: Program) -> None:
    kvstream("import", "s", "--id-column", "id", input='{"id": "7-1", "a": 1}\n{"id": 8, "a": 2}\n')
    assert rows_of(kvstream) == [
        {"id": "7-1", "fields": {"a": "1"}},
        {"id": "8-0", "fields": {"a": "2"}},
    ]


@pytest.mark.parametrize(
    ("form", "value", "ms"),
    [
        ("iso", "2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("s", "1700000000.25", 1_700_000_000_250),
        ("ms", "1700000000001", 1_700_000_000_001),
        ("us", "1700000000001999", 1_700_000_000_001),
        ("ns", "1700000000001000001", 1_700_000_000_001),
        ("%d.%m.%Y %H:%M", "14.11.2023 22:13", 1_699_999_980_000),
        ("%Y-%m-%dT%H:%M%z", "2023-11-14T23:13+0100", 1_699_999_980_000),
    ],
)
def test_a_column_can_be_the_time(kvstream: Program, form: str, value: str, ms: int) -> None:
    text = f"at,n\n{value},1\n{value},2\n"
    arguments = ["--format", "csv", "--time-column", "at", "--time-format", form]
    kvstream("import", "s", *arguments, input=text)
    assert rows_of(kvstream) == [
        {"id": f"{ms}-0", "fields": {"at": value, "n": "1"}},
        {"id": f"{ms}-1", "fields": {"at": value, "n": "2"}},
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--id-column", "a", "--time-column", "b"],
        ["--time-format", "epoch"],
        ["--format", "xml"],
        ["missing-file.jsonl"],
    ],
)
def test_wrong_usage_is_refused(kvstream: Program, arguments: list[str]) -> None:
    kvstream("import", "s", *arguments, input="", code=2)


@pytest.mark.parametrize(
    ("options", "line", "reason"),
    [
        ([], '{"a": ', "not JSON"),
        ([], '{"id": "x", "fields": {"a": 1}}', "'x' is not an ID"),
        ([], '{"id": "0-0", "fields": {"a": 1}}', "0-0 cannot be the ID of an entry"),
        (
            *([], '{"id": "1-1", "fields": {"a": 1}}'),
            "1-1 is not greater than 9-0, the last ID of the stream: sort the rows",
        ),
        ([], '{"id": "9-0", "fields": {"a": 1}}', "the stream has an entry 9-0 with other fields"),
        ([], '{"id": "8-*", "fields": {"a": 1}}', "8-* is not greater than 9-0"),
        (["--id-column", "id"], '{"a": 1}', "no field 'id'"),
        (["--id-column", "id"], '{"id": "10-0"}', "no fields beside the ID"),
        (["--time-column", "t", "--time-format", "s"], '{"t": "noon"}', "'noon' is not a time"),
        (["--time-column", "t"], '{"t": "noon"}', "'noon' is not a time"),
        (["--time-column", "t", "--time-format", "%Y"], '{"t": "noon"}', "'noon' is not a time"),
        (["--format", "csv"], "a,b\n1,2,3", "3 cells, but the header has 2"),
        (["--format", "csv"], 'a,b\n"1"x,2', "not CSV"),
        (["--format", "csv"], "a,b\n,", "all cells are empty"),
        (["--format", "csv"], 'kvstream:id,kvstream:fields\n10-0,"{"', "kvstream:fields: not JSON"),
    ],
)
def test_a_bad_line_stops_the_import_with_its_number_and_reason(
    kvstream: Program, options: list[str], line: str, reason: str
) -> None:
    kvstream("add", "s", "a=0", "--id", "9-0")
    result = kvstream("import", "s", *options, input=line + "\n", code=1)
    number = line.count("\n") + 1
    assert f"stdin: line {number}: " in result.stderr
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert len(rows_of(kvstream)) == 1


def test_good_lines_before_a_bad_one_stay_and_the_import_resumes_once_it_is_fixed(
    kvstream: Program, tmp_path: Path, small_batches: None
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2, 3) + '{"n": \n' + lines(5))
    stopped = kvstream("import", "s", str(path), code=1).stderr
    assert "rows.jsonl: line 4: not JSON" in stopped
    assert "3 entries added" in stopped
    path.write_text(lines(1, 2, 3, 4, 5))
    result = kvstream("import", "s", str(path))
    assert "resuming at line 4 of rows.jsonl" in result.stderr
    assert [int(fields["n"]) for fields in fields_of(kvstream)] == [1, 2, 3, 4, 5]


def test_bad_lines_are_reported_and_skipped_on_request(kvstream: Program) -> None:
    text = lines(1) + "x\n" + lines(2) + "y\n" * REPORTED_MAX + lines(3)
    result = kvstream("import", "s", "--on-error", "skip", input=text)
    *reported, more = result.stderr.splitlines()
    assert [line.split(":")[1] for line in reported[:2]] == [" line 2", " line 4"]
    assert (len(reported), more) == (REPORTED_MAX, "stdin: 1 more bad line")
    assert result.stdout == f"3 entries added, {REPORTED_MAX + 1} bad lines skipped\n"
    assert len(rows_of(kvstream)) == 3


def test_line_numbers_of_csv_are_line_numbers_of_the_file(kvstream: Program) -> None:
    text = 'a,b\n"two\nlines",1\n\n1,2,3\n'
    result = kvstream("import", "s", "--format", "csv", "--on-error", "skip", input=text)
    assert "stdin: line 5: 3 cells" in result.stderr
    assert len(rows_of(kvstream)) == 1


def test_rows_already_stored_under_their_ids_are_skipped(kvstream: Program) -> None:
    text = "".join(f'{{"id": "{n}-1", "fields": {{"n": {n}}}}}\n' for n in (1, 2, 3))
    kvstream("import", "s", input=text)
    again = kvstream.one("import", "s", input=text + '{"id": "4-1", "fields": {"n": 4}}\n')
    assert (again["added"], again["present"]) == (1, 3)
    assert kvstream.lines("import", "s", input=text) == ["0 entries added, 3 already there"]


def test_rows_with_and_without_ids_may_alternate(kvstream: Program) -> None:
    given = ["5-1", None, None, "9000000000000-0", "9000000000000-*", None, "9000000000000-9"]
    rows = [{"id": eid, "fields": {"n": str(at)}} for at, eid in enumerate(given)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    assert kvstream.one("import", "s", input=text)["added"] == len(given)
    added = rows_of(kvstream)
    assert [row["fields"]["n"] for row in added] == [str(at) for at in range(len(given))]
    assert [row["id"] for row in added][3:] == [f"9000000000000-{seq}" for seq in (0, 1, 2, 9)]


def test_repeated_rows_in_one_commit_are_skipped(kvstream: Program) -> None:
    text = '{"id": "5-1", "fields": {"n": 1}}\n'
    done = kvstream.one("import", "s", input=text * 3)
    assert (done["added"], done["present"]) == (1, 2)
    other = '{"id": "6-1", "fields": {"n": 1}}\n{"id": "6-1", "fields": {"n": 2}}\n'
    refused = kvstream("import", "s", input=other, code=1).stderr
    assert "line 2: the stream has an entry 6-1 with other fields; 1 entry added" in refused


def test_new_ids_may_be_given_to_all_rows(kvstream: Program) -> None:
    text = '{"id": "5-1", "fields": {"n": 1}}\n'
    kvstream("import", "s", input=text)
    assert kvstream.one("import", "s", "--new-ids", input=text)["added"] == 1
    assert len(rows_of(kvstream)) == 2


def test_a_finished_file_is_not_imported_twice_and_a_grown_one_is_resumed(
    kvstream: Program, tmp_path: Path, small_batches: None
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2, 3))
    kvstream("import", "s", str(path))
    assert kvstream.one("import", "s", str(path)) == {
        "added": 0,
        "present": 0,
        "skipped": 0,
        "resumed_after_line": 3,
    }
    with path.open("a") as file:
        file.write(lines(4, 5))
    assert kvstream.one("import", "s", str(path))["added"] == 2
    assert [int(fields["n"]) for fields in fields_of(kvstream)] == [1, 2, 3, 4, 5]
    assert kvstream.one("import", "s", str(path), "--again")["added"] == 5


def test_the_note_of_a_finished_import_expires_that_of_a_stopped_one_stays(
    kvstream: Program, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1) + "x\n")
    kvstream("import", "s", str(path), code=1)
    assert note_of(kvstream)["ttl"] is None
    path.write_text(lines(1, 2))
    kvstream("import", "s", str(path))
    assert note_of(kvstream)["ttl"] > 29 * 86_400
    path.write_text(lines(1, 2) + "x\n")
    kvstream("import", "s", str(path), code=1)
    assert note_of(kvstream)["ttl"] is None


def test_a_file_changed_in_its_imported_part_is_refused(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2, 3))
    kvstream("import", "s", str(path))
    for changed in (lines(1, 7, 3), lines(1, 2)):
        path.write_text(changed)
        shown = kvstream("import", "s", str(path), code=1).stderr
        assert "rows.jsonl has changed in its first 3 lines" in shown
        assert "--again" in shown
    assert len(rows_of(kvstream)) == 3


def test_a_csv_file_is_resumed_after_its_header(
    kvstream: Program, tmp_path: Path, small_batches: None
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('n,t\n1,"a\nb"\n2,c\n')
    kvstream("import", "s", str(path))
    with path.open("a") as file:
        file.write("3,d\n4,e,f\n")
    shown = kvstream("import", "s", str(path), code=1).stderr
    assert "resuming at line 5 of rows.csv" in shown
    assert "rows.csv: line 6: 3 cells" in shown
    assert [fields["n"] for fields in fields_of(kvstream)] == ["1", "2", "3"]


def test_an_overwritten_note_is_refused(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1))
    kvstream("import", "s", str(path))
    note = note_of(kvstream)["stream"]
    kvstream("add", note, "offset=x")
    assert "has no valid progress" in kvstream("import", "s", str(path), code=1).stderr
    assert kvstream.one("import", "s", str(path), "--again")["added"] == 1


def test_each_stream_and_each_database_has_its_own_notes(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2))
    for arguments in (["import", "s"], ["import", "t"], ["--db", "1", "import", "s"]):
        assert kvstream.one(*arguments, str(path))["added"] == 2


def test_a_deleted_stream_is_imported_from_the_start(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2))
    kvstream("import", "s", str(path))
    kvstream("rm", "s")
    assert kvstream.one("import", "s", str(path))["added"] == 2
    kvstream("rm", "s")
    kvstream("add", "s", "n=0", "--id", "5-0")
    assert kvstream.one("import", "s", str(path))["added"] == 2


def test_a_deleted_stream_that_had_all_lines_is_imported_again(
    kvstream: Program, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "5-1", "fields": {"a": "1"}}\n')
    kvstream("add", "s", "a=1", "--id", "5-1")
    assert kvstream.one("import", "s", str(path))["present"] == 1
    kvstream("rm", "s")
    assert kvstream.one("import", "s", str(path))["added"] == 1


def test_a_pipe_is_resumed_only_under_a_name(kvstream: Program) -> None:
    assert kvstream.one("import", "s", input=lines(1))["added"] == 1
    assert kvstream.one("import", "s", input=lines(1))["added"] == 1
    named = ("import", "t", "--source", "feed")
    assert kvstream.one(*named, input=lines(1, 2))["added"] == 2
    assert kvstream.one(*named, input=lines(1, 2, 3))["added"] == 1
    assert "stdin has changed" in kvstream(*named, input=lines(9), code=1).stderr


def test_a_file_under_a_name_may_move(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2))
    kvstream("import", "s", str(path), "--source", "feed")
    moved = path.rename(tmp_path / "moved.jsonl")
    assert kvstream.one("import", "s", str(moved), "--source", "feed")["added"] == 0
    assert kvstream.one("import", "s", str(moved))["added"] == 2


def test_an_empty_input_is_no_error(kvstream: Program) -> None:
    assert kvstream.one("import", "s", input="")["added"] == 0
    assert kvstream.one("import", "s", "--format", "csv", input="")["added"] == 0
    assert kvstream.one("import", "s", "--format", "csv", input="a,b\n")["added"] == 0


def test_large_batches_are_bounded_in_bytes(
    kvstream: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 50)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": "x" * 40}) + "\n" for _ in range(5)))
    commits = []
    original = batches.Import._commit

    def counted(run: batches.Import, batch: list[Any]) -> Any:
        commits.append(len(batch))
        return original(run, batch)

    monkeypatch.setattr(batches.Import, "_commit", counted)
    kvstream("import", "s", str(path))
    assert commits == [1] * 5


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_in_a_commit_reports_only_known_numbers(
    kvstream: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    def atomically(store: Store, work: Callable[[], Any]) -> Any:
        done = session.atomically(store, work)
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        return done

    path = tmp_path / "rows.jsonl"
    path.write_text(lines(1, 2))
    monkeypatch.setattr(batches, "atomically", atomically)
    (errors,) = kvstream("import", "s", str(path), "--quiet", code=130).stderr.splitlines()
    kept = {
        1: "2 entries added and kept; the same command resumes at line 3",
        2: "at least 0 entries added and kept; the same command resumes after the last line that "
        "was added",
    }
    assert errors == f"rows.jsonl: interrupted; {kept[presses]}"
    monkeypatch.undo()
    done = kvstream.one("import", "s", str(path))
    assert (done["added"], done["resumed_after_line"]) == (0, 2)
    assert fields_of(kvstream) == [{"n": "1"}, {"n": "2"}]


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (StoreFull("no space left"), "stopped; 2,000 entries added and kept; the same command"),
        (UnknownOutcome("no reply"), "stopped; at least 2,000 entries added and kept; the same"),
    ],
)
def test_an_import_that_the_store_stops_says_what_is_kept(
    kvstream: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n' * (3 * BATCH_ROWS))
    commits = count()

    def failing(*arguments: Any) -> Any:
        if next(commits) == 2:
            raise error
        return atomically(*arguments)

    monkeypatch.setattr(batches, "atomically", failing)
    shown = kvstream("import", "s", str(path), code=5).stderr
    assert f"rows.jsonl: {kept}" in shown
    assert str(error) in shown
    monkeypatch.undo()
    kvstream("import", "s", str(path))
    assert kvstream.one("len", "s") == {"length": 3 * BATCH_ROWS}
