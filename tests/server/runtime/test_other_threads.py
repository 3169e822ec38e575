"""Turns and threads: concurrent changes of other threads, and an interrupt inside a turn."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream.commands.args import Argv
from kvstream.commands.command import Command, Session
from kvstream.commands.replies import OK, Reply
from kvstream.engine.waiters import Outcome
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_flat
from kvstream.meta.txn import Txn
from kvstream.operations.append import add_many
from kvstream.types.ids import StreamID
from kvstream.types.options import Durability
from tests.patience import PATIENCE_S, until
from tests.server.talking import Server, Talker


def _in_another_thread(work: threading.Thread) -> None:
    work.start()
    work.join(PATIENCE_S)
    assert not work.is_alive()


def _add_beside(server: Server, key: bytes) -> None:
    """Add an entry like a program that uses the store in the server's process."""
    flats = [encode_flat([b"f", b"beside"])]
    add = threading.Thread(
        target=server.engine.run, args=(add_many, qualified(0, key), flats), daemon=True
    )
    _in_another_thread(add)


def test_an_add_of_another_thread_at_the_end_of_a_turn_wakes_readers(server: Server) -> None:
    """The turn is committed, but its replies are still being written."""
    reader, writer = server.client(), server.client()
    main, posted = threading.get_ident(), deque[Callable[[], None]]()
    server.executor.post = lambda function: (
        function() if threading.get_ident() == main else posted.append(function)
    )
    assert reader.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$") == b""
    written: list[bytes] = []

    def send(data: bytes) -> None:
        written.append(data)
        _add_beside(server, b"s")

    writer.client.send = send
    writer.ask("SET", "k", "v")
    assert written == [b"+OK\r\n"]
    for function in posted:
        function()
    assert b"beside" in reader.heard()


class Interrupt:
    """A command that is interrupted as by Ctrl-C, each time or only the first time."""

    def __init__(self) -> None:
        self.armed = True

    def run(self, txn: Txn, session: Session, argv: Argv) -> Reply:
        if self.armed:
            raise KeyboardInterrupt
        return OK


@pytest.fixture
def interrupt(server: Server) -> Interrupt:
    made = Interrupt()
    row = Command("interrupt", made.run, "", frozenset(), None, "1.0.0", "server")
    server.executor.commands = {**server.executor.commands, b"interrupt": row}
    return made


def _sent(server: Server, *talkers: Talker) -> None:
    with pytest.raises(KeyboardInterrupt):
        server.turn()
    assert [talker.heard() for talker in talkers] == [b""] * len(talkers)


def test_an_interrupted_turn_is_undone_and_nothing_of_it_runs_again(
    server: Server, interrupt: Interrupt
) -> None:
    ann, bob = server.client(), server.client()
    ann.send("XADD", "s", "1-1", "f", "v")
    bob.send("INTERRUPT")
    _sent(server, ann, bob)
    assert server.client().ask("XLEN", "s") == b":0\r\n"
    assert (ann.heard(), bob.heard()) == (b"", b"")


def test_an_interrupt_between_two_operations_releases_the_store(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.send("SET", "k", "v")
    bob.send("PING")
    dispatcher = server.executor.dispatcher
    clock = dispatcher.clock
    times = iter([clock(), clock()])

    def interrupted() -> float:
        """Raise an interrupt when the turn reads the clock after its first client."""
        now = next(times, None)
        if now is None:
            raise KeyboardInterrupt
        return now

    dispatcher.clock = interrupted
    _sent(server, ann, bob)
    dispatcher.clock = clock
    _add_beside(server, b"t")
    assert server.client().ask("EXISTS", "k", "t").endswith(b":1\r\n")


def test_clients_served_in_an_interrupted_turn_keep_waiting(
    server: Server, interrupt: Interrupt
) -> None:
    reader, writer = server.client(), server.client()
    assert reader.ask("XREAD", "BLOCK", "0", "STREAMS", "s", "$") == b""
    writer.send("XADD", "s", "1-1", "f", "v")
    writer.send("INTERRUPT")
    _sent(server, reader, writer)
    interrupt.armed = False
    assert server.client().ask("XADD", "s", "2-1", "f", "v") == b"$3\r\n2-1\r\n"
    assert b"2-1" in reader.heard()


def test_readers_beside_the_server_are_woken_only_by_durable_entries(tmp_path: Path) -> None:
    server = Server(tmp_path / "always", Durability.ALWAYS)
    ann, name = server.client(), qualified(0, b"s")
    found: list[Outcome] = []

    def attempt(txn: Txn) -> StreamID | None:
        stream = txn.stream(name)
        return None if stream is None else stream.last

    assert server.engine.submit([name], attempt, found.append)[0] is None
    with server.engine.committer.hold():
        ann.ask("XADD", "s", "1-1", "f", "v")
        assert (found, ann.heard()) == ([], b"")
    until(lambda: found and ann.heard() == b"$3\r\n1-1\r\n")
    assert found[0].get() == StreamID(1, 1)
    server.engine.close()
