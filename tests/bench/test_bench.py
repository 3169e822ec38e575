"""`make bench` runs, and says what it has measured."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import ROWS, main
from bench.peer import PeerMissing, require_peer
from bench.report import PAGE, Report, as_json, markdown
from bench.results import Claim, Contest
from bench.workload import entries


@pytest.fixture
def peer() -> None:
    """Skip where there is no redis-server to compare with, or fail where there must be one."""
    try:
        require_peer()
    except PeerMissing as missing:
        if os.environ.get("KVSTREAM_REQUIRE_ALL"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("bench.report.peer_version", lambda: "7.0.15")
    fast = Contest("add", "add, one by one", 6, 1000, [0.1, 0.2, 0.1], [0.9, 1.0, 0.1])
    slow = Contest("range", "range in pages", 2, 1000, [1.0], [1.5])
    return Report(0.5, [fast, slow], [Claim("open", "open", 1.5, 1, "s")])


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("row", ROWS)
def test_every_row_runs_and_is_reported(row: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--quick", "--only", row, "--json", str(figures), "--folder", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(figures.read_text())
    assert [*told["contests"], *told["served"], *told["claims"]] != []
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


@pytest.mark.parametrize("part", [["--quick"], ["--only", "add"]])
def test_only_a_whole_run_gets_into_the_docs(part: list[str]) -> None:
    assert CliRunner().invoke(main, [*part, "--write"]).exit_code == 2


def test_an_entry_has_four_fields_and_a_hundred_bytes() -> None:
    for fields in entries(20_000):
        assert len(fields) == 4
        assert sum(len(name) + len(value) for name, value in fields.items()) == 100


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians(report: Report) -> None:
    assert report.contests[0].ratio == pytest.approx(5)
    assert report.contests[0].ratio_range == pytest.approx((1, 9))


def test_a_missed_target_is_named_as_missed(report: Report) -> None:
    lines = markdown(report, plotted=False).splitlines()
    assert [line.split("|")[1].strip() for line in lines if "missed" in line] == [
        "add, one by one",
        "range in pages",
        "open",
    ]
    assert [row["met"] for row in json.loads(as_json(report))["contests"]] == [False, False]


def test_the_page_has_the_place_for_the_results() -> None:
    page = PAGE.read_text()
    assert page.count("<!-- results -->\n") == page.count("<!-- end of results -->") == 1
