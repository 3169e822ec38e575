"""Following streams by the calls of a reader in the order in which Spark makes them.

Tests with Spark itself are in test_queries.py; a reader alone needs no JVM.
"""

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from kvstream import Store
from kvstream.errors import DataError, InvalidArgument
from kvstream.spark.read import stores, watch
from kvstream.spark.read.partitions import DataLoss
from kvstream.spark.read.streaming import FollowingReader, key_text, text_key
from kvstream.spark.schema import default_schema

redis = pytest.importorskip("redis")

Ids = dict[str, list[str]]


class Query:
    """A query of micro-batches, which can be restarted from what Spark stores of it."""

    def __init__(self, **options: Any) -> None:
        self.options = {name.lower(): str(value) for name, value in options.items()}
        self.offset: dict[str, Any] | None = None
        self.reader = self.started()

    def started(self) -> FollowingReader:
        return FollowingReader(self.options, default_schema(self.options, several=True))

    def restart(self) -> None:
        """Restart from the last offset, which Spark requests once more."""
        self.reader = self.started()
        assert self.reader.partitions(self.offset or {}, self.offset or {}) == []

    def begin(self) -> "Query":
        self.offset = json.loads(json.dumps(self.reader.initialOffset()))
        return self

    def batch(self) -> Ids:
        """Read one micro-batch; return its IDs, by stream."""
        if self.offset is None:
            self.begin()
        assert self.offset is not None
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        found = self.read(self.offset, end)
        self.reader.commit(end)
        self.offset = end
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> Ids:
        return self.rows(self.reader.partitions(start, end))

    def rows(self, shares: Any) -> Ids:
        """Return what tasks with this plan read."""
        found: Ids = {}
        reader = pickle.loads(pickle.dumps(self.reader))
        for share in shares:
            for batch in reader.read(pickle.loads(pickle.dumps(share))):
                for row in batch.to_pylist():
                    eid = f"{row['id']['ms']}-{row['id']['seq']}"
                    found.setdefault(row["stream"], []).append(eid)
        return found


