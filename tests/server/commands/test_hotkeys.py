"""HOTKEYS: https://redis.io/commands/hotkeys."""

import threading
import time
from typing import Any

import pytest
import redis
from redis.commands.core import HotkeysMetricsTypes

from kvstream.server.hotkeys import KEYS_MAX, HotKeys, Totals
from tests.patience import until
from tests.server.conftest import Served

CPU, NET = HotkeysMetricsTypes.CPU, HotkeysMetricsTypes.NET


def _found(client: redis.Redis) -> dict[str, Any]:
    (found,) = client.hotkeys_get()
    return {_text(name): value for name, value in found.items()}


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else word


def _ask(client: redis.Redis, *words: Any) -> Any:
    return client.execute_command("HOTKEYS", *words)  # type: ignore[no-untyped-call]


def _sums(flat: list[Any]) -> dict[bytes, int]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "METRICS parameter is required"),
        ("METRICS 1", "METRICS count does not match number of metric types provided"),
        ("METRICS 0 CPU", "METRICS count must be > 0 and <= 2"),
        ("METRICS x CPU", "METRICS count must be > 0 and <= 2"),
        ("METRICS 3 CPU NET", "METRICS count must be > 0 and <= 2"),
        ("METRICS 2 CPU", "METRICS count does not match number of metric types provided"),
        ("METRICS 1 CPU NET", "syntax error"),
        ("METRICS 1 GPU", "METRICS no valid metrics passed. Supported: CPU|NET"),
        ("METRICS 2 CPU cpu", "METRICS CPU defined more than once!"),
        ("METRICS 2 NET NET", "METRICS NET defined more than once!"),
        ("METRICS 1 CPU COUNT 0", "COUNT must be between 1 and 64"),
        ("METRICS 1 CPU COUNT 65", "COUNT must be between 1 and 64"),
        ("METRICS 1 CPU COUNT", "syntax error"),
        ("METRICS 1 CPU DURATION 0", "DURATION must be between 1 and 1000000"),
        ("METRICS 1 CPU SAMPLE 0", "SAMPLE ratio must be positive"),
        ("METRICS 1 CPU SLOTS 1 0", "SLOTS parameter cannot be used in non-cluster mode"),
    ],
)
def test_a_start_that_is_no_good_is_refused(served: Served, words: str, error: str) -> None:
    with served.asker() as asker:
        assert asker.ask("HOTKEYS", "START", *words.split()) == f"ERR {error}"
        assert asker.ask("HOTKEYS GET") is None


def test_a_metric_of_a_newer_server_is_passed_over(client: redis.Redis) -> None:
    _ask(client, "START", "METRICS", 2, "GPU", "CPU")
    client.set("k", "v")
    found = _found(client)
    assert "by-cpu-time-us" in found
    assert "by-net-bytes" not in found


def test_the_keys_come_from_the_one_with_the_most_bytes_on(client: redis.Redis) -> None:
    client.hotkeys_start([CPU, NET], count=2)
    for key, times in (("cold", 1), ("hot", 9), ("warm", 4)):
        for _ in range(times):
            client.xadd(key, {"field": "v" * 100})
    assert client.hotkeys_stop() in (b"OK", "OK", True)
    client.xadd("later", {"field": "v" * 10_000})
    found = _found(client)
    assert found["tracking-active"] == 0
    assert found["selected-slots"] == [[0, 16383]]
    assert list(_sums(found["by-net-bytes"])) == [b"hot", b"warm"]
    assert set(_sums(found["by-cpu-time-us"])) <= {b"cold", b"hot", b"warm"}
    assert found["total-net-bytes"] == found["net-bytes-all-commands-all-slots"]


