"""Scripts and functions written for Valkey: its object ``server`` is what ``redis`` is."""

import re
from collections.abc import Iterator

import pytest

from tests.peers import PeerProcess
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.scripting.test_scripts_as_redis import scripts

VERSIONS = {b"VALKEY_VERSION", b"VALKEY_VERSION_NUM", b"REDIS_VERSION", b"REDIS_VERSION_NUM"}
"""Constants that differ; scripts tell a Valkey from a Redis by the first two."""
NAMES = "local names = {} for name in pairs(%s) do names[#names + 1] = name end return names"
KEPT = re.compile(r"redis\b(?!:)")


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    process = PeerProcess("valkey-9.1", tmp_path_factory.mktemp("valkey"))
    with Asker(process.port) as asker:
        yield asker
    process.stop()


def renamed(script: str) -> str:
    """Return a script with Valkey's name of the table."""
    return KEPT.sub("server", script)


def load(asker: Asker, body: str, name: str = "lib") -> object:
    return asker.ask("FUNCTION", "LOAD", "REPLACE", f"#!lua name={name}\n{body}")


def shown(reply: object) -> str:
    """Return a reply without names of scripts, which a Valkey does not show, and addresses."""
    return re.sub(r"script: (\w+, )?|0x\w+", "", repr(reply))


def test_a_script_answers_the_same_by_both_names(served: Served) -> None:
    asked = [script for script in scripts() if "redis" in script]
    assert len(asked) > 100
    replies = []
    for change in (str, renamed):
        with served.asker() as asker:
            asker.ask("FLUSHALL")
            replies.append([shown(asker.ask("EVAL", change(script), "0")) for script in asked])
    for script, ours, theirs in zip(asked, *replies, strict=True):
        plain = [re.sub("redis lib |Redis |Valkey |Lua ", "", text) for text in (ours, theirs)]
        first, second = (text.replace("server", "redis").lower() for text in plain)
        assert first == second, script


NEWER = (
    "call('config','nosuch')",
    "error_reply('\\r-",
    "\\0y",
    "in pairs(",
    "acl_check_cmd('xgroup')",
)
"""Scripts to which a Valkey 9.1 answers otherwise than Redis 8.2 does, by the name redis too."""


def test_a_script_answers_as_on_valkey(served: Served, valkey: Asker) -> None:
    """Its errors too, which have the words of a Valkey by the name server."""
    asked = [script for script in scripts() if "redis" in script]
    asked = [script for script in asked if not any(text in script for text in NEWER)]
    valkey.ask("FLUSHALL")
    with served.asker() as asker:
        for script in map(renamed, asked):
            ours, theirs = (shown(each.ask("EVAL", script, "0")) for each in (asker, valkey))
            assert ours == theirs, script


def test_both_names_are_equal_read_only_tables(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("EVAL", "return server == redis and _G.server == server", "0") == 1
        for attempt in (
            *("server.x = 1", "server.call = nil", "server = {}", "_G.server = nil"),
            *("rawset(server, 'x', 1)", "setmetatable(server, {})", "table.insert(server, 1)"),
        ):
            assert "Attempt to modify a readonly table" in asker.ask("EVAL", attempt, "0")
        assert asker.ask("EVAL", "return {server.x, getmetatable(server)}", "0") == []
        assert asker.ask("EVAL", "return server.call('PING')", "0") == b"PONG"


def test_the_members_are_those_of_valkey(served: Served, valkey: Asker) -> None:
    with served.asker() as asker:
        for name in ("server", "redis"):
            there = set(valkey.ask("EVAL", NAMES % name, "0"))
            ours = set(asker.ask("EVAL", NAMES % name, "0"))
            assert there - ours == {b"SERVER_NAME", b"VALKEY_VERSION", b"VALKEY_VERSION_NUM"}
            assert ours < there
            assert asker.ask("EVAL", f"return {name}.SERVER_NAME", "0") == b"redis"
            for each in ours - VERSIONS:
                text = f"local v = {name}.{each.decode()} return type(v) == 'function' and 'f' or v"
                assert asker.ask("EVAL", text, "0") == valkey.ask("EVAL", text, "0")


LIBRARIES = [
    "server.register_function('f', function() return 1 end)",
    "server.register_function{function_name='f', callback=function() return 2 end,"
    " flags={'no-writes'}, description='d'}",
    "local f = server.register_function f('f', function() return 3 end)",
    "redis.register_function('f', function() return server.call('PING') end)",
    "server.register_function('f', function() return server.pcall('nosuch').err ~= nil end)",
    "server.register_function('f', function() return server == redis end)",
    "server.register_function('f', function() server.x = 1 end)",
    "server.register_function('f', function() server = 1 end)",
    "server.register_function('f', function() return server.register_function == nil end)",
    "server.register_function('f', function() return server.error_reply('CODE text') end)",
    "server.register_function('f', function() return {server.LOG_DEBUG, server.REPL_ALL} end)",
    "server.register_function('f', function() return server.sha1hex('x') end)",
    "server.register_function('f', function() return server.acl_check_cmd('get', 'k') end)",
    "server.register_function('f', function(keys, args) return {keys, args} end)",
    "server.register_function('f', function() return server.setresp(3) end)",
    "server.register_function('f', 'g')",
    "server.register_function()",
    "server.register_function(1, 2, 3)",
    "server.register_function({})",
    "server.register_function({x=1})",
    "server.register_function({function_name='a'})",
    "server.call('PING')",
    "server.nosuch()",
    "server.x = 1",
    "server = {}",
    "return server.setresp(3)",
]


@pytest.mark.parametrize("library", LIBRARIES)
def test_functions_answer_as_on_valkey(served: Served, valkey: Asker, library: str) -> None:
    with served.asker() as asker:
        ours, theirs = (load(each, library) for each in (asker, valkey))
        assert ours == theirs
        if theirs == b"lib":
            ours, theirs = (each.ask("FCALL", "f", "1", "k", "v") for each in (asker, valkey))
            assert shown(ours) == shown(theirs)
        valkey.ask("FUNCTION", "FLUSH")


def test_an_error_of_a_returned_call_has_its_line_by_both_names(served: Served) -> None:
    with served.asker() as asker:
        for name in ("redis", "server"):
            reply = asker.ask("EVAL", f"local x = 1\nreturn {name}.call('INCR')", "0")
            assert "@user_script:2." in reply