@pytest.fixture(params=["path", "url"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, redis_port: int
) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
    """A store, or a real Redis: its options for a query, and a function that runs a command."""
    if request.param == "url":
        client = redis.Redis(port=redis_port)
        client.flushall()
        yield {"url": f"redis://127.0.0.1:{redis_port}"}, client.execute_command
        return
    from kvstream import connect

    client = connect(tmp_path / "data")
    yield {"path": tmp_path / "data"}, client.execute_command
    client.close()


Place = tuple[dict[str, Any], Callable[..., Any]]


def add(run: Callable[..., Any], key: str, *ids: str) -> None:
    for eid in ids:
        run("XADD", key, eid, "a", "b")


def test_micro_batches_follow_each_other(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1", "1-2", "3-1")
    query = Query(**options, stream="s")
    assert query.batch() == {"s": ["1-1", "1-2", "3-1"]}
    assert query.batch() == {}
    add(run, "s", "3-2", "9-0")
    query.restart()
    assert query.batch() == {"s": ["3-2", "9-0"]}


def test_a_batch_planned_before_a_restart_is_read_unchanged(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1", "2-1")
    query = Query(**options, stream="s").begin()
    start = query.offset
    assert start is not None
    end = query.reader.latestOffset(start, ReadAllAvailable())
    add(run, "s", "3-1")
    query.reader = query.started()
    assert query.read(start, end) == {"s": ["1-1", "2-1"]}


def test_a_trigger_reads_at_most_its_limit_and_a_share_of_each_stream(place: Place) -> None:
    options, run = place
    add(run, "long", *(f"{n}-1" for n in range(1, 301)))
    add(run, "short", *(f"{n}-1" for n in range(1, 4)))
    query = Query(**options, stream="long,short", maxEntriesPerTrigger=101)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(101)
    seen: Ids = {"long": [], "short": []}
    for _ in range(10):
        found = query.batch()
        assert sum(map(len, found.values())) <= 101
        for key, ids in found.items():
            seen[key] += ids
    assert seen == {
        "long": [f"{n}-1" for n in range(1, 301)],
        "short": [f"{n}-1" for n in range(1, 4)],
    }


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ("earliest", ["1-1", "2-1", "2-2"]),
        ("latest", []),
        ("$", []),
        ("2-1", ["2-2"]),
        ("1970-01-01T00:00:00.002Z", ["2-1", "2-2"]),
    ],
)
def test_a_query_begins_at_its_start_option(place: Place, starting: str, first: list[str]) -> None:
    options, run = place
    add(run, "s", "1-1", "2-1", "2-2")
    query = Query(**options, stream="s", startingId=starting).begin()
    add(run, "s", "5-5")
    assert query.batch() == {"s": [*first, "5-5"]}


@pytest.mark.parametrize("starting", ["now-15m", "2-0"])
def test_a_query_may_begin_above_the_last_id_of_a_stream(place: Place, starting: str) -> None:
    options, run = place
    add(run, "s", "1-1")
    query = Query(stream="s", startingId=starting, **options).begin()
    assert query.batch() == {}
    query.restart()
    assert query.batch() == {}
    add(run, "s", "1-2")  # before the start
    assert query.batch() == {}
    above = "4102444800000-0"  # in the year 2100
    add(run, "s", above)
    assert query.batch() == {"s": [above]}
    query.restart()
    run("DEL", "s")
    add(run, "s", "1-1")
    with pytest.raises(DataLoss, match="but now ends at 1-1"):
        query.batch()


def test_a_restart_at_another_place_fails_the_query(place: Place, tmp_path: Path) -> None:
    options, run = place
    add(run, "s", "1-1")
    query = Query(stream="s", **options)
    assert query.batch() == {"s": ["1-1"]}
    with Store.open(tmp_path / "other") as store:
        store.stream("s").add({"a": "b"}, id="1-1")
    query.options = {"stream": "s", "path": str(tmp_path / "other")}
    query.reader = query.started()
    with pytest.raises(DataLoss, match=r"the checkpoint has positions in .*other: name each place"):
        query.batch()
    assert query.offset is not None
    with pytest.raises(DataLoss, match="the checkpoint has positions in"):
        query.read({}, query.offset)
    query.options["failondataloss"] = "false"
    query.reader = query.started()
    assert query.batch() == {"s": ["1-1"]}


def test_a_restart_with_another_database_fails_the_query(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1")
    query = Query(stream="s", **options)
    assert query.batch() == {"s": ["1-1"]}
    query.options = query.options | {"db": "1"}
    query.reader = query.started()
    with pytest.raises(DataLoss, match=r"but the query reads .*\?db=1"):
        query.batch()


def test_new_streams_that_match_a_pattern_are_included(place: Place) -> None:
    options, run = place
    run("SET", "s:no", "a string")
    add(run, "s:1", "1-1")
    query = Query(**options, match="s:*", startingId="latest").begin()
    assert query.batch() == {}
    add(run, "s:2", "7-1")
    add(run, "other", "7-1")
    assert query.batch() == {"s:2": ["7-1"]}
    add(run, "s:1", "8-1")
    assert query.batch() == {"s:1": ["8-1"]}


def test_a_pattern_matches_internal_streams_only_if_it_names_them(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1")
    add(run, "kvstream:import:1", "2-1")
    assert Query(**options, match="*").batch() == {"s": ["1-1"]}
    assert Query(**options, match="kvstream:*").batch() == {"kvstream:import:1": ["2-1"]}


def test_entries_trimmed_unread_fail_the_query(place: Place) -> None:
    options, run = place
    add(run, "s", *(f"{n}-1" for n in range(1, 11)))
    query = Query(**options, stream="s", maxEntriesPerTrigger=4)
    assert query.batch() == {"s": ["1-1", "2-1", "3-1", "4-1"]}
    run("XTRIM", "s", "MAXLEN", 3)
    careless = Query(**options, stream="s", failOnDataLoss="false")
    careless.offset = query.offset
    with pytest.raises(DataLoss, match=r"3 entries after 4-1 were removed before"):
        query.batch()
    query.restart()
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        query.batch()
    assert careless.batch() == {"s": ["8-1", "9-1", "10-1"]}


def test_entries_trimmed_once_a_batch_is_planned_fail_it(place: Place) -> None:
    options, run = place
    for careless in (False, True):
        add(run, "s", *(f"{n}-1" for n in range(1, 11)))
        query = Query(**options, stream="s", failOnDataLoss=str(not careless)).begin()
        assert query.offset is not None
        end = query.reader.latestOffset(query.offset, ReadAllAvailable())
        planned = query.reader.partitions(query.offset, end)
        run("XTRIM", "s", "MAXLEN", 3)
        if careless:
            assert [*query.rows(planned)["s"]] == ["8-1", "9-1", "10-1"]
        else:
            with pytest.raises(DataLoss, match="from 1-1 on were trimmed before they were read"):
                query.rows(planned)
        run("DEL", "s")


def test_entries_trimmed_behind_a_query_that_had_caught_up_fail_it_too(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1", "2-1")
    query = Query(**options, stream="s")
    query.batch()
    add(run, "s", "3-1", "4-1", "5-1")
    run("XTRIM", "s", "MAXLEN", 1)
    with pytest.raises(DataLoss, match=r"2 entries after 2-1 were removed before"):
        query.batch()


def test_read_entries_may_be_trimmed_and_deleted(place: Place) -> None:
    options, run = place
    add(run, "s", *(f"{n}-1" for n in range(1, 6)))
    query = Query(**options, stream="s")
    assert len(query.batch()["s"]) == 5
    run("XTRIM", "s", "MAXLEN", 1)
    assert query.batch() == {}
    add(run, "s", "6-1", "7-1", "8-1")
    run("XDEL", "s", "7-1")
    assert query.batch() == {"s": ["6-1", "8-1"]}


def test_a_recreated_stream_fails_the_query_or_is_read_from_its_start(place: Place) -> None:
    options, run = place
    add(run, "s", "5-1", "6-1")
    query = Query(**options, stream="s")
    query.batch()
    run("DEL", "s")
    add(run, "s", "1-1")
    careless = Query(**options, stream="s", failOnDataLoss="false")
    careless.offset = query.offset
    with pytest.raises(DataLoss, match="it was read up to 6-1, but now ends at 1-1"):
        query.batch()
    assert careless.batch() == {"s": ["1-1"]}


def test_a_recreated_stream_whose_ids_go_on_fails_the_query(place: Place) -> None:
    options, run = place
    add(run, "s", "5-1", "6-1")
    query = Query(**options, stream="s")
    query.batch()
    add(run, "s", "7-1")  # unread
    run("DEL", "s")
    add(run, "s", "8-1")
    careless = Query(**options, stream="s", failOnDataLoss="false")
    careless.offset = query.offset
    with pytest.raises(DataLoss, match="it was recreated after it was read up to 6-1"):
        query.batch()
    assert careless.batch() == {"s": ["8-1"]}


def test_entries_added_after_the_start_of_available_now_wait(place: Place) -> None:
    options, run = place
    add(run, "s:1", "1-1", "2-1", "3-1")
    query = Query(**options, match="s:*", maxEntriesPerTrigger=2).begin()
    query.reader.prepareForTriggerAvailableNow()
    add(run, "s:1", "4-1")
    add(run, "s:2", "1-1")
    assert [query.batch() for _ in range(3)] == [
        {"s:1": ["1-1", "2-1"]},
        {"s:1": ["3-1"]},
        {},
    ]
    latest = query.reader.reportLatestOffset()
    assert latest is not None
    (streams,) = (ends for place, ends in latest.items() if place not in ("source", "lag"))
    assert streams == {"s:1": ["4-1", 4], "s:2": ["1-1", 1]}
    assert latest["lag"] == 2
    assert latest["source"].startswith("kvstream: s:* in ")


def test_a_progress_names_the_source_and_counts_unread_entries(place: Place) -> None:
    options, run = place
    names = ["a", "b", "c", "d"]
    for name in names:
        add(run, name, *(f"{n}-1" for n in range(1, 11)))
    query = Query(**options, stream=",".join(names), maxEntriesPerTrigger=25)
    lags = []
    for _ in range(3):
        query.batch()
        lags.append(query.reader.reportLatestOffset()["lag"])
    assert lags == [15, 0, 0]
    source = query.reader.reportLatestOffset()["source"]
    assert source == f"kvstream: a, b, c and 1 more in {next(iter(query.offset or {}))}"


def test_a_trigger_waits_for_enough_entries_or_long_enough(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("kvstream.spark.read.streaming.monotonic", lambda: now[0])
    options, run = place
    add(run, "s", "1-1")
    waits = {"minEntriesPerTrigger": 3, "maxTriggerDelay": "2min", "maxEntriesPerTrigger": 4}
    query = Query(**options, stream="s", **waits)
    assert query.reader.getDefaultReadLimit() == ReadMinRows(3)
    assert query.batch() == {"s": ["1-1"]}  # the first batch does not wait
    add(run, "s", "2-1", "3-1")
    now[0] += 119
    assert query.batch() == {}
    assert query.reader.reportLatestOffset()["lag"] == 2
    add(run, "s", "4-1", "5-1", "6-1")
    assert query.batch() == {"s": ["2-1", "3-1", "4-1", "5-1"]}
    assert query.batch() == {}
    now[0] += 120
    assert query.batch() == {"s": ["6-1"]}
    now[0] += 500  # a long time without entries does not delay
    assert query.batch() == {}
    add(run, "s", "7-1")
    assert query.batch() == {"s": ["7-1"]}


def test_a_stopping_query_does_not_wait(place: Place) -> None:
    options, run = place
    add(run, "s", "1-1", "2-1", "3-1")
    limits = {"minEntriesPerTrigger": 2, "maxEntriesPerTrigger": 2}
    query = Query(**options, stream="s", **limits).begin()
    query.reader.prepareForTriggerAvailableNow()
    assert [query.batch() for _ in range(2)] == [{"s": ["1-1", "2-1"]}, {"s": ["3-1"]}]
    query = Query(**options, stream="s", **limits)
    assert query.batch() == {"s": ["1-1", "2-1"]}
    assert query.batch() == {}
    end = query.reader.latestOffset(query.offset or {}, ReadAllAvailable())  # Trigger.Once
    assert query.read(query.offset or {}, end) == {"s": ["3-1"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay needs minEntriesPerTrigger"),
        ({"minEntriesPerTrigger": 5, "maxEntriesPerTrigger": 4}, "is above maxEntriesPerTrigger"),
        ({"minEntriesPerTrigger": 5, "maxTriggerDelay": "900"}, "with ms, s, m, h or d, not '900'"),
        ({"minEntriesPerTrigger": 0}, "must be an integer of at least 1"),
        ({"start": "-"}, "the option start is for batch reads: .* begins at startingId"),
        ({"end": "+"}, "the option end is for batch reads: a streaming read has no end"),
        ({"table": "groups"}, "the option table is for batch reads: the metadata tables are read"),
    ],
)
def test_options_without_meaning_for_a_query_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Query(path=tmp_path, stream="s", **options)


def test_a_group_shows_the_progress_of_the_query(redis_port: int) -> None:
    client = redis.Redis(port=redis_port)
    client.flushall()
    add(client.execute_command, "s", *(f"{n}-1" for n in range(1, 11)))
    url = f"redis://127.0.0.1:{redis_port}"
    query = Query(url=url, stream="s", group="spark")
    query.batch()
    add(client.execute_command, "s", "11-1", "12-1")
    (group,) = client.xinfo_groups("s")
    assert (group["name"], group["lag"]) == (b"spark", 2)
    query.batch()
    (group,) = client.xinfo_groups("s")
    assert (group["last-delivered-id"], group["lag"]) == (b"12-1", 0)
    # Spark does not report the last batch while there are no entries: it only requests the offset.
    add(client.execute_command, "s", "13-1")
    end = query.reader.latestOffset(query.offset or {}, ReadAllAvailable())
    assert query.reader.latestOffset(end, ReadAllAvailable()) == end
    (group,) = client.xinfo_groups("s")
    assert (group["last-delivered-id"], group["lag"]) == (b"13-1", 0)
    query.restart()
    client.delete("s")  # no stream, so no group to move
    assert query.reader.latestOffset(end, ReadAllAvailable()) == {}


def test_a_group_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the option group needs url"):
        Query(path=tmp_path, stream="s", group="spark")


def test_rows_that_contradict_their_nodes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data") as store:
        stream = store.stream("s")
        stream.add_many([{"n": str(number)} for number in range(250)])
        query = Query(path=tmp_path / "data", stream="s").begin()
        pages = stores.store_pages
        short = [True, True]

        def missing_a_page(*given: Any) -> Iterator[Any]:
            found = list(pages(*given))
            return iter(found[1:] if short.pop() else found)

        monkeypatch.setattr(watch, "store_pages", missing_a_page)
        short[:] = [False, True]
        assert len(query.batch()["s"]) == 250  # read again, and completely
        short[:] = [True] * 10
        stream.add({"n": "more"})
        with pytest.raises(DataError, match=r"has 0 entries .* but its nodes count 1"):
            query.batch()


@pytest.mark.parametrize("key", [b"orders", b"\xff\x00", b"base64:x", "schlüssel".encode()])
def test_offsets_name_keys_of_any_bytes(key: bytes) -> None:
    text = json.loads(json.dumps(key_text(key)))
    assert text_key(text) == key
