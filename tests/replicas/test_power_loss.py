"""A primary that comes back from a power loss asks its replicas first whether they have more.

Its process is killed, the end of its log is cut off, and its directory says that the machine ran
another time: that is what a power loss leaves.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.engine.following import Source
from kvstream.layout.history import BRANCH_BYTES, History, Place
from kvstream.server.runtime.replication.recovery import FILE_NAME, Known, Recovery, is_ahead
from tests.patience import until
from tests.replicas.sentinels import TOLD_S, Sentinels, sentinel_program
from tests.replicas.servers import (
    Node,
    refuse_differences,
    replica_of,
    wait_equal,
    wait_linked,
)

QUICK = ("--durability", "no")
SUSPECT = "NOREPLICAS This server comes from a power loss"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """A primary and its replica, with equal rows; whatever the test adds is stopped, too."""
    started = [Node(tmp_path / "primary", *QUICK)]
    try:
        started[0].client().xadd("orders", {"n": 1})
        started.append(replica_of(started[0], tmp_path / "replica", *QUICK))
        started[0].client().xadd("orders", {"n": 2})
        wait_equal(*started)
        yield started
    finally:
        for node in started:
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.end()


def lose_power(node: Node, cut: int = 0) -> None:
    """Kill a server, and leave what a power loss leaves."""
    node.kill()
    notes = node.directory / FILE_NAME
    found = json.loads(notes.read_text())
    assert not found["closed"]
    notes.write_text(json.dumps({**found, "boot": "another"}))
    if cut:
        log = max(node.directory.glob("*.log"))
        os.truncate(log, log.stat().st_size - cut)


def again(nodes: list[Node], node: Node) -> Node:
    """Start a server again, at the port that it had."""
    nodes.append(Node(node.directory, *QUICK, port=node.port))
    return nodes[-1]


def state_of(node: Node) -> str:
    return node.replication()["replication_state"]


def test_a_primary_that_lost_rows_leaves_them_to_its_replica(nodes: list[Node]) -> None:
    primary, replica = nodes
    assert state_of(primary) == "primary"
    lose_power(primary, cut=1)
    primary = again(nodes, primary)
    until(lambda: "a power loss" in replica.replication()["master_link_error"], "both", 0.02)
    with primary.asker() as asker:
        assert asker.ask("CONFIG SET replica-recovery-timeout 0") == b"OK"
        for line in ("PING", "XLEN orders", "SET a b"):
            assert asker.ask(line).startswith(SUSPECT)
        assert state_of(primary) == "suspect"
    with replica.asker() as asker:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
    until(lambda: state_of(primary) == "replica", "that it follows", 0.02)
    assert Known.read(primary.directory).replicas == set()
    wait_linked(primary)
    wait_equal(primary, replica)
    assert primary.client().xlen("orders") == 2
    assert replica.copies() == 0
    replica.stop()
    primary.stop()
    refuse_differences(primary.directory, replica.directory)


@pytest.mark.timeout(2 * TOLD_S)
def test_sentinel_promotes_the_replica_that_has_more(nodes: list[Node], tmp_path: Path) -> None:
    primary, replica = nodes
    sentinels = Sentinels(sentinel_program(), tmp_path, primary.port, down_ms=4000)
    try:
        sentinels.wait_known(1)
        primary.client().xadd("orders", {"n": 3})
        wait_equal(primary, replica)
        lose_power(primary, cut=1)
        primary = again(nodes, primary)
        assert state_of(primary) != "primary"
        deadline = time.monotonic() + TOLD_S
        while state_of(primary) != "replica":
            assert time.monotonic() < deadline, "no Sentinel has promoted the replica"
            time.sleep(0.1)
        wait_linked(primary)
        wait_equal(primary, replica)
    finally:
        sentinels.stop()
    assert primary.client().xlen("orders") == 3
    assert replica.copies() == 0


def test_a_primary_that_lost_nothing_goes_on_when_its_replica_has_said_so(
    nodes: list[Node],
) -> None:
    primary, replica = nodes
    replica.freeze()
    lose_power(primary)
    primary = again(nodes, primary)
    with primary.asker() as asker:
        assert asker.ask("XLEN orders").startswith(SUSPECT)
        replica.process.send_signal(signal.SIGCONT)
        until(lambda: asker.ask("XLEN orders") == 2, "the primary", 0.02)
        assert asker.ask("SET a b") == b"OK"
    wait_linked(replica)
    wait_equal(primary, replica)
    assert primary.copies() == 0


def test_a_primary_waits_for_a_lost_replica_no_longer_than_it_is_told(nodes: list[Node]) -> None:
    primary, replica = nodes
    replica.kill()
    notes = primary.directory / FILE_NAME
    for ending in ("CONFIG SET replica-recovery-timeout 0", "REPLICAOF NO ONE"):
        lose_power(primary)
        primary = again(nodes, primary)
        with primary.asker() as asker:
            assert asker.ask("XLEN orders").startswith(SUSPECT)
            assert asker.ask(ending) == b"OK"
            until(lambda asker=asker: asker.ask("XLEN orders") == 2, "the primary", 0.02)  # type: ignore[misc]
            until(lambda: json.loads(notes.read_text())["boot"] != "another", "the notes", 0.02)


def test_a_server_that_stopped_in_good_order_is_not_suspect(nodes: list[Node]) -> None:
    primary, replica = nodes
    primary.stop()
    known = Known.read(primary.directory)
    assert known.closed
    assert known.replicas == {Source("127.0.0.1", replica.port)}
    notes = primary.directory / FILE_NAME
    notes.write_text(json.dumps({**json.loads(notes.read_text()), "boot": "another"}))
    primary = again(nodes, primary)
    assert state_of(primary) == "primary"
    assert not Known.read(primary.directory).closed


def test_a_replica_without_a_link_for_too_long_is_not_to_be_promoted(nodes: list[Node]) -> None:
    primary, replica = nodes
    assert replica.replication()["slave_priority"] == "100"
    primary.kill()
    with replica.asker() as asker:
        assert asker.ask("CONFIG SET replica-validity 1") == b"OK"
        until(lambda: replica.replication()["slave_priority"] == "0", "the priority", 0.05)
        assert state_of(replica) == "behind"
        assert asker.ask("XLEN orders") == 2
        assert asker.ask("CONFIG SET replica-validity 0") == b"OK"
    assert replica.replication()["slave_priority"] == "100"


OWN, FORMER, OTHER = (bytes([n]) * BRANCH_BYTES for n in range(3))


@pytest.mark.parametrize(
    ("place", "ahead"),
    [
        (Place(0, bytes(BRANCH_BYTES), 0), False),
        (Place(3, OWN, 90), False),
        (Place(3, OWN, 100), False),
        (Place(3, OWN, 101), True),
        (Place(2, FORMER, 50), False),
        (Place(2, FORMER, 79), False),
        (Place(2, FORMER, 80), True),
        (Place(2, OTHER, 500), False),
        (Place(3, OTHER, 50), True),
        (Place(4, OTHER, 50), True),
    ],
)
def test_a_replica_is_ahead_with_more_rows_or_a_later_history(place: Place, ahead: bool) -> None:
    history = History(3, OWN, 80, 80, 80, (Place(2, FORMER, 79),))
    assert is_ahead(place, history, 100) is ahead


def test_a_recovery_ends_when_all_have_spoken_or_time_is_over_and_nobody_has_more() -> None:
    first, second = Source("a", 1), Source("b", 2)
    recovery = Recovery(frozenset((first, second)), 0.0)
    recovery.hear(first, ahead=False)
    assert not recovery.is_over(1.0, 30.0)
    assert recovery.is_over(30.0, 30.0)
    recovery.hear(second, ahead=False)
    assert recovery.is_over(1.0, 30.0)
    recovery.hear(second, ahead=True)
    assert not recovery.is_over(100.0, 30.0)
