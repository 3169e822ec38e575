"""Pipelines: plain requests get the replies and statistics of the general path."""

import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvstream.server.scripting.script import sha1
from kvstream.types.clock import ManualClock
from tests.server.talking import Server, request, sound

Words = tuple[str, ...]
KEYS = st.sampled_from(["a", "b", "s"])
STREAMS_READS: tuple[Words, ...] = (
    ("XREAD", "Streams", "s", "0"),
    ("XREAD", "COUNT", "1", "STREAMS", "a", "0"),
    ("XREAD", "COUNT", "2", "streams", "a", "s", "0-1", "0-1"),
    ("XREAD", "STREAMS", "a", "STREAMS", "b", "0"),
    ("XREAD", "STREAMS", "STREAMS", "0"),
    ("XREAD", "COUNT", "STREAMS", "STREAMS", "s", "0"),
    ("XREADGROUP", "GROUP", "streams", "c", "STREAMS", "s", ">"),
    ("XREADGROUP", "GROUP", "g", "STREAMS", "STREAMS", "s", ">"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "b", ">", ">"),
)
"""Reads whose keys are found by the place of STREAMS."""
IDS = st.sampled_from(["0-1", "1-1", "2-1", "3-1", "x"])
REQUESTS: st.SearchStrategy[Words] = st.one_of(
    st.tuples(st.just("GET"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("SET"), KEYS, st.sampled_from(["1", "v", "v" * 3000])),
    st.tuples(st.just("INCR"), KEYS),
    st.tuples(st.just("DEL"), KEYS, KEYS),
    st.tuples(st.just("MGET"), KEYS, KEYS),
    st.tuples(st.just("EXISTS"), KEYS),
    st.tuples(st.just("TTL"), KEYS),
    st.tuples(st.just("XADD"), KEYS, st.just("*"), st.just("f"), st.just("v")),
    st.tuples(st.just("XADD"), KEYS, IDS, st.just("f"), st.just("v")),
    st.tuples(st.just("XADD"), KEYS, st.just("NOMKSTREAM"), *map(st.just, ("*", "f", "v"))),
    st.tuples(st.just("XLEN"), KEYS),
    st.tuples(st.just("XINFO"), st.sampled_from(["GROUPS", "groups", "Groups"]), KEYS),
    st.tuples(st.just("OBJECT"), st.sampled_from(["ENCODING", "IDLETIME"]), KEYS),
    st.tuples(st.just("XDEL"), KEYS, IDS),
    st.tuples(st.just("XACK"), KEYS, st.just("g"), IDS),
    st.tuples(st.just("XGROUP"), st.just("CREATE"), KEYS, st.just("g"), st.just("0")),
    st.tuples(st.just("XRANGE"), KEYS, st.just("-"), st.just("+"), st.just("COUNT"), st.just("2")),
    st.tuples(
        *map(st.just, ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS")),
        KEYS,
        st.sampled_from([">", "0"]),
    ),
    st.tuples(
        *map(st.just, ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "NOACK", "STREAMS")),
        KEYS,
        st.just(">"),
    ),
    st.tuples(
        st.sampled_from(["XREAD", "xread"]),
        *map(st.just, ("BLOCK", "0", "COUNT", "1", "STREAMS")),
        *(KEYS, IDS),
    ),
    st.sampled_from(
        [("PING",), ("PING", "x"), ("ECHO", "x"), ("GET",), ("NONE",), ("PING", "", ""), ("XINFO",)]
    ),
    st.sampled_from(STREAMS_READS),
    st.sampled_from([("XREAD", "BLOCK", "0", "STREAMS", "s", "$"), ("UNLINK", "a")]),
    st.sampled_from([("SELECT", "1"), ("SELECT", "0"), ("MULTI",), ("EXEC",), ("DISCARD",)]),
    st.sampled_from([("CLIENT", "REPLY", "SKIP"), ("CLIENT", "NO-TOUCH", "ON"), ("RESET",)]),
    st.sampled_from([("HELLO", "3"), ("HELLO", "2"), ("CONFIG", "SET", "maxmemory", "0")]),
)
SCRIPTS = (
    "redis.call('set', KEYS[1], ARGV[1]) redis.call('incr', KEYS[2])"
    "return redis.call('get', KEYS[1])",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
    "return {redis.pcall('Mget', KEYS[1], KEYS[2]), redis.pcall('xlen', KEYS[1]), redis.pcall('')}",
    "redis.setresp(3) redis.call('select', 1)"
    "return {redis.pcall('get', KEYS[1]) == nil, redis.call('ping')}",
    "redis.pcall('GET', KEYS[1]) redis.pcall('xadd', KEYS[2], '*', 'f', ARGV[1]) "
    "return redis.call('object', 'idletime', KEYS[1])",
)
SHAS = [sha1(script.encode()).decode() for script in SCRIPTS]
RUNS: st.SearchStrategy[Words] = st.tuples(
    st.sampled_from(["EVALSHA", "EVALSHA_RO"]),
    *(st.sampled_from([*SHAS, SHAS[0].upper()]), st.just("2"), KEYS, KEYS),
    st.sampled_from(["1", "v", "v" * 3000]),
)
FIGURES = ("calls", "rejected", "failed", "idle")


def figures(server: Server) -> dict[str, Any]:
    """Return the statistics that do not depend on time."""
    statistics = server.executor.statistics
    commands = {
        name: [getattr(row, figure) for figure in FIGURES]
        for name, row in sorted(statistics.commands.items())
        if name not in ("monitor", "ping")
    }
    hits, misses = statistics.keyspace_hits, statistics.keyspace_misses
    return {"commands": commands, "hits": hits, "misses": misses, "errors": statistics.errors}


@given(st.lists(st.lists(REQUESTS | RUNS, max_size=12), max_size=5))
@example([[("XADD", "s", "1-1", "f", "v")], [*STREAMS_READS]])
@settings(max_examples=int(os.environ.get("KVSTREAM_EXAMPLES") or 40))
def test_pipelines_have_the_replies_and_counters_of_the_general_path(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[Words]]
) -> None:
    """A client with MONITOR makes every request take the general path."""
    folder = tmp_path_factory.mktemp("servers")
    with (
        sound(folder / "plain", ManualClock()) as plain,
        sound(folder / "general", ManualClock()) as general,
    ):
        plain.client().ask("PING")
        general.client().ask("MONITOR")
        seen = []
        for server in (plain, general):
            ann, bob, heard = server.client(), server.client(), []
            for script in SCRIPTS:
                bob.ask("SCRIPT", "LOAD", script)
            for requests in turns:
                if bob.client.block is None:
                    bob.send("XREAD", "BLOCK", "0", "STREAMS", "missing", "s", "$", "$")
                    server.turn()
                ann.send_bytes(b"".join(request(*words) for words in requests))
                server.turn()
                heard.append((ann.heard(), bob.heard()))
            used = sorted(server.engine.catalog.index.usage.recent)
            seen.append(
                (heard, figures(server), used, ann.client.last_command, ann.client.commands_run)
            )
        assert seen[0] == seen[1]
