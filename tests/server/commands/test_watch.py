"""WATCH: which changes stop EXEC, and which do not."""

import pytest

from bench.calls import count_calls
from kvstream.operations import keyspace
from tests.opening import change_thresholds
from tests.server.talking import Server, Talker

UNDONE = {
    "SET of the same value": ["SET t v"],
    "INCR and DECR": ["INCR n", "DECR n"],
    "EXPIRE and PERSIST": ["EXPIRE t 100", "PERSIST t"],
    "RENAME there and back": ["RENAME s u", "RENAME u s"],
    "a key that came and went": ["SET new v", "DEL new"],
    "SETRANGE of the same": ["SETRANGE t 0 v"],
    "SWAPDB there and back": ["SWAPDB 0 1", "SWAPDB 1 0"],
}


@pytest.mark.parametrize("said", UNDONE.values(), ids=UNDONE)
def test_exec_does_nothing_when_a_watched_key_was_changed_back(
    server: Server, ann: Talker, bob: Talker, said: list[str]
) -> None:
    for request in ("SET t v", "SET n 1", "XADD s 1-1 f v"):
        bob.ask(*request.split())
    ann.ask("WATCH", "t", "n", "s", "new")
    for request in said:
        assert not bob.ask(*request.split()).startswith(b"-")
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*-1\r\n"


@pytest.mark.parametrize("request_", ["SET other v", "XADD s * f v", "EXPIRE other 9", "DEL other"])
def test_a_change_costs_the_same_however_many_clients_watch_other_keys(
    server: Server, ann: Talker, bob: Talker, request_: str
) -> None:
    def calls() -> int:
        bob.ask("SET", "other", "w")
        bob.send(*request_.split())
        return count_calls(server.turn).calls

    ann.ask("WATCH", "k", "l")
    calls()
    few = calls()
    watching = [server.client() for _ in range(100)]
    for client in watching:
        client.ask("WATCH", "k", "l")
    calls()
    assert calls() <= few + 10
    bob.ask("SET", "l", "v")
    for client in (ann, *watching):
        client.ask("MULTI")
        assert client.ask("EXEC") == b"*-1\r\n"
    index = server.executor.engine.catalog.index
    ann.ask("WATCH", "k")
    assert len(index.watches) == 1
    assert len(index._by_name) == 1


def test_exec_does_nothing_when_no_bytes_were_appended_to_a_watched_key(
    ann: Talker, bob: Talker
) -> None:
    bob.ask("SET", "t", "v")
    ann.ask("WATCH", "t")
    assert bob.ask("APPEND", "t", "") == b":1\r\n"
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*-1\r\n"


def test_swapped_databases_without_a_watched_key_do_not_stop_exec(ann: Talker, bob: Talker) -> None:
    bob.ask("SET", "other", "v")
    ann.ask("WATCH", "t")
    assert bob.ask("SWAPDB", "0", "1") == b"+OK\r\n"
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*0\r\n"


def test_commands_without_effect_on_a_watched_key_do_not_stop_exec(
    server: Server, ann: Talker, bob: Talker
) -> None:
    for request in ("SET t v", "XADD s 1-1 f v", "SET gone v PX 1"):
        bob.ask(*request.split())
    while bob.ask("EXISTS", "gone") != b":0\r\n":
        pass
    ann.ask("WATCH", "t", "s", "gone", "none")
    for request in (
        *("SET other v", "SET t w NX", "PERSIST t", "DEL none gone", "GET t", "TOUCH t"),
        *("XGROUP CREATE s g 0", "XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1"),
    ):
        bob.ask(*request.split())
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*0\r\n"


@pytest.mark.parametrize("said", ["FLUSHDB", "FLUSHALL", "DEL t s"])
def test_sweeping_the_rows_of_deleted_keys_does_not_stop_exec(
    server: Server, ann: Talker, bob: Talker, said: str
) -> None:
    change_thresholds(server.engine, long_keys=0, flush_keys=1)
    for request in ("SET t v PX 100000", "XADD s 1-1 f v", said):
        bob.ask(*request.split())
    ann.ask("WATCH", "t", "s")
    assert server.engine.run(keyspace.sweep, 1000) > 0
    ann.ask("MULTI")
    assert ann.ask("EXEC") == b"*0\r\n"


