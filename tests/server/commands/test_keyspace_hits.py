"""Statistics of lookups: OBJECT IDLETIME, keyspace_hits and keyspace_misses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.types.clock import ManualClock
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.talking import Server, Talker, sound

PASSED_S = 7
USES = (
    *(
        "GET k",
        "INCR k",
        "SET k v",
        "APPEND k v",
        "TOUCH k",
        "GETRANGE k 0 1",
        "SETRANGE k 0 x",
        "STRLEN k",
    ),
    *("EXPIRE k 1000", "PERSIST k", "MGET other k", "MSET k v", "DUMP k", "COPY k other REPLACE"),
    *("RENAME k k", "SETNX k v", "GETEX k"),
)
NO_USES = (
    "TYPE k",
    "EXISTS k",
    "TTL k",
    "PTTL k",
    "OBJECT ENCODING k",
    "MEMORY USAGE k",
    "WATCH k",
)
ON_STREAMS = (
    *("XADD s * f v", "XADD s NOMKSTREAM * f v", "XRANGE s - +", "XLEN s", "XINFO STREAM s"),
    *("XREAD STREAMS none s 0 0", "XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1", "XDEL s 1-1"),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    with sound(tmp_path / "store", clock) as started:
        yield started


def idle(talker: Talker, key: str) -> bytes:
    return talker.ask("OBJECT", "IDLETIME", key)


def test_a_key_is_idle_since_its_last_use(clock: ManualClock, ann: Talker) -> None:
    for request in ("SET k 5", "XADD s 1-1 f v", "XGROUP CREATE s g 0"):
        ann.ask(*request.split())
    for request in (*USES, *ON_STREAMS):
        key = "s" if request.startswith("X") else "k"
        ann.ask("TOUCH", key)
        clock.advance(PASSED_S * 1000)
        assert idle(ann, key) == b":%d\r\n" % PASSED_S
        assert not ann.ask(*request.split()).startswith(b"-"), request
        assert idle(ann, key) == b":0\r\n", request


def test_checking_the_existence_of_a_key_does_not_use_it(clock: ManualClock, ann: Talker) -> None:
    ann.ask("SET", "k", "v")
    clock.advance(PASSED_S * 1000 + 999)
    for request in NO_USES:
        assert not ann.ask(*request.split()).startswith(b"-")
        assert idle(ann, "k") == b":%d\r\n" % PASSED_S, request
    assert idle(ann, "none") == b"$-1\r\n"


def test_no_touch_keeps_the_times_of_use(clock: ManualClock, ann: Talker) -> None:
    ann.ask("SET", "k", "v")
    clock.advance(PASSED_S * 1000)
    ann.ask("CLIENT", "NO-TOUCH", "ON")
    for request in ("GET k", "APPEND k v", "EXPIRE k 100", "MGET k k"):
        ann.ask(*request.split())
        assert idle(ann, "k") == b":%d\r\n" % PASSED_S, request
    ann.ask("SET", "made", "v")
    assert idle(ann, "made") == b":0\r\n"
    ann.ask("TOUCH", "k")
    assert idle(ann, "k") == b":0\r\n"


def test_appends_that_run_together_use_their_stream(
    server: Server, clock: ManualClock, ann: Talker, bob: Talker
) -> None:
    ann.ask("XADD", "s", "*", "f", "v")
    clock.advance(PASSED_S * 1000)
    for talker in (ann, bob):
        talker.send("XADD", "s", "*", "f", "v")
    server.turn()
    ann.heard()
    assert idle(ann, "s") == b":0\r\n"


def test_a_restored_key_has_the_given_idle_time(clock: ManualClock, ann: Talker) -> None:
    ann.ask("SET", "k", "v")
    payload = ann.ask("DUMP", "k").split(b"\r\n", 1)[1][:-2]
    assert ann.ask("RESTORE", "k", "0", payload, "REPLACE", "IDLETIME", "1000") == b"+OK\r\n"
    clock.advance(PASSED_S * 1000)
    assert idle(ann, "k") == b":1007\r\n"
    assert ann.ask("RESTORE", "k", "0", payload, "REPLACE") == b"+OK\r\n"
    assert idle(ann, "k") == b":0\r\n"


def test_an_object_is_described_with_its_last_use(clock: ManualClock, ann: Talker) -> None:
    ann.ask("SET", "k", "v")
    used = clock.now_ms() // 1000 & 0xFFFFFF
    clock.advance(PASSED_S * 1000)
    ann.client.is_local = True
    reply = ann.ask("DEBUG", "OBJECT", "k").rstrip()
    assert reply.endswith(b" lru:%d lru_seconds_idle:%d" % (used, PASSED_S))


def test_swapdb_keeps_the_times_of_the_keys(clock: ManualClock, ann: Talker) -> None:
    ann.ask("SET", "k", "v")
    clock.advance(PASSED_S * 1000)
    ann.ask("SELECT", "1")
    ann.ask("SET", "k", "v")
    ann.ask("SWAPDB", "0", "1")
    assert idle(ann, "k") == b":%d\r\n" % PASSED_S
    ann.ask("SELECT", "0")
    assert idle(ann, "k") == b":0\r\n"


def test_keys_unused_since_the_start_are_idle_since_then(
    tmp_path: Path, server: Server, clock: ManualClock, ann: Talker
) -> None:
    ann.ask("SET", "k", "v")
    clock.advance(1_000_000)
    server.engine.close()
    server.__init__(tmp_path / "store", clock=clock)  # type: ignore[misc]
    clock.advance(PASSED_S * 1000)
    assert idle(server.client(), "k") == b":%d\r\n" % PASSED_S


def test_only_the_last_used_keys_have_times_and_the_others_a_lower_bound(
    tmp_path: Path, clock: ManualClock
) -> None:
    ann = Server(tmp_path / "few", clock=clock, thresholds=Thresholds(used_keys=3)).client()
    for number in range(20):
        ann.ask("SET", f"k{number}", "v")
        clock.advance(1000)
    times = [int(idle(ann, f"k{number}")[1:]) for number in range(20)]
    assert times[-3:] == [3, 2, 1]
    assert times == sorted(times, reverse=True)
    assert all(reply <= true for reply, true in zip(times, range(20, 0, -1), strict=True))
    ann.server.engine.close()


COUNTED = (
    *("GET k", "GET none", "STRLEN k", "MGET k none k", "EXISTS k none none", "TYPE k", "TTL none"),
    *("TOUCH k none", "GETRANGE none 0 1", "DUMP k", "GETDEL none", "GETEX k", "GETSET k v"),
    *("OBJECT ENCODING k", "OBJECT IDLETIME none", "COPY k none2", "SCAN 0", "KEYS *", "DBSIZE"),
    *(
        "SET k v",
        "SET made v",
        "APPEND k v",
        "DEL none2",
        "EXPIRE none 5",
        "PERSIST k",
        "SETNX k v",
    ),
    *("XADD s 1-1 f v", "XADD s2 * f v", "XLEN s", "XLEN none", "XRANGE s - +", "XRANGE k - +"),
    *("XGROUP CREATE s g 0", "XPENDING s g", "XACK s g 1-1"),
    *("XCLAIM s g c 0 1-1", "XAUTOCLAIM s g c 0 0", "XDEL s 1-1", "XTRIM s MAXLEN 5", "XLEN k"),
    *("XINFO STREAM s", "XINFO GROUPS none", "RENAME s s3", "MEMORY USAGE k"),
)


def test_hits_and_misses_are_counted_as_in_redis(served: Served, redis_port: int) -> None:
    def counted(asker: Asker, line: str) -> list[bytes]:
        asker.ask("CONFIG RESETSTAT")
        asker.ask(line)
        reply = asker.ask("INFO stats").split(b"\r\n")
        return [field for field in reply if field.startswith(b"keyspace_")]

    with served.asker() as ours, Asker(redis_port) as theirs:
        for asker in (ours, theirs):
            asker.ask("FLUSHALL")
            asker.ask("SET k v")
        for line in COUNTED:
            assert (line, counted(ours, line)) == (line, counted(theirs, line))
        once = [b"keyspace_hits:1", b"keyspace_misses:1"]  # Redis looks up the key twice
        assert counted(ours, "XREAD STREAMS s3 none 0 0") == once


@pytest.mark.parametrize("keys", [1, DEFAULT.long_names + 1])
def test_a_stream_of_the_same_turn_is_found(server: Server, ann: Talker, keys: int) -> None:
    before = server.executor.statistics.keyspace_misses
    ann.send("XADD", "s", "*", "f", "v")
    assert ann.ask("MGET", *["s"] * keys).endswith(b"$-1\r\n")
    assert server.executor.statistics.keyspace_misses == before


@pytest.mark.parametrize("keys", [1, DEFAULT.long_names + 1])
def test_an_expired_key_is_a_miss_before_it_is_deleted(
    server: Server, clock: ManualClock, ann: Talker, keys: int
) -> None:
    ann.ask("XADD", "s", "*", "f", "v")
    ann.ask("SET", "k", "v")
    for key in "sk":
        ann.ask("PEXPIRE", key, "50")
    clock.advance(100)
    ann.ask("MGET", *["s", "k"] * keys)
    counted = server.executor.statistics
    assert (counted.keyspace_hits, counted.keyspace_misses) == (0, 2 * keys)
