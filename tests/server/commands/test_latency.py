"""LATENCY and INFO latencystats: times of commands, and slow events."""

import itertools
import random
import threading
import time
from typing import Any

import pytest
import redis

from kvstream.server.compiled import twins
from kvstream.server.stats import EVENT_SAMPLES as SAMPLES
from kvstream.server.stats import RECENT, CommandStatistics, Durations, Event, count_in_python
from tests.server.asking import Asker, Failure
from tests.server.conftest import Served


def _stats(asker: Asker) -> dict[str, str]:
    lines = asker.ask("INFO latencystats").decode().split("\r\n")[1:]
    rows = (line.partition(":") for line in lines if line)
    return {name.removeprefix("latency_percentiles_usec_"): reply for name, _, reply in rows}


# --- how long commands took ---------------------------------------------------------------------


def test_percentiles_are_right_to_within_a_hundredth() -> None:
    chance = random.Random(7)
    times = [0.0, *(chance.lognormvariate(-10, 2) for _ in range(1999))]
    row = CommandStatistics()
    durations = row.durations
    for each in times:
        row.count(each)
    durations.add(0.5, calls=8000)
    times = sorted([*times, *[0.5] * 8000])
    ranks = [0.0, 1.0, 10.0, 19.0, 50.0, 100.0]
    wanted = [times[max(0, round(rank * 100) - 1)] for rank in ranks]
    assert durations.percentiles(ranks) == pytest.approx(wanted, rel=0.01, abs=1e-9)
    assert durations.calls == 10_000


def test_calls_that_ran_together_are_counted_each() -> None:
    chance, alone, together = random.Random(2), Durations(), Durations()
    for number in range(3 * RECENT + 7):
        seconds, calls = chance.lognormvariate(-9, 2), chance.randint(1, 20)
        for _ in range(calls):
            alone.add(seconds)
        together.add(seconds, calls)
        if number % 1000 == 0:
            assert together.calls == alone.calls
    assert list(together.histogram()) == list(alone.histogram())
    ranks = [1.0, 50.0, 99.0, 100.0]
    assert together.percentiles(ranks) == alone.percentiles(ranks)


@pytest.mark.skipif(twins is None, reason="there is no compiled code")
def test_compiled_code_counts_times_in_the_same_buckets() -> None:
    chance = random.Random(3)
    times = [0.0, 1e-9, 2.0**-30, 2.0**12, 2.0**13, 5000.5, 1.0, 2.0 - 2**-52, 1e-3, -1e-9]
    times += [chance.lognormvariate(-10, 4) for _ in range(5000)]
    found, wanted = {1.0: 7, 3.0: 1}, {1.0: 7, 3.0: 1}
    twins.count_times(times, found)
    count_in_python(times, wanted)
    assert found == wanted


def test_a_histogram_counts_up_in_powers_of_two() -> None:
    durations = Durations()
    for microseconds, calls in ((0.2, 1), (3.0, 2), (3.5, 1), (32.0, 1), (20_000.0, 5)):
        durations.add(microseconds / 1e6, calls)
    assert list(durations.histogram()) == [(1, 1), (4, 4), (33, 5), (33816, 10)]


def test_each_command_has_its_times(served: Served, protocol: int) -> None:
    with served.asker(protocol) as asker:
        asker.ask("CONFIG RESETSTAT")
        asker.ask("SET k v")
        asker.ask("CLIENT ID")
        for _ in range(3):
            asker.ask("XADD s * f v")
        reply: Any = asker.ask("LATENCY HISTOGRAM xadd client nosuch get SET")
        rows = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
        assert sorted(rows) == [b"client|id", b"set", b"xadd"]
        row = rows[b"xadd"]
        row = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
        assert row[b"calls"] == 3
        bounds = row[b"histogram_usec"]
        counts = list(bounds.values()) if isinstance(bounds, dict) else bounds[1::2]
        assert counts == sorted(counts)
        assert counts[-1] == 3
        every = asker.ask("LATENCY HISTOGRAM")
        assert {b"set", b"xadd", b"client|id", b"config|resetstat"} <= {
            name for name in every if isinstance(name, bytes)
        }
        assert asker.ask("LATENCY HISTOGRAM nosuch") == ({} if protocol == 3 else [])


