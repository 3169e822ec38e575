"""Export: JSON Lines, CSV and tables, ranges, and resumed files."""

import csv
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from kvstream import Store
from kvstream.cli.export import export
from kvstream.cli.file_formats import COLUMNS_MAX, FIELDS_COLUMN, ID_COLUMN
from kvstream.cli.session import DirectorySession
from tests.cli.program import FIRST, Program

SECOND = "1700000001000-0"


@pytest.mark.places("store", "server", "redis")
def test_json_lines_go_to_stdout_and_the_count_to_stderr(orders: Program) -> None:
    result = orders("export", "orders", "-n", "2")
    assert result.stdout.splitlines() == [
        f'{{"id": "{FIRST}", "fields": {{"sku": "a0", "qty": "0"}}}}',
        f'{{"id": "{SECOND}", "fields": {{"sku": "a1", "qty": "1"}}}}',
    ]
    assert result.stderr == "2 entries written\n"


@pytest.mark.parametrize(
    ("options", "first", "count"),
    [
        (["--start", SECOND], SECOND, 4),
        (["--start", f"({FIRST}", "--end", SECOND], SECOND, 1),
        (["--after", FIRST], SECOND, 4),
        (["--after", FIRST, "--start", "2023-11-14T22:13:23"], "1700000003000-0", 2),
        (["--start", "2023-11-14T22:13:21", "-n", "1"], SECOND, 1),
    ],
)
@pytest.mark.places("store", "server", "redis")
def test_a_part_of_a_stream_can_be_exported(
    orders: Program, options: list[str], first: str, count: int
) -> None:
    lines = orders.lines("export", "orders", *options)
    assert len(lines) == count
    assert first in lines[0]


@pytest.mark.places("store", "server", "redis")
def test_csv_has_a_column_for_each_field(orders: Program) -> None:
    orders("add", "orders", "sku=x", "note=a,b", "--id", "1700000009000-0")
    table = list(csv.reader(orders.lines("export", "orders", "--format", "csv")))
    assert table[0] == [ID_COLUMN, "sku", "qty", "note", FIELDS_COLUMN]
    assert table[1] == [FIRST, "a0", "0", "", ""]
    assert table[-1] == ["1700000009000-0", "x", "", "a,b", ""]


@pytest.mark.parametrize(
    "fields",
    [
        ["b=1", "a=2"],
        ["a=1", "a=2"],
        ["a="],
        ["a=\udcff"],
        ["a=x\ry"],
        ["c=1"],
        [f"{ID_COLUMN}=1"],
    ],
)
@pytest.mark.places("store", "server", "redis")
def test_values_unfit_for_cells_are_json_in_a_separate_column(
    kvstream: Program, fields: list[str]
) -> None:
    kvstream("add", "s", "a=1", "b=2", "--id", "1-0")
    kvstream("add", "s", *fields, "--id", "2-0")
    arguments = ["export", "s", "--format", "csv", "--fields", "a,b"]
    table = list(csv.reader(kvstream.lines(*arguments)))
    assert table[1] == ["1-0", "1", "2", ""]
    assert table[2][:3] == ["2-0", "", ""]
    assert table[2][3]


def test_fields_beyond_the_greatest_number_of_columns_are_json(kvstream: Program) -> None:
    fields = {f"f{number}": str(number) for number in range(COLUMNS_MAX + 1)}
    kvstream("add", "s", *(f"{name}={value}" for name, value in fields.items()), "--id", "1-0")
    table = list(csv.reader(kvstream.lines("export", "s", "--format", "csv")))
    assert table[0] == [ID_COLUMN, *list(fields)[:COLUMNS_MAX], FIELDS_COLUMN]
    assert table[1][:-1] == ["1-0", *[""] * COLUMNS_MAX]
    assert json.loads(table[1][-1]) == fields


