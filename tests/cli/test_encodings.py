"""Imports of files in other encodings than UTF-8: they are read or refused, and never garbled."""

import gzip
from pathlib import Path

import pytest

from tests.cli.program import Program

CSV = "name,city\nä,Köln\nb,Ωmega\n"
JSON = '{"name": "ä", "city": "Köln"}\n\n{"name": "b", "city": "Ωmega"}\n'
FIELDS = [{"name": "ä", "city": "Köln"}, {"name": "b", "city": "Ωmega"}]
MARKED = {
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0",
    "utf-32-be": b"\0\0\xfe\xff",
    "utf-8": b"\xef\xbb\xbf",
}


def write(path: Path, encoding: str, mark: bytes = b"") -> str:
    text = CSV if path.suffix == ".csv" else JSON
    path.write_bytes(mark + text.encode(encoding))
    return str(path)


def fields_of(program: Program, stream: str) -> list[object]:
    return [entry["fields"] for entry in program.json("range", stream)]


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize("encoding", list(MARKED))
def test_a_byte_order_mark_chooses_the_encoding(
    kvstream: Program, tmp_path: Path, encoding: str, name: str
) -> None:
    path = write(tmp_path / name, encoding, MARKED[encoding])
    assert kvstream.one("import", "s", path)["added"] == 2
    assert fields_of(kvstream, "s") == FIELDS
    assert kvstream.one("import", "s", path)["added"] == 0  # resumed at the end
    kind = "csv" if name == "rows.csv" else "jsonl"
    kvstream("import", "piped", "--format", kind, input=Path(path).read_bytes())
    assert fields_of(kvstream, "piped") == FIELDS


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused_and_read_by_its_name(
    kvstream: Program, tmp_path: Path, encoding: str, name: str
) -> None:
    path = write(tmp_path / name, encoding)
    said = kvstream("import", "s", path, code=1).stderr
    assert f"{name}: line 1: a NUL byte" in said
    assert "--encoding utf-16-le" in said
    kvstream("import", "s", path, "--encoding", encoding)
    assert fields_of(kvstream, "s") == FIELDS