def test_percentiles_can_be_selected_and_hidden(served: Served) -> None:
    setting = "latency-tracking-info-percentiles"
    with served.asker() as asker:
        asker.ask("XADD s * f v")
        assert _stats(asker)["xadd"].startswith("p50=")
        assert asker.ask("CONFIG", "SET", setting, "0.0 50.0 100.0") == b"OK"
        assert asker.ask("CONFIG", "GET", setting)[1] == b"0 50 100"
        names = [part.partition("=")[0] for part in _stats(asker)["xadd"].split(",")]
        assert names == ["p0", "p50", "p100"]
        for wrong, why in (("10 a", "Invalid"), ("101", "should sit between"), ("nan", "between")):
            assert why in asker.ask("CONFIG", "SET", setting, wrong)
        assert asker.ask("CONFIG", "SET", setting, "") == b"OK"
        assert _stats(asker)["xadd"] == ""
        asker.ask("CONFIG SET latency-tracking no")
        assert _stats(asker) == {}
        asker.ask("CONFIG SET latency-tracking yes")
        asker.ask("CONFIG RESETSTAT")
        assert "xadd" not in _stats(asker)


# --- when something took long -------------------------------------------------------------------


def test_slow_events_are_recorded(served: Served, protocol: int) -> None:
    with served.asker(protocol) as asker:
        assert b"latency-monitor-threshold" in asker.ask("LATENCY DOCTOR")
        asker.ask("DEBUG SLEEP 0.005")
        assert asker.ask("LATENCY LATEST") == []
        asker.ask("CONFIG SET latency-monitor-threshold 3")
        assert b"Nothing" in asker.ask("LATENCY DOCTOR")
        asker.ask("DEBUG SLEEP 0.005")
        events = {event[0]: event for event in asker.ask("LATENCY LATEST")}
        name, at, last, longest = events[b"command"]
        assert name == b"command"
        assert abs(at - time.time()) < 60
        assert 5 <= last <= longest
        assert [at, last] in asker.ask("LATENCY HISTORY Command")
        assert b"command: 1 spikes" in asker.ask("LATENCY DOCTOR")
        graph = asker.ask("LATENCY GRAPH command").decode().split("\n")
        assert graph[0].startswith(f"command - high {last} ms, low {last} ms (all time high")
        assert graph[5].startswith("#")
        assert asker.ask("LATENCY GRAPH nosuch") == Failure(
            "ERR No samples available for event 'nosuch'"
        )
        assert asker.ask("LATENCY HISTORY nosuch") == []
        assert asker.ask("LATENCY RESET nosuch") == 0
        asker.ask("CONFIG SET latency-monitor-threshold 0")
        assert asker.ask("LATENCY RESET COMMAND") == 1
        assert b"command" not in {event[0] for event in asker.ask("LATENCY LATEST")}


def test_the_store_reports_its_writes_and_fsyncs(served: Served) -> None:
    latency, engine = served.executor.latency, served.engine
    latency.watch(engine, 3)
    latency.watch(engine, 4)
    (committed,), (fsynced,) = engine._commit_watchers, engine.committer._fsync_watchers
    committed(0.0039)
    assert latency.events == {}
    committed(0.0041)
    assert latency.events["aof-write"].longest_ms == 4
    fsynced(1.0)  # in the background: no client waits
    assert "aof-fsync-always" not in latency.events
    with served.asker() as asker:
        asker.ask("CONFIG SET appendfsync always")
    fsynced(1.0)
    assert latency.events["aof-fsync-always"].longest_ms == 1000


def test_an_event_keeps_the_longest_of_each_second() -> None:
    event = Event()
    for at, ms in ((1, 5), (1, 9), (1, 7), (2, 4)):
        event.add(at, ms)
    assert list(event.samples) == [(1, 9), (2, 4)]
    assert event.longest_ms == 9
    for at in range(3, 3 + SAMPLES):
        event.add(at, 1)
    assert len(event.samples) == SAMPLES


def test_clients_read_latency(client: redis.Redis) -> None:
    assert client.latency_latest() == []
    assert client.latency_history("command") == []
    assert client.latency_reset() == 0


def test_spikes_are_shown_while_another_thread_adds_some(served: Served) -> None:
    latency, over = served.executor.latency, threading.Event()
    latency.threshold_ms = 1

    def add() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            latency.add(f"e{number % 50}", 0.001)
            if number % 50 == 0:
                latency.reset(set())

    thread = threading.Thread(target=add)
    thread.start()
    try:
        with served.asker() as asker:
            for _ in range(100):
                for line in ("LATEST", "HISTORY e1", "DOCTOR", "RESET e1", "GRAPH e2"):
                    assert "internal error" not in str(asker.ask("LATENCY " + line))
    finally:
        over.set()
        thread.join()
