"""Servers that refuse, stall or talk nonsense: one error class, in time, and what was done."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import kvstream
import kvstream.aio
from kvstream import (
    AccessDenied,
    Corruption,
    KVStreamError,
    RequestError,
    ServerLoading,
    ServerUnavailable,
    Store,
    UnknownOutcome,
)
from kvstream.remote.server_errors import error_of
from tests.remote.loops import Loop
from tests.remote.scripted import Scripted

SHORT = "?socket_timeout=0.2&socket_connect_timeout=0.2"
FINE = {
    b"PING": b"+PONG\r\n",
    b"MULTI": b"+OK\r\n",
    b"WATCH": b"+OK\r\n",
    b"COMMAND": b"*1\r\n$-1\r\n",
    b"KVSTREAM.ERRORS": b"-ERR unknown command\r\n",
}
REFUSALS: dict[str, type[KVStreamError]] = {
    "LOADING Redis is loading the dataset in memory": ServerLoading,
    "BUSY Redis is busy running a script": ServerUnavailable,
    "MASTERDOWN Link with MASTER is down": ServerUnavailable,
    "READONLY You can't write against a read only replica.": ServerUnavailable,
    "MISCONF Errors writing to the AOF file": ServerUnavailable,
    "NOREPLICAS Not enough good replicas to write.": ServerUnavailable,
    "OOM command not allowed when used memory > 'maxmemory'.": ServerUnavailable,
    "CLUSTERDOWN The cluster is down": ServerUnavailable,
    "TRYAGAIN Multiple keys request during rehashing of slot": ServerUnavailable,
    "MOVED 3999 127.0.0.1:6381": ServerUnavailable,
    "ERR max number of clients reached": ServerUnavailable,
    "NOAUTH Authentication required.": AccessDenied,
    "DENIED Redis is running in protected mode": AccessDenied,
    "ERR Protocol error: unauthenticated multibulk length": AccessDenied,
    "NOPERM this user has no permissions to run the command": RequestError,
    "ERR UnknownOutcome: the log cannot be made durable: IO error": UnknownOutcome,
    "ERR StoreClosed: the store is closed": ServerUnavailable,
    "ERR Corruption: a row is damaged": Corruption,
    "ERR KVStreamer: no class of ours": RequestError,
}
"""What a server may answer to any command, and the error of the library."""
CALLS: dict[str, Callable[[Store], Any]] = {
    "add": lambda store: store.stream("s").add({"n": 1}),
    "add with idmp": lambda store: store.stream("s").add({"n": 1}, idmp=("p", "1")),
    "add_many": lambda store: store.stream("s").add_many([{"n": 1}, {"n": 2}]),
    "length": lambda store: len(store.stream("s")),
}


def raised(call: Callable[[], Any]) -> KVStreamError:
    with pytest.raises(KVStreamError) as caught:
        call()
    return caught.value


async def add(url: str) -> Any:
    async with kvstream.aio.open(url) as store:
        return await store.stream("s").add({"n": 1})


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_command_has_the_error_of_its_reason(refusal: str) -> None:
    reply = f"-{refusal}\r\n".encode()
    server = Scripted(lambda request: FINE.get(request[0], reply))
    url = f"redis://127.0.0.1:{server.port}"
    with closing(server), kvstream.open(url) as store:
        for call in CALLS.values():
            assert type(raised(lambda: call(store))).__name__ == REFUSALS[refusal].__name__  # noqa: B023
        error = raised(lambda: asyncio.run(add(url)))
        assert type(error).__name__ == REFUSALS[refusal].__name__
        assert refusal.removeprefix("ERR ").partition(" ")[2] in str(error)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("-ERR max number of clients reached\r\n", ServerUnavailable),
        ("-DENIED Redis is running in protected mode\r\n", AccessDenied),
        ("-LOADING Redis is loading the dataset in memory\r\n", ServerLoading),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", ServerUnavailable),
    ],
)
@pytest.mark.parametrize("database", ["", "/3"])
def test_the_first_words_of_a_server_are_heard(
    words: str, wanted: type[KVStreamError], database: str
) -> None:
    with closing(Scripted(greeting=words.encode())) as server:
        url = f"redis://127.0.0.1:{server.port}{database}"
        for opening in (lambda: kvstream.open(url), lambda: asyncio.run(add(url))):
            error = raised(opening)
            assert error.__class__.__name__ == wanted.__name__
            assert "Broken pipe" not in str(error)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_silent_server_is_noticed_in_time(scheme: str) -> None:
    with closing(Scripted()) as server:
        url = f"{scheme}://127.0.0.1:{server.port}{SHORT}"
        for opening in (lambda: kvstream.open(url), lambda: asyncio.run(add(url))):
            error = raised(opening)
            assert isinstance(error, ServerUnavailable)
            assert str(error).startswith("the server does not answer: Timeout ")


def test_a_server_that_falls_silent_leaves_the_outcome_unknown() -> None:
    answers = dict(FINE)

    def answer(request: list[bytes]) -> bytes:
        return answers.get(request[0], b"")

    with closing(Scripted(answer)) as server:
        url = f"redis://127.0.0.1:{server.port}{SHORT}"
        with kvstream.open(url) as store:
            for name, call in CALLS.items():
                wanted = ServerUnavailable if name == "length" else UnknownOutcome
                assert type(raised(lambda: call(store))) is wanted  # noqa: B023
            assert server.asked.count(b"XADD") == 4  # none is sent again
        assert type(raised(lambda: asyncio.run(add(url)))) is UnknownOutcome


def test_an_add_that_may_be_repeated_tells_when_the_second_try_is_refused() -> None:
    """The first one may have been done before the server was restarted and is loading."""
    server = Scripted(lambda request: FINE.get(request[0], b""))
    with closing(server), kvstream.open(f"redis://127.0.0.1:{server.port}") as store:
        asked: list[bytes] = []

        def answer(request: list[bytes]) -> bytes:
            if request[0] in FINE:
                return FINE[request[0]]
            asked.append(request[0])
            if asked.count(b"XADD") == 1:
                raise ConnectionResetError  # ends the connection
            return b"-LOADING Redis is loading the dataset in memory\r\n"

        server._answer = answer
        error = raised(lambda: store.stream("s").add({"n": 1}, idmp=("p", "1")))
        assert isinstance(error, UnknownOutcome)
        assert "loading" in str(error)
        assert asked == [b"XADD", b"XADD"]


def test_nonsense_in_place_of_a_reply_leaves_the_outcome_unknown() -> None:
    server = Scripted(lambda request: FINE.get(request[0], b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with closing(server), kvstream.open(f"redis://127.0.0.1:{server.port}") as store:
        for name, call in CALLS.items():
            error = raised(lambda: call(store))  # noqa: B023
            assert isinstance(error, RequestError if name == "length" else UnknownOutcome)
            assert "not one of a Redis server" in str(error)


def test_replies_that_come_twice_in_a_transaction_leave_its_outcome_unknown() -> None:
    """As a proxy may repeat them: one of the first is then read as that of EXEC."""
    twice = {b"MULTI": b"+OK\r\n" * 2, b"XADD": b"+QUEUED\r\n" * 2, b"EXEC": b"*0\r\n"}
    server = Scripted(lambda request: (FINE | twice)[request[0]])
    with closing(server), kvstream.open(f"redis://127.0.0.1:{server.port}") as store:
        error = raised(lambda: store.stream("s").add_many([{"n": 1}, {"n": 2}]))
        assert isinstance(error, UnknownOutcome)
        assert "2 replies of EXEC" in str(error)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6")
def test_a_server_at_an_ipv6_address_is_reached() -> None:
    server = Scripted(lambda request: FINE.get(request[0], b"$3\r\n1-1\r\n"), host="::1")
    url = f"redis://[::1]:{server.port}"
    with closing(server):
        with kvstream.open(url) as store:
            assert str(store.stream("s").add({"n": 1})) == "1-1"
        assert str(asyncio.run(add(url))) == "1-1"
    for opening in (lambda: kvstream.open(url), lambda: asyncio.run(add(url))):
        error = raised(opening)
        assert type(error).__name__ == "ServerUnavailable"
        assert str(error).startswith(f"no connection to ::1:{server.port}: ")


class TwoAddresses(asyncio.SelectorEventLoop):
    """Finds two addresses for each host, the first of which refuses connections."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [(*kind, (address, port)) for address in ("127.0.0.2", "127.0.0.1")]


def test_the_next_address_of_a_host_is_tried() -> None:
    server = Scripted(lambda request: FINE.get(request[0], b"$3\r\n1-1\r\n"))
    with closing(Loop(TwoAddresses())) as loop:
        url = f"redis://both.example:{server.port}"
        with closing(server):
            assert str(loop.run(add(url))) == "1-1"
        error = raised(lambda: loop.run(add(url)))
        assert isinstance(error, ServerUnavailable)
        assert str(error).startswith(f"no connection to both.example:{server.port}: ")


def test_a_request_that_cannot_be_packed_was_not_sent() -> None:
    import redis

    error = error_of(redis.DataError("Invalid input of type"), writing=True)
    assert type(error) is RequestError
