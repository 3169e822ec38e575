"""A pair whose processes die, whose disks lose power or are full, and that is slow.

Afterwards both have the same rows, and what was acknowledged is there. KVSTREAM_CRASH_ROUNDS sets
how often.
"""

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest
import redis

from kvstream.storage import replacement
from tests.crash.clients import connected
from tests.crash.rounds import rounds
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library
from tests.patience import until
from tests.ports import free_port
from tests.replicas.load import Level, Load
from tests.replicas.servers import Node, refuse_differences, wait_equal, wait_linked

__all__ = ["fault_library"]

COPY_ENTRIES = 150
COPY_BYTES = 100_000
"""Bytes of each entry: what does not compress is copied for a while."""


class Side(StrEnum):
    """Whose machine fails."""

    PRIMARY = "primary"
    REPLICA = "replica"
    BOTH = "both"


class Pair:
    """A primary and a replica on disks that can fail, over many lives of both."""

    def __init__(self, disks: tuple[FaultyDisk, FaultyDisk], acks: int = 0) -> None:
        self._acks = acks
        self.disks = dict(zip((free_port(), free_port()), disks, strict=True))
        self.primary_port, self.replica_port = self.disks
        self.nodes: dict[int, Node] = {}
        self.start(self.primary_port)
        self.start(self.replica_port)
        wait_linked(self.replica)

    @property
    def primary(self) -> Node:
        return self.nodes[self.primary_port]

    @property
    def replica(self) -> Node:
        return self.nodes[self.replica_port]

    def start(self, port: int) -> None:
        """Start a server, in the role that its store has."""
        disk = self.disks[port]
        words = ["--replicaof", f"127.0.0.1:{self.primary_port}"]
        node = Node(
            disk.root / "store",
            *("--durability", "no" if self._acks else "always"),
            *(words if port == self.replica_port else ()),
            port=port,
            environment=disk.environment(),
        )
        node.client().config_set("replica-acks", self._acks)
        self.nodes[port] = node

    def cut_power(self, *ports: int) -> None:
        """Let machines lose power; what was not synced is gone."""
        for port in ports:
            self.nodes[port].kill()
        for port in ports:
            self.disks[port].cut_power()
            self.disks[port].forget()

    def promote(self) -> None:
        """Let the replica take the place of the primary, as Sentinel does."""
        assert self.replica.client().replicaof("NO", "ONE")
        self.primary_port, self.replica_port = self.replica_port, self.primary_port

    def follow(self) -> None:
        """Tell the former primary that it is a replica now."""
        self.replica.client().replicaof("127.0.0.1", str(self.primary_port))

    def end(self) -> None:
        """Stop both, and compare them."""
        wait_linked(self.replica)
        wait_equal(self.primary, self.replica)
        self.primary.stop()
        self.replica.stop()
        refuse_differences(*(disk.root / "store" for disk in self.disks.values()))

    def close(self) -> None:
        """End what a failed test has left."""
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGKILL)
                node.process.communicate()


@pytest.fixture
def disks(fault_library: Path, tmp_path: Path) -> tuple[FaultyDisk, FaultyDisk]:
    """The disks of two machines."""
    made = []
    for name in ("one", "two"):
        (tmp_path / f"notes-{name}").mkdir()
        made.append(FaultyDisk(fault_library, tmp_path / name, tmp_path / f"notes-{name}"))
    return made[0], made[1]


@pytest.fixture
def closings() -> Iterator[list[Pair]]:
    """The pairs of a test, whose servers end with it."""
    made: list[Pair] = []
    yield made
    for pair in made:
        pair.close()


def seed() -> random.Random:
    base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30))
    print(f"seed {base} (repeat with KVSTREAM_CRASH_SEED={base})")
    return random.Random(base)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", Side)
def test_power_cuts(disks: tuple[FaultyDisk, FaultyDisk], closings: list[Pair], side: Side) -> None:
    """A primary that was cut off is replaced, and its replica had each acknowledged write."""
    chance, fails_over = seed(), side is Side.PRIMARY
    pair = Pair(disks, acks=int(fails_over))
    closings.append(pair)
    load = Load(Level.ACKS, lambda: pair.primary_port, is_kvstream=True)
    load.begin(pair.primary_port)
    for _ in range(rounds(2)):
        time.sleep(chance.uniform(0.1, 0.8))
        former = pair.primary_port
        cut = {
            Side.PRIMARY: [pair.primary_port],
            Side.REPLICA: [pair.replica_port],
            Side.BOTH: [pair.primary_port, pair.replica_port],
        }[side]
        pair.cut_power(*cut)
        if fails_over:
            pair.promote()
        for port in cut:
            pair.start(port)
        if fails_over:
            assert pair.replica_port == former
            pair.follow()
        wait_linked(pair.replica)
    time.sleep(0.2)
    load.end()
    total = load.find_all(pair.primary_port)
    assert total.confirmed > 0
    assert (total.lost, total.undone, total.invented) == (0, 0, [])
    pair.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", [Side.PRIMARY, Side.REPLICA])
