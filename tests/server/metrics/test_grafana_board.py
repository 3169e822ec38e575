"""docs/grafana.json: a board that Grafana can load, with existing metrics; also the alerts."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import redis

from kvstream.server.metrics.reference import ALERTS
from kvstream.server.metrics.table import METRICS
from tests.server.conftest import Serve
from tests.server.metrics.scraping import scrape

BOARD: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "grafana.json").read_text()
)
PANELS: list[dict[str, Any]] = BOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
METRIC = re.compile(r"\b(?:kvstream|process|python)_[a-z0-9_]+")


def test_every_metric_of_the_board_is_in_a_scrape(serve: Serve) -> None:
    served = serve(metrics_port=0, requirepass="secret")
    client = served.client(password="secret")
    client.xadd("s", {"f": "v"})
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    with pytest.raises(redis.ResponseError):
        client.get("s")
    with pytest.raises(redis.AuthenticationError):
        served.client(password="wrong").ping()
    runs = '[["id", "task", "jobs", "1-1", 0, null]]'
    client.xadd("jobs:workers", {"name": "w", "state": "working", "hanging": "0", "jobs": runs})
    client.waitaof(1, 0, 0)
    named = {name for query in (*QUERIES, *ALERTS.values()) for name in METRIC.findall(query)}
    assert named - scrape(served).names == set()


def test_it_shows_almost_every_metric() -> None:
    shown = {name for query in QUERIES for name in METRIC.findall(query)}
    shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    assert {metric.name for metric in METRICS} - shown == {
        "kvstream_build_info",  # the variable
        "kvstream_stream_first_id_timestamp_seconds",
        "kvstream_stream_groups",
        "kvstream_stream_last_id_sequence",
    }


def test_the_data_source_is_an_input_of_the_board() -> None:
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        if panel["type"] != "row":
            assert panel["datasource"] == wanted
            assert [target["datasource"] for target in panel["targets"]] == [
                wanted for _ in panel["targets"]
            ]
    assert variables["instance"]["datasource"] == wanted
    assert METRIC.findall(variables["instance"]["definition"]) == ["kvstream_build_info"]


def test_every_query_filters_by_instance_and_has_balanced_brackets() -> None:
    assert QUERIES
    for query in QUERIES:
        assert len(METRIC.findall(query)) == query.count('{instance=~"$instance"}'), query
        for opening, closing in ("()", "[]", "{}"):
            assert query.count(opening) == query.count(closing), query


def test_panels_have_distinct_places_and_names() -> None:
    assert BOARD["id"] is None  # new wherever it is loaded
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert all(panel["title"] for panel in PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
