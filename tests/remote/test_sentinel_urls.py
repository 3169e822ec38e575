"""URLs that name Sentinels, in all their spellings."""

import socket
import threading

import pytest

from kvstream.errors import InvalidArgument, ServerUnavailable
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_flat
from kvstream.meta.idempotency import Request
from kvstream.operations import append
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.failover import FailoverEngine, find_replica
from kvstream.remote.server_errors import ReplyLost
from kvstream.types.urls import sentinels_of
from tests.patience import until
from tests.remote.scripted import Scripted


@pytest.mark.parametrize(
    ("scheme", "tls"),
    [
        ("redis+sentinel", False),
        ("valkey+sentinel", False),
        ("rediss+sentinel", True),
        ("REDISS+SENTINEL", True),
        ("valkeys+sentinel", True),
        ("Valkeys+Sentinel", True),
    ],
)
def test_every_spelling_keeps_tls_for_servers_and_sentinels(scheme: str, tls: bool) -> None:
    found = sentinels_of(f"{scheme}://ann:p%2Fw@a:1,[::1]:2/orders")
    assert found is not None
    assert found.tls is tls
    plain = "rediss" if tls else "redis"
    assert found.server("::2", 6379) == f"{plain}://ann:p%2Fw@[::2]:6379/0"
    assert [found.sentinel(each) for each in found.addresses] == [
        f"{plain}://a:1",
        f"{plain}://[::1]:2",
    ]


def test_a_url_has_a_database_and_options_for_each_side() -> None:
    found = sentinels_of(
        " redis+sentinel://a,b:7/my%20name/3?socket_timeout=4&ssl_cert_reqs=none&wait_s=2.5"
        "&sentinel_username=sam&sentinel_password=s%40"
    )
    assert found is not None
    assert (found.addresses, found.name, found.db) == (("a:26379", "b:7"), "my name", "3")
    assert found.wait_s == 2.5
    assert found.server("h", 1) == "redis://h:1/3?socket_timeout=4&ssl_cert_reqs=none"
    assert found.sentinel("b:7") == "redis://sam:s%40@b:7?ssl_cert_reqs=none"
    assert "s%40" not in repr(found)
    other = sentinels_of("redis+sentinel://a/m?db=5")
    assert other is not None
    assert other.db == "5"


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a",
        "redis+sentinel:///m",
        "redis+sentinel://a,,b/m",
        "redis+sentinel://a:70000/m",
        "redis+sentinel://a:b:1/m",
        "redis+sentinel://a/m/one",
        "redis+sentinel://a/m#x",
        "redis+sentinel://a/m?wait_s=-1",
        "redis+sentinel://a/m?wait_s=nan",
    ],
)
def test_what_is_no_such_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"not a URL of Sentinels, .*redis\+sentinel://"):
        FailoverEngine.open(url)


@pytest.mark.parametrize("place", ["redis://a", "/srv/a", "redis+sentinels://a/m"])
def test_other_places_have_no_sentinels(place: str) -> None:
    assert sentinels_of(place) is None


def test_a_replica_that_has_just_died_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = int(free.getsockname()[1])
    told = [b"ip", b"127.0.0.1", b"port", b"%d" % dead, b"flags", b"slave"]
    told += [b"master-link-status", b"ok"]
    row = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in told)

    def answer(words: list[bytes]) -> bytes:
        return b"*1\r\n*%d\r\n%b" % (len(told), row) if b"REPLICAS" in words else b"-ERR no\r\n"

    sentinel = Scripted(answer)
    try:
        found = sentinels_of(f"redis+sentinel://127.0.0.1:{sentinel.port}/orders")
        assert found is not None
        assert find_replica(found) is None
        assert b"SENTINEL" in sentinel.asked
    finally:
        sentinel.close()


class CountedLock:
    """A lock that counts the threads that have asked for it."""

    def __init__(self) -> None:
        self._lock, self.asked = threading.RLock(), 0

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_threads_that_wait_for_a_round_share_its_failure() -> None:
    sentinels = sentinels_of("redis+sentinel://127.0.0.1:1/m")
    assert sentinels is not None
    engine = FailoverEngine("", sentinels, wait_s=0)
    lock = CountedLock()
    engine._looking = lock
    rounds, failed = 0, list[ServerUnavailable]()

    def look() -> RemoteEngine:
        nonlocal rounds
        rounds += 1
        until(lambda: lock.asked == 5, "the other threads", 0.005)
        raise ServerUnavailable(f"nobody in round {rounds}")

    def call() -> None:
        try:
            engine.connection()
        except ServerUnavailable as error:
            failed.append(error)

    engine._look = look  # type: ignore[method-assign]
    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rounds == 1
    assert ["nobody in round 1" in str(error) for error in failed] == 5 * [True]
    assert len({*map(id, failed)}) == 5


@pytest.mark.parametrize("refusal", ["READONLY it follows", "LOADING it copies", "NOREPLICAS few"])
def test_an_add_that_was_lost_and_then_refused_is_for_the_next_primary(refusal: str) -> None:
    """It is ReplyLost, which ``FailoverEngine`` repeats elsewhere: it may be done or not."""
    adds = 0

    def answer(words: list[bytes]) -> bytes:
        nonlocal adds
        if words[0] != b"KVSTREAM.ADDONCE":
            return b"+OK\r\n"
        adds += 1
        if adds == 1:
            raise ConnectionResetError
        return f"-{refusal}\r\n".encode()

    server = Scripted(answer)
    try:
        engine = RemoteEngine.open(f"redis://127.0.0.1:{server.port}")
        value, names = encode_flat([b"f", b"v"], 1000)
        with pytest.raises(ReplyLost, match="may or may not have done it"):
            engine.run(append.add, qualified(0, b"s"), value, names, once=Request(b"client", 1))
        assert adds == 2
        engine.close()
    finally:
        server.close()
