"""``durability="replica"``: a write on a server returns once replicas have it."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

import kvstream
from kvstream import InvalidArgument, Jobs, Queue, Store, UnknownOutcome
from kvstream.remote.connection import Connection, Link, Words
from kvstream.remote.engine import RemoteEngine
from tests.patience import until
from tests.peers import PeerProcess
from tests.replicas.servers import Node, refuse_differences, replica_of


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A primary and its replica, which are equal at the end."""
    primary = Node(tmp_path / "one")
    replica = replica_of(primary, tmp_path / "two")
    yield primary, replica
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)


def url_of(node: Node) -> str:
    return f"redis://127.0.0.1:{node.port}"


def test_a_write_is_on_the_replica_when_it_returns(nodes: tuple[Node, Node]) -> None:
    primary, replica = nodes
    with (
        kvstream.open(url_of(primary), durability="replica") as store,
        kvstream.open(url_of(replica)) as copy,
    ):
        stream, of_copy = store.stream("s"), copy.stream("s")
        store.stream("first").add_many({"n": number} for number in range(30))
        with primary.asker() as one, replica.asker() as two:  # the first look at these rows
            assert one.ask("DEBUG DIGEST") == two.ask("DEBUG DIGEST")
        for number in range(1, 51):
            stream.add({"n": number})
            assert len(of_copy) == number
        stream.add_many({"n": number} for number in range(50))
        assert len(of_copy) == 100
        with store.transaction():
            stream.add({"n": 1})
            stream.add({"n": 2})
        assert len(of_copy) == 102
        group = stream.create_group("g", start="0")
        taken = group.consumer("c").read(count=102)
        assert of_copy.group("g").info().pending == 102
        group.ack(taken)
        assert of_copy.group("g").info().pending == 0
        queue = Queue(store, "q")
        queue.put({"n": 1})
        queue.get()[0].ack()
        assert Queue(copy, "q").info().leased == 0
        with Jobs(url_of(primary), durability="replica") as jobs:
            handle = jobs.task(_nothing).enqueue()
            with Jobs(url_of(replica)) as others:
                others.task(_nothing)
                assert others.handle(handle.id).status == "queued"


def test_so_it_is_for_tasks_of_asyncio(nodes: tuple[Node, Node]) -> None:
    primary, replica = nodes

    async def run() -> None:
        async with (
            kvstream.aio.open(url_of(primary), durability="replica") as store,
            kvstream.aio.open(url_of(replica)) as copy,
        ):
            await asyncio.gather(*(store.stream("s").add({"n": n}) for n in range(50)))
            assert await copy.stream("s").length() == 50

    asyncio.run(run())


def test_a_write_that_no_replica_confirms_stays_and_says_so(nodes: tuple[Node, Node]) -> None:
    primary, replica = nodes
    timed = f"{url_of(primary)}?socket_timeout=1"  # so that WAIT takes half a second
    with kvstream.open(timed, durability="replica") as store:
        stream = store.stream("s")
        replica.freeze()
        try:
            with pytest.raises(UnknownOutcome, match="0 of 1 replicas have confirmed it within"):
                stream.add({"n": 1})
            with pytest.raises(UnknownOutcome, match="was done at"), store.transaction():
                stream.add({"n": 2})
        finally:
            replica.process.send_signal(signal.SIGCONT)
        assert len(stream) == 2
    with kvstream.open(url_of(primary), durability="replica") as store:
        store.stream("s").add({"n": 3})
    with (
        kvstream.open(timed, durability="replica", replicas=2) as store,
        pytest.raises(UnknownOutcome, match="1 of 2 replicas"),
    ):
        store.stream("s").add({"n": 4})


def test_an_interrupt_of_a_read_does_not_end_its_wait_for_replicas(
    nodes: tuple[Node, Node],
) -> None:
    interrupted: list[bool] = []

    class Watched(Link):
        def ask_all(self, commands: Sequence[Words]) -> list[Any]:
            interrupted.append(self in engine.connection()._blocked)
            return super().ask_all(commands)

    class Watching(Connection):
        _link = Watched

    class Engine(RemoteEngine):
        connection_type = Watching

    engine = Engine(url_of(nodes[0]), replicas=1)
    with Store(engine) as store:
        stream = store.stream("s")
        group = stream.create_group("g")
        stream.add({"n": 1})
        assert len(group.consumer("c").read(count=1, block=60)) == 1
    assert interrupted
    assert not any(interrupted)


def test_redis_has_it_too(tmp_path: Path) -> None:
    quick = ("--repl-diskless-sync-delay", "0")
    primary = PeerProcess("redis-7.0", tmp_path, *quick)
    replica = PeerProcess("redis-7.0", tmp_path, "--replicaof", f"127.0.0.1 {primary.port}")
    try:
        until(lambda: _has_link(replica.port), "the link", 0.05)
        url = f"redis://127.0.0.1:{primary.port}"
        with (
            kvstream.open(url, durability="replica") as store,
            kvstream.open(f"redis://127.0.0.1:{replica.port}") as copy,
        ):
            for number in range(1, 11):
                store.stream("s").add({"n": number})
                assert len(copy.stream("s")) == number
            replica.stop()
            with pytest.raises(
                UnknownOutcome, match="0 of 1 replicas have confirmed it within 2 s"
            ):
                store.stream("s").add({"n": 11})
    finally:
        replica.stop()
        primary.stop()


def _has_link(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            return bool(client.info("replication")["master_link_status"] == "up")
    except redis.RedisError:
        return False


def test_a_directory_has_no_replicas(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="a directory has no replicas"):
        kvstream.open(tmp_path, durability="replica")
    with pytest.raises(InvalidArgument, match="replicas is for"):
        kvstream.open("redis://127.0.0.1:1", replicas=1)
    with pytest.raises(InvalidArgument, match="replicas must be at least 1"):
        kvstream.open("redis://127.0.0.1:1", durability="replica", replicas=0)
    with pytest.raises(InvalidArgument, match="durability must be one of"):
        Store.open(tmp_path, durability="replica")  # type: ignore[call-overload]


def _nothing() -> None:
    """Do nothing, as a job."""
