"""CLIENT PAUSE and UNPAUSE: which clients wait, how long, and in which order they continue."""

from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.operations.checks import check
from kvstream.types.clock import ManualClock
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.talking import Server, Talker


def test_writes_wait_for_the_end_of_a_pause_and_reads_do_not(
    server: Server, ann: Talker, bob: Talker
) -> None:
    assert ann.ask("CLIENT", "PAUSE", "5000", "WRITE") == b"+OK\r\n"
    assert bob.ask("GET", "k") == b"$-1\r\n"
    bob.send("SET", "k", "v")
    bob.send("XADD", "s", "*", "f", "v")
    bob.send("GET", "k")
    server.wait(4.9)
    assert bob.heard() == b""
    assert ann.ask("EXISTS", "k", "s") == b":0\r\n"
    assert server.executor.due() == pytest.approx(1005)
    server.wait(0.2)
    said = bob.heard()
    assert said.startswith(b"+OK\r\n$")
    assert said.endswith(b"$1\r\nv\r\n")
    assert server.executor.due() is None


def test_unpause_runs_held_clients_in_the_order_of_their_arrival(
    server: Server, ann: Talker
) -> None:
    ann.ask("CLIENT", "PAUSE", "100000", "WRITE")
    talkers = [server.client() for _ in range(5)]
    for number, talker in enumerate(talkers):
        talker.ask("XADD", "s", f"{number + 1}-1", "f", "v")
    assert len(server.executor.blocked) == 5
    assert ann.ask("CLIENT", "UNPAUSE") == b"+OK\r\n"
    server.turn()
    assert [talker.heard() for talker in talkers] == [
        b"$3\r\n%d-1\r\n" % (number + 1) for number in range(5)
    ]
    assert not server.executor.blocked


def test_plain_appends_wait_like_other_writes(server: Server, ann: Talker, bob: Talker) -> None:
    bob.ask("XADD", "s", "*", "f", "v")
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    for _ in range(3):
        bob.send("XADD", "s", "*", "f", "v")
    server.turn()
    assert bob.heard() == b""
    server.wait(1.1)
    assert bob.heard().count(b"$") == 3