def test_a_full_disk_of_either_side_ends(
    disks: tuple[FaultyDisk, FaultyDisk], closings: list[Pair], side: Side
) -> None:
    """Nothing is copied anew once there is room: the replica goes on where it was."""
    chance = seed()
    pair = Pair(disks)
    closings.append(pair)
    port = pair.primary_port if side is Side.PRIMARY else pair.replica_port
    load = Load(Level.ACKS, lambda: pair.primary_port, is_kvstream=True)
    load.begin(pair.primary_port)
    for _ in range(rounds(1)):
        time.sleep(chance.uniform(0.1, 0.5))
        pair.disks[port].fail("write", errno.ENOSPC, ".log")
        if side is Side.PRIMARY:
            until(lambda: _is_refused(pair.primary_port), "the refusal", 0.05)
        else:
            until(lambda: not _is_linked(pair.replica), "the end of the link", 0.05)
        pair.disks[port].heal()
        wait_linked(pair.replica)
        until(lambda: not _is_refused(pair.primary_port), "writes", 0.05)
    load.end()
    total = load.find_all(pair.primary_port)
    assert (total.lost, total.undone, total.invented) == (0, 0, [])
    assert pair.primary.copies() == 1
    wait_equal(pair.primary, pair.replica)
    pair.primary.stop(warned="disk")
    pair.replica.stop(warned="disk")
    refuse_differences(*(disk.root / "store" for disk in disks))


def _is_refused(port: int) -> bool:
    try:
        with connected(port) as client:
            client.set("probe", 1)
    except redis.ResponseError:
        return True
    return False


def _is_linked(node: Node) -> bool:
    return node.replication()["master_link_status"] == "up"


@pytest.mark.timeout(3600)
def test_copies_that_deaths_interrupt(
    disks: tuple[FaultyDisk, FaultyDisk], closings: list[Pair]
) -> None:
    """Each side is killed while the replica takes its first copy, and once its disk is full."""
    chance = seed()
    pair = Pair(disks)
    closings.append(pair)
    writer = pair.primary.client()
    for _ in range(COPY_ENTRIES):
        writer.xadd("large", {"text": chance.randbytes(COPY_BYTES)})
    for number in range(rounds(2)):
        pair.replica.stop()
        shutil.rmtree(pair.replica.directory)
        if number % 3 == 2:
            pair.disks[pair.replica_port].fail("write", errno.ENOSPC, ".sst.partial")
        pair.start(pair.replica_port)
        incoming = pair.replica.directory / replacement.INCOMING
        until(lambda: incoming.exists() or _is_linked(pair.replica), "the copy", 0.001)  # noqa: B023
        time.sleep(chance.uniform(0, 0.2))
        if number % 3 == 2:
            pair.disks[pair.replica_port].heal()
        else:
            port = (pair.primary_port, pair.replica_port)[number % 3]
            pair.nodes[port].kill()
            pair.start(port)
        wait_linked(pair.replica)
        pair.primary.client().xadd("large", {"round": number})
    pair.end()


@pytest.mark.timeout(3600)
def test_a_slow_replica_that_loses_the_log_gets_one_copy(
    disks: tuple[FaultyDisk, FaultyDisk], closings: list[Pair]
) -> None:
    """It is stopped until the logs that it needs are gone, and goes on over the same link."""
    pair = Pair(disks)
    closings.append(pair)
    writer = pair.primary.client()
    writer.config_set("repl-backlog-size", "16kb")
    kept = pair.primary.directory / "archive"
    for number in range(1, rounds(1) + 1):
        pair.replica.process.send_signal(signal.SIGSTOP)
        for _ in range(4):
            for _ in range(20):
                writer.xadd("orders", {"text": os.urandom(COPY_BYTES)})
            writer.bgrewriteaof()
            until(lambda: pair.primary.information("persistence")["aof_rewrite_in_progress"] != "1")
        until(lambda: sum(log.stat().st_size for log in kept.glob("*.log")) < 16 << 10, "trimmed")
        pair.replica.process.send_signal(signal.SIGCONT)
        until(lambda: pair.primary.copies() == number + 1, "the copy", 0.05)  # noqa: B023
        wait_linked(pair.replica)
        wait_equal(pair.primary, pair.replica)
        assert pair.primary.copies() == number + 1
    pair.end()