def test_an_existing_file_is_replaced_only_on_request(orders: Program, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious\n")
    assert "continue it with --resume" in orders("export", "orders", str(path), code=1).stderr
    assert path.read_text() == "precious\n"
    orders("export", "orders", str(path), "--overwrite")
    assert len(path.read_text().splitlines()) == 5


@dataclass(frozen=True)
class Opened(DirectorySession):
    """A session on an open store: opening it takes longer than exporting it."""

    store: Store | None = None

    @contextmanager
    def reading(self) -> Iterator[Store]:
        assert self.store is not None
        yield self.store


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_an_export_cut_anywhere_is_resumed(kvstream: Program, tmp_path: Path, name: str) -> None:
    whole, part = tmp_path / f"whole-{name}", tmp_path / name
    with Store.open(kvstream.directory) as store:
        stream = store.stream("s")
        stream.add({"a": "1", "t": "two\nlines"}, id="1-0")
        stream.add({"a": b"\xff"}, id="2-0")
        stream.add({"a": '"quoted", and\n\nmore', "t": "x"}, id="3-0")
    kvstream("export", "s", str(whole))
    content = whole.read_bytes()
    with Store.open(kvstream.directory, read_only=True) as store:
        session = Opened(kvstream.directory, store=store)
        for length in range(len(content) + 1):
            part.write_bytes(content[:length])
            done = CliRunner().invoke(export, ["s", str(part), "--resume"], obj=session)
            assert done.exit_code == 0, length
            assert part.read_bytes() == content, length
    part.write_bytes(content[: len(content) // 2])
    kvstream("export", "s", str(part), "--resume")
    assert part.read_bytes() == content


@pytest.mark.places("store", "server", "redis")
def test_resuming_adds_the_new_entries(orders: Program, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    orders("export", "orders", str(path), "--resume")
    orders("add", "orders", "sku=new", "--id", "1700000009000-0")
    assert orders("export", "orders", str(path), "--resume").stderr == "1 entry written\n"
    assert len(path.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("out.jsonl", "some text\n", "not JSON"),
        ("out.jsonl", '{"a": 1}\n', "its last line has no ID"),
        ("out.csv", "a,b\n1,2\n", "its columns do not go from"),
        (
            "out.csv",
            f'{ID_COLUMN},{FIELDS_COLUMN}\nx,"{{}}"\n1-0,{{}}\n',
            "follows an incomplete one",
        ),
    ],
)
def test_a_foreign_file_is_not_touched(
    orders: Program, tmp_path: Path, name: str, content: str, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    shown = orders("export", "orders", str(path), "--resume", code=1).stderr
    assert "is not an export that can be resumed" in shown
    assert reason in shown
    assert path.read_text() == content


def test_the_columns_of_a_resumed_csv_file_are_those_of_its_header(
    orders: Program, tmp_path: Path
) -> None:
    path = tmp_path / "out.csv"
    orders("export", "orders", str(path), "-n", "2", "--fields", "qty,sku")
    orders("export", "orders", str(path), "--resume")
    table = list(csv.reader(path.read_text().splitlines()))
    assert table[0] == [ID_COLUMN, "qty", "sku", FIELDS_COLUMN]
    assert len(table) == 6


def test_an_unwritable_file_is_reported_in_one_line(orders: Program, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out.jsonl"
    shown = orders("export", "orders", str(path), code=5).stderr
    assert shown == f"Error: {path}: No such file or directory\n"


# --- tables -------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table_of(path: Path) -> Any:
    if path.suffix == ".parquet":
        return parquet.read_table(path)
    return pa.ipc.open_file(path).read_all()


@pytest.mark.parametrize("name", ["orders.parquet", "orders.arrow", "orders.feather"])
@pytest.mark.places("store", "server", "redis")
@pytest.mark.usefixtures("here")
def test_a_table_has_a_column_for_each_field(orders: Program, name: str) -> None:
    result = orders("export", "orders", name, "--start", SECOND, "--count", "2")
    assert result.stderr.splitlines()[-1] == "2 entries written"
    table = table_of(Path(name))
    assert table.column_names == ["id", "timestamp", "sku", "qty"]
    assert table["id"].to_pylist()[0] == SECOND
    assert table["sku"].to_pylist() == ["a1", "a2"]


@pytest.mark.usefixtures("here")
def test_the_columns_and_the_format_of_a_table_can_be_chosen(orders: Program) -> None:
    orders("add", "orders", "id=mine", "--id", "1700000009000-0")
    words = ("export", "orders", "table", "--format", "arrow", "--meta-prefix", "_")
    orders(*words, "--fields", "qty,id")
    table = table_of(Path("table"))
    assert table.column_names == ["_id", "_timestamp", "qty", "id"]
    assert table["id"].to_pylist()[-2:] == [None, "mine"]
    orders(*words, "--overwrite", "--start", "2100-01-01")
    assert (table_of(Path("table")).num_rows, sorted(Path().glob(".table*"))) == (0, [])


@pytest.mark.usefixtures("here")
def test_row_groups_are_large_and_bounded(orders: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstream.cli.export.GROUP_ROWS", 3)
    monkeypatch.setattr("kvstream.arrow.batches.PAGE_MIN", 1)
    monkeypatch.setattr("kvstream.arrow.batches.PAGE_GROWTH", 1)
    orders("export", "orders", "orders.parquet", "--quiet")
    groups = parquet.ParquetFile("orders.parquet").metadata
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [3, 2]


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (2, ["--format", "parquet"], "parquet needs a FILE: it is not written to stdout"),
        (2, ["x.parquet", "--resume"], "--resume is for jsonl and csv, not for parquet"),
        (2, ["x.arrow", "--delimiter", ";"], "--delimiter is for jsonl and csv, not for arrow"),
        (2, ["x.jsonl", "--meta-prefix", "_"], "--meta-prefix is for parquet and arrow"),
        (1, ["there.parquet"], "there.parquet exists: replace it with --overwrite"),
    ],
)
@pytest.mark.usefixtures("here")
def test_options_unfit_for_a_table_are_refused(
    orders: Program, code: int, words: list[str], message: str
) -> None:
    Path("there.parquet").write_bytes(b"")
    result = orders("export", "orders", *words, code=code)
    assert message in result.stderr


@pytest.mark.usefixtures("here")
def test_a_failed_table_leaves_no_file(orders: Program) -> None:
    orders("add", "orders", "id=mine")
    result = orders("export", "orders", "orders.parquet", code=2)
    assert "the entries have a field 'id', which is also the column" in result.stderr
    assert not list(Path().glob("*orders.parquet*"))


@pytest.mark.parametrize(
    ("file", "left"),
    [
        ("large.jsonl", ["large.jsonl"]),
        ("large.parquet", []),
        ("large.arrow", []),
    ],
)
def test_a_file_without_room_is_named_and_only_one_to_resume_is_left(
    orders: Program, tmp_path: Path, file: str, left: list[str]
) -> None:
    with Store.open(orders.directory) as store:
        store.stream("large").add_many([{"v": os.urandom(1000)} for _ in range(100)])
    result = orders.run(
        "export",
        "large",
        str(tmp_path / file),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
        env={"PYTHONDONTWRITEBYTECODE": "1"},  # a module of 64 kB would be cached in part
    )
    assert result.stderr.decode().endswith(f"Error: {tmp_path / file}: File too large\n")
    assert result.returncode == 5
    assert sorted(path.name for path in tmp_path.glob("*large*")) == left


FORMULAS = {"a": "=1+1", "b": "+1", "c": "-5", "d": "@x", "e": "\tx", "f": "'=quoted", "g": "x=1"}


def test_guarded_cells_are_no_formulas_and_come_back(kvstream: Program, tmp_path: Path) -> None:
    file = str(tmp_path / "guarded.csv")
    with Store.open(kvstream.directory) as store:
        stream = store.stream("s")
        stream.add_many([{"=name": "v", **FORMULAS}] * 1500)
        stream.add({"a": "=b\r", "b": "x"})
        rows = [entry.pairs for entry in stream.range()]
    kvstream("export", "s", file, "--guard-formulas", "-n", "1200")
    kvstream("export", "s", file, "--guard-formulas", "--resume")
    with open(file, newline="") as text:
        table = list(csv.reader(text))
    assert len(table) == 1502
    assert table[0][1:3] == ["'=name", "a"]
    assert table[1500][2:9] == ["'=1+1", "'+1", "'-5", "'@x", "'\tx", "''=quoted", "x=1"]
    assert not any(cell[:1] in {*"=+-@\t\r"} for row in table for cell in row if cell)
    kvstream("import", "back", file, "--guard-formulas")
    with Store.open(kvstream.directory) as store:
        assert [entry.pairs for entry in store.stream("back").range()] == rows


@pytest.mark.parametrize("command", [["export", "orders", "--format"], ["import", "s", "--format"]])
def test_formulas_are_guarded_in_csv_alone(orders: Program, command: list[str]) -> None:
    said = orders(*command, "jsonl", "--guard-formulas", code=2).stderr
    assert "--guard-formulas is for csv, not for jsonl" in said


@pytest.mark.parametrize(
    ("command", "name"), [(("export", "orders"), "a.xlsx"), (("import", "s"), "a.csv.gz")]
)
def test_a_file_gets_no_ending_of_another_format(
    orders: Program, tmp_path: Path, command: tuple[str, str], name: str
) -> None:
    file = tmp_path / name
    if command[0] == "import":
        file.write_bytes(b"{}\n")
    said = orders(*command, str(file), code=2).stderr
    assert f"{file.suffix} files are neither read nor written" in said
    assert file.exists() == (command[0] == "import")


def test_a_schema_gives_the_columns_of_a_table_types(orders: Program, tmp_path: Path) -> None:
    file = tmp_path / "o.parquet"
    schema = "qty:int64, sku:string,qty2:decimal128(10,2),timestamp:timestamp[us,UTC]"
    orders("export", "orders", str(file), "--schema", schema)
    table = parquet.read_table(file)
    assert {field.name: str(field.type) for field in table.schema} == {
        "id": "string",
        "timestamp": "timestamp[us, tz=UTC]",
        "qty": "int64",
        "sku": "string",
        "qty2": "decimal128(10, 2)",
    }
    assert table.column("qty").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("qty2").to_pylist() == [None] * 5


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("qty:int6", "'int6' of column 'qty' is no type: did you mean 'int64'?"),
        ("qty:decimal(99,1)", "'decimal(99,1)' of column 'qty' is no type: precision"),
        ("qty", "'qty' is not NAME:TYPE"),
        ("qty:int64,qty:int64", "'qty' is there twice"),
        (":int64", "':int64' is not NAME:TYPE"),
    ],
)
def test_a_wrong_schema_is_wrong_usage(
    orders: Program, tmp_path: Path, schema: str, said: str
) -> None:
    words = ("export", "orders", str(tmp_path / "o.arrow"), "--schema", schema)
    assert said in orders(*words, code=2).stderr
    assert list(tmp_path.glob("*o.arrow*")) == []


def test_a_value_unfit_for_its_type_ends_the_export(orders: Program, tmp_path: Path) -> None:
    words = ("export", "orders", str(tmp_path / "o.parquet"), "--schema", "sku:int64")
    said = orders(*words, code=1).stderr
    assert "of stream 'orders': the field sku is not a valid int64: 'a0'" in said
    assert orders.json("range", "orders", "--count", "1")[0]["id"] in said
    assert list(tmp_path.glob("*o.parquet*")) == []


@pytest.mark.parametrize("more", [["--format", "csv"], ["--format", "arrow", "--fields", "sku"]])
def test_a_schema_is_for_tables_and_names_all_fields(orders: Program, more: list[str]) -> None:
    said = orders("export", "orders", "file", "--schema", "sku:string", *more, code=2).stderr
    assert "--schema is for parquet and arrow, and names all fields itself" in said


def test_a_table_without_pyarrow_is_refused(
    orders: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("kvstream.errors.import_module", missing)
    said = orders("export", "orders", str(tmp_path / "o.parquet"), code=5).stderr
    assert "pip install 'kvstream-db[arrow]'" in said
