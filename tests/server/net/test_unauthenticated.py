"""T16: unauthenticated clients: limits of bytes, time and attempts."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served
from tests.server.talking import Server, request

WRONG = Failure("WRONGPASS invalid username-password pair or user is disabled.")

SAME = (b"count", b"reason", b"context", b"object", b"username")


def test_a_flood_of_wrong_passwords_is_answered_and_blocks_no_client(serve: Serve) -> None:
    served = serve(requirepass="secret")
    with served.asker() as attacker, served.asker() as friend:
        for number in range(3000):
            attacker.send("AUTH", f"user{number}", "guess")
        assert [attacker.read() for _ in range(3000)] == [WRONG] * 3000
        assert friend.ask("AUTH secret") == b"OK"
        assert len(friend.ask("ACL LOG 1000")) == 128
        assert b"acl_access_denied_auth:3000\r\n" in friend.ask("INFO stats")
        assert attacker.ask("AUTH secret") == b"OK"


def test_a_wrong_password_keeps_the_current_user(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("ACL SETUSER ann on >secret ~* +@all")
        assert asker.ask("AUTH ann secret") == b"OK"
        assert asker.ask("AUTH ann wrong") == WRONG
        assert asker.ask("ACL WHOAMI") == b"ann"


# --- a first request that never ends --------------------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[Server]:
    """A server without sockets, with a manual clock."""
    server = Server(tmp_path / "store")
    yield server
    server.engine.close()


def test_a_client_that_sends_its_first_request_slowly_is_closed(quiet: Server) -> None:
    slow = quiet.client()
    quiet.executor.receive(slow.client, b"*2\r\n$4\r\nECHO\r\n$100\r\n")
    for _ in range(59):
        quiet.now += 1
        quiet.executor.receive(slow.client, b"x")
        quiet.executor.tick()
    assert not slow.closed
    quiet.now += 1
    quiet.executor.tick()
    assert slow.closed


def test_a_large_first_request_may_take_longer(quiet: Server) -> None:
    slow = quiet.client()
    quiet.executor.receive(slow.client, b"*2\r\n$4\r\nECHO\r\n$4000000\r\n")
    for _ in range(100):
        quiet.now += 1
        quiet.executor.receive(slow.client, b"x" * 2000)
        quiet.executor.tick()
    assert not slow.closed


def test_a_silent_connection_is_kept_as_it_may_belong_to_a_pool(quiet: Server) -> None:
    waiting, known = quiet.client(), quiet.client()
    known.ask("PING")
    quiet.executor.receive(known.client, b"*2\r\n")
    quiet.now += 100_000
    quiet.executor.tick()
    assert not waiting.closed
    assert not known.closed


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k v\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nSET k v\r\n",
        b"post\r\nSET k v\r\n",
        request("Host:", "x") + request("SET", "k", "v"),
    ],
)
def test_http_requests_of_a_browser_run_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) as browser,
    ):
        browser.sendall(sent)
        received = b"".join(iter(lambda: browser.recv(1000), b""))
        address = "{}:{}".format(*browser.getsockname())
    assert received in (b"", b"-ERR wrong number of arguments for 'get' command\r\n")
    with served.asker() as asker:
        assert asker.ask("EXISTS k") == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"{address} sends HTTP, maybe by somebody else's will: connection closed"
    ]


def test_an_attacker_cannot_fill_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            with served.asker() as asker:
                asker.send("POST", "/")
                assert asker.is_closed()
    assert len(caplog.records) == 1


def test_before_auth_http_is_dropped_too(serve: Serve) -> None:
    served = serve(requirepass="secret", authentication_s=3600)
    with served.asker() as asker:
        asker.send("POST", "/")
        assert asker.is_closed()


# --- ACL LOG --------------------------------------------------------------------------------------


def test_the_log_of_refusals_has_the_user_the_object_and_the_count(served: Served) -> None:
    with served.asker() as admin, served.asker(3) as asker:
        admin.ask("ACL SETUSER ann on >secret ~mine:* +@all -flushall")
        assert asker.ask("AUTH ann wrong") == WRONG
        asker.ask("AUTH ann secret")
        for _ in range(3):
            asker.ask("GET other")
        asker.ask("MULTI")
        asker.ask("FLUSHALL")
        asker.ask("DISCARD")
        log = admin.ask("ACL LOG")
        entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in log]
        found = [
            (e[b"reason"], e[b"context"], e[b"object"], e[b"username"], e[b"count"])
            for e in entries
        ]
        assert found == [
            (b"command", b"multi", b"flushall", b"ann", 1),
            (b"key", b"toplevel", b"other", b"ann", 3),
            (b"auth", b"toplevel", b"AUTH", b"ann", 1),
        ]
        assert [entry[b"entry-id"] for entry in entries] == [2, 1, 0]
        assert b" user=ann " in entries[1][b"client-info"]
        assert len(admin.ask("ACL LOG 1")) == 1
        assert admin.ask("ACL LOG RESET") == b"OK"
        assert admin.ask("ACL LOG") == []
        admin.ask("CONFIG SET acllog-max-len 0")
        asker.ask("GET other")
        assert admin.ask("ACL LOG") == []


def test_refusals_are_recorded_as_by_redis(served: Served, redis_port: int) -> None:
    found = []
    for port in (served.port, redis_port):
        with Asker(port) as admin, Asker(port) as asker:
            admin.ask("ACL LOG RESET")
            admin.ask("ACL SETUSER ann on >secret ~mine:* +@all -flushall")
            asker.ask("AUTH ann secret")
            for line in ("GET other", "FLUSHALL", "XADD other * f v", "AUTH ann x", "GET other"):
                asker.ask(line)
            entries = admin.ask("ACL LOG")
            found.append([dict(zip(entry[::2], entry[1::2], strict=True)) for entry in entries])
    ours, theirs = ([{name: each[name] for name in SAME} for each in entries] for entries in found)
    assert ours == theirs
    assert {*found[1][0]} <= {*found[0][0]}  # Redis 7.0 has no times


# --- passwords in what is shown -------------------------------------------------------------------


def test_no_password_is_kept_in_the_slow_log(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("CONFIG SET slowlog-log-slower-than 0")
        asker.ask("CONFIG SET timeout 0 requirepass secret maxclients 100")
        asker.ask("AUTH secret")
        asker.ask("ACL SETUSER ann on >secret")
        asker.ask("AUTH ann secret2")
        asker.ask("HELLO 3 AUTH default secret")
        shown = [entry[3] for entry in asker.ask("SLOWLOG GET -1")]
    hidden = b"(redacted)"
    assert not any(b"secret" in word for words in shown for word in words)
    settings = [b"timeout", b"0", b"requirepass", hidden, b"maxclients", b"100"]
    assert [b"CONFIG", b"SET", *settings] in shown
