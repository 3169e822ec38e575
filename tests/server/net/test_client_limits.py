"""Limits of clients: their number, unread bytes, unsent bytes, and idle time."""

import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvstream.server.net.asyncio_server import is_local
from kvstream.server.options import OutputLimit
from kvstream.server.runtime import limits
from kvstream.server.runtime.limits import DESCRIPTORS, Limits
from tests.patience import PATIENCE_S, until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served
from tests.server.talking import Server, request

CUT_OFF = b"client_output_buffer_limit_disconnections:1\r\n"


def test_one_client_too_many_gets_an_error(serve: Serve) -> None:
    served = serve(maxclients=2)
    with served.asker() as one, served.asker() as two, served.asker() as three:
        assert one.ask("PING") == two.ask("PING") == b"PONG"
        assert three.read() == Failure("ERR max number of clients reached")
        assert three.is_closed()
        assert b"rejected_connections:1\r\n" in one.ask("INFO stats")
    with served.asker() as again:
        assert again.ask("PING") == b"PONG"


def test_an_idle_client_is_closed_but_not_one_that_waits(served: Served) -> None:
    with served.asker() as idle, served.asker() as waiting, served.asker() as monitor:
        monitor.ask("MONITOR")
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        begun = time.monotonic()
        idle.ask("CONFIG SET timeout 1")
        assert idle.is_closed()
        assert 0.9 < time.monotonic() - begun < 30
        served.executor.options.timeout = 0  # the client that adds may be late, too
        with served.asker() as other:
            other.ask("XADD s 1-1 f v")
        assert waiting.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
        assert monitor.read().endswith(b'"XREAD" "BLOCK" "0" "STREAMS" "s" "$"')


def test_a_slow_reader_is_disconnected_and_its_memory_freed(serve: Serve) -> None:
    served = serve(output_max=1 << 20)
    with served.asker() as asker, served.asker() as slow:
        asker.ask("SET", "k", b"v" * (1 << 20))
        with suppress(ConnectionError):  # it may be disconnected by then
            for _ in range(40):
                slow.send("GET", "k")
        until(lambda: CUT_OFF in asker.ask("INFO stats"))
        assert asker.ask("CLIENT LIST").count(b"\n") == 1


def test_a_monitor_that_does_not_read_is_disconnected_without_a_limit_for_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MONITORS", OutputLimit(1 << 20))
    served = serve(output_max=0)  # like the owner of a shared directory
    with served.asker() as asker, served.asker() as monitor:
        assert monitor.ask("MONITOR") == b"OK"
        for _ in range(40):
            asker.ask("SET", "k", b"v" * (1 << 20))
        until(lambda: CUT_OFF in asker.ask("INFO stats"))
        assert asker.ask("CLIENT LIST").count(b"\n") == 1


def test_the_soft_limit_gives_a_slow_reader_time(serve: Serve) -> None:
    served = serve()
    with served.asker() as asker, served.asker() as slow:
        assert slow.ask("PING") == b"PONG"  # otherwise it may not be registered yet
        asker.ask("CONFIG", "SET", "client-output-buffer-limit", "normal 0 1mb 2")
        asker.ask("SET", "k", b"v" * (1 << 20))
        began = time.monotonic()
        with suppress(ConnectionError):  # it may be disconnected by then
            for _ in range(40):
                slow.send("GET", "k")
        until(lambda: asker.ask("CLIENT LIST").count(b"\n") == 1)
        assert time.monotonic() - began > 1.5


def test_an_unauthenticated_client_may_send_little(serve: Serve) -> None:
    served = serve(requirepass="secret")
    for words, reply in (
        (("X",) * 11, "ERR Protocol error: unauthenticated multibulk length"),
        (("X", "y" * 16385), "ERR Protocol error: unauthenticated bulk length"),
    ):
        with served.asker() as asker:
            assert asker.ask(*words) == Failure(reply)
            assert asker.is_closed()
    with served.asker() as asker:
        asker.ask("AUTH secret")
        assert asker.ask("ECHO", "y" * 16385) == b"y" * 16385


