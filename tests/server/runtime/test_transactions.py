"""EXEC: XADDs to one key are appended together, with the replies and statistics of single ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.commands import reply_pages
from kvstream.server import stats
from kvstream.server.compiled import calls
from kvstream.server.runtime.transactions import SMALL
from kvstream.server.scripting import sandbox
from kvstream.types.clock import ManualClock
from tests.server.runtime.test_pipelines import SCRIPTS, Words, figures
from tests.server.talking import Server, request, sound

KEYS = st.sampled_from(["a", "b", "string"])
COMMANDS: st.SearchStrategy[Words] = st.one_of(
    st.tuples(st.sampled_from(["XADD", "xadd"]), KEYS, st.just("*"), st.just("f"), st.just("v")),
    st.tuples(st.just("XADD"), KEYS, st.just("*"), st.just("g"), st.just("v" * 3000)),
    st.tuples(*map(st.just, ("XADD", "a", "*", "f", "v", "odd"))),
    st.tuples(*map(st.just, ("XADD", "a", "MAXLEN", "2", "*", "f", "v"))),
    st.tuples(st.just("XADD"), KEYS, st.just("5-*"), st.just("f"), st.just("v")),
    st.tuples(st.just("XLEN"), KEYS),
    st.tuples(st.just("DEL"), KEYS),
    st.tuples(st.just("INCR"), KEYS),
    st.tuples(st.just("SET"), KEYS, st.sampled_from(["1", "v", "v" * 3000])),
    st.tuples(st.sampled_from(["GET", "get", "Get"]), KEYS),
    st.tuples(st.just("MGET"), KEYS, KEYS),
    st.tuples(st.just("OBJECT"), st.just("IDLETIME"), KEYS),
    st.tuples(*map(st.just, ("XREAD", "BLOCK", "0", "STREAMS")), KEYS, st.just("$")),
    st.tuples(st.just("EVAL"), st.sampled_from(SCRIPTS), st.just("2"), KEYS, KEYS, st.just("1")),
    st.sampled_from([("HELLO", "3"), ("HELLO", "2"), ("CLIENT", "NO-TOUCH", "ON"), ("NONE",)]),
    st.sampled_from([("CONFIG", "SET", "notify-keyspace-events", "KEA"), ("ECHO",)]),
    st.sampled_from([("SELECT", "1"), ("SELECT", "0"), ("CONFIG", "SET", "maxmemory", "0")]),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with sound(tmp_path / "store", ManualClock()) as opened:
        yield opened


@given(st.lists(COMMANDS, max_size=12), st.booleans())
def test_exec_has_the_replies_and_counters_of_single_commands(
    tmp_path_factory: pytest.TempPathFactory, commands: list[Words], waits: bool
) -> None:
    """A client with MONITOR makes every command run separately."""
    folder = tmp_path_factory.mktemp("servers")
    seen = []
    for name in ("together", "alone"):
        with sound(folder / name, ManualClock()) as server:
            server.client().ask("MONITOR" if name == "alone" else "PING")
            ann, bob = server.client(), server.client()
            ann.ask("SET", "string", "1")
            if waits:
                bob.ask("XREAD", "BLOCK", "0", "STREAMS", "a", "b", "$", "$")
            ann.send_bytes(request("MULTI") + b"".join(request(*each) for each in commands))
            ann.send("EXEC")
            server.turn()
            read = [ann.ask("XRANGE", key, "-", "+") for key in ("a", "b")]
            seen.append((ann.heard(), bob.heard(), read, figures(server), ann.client.commands_run))
    assert seen[0] == seen[1]


@pytest.mark.skipif(calls is None, reason="the compiled calls are not installed")
def test_compiled_calls_have_the_bounds_of_python() -> None:
    bounds = calls.BOUNDS
    assert bounds["object_bytes"] == reply_pages.OBJECT_BYTES
    assert bounds["object_bytes"] + bounds["small"] <= SMALL
    assert (bounds["recent"], bounds["arguments_max"]) == (stats.RECENT, sandbox.ARGUMENTS_MAX)


def test_xadds_of_an_exec_are_one_operation(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstream.operations import append

    sizes = []
    add_many = append.add_many

    def counted(txn: object, name: bytes, entries: list[object]) -> object:
        sizes.append(len(entries))
        return add_many(txn, name, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(append, "add_many", counted)
    ann, add = server.client(), ("XADD", "s", "*", "f", "v")
    ann.send_bytes(request("MULTI") + request(*add) * 5 + request("XLEN", "s") + request(*add) * 2)
    reply = ann.ask("EXEC")
    assert sizes == [5, 2]
    assert reply.count(b"$") == 7
    assert reply.count(b":5\r\n") == 1


def test_info_in_a_transaction_counts_the_calls_before_it(server: Server) -> None:
    ann = server.client()
    info = request("INFO", "commandstats")
    ann.send_bytes(request("PING") * 3 + request("MULTI") + info + request("EXEC"))
    server.turn()
    assert b"cmdstat_ping:calls=3," in ann.heard()


def test_a_long_reply_of_exec_follows_those_to_the_queued_commands(server: Server) -> None:
    ann, size = server.client(), server.engine.thresholds.short_bytes
    ann.client.pages = True
    ann.ask("SET", "k", "v" * (size // 2))
    ann.send_bytes(request("MULTI") + request("GET", "k") * 4 + request("EXEC") + request("PING"))
    server.turn()
    value = b"$%d\r\n%b\r\n" % (size // 2, b"v" * (size // 2))
    queued = b"+OK\r\n" + b"+QUEUED\r\n" * 4
    assert ann.heard() == queued + b"*4\r\n" + value * 4 + b"+PONG\r\n"