def test_a_pause_of_all_holds_every_command_also_unpause(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("CLIENT", "PAUSE", "1000")
    assert ann.ask("CLIENT", "UNPAUSE") == b""
    assert bob.ask("PING") == b""
    server.wait(1.1)
    assert (ann.heard(), bob.heard()) == (b"+OK\r\n", b"+PONG\r\n")


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_a_pause_without_an_end_is_refused(server: Server, ann: Talker, mode: str) -> None:
    error = b"-ERR timeout is out of range\r\n"
    assert ann.ask("CLIENT", "PAUSE", "9223372036854775807", mode) == error
    assert ann.ask("SET", "k", "v") == b"+OK\r\n"


def test_a_shorter_or_weaker_pause_does_not_change_the_current_one(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("CLIENT", "PAUSE", "5000", "WRITE")
    ann.ask("CLIENT", "PAUSE", "10", "WRITE")
    server.wait(1)
    assert bob.ask("SET", "k", "v") == b""
    assert ann.ask("CLIENT", "PAUSE", "20", "ALL") == b"+OK\r\n"
    server.wait(1)
    assert ann.ask("PING") == b""
    server.wait(4)
    assert (bob.heard(), ann.heard()) == (b"+OK\r\n", b"+PONG\r\n")
    assert ann.ask("CLIENT", "PAUSE", "1000", "WRITE") == b"+OK\r\n"
    assert ann.ask("PING") == b"+PONG\r\n"


def test_transactions_wait_if_they_write(server: Server, ann: Talker, bob: Talker) -> None:
    carl = server.client()
    for talker, command in ((bob, ("SET", "k", "v")), (carl, ("GET", "k"))):
        talker.ask("MULTI")
        talker.ask(*command)
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    assert bob.ask("EXEC") == b""
    assert carl.ask("EXEC") == b"*1\r\n$-1\r\n"
    server.wait(1.1)
    assert bob.heard() == b"*1\r\n+OK\r\n"


def test_publishing_waits_for_the_end_of_a_pause_of_writes(
    server: Server, ann: Talker, bob: Talker
) -> None:
    bob.ask("MULTI")
    bob.ask("SPUBLISH", "channel", "text")
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    assert ann.ask("PUBLISH", "channel", "text") == b""
    assert bob.ask("EXEC") == b""
    server.wait(1.1)
    assert (ann.heard(), bob.heard()) == (b":0\r\n", b"*1\r\n:0\r\n")


def test_a_client_that_disconnects_while_held_runs_nothing(
    server: Server, ann: Talker, bob: Talker
) -> None:
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    bob.ask("SET", "k", "v")
    bob.leave()
    server.wait(1.1)
    assert ann.ask("EXISTS", "k") == b":0\r\n"
    assert len(server.engine.waiters) == 0


def test_a_client_paused_in_a_failed_turn_runs_after_the_pause(
    server: Server, ann: Talker, bob: Talker
) -> None:
    carl = server.client()
    ann.send("SET", "a", "1")
    ann.send("CLIENT", "PAUSE", "1000", "WRITE")
    bob.send("SET", "b", "2")
    carl.send("PING")
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no room")):
        server.turn()
    assert ann.heard() == b"-MISCONF no room\r\n+OK\r\n"
    assert (bob.heard(), carl.heard()) == (b"", b"+PONG\r\n")
    server.wait(1.1)
    assert bob.heard() == b"+OK\r\n"


def test_keys_that_expire_in_a_pause_are_deleted_after_it(tmp_path: Path) -> None:
    clock = ManualClock()
    server = Server(tmp_path / "store", clock=clock)
    ann, catalog = server.client(), server.engine.catalog
    ann.ask("SET", "asked", "v", "PX", "10")
    ann.ask("SET", "left", "v", "PX", "10")
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    assert server.engine.expiry.paused
    clock.advance(10)
    assert ann.ask("GET", "asked") == b"$-1\r\n"
    assert ann.ask("SCAN", "0") == b"*2\r\n$1\r\n0\r\n*0\r\n"
    assert ann.ask("DBSIZE") == b":2\r\n"
    assert catalog.expired == 0
    ann.send("CLIENT", "UNPAUSE")
    assert ann.ask("SET", "asked", "again") == b"+OK\r\n+OK\r\n"
    assert (catalog.expired, server.engine.expiry.paused) == (1, False)
    assert ann.ask("EXISTS", "left") == b":0\r\n"
    assert ann.ask("DBSIZE") == b":1\r\n"
    assert server.engine.run(check) == []
    server.engine.close()


def test_wrong_arguments_get_the_errors_of_redis(served: Served, redis_port: int) -> None:
    for words in ("-1", "x", "1 BOTH", "1 WRITE x", "99999999999999999999"):
        with served.asker() as ours, Asker(redis_port) as theirs:
            line = f"CLIENT PAUSE {words}"
            assert ours.ask(line) == theirs.ask(line)


def test_a_real_server_ends_the_pause_by_its_timer(served: Served) -> None:
    with served.asker() as ann, served.asker() as bob:
        assert ann.ask("CLIENT PAUSE 200 ALL") == b"OK"
        bob.send("PING")
        assert bob.read() == b"PONG"
        assert ann.ask("CLIENT UNPAUSE") == b"OK"


def test_a_paused_client_cannot_be_unblocked(server: Server, ann: Talker, bob: Talker) -> None:
    bob.ask("CLIENT", "PAUSE", "1000", "WRITE")
    ann.ask("XADD", "s", "1-1", "f", "v")
    assert bob.ask("CLIENT", "UNBLOCK", str(ann.client.id)) == b":0\r\n"
    server.wait(1.1)
    assert ann.heard() == b"$3\r\n1-1\r\n"