def test_an_unauthenticated_client_may_leave_little_unread(serve: Serve) -> None:
    served = serve(requirepass="secret")
    requests = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 5000
    with served.asker() as friend, socket.socket() as stranger:
        friend.ask("AUTH secret")
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stranger.settimeout(PATIENCE_S)
        stranger.connect(("127.0.0.1", served.port))
        with suppress(ConnectionError):  # disconnected after what the sockets buffer
            for _ in range(5000):
                stranger.sendall(requests)
        assert friend.ask("PING") == b"PONG"
        until(lambda: served.executor.statistics.output_disconnections == 1)


def test_requests_after_auth_in_one_packet_have_the_limits_of_users(serve: Serve) -> None:
    served = serve(requirepass="secret")
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as connection:
        connection.sendall(request("AUTH", "secret") + request("ECHO", "y" * 20000))
        received = b""
        while len(received) < 5 + 8 + 20002:
            received += connection.recv(1 << 16)
    assert received == b"+OK\r\n$20000\r\n" + b"y" * 20000 + b"\r\n"


def test_a_slow_handshake_times_out(serve: Serve) -> None:
    served = serve(requirepass="secret", authentication_s=1)
    with served.asker() as stranger, served.asker() as friend:
        friend.ask("AUTH secret")
        assert stranger.is_closed()
        assert friend.ask("PING") == b"PONG"


