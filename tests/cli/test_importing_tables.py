"""Import of Parquet and Arrow files: IDs, values by type, resuming, and files that are refused."""

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet

from kvstream.cli.importing.batches import BATCH_ROWS
from tests.cli.program import Program

pytestmark = pytest.mark.places("store")

ID = "12345678-1234-5678-1234-567812345678"
VIEWS = pa.dictionary(pa.uint32(), pa.string_view())
SECOND = dt.datetime(2026, 11, 21, 20, 51, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(columns: dict[str, Any], name: str = "rows.parquet") -> str:
    parquet.write_table(pa.table(columns), name, row_group_size=2)
    return name


def fields_of(program: Program) -> list[Any]:
    return [row["fields"] for row in program.json("range", "s")]


@pytest.mark.places("store", "server", "redis")
@pytest.mark.parametrize("name", ["s.parquet", "s.arrow", "s.feather"])
def test_an_exported_table_comes_back_with_its_ids(kvstream: Program, name: str) -> None:
    for eid, fields in (("5-1", ["a=1", "b=x"]), ("5-2", ["a=2"]), ("7-0", ["b=ü\n"])):
        kvstream("add", "s", *fields, "--id", eid)
    entries = kvstream.json("range", "s")
    kvstream("export", "s", name)
    kvstream("rm", "s")
    assert kvstream.one("import", "s", name)["added"] == 3
    assert kvstream.json("range", "s") == entries


def test_values_become_text_and_nulls_are_left_out(kvstream: Program) -> None:
    rows = {
        "id": pa.array([1, 2]),
        "price": pa.array([1.5, None]),
        "fresh": pa.array([True, False]),
        "at": pa.array([SECOND, None], pa.timestamp("ms", "UTC")),
        "raw": pa.array([b"\xff", b"text"]),
        "kind": pa.array(["a", "b"]).dictionary_encode(),
    }
    kvstream("import", "s", write(rows))
    first, second = fields_of(kvstream)
    assert first == {
        "id": "1",
        "price": "1.5",
        "fresh": "true",
        "at": "2026-11-21T20:51:00.000000Z",
        "raw": {"base64": "/w=="},
        "kind": "a",
    }
    assert second == {"id": "2", "fresh": "false", "raw": "text", "kind": "b"}


def test_columns_of_other_programs_become_text(kvstream: Program) -> None:
    """polars writes views and categories to Arrow files, DuckDB writes UUIDs to Parquet."""
    views = {
        "id": pa.array(["5-1", "5-2"], pa.string_view()),
        "raw": pa.array([b"\xff", None], pa.binary_view()),
        "kind": pa.array(["a", "b"]).dictionary_encode().cast(VIEWS),
    }
    with pa.ipc.new_file("rows.arrow", pa.table(views).schema) as file:
        file.write_table(pa.table(views))
    kvstream("import", "s", "rows.arrow")
    assert kvstream.json("range", "s") == [
        {"id": "5-1", "fields": {"raw": {"base64": "/w=="}, "kind": "a"}},
        {"id": "5-2", "fields": {"kind": "b"}},
    ]
    kvstream("rm", "s")
    duckdb.sql(f"COPY (SELECT '{ID}'::UUID AS key, '\\xFF'::BLOB AS raw) TO 'ids.parquet'")
    kvstream("import", "s", "ids.parquet")
    assert fields_of(kvstream) == [{"key": ID, "raw": {"base64": "/w=="}}]


def test_ids_may_come_from_a_column_of_times(kvstream: Program) -> None:
    rows = {"at": pa.array([SECOND, SECOND]), "n": pa.array([1, 2])}
    kvstream("import", "s", write(rows), "--time-column", "at")
    ms = int(SECOND.timestamp() * 1000)
    assert [row["id"] for row in kvstream.json("range", "s")] == [f"{ms}-0", f"{ms}-1"]


def test_with_a_prefix_the_columns_id_and_timestamp_are_fields(kvstream: Program) -> None:
    rows = {"id": ["x"], "timestamp": ["noon"], "_id": ["5-1"], "_timestamp": [SECOND]}
    name = write(rows)
    assert "line 1: 'x' is not an ID (ms-seq)" in kvstream("import", "s", name, code=1).stderr
    kvstream("import", "s", name, "--meta-prefix", "_")
    assert kvstream.json("range", "s") == [
        {"id": "5-1", "fields": {"id": "x", "timestamp": "noon"}}
    ]


def test_a_grown_table_is_resumed_after_its_last_row(kvstream: Program) -> None:
    count = 2 * BATCH_ROWS + 1
    kvstream("import", "s", write({"n": list(range(count))}))
    done = kvstream.one("import", "s", write({"n": list(range(count + 4))}))
    assert (done["added"], done["resumed_after_line"]) == (4, count)
    assert fields_of(kvstream) == [{"n": str(number)} for number in range(count + 4)]


def test_a_row_of_nulls_is_a_bad_line(kvstream: Program) -> None:
    name = write({"n": pa.array([1, None, 3])})
    refused = kvstream("import", "s", name, code=1).stderr
    assert "rows.parquet: line 2: there are no fields; 1 entry added" in refused
    kvstream("import", "s", name, "--on-error", "skip")
    assert fields_of(kvstream) == [{"n": "1"}, {"n": "3"}]


def test_the_stream_format_of_arrow_is_read(kvstream: Program) -> None:
    table = pa.table({"n": [1, 2]})
    with pa.ipc.new_stream("rows.arrow", table.schema) as stream:
        stream.write_table(table)
    kvstream("import", "s", "rows.arrow")
    assert fields_of(kvstream) == [{"n": "1"}, {"n": "2"}]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1\xff", b"n\n1\n"])
def test_a_file_of_another_format_is_refused(kvstream: Program, name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    refused = kvstream("import", "s", name, code=1).stderr
    assert f"{name} is no {name[5:].capitalize()} file, or is damaged: " in refused


def test_a_damaged_page_ends_the_import_and_keeps_the_rows_before_it(kvstream: Program) -> None:
    text = [f"{number:0100}" for number in range(20_000)]
    table = pa.table({"n": text})
    options: dict[str, Any] = {"compression": "zstd", "row_group_size": 2000}
    parquet.write_table(table, "rows.parquet", use_dictionary=False, **options)
    content = bytearray(Path("rows.parquet").read_bytes())
    half = len(content) // 2
    content[half : half + 50] = bytes(50)
    Path("rows.parquet").write_bytes(content)
    refused = kvstream("import", "s", "rows.parquet", code=1).stderr
    assert "rows.parquet is no Parquet file, or is damaged: " in refused
    kept = len(kvstream.json("range", "s"))
    assert 0 < kept < 20_000
    parquet.write_table(table, "rows.parquet", use_dictionary=False, **options)
    assert kvstream.one("import", "s", "rows.parquet")["added"] == 20_000 - kept


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"n": [[1]]}, "the column n is list<"),
        ({"n": [{"a": 1}]}, "the column n is struct<a: int64>: convert it to text first"),
    ],
)
def test_a_column_without_text_is_refused(
    kvstream: Program, columns: dict[str, Any], message: str
) -> None:
    assert message in kvstream("import", "s", write(columns), code=1).stderr


