"""DUMP and RESTORE in steps: the same result, with other commands between two steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.rdb.primitives import crc64
from kvstream.types.clock import ManualClock
from tests.server.runtime.test_incremental_commands import fill, state
from tests.server.talking import Other, Server, Talker, Worker, request, sound

ENTRIES = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"long_rows": 50, "long_payload": 500, "step_nodes": 1, "step_rows": 30}
    with sound(tmp_path / "store", ManualClock(), steps_s=-1.0, **sizes) as started:
        started.engine.catalog.limits.node_max_entries = 20
        yield started


@pytest.fixture
def ann(server: Server) -> Talker:
    """A client whose commands run in one step."""
    talker = Other(server, 1)
    fill(talker, "s", ENTRIES)
    for count in ("100", "1", "30"):
        talker.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", count, "STREAMS", "s", ">")
    talker.ask("XDEL", "s", "50-1", "51-1", "131-1")
    talker.ask("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    return talker


def payload_of(reply: bytes) -> bytes:
    head, _, rest = reply.partition(b"\r\n")
    assert len(rest) == int(head[1:]) + 2
    return rest[:-2]


def test_a_payload_has_the_state_at_its_start(server: Server, ann: Talker, worker: Worker) -> None:
    expected = ann.ask("DUMP", "s")
    worker.begin("DUMP", "s")
    worker.step()
    ann.ask("XACK", "s", "g", "3-1")
    ann.ask("XADD", "s", "*", "f", "v")
    ann.ask("XTRIM", "s", "MAXLEN", "10")
    worker.step()
    ann.ask("FLUSHALL")
    server.turn()
    assert worker.heard() == expected


def test_a_tracking_client_is_notified_of_changes_during_a_dump(
    server: Server, ann: Talker, worker: Worker
) -> None:
    worker.ask("HELLO", "3")
    worker.ask("CLIENT", "TRACKING", "ON")
    expected = ann.ask("DUMP", "s")
    worker.begin("DUMP", "s")
    ann.ask("XADD", "s", "*", "f", "v")
    server.turn()
    assert worker.heard() == expected + b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\ns\r\n"


def test_a_payload_has_the_changes_of_the_same_turn(
    server: Server, ann: Talker, worker: Worker
) -> None:
    worker.send_bytes(request("XADD", "s", "*", "f", "v") + request("DUMP", "s"))
    worker.send_bytes(request("DUMP", "none"))
    server.turn()
    said = worker.heard()
    assert said.startswith(b"$15\r\n1700000000000-1\r\n")
    assert said.endswith(b"\r\n" + ann.ask("DUMP", "s") + b"$-1\r\n")


@pytest.mark.parametrize("deleted", [False, True])
def test_a_dump_restarts_when_the_store_is_reopened(
    server: Server, ann: Talker, worker: Worker, deleted: bool
) -> None:
    expected = ann.ask("DUMP", "s")
    worker.begin("DUMP", "s")
    server.engine.reopen(False)
    if deleted:
        ann.ask("DEL", "s")
    server.turn()
    assert worker.heard() == (b"$-1\r\n" if deleted else expected)


def test_a_payload_may_be_too_long_for_a_reply(server: Server, ann: Talker, worker: Worker) -> None:
    server.engine.catalog.limits.reply_max = 500
    assert worker.ask("DUMP", "s").startswith(b"-ERR")
    server.engine.catalog.limits.reply_max = 0


@pytest.mark.parametrize("options", [(), ("REPLACE",)], ids=str)
def test_a_stream_is_created_in_the_last_step(
    server: Server, ann: Talker, worker: Worker, options: tuple[str, ...]
) -> None:
    payload = payload_of(ann.ask("DUMP", "s"))
    if options:
        ann.ask("SET", "made", "v")
    worker.send("RESTORE", "made", "5000", payload, *options)
    worker.step()
    assert ann.ask("TYPE", "made") == (b"+string\r\n" if options else b"+none\r\n")
    assert worker.end() == b"OK"
    assert ann.ask("PTTL", "made") == b":5000\r\n"
    assert state(ann, "made") == state(ann, "s")
    assert ann.ask("DUMP", "made") == ann.ask("DUMP", "s")


def test_a_key_created_meanwhile_stays(server: Server, ann: Talker, worker: Worker) -> None:
    payload = payload_of(ann.ask("DUMP", "s"))
    worker.send("RESTORE", "made", "0", payload)
    worker.step()
    ann.ask("SET", "made", "v")
    server.turn()
    assert worker.heard().startswith(b"-BUSYKEY")
    assert ann.ask("GET", "made") == b"$1\r\nv\r\n"
    assert worker.ask("RESTORE", "made", "0", payload).startswith(b"-BUSYKEY")


@pytest.mark.parametrize("change", [("FLUSHDB",), ("SWAPDB", "0", "1")], ids=str)
@pytest.mark.parametrize("times", [1, 9])
def test_it_restarts_if_the_database_was_flushed_or_swapped(
    server: Server, ann: Talker, worker: Worker, change: tuple[str, ...], times: int
) -> None:
    expected = ann.ask("DUMP", "s")
    worker.send("RESTORE", "made", "0", payload_of(expected))
    left = times
    while server.executor.incremental.is_busy or left == times:
        worker.step()
        worker.step()
        if left > 0:
            ann.ask(*change)
            left -= 1
    assert worker.heard() == b"+OK\r\n"
    if times == 1:
        assert ann.ask("DUMP", "made") == expected


def test_an_invalid_payload_leaves_nothing(server: Server, ann: Talker, worker: Worker) -> None:
    payload = bytearray(payload_of(ann.ask("DUMP", "s")))
    at = payload.index(b"v150")
    payload[at : at + 40] = b"\xff" * 40
    payload[-8:] = crc64(bytes(payload[:-8])).to_bytes(8, "little")
    worker.send("RESTORE", "made", "0", bytes(payload))
    server.turn()
    assert worker.heard() == b"-ERR Bad data format\r\n"
    assert ann.ask("EXISTS", "made") == b":0\r\n"
    payload[-1] ^= 1
    assert b"checksum" in worker.ask("RESTORE", "made", "0", bytes(payload))


def test_a_client_that_disconnects_during_restore_leaves_nothing(
    server: Server, ann: Talker, worker: Worker
) -> None:
    worker.send("RESTORE", "made", "0", payload_of(ann.ask("DUMP", "s")))
    worker.step()
    worker.step()
    worker.leave()
    server.turn()
    assert ann.ask("EXISTS", "made") == b":0\r\n"


def test_a_long_string_with_a_time_in_the_past(server: Server, ann: Talker, worker: Worker) -> None:
    ann.ask("SET", "text", "v" * 2000)
    payload = payload_of(ann.ask("DUMP", "text"))
    worker.send("RESTORE", "made", "0", payload)
    server.turn()
    assert worker.heard() == b"+OK\r\n"
    assert ann.ask("STRLEN", "made") == b":2000\r\n"
    stream = payload_of(ann.ask("DUMP", "s"))
    worker.send("RESTORE", "made", "1", stream, "REPLACE", "ABSTTL")
    server.turn()
    assert worker.heard() == b"+OK\r\n"
    assert ann.ask("EXISTS", "made") == b":0\r\n"
