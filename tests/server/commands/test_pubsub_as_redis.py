"""Dialogues of several clients about channels get the same bytes from kvstream and redis-server."""

import re
import shlex
import socket

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.patience import PATIENCE_S, until
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.talking import request

_HELLO = re.compile(
    rb"(?:%7|\*14)\r\n\$6\r\nserver\r\n.*?modules\r\n(?:\*0\r\n|\*1\r\n.*?\$4\r\nargs\r\n\*0\r\n)",
    re.DOTALL,
)
"""The reply to HELLO, which has a version and an ID."""

MESSAGES = """
a SUBSCRIBE x y x
b PUBLISH x hello
b PUBLISH y ''
b PUBLISH z nobody
a PING
a PING hi
a UNSUBSCRIBE x z
b PUBLISH x hello
a UNSUBSCRIBE
a UNSUBSCRIBE
a PUNSUBSCRIBE
a SUNSUBSCRIBE
a PING
a GET nosuch
"""
PATTERNS = """
a PSUBSCRIBE x*
b PSUBSCRIBE [y-z]? x*
a SUBSCRIBE xa
c PUBLISH xa m
c PUBLISH xabc m
c PUBSUB NUMPAT
c PUBSUB NUMSUB xa xb
c PUBSUB CHANNELS
c PUBSUB CHANNELS y*
a PUNSUBSCRIBE x* x*
a PUNSUBSCRIBE
c PUBLISH xb m
b PUNSUBSCRIBE x*
c PUBLISH xb m
"""
SHARDS = """
a SSUBSCRIBE s
a SUBSCRIBE s
a PSUBSCRIBE *
b SPUBLISH s m
b PUBLISH s m
b PUBSUB SHARDCHANNELS
b PUBSUB SHARDNUMSUB s t
a SUNSUBSCRIBE
a SUNSUBSCRIBE s t
b SPUBLISH s m
"""
ERRORS = """
a SUBSCRIBE
a PSUBSCRIBE
a PUBLISH x
a PUBLISH x y z
a PUBSUB
a PUBSUB nosuch
a PUBSUB NUMPAT x
a PUBSUB CHANNELS x y
a SUBSCRIBE x
a GET nosuch
a CLIENT GETNAME
a PING x y
a SET k v
a PUBLISH x m
a MULTI
a EXEC
a RESET
a GET nosuch
"""
TRANSACTIONS = """
a MULTI
a SUBSCRIBE x y
a PING
a SSUBSCRIBE x
a PSUBSCRIBE *
a EXEC
b MULTI
b PUBLISH x 1
b SET k v
b PUBLISH y 2
b EXEC
a RESET
b PUBLISH x 3
a MULTI
a SUBSCRIBE
a EXEC
a MULTI
a MONITOR
a PING
a EXEC
"""
SILENCE = """
a CLIENT REPLY OFF
a PING
a SUBSCRIBE x
b PUBLISH x m
a UNSUBSCRIBE x
a CLIENT REPLY ON
a CLIENT REPLY SKIP
a SUBSCRIBE x
a PING
b PUBLISH x m
a UNSUBSCRIBE
a CLIENT REPLY SKIP
a RESET
a PING
"""
RESP3 = """
a HELLO 3
a SUBSCRIBE x
a PSUBSCRIBE x
a PUBLISH x own
a GET nosuch
a MULTI
a PUBLISH x 1
a GET nosuch
a SUBSCRIBE z
a EXEC
a PING hi
b PUBLISH x m
a CLIENT REPLY OFF
a PING
a SUBSCRIBE y
b PUBLISH y m
a UNSUBSCRIBE nosuch
a CLIENT REPLY ON
a PING
a HELLO 2
a PING
b PUBLISH x m
a GET nosuch
a HELLO 3
a RESET
a PING
"""


class Dialogue:
    """Clients of one server, by name."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._witness = Asker(port, 2)
        self._clients: dict[str, socket.socket] = {}
        self._sent = 0
        missing = self._missing()
        self._sent -= missing

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)

    def say(self, name: str, *words: str) -> None:
        """Send a request of a client, and wait until it has run."""
        if name not in self._clients:
            self._clients[name] = self._connect()
        self._send(self._clients[name], *words)
        until(lambda: self._missing() == 0)
        self._sent += len(request("PING"))
        self._witness.ask("PING")  # in a later turn

    def _send(self, client: socket.socket, *words: str) -> None:
        client.sendall(request(*words))
        self._sent += len(request(*words))

    def _missing(self) -> int:
        """Return how many bytes the server has not read yet: the system may deliver them late."""
        self._sent += len(request("INFO", "stats"))
        found = re.search(rb"total_net_input_bytes:(\d+)", self._witness.ask("INFO", "stats"))
        assert found is not None
        return self._sent - int(found[1])

    def end(self) -> dict[str, bytes]:
        """End all clients, and return the output of each."""
        heard = {}
        for name, client in self._clients.items():
            client.sendall(request("QUIT"))
            with client, client.makefile("rb") as file:
                heard[name] = _HELLO.sub(b"HELLO\r\n", file.read())
        self._witness.close()
        return heard


def _heard(port: int, steps: list[list[str]]) -> dict[str, bytes]:
    dialogue = Dialogue(port)
    for step in steps:
        dialogue.say(*step)
    return dialogue.end()


DIALOGUES = [MESSAGES, PATTERNS, SHARDS, ERRORS, TRANSACTIONS, SILENCE]


@pytest.mark.parametrize("text", DIALOGUES)
def test_a_dialogue_in_resp2(served: Served, redis_port: int, text: str) -> None:
    steps = [shlex.split(line) for line in text.strip().splitlines()]
    assert _heard(served.port, steps) == _heard(redis_port, steps)


@pytest.mark.parametrize("text", [*DIALOGUES, RESP3])
def test_a_dialogue_in_resp3(served: Served, redis82_port: int, text: str) -> None:
    steps = [shlex.split(line) for line in text.strip().splitlines()]
    steps = [[name, "HELLO", "3"] for name in "abc"] + steps
    assert _heard(served.port, steps) == _heard(redis82_port, steps)


_ANY = st.sampled_from(
    [
        *("SUBSCRIBE a", "SUBSCRIBE a b", "PSUBSCRIBE a*", "SSUBSCRIBE a", "UNSUBSCRIBE b"),
        *("UNSUBSCRIBE a", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "PUNSUBSCRIBE b", "PING", "PING x"),
        *("PUBLISH a m", "PUBLISH b m", "SPUBLISH a m", "GET nosuch", "MULTI", "EXEC", "DISCARD"),
        *("RESET", "HELLO 2", "HELLO 3", "PUBSUB NUMSUB a b", "PUBSUB NUMPAT"),
        "EVAL \"return redis.call('PUBLISH', 'a', 'm')\" 0",
    ]
)


_SWITCHES = ("MULTI", "GET nosuch", "HELLO 3", "SUBSCRIBE a", "GET nosuch", "EXEC")


@given(steps=st.lists(st.tuples(st.sampled_from("ab"), _ANY), max_size=30))
@example(steps=[("a", text) for text in _SWITCHES])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_dialogue(served: Served, redis82_port: int, steps: list[tuple[str, str]]) -> None:
    words = [[name, *shlex.split(text)] for name, text in steps]
    assert _heard(served.port, words) == _heard(redis82_port, words)
