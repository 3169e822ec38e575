"""Pipelines: plain requests get the replies and statistics of the general path, in fewer calls."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.resp import twins
from kvstream.types.clock import ManualClock
from tests.server.talking import Server, request, sound

Words = tuple[str, ...]
KEYS = st.sampled_from(["a", "b", "s"])
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
    st.sampled_from([("XREAD", "BLOCK", "0", "STREAMS", "s", "$"), ("UNLINK", "a")]),
    st.sampled_from([("SELECT", "1"), ("SELECT", "0"), ("MULTI",), ("EXEC",), ("DISCARD",)]),
    st.sampled_from([("CLIENT", "REPLY", "SKIP"), ("CLIENT", "NO-TOUCH", "ON"), ("RESET",)]),
    st.sampled_from([("HELLO", "3"), ("HELLO", "2"), ("CONFIG", "SET", "maxmemory", "0")]),
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


@given(st.lists(st.lists(REQUESTS, max_size=12), max_size=5))
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


TURN_CALLS_MAX = 44
"""Calls of Python functions for a turn with a commit."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with sound(tmp_path / "store") as started:
        yield started


@pytest.mark.skipif(twins is None, reason="compiled code does a part of the calls")
@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("PING",), 1),
        (("GET", "k"), 2),
        (("SET", "k", "v"), 7),
        (("SET", "new:{}", "v"), 27),
        (("INCR", "n"), 10),
        (("XLEN", "s"), 3),
        (("XACK", "s", "g", "9-9"), 11),
        (("XRANGE", "s", "-", "+", "COUNT", "1"), 16),
        (("XREVRANGE", "s", "+", "-", "COUNT", "1"), 12),
        (("XREAD", "COUNT", "1", "STREAMS", "s", "1"), 22),
        (("XREAD", "BLOCK", "9", "COUNT", "1", "STREAMS", "s", "1"), 23),
        (("XADD", "s", "1{:>03}-1", "f", "v"), 20),
        (("XINFO", "GROUPS", "s"), 22),
        (("XDEL", "s", "{}-1"), 24),
        # 33 if its millisecond is that of the previous delivery, whose run it joins.
        (("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">"), 38),
    ],
)
def test_a_request_of_a_pipeline_calls_few_functions(
    server: Server, words: Words, most: int
) -> None:
    """A second request of the same kind adds at most this many calls of Python functions.

    ``{}`` in its words is an unused number.
    """
    server.executor.dispatcher.noted_s = inf  # a slow machine logs slow requests
    ann, numbers = server.client(), iter(range(1, 100))
    for number in range(60):
        ann.ask("XADD", "s", f"{number + 1}-1", "f", "v")
    ann.ask("XGROUP", "CREATE", "s", "g", "0")
    ann.ask("SET", "k", "v")

    def calls_of(requests: int) -> int:
        calls = 0

        def count(frame: Any, event: str, arg: object) -> None:
            nonlocal calls
            path = frame.f_code.co_filename
            calls += event == "call" and "/tests/" not in path and ("kvstream" in path)

        sent = [[word.format(number) for word in words] for number in islice(numbers, requests)]
        ann.send_bytes(b"".join(request(*each) for each in sent))
        sys.setprofile(count)
        try:
            server.turn()
        finally:
            sys.setprofile(None)
        assert ann.heard()
        return calls

    for _ in range(3):
        calls_of(1)
    assert calls_of(1) <= TURN_CALLS_MAX + most
    assert calls_of(9) - calls_of(1) <= 8 * most
