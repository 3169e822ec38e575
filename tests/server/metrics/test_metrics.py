"""/metrics: a scrape has the correct figures."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from kvstream.errors import StoreFull, StoreReadOnly
from kvstream.server.metrics.metric import Kind, ServerHistograms
from kvstream.server.metrics.reference import reference
from kvstream.server.metrics.sample import GROUPS_MAX, Limits
from kvstream.server.metrics.table import METRICS
from kvstream.storage.directory import Directory
from tests.patience import PATIENCE_S, until
from tests.server.asking import Failure
from tests.server.conftest import Serve, Served
from tests.server.metrics.scraping import Scrape, ask, scrape

ROOT = Path(__file__).resolve().parents[3]
ODD = b'caf\xc3\xa9 \xff\\\n"'


FRESH = Limits(sample_s=0.0, wait_s=PATIENCE_S)
"""Each scrape takes a new sample, however long that takes."""
ORDERS = {"db": "0", "stream": "orders"}
HASTY = Limits(sample_s=0.0, wait_s=0.5, hung_s=0.5)


@pytest.fixture
def measured(serve: Serve) -> Served:
    return serve(metrics_port=0, limits=FRESH)


@pytest.fixture
def busy(measured: Served) -> redis.Redis:
    """A client that has used every feature."""
    client = measured.client()
    for number in range(5):
        client.xadd("orders", {"n": number}, id=f"{1_700_000_000_000 + number}-1")
    client.xgroup_create("orders", "billing", "0")
    client.xreadgroup("billing", "worker", {"orders": ">"}, count=3)
    client.set("plain", "string")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.xlen("plain")
    client.waitaof(1, 0, 0)
    return client


def test_every_metric_of_the_table_exists_with_its_kind(
    measured: Served, busy: redis.Redis
) -> None:
    kinds = {family.name: family.type for family in scrape(measured).families}
    wanted = {
        metric.name.removesuffix("_total")
        if metric.kind is Kind.COUNTER
        else metric.name: metric.kind.value
        for metric in METRICS
    }
    assert wanted.items() <= kinds.items()
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "python_info"} <= kinds.keys()


def test_metrics_are_named_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("kvstream_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not metric.name.endswith(("_ms", "_us", "_mb", "_kb"))
        assert metric.meaning.endswith((".", ")"))


def test_the_reference_in_the_docs_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == "\n".join(reference()) + "\n", (
        "run: python -m kvstream.server.metrics.reference > docs/metrics.md"
    )


def test_commands_errors_and_bytes_are_counted(measured: Served, busy: redis.Redis) -> None:
    scraped = scrape(measured)
    assert scraped.one("kvstream_command_calls_total", command="xadd") == 5
    assert 0 < scraped.one("kvstream_command_seconds_total", command="xadd") < 5
    assert scraped.one("kvstream_command_failures_total", command="xlen") == 1
    assert scraped.one("kvstream_errors_total", code="WRONGTYPE") == 1
    with measured.asker() as asker:
        assert isinstance(asker.ask("XLEN"), Failure)
    again = scrape(measured)
    assert again.one("kvstream_command_rejections_total", command="xlen") == 1
    sent_before = scraped.one("kvstream_received_bytes_total")
    grown = again.one("kvstream_received_bytes_total") - sent_before
    assert grown == len(b"*1\r\n$4\r\nXLEN\r\n")
    assert again.one("kvstream_sent_bytes_total") > scraped.one("kvstream_sent_bytes_total")
    assert again.one("kvstream_build_info", durability="everysec") == 1


def test_clients_and_blocked_clients_are_counted(measured: Served) -> None:
    client, waiting = measured.client(), measured.client()
    client.ping()
    thread = threading.Thread(target=lambda: waiting.xread({"s": "$"}, block=0))
    thread.start()
    until(lambda: client.info("clients")["blocked_clients"] == 1)
    scraped = scrape(measured)
    assert (scraped.one("kvstream_clients"), scraped.one("kvstream_blocked_clients")) == (2, 1)
    client.xadd("s", {"f": "v"})
    thread.join(PATIENCE_S)
    assert scrape(measured).one("kvstream_blocked_clients") == 0


def test_the_figures_of_streams_and_groups_are_correct(measured: Served, busy: redis.Redis) -> None:
    place = {"db": "0", "stream": "orders"}
    scraped = scrape(measured)
    assert scraped.one("kvstream_stream_length", **place) == 5
    assert scraped.one("kvstream_stream_entries_added_total", **place) == 5
    assert scraped.one("kvstream_stream_first_id_timestamp_seconds", **place) == 1_700_000_000
    assert scraped.one("kvstream_stream_last_id_timestamp_seconds", **place) == 1_700_000_000.004
    assert scraped.one("kvstream_stream_last_id_sequence", **place) == 1
    place["group"] = "billing"
    assert scraped.one("kvstream_group_lag", **place) == 2
    assert scraped.one("kvstream_group_pending", **place) == 3
    assert scraped.one("kvstream_group_consumers", **place) == 1
    assert scraped.one("kvstream_group_entries_read_total", **place) == 3
    assert 0 <= scraped.one("kvstream_group_oldest_pending_age_seconds", **place) < 60
    assert scraped.one("kvstream_keys", db="0") == 2
    assert (scraped.one("kvstream_streams"), scraped.one("kvstream_streams_left_out")) == (1, 0)


def test_the_oldest_pending_entry_is_that_of_a_consumer(measured: Served) -> None:
    client = measured.client()
    ids = [client.xadd("s", {"f": "v"}) for _ in range(3)]
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "c", {"s": ">"})
    client.xclaim("s", "g", "c", 0, [ids[1]], idle=90_000)
    with measured.asker() as asker:
        assert asker.ask("XNACK", "s", "g", "FAIL", "IDS", "1", ids[0]) == 1
    scraped = scrape(measured)
    assert scraped.one("kvstream_group_nacked") == 1
    assert scraped.one("kvstream_group_pending") == 3
    assert 90 <= scraped.one("kvstream_group_oldest_pending_age_seconds") < 150
    client.xack("s", "g", *ids)
    assert scrape(measured).one("kvstream_group_oldest_pending_age_seconds") == 0


def test_an_unknown_lag_is_left_out(measured: Served) -> None:
    client = measured.client()
    for number in range(1, 6):
        client.xadd("s", {"f": "v"}, id=f"{number}-0")
    client.xgroup_create("s", "g", "2-0")
    client.xdel("s", "3-0")
    assert client.xinfo_groups("s")[0]["lag"] is None
    scraped = scrape(measured)
    assert scraped.all("kvstream_group_lag") == []
    assert scraped.one("kvstream_group_pending") == 0


def test_names_of_any_bytes_are_labels_of_their_own(measured: Served) -> None:
    client = measured.client()
    names = [ODD, b"\xff", rb"\xff", b"x" * 1000 + b"1", b"x" * 1000 + b"2", "é".encode()]
    for name in names:
        client.xadd(name, {"f": "v"})
    labels = [found["stream"] for found, _ in scrape(measured).all("kvstream_stream_length")]
    assert len(set(labels)) == len(names)
    assert {"\\xff", "\\\\xff", "é"} <= set(labels)
    assert max(map(len, labels)) <= 200


def test_streams_beyond_the_limit_are_counted_not_shown(serve: Serve) -> None:
    served = serve(metrics_port=0, metrics_streams=3, limits=FRESH)
    client = served.client()
    for number in range(120):
        client.xadd(f"s{number}", {"f": "v"})
        client.set(f"string{number}", "v")

    def shown(scraped: Scrape) -> set[str]:
        return {labels["stream"] for labels, _ in scraped.all("kvstream_stream_length")}

    scraped = scrape(served)
    assert shown(scraped) == {"s0", "s1", "s2"}
    assert (scraped.one("kvstream_streams"), scraped.one("kvstream_streams_left_out")) == (120, 117)
    client.delete("s1")
    client.rename("s2", "moved")
    scrape(served)
    assert shown(scrape(served)) == {"s0", "moved", "s3"}


def test_a_scan_over_many_keys_continues_with_the_next_sample(
    serve: Serve,
) -> None:
    served = serve(metrics_port=0, limits=replace(FRESH, keys_per_sample=100))
    client = served.client()
    for number in range(150):
        client.set(f"string{number}", "v")
    client.xadd("late", {"f": "v"})
    assert scrape(served).one("kvstream_streams") == 0
    assert scrape(served).one("kvstream_streams") == 1
    assert [labels["stream"] for labels, _ in scrape(served).all("kvstream_stream_length")] == [
        "late"
    ]


def test_groups_beyond_a_hundred_are_counted_not_shown(measured: Served) -> None:
    client = measured.client()
    client.xadd("s", {"f": "v"})
    for number in range(GROUPS_MAX + 4):
        client.xgroup_create("s", f"g{number:03}")
    scraped = scrape(measured)
    assert len(scraped.all("kvstream_group_lag")) == GROUPS_MAX
    assert scraped.one("kvstream_groups_left_out") == 4
    assert scraped.one("kvstream_stream_groups") == GROUPS_MAX + 4


def test_a_sample_deletes_nothing_and_has_no_expired_keys(measured: Served) -> None:
    client = measured.client()
    client.xadd("gone", {"f": "v"})
    client.xadd("flushed", {"f": "v"})
    client.xadd("stays", {"f": "v"})
    scrape(measured)
    client.pexpire("gone", 1)
    client.swapdb(0, 3)
    client.flushdb()
    time.sleep(0.05)
    scraped = scrape(measured)
    scraped = scrape(measured)
    shown = {(found["db"], found["stream"]) for found, _ in scraped.all("kvstream_stream_length")}
    assert shown == {("3", "flushed"), ("3", "stays")}
    assert scraped.one("kvstream_unreadable") == 0


def test_turns_commits_and_fsyncs_are_measured(measured: Served) -> None:
    client = measured.client()
    with client.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.xadd("s", {"n": number})
        pipeline.execute()
    client.waitaof(1, 0, 0)
    scraped = scrape(measured)
    turns = scraped.one("kvstream_turn_seconds_count")
    assert turns == scraped.one("kvstream_turn_requests_count") >= 2
    assert scraped.one("kvstream_turn_requests_sum") >= 101
    assert scraped.one("kvstream_turn_requests_bucket", le="1.0") < turns  # some ran together
    assert scraped.one("kvstream_commit_seconds_count") >= 1
    assert scraped.one("kvstream_fsync_seconds_count") >= 1
    assert scraped.one("kvstream_fsync_seconds_bucket", le="+Inf") == scraped.one(
        "kvstream_fsync_seconds_count"
    )
    client.config_resetstat()
    client.ping()
    assert scrape(measured).one("kvstream_turn_seconds_count") > turns


def test_metrics_leave_the_hooks_of_latency_in_place(served: Served) -> None:
    latency, engine, histograms = served.executor.latency, served.engine, ServerHistograms()
    latency.watch(engine, 1)  # as a configuration file does, before metrics start

    async def start() -> None:
        listener: Any = SimpleNamespace(
            executor=served.executor, run_turn=lambda: None, run_turns_by=lambda run: None
        )
        histograms.start(listener)
        histograms.stop()

    asyncio.run(start())
    for watcher in engine._commit_watchers:
        watcher(0.5)
    assert latency.events["aof-write"].longest_ms == 500
    assert histograms.commit_seconds.sum == 0.5


def test_a_hanging_loop_is_reported_while_it_hangs(serve: Serve) -> None:
    measured = serve(metrics_port=0, limits=HASTY)
    goes_on = threading.Event()
    measured._loop.call_soon_threadsafe(goes_on.wait, PATIENCE_S)
    until(lambda: scrape(measured).one("kvstream_loop_silence_seconds") > 1.1)
    health, reason = ask(measured, "/healthz")
    goes_on.set()
    assert health.status == 503
    assert reason.startswith(b"the event loop has not run for ")
    until(lambda: ask(measured, "/healthz")[0].status == 200)
    until(lambda: scrape(measured).one("kvstream_loop_silence_seconds") < 0.5)
    scraped = scrape(measured)
    assert (
        scraped.one("kvstream_loop_gap_seconds_count")
        - scraped.one("kvstream_loop_gap_seconds_bucket", le="1.0")
        >= 1
    )


def test_the_last_sample_of_a_locked_store_is_shown(serve: Serve) -> None:
    measured = serve(metrics_port=0, limits=HASTY)
    client = measured.client()
    for number in range(5):
        client.xadd("orders", {"n": number})
    until(lambda: scrape(measured).all("kvstream_stream_length") == [(ORDERS, 5)])
    with measured.engine.transaction():
        scraped = scrape(measured)
        assert ask(measured, "/healthz")[0].status == 200
    assert scraped.one("kvstream_stream_length") == 5
    assert scraped.one("kvstream_sample_age_seconds") >= 0.1


def test_health_depends_on_the_writes(measured: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    response, body = ask(measured, "/healthz")
    assert (response.status, body) == (200, b"ok\n")
    with monkeypatch.context() as full:
        full.setattr(Directory, "free_bytes", lambda self: 0)
        response, body = ask(measured, "/healthz")
        assert response.status == 503
        assert body.startswith(b"the disk is full but for a reserve of ")
        assert scrape(measured).one("kvstream_store_state", state="full") == 1
    gate = measured.engine.database.write_guard
    gate.failure, gate.recovers = StoreFull("No space left"), True  # with free space again
    assert ask(measured, "/healthz")[0].status == 200
    measured.client().set("k", "v")
    assert gate.failure is None
    scraped = scrape(measured)
    assert {labels["state"]: value for labels, value in scraped.all("kvstream_store_state")} == {
        "sound": 1,
        "full": 0,
        "failed": 0,
    }


def test_a_failed_store_stays_reported(measured: Served) -> None:
    gate = measured.engine.database.write_guard
    failure, gate.failure = gate.failure, StoreReadOnly("a write failed before")
    response, body = ask(measured, "/healthz")
    assert (response.status, body) == (503, b"a write failed before\n")
    assert scrape(measured).one("kvstream_store_state", state="failed") == 1
    gate.failure = failure


def test_the_figures_of_rocksdb_are_shown(measured: Served, busy: redis.Redis) -> None:
    scraped = scrape(measured)
    families = {labels["family"] for labels, _ in scraped.all("kvstream_rocksdb_memtable_bytes")}
    assert families == {"messages", "metadata", "trees"}
    assert scraped.one("kvstream_rocksdb_estimated_keys", family="messages") == 5
    assert scraped.one("kvstream_rocksdb_block_cache_capacity_bytes") > 0
    assert scraped.one("kvstream_wal_bytes") > 0
    assert scraped.one("kvstream_store_bytes") > scraped.one("kvstream_wal_bytes")
    measured.engine.database.flush()
    scraped = scrape(measured)
    assert scraped.one("kvstream_rocksdb_level0_files", family="messages") == 1
    assert scraped.one("kvstream_rocksdb_sst_bytes", family="messages") > 0


def test_the_last_save_is_shown(measured: Served) -> None:
    client = measured.client()
    client.set("k", "v")
    assert scrape(measured).one("kvstream_changes_since_save") == 1
    client.save()
    scraped = scrape(measured)
    assert scraped.one("kvstream_changes_since_save") == 0
    assert scraped.one("kvstream_last_save_failed") == 0
    assert abs(scraped.one("kvstream_last_save_timestamp_seconds") - time.time()) < 60


def test_nothing_is_measured_by_default(served: Served) -> None:
    assert served.metrics_url is None
    assert served.engine._commit_watchers == served.engine.committer._fsync_watchers == []
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"kvstream-metrics", "kvstream-sampler"}