def test_bytes_are_those_of_the_request_and_its_reply(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("HOTKEYS START METRICS 1 NET")
        asker.ask("SET key value")
        asker.ask("MGET key other")
        (found,) = asker.ask("HOTKEYS GET")
    fields = dict(zip(found[::2], found[1::2], strict=True))
    set_ = len(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n+OK\r\n")
    mget = len(b"*3\r\n$4\r\nMGET\r\n$3\r\nkey\r\n$5\r\nother\r\n*2\r\n$5\r\nvalue\r\n$-1\r\n")
    assert _sums(fields[b"by-net-bytes"]) == {b"key": set_ + mget // 2, b"other": mget // 2}


def test_calls_of_exec_count_and_those_of_a_script_count_for_its_keys(client: redis.Redis) -> None:
    client.hotkeys_start([NET])
    with client.pipeline() as pipe:
        pipe.set("one", "v")
        pipe.set("two", "v")
        pipe.execute()
    client.eval("return redis.call('set', 'unnamed', KEYS[1])", 1, "named")
    assert set(_sums(_found(client)["by-net-bytes"])) == {b"one", b"two", b"named"}


def test_a_blocked_read_counts_what_it_gets(served: Served) -> None:
    with served.asker() as asker, served.asker() as reader:
        asker.ask("HOTKEYS START METRICS 1 NET")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        until(lambda: b"blocked_clients:1" in asker.ask("INFO clients"))
        asker.ask("XADD", "s", "1-1", "f", "v" * 5000)
        assert reader.read()[0][0] == b"s"
        (found,) = asker.ask("HOTKEYS GET")
    assert _sums(found[-1])[b"s"] > 10_000  # written once and read once


def test_a_tracking_ends_by_itself_and_only_one_runs(client: redis.Redis) -> None:
    client.hotkeys_start([CPU], duration=1)
    with pytest.raises(redis.ResponseError, match="session already in progress"):
        client.hotkeys_start([CPU])
    with pytest.raises(redis.ResponseError, match="stop tracking first"):
        client.hotkeys_reset()
    until(lambda: not _found(client)["tracking-active"])
    assert _found(client)["collection-duration-ms"] == 1000
    assert _ask(client, "STOP") is None
    client.hotkeys_reset()
    assert _ask(client, "GET") is None


def test_all_clients_count_whatever_way_their_requests_take(
    served: Served, client: redis.Redis
) -> None:
    client.hotkeys_start([NET], count=64)

    def work(number: int) -> None:
        with served.client() as own, own.pipeline(transaction=False) as pipe:
            for at in range(50):
                pipe.xadd(f"s{number}", {"f": "v"}, id=f"{at + 1}-1")
                pipe.xlen(f"s{number}")
                pipe.set(f"k{number}", "v")
            pipe.execute()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sums = _sums(_found(client)["by-net-bytes"])
    assert len({sums[b"k%d" % number] for number in range(4)}) == 1
    assert len({sums[b"s%d" % number] for number in range(4)}) == 1


def test_of_many_keys_the_hot_ones_are_kept() -> None:
    totals = Totals()
    for number in range(5 * KEYS_MAX):
        totals.add(b"cold %d" % number, 1)
        totals.add(b"hot %d" % (number % 10), 1)
    assert totals.largest(10) == [(b"hot %d" % number, KEYS_MAX / 2) for number in range(10)]
    assert totals.all == 10 * KEYS_MAX


def test_a_sample_counts_one_call_of_so_many(client: redis.Redis) -> None:
    client.hotkeys_start([NET], sample_ratio=1_000_000_000)
    client.set("k", "v")
    found = _found(client)
    assert found["sample-ratio"] == 1_000_000_000
    assert found["net-bytes-all-commands-all-slots"] > 0
    assert found["by-net-bytes"] == []


def test_without_a_limit_of_time_a_tracking_goes_on() -> None:
    hot = HotKeys(cpu=True, net=False)
    assert hot.is_active
    hot.stop()
    assert not hot.is_active
    duration_ms = hot.duration_ms
    time.sleep(0.01)
    assert hot.duration_ms == duration_ms