# --- KVSTREAM.GUARD -----------------------------------------------------------------------------


@pytest.fixture
def leased(ann: Talker) -> None:
    """The entry 1-1 of "s", delivered once to consumer "ann" of group "g"."""
    for request in (
        *("XADD s 1-1 f v", "XADD s 2-1 f v", "XGROUP CREATE s g 0"),
        "XREADGROUP GROUP g ann COUNT 1 STREAMS s >",
    ):
        assert not ann.ask(*request.split()).startswith(b"-")


@pytest.mark.usefixtures("leased")
@pytest.mark.parametrize(
    "said",
    [
        "XACK s g 1-1",
        "XCLAIM s g bob 0 1-1",
        "XCLAIM s g ann 0 1-1",
        "XNACK s g FAIL IDS 1 1-1",
        "XGROUP DELCONSUMER s g ann",
        "XGROUP DESTROY s g",
        "DEL s",
        "RENAME s t",
        "SET s v",
    ],
)
def test_exec_does_nothing_when_a_guarded_lease_is_lost(
    ann: Talker, bob: Talker, said: str
) -> None:
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "1") == b"+OK\r\n"
    assert not bob.ask(*said.split()).startswith(b"-")
    ann.ask("MULTI")
    ann.ask("XADD", "done", "1-1", "f", "v")
    assert ann.ask("EXEC") == b"*-1\r\n"
    assert ann.ask("EXISTS", "done") == b":0\r\n"
    if said != "SET s v":
        reply = ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "1")
        lost = b"entry 1-1 of stream 's' is not leased to 'ann' with delivery 1 any more"
        assert reply == b"-LEASELOST %b\r\n" % lost


@pytest.mark.usefixtures("leased")
def test_commands_without_effect_on_a_guarded_lease_do_not_stop_exec(
    ann: Talker, bob: Talker
) -> None:
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "1") == b"+OK\r\n"
    for request in (
        *("XADD s 3-1 f v", "XREADGROUP GROUP g bob STREAMS s >", "XACK s g 2-1"),
        *("XCLAIM s g bob 100000 1-1", "XTRIM s MAXLEN 1", "XGROUP SETID s g $"),
    ):
        assert not bob.ask(*request.split()).startswith(b"-")
    ann.ask("MULTI")
    ann.ask("XACK", "s", "g", "1-1")
    assert ann.ask("EXEC") == b"*1\r\n:1\r\n"


@pytest.mark.usefixtures("leased")
def test_a_guard_ends_with_unwatch_exec_and_discard(ann: Talker, bob: Talker) -> None:
    for end in (["UNWATCH"], ["MULTI", "EXEC"], ["MULTI", "DISCARD"]):
        assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "1") == b"+OK\r\n"
        for word in end:
            ann.ask(word)
        bob.ask("XNACK", "s", "g", "SILENT", "IDS", "1", "1-1")
        ann.ask("MULTI")
        assert ann.ask("EXEC") == b"*0\r\n"
        bob.ask("XCLAIM", "s", "g", "ann", "0", "1-1")


@pytest.mark.usefixtures("leased")
def test_a_guard_is_refused_inside_multi_and_for_another_token(ann: Talker) -> None:
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "2").startswith(b"-LEASELOST")
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "bob", "1-1", "1").startswith(b"-LEASELOST")
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "x", "1").startswith(
        b"-ERR Invalid stream ID"
    )
    ann.ask("MULTI")
    assert ann.ask("KVSTREAM.GUARD", "s", "g", "ann", "1-1", "1") == (
        b"-ERR KVSTREAM.GUARD inside MULTI is not allowed\r\n"
    )
