"""`make demo` keeps its promises, here on a part of its data."""

import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import pytest
import redis
from click.testing import CliRunner

import demo.job
from demo import archive, lake, mail, workflow
from demo.__main__ import CLIENT, CONSOLE, FOLDER, SERVING, SUGGESTIONS, main, suggested
from demo.readings import SOURCES, DataMissing, Sum, data_folder
from kvstream import Store
from tests.forking import run, start
from tests.spark.workers import spark_home

ROWS = "600"
MORE_ROWS = "1500"
"""All days of a file, three months of the hours of the others, and more than a page of XRANGE."""


@pytest.fixture(scope="module")
def data() -> Path:
    try:
        return data_folder()
    except DataMissing as missing:
        if os.environ.get("KVSTREAM_REQUIRE_ALL"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def shown(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the demo once; return the folder of its store and what it prints."""
    folder = tmp_path_factory.mktemp("demo") / "store"
    words, env = ["--rows", MORE_ROWS, "--no-spark", "--folder", str(folder)], {}
    if lake.is_installed():
        words[2] = "--spark"
        env["SPARK_HOME"] = str(spark_home(tmp_path_factory.mktemp("spark")))
    result = CliRunner().invoke(main, words, env=env)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_the_demo_survives_both_crashes_and_proves_its_sums(shown: tuple[Path, str]) -> None:
    _, output = shown
    assert "killed with -9" in output
    assert re.search(r"carla died with [1-9][0-9]* entries pending", output)
    assert "check passes: every row was read and recounted, and nothing is pending\n" in output
    assert "differs" not in output
    assert "4,461 entries by XRANGE from kvstream serve" in output
    assert "nothing is lost: the sums of the results are those of the files\n" in output


def test_the_demo_sums_its_streams_in_spark(shown: tuple[Path, str]) -> None:
    pytest.importorskip("pyspark")
    folder, output = shown
    assert "the sums in Parquet, those in the stream, and the files'" in output
    picture = ElementTree.parse(folder.with_name("store-hours.svg")).getroot()
    texts = {each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Mean temperature by hour of the day", "stream", "0", "18"} <= texts
    assert {source.stream for source in SOURCES if source.column == "temp"} <= texts


def test_a_workflow_is_killed_and_ends_in_eight_lines(tmp_path: Path) -> None:
    lines: list[str] = []
    workflow.run(tmp_path / "store", lines.append)
    assert lines == [
        "worker 1  pays, waits, and is [red]killed with -9[/] while it packs",
        "worker 2  runs the function from its top, and finds what was done:",
        "          step   pay    payment of order:7",
        "          pause  pause",
        "          step   pack   parcel 1",
        "          child  mail   mail to ann",
        "ended     done: payment of order:7, parcel 1, mail to ann",
        "payments  1",
    ]
    with Store.open(tmp_path / "store") as store:
        assert store.check() == []


def test_a_mail_fails_waits_dies_and_is_redriven_in_ten_lines(tmp_path: Path) -> None:
    lines: list[str] = []
    mail.run(tmp_path / "store", lines.append)
    shown = [re.sub(r"\[/?\w*\]", "", line) for line in lines]
    assert len(shown) <= 10
    assert all(len(line) < 78 for line in shown), shown
    text = re.sub(r"\d+\.\d s ", "T ", "\n".join(shown))
    assert re.sub(r"\d{13}-\d", "ID", text).splitlines() == [
        "put       ID to ann@example.org",
        "at T  delivery 1 fails, waits 0.1 s: 1 waiting",
        "at T  delivery 2 fails, waits 0.3 s: 1 waiting",
        "at T  delivery 3 fails, given up",
        "dead      ID in emails:dead, reason max-deliveries",
        "because   ConnectionError: the mail server is down",
        "redriven  1 dead letter, the mail server is up again",
        "at T  delivery 1 is sent",
        "left      nothing is ready, leased, waiting or dead",
    ]
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.check() == []


def test_the_directory_is_deleted_and_restored_in_four_lines(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("orders").add_many([{"n": "1"}] * 10)
    lines: list[str] = []
    archive.run(tmp_path / "store", lines.append)
    archive.run(tmp_path / "store", lines.append)  # what an earlier demo left is in no way
    assert len(lines) == 8
    assert all(len(line) < 78 for line in lines), lines
    assert lines[3].endswith("2 streams with 11 entries")
    assert lines[7].endswith("2 streams with 12 entries")


def test_what_the_demo_says_to_try_next_works(shown: tuple[Path, str]) -> None:
    folder, _ = shown
    kvstream = [sys.executable, "-m", "kvstream", "--store", str(folder)]
    for command in SUGGESTIONS:
        done = run([*kvstream, *command.split()], text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    with start([*kvstream, CONSOLE, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("open http://127.0.0.1:")
        server.terminate()
    with start([*kvstream, *SERVING.split()], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        _, port, *words = CLIENT.removeprefix("redis-cli ").split()
        with redis.Redis(port=int(port)) as connection:
            length = connection.execute_command(*words)
        assert length > 0
        server.terminate()
    assert server.returncode == 0


def test_what_the_demo_says_to_try_next_fits_into_80_columns() -> None:
    lines = suggested(Path(".venv/bin/kvstream"), FOLDER)
    assert max(len(re.sub(r"\[/?\w*\]", "", f"  {line}")) for line in lines) <= 80


@pytest.mark.usefixtures("data")
def test_the_demo_fails_when_one_measurement_is_counted_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = demo.job.sums_of_the_files

    def one_more(data: Path, rows_max: int | None) -> dict[tuple[str, str], Sum]:
        sums = honest(data, rows_max)
        key = next(iter(sums))
        return {**sums, key: sums[key] + Sum.of("0.1")}

    monkeypatch.setattr("demo.__main__.sums_of_the_files", one_more)
    words = ["--rows", ROWS, "--no-spark", "--folder", str(tmp_path / "store")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "differs" in result.output


def test_the_demo_does_not_remove_a_folder_that_is_no_store(tmp_path: Path) -> None:
    precious = tmp_path / "letters.txt"
    precious.write_text("dear reader")
    result = CliRunner().invoke(main, ["--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert precious.read_text() == "dear reader"


def test_each_file_is_in_the_order_of_time_and_holds_one_measurement_a_row(data: Path) -> None:
    for source in SOURCES:
        readings = list(source.readings(data))
        times = [reading.ms for reading in readings]
        assert len(times) > 1000
        assert times == sorted(set(times))
        assert all(Decimal(reading.columns[source.column]).is_finite() for reading in readings)


def test_sums_survive_being_stored_as_fields() -> None:
    part = Sum.of("-1.5") + Sum.of("20.25")
    stored = {name.encode(): value.encode() for name, value in part.as_fields().items()}
    assert (
        Sum.from_fields(stored)
        == part
        == Sum(2, Decimal("18.75"), Decimal("-1.5"), Decimal("20.25"))
    )
