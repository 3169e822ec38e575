"""Jobs on complete streams: each does its work, can be repeated, and has consistent counts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from kvstream import Store
from kvstream.cli import main
from kvstream.errors import Corruption, DataError, NoSuchKey, RequestError
from kvstream.spark.jobs import (
    Pair,
    Report,
    Verified,
    archive,
    archives,
    asof,
    export_files,
    import_files,
    migrate,
    page,
    place,
    report,
    restore,
    verify,
)
from kvstream.spark.jobs.archives import Archive
from kvstream.spark.jobs.reports import Minute, Table, throughput
from kvstream.types.ids import StreamID
from tests.cli.program import ENVIRONMENT, ROOT

DAY = 24 * 3600 * 1000
START = 20_000 * DAY


def fill(store: Store, first: int, count: int, key: str = "orders") -> None:
    """Add entries ``n`` an hour apart; a tenth of them has a repeated field."""
    stream = store.stream(key)
    with store.transaction():
        for n in range(first, first + count):
            pairs = [("n", str(n)), *([("n", "again")] if n % 10 == 0 else [])]
            stream.add(pairs, id=StreamID(START + n * DAY // 24, 0))


def numbers(store: Store, key: str = "orders") -> list[int]:
    return [_number(entry.fields) for entry in store.stream(key)]


def _number(fields: object) -> int:
    flat = getattr(fields, "flat", None)
    return int(flat[1]) if flat else int(fields[b"n"])  # type: ignore[index]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with Store.open(path) as store:
        fill(store, 0, 60)
        fill(store, 1, 5, "other:1")
    return path


def test_an_archive_resumes_and_trims_entries_that_no_group_needs(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    lake = str(tmp_path / "lake")
    with Store.open(data) as store:
        group = store.stream("orders").create_group("billing", "0")
        group.consumer("w").read(10)
        group.ack(*store.stream("orders").range(count=4))
    first = archive(spark, place(str(data)), lake)
    # Of orders the four acknowledged entries are deleted; the others have no readers.
    assert (first.run, first.read, first.written, first.trimmed, first.streams) == (1, 65, 65, 9, 2)
    again = archive(spark, place(str(data)), lake)
    assert (again.run, again.read, again.written, again.trimmed) == (0, 0, 0, 0)
    with Store.open(data) as store:
        assert numbers(store) == [*range(4, 60)]
        fill(store, 60, 3)
    third = archive(spark, place(str(data)), lake, match="orders", trim=False)
    assert (third.run, third.read, third.written) == (2, 3, 3)
    folders = sorted(each.name for each in (tmp_path / "lake" / "stream=orders").iterdir())
    assert folders == ["day=2024-10-04", "day=2024-10-05", "day=2024-10-06"]

    both = asof(spark, lake, place(str(data)), streams=["orders"])
    found = sorted(
        (row.id.ms, [bytes(each.value) for each in row.fields]) for row in both.collect()
    )
    assert [ms for ms, _ in found] == [START + n * DAY // 24 for n in range(63)]
    assert found[10][1] == [b"10", b"again"]

    into = place(str(tmp_path / "back"))
    with pytest.raises(RequestError, match="there is no archive in"):
        restore(spark, str(tmp_path / "leak"), into)
    with pytest.raises(NoSuchKey, match="no stream 'order' in the archive"):
        restore(spark, lake, into, streams=["order"])
    done = restore(spark, lake, into, streams=["orders"], end=str(START + DAY))
    assert (done.found, done.written, done.present) == (25, 25, 0)
    done = restore(spark, lake, into, streams=["orders"])
    assert (done.found, done.written, done.present) == (63, 38, 25)
    with Store.open(tmp_path / "back") as store:
        assert store.check() == []
        assert numbers(store) == [*range(63)]


def test_a_killed_archive_is_resumed(
    spark: SparkSession, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "complete", killed)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, place(str(data)), lake, streams=["orders"])
    assert len(spark.read.parquet(lake).collect()) == 60  # their files exist, but do not count
    done = archive(spark, place(str(data)), lake, streams=["orders"])
    assert (done.run, done.written, done.trimmed) == (1, 60, 60)
    assert spark.read.parquet(lake).count() == 60
    assert [each.name for each in (tmp_path / "lake" / "_kvstream").glob("*[!c]")] == [
        "000001.json"
    ]


def test_an_archive_with_files_that_lack_entries_is_refused(
    spark: SparkSession, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "_portions", lambda *_: {})
    with pytest.raises(Corruption, match="60 entries were read, 0 are"):
        archive(spark, place(str(data)), str(tmp_path / "lake"), streams=["orders"])
    with Store.open(data) as store:
        assert len(store.stream("orders")) == 60


@pytest.mark.usefixtures("adaptive")
def test_files_are_exported_and_imported_once(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    for kind in ("parquet", "csv"):
        folder = str(tmp_path / f"out.{kind}")
        out = export_files(
            spark, place(str(data)), folder, kind=kind, match="other:*", fields=["n"]
        )
        assert (out.read, out.written) == (5, 5)
        target = place(str(tmp_path / kind))
        columns = ["stream", "id", "cast(n as string) n"]
        for written in (5, 0):
            done = import_files(spark, folder, target, kind=kind, columns=columns)
            assert (done.read, done.written) == (5, written)
        same = verify(spark, place(str(data)), target, match="other:*")
        assert same == Verified(1, 1, 5, 5, ())


@pytest.mark.usefixtures("adaptive")
def test_verify_finds_the_range_in_which_something_differs(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    with Store.open(tmp_path / "copy") as store:
        fill(store, 0, 59)
        store.stream("orders").delete(StreamID(START, 0))
        store.stream("orders").add({b"\xff": b"no UTF-8"}, id=StreamID(START + 5 * DAY, 0))
    found = verify(spark, place(str(data)), place(str(tmp_path / "copy")), streams=["orders"])
    assert (found.ranges, found.equal, found.source, found.target) == (4, 1, 60, 59)
    assert [(each.first_ms, each.source, each.target) for each in found.differences] == [
        (START, 24, 23),
        (START + 2 * DAY, 12, 11),
        (START + 5 * DAY, 0, 1),
    ]


@pytest.mark.parametrize("kind", ["avro", "json", "csv"])
def test_entries_of_any_fields_survive_export_and_import(
    spark: SparkSession, tmp_path: Path, data: Path, kind: str
) -> None:
    files, target = str(tmp_path / "out"), place(str(tmp_path / "back"))
    (tmp_path / "out" / "_temporary").mkdir(parents=True)  # as a killed job leaves it
    with Store.open(data) as store:
        store.stream("other:1").add([("z", 'a"b\n'), ("a", "2,3")])
        if kind == "avro":
            store.stream("other:1").add([("z", "1"), ("a", "2"), ("z", "3")])
        entries = [*store.stream("other:1")]
    out = export_files(spark, place(str(data)), files, kind=kind, match="other:*")
    assert out.read == out.written == len(entries)
    assert {each.suffix for each in (tmp_path / "out").glob("part-*")} == {f".{kind}"}
    with pytest.raises(RequestError, match="--overwrite"):
        export_files(spark, place(str(data)), files, kind=kind)
    assert import_files(spark, files, target, kind=kind).written == len(entries)
    with Store.open(tmp_path / "back") as back:
        assert [*back.stream("other:1")] == entries


def test_grown_files_of_the_same_names_are_other_files(spark: SparkSession, tmp_path: Path) -> None:
    file, target = tmp_path / "in.json", place(str(tmp_path / "to"))
    shown = []
    for rows in (1, 1, 2):
        file.write_text('{"n": 1}\n' * rows)
        shown.append(import_files(spark, str(file), target, kind="json", stream="s").written)
    assert shown == [1, 0, 2]


def test_a_job_without_streams_fails_unless_allowed(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    source, to, folder = place(str(data)), place(str(tmp_path / "to")), str(tmp_path / "out")
    with Store.open(tmp_path / "to"):
        pass
    for job in (
        lambda: export_files(spark, source, folder, kind="csv", match="n*"),
        lambda: archive(spark, source, folder, match="n*"),
        lambda: report(spark, source, match="n*"),
        lambda: verify(spark, source, to, streams=["orders", "n*"]),
    ):
        with pytest.raises(NoSuchKey, match=r"'n\*'.* in .*data.*--ignore-missing"):
            job()
    assert not list(tmp_path.glob("out/part-*"))
    assert verify(spark, source, to, streams=["other:1"]).differences[0].source == 5
    words = ["--store", str(data), "spark", "-q", "verify", str(tmp_path / "to"), "--match", "n*"]
    assert [run(*words).exit_code, run(*words, "--ignore-missing").exit_code] == [1, 0]


def test_a_fleet_is_migrated_with_its_groups(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    with Store.open(data) as store:
        store.stream("orders").create_group("billing", "0").consumer("w").read(7)
    with Store.open(tmp_path / "more") as store:
        fill(store, 0, 3, "third")
    pairs = [
        Pair(str(data), str(tmp_path / "one")),
        Pair(str(tmp_path / "more"), str(tmp_path / "one")),
        Pair(str(data), str(tmp_path / "two")),
        Pair(str(tmp_path / "nowhere"), str(tmp_path / "three")),
    ]
    state = str(tmp_path / "state")
    with pytest.raises(DataError, match="1 of 4 sources"):
        migrate(spark, pairs, state=state)
    moved = migrate(spark, pairs[:3], state=state)
    assert [(each.keys, each.entries) for each in moved] == [(2, 65), (1, 3), (2, 65)]
    with Store.open(tmp_path / "one") as store:
        assert sorted(store.keys()) == [b"orders", b"other:1", b"third"]
        assert store.stream("orders").group("billing").info().pending == 7


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_the_command_line_runs_a_report_and_writes_its_page(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    with Store.open(data) as store:
        group = store.stream("orders").create_group("billing", "0")
        group.consumer("anna").read(30)
        group.consumer("ben").read(10)
        group.consumer("ben").claim(
            [entry.id for entry in store.stream("orders").range(count=3)], 0
        )
    html = tmp_path / "report.html"
    done = run("--store", str(data), "spark", "report", "--stream", "orders", "--html", str(html))
    assert done.exit_code == 0, done.output
    reply = re.sub(" +", " ", done.output)
    assert "60 entries in 60 minutes" in reply
    assert "orders 60 1.0 1 1 h 1 h 1 h 1 h" in reply
    assert "orders billing 2 20 40" in reply
    assert "orders billing anna 27 67.5 %" in reply
    assert "orders billing 3 2 43" in reply
    written = html.read_text()
    assert not re.search(r"(src|href)=\"(?!#)", written)  # it needs no other file
    assert written.count("<svg") == 2


def test_consumers_of_one_name_are_distinguished_by_their_streams(
    spark: SparkSession, data: Path
) -> None:
    with Store.open(data) as store:
        for key, count in (("orders", 4), ("other:1", 3)):
            store.stream(key).create_group("billing", "0").consumer("anna").read(count)
    made = report(spark, {"path": str(data)})
    assert made.shares == (("orders/billing/anna", 4), ("other:1/billing/anna", 3))
    written = page(made)
    assert "orders/billing/anna</text>" in written
    assert "other:1/billing/anna</text>" in written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["spark", "report"], "name the store"),
        (["--store", "x", "spark", "--conf", "a", "report"], "NAME=VALUE"),
        (["--store", "x", "spark", "export", "out", "--format", "xml"], "is not one of"),
    ],
)
def test_an_invalid_command_line_is_refused(
    spark: SparkSession, words: list[str], message: str
) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.output


def test_the_command_line_can_be_submitted() -> None:
    program = [sys.executable, "pyspark_kvstream.py", "spark", "report", "--help"]
    done = subprocess.run(
        program, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "kvstream spark report" in done.stdout


def test_the_command_line_reports_differences_with_its_exit_code(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    with Store.open(tmp_path / "empty"):
        pass
    words = ["--store", str(data), "spark", "-q", "verify", str(tmp_path / "empty")]
    done = run(*words, "--match", "other*")
    assert done.exit_code == 4
    assert "1 ranges of entries differ" in done.output


def elements(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.strip().removeprefix("<!doctype html>"))


def test_a_page_has_the_figures_of_the_report_and_is_valid() -> None:
    table = Table("A <b>", 1, ("x", "many"), (("1", "&"), ("other", "12")))
    minutes = tuple(Minute(f"s{at % 3}", at * 60_000, at) for at in range(2000))
    report = Report("place", 0, sum(range(2000)), minutes, (table,), (("g/c", 3), ("g/d", 0)))
    root = elements(page(report))
    cells = [*root.iter("td")]
    assert [each.text for each in cells] == ["1", "&", "other", "12"]
    assert [each.get("class") for each in cells] == [None, "number"] * 2
    assert (root.findtext("head/title"), root.findtext("body/h2")) == (
        "kvstream report: place",
        "A <b>",
    )
    assert [each.get("class") for each in root.iter("th")] == [None, "number"]
    shown = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "time in the entries' IDs (UTC), 1970-01-01 00:00 to 1970-01-02 09:19" in shown
    assert {"Entries a minute by stream", "stream", "s0", "s1", "s2"} <= set(shown)
    assert {"Pending entries by stream/group/consumer: the 1 largest of 2", "g/c"} <= set(shown)
    assert "A <b>\n  x      many\n  1         &\n  other    12" in report.text()


def test_an_empty_page_is_valid() -> None:
    root = elements(page(Report("place", 0, 0, (), (Table("T", 1, ("x",), ()),), ())))
    assert [each.text for each in root.iter("p")][1:] == ["None."]
    assert not [*root.iter("{http://www.w3.org/2000/svg}svg")]


@pytest.mark.parametrize(
    ("minutes", "labels"),
    [
        (0, {"00:00", "time in the entries' IDs (UTC), 1970-01-01 00:00 to 1970-01-01 00:00"}),
        (1600, {"12:00", "time in the entries' IDs (UTC), 1970-01-01 00:00 to 1970-01-02 02:40"}),
        (10**7, {"1980", "time in the entries' IDs (UTC), 1970-01-01 00:00 to 1989-01-05 10:40"}),
        (10**9, {"3200", "time in the entries' IDs (UTC), 1970-01-01 00:00 to 3871-04-29 10:40"}),
        (4 * 10**9, {"1e14", "first part of the ID: not a time"}),
        (2**64 // 60_000, {"1e19", "first part of the ID: not a time"}),
    ],
)
def test_the_axis_of_a_page_has_dates_and_their_zone(minutes: int, labels: set[str]) -> None:
    root = ElementTree.fromstring(
        throughput([Minute("s", 0, 1), Minute("s", minutes * 60_000, 27)])
    )
    shown = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert labels <= shown


def test_a_line_has_few_points_and_includes_every_entry() -> None:
    from kvstream.spark.jobs.reports import POINTS_MAX, _line

    minutes = [Minute("s", minute * 60_000, 3) for minute in range(1999)]
    points = _line(minutes, "s", 0, 1998 * 60_000, 5 * 60_000)
    assert len(points) == POINTS_MAX
    assert sum(rate * 5 for _, rate in points) == 3 * 1999


def test_the_text_of_a_run_is_parsed_back() -> None:
    from kvstream.spark.jobs.archives import Portion, Run

    given = Run(3, "place", {"s": Portion(2, "1-0", "2-0")}, ("stream=s/day=1970-01-01/x.parquet",))
    assert Run.parse(given.text()) == given
    assert json.loads(given.text())["number"] == 3
