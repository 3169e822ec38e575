"""The arguments in the reply of COMMAND DOCS."""

import os
import pty
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from kvstream.commands.command import Command, every
from kvstream.server.command_docs import Argument, arguments_of
from kvstream.server.commands import TABLE
from tests.patience import PATIENCE_S
from tests.server.asking import Asker
from tests.server.conftest import Served

KEY = Argument("key", "key")
COUNT = Argument("count", "integer", "COUNT", optional=True)
ID = Argument("id", "string")
ON_OR_OFF = Argument(
    *("on-or-off", "oneof"),
    parts=(Argument("on", "pure-token", "ON"), Argument("off", "pure-token", "OFF")),
)


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
            "STREAMS key [key ...] id|$ [id|$ ...]",
            [
                Argument(
                    *("key", "block", "STREAMS"),
                    parts=(
                        Argument("key", "key", multiple=True),
                        Argument(
                            *("id-or-$", "oneof"),
                            multiple=True,
                            parts=(ID, Argument("$", "pure-token", "$")),
                        ),
                    ),
                )
            ],
        ),
        ("ON|OFF", [ON_OR_OFF]),
        (
            "A (ON|OFF)",
            [replace(ON_OR_OFF, token="A")],
        ),
        (
            "A one|B two",
            [
                Argument(
                    *("one-or-two", "oneof"),
                    parts=(Argument("one", "string", "A"), Argument("two", "string", "B")),
                )
            ],
        ),
        (
            "id|(A (ON|OFF)|B two) ...",
            [
                Argument(
                    *("id-or-on-or-off-or-two", "oneof"),
                    parts=(
                        ID,
                        Argument(
                            *("on-or-off-or-two", "oneof"),
                            multiple=True,
                            parts=(
                                replace(ON_OR_OFF, token="A"),
                                Argument("two", "string", "B"),
                            ),
                        ),
                    ),
                )
            ],
        ),
        (
            "[A id [A id ...]]",
            [Argument("id", "string", "A", optional=True, multiple=True, multiple_token=True)],
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
                            *("pid", "block", "IDMP"),
                            parts=(Argument("pid", "string"), Argument("iid", "string")),
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


def _written(argument: Argument, within: str = "") -> str:
    """Return the syntax of an argument, as the documentation writes it."""
    parts = [_written(each, argument.kind) for each in argument.parts]
    inner = ("|" if argument.kind == "oneof" else " ").join(parts)
    base = inner or argument.name
    named = argument.kind == "oneof" and any(_names_another(each) for each in argument.parts)
    is_one = argument.token or argument.multiple
    if argument.kind == "oneof" and (
        (is_one and (within == "oneof" or named))
        or (named and within == "all" and not argument.optional)
    ):
        base = f"({base})"
    if argument.kind == "pure-token":
        base = argument.token
    word = f"{argument.token} {base}" if argument.token and base != argument.token else base
    if argument.multiple and named:
        word = f"{word} ..."
    elif argument.multiple:
        word = f"{word} [{word if argument.multiple_token else base} ...]"
    return f"[{word}]" if argument.optional else word


def _names_another(argument: Argument) -> bool:
    return bool(argument.token) and argument.kind != "pure-token"


def _short(syntax: str) -> str:
    """Write ``[x [x ...]]`` as ``[x ...]``, which means the same."""
    return re.sub(r"\[([^\[\]]+) \[\1 \.\.\.\]\]", r"[\1 ...]", syntax)


@pytest.mark.parametrize("command", every(TABLE), ids=lambda command: command.name)
def test_the_syntax_of_every_command_is_restored_from_its_arguments(command: Command) -> None:
    arguments = arguments_of(command.syntax)
    again = " ".join(_written(each, "" if len(arguments) == 1 else "all") for each in arguments)
    assert _short(again) == _short(command.syntax)


def _docs(client: redis.Redis, name: str) -> Any:
    return client.execute_command("COMMAND DOCS", name)  # type: ignore[no-untyped-call]


def test_command_docs_has_arguments(served: Served) -> None:
    reply = _docs(served.client(3), "xread")[b"xread"]
    assert set(reply) == {b"summary", b"since", b"group", b"arguments"}
    first, *_, streams = reply[b"arguments"]
    assert (streams[b"token"], streams[b"type"]) == (b"STREAMS", b"block")
    keys, ids = streams[b"arguments"]
    assert first == {
        b"name": b"count",
        b"type": b"integer",
        b"display_text": b"count",
        b"token": b"COUNT",
        b"flags": [b"optional"],
    }
    assert (keys[b"type"], keys[b"flags"]) == (b"key", [b"multiple"])
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


# --- beside redis-server --------------------------------------------------------------------------

OURS = {
    *(b"CLAIM", b"IDMP", b"IDMPAUTO", b"MAXCOUNT", b"MAXSIZE"),
    *(b"IFDEQ", b"IFDNE", b"IFEQ", b"IFNE"),
}
"""Tokens of Redis 8.4 to 8.10, which a Redis 8.2 does not have."""
ANOTHER_WORD = {"debug": "Redis documents no argument of DEBUG"}
SIGNS = {b"$", b"+", b"-", b">"}
"""Special IDs, which Redis documents for some commands only."""


def flat(docs: dict[bytes, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the documentation of commands, and of their subcommands."""
    for name, each in docs.items():
        yield name.decode(), each
        yield from flat(each.get(b"subcommands", {}))


def shape(arguments: list[Any], within: bytes = b"") -> list[Any]:
    """Return what programs read of arguments: types, tokens, flags and nesting; no names.

    A block that is always there and has no token is the arguments in it. Redis calls alternatives
    optional, too. A special ID is a kind of string.
    """
    shapes: list[Any] = []
    for each in arguments:
        kind, token, flags = each[b"type"], each.get(b"token"), set(each.get(b"flags", []))
        inner = each.get(b"arguments", [])
        parts = shape(inner, kind)
        if token in OURS or (inner and not parts):
            continue
        if kind == b"oneof":
            parts = [part for at, part in enumerate(parts) if part not in parts[:at]]
        if within == b"oneof":
            flags -= {b"optional"}
        if kind == b"pure-token" and token in SIGNS:
            kind, token = b"string", None
        if kind == b"oneof" and len(parts) == 1 and not token and parts[0][0] == b"string":
            kind, parts = b"string", []
        if kind == b"block" and not (token or flags) and within != b"oneof":
            shapes += parts
        else:
            place = each.get(b"key_spec_index")
            shapes.append((kind, token, place, tuple(sorted(flags)), tuple(parts)))
    return shapes


def test_the_arguments_of_every_command_are_those_of_redis(
    served: Served, redis82_port: int
) -> None:
    """As trees: clients and proxies build their calls and their checks from them."""
    with Asker(served.port, 3) as asker, Asker(redis82_port, 3) as other:
        ours, theirs = (dict(flat(each.ask("COMMAND DOCS"))) for each in (asker, other))
    both = (ours.keys() & theirs.keys()) - ANOTHER_WORD.keys()
    assert len(both) > 200
    for name in sorted(both):
        mine, wanted = (shape(docs[name].get(b"arguments", [])) for docs in (ours, theirs))
        assert mine == wanted, name
        for field in (b"group", b"since", b"doc_flags", b"deprecated_since", b"replaced_by"):
            assert ours[name].get(field) == theirs[name].get(field), (name, field)


def test_the_records_of_every_command_are_those_of_redis(served: Served, redis82_port: int) -> None:
    with Asker(served.port, 3) as asker, Asker(redis82_port, 3) as other:
        ours, theirs = (dict(_records(each.ask("COMMAND"))) for each in (asker, other))
    both = ours.keys() & theirs.keys()
    assert len(both) > 200
    for name in sorted(both):
        assert ours[name] == theirs[name], name


NEWER_FLAGS = {b"script_runner"}
"""Flags that a Redis 8.2 does not have."""


def _records(rows: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what COMMAND says of each command and subcommand, without the notes on keys."""
    for name, arity, flags, first, last, step, categories, tips, specs, parts in rows:
        if not name.endswith(b"subscribe"):  # Redis denies them memory as well
            keys = [{word: spec[word] for word in spec if word != b"notes"} for spec in specs]
            sets = [sorted(set(words) - NEWER_FLAGS) for words in (flags, categories, tips)]
            yield name.decode(), [arity, first, last, step, *sets, keys]
        yield from _records(parts)


FILTERS = ["ACLCAT stream", "ACLCAT nosuch", "PATTERN x*", "PATTERN *GET", "PATTERN xinfo|*"]
FILTERS += ["MODULE json", "MODULE", "ACLCAT", "PATTERN a b", "NOSUCH x"]


@pytest.mark.parametrize("words", FILTERS)
def test_lists_of_commands_are_those_of_redis(
    served: Served, redis82_port: int, words: str
) -> None:
    with served.asker() as asker, Asker(redis82_port) as other:
        ours, theirs = (each.ask(f"COMMAND LIST FILTERBY {words}") for each in (asker, other))
        here = asker.ask("COMMAND LIST")
    if isinstance(theirs, list):
        assert set(ours) & set(theirs) == set(here) & set(theirs)
    else:
        assert ours == theirs


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