@pytest.mark.parametrize("columns", [{"id": ["5-1"], "timestamp": [SECOND]}, {}])
def test_a_table_without_fields_is_refused(kvstream: Program, columns: dict[str, Any]) -> None:
    refused = kvstream("import", "s", write(columns), code=1).stderr
    assert "rows.parquet: an entry needs a field, and no column is one" in refused


def test_two_columns_of_a_name_are_refused(kvstream: Program) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["n", "n"])
    parquet.write_table(table, "rows.parquet")
    refused = kvstream("import", "s", "rows.parquet", code=1).stderr
    assert "rows.parquet: two columns have the name 'n'" in refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rows.arrow", "--delimiter", ";"], "--delimiter is for jsonl and csv, not for arrow"),
        (["rows.arrow", "--keep-empty"], "--keep-empty is for jsonl and csv, not for arrow"),
        (["rows.csv", "--meta-prefix", "_"], "--meta-prefix is for parquet and arrow"),
    ],
)
def test_options_unfit_for_a_format_are_refused(
    kvstream: Program, words: list[str], message: str
) -> None:
    for name in ("rows.arrow", "rows.csv"):
        Path(name).write_text("n\n1\n")
    assert message in kvstream("import", "s", *words, code=2).stderr


def test_a_table_is_not_read_from_a_pipe(kvstream: Program) -> None:
    done = kvstream.run("import", "s", "--format", "parquet")
    assert done.returncode == 2
    assert b"parquet needs a FILE: it is not read from a pipe" in done.stderr


def test_a_table_needs_pyarrow(kvstream: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write({"n": [1]})
    monkeypatch.delitem(sys.modules, "kvstream.cli.importing.tables")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = kvstream("import", "s", name, code=5).stderr
    assert "parquet needs pyarrow: pip install 'kvstream-db[arrow]'" in refused
