"""KVSTREAM.ERRORS: each error names its class, for the clients that ask for it alone."""

import re

import pytest

from tests.server.talking import Server, Talker

TOO_SMALL = "The ID specified in XADD is equal or smaller than the target stream top item"
ADD = ("XADD", "s", "1-0", "n", "1")
RAISE = "return redis.call('xadd', 's', '1-0', 'n', '1')"
RETURN = "return redis.pcall('xadd', 's', '1-0', 'n', '1')"
SEE = "return redis.pcall('xadd', 's', '1-0', 'n', '1').err"
BLOCK = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")


def told(server: Server) -> Talker:
    """Return a client that asked for classes, after the entry 1-0 was added."""
    talker = server.client()
    talker.ask(*ADD)
    assert talker.ask("KVSTREAM.ERRORS", "on") == b"+OK\r\n"
    return talker


def said(talker: Talker, *requests: tuple[str, ...]) -> str:
    """Return the replies to requests that are sent together."""
    for words in requests:
        talker.send(*words)
    talker.server.turn()
    return talker.heard().decode()


CASES: dict[str, tuple[tuple[tuple[str, ...], ...], str]] = {
    "a call": ((ADD,), f"-ERR IDTooSmall: {TOO_SMALL}\r\n"),
    "a pipeline": (
        (ADD, ("PING",), ("XINFO", "STREAM", "none")),
        f"-ERR IDTooSmall: {TOO_SMALL}\r\n+PONG\r\n"
        "-ERR NoSuchKey: no such key\tthere is no stream 'none'\r\n",
    ),
    "a transaction": (
        (("MULTI",), ADD, ("GET", "s"), ("ECHO", "x"), ("EXEC",)),
        "+OK\r\n" + "+QUEUED\r\n" * 3 + f"*3\r\n-ERR IDTooSmall: {TOO_SMALL}\r\n"
        "-WRONGTYPE Operation against a key holding the wrong kind of value"
        "\t's' is a stream, not a string\r\n$1\r\nx\r\n",
    ),
    "a refused transaction": (
        (("MULTI",), ("XLEN",), ("EXEC",)),
        "+OK\r\n-ERR InvalidArgument: wrong number of arguments for 'xlen' command\r\n"
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    ),
    "a script that raises": (
        (("EVAL", RAISE, "0"),),
        f"-ERR IDTooSmall: {TOO_SMALL} script: ",
    ),
    "a script that returns an error": (
        (("EVAL", RETURN, "0"),),
        f"-ERR IDTooSmall: {TOO_SMALL}\r\n",
    ),
    "what a script sees": (
        (("EVAL", SEE, "0"),),
        f"${len(TOO_SMALL) + 4}\r\nERR {TOO_SMALL}\r\n",
    ),
    "a script's own error": (
        (("EVAL", "return redis.error_reply('ERR no')", "0"),),
        "-ERR RequestError: no\r\n",
    ),
    "another code": (
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),),
        "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option\r\n",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_error_names_its_class_to_those_who_ask(server: Server, name: str) -> None:
    requests, wanted = CASES[name]
    plain = re.sub(r"\t[^\r]*|(?<=-ERR )\w+: ", "", wanted)
    client = told(server)
    assert said(client, *requests).startswith(wanted)
    assert said(server.client(), *requests).startswith(plain)
    assert client.ask("KVSTREAM.ERRORS", "off") == b"+OK\r\n"
    assert said(client, *requests).startswith(plain)


def test_a_blocked_command_and_a_burst_name_the_class(server: Server) -> None:
    ann, bob = told(server), server.client()
    bob.ask("XGROUP", "CREATE", "s", "g", "$")
    ann.send(*BLOCK)
    server.turn()
    bob.ask("XGROUP", "DESTROY", "s", "g")
    assert ann.heard().startswith(b"-NOGROUP ")
    ann.send(*ADD)
    ann.send_bytes(b"x")
    server.turn()
    assert ann.heard().startswith(b"-ERR IDTooSmall: ")


@pytest.mark.parametrize("end", [("HELLO",), ("HELLO", "2"), ("HELLO", "3"), ("RESET",)])
def test_a_new_protocol_ends_it(server: Server, end: tuple[str, ...]) -> None:
    client = told(server)
    assert b"resp=2 " in client.ask("CLIENT", "INFO")
    assert b":20\r\n" not in client.ask(*end)
    assert client.ask(*ADD).startswith(b"-ERR The ID")


def test_it_is_for_resp2_and_for_users_who_have_logged_in(server: Server) -> None:
    client = server.client()
    client.ask("HELLO", "3")
    client.ask("ACL", "SETUSER", "ann", "on", ">secret", "+xlen", "~s")
    assert client.ask("KVSTREAM.ERRORS", "ON").startswith(b"-ERR KVSTREAM.ERRORS needs RESP2")
    assert client.ask("KVSTREAM.ERRORS", "maybe") == b"-ERR syntax error\r\n"
    ann = server.client()
    ann.ask("AUTH", "ann", "secret")
    assert ann.ask("KVSTREAM.ERRORS", "ON") == b"+OK\r\n"
    client.ask("CONFIG", "SET", "requirepass", "hidden")
    assert server.client().ask("KVSTREAM.ERRORS", "ON").startswith(b"-NOAUTH ")


def test_a_subscribed_client_gets_its_messages(server: Server) -> None:
    ann, bob = told(server), server.client()
    ann.ask("SUBSCRIBE", "news")
    assert bob.ask("PUBLISH", "news", "x") == b":1\r\n"
    assert ann.heard() == b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n"
    assert ann.ask("GET", "s").startswith(b"-ERR RequestError: Can't execute 'get'")
