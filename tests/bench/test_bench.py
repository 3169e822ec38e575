"""`make bench` runs, and says what it has measured."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.__main__ import COMMAND_GROUPS, PARTS, QUICK_ROWS, ROWS, main, run_rows
from bench.library import LIBRARY_ROWS
from bench.migrate import MIGRATION_ROWS
from bench.nats import nats_program
from bench.report import FIGURES, PAGE, Report, as_json, markdown, processor_promises, promises
from bench.results import Comparison, Limit, Scaling, Used
from bench.server import SERVER_ROWS
from bench.workload import QUICK, entries
from tests.forking import start

SMALLEST = replace(
    QUICK,
    rounds=1,
    single=200,
    bulk=1_000,
    synced=50,
    synced_threads=200,
    trimmed=2_000,
    acked=1_500,
    large=5_000,
    loaded=5_000,
    served=100,
    moved=2_000,
    keys=500,
    window_s=0.02,
    requests=300,
    pending=400,
    cycles=100,
    open_s=0.05,
    blocked=20,
    wakeups=5,
    expiring=50,
    queued=80,
    embedded_streams=200,
    jobs=10,
)
"""Each row runs whole, with at least one batch, page or request of each client."""

CLAIMED = {
    *("bulk", "head", "open", "memory", "gaps", "pending", "serve-memory", "serve-del"),
    *("serve-info", "open-loop-20k", "wakeup", "fan-out", "embedded-streams", "embedded-threads"),
    *("embedded-add", "embedded-read-ack", "embedded-queue", "embedded-job"),
    *("replica-serve-16", "replica-serve-1", "replica-lag", "replica-wait"),
    *("archive-add-folder", "archive-serve-folder", "archive-restore-folder"),
}
"""Claims that each of the functions must have made."""


@pytest.fixture(autouse=True)
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the servers of Python by forks."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    monkeypatch.setattr("bench.processes.subprocess", forking)


@pytest.fixture
def report() -> Report:
    fast = Comparison("add", "add, one by one", 6, 1000, [0.1, 0.2, 0.1], [0.9, 1.0, 0.1])
    slow = Comparison("range", "range in pages", 2, 1000, [1.0], [1.5])
    return Report(0.5, "7.0.15", [fast, slow], [Limit("open", "open", 1.5, 1, "s")])


def _figures(folder: Path, *only: str) -> dict[str, list[dict[str, object]]]:
    """Run the benchmark at its small sizes; return what it writes, which is all that it leaves."""
    figures = folder / "figures.json"
    arguments = ["--quick", *only, "--json", str(figures), "--folder", str(folder)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert [path.name for path in folder.iterdir()] == ["figures.json"]
    shown: dict[str, list[dict[str, object]]] = json.loads(figures.read_text())
    return shown


@pytest.mark.usefixtures("peer")
def test_a_whole_run_reports_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each group of commands one row: test_commands runs the others; test_archive buckets."""
    monkeypatch.setattr("bench.machine.seaweed.PROGRAM", None)
    few = {key: rows[:1] for key, rows in COMMAND_GROUPS.items()}
    report = Report(0.5, "7.0.15")
    run_rows(report, QUICK_ROWS, few, SMALLEST, tmp_path, Console(quiet=True))
    found: dict[str, list[dict[str, object]]] = json.loads(as_json(report))
    assert [row["key"] for row in found["contests"]] == [work.key for work in LIBRARY_ROWS]
    assert [row["key"] for row in found["served"]] == [work.key for work in SERVER_ROWS]
    assert [row["key"] for row in found["moved"]] == [row.key for row in MIGRATION_ROWS]
    assert {row["key"] for row in found["claims"]} >= CLAIMED
    assert [row["key"] for row in found["commands"]] == [rows[0].key for rows in few.values()]
    assert (len(found["rivals"]), len(found["jobs"])) == (6, 1)
    assert len(found["workflows"]) == 2
    assert len(found["nats"]) == (0 if nats_program() is None else 8)


