"""Servers with one archive: the primary has it, a replica takes its fence when it is promoted."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstream
from kvstream import Store
from kvstream.archive.objects import open_objects
from kvstream.archive.verify import verify
from tests.patience import until
from tests.replicas.conftest import sum_of
from tests.replicas.servers import Node, refuse_differences, wait_equal, wait_linked

Start = Callable[..., Node]
TAKEN = "has taken over the archive"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Starts servers that share one archive, by the names of their folders."""
    started: list[Node] = []

    def start_it(name: str, *arguments: str, port: int = 0) -> Node:
        archive = ("--archive", url, "--archive-interval", "100ms")
        started.append(Node(tmp_path / name, *archive, *arguments, port=port))
        return started[-1]

    yield start_it
    for node in started:
        if node.process.poll() is None:
            node.end()


@pytest.fixture
def pair(start: Start) -> tuple[Node, Node]:
    primary = start("primary")
    primary.client().xadd("orders", {"n": 1})
    replica = start("replica", "--replicaof", f"127.0.0.1:{primary.port}")
    wait_linked(replica)
    wait_equal(primary, replica)
    return primary, replica


def archive_of(node: Node) -> str:
    return node.information("persistence")["archive_state"]


def test_a_replica_does_not_take_the_archive_over_when_it_starts(tmp_path: Path, url: str) -> None:
    with pytest.raises(AssertionError, match="leave take-over or replicaof out"):
        Node(tmp_path / "one", "--archive", url, "--take-over", "--replicaof", "127.0.0.1:1")


def promote(node: Node) -> None:
    with node.asker() as asker:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        until(lambda: asker.ask("XADD orders * n 2") is not None, "writes", 0.02)
    until(lambda: archive_of(node) == "follows", "the fence", 0.02)


def test_a_promoted_replica_fences_the_old_primary_by_the_archive(
    pair: tuple[Node, Node], start: Start, url: str, tmp_path: Path
) -> None:
    primary, replica = pair
    assert (archive_of(primary), archive_of(replica)) == ("follows", "asleep")
    promote(replica)
    with primary.asker() as asker:
        until(lambda: TAKEN in str(asker.ask("XADD orders * n 3")), "the refusal", 0.05)
        assert primary.replication()["replication_state"] == "fenced"
        assert archive_of(primary) == "taken"
        assert asker.ask(f"REPLICAOF 127.0.0.1 {replica.port}") == b"OK"
        wait_linked(primary)
        assert asker.ask("SET a b").startswith("READONLY")
    replica.client().xadd("orders", {"n": 4})
    wait_equal(primary, replica)
    assert archive_of(primary) == "asleep"
    for node in (primary, replica):
        node.stop()
    refuse_differences(primary.directory, replica.directory)
    replica = start("replica")
    assert (archive_of(replica), replica.replication()["role"]) == ("follows", "master")
    replica.stop()
    assert verify(open_objects(url)).faults == []
    kvstream.restore(url, tmp_path / "restored")
    with (
        Store.open(replica.directory, read_only=True) as last,
        Store.open(tmp_path / "restored", read_only=True) as restored,
    ):
        assert sum_of(last) == sum_of(restored)
        assert restored.check() == []


def test_a_replaced_primary_starts_without_writes_until_it_is_told_its_role(
    pair: tuple[Node, Node], start: Start
) -> None:
    primary, replica = pair
    primary.kill()
    promote(replica)
    primary = start("primary", port=primary.port)
    assert primary.replication()["replication_state"] == "fenced"
    assert archive_of(primary) == "taken"
    with primary.asker() as asker:
        assert "was continued by another owner" in asker.ask("SET a b")
        assert asker.ask("XLEN orders") == 1
        assert asker.ask(f"REPLICAOF 127.0.0.1 {replica.port}") == b"OK"
    wait_linked(primary)
    wait_equal(primary, replica)
    assert primary.client().xlen("orders") == 2
    with primary.asker() as asker, replica.asker() as other:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        until(lambda: archive_of(primary) == "follows", "the fence", 0.02)
        until(lambda: TAKEN in str(other.ask("SET a b")), "the refusal", 0.05)
        assert other.ask("REPLICAOF NO ONE") == b"OK"  # somebody decides otherwise
        until(lambda: archive_of(replica) == "follows", "the fence", 0.02)
        until(lambda: other.ask("SET a b") == b"OK", "writes", 0.02)
