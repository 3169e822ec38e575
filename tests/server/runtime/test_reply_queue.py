"""Replies that wait for the disk: in order, each in its protocol, none lost at the end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreReadOnly
from kvstream.server.runtime import reply_queue
from kvstream.server.runtime.reply_queue import GroupFsync
from kvstream.types.options import Durability
from tests.opening import change_thresholds
from tests.patience import PATIENCE_S, until
from tests.server.talking import Server, Talker, Worker, request


class SlowDisk:
    """Hold every fsync of a server until the test releases it."""

    def __init__(self, server: Server) -> None:
        self._go = threading.Event()
        self._flush = server.engine.database.flush_wal
        self._server = server

    def flush(self) -> int:
        assert self._go.wait(PATIENCE_S)
        return self._flush()

    def release(self) -> None:
        self._go.set()
        self._server.engine.sync()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "store", Durability.ALWAYS)
    yield started
    started.engine.close()


@pytest.fixture
def disk(server: Server) -> Iterator[SlowDisk]:
    slow = SlowDisk(server)
    with patch.object(server.engine.database, "flush_wal", slow.flush):
        yield slow


def _heard(talker: Talker, length: int) -> bytes:
    """Return the output once it has this length; another thread writes it."""
    said = b""
    for _ in range(1000):
        said += talker.heard()
        if len(said) >= length:
            break
        threading.Event().wait(0.01)
    return said


def test_quit_loses_no_reply_that_waits_for_the_disk(server: Server, disk: SlowDisk) -> None:
    talker = server.client()
    for words in (("SET", "a", "1"), ("SET", "b", "2"), ("QUIT",)):
        talker.send(*words)
        server.turn()
    assert talker.heard() == b""
    assert not talker.closed
    disk.release()
    assert _heard(talker, 15) == b"+OK\r\n" * 3
    assert talker.closed


def test_the_end_of_a_wait_is_sent_after_replies_that_wait_for_the_disk(
    server: Server, disk: SlowDisk
) -> None:
    talker = server.client()
    talker.send("SET", "a", "1")
    server.turn()
    talker.send("XREAD", "BLOCK", "10", "STREAMS", "s", "$")
    server.turn()
    server.wait(0.02)
    assert talker.heard() == b""
    disk.release()
    assert _heard(talker, 10) == b"+OK\r\n*-1\r\n"


def test_each_reply_is_in_the_protocol_of_its_request(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    talker = server.client()
    for words in (("GET", "k"), ("HELLO", "3"), ("GET", "k"), ("RESET",), ("GET", "k")):
        talker.send(*words)
    server.turn()
    said = talker.heard()
    assert said.startswith(b"$-1\r\n%7\r\n")
    assert said.endswith(b"_\r\n+RESET\r\n$-1\r\n")
    server.engine.close()


def test_entries_that_cannot_be_made_durable_are_not_sent(server: Server) -> None:
    ann, bob = server.client(), server.client()
    with patch.object(server.engine.database, "flush_wal", side_effect=StoreReadOnly("gone")):
        ann.send("XADD", "s", "1-1", "f", "v")
        bob.send("XRANGE", "s", "-", "+")
        server.turn()
        said = [_heard(talker, 1) for talker in (ann, bob)]
    assert all(b"the log cannot be made durable: gone" in each for each in said)
    assert b"1-1" not in said[1]


class Patient(GroupFsync):
    """A group fsync that requests nothing."""

    def begin(self) -> None:
        self.begun = True

    def end(self) -> None:
        self.begun = False


@pytest.mark.parametrize("fails", [False, True])
def test_the_loop_may_wait_for_the_disk(server: Server, fails: bool) -> None:
    replies, ann, bob = server.executor.reply_queue, server.client(), server.client()
    replies.group_fsync = patient = Patient(replies, lambda function: None)
    loop, flush = threading.current_thread(), server.engine.database.flush_wal

    def flush_in_the_loop() -> int:
        # The expiry thread makes what it reads durable: here it must not.
        if fails or threading.current_thread() is not loop:
            raise StoreReadOnly("gone")
        return flush()

    with patch.object(server.engine.database, "flush_wal", flush_in_the_loop):
        for talker in (ann, bob):
            talker.send("SET", "k", "v")
            talker.send("QUIT")
            server.turn()
            assert (talker.heard(), talker.closed, patient.begun) == (b"", False, True)
        replies.wait()
    assert not patient.begun
    assert not replies.is_waiting()
    for talker in (ann, bob):
        said = talker.heard()
        assert talker.closed
        assert said.endswith(b"+OK\r\n")
        assert (b"the log cannot be made durable: gone" in said) is fails


@pytest.mark.parametrize("skipped", [(), ("XRANGE", "s", "-", "+")])
def test_requests_after_a_long_command_are_answered_after_it(
    server: Server, skipped: tuple[str, ...]
) -> None:
    sizes = dict.fromkeys(("long_rows", "step_nodes", "short_rows", "look_rows"), 1)
    change_thresholds(server.engine, steps_s=-1.0, **sizes)
    replies, worker = server.executor.reply_queue, Worker(server, 1)
    for _ in range(2):
        worker.send("XADD", "s", "*", "f", "v")
    server.turn()
    assert _heard(worker, 40)
    replies.group_fsync = Patient(replies, lambda function: None)
    # From the begin on: the expiry thread makes what it reads durable.
    with patch.object(server.engine.database, "flush_wal", side_effect=StoreReadOnly("gone")):
        assert worker.ask("SET", "k", "v") == b""
        if skipped:  # a skipped long reply blocks nobody
            worker.send_bytes(request("CLIENT", "REPLY", "SKIP") + request(*skipped))
        worker.send_bytes(request("DUMP", "s") + request("CLIENT", "ID"))
        worker.step()
        assert worker.client.reply_unfinished
        replies.wait()
        server.turn()
        replies.wait()
        server.turn()
        replies.wait()
    assert worker.heard().split(b"\r\n")[2:] == [b":1", b""]


@pytest.mark.parametrize("adds", [False, True])
def test_waiting_replies_have_a_limit(
    server: Server, disk: SlowDisk, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_queue, "WAITING_BYTES_MAX", 1 << 20)
    value, talker = b"v" * (300 << 10), server.client()
    words = ["XADD", "s", "*", "f", value] if adds else ["GET", "k"]

    def turns() -> None:
        for each in (["SET", "k", value], *[words] * 40):
            talker.send(*each)
            server.turn()

    running = threading.Thread(target=turns)
    running.start()
    until(lambda: server.executor.reply_queue.waiting_bytes > 1 << 20)
    threading.Event().wait(0.1)
    assert server.executor.reply_queue.waiting_bytes < 2 << 20  # the replies of one turn more
    disk.release()
    running.join(PATIENCE_S)
    said = _heard(talker, 5 + 40 * (22 if adds else len(value)))
    assert said.startswith(b"+OK\r\n")
    assert said.count(b"$") == 40
    assert server.executor.reply_queue.waiting_bytes == 0