@pytest.mark.usefixtures("peer")
def test_a_run_of_one_row_reports_that_row(tmp_path: Path) -> None:
    found = _figures(tmp_path, "--only", "add")
    assert [row["key"] for row in found["contests"]] == ["add"]
    assert found["served"] == found["claims"] == []


@pytest.mark.usefixtures("peer")
def test_a_run_of_one_command_reports_its_rows(tmp_path: Path) -> None:
    found = _figures(tmp_path, "--command", "ping")
    rows = found["commands"]
    assert [row["key"] for row in rows] == ["ping-p1", "ping-p16", "ping-c1", "ping-c1000"]
    assert all("processor_us" in row and "redis_processor_us" in row for row in rows)


@pytest.mark.usefixtures("peer")
def test_a_run_beside_a_neighbour_reports_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core only")
    monkeypatch.setattr("bench.__main__.neighbour_bytes", lambda: 1 << 20)
    asked = ["--neighbour", "--command", "xack", "--clients", "2"]
    found = _figures(tmp_path, *asked)
    (row,) = found["commands"]
    beside = row["beside_neighbour"]
    assert isinstance(beside, dict)
    assert beside["processor_us"] > 0
    assert found["setting"]["neighbour"] == "1 MB"  # type: ignore[call-overload]


@pytest.mark.usefixtures("peer")
def test_any_number_of_clients_sends_a_command(tmp_path: Path) -> None:
    asked = ["--command", "xack", "--command", "ping", "--clients", "1", "--clients", "3"]
    rows = _figures(tmp_path, *asked)["commands"]
    assert [row["key"] for row in rows] == ["ping-c1", "ping-c3", "xack-c1", "xack-c3"]
    assert [row["target_ratio"] for row in rows] == [0.6, 0, 0.6, 0]


@pytest.mark.parametrize("part", [["--quick"], ["--only", "add"], ["--command", "ping"]])
def test_only_a_whole_run_gets_into_the_docs(part: list[str]) -> None:
    assert CliRunner().invoke(main, [*part, "--write"]).exit_code == 2


def test_an_entry_has_four_fields_and_a_hundred_bytes() -> None:
    for fields in entries(20_000):
        assert len(fields) == 4
        assert sum(len(name) + len(value) for name, value in fields.items()) == 100


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians(report: Report) -> None:
    assert report.library[0].ratio == pytest.approx(5)
    assert report.library[0].ratio_range == pytest.approx((1, 9))


def test_a_missed_target_is_named_as_missed(report: Report) -> None:
    lines = markdown(report, plotted=False).splitlines()
    assert [line.split("|")[1].strip() for line in lines if "missed" in line] == [
        "add, one by one",
        "range in pages",
        "open",
    ]
    assert [row["met"] for row in json.loads(as_json(report))["contests"]] == [False, False]


def test_the_rows_furthest_from_their_target_come_first(report: Report) -> None:
    report.commands.append(Comparison("ping", "PING", 0.8, 1000, [1.0], [0.4]))
    report.commands.append(Comparison("wide", "without a target", 0, 1000, [1.0], [0.1]))
    titles = ["PING", "open", "range in pages", "add, one by one"]
    assert [row.title for row in promises(report)] == titles
    lines = markdown(report, plotted=False).splitlines()
    assert lines[2].startswith("| worst rates and bounds |")
    assert lines[4] == "| PING | 0.40x | 0.8x | 0.50 |  |"


def test_a_row_of_a_server_has_its_processor_time(report: Report) -> None:
    row = Comparison("ping", "PING", 0.8, 1000, [1.0], [1.0], {}, [0.02, 0.01, 0.03], [0.004])
    report.commands.append(row)
    assert row.processor_us == pytest.approx((20, 4))
    assert "| PING | 20.0, 4.0 | 1,000 | 1,000 | 1.0x | 1.0 to 1.0 | 0.8x | met |" in markdown(
        report, plotted=False
    )


@pytest.fixture
def beside_least(report: Report) -> Report:
    """Return a report with three rows beside the least server, and one beside Redis alone."""
    for key, used in (("ping-p1", 0.02), ("ping-p16", 0.01), ("xadd-c1", 0.03), ("multi-p1", 0.04)):
        least = [] if key == "multi-p1" else [0.01]
        row = Comparison(key, key, 0, 1000, [1.0], [1.0], {}, [used], [0.004], least)
        report.commands.append(row)
    return report


