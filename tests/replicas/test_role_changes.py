"""Changes of the role with replies that wait, and changes that fail."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvstream.remote.server_errors import NotPrimary, error_of
from tests.patience import until
from tests.replicas.servers import Node, refuse_differences, replica_of, wait_equal
from tests.server.asking import Failure

PATIENT = "replica-lease-ms 60000 replica-ack-timeout 60000"
"""Settings with which a busy machine is no lost replica."""
DONE_HERE = "NOREPLICAS The write was done here"


@pytest.fixture
def durability() -> str:
    return "everysec"


@pytest.fixture
def pair(tmp_path: Path, durability: str) -> Iterator[tuple[Node, Node]]:
    """A primary whose replies wait for its replica."""
    primary = Node(tmp_path / "primary", "--durability", durability)
    try:
        replica = replica_of(primary, tmp_path / "replica")
    except BaseException:
        primary.end()
        raise
    try:
        with primary.asker() as asker:
            assert asker.ask(f"CONFIG SET replica-acks 1 {PATIENT}") == b"OK"
            until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.02)
        yield primary, replica
    finally:
        primary.end()
        replica.end()


@pytest.mark.parametrize(("durability", "degrades"), [("everysec", "yes"), ("always", "no")])
def test_a_write_in_the_turn_of_a_role_change_is_not_acknowledged(
    pair: tuple[Node, Node], degrades: str
) -> None:
    primary, replica = pair
    with primary.asker() as asker:
        assert asker.ask(f"CONFIG SET replica-acks-degrade {degrades}") == b"OK"
        replica.process.send_signal(signal.SIGSTOP)
        asker.send_bytes(b"XADD late 1-1 n 1\r\nREPLICAOF 127.0.0.1 %d\r\n" % replica.port)
        assert asker.read().startswith(DONE_HERE)
        assert asker.read() == b"OK"


def test_a_ping_does_not_wait_for_the_writes_of_others(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    with primary.asker() as writer, primary.asker() as other:
        replica.process.send_signal(signal.SIGSTOP)
        writer.send_bytes(b"XADD late 1-1 n 1\r\nPING\r\n")
        until(lambda: "cmdstat_xadd" in primary.information("commandstats"), "the write")
        for words, reply in (("PING", b"PONG"), ("ECHO a", b"a"), ("PUBLISH c m", 0)):
            assert other.ask(words) == reply
        assert b"role:master" in other.ask("INFO replication")
        replica.process.send_signal(signal.SIGCONT)
        assert [writer.read(), writer.read()] == [b"1-1", b"PONG"]


def test_an_exec_behind_a_role_change_names_the_role(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    with primary.asker() as asker, primary.asker() as other:
        assert asker.ask("MULTI") == b"OK"
        assert asker.ask("SET a c") == b"QUEUED"
        assert other.ask(f"REPLICAOF 127.0.0.1 {replica.port}") == b"OK"
        until(lambda: primary.replication()["role"] == "slave", "the role", 0.02)
        refusal = asker.ask("EXEC")
    code, _, text = refusal.partition(" ")
    assert code == "EXECABORT"
    assert isinstance(error_of(redis.exceptions.ExecAbortError(text)), NotPrimary)


@pytest.mark.parametrize("durability", ["always"])
def test_reads_do_not_wait_for_what_replicas_did_not_confirm(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    with primary.asker() as asker:
        replica.process.send_signal(signal.SIGSTOP)
        assert asker.ask("CONFIG SET replica-ack-timeout 300") == b"OK"
        assert asker.ask("XADD late 1-1 n 1").startswith(DONE_HERE)
        assert asker.ask("CONFIG SET replica-ack-timeout 60000") == b"OK"
        assert asker.ask("XLEN late") == 1  # it was asked again, and refused after a minute


def test_a_replica_comes_back_while_a_write_waits_for_it(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    with primary.asker() as asker, primary.asker() as other:
        replica.process.send_signal(signal.SIGSTOP)
        asker.send("XADD", "orders", "1-1", "n", "1")
        assert other.ask("CLIENT ID") > 0
        assert other.ask("CLIENT KILL TYPE replica") == 1
        replica.process.send_signal(signal.SIGCONT)
        assert asker.read() == b"1-1"
        assert replica.client().xlen("orders") == 1


def refuse_roles(node: Node) -> Path:
    """Let a server fail to write its role, as on a full disk; return what is in the way."""
    role = node.directory / "REPLICA"
    role.unlink(missing_ok=True)
    (role / "in the way").mkdir(parents=True)
    return role


def test_a_replica_whose_promotion_fails_follows_as_before(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    role = refuse_roles(replica)
    with primary.asker() as asker, replica.asker() as other:
        assert other.ask("REPLICAOF NO ONE") == b"OK"
        # Confirmed by the replica, which makes its link anew:
        until(lambda: asker.ask("XADD orders 1-1 n 1") == b"1-1", "the link", 0.02)
        assert other.ask("XADD orders 2-1 n 1").startswith("READONLY")
        assert other.ask("XLEN orders") == 1
        (role / "in the way").rmdir()
        role.rmdir()
        assert other.ask("REPLICAOF NO ONE") == b"OK"
        until(lambda: other.ask("XADD orders 2-1 n 1") == b"2-1", "the promotion", 0.02)


def test_a_failover_ends_if_the_role_cannot_be_kept(pair: tuple[Node, Node]) -> None:
    primary, replica = pair
    refuse_roles(primary)
    with primary.asker() as asker:
        assert asker.ask("FAILOVER") == b"OK"
        until(
            lambda: primary.replication()["master_failover_state"] == "no-failover", "its end", 0.02
        )
        assert asker.ask("XADD orders 1-1 n 1") == b"1-1"
    wait_equal(primary, replica)
    primary.end()
    replica.end()
    (primary.directory / "REPLICA" / "in the way").rmdir()
    (primary.directory / "REPLICA").rmdir()
    refuse_differences(primary.directory, replica.directory)
