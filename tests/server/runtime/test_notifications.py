"""Keyspace notifications: when they are sent, and in which order."""

from pathlib import Path

import pytest
import redis

from tests.server.conftest import Serve
from tests.server.talking import Server, Talker, request
from tests.serving import ServerProcess


def message(channel: str, text: str) -> bytes:
    return b">3\r\n" + request("message", channel, text).partition(b"\r\n")[2]


def subscribed(talker: Talker, *channels: str) -> Talker:
    talker.ask("HELLO", "3")
    talker.ask("SUBSCRIBE", *channels)
    return talker


@pytest.fixture
def cyd(server: Server) -> Talker:
    """A client that subscribes to events of growing streams."""
    return subscribed(server.client(), "__keyevent@0__:xadd")


XADD = "XADD", "s", "*", "f", "v"


def test_an_event_is_sent_with_the_replies_of_its_turn(
    server: Server, ann: Talker, cyd: Talker
) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "Et")
    ann.send("XADD", "s", "1-1", "f", "v")
    cyd.send("XLEN", "s")
    server.turn()
    assert cyd.heard() == message("__keyevent@0__:xadd", "s") + b":1\r\n"


def test_a_setting_applies_from_its_command_on(server: Server, ann: Talker, cyd: Talker) -> None:
    on, off = (request("CONFIG", "SET", "notify-keyspace-events", value) for value in ("EA", ""))
    xadd = request(*XADD)
    ann.send_bytes(xadd + on + xadd + xadd + off + xadd + on + xadd)
    server.turn()
    assert cyd.heard() == message("__keyevent@0__:xadd", "s") * 3


def test_appends_with_events_are_not_batched(
    server: Server, ann: Talker, bob: Talker, cyd: Talker
) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "Et")
    for _ in range(2):  # the second time the clients are direct
        for talker in (ann, bob):
            talker.send_bytes(request("XADD", "s", "MAXLEN", "1", "*", "f", "v") * 3)
        server.turn()
        assert cyd.heard() == message("__keyevent@0__:xadd", "s") * 6


def test_expired_events_do_not_prevent_batches_and_pipelines(
    server: Server, ann: Talker, cyd: Talker
) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "KEx")
    assert not server.executor.dispatcher.needs_general_path
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "KExt")
    assert server.executor.dispatcher.needs_general_path
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "xt")
    assert not server.executor.dispatcher.needs_general_path
    ann.ask(*XADD)
    assert cyd.heard() == b""


@pytest.mark.parametrize("flags", ["KEl", "KEsz", "KEg", "A", "K", "E", "KEx"])
def test_other_classes_are_not_sent(server: Server, ann: Talker, cyd: Talker, flags: str) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", flags)
    ann.ask(*XADD)
    assert cyd.heard() == b""


def test_a_script_publishes_the_events_of_its_calls(
    server: Server, ann: Talker, cyd: Talker
) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "Et")
    ann.ask("EVAL", "for n = 1, 3 do redis.call('xadd', 's', '*', 'f', n) end", "0")
    assert cyd.heard() == message("__keyevent@0__:xadd", "s") * 3


def test_serving_a_blocked_reader_publishes_its_new_consumer(
    server: Server, ann: Talker, bob: Talker
) -> None:
    cyd = subscribed(server.client(), "__keyspace@0__:s")
    bob.ask("CONFIG", "SET", "notify-keyspace-events", "KA")
    bob.ask("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    ann.ask("XREADGROUP", "GROUP", "g", "ann", "BLOCK", "0", "STREAMS", "s", ">")
    bob.ask(*XADD)
    names = "xgroup-create", "xgroup-createconsumer", "xadd"
    assert cyd.heard() == b"".join([message("__keyspace@0__:s", name) for name in names])


def test_a_failed_turn_publishes_nothing(
    server: Server, ann: Talker, bob: Talker, cyd: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann.ask("CONFIG", "SET", "notify-keyspace-events", "Et")
    commit, calls = server.engine.commit_turn, []

    def fail_once(txn: object) -> int:
        calls.append(txn)
        if len(calls) == 1:
            server.engine.undo_turn(txn)  # type: ignore[arg-type]
            raise OSError("the disk fails once")
        return commit(txn)  # type: ignore[arg-type]

    monkeypatch.setattr(server.engine, "commit_turn", fail_once)
    ann.send(*XADD)
    bob.send(*XADD)
    server.turn()
    assert len(calls) == 3
    assert cyd.heard() == message("__keyevent@0__:xadd", "s") * 2


def test_other_threads_and_the_clock_cause_events(serve: Serve) -> None:
    served = serve(notify_keyspace_events=0)
    with redis.Redis(port=served.port) as client, client.pubsub() as pubsub:
        client.config_set("notify-keyspace-events", "Egx$")
        pubsub.psubscribe("__keyevent*")
        assert pubsub.get_message(timeout=60)
        client.set("k", "v", px=1)
        heard = [pubsub.get_message(timeout=60) for _ in range(3)]
        assert [each["channel"][15:] for each in heard if each] == [b"set", b"expire", b"expired"]


def test_serve_accepts_the_flags(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", "--notify-keyspace-events", "xKE")
    try:
        with server.asker() as asker:
            asked = asker.ask("CONFIG GET notify-keyspace-events")
            assert asked == [b"notify-keyspace-events", b"xKE"]
    finally:
        server.stop()