def test_the_processor_time_over_the_least_server_leads(beside_least: Report) -> None:
    text = markdown(beside_least, plotted=False)
    assert "| command | CPU over least | target | result | CPU us: kvstream, least, Redis |" in text
    assert "| ping-p1 | 2.00x | 1.25x | missed | 20.0, 10.0, 4.0 | 1,000 |" in text
    assert "| ping-p16 | 1.00x | 1.5x | met | 10.0, 10.0, 4.0 |" in text
    assert "| multi-p1 | 10.00x Redis | 4.6x Redis | missed | 40.0, 4.0 |" in text
    found = json.loads(as_json(beside_least))["commands"][0]
    assert (found["least_processor_us"], found["processor_times"]) == (10, 2)
    assert found["processor_target"] == {"of": "least", "times": 1.25}


def test_quiet_and_neighbour_stand_side_by_side(report: Report) -> None:
    row = Comparison("ping-p1", "PING", 0.8, 1000)
    for server, processor in (("kvstream", 0.012), ("least", 0.01), ("Redis", 0.005)):
        counts = {"instructions": 1e6 * processor, "cache-misses": 1e4 * processor}
        row.add(server, Used(1.0, processor, counts))
        row.add_beside(server, Used(2.0 if server == "Redis" else 1.0, processor**2))
    report.commands.append(row)
    text = markdown(report, plotted=False)
    head = "| command | CPU over least | beside a neighbour | target | result |"
    assert f"{head} CPU us: kvstream, least, Redis | beside a neighbour | instructions:" in text
    first = (
        "| PING | 1.20x | 1.44x | 1.25x | missed | 12.0, 10.0, 5.0 | 0.1, 0.1, 0.0 | 12, 10, 5.00 |"
    )
    assert f"{first} 0.120, 0.100, 0.050 | 1,000 | 1,000 | 1.0x | 2.0x |" in text
    assert "| PING | 1.20x, 1.44x | 1.25x | 0.87 | 12.0, 10.0, 5.0 |" in text
    found = json.loads(as_json(report))["commands"][0]
    assert found["instructions"] == [12, 10, 5]
    assert found["beside_neighbour"]["processor_times"] == 1.44


def test_the_report_begins_with_the_worst_processor_times(beside_least: Report) -> None:
    shown = [each.title for each in processor_promises(beside_least)]
    assert shown == ["xadd-c1", "multi-p1", "ping-p1", "ping-p16"]
    lines = markdown(beside_least, plotted=False).splitlines()
    assert lines[2].startswith("| worst processor times |")
    assert lines[4] == "| xadd-c1 | 3.00x | 1.3x | 0.43 | 30.0, 10.0, 4.0 |"


def test_a_row_without_a_target_is_neither_met_nor_missed(report: Report) -> None:
    report.server.append(Comparison("trim", "XADD that trims", 0, 1000, [1.0], [0.5]))
    assert "| XADD that trims | 1,000 | 2,000 | 0.50x | 0.5 to 0.5 | none |  |" in markdown(
        report, plotted=False
    )


def test_what_a_core_brings_is_told_by_its_median_rounds(report: Report) -> None:
    report.scaling.append(Scaling("spark-count", "counts rows", 1000, [2.0, 1.0, 4.0], [1.0]))
    assert "| counts rows | 500 | 1,000 | 2.0x |" in markdown(report, plotted=False)
    assert json.loads(as_json(report))["scaled"][0]["times"] == 2


def test_the_page_has_the_place_for_the_results() -> None:
    page = PAGE.read_text()
    for part in PARTS:
        assert page.count(f"<!-- results of {part} -->\n") == 1
    assert page.count("<!-- end of results -->") == len(PARTS)
    assert {*json.loads(FIGURES.read_text())} == {*PARTS}


def test_each_row_is_in_one_part() -> None:
    assert sorted(row for rows in PARTS.values() for row in rows) == sorted(ROWS)
