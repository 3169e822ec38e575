"""FAILOVER: a primary hands over to a replica, and no acknowledged write is lost."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvstream.storage import replacement
from tests.patience import until
from tests.replicas.servers import (
    Node,
    refuse_differences,
    replica_of,
    wait_equal,
    wait_linked,
)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A primary and its replica."""
    primary = Node(tmp_path / "primary")
    try:
        primary.client().xadd("first", {"n": 1})
        replica = replica_of(primary, tmp_path / "replica")
    except BaseException:
        primary.end()
        raise
    yield primary, replica
    running = [node for node in (primary, replica) if node.process.poll() is None]
    for node in running:
        node.process.send_signal(signal.SIGCONT)
    for node in running:
        node.end()


def state_of(node: Node) -> str:
    return node.replication()["master_failover_state"]


def role_of(node: Node) -> str:
    return node.replication()["role"]


def place_of(node: Node) -> str:
    return f"127.0.0.1 {node.port}"


def test_failover_refuses_as_redis_does(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    to = f"FAILOVER TO {place_of(replica)}"
    for node, line, error in (
        (primary, "FAILOVER ABORT", "ERR No failover in progress."),
        (primary, "FAILOVER TIMEOUT 0", "ERR FAILOVER timeout must be greater than 0"),
        (primary, "FAILOVER TIMEOUT x", "ERR value is not an integer or out of range"),
        (primary, "FAILOVER ABORT TIMEOUT 1", "ERR syntax error"),
        (primary, "FAILOVER TO a", "ERR syntax error"),
        (replica, "FAILOVER", "ERR FAILOVER is not valid when server is a replica."),
        (
            primary,
            f"{to} FORCE",
            "ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
        ),
        (primary, "FAILOVER TO h 1", "ERR FAILOVER target HOST and PORT is not a replica."),
    ):
        with node.asker() as asker:
            assert asker.ask(line) == error
    assert state_of(primary) == "no-failover"
    replica.stop()
    until(lambda: primary.replication()["connected_slaves"] == "0", "no replica", 0.02)
    with primary.asker() as asker:
        assert asker.ask("FAILOVER") == "ERR FAILOVER requires connected replicas."


class Adding:
    """Adds entries until it is refused, and remembers those that were acknowledged."""

    def __init__(self, node: Node) -> None:
        self._client = node.client()
        self.acknowledged: list[bytes] = []
        self.error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self.acknowledged.append(self._client.xadd("orders", {"n": 1}))  # type: ignore[arg-type]
        except redis.RedisError as error:
            self.error = str(error)

    def join(self) -> None:
        self._thread.join()


def test_a_replica_takes_over_without_a_loss_or_a_copy(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    writers = [Adding(primary) for _ in range(3)]
    with primary.asker() as blocked, primary.asker() as asker:
        blocked.send("XREAD", "BLOCK", "0", "STREAMS", "never", "$")
        until(lambda: all(len(each.acknowledged) > 20 for each in writers), "writes")
        assert asker.ask(f"FAILOVER TO {place_of(replica)}") == b"OK"
        assert blocked.read().startswith("UNBLOCKED ")
        for each in writers:
            each.join()
            assert "read only replica" in each.error
    until(lambda: role_of(replica) == "master", "the promotion", 0.02)
    wait_linked(primary)
    until(lambda: state_of(primary) == "no-failover", "the end", 0.02)
    acknowledged = {id_ for each in writers for id_ in each.acknowledged}
    entries = replica.client().xrange("orders")
    assert acknowledged <= {id_ for id_, _ in entries}  # type: ignore[union-attr]
    replica.client().xadd("orders", {"n": 2})
    wait_equal(primary, replica)
    assert replica.copies() == 0
    assert not replacement.kept_folders(primary.directory)
    replica.stop()
    primary.stop()
    refuse_differences(primary.directory, replica.directory)


def test_writes_are_held_until_a_failover_is_given_up(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    replica.freeze()
    with primary.asker() as asker, primary.asker() as other:
        assert asker.ask("SET a b") == b"OK"  # the replica has not this one
        for begun, ended in (
            ("FAILOVER TIMEOUT 600000", "FAILOVER ABORT"),
            ("FAILOVER TIMEOUT 300", "PING"),
        ):
            assert asker.ask(begun) == b"OK"
            other.send("SET", "c", begun)
            assert asker.ask("GET a") == b"b"
            if ended != "PING":
                assert state_of(primary) == "waiting-for-sync"
                assert asker.ask("FAILOVER") == "ERR FAILOVER already in progress."
                assert asker.ask("REPLICAOF h 1") == "ERR REPLICAOF not allowed while failing over."
                assert asker.ask("CLIENT UNPAUSE") == b"OK"
                assert asker.ask("GET c") is None
            asker.ask(ended)
            assert other.read() == b"OK"
            until(lambda: state_of(primary) == "no-failover", "the end", 0.02)
            assert role_of(primary) == "master"


def test_a_write_that_waits_for_replicas_when_the_role_is_lost_is_an_error(
    pair: tuple[Node, Node],
) -> None:
    primary, replica = pair
    with primary.asker() as asker:
        lasting = "replica-acks 1 replica-lease-ms 600000 replica-ack-timeout 600000"
        assert asker.ask(f"CONFIG SET {lasting}") == b"OK"
        until(lambda: asker.ask("SET a b") == b"OK", "writes", 0.02)
        replica.freeze()
        asker.send("SET", "a", "c")
        asker.send("REPLICAOF", *place_of(replica).split())
        assert asker.read().startswith("NOREPLICAS The write was done here")
        assert asker.read() == b"OK"


def test_a_forced_failover_keeps_what_the_replica_lacks(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    wait_equal(primary, replica)
    replica.freeze()
    with primary.asker() as asker:
        for n in range(5):  # more than the sockets take
            primary.client().set(f"large-{n}", b"x" * (6 << 20))
        assert asker.ask("SET late value") == b"OK"
        assert asker.ask(f"FAILOVER TO {place_of(replica)} FORCE TIMEOUT 100") == b"OK"
        until(lambda: state_of(primary) == "failover-in-progress", "the call", 0.02)
    replica.process.send_signal(signal.SIGCONT)
    until(lambda: role_of(replica) == "master", "the promotion", 0.02)
    wait_linked(primary)
    wait_equal(primary, replica)
    assert primary.client().get("late") is None
    assert len(replacement.kept_folders(primary.directory)) == 1


def test_a_primary_goes_on_if_the_replica_is_gone(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    replica.freeze()
    with primary.asker() as asker, primary.asker() as other:
        assert asker.ask("SET a b") == b"OK"
        assert asker.ask(f"FAILOVER TO {place_of(replica)} FORCE TIMEOUT 600") == b"OK"
        other.send("SET", "c", "d")
        replica.kill()
        until(lambda: state_of(primary) == "no-failover", "the end", 0.02)
        answer = other.read()  # held until then; or it was tried while the role was given up
        assert answer == b"OK" or answer.startswith("READONLY")
        assert role_of(primary) == "master"
        assert asker.ask("SET c d") == b"OK"


def test_a_replica_that_runs_a_script_is_promoted_behind_it(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    wait_equal(primary, replica)
    with replica.asker() as running, replica.asker() as asker:
        assert asker.ask("CONFIG SET busy-reply-threshold 1") == b"OK"
        running.send("EVAL", "while redis.call('exists', 'first') == 1 do end", "0")
        until(lambda: str(asker.ask("XLEN first")).startswith("BUSY"), "the script", 0.02)
        with primary.asker() as other:
            assert other.ask("FAILOVER") == b"OK"
        begun = ("slave", "failover-in-progress")
        until(lambda: (role_of(primary), state_of(primary)) == begun, "the call", 0.02)
        assert str(asker.ask("XLEN first")).startswith("BUSY")
        assert asker.ask("SCRIPT KILL") == b"OK"
        assert "Script killed" in running.read()
    until(lambda: {role_of(primary), role_of(replica)} == {"master", "slave"}, "two roles", 0.02)
    until(lambda: state_of(primary) == "no-failover", "the end", 0.02)
    if role_of(primary) == "slave":
        wait_linked(primary)
    wait_equal(primary, replica)