def test_the_longest_argument_is_a_setting(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG SET proto-max-bulk-len 1mb")
        assert asker.ask("ECHO", b"x" * (1 << 20)) == b"x" * (1 << 20)
        asker.send_bytes(b"*2\r\n$4\r\nECHO\r\n$1048577\r\n")  # the length decides
        assert asker.read() == Failure("ERR Protocol error: invalid bulk length")
        assert asker.is_closed()


def test_unfinished_requests_are_limited(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG SET client-query-buffer-limit 1mb")
        with suppress(OSError):  # the server closes while the client sends
            asker.send("MGET", *(b"x" * 1000 for _ in range(3000)))
        with suppress(EOFError, OSError):
            assert asker.read() == Failure("ERR Protocol error: query buffer limit reached")
        assert asker.is_closed()
    with served.asker() as asker:
        reply = asker.ask("INFO stats")
        assert b"client_query_buffer_limit_disconnections:1\r\n" in reply


def test_commands_queued_by_multi_count_as_an_unfinished_request(served: Served) -> None:
    with served.asker() as asker, served.asker() as other:
        asker.ask("CONFIG SET client-query-buffer-limit 1mb")
        asker.ask("MULTI")
        for _ in range(3):
            assert asker.ask("SET", "k", b"v" * 300_000) == b"QUEUED"
        assert re.search(rb"multi=3 .* multi-mem=900\d\d\d ", other.ask("CLIENT LIST"))
        asker.send("SET", "k", b"v" * 300_000)
        assert asker.is_closed()
    with served.asker() as asker:
        assert asker.ask("EXISTS k") == 0
        assert b"client_query_buffer_limit_disconnections:1\r\n" in asker.ask("INFO stats")


MEGABYTE = 1 << 20
CLIENTS_MAX = 8 * MEGABYTE


def unfinished(asker: Asker, size: int) -> None:
    """Send the first bytes of a longer argument."""
    asker.send_bytes(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (4 * CLIENTS_MAX) + b"x" * size)


def test_the_largest_client_is_closed_above_the_common_limit(serve: Serve) -> None:
    served = serve(maxmemory_clients=CLIENTS_MAX)
    with served.asker() as small, served.asker() as large, served.asker() as asker:
        unfinished(small, 3 * MEGABYTE)
        until(lambda: held(served) >= 3 * MEGABYTE)
        unfinished(large, 4 * MEGABYTE)
        until(lambda: held(served) >= 7 * MEGABYTE)
        assert b"evicted_clients:0\r\n" in asker.ask("INFO stats")
        asker.ask("MULTI")
        asker.ask("SET", "k", b"v" * 2 * MEGABYTE)
        assert large.is_closed()
        assert asker.ask("EXEC") == [b"OK"]
        assert b"evicted_clients:1\r\n" in asker.ask("INFO stats")
        with suppress(OSError):  # the server closes while the client sends
            small.send_bytes(b"x" * 2 * CLIENTS_MAX)
        assert small.is_closed()


def test_a_client_with_no_evict_is_not_closed(serve: Serve) -> None:
    served = serve(maxmemory_clients=0)
    with served.asker() as kept, served.asker() as small, served.asker() as asker:
        kept.ask("CLIENT NO-EVICT on")
        unfinished(kept, 4 * MEGABYTE)
        unfinished(small, MEGABYTE)
        until(lambda: held(served) >= 5 * MEGABYTE)
        asker.ask("CONFIG SET maxmemory-clients 4500kb")
        assert small.is_closed()
        assert len(asker.ask("CLIENT LIST TYPE normal").splitlines()) == 2


def test_unread_replies_count(serve: Serve) -> None:
    served = serve(maxmemory_clients=CLIENTS_MAX)
    with served.asker() as asker, served.asker() as slow:
        asker.ask("SET", "k", b"v" * MEGABYTE)
        with suppress(ConnectionError):  # it may be closed by then
            for _ in range(60):
                slow.send("GET", "k")
        until(lambda: b"evicted_clients:1\r\n" in asker.ask("INFO stats"))
        assert asker.ask("CLIENT LIST").count(b"\n") == 1


def held(served: Served) -> int:
    return sum(client.query for client in list(served.executor.clients.values()))


def test_protected_mode_refuses_remote_clients_without_a_password(served: Served) -> None:
    limits = Limits(served.executor)
    refusal = limits.refusal(is_local=False)
    assert refusal is not None
    assert refusal.startswith(b"-DENIED Redis is running in protected mode because")
    assert refusal.endswith(b"\r\n")
    assert refusal.count(b"\n") == 1
    assert limits.refusal(is_local=True) is None


@pytest.mark.parametrize(
    "change",
    [
        "CONFIG SET protected-mode no",
        "CONFIG SET requirepass secret",
        "ACL SETUSER default off",
    ],
)
def test_a_password_or_a_setting_ends_protected_mode(serve: Serve, change: str) -> None:
    served = serve()
    with served.asker() as asker:
        assert asker.ask(change) == b"OK"
    assert Limits(served.executor).refusal(is_local=False) is None


def test_remote_connections_are_distinguished_from_local_ones() -> None:
    near = ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1")
    far = ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "::127.0.0.1", "2001:db8::1")
    assert [is_local((host, 1)) for host in near] == [True] * len(near)
    assert [is_local((host, 1)) for host in far] == [False] * len(far)
    assert is_local("")


def test_the_number_of_clients_is_limited_by_the_descriptors(serve: Serve) -> None:
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        pytest.skip("there is no limit of descriptors here")
    served = serve(maxclients=most + 1000)
    try:
        assert served.executor.options.maxclients == most - DESCRIPTORS
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Server]:
    """A server without sockets, with a manual clock."""
    server = Server(tmp_path / "store")
    server.executor.options.timeout = 10
    yield server
    server.engine.close()


def test_idle_time_begins_when_a_wait_ends(quiet: Server) -> None:
    waiting, other = quiet.client(), quiet.client()
    waiting.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    quiet.now += 100
    other.ask("XADD", "s", "1-1", "f", "v")
    assert waiting.heard().startswith(b"*1\r\n")
    quiet.now += 9
    quiet.executor.tick()
    assert not waiting.closed
    quiet.now += 1
    quiet.executor.tick()
    assert waiting.closed


def test_a_client_with_a_partial_request_is_not_idle(quiet: Server) -> None:
    talker = quiet.client()
    for part in (b"*2\r\n$4\r\nECHO\r\n", b"$2\r\n", b"h", b"i", b"\r\n"):
        quiet.now += 9
        quiet.executor.tick()
        quiet.executor.receive(talker.client, part)
    quiet.turn()
    assert not talker.closed
    assert talker.heard() == b"$2\r\nhi\r\n"