def test_an_import_in_another_encoding_is_resumed(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = "name\n" + "".join(f"é{at}\n" for at in range(1500))
    path.write_bytes(text.encode("utf-16"))
    assert kvstream.one("import", "s", str(path))["added"] == 1500
    path.write_bytes((text + "neu\n").encode("utf-16"))
    again = kvstream.one("import", "s", str(path))
    assert (again["added"], again["resumed_after_line"]) == (1, 1501)


def test_single_byte_encodings_are_read_by_their_name(kvstream: Program, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("näme\n5 €\n".encode("cp1252"))
    kvstream("import", "s", str(tmp_path / "rows.csv"), "--encoding", "cp1252")
    assert fields_of(kvstream, "s") == [{"näme": "5 €"}]


def test_lines_in_another_encoding_are_bad(kvstream: Program) -> None:
    words = ("import", "s", "--format", "csv")
    rows = "a,b\nä,1\n".encode() + "ä,2\n".encode("latin-1") + b"c,3\n"
    said = kvstream(*words, input=rows, code=1).stderr
    assert "line 3: not UTF-8 at byte 1; give the --encoding of the file" in said
    assert "1 entry added" in said
    result = kvstream(*words, "--on-error", "skip", "--new-ids", input=rows)
    assert "2 entries added, 1 bad line skipped" in result.stdout
    header = "ä,b\n1,2\n".encode("latin-1")
    assert "line 1: not UTF-8" in kvstream(*words, input=header, code=1).stderr


def test_bytes_are_kept_in_csv_alone(kvstream: Program) -> None:
    said = kvstream("import", "s", "--encoding", "bytes", input="", code=2).stderr
    assert "--encoding bytes is for csv, not for jsonl" in said


def test_a_line_of_json_in_another_encoding_is_bad(kvstream: Program) -> None:
    rows = '{"a": "ä"}\n'.encode() + '{"a": "ä"}\n'.encode("latin-1")
    assert "line 2: not UTF-8 at byte 8" in kvstream("import", "s", input=rows, code=1).stderr


def test_a_nul_byte_makes_a_row_bad(kvstream: Program) -> None:
    rows = b"a,b\n1,2\n3\0,4\n5,6\n"
    result = kvstream("import", "s", "--format", "csv", "--on-error", "skip", input=rows)
    assert "2 entries added, 1 bad line skipped" in result.stdout
    assert "line 3: a NUL byte" in result.stderr


def test_text_that_ends_within_a_character_is_refused(kvstream: Program, tmp_path: Path) -> None:
    path = tmp_path / "cut.csv"
    path.write_bytes(CSV.encode("utf-16")[:-1])
    assert "cut.csv: not utf-16-le at byte" in kvstream("import", "s", str(path), code=1).stderr


def test_a_pipe_that_begins_slowly_is_decoded(kvstream: Program) -> None:
    process = kvstream.start("import", "s", "--format", "csv")
    assert process.stdin is not None
    for part in ("a\nö\n".encode("utf-16")[at : at + 1] for at in range(10)):
        process.stdin.write(part)
        process.stdin.flush()
    process.communicate()
    assert process.returncode == 0
    assert fields_of(kvstream, "s") == [{"a": "ö"}]


@pytest.mark.parametrize("name", ["rot13", "nope", "base64"])
def test_an_unknown_encoding_is_wrong_usage(kvstream: Program, name: str) -> None:
    result = kvstream("import", "s", "--encoding", name, input="", code=2)
    assert f"'{name}' is no encoding of text" in result.stderr


def test_tables_have_no_encoding(kvstream: Program, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    words = ("import", "s", str(tmp_path / "rows.parquet"), "--encoding", "utf-16")
    assert "--encoding is for jsonl and csv" in kvstream(*words, code=2).stderr


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize(
    ("marked", "given"),
    [
        ("utf-16-le", "utf-16-be"),
        ("utf-16-be", "utf-16-le"),
        ("utf-32-le", "utf-16"),
        ("utf-8", "latin-1"),
        ("utf-8", "cp1252"),
        ("utf-16-le", "utf-8"),
    ],
)
def test_a_mark_that_contradicts_the_encoding_is_refused(
    kvstream: Program, tmp_path: Path, marked: str, given: str, name: str
) -> None:
    path = write(tmp_path / name, marked, MARKED[marked])
    said = kvstream("import", "s", path, "--encoding", given, code=1).stderr
    assert f"{name} begins with the byte order mark of {marked}, so it is not {given}" in said
    kvstream("import", "s", path, "--encoding", marked)
    assert fields_of(kvstream, "s") == FIELDS


def test_a_header_without_an_end_is_probably_another_encoding(
    kvstream: Program, tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.csv", "utf-16-le")
    said = kvstream("import", "s", path, "--encoding", "utf-16-be", code=1).stderr
    assert "rows.csv: all of it is one header without a line end: is this its encoding?" in said
    (tmp_path / "even.csv").write_text("ab,c\n1,2\n34\n")
    words = ("import", "s", str(tmp_path / "even.csv"), "--encoding", "utf-16-le")
    assert "is this its encoding?" in kvstream(*words, code=1).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            gzip.compress(b"a,b\n1,2\n", mtime=0),
            "rows.csv is compressed by gzip: give what gunzip -c",
        ),
        (b"PK\x03\x04\x14\0\x06\0", "rows.csv is a ZIP archive or a workbook (xlsx)"),
        (b"a,b\r1,2\r", r"line 1: the lines end with \r alone: convert them"),
    ],
    ids=["gzip", "zip", "carriage returns"],
)
def test_what_is_no_text_is_named(
    kvstream: Program, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    assert said in kvstream("import", "s", str(tmp_path / "rows.csv"), code=1).stderr


def test_a_line_of_json_is_refused_with_advice(kvstream: Program) -> None:
    rows = '{"a": "ä"}\n'.encode("latin-1")
    said = kvstream("import", "s", input=rows, code=1).stderr
    assert "not UTF-8 at byte 8; give the --encoding of the file, such as cp1252" in said
    rows = b'{"a": "1"}\r{"a": "2"}\r'
    assert "the lines end with" in kvstream("import", "s", input=rows, code=1).stderr
