"""The arguments in the reply of COMMAND DOCS."""

import os
import pty
import re
import shutil
import socket
import subprocess
import time
from typing import Any

import pytest
import redis

from kvstream.commands.command import Command, every
from kvstream.server.command_docs import Argument, arguments_of
from kvstream.server.commands import TABLE
from tests.patience import PATIENCE_S
from tests.server.conftest import Served

KEY = Argument("key", "key")
COUNT = Argument("count", "integer", "COUNT", optional=True)
ID = Argument("id", "string")


@pytest.mark.parametrize(
    ("syntax", "wanted"),
    [
        ("", []),
        ("key", [KEY]),
        ("key [COUNT count]", [KEY, COUNT]),
        ("GROUP group", [Argument("group", "string", "GROUP")]),
        ("[FORCE]", [Argument("force", "pure-token", "FORCE", optional=True)]),
        ("id [id ...]", [Argument("id", "string", multiple=True)]),
        (
            "STREAMS key [key ...]",
            [Argument("key", "key", "STREAMS", multiple=True)],
        ),
        (
            "key value [key value ...]",
            [
                Argument(
                    *("key", "block"),
                    multiple=True,
                    parts=(KEY, Argument("value", "string")),
                )
            ],
        ),
        ("[arg ...]", [Argument("arg", "string", optional=True, multiple=True)]),
        (
            "id|$",
            [Argument("id-or-$", "oneof", parts=(ID, Argument("$", "pure-token", "$")))],
        ),
        (
            "[IDMPAUTO pid|IDMP pid iid]",
            [
                Argument(
                    *("pid", "oneof"),
                    optional=True,
                    parts=(
                        Argument("pid", "string", "IDMPAUTO"),
                        Argument(
                            *("pid", "block"),
                            parts=(Argument("pid", "string", "IDMP"), Argument("iid", "string")),
                        ),
                    ),
                )
            ],
        ),
        (
            "[MAXLEN|MINID threshold [LIMIT count]]",
            [
                Argument(
                    *("maxlen-or-minid", "block"),
                    optional=True,
                    parts=(
                        Argument(
                            *("maxlen-or-minid", "oneof"),
                            parts=(
                                Argument("maxlen", "pure-token", "MAXLEN"),
                                Argument("minid", "pure-token", "MINID"),
                            ),
                        ),
                        Argument("threshold", "string"),
                        Argument("count", "integer", "LIMIT", optional=True),
                    ),
                )
            ],
        ),
    ],
)
def test_arguments_are_parsed_from_the_syntax_of_a_command(
    syntax: str, wanted: list[Argument]
) -> None:
    assert list(arguments_of(syntax)) == wanted


def _written(argument: Argument) -> str:
    """Return the syntax of an argument, as the documentation writes it."""
    inner = ("|" if argument.kind == "oneof" else " ").join(map(_written, argument.parts))
    base = inner or argument.name
    if argument.kind == "pure-token":
        base = argument.token
    word = f"{argument.token} {base}" if argument.token and base != argument.token else base
    if argument.multiple:
        word = f"{word} [{base} ...]"
    return f"[{word}]" if argument.optional else word


def _short(syntax: str) -> str:
    """Write ``[x [x ...]]`` as ``[x ...]``, which means the same."""
    return re.sub(r"\[([^\[\]]+) \[\1 \.\.\.\]\]", r"[\1 ...]", syntax)


@pytest.mark.parametrize("command", every(TABLE), ids=lambda command: command.name)
def test_the_syntax_of_every_command_is_restored_from_its_arguments(command: Command) -> None:
    again = " ".join(map(_written, arguments_of(command.syntax)))
    assert _short(again) == _short(command.syntax)


def _docs(client: redis.Redis, name: str) -> Any:
    return client.execute_command("COMMAND DOCS", name)  # type: ignore[no-untyped-call]


def test_command_docs_has_arguments(served: Served) -> None:
    reply = _docs(served.client(3), "xread")[b"xread"]
    assert set(reply) == {b"summary", b"since", b"group", b"arguments"}
    first, *_, keys, ids = reply[b"arguments"]
    assert first == {
        b"name": b"count",
        b"type": b"integer",
        b"display_text": b"count",
        b"token": b"COUNT",
        b"flags": [b"optional"],
    }
    assert (keys[b"token"], keys[b"type"], keys[b"flags"]) == (b"STREAMS", b"key", [b"multiple"])
    assert [part[b"name"] for part in ids[b"arguments"]] == [b"id", b"$", b"+"]
    group = _docs(served.client(3), "xgroup")[b"xgroup"]
    assert b"arguments" not in group
    created = group[b"subcommands"][b"xgroup|create"]
    assert created[b"arguments"][0][b"key_spec_index"] == 0


@pytest.mark.parametrize("name", ["publish", "script|load", "xadd"])
def test_command_info_is_that_of_redis_in_resp3(
    served: Served, redis82_port: int, name: str
) -> None:
    found = []
    for port in (served.port, redis82_port):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
            link.sendall(f"HELLO 3\r\nCOMMAND INFO {name}\r\nQUIT\r\n".encode())
            data = b"".join(iter(lambda link=link: link.recv(65536), b""))  # type: ignore[misc]
        found.append(data.removesuffix(b"+OK\r\n")[-8:])
    assert found[0] == found[1]
    assert found[0].endswith(b"~0\r\n")


def test_redis_cli_shows_the_syntax_of_a_command(served: Served) -> None:
    """In a terminal it calls COMMAND DOCS, and renders the arguments itself."""
    if shutil.which("redis-cli") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-cli is required here: apt-get install redis-tools")
        pytest.skip("redis-cli is not installed: apt-get install redis-tools")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["redis-cli", "-p", str(served.port)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, b"help xautoclaim\nquit\n")
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while b"since:" not in shown:
        assert time.monotonic() < deadline
        shown += os.read(ours, 4096)
    process.wait(PATIENCE_S)
    os.close(ours)
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    assert b"XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]" in plain
