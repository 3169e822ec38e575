"""The library follows a failover: one pair with Sentinels, on which several failovers run."""

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner
from redis.sentinel import Sentinel

import kvstream
from kvstream import (
    Conflict,
    Entry,
    Jobs,
    Queue,
    ServerUnavailable,
    Store,
    StoreClosed,
    UnknownOutcome,
)
from kvstream.cli.app import main
from kvstream.jobs import Worker
from kvstream.spark.read.batch import BatchReader
from kvstream.spark.read.partitions import TaskPartition
from kvstream.spark.read.servers import Server
from tests.clients.test_node import FOLDER
from tests.clients.test_node import node as node_program
from tests.patience import PATIENCE_S, until
from tests.replicas.sentinels import NAME, TOLD_S, Sentinels, sentinel_program
from tests.replicas.servers import Node, refuse_differences, replica_of, wait_equal, wait_linked

__all__ = ["node_program"]

DOWN_MS = 1500
AGAIN_S = 30.0
"""When a failover is asked for again: a Sentinel gives one up after some seconds."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return once ``condition`` holds: Sentinels take long on a busy machine."""
    deadline = time.monotonic() + TOLD_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def confirm_all(node: Node) -> None:
    """Acknowledge no write before the replica has it: a failover loses none then."""
    with node.client() as client:
        client.config_set("replica-acks", 1)


class Pair:
    """A primary and its replica, watched by Sentinels."""

    def __init__(self, place: Path) -> None:
        program = sentinel_program()
        primary = Node(place / "one")
        self.nodes = [primary, replica_of(primary, place / "two")]
        for node in self.nodes:
            confirm_all(node)
        self.sentinels = Sentinels(program, place, primary.port, DOWN_MS)
        self.sentinels.hurry()
        self.sentinels.wait_known(1)
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels.ports)
        self.url = f"redis+sentinel://{hosts}/{NAME}?wait_s={TOLD_S:g}"

    def is_primary(self, node: Node) -> bool:
        """Return whether the Sentinels name a node, and it says the same."""
        try:
            with node.client(socket_timeout=5) as client:
                return self.sentinels.primary() == node.port and client.role()[0] == b"master"
        except redis.RedisError:
            return False

    def fail_over(self) -> None:
        """Have the Sentinels exchange the roles, and wait until they have."""
        old, new = self.nodes
        self.sentinels.wait_known(1)
        wait_linked(new)
        asked = -AGAIN_S

        def is_done() -> bool:
            nonlocal asked
            if self.is_primary(new):
                return True
            if time.monotonic() - asked > AGAIN_S and self._begin():
                asked = time.monotonic()
            return False

        wait_until(is_done, "the failover")
        self.nodes = [new, old]

    def _begin(self) -> bool:
        """Ask a Sentinel for a failover; it refuses while it does not know the replica well."""
        with redis.Redis(port=self.sentinels.ports[0]) as client:
            try:
                return bool(client.execute_command("SENTINEL", "FAILOVER", NAME))
            except redis.ResponseError:
                return False

    def replace_killed(self) -> None:
        """Kill the primary, and start it again once the other one has its place."""
        wait_linked(self.nodes[1])
        self.nodes[0].kill()
        self.take_over()

    def take_over(self) -> None:
        """Wait until the other one has the place of a killed primary, and start that again."""
        old, new = self.nodes
        wait_until(lambda: self.is_primary(new), "the promotion")
        self.nodes = [new, old.again()]
        confirm_all(self.nodes[1])

    def settle(self) -> None:
        """Wait until both are what the Sentinels say, and equal."""
        former = self.nodes[1]
        wait_until(lambda: _is_replica(former), "its new role")
        wait_linked(self.nodes[1])
        wait_equal(*self.nodes)

    def close(self) -> None:
        self.sentinels.stop()
        for node in self.nodes:
            node.end()


def _is_replica(node: Node) -> bool:
    try:
        return node.replication()["role"] == "slave"
    except OSError:  # the change of role ends connections
        return False


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    yield made
    made.settle()
    made.close()
    refuse_differences(*(node.directory for node in made.nodes))


class Adding:
    """Threads that add numbered entries until they are stopped."""

    def __init__(self, store: Store, key: str, threads: int = 3) -> None:
        self._store, self._key, self._stops = store, key, threading.Event()
        self.added: list[str] = []
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        count = 0
        try:
            while not self._stops.is_set():
                count += 1
                self._store.stream(self._key).add({"v": f"{number}-{count}"})
                self.added.append(f"{number}-{count}")
                time.sleep(0.002)
        except BaseException as error:
            self.failures.append(error)

    def stop(self) -> None:
        """End them once each has added something more."""
        reached = len(self.added) + 10
        wait_until(lambda: len(self.added) > reached or self.failures, "an add")
        self._stops.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures


def values(store: Store, key: str) -> Counter[str]:
    """Return how often each value is in a stream."""
    return Counter(entry.fields[b"v"].decode() for entry in store.stream(key))


class Reading:
    """A call that waits in a thread for entries, and what it has got."""

    def __init__(self, read: Callable[[], Sequence[Entry]]) -> None:
        self._read = read
        self.found: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.found = [entry.fields[b"v"] for entry in self._read()]

    def end(self) -> list[bytes]:
        """Return what it has got, once it has."""
        self._thread.join(PATIENCE_S)
        return self.found


def test_an_exchange_of_roles_loses_and_doubles_nothing(pair: Pair) -> None:
    with kvstream.open(pair.url) as store:
        group = store.stream("read").create_group("g", start="0", exist_ok=True)
        of_group = Reading(lambda: group.consumer("c").read(block=TOLD_S))
        plain = Reading(lambda: store.stream("plain").read("$", block=TOLD_S))
        adding = Adding(store, "planned")
        for number in range(20):
            store.stream(f"key-{number}").add({"n": number})
        keys = store._engine.keys(0, b"key-*")
        first = next(keys)
        pair.fail_over()
        adding.stop()
        assert sorted([first, *keys]) == sorted(b"key-%d" % number for number in range(20))
        store.stream("read").add({"v": "one"})
        store.stream("plain").add({"v": "two"})
        assert of_group.end() + plain.end() == [b"one", b"two"]
        wait_until(lambda: _commit(store), "a transaction")
        assert len(store.stream("read")) == 2
        counts = values(store, "planned")
        assert max(counts.values()) == 1
        assert set(adding.added) == set(counts)
        pair.settle()
        assert store.stats()["replication"]["role"] == "master"


def _commit(store: Store) -> bool:
    """Add an entry in a transaction; return False if it is to be run again."""
    try:
        with store.transaction():
            store.stream("read").add({"v": "three"})
    except Conflict:
        return False
    return True


def test_a_killed_primary_is_followed_and_each_add_is_there_once(pair: Pair) -> None:
    for node in pair.nodes:  # the client alone waits for the replica
        node.client().config_set("replica-acks", 0)
    with kvstream.open(pair.url, durability="replica") as store:
        adding = Adding(store, "killed")
        until(lambda: len(adding.added) > 50, "some adds", 0.05)
        queue = Queue(store, "jobs", lease=TOLD_S)
        queue.put({"n": 1})
        (message,) = queue.get()
        pair.replace_killed()
        adding.stop()
        message.ack()
        assert queue.info().leased == 0
        counts = values(store, "killed")
        assert max(counts.values()) == 1
        assert set(adding.added) == set(counts)
    pair.settle()


def test_tasks_of_asyncio_go_on(pair: Pair) -> None:
    async def run() -> tuple[list[str], Counter[str], list[bytes]]:
        added: list[str] = []
        over = asyncio.Event()

        async def add(number: int) -> None:
            count = 0
            while not over.is_set():
                count += 1
                await store.stream("tasks").add({"v": f"{number}-{count}"})
                added.append(f"{number}-{count}")

        async with kvstream.aio.open(pair.url) as store:
            waited = asyncio.create_task(store.stream("late").read("$", block=TOLD_S))
            adders = [asyncio.create_task(add(number)) for number in range(3)]
            await asyncio.to_thread(pair.fail_over)
            reached = len(added) + 10
            async with asyncio.timeout(TOLD_S):
                while len(added) < reached:
                    await asyncio.sleep(0.05)
                over.set()
                await asyncio.gather(*adders)
            await store.stream("late").add({"v": "late"})
            found = [entry.fields[b"v"] for entry in await waited]
            entries = [entry async for entry in store.stream("tasks").scan()]
            counts = Counter(entry.fields[b"v"].decode() for entry in entries)
        return added, counts, found

    added, counts, found = asyncio.run(run())
    assert found == [b"late"]
    assert max(counts.values()) == 1
    assert set(added) == set(counts)
    pair.settle()


def test_a_worker_runs_each_job(pair: Pair) -> None:
    done: list[int] = []
    with Jobs(pair.url) as jobs:

        @jobs.task(retries=5)
        def note(number: int) -> int:
            done.append(number)
            time.sleep(0.02)
            return number

        stop = threading.Event()
        worker = threading.Thread(target=Worker(jobs, concurrency=2).run, args=(stop,))
        worker.start()
        handles = [note.enqueue(number) for number in range(50)]
        pair.fail_over()
        handles += [note.enqueue(number) for number in range(50, 70)]
        assert [handle.result(timeout=TOLD_S) for handle in handles] == list(range(70))
        stop.set()
        worker.join()
    assert set(done) == set(range(70))
    pair.settle()


def test_commands_migrations_and_spark_take_the_url(pair: Pair, tmp_path: Path) -> None:
    place = ["--url", pair.url]
    runs = CliRunner()
    added = runs.invoke(main, [*place, "add", "told", "v=1"])
    assert added.exit_code == 0, added.output
    pair.fail_over()
    pair.settle()
    again = runs.invoke(main, [*place, "add", "told", "v=2"])
    assert again.exit_code == 0, again.output
    assert runs.invoke(main, [*place, "cmd", "XLEN", "told"]).output.strip() == "(integer) 2"
    wait_equal(*pair.nodes)

    migrated = runs.invoke(
        main,
        [
            "migrate",
            "run",
            "--match",
            "told",
            "--state",
            str(tmp_path),
            pair.url,
            str(tmp_path / "copy"),
        ],
    )
    assert migrated.exit_code == 0, migrated.output
    with Store.open(tmp_path / "copy") as copy:
        assert sorted(values(copy, "told")) == ["1", "2"]
        assert copy.check() == []

    options = {"url": f"{pair.url},redis://127.0.0.1:1", "stream": "told"}
    with pytest.raises(ServerUnavailable):
        _read(options)
    options["url"] = pair.url
    replica = pair.nodes[1].port
    wait_until(lambda: _read(options) == ([b"1", b"2"], replica), "the replica")
    assert _read({**options, "preferreplica": "false"}) == ([b"1", b"2"], None)


def _read(options: dict[str, str]) -> tuple[list[bytes], int | None]:
    """Read a stream as a batch of Spark; return its values, and the port of the replica."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("v", BinaryType())])
    reader = BatchReader(options, schema)
    found: list[bytes] = []
    port = None
    for partition in reader.partitions():
        assert isinstance(partition, TaskPartition)
        for source, _ in partition.parts:
            assert isinstance(source, Server)
            port = None if source.node is None else urlsplit(source.node.address).port
        for batch in reader.read(partition):
            found += batch.column("v").to_pylist()
    return found, port


def test_a_write_that_a_late_replica_confirms_is_there_once(pair: Pair) -> None:
    primary, replica = pair.nodes
    with kvstream.open(pair.url) as store, primary.client() as client:
        for setting in ("replica-lease-ms", "min-replicas-max-lag"):
            client.config_set(setting, 0)  # it refuses no write, however late the replica is
        replica.process.send_signal(signal.SIGSTOP)
        try:
            adding = threading.Thread(
                target=lambda: store.stream("confirmed").add({"n": 1}), daemon=True
            )
            adding.start()
            until(lambda: _has_entry(client), "the entry", 0.05)
            time.sleep(3)  # longer than replica-ack-timeout
            assert adding.is_alive()
        finally:
            replica.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not adding.is_alive(), "the add")
        assert len(store.stream("confirmed")) == 1
        client.config_set("replica-lease-ms", 1000)
        client.config_set("min-replicas-max-lag", 10)
    pair.settle()


def _has_entry(client: Any) -> bool:
    try:
        return bool(client.xlen("confirmed"))
    except redis.ResponseError as error:  # the answer came behind that of the write
        return "The write was done here" in str(error)


def test_redis_py_follows_too(pair: Pair) -> None:
    places = [("127.0.0.1", port) for port in pair.sentinels.ports]
    asked: Any = Sentinel(places, socket_timeout=PATIENCE_S)  # type: ignore[no-untyped-call]
    primary, replica = asked.master_for(NAME), asked.slave_for(NAME)
    for node in pair.nodes:  # so that a late replica refuses no write
        node.client().config_set("replica-acks", 0)
    eid = primary.xadd("of-redis-py", {"n": 1})
    wait_equal(*pair.nodes)
    wait_until(lambda: _answers(replica), "the replica")
    assert replica.xrange("of-redis-py") == [(eid, {b"n": b"1"})]
    with pytest.raises(redis.ReadOnlyError):
        replica.xadd("of-redis-py", {"n": 2})
    pair.fail_over()
    pair.settle()
    wait_until(lambda: _answers(primary), "the primary")
    assert primary.xrange("of-redis-py") == [(eid, {b"n": b"1"})]
    assert primary.xadd("of-redis-py", {"n": 2}) > eid
    for node in pair.nodes:
        confirm_all(node)


def test_ioredis_follows_too(pair: Pair, node_program: str) -> None:
    ports = [str(port) for port in pair.sentinels.ports]
    program = subprocess.Popen(
        [node_program, str(FOLDER / "sentinel.js"), NAME, *ports],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stderr is not None
        assert program.stderr.readline() == "adds\n"
        pair.fail_over()
        pair.settle()
        out, errors = program.communicate(timeout=TOLD_S)
    finally:
        program.kill()
    assert errors == ""
    told = json.loads(out)
    with pair.nodes[0].client(decode_responses=True) as client:
        entries = client.xrange("of-ioredis")
    assert [eid for eid, _ in entries] == told["ids"]
    assert [fields["n"] for _, fields in entries] == [str(n) for n in range(len(told["ids"]))]


def _answers(client: Any) -> bool:
    """Return whether redis-py finds a server, and that answers."""
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def test_errors_name_the_sentinels_and_a_later_call_recovers(pair: Pair) -> None:
    hosts = pair.url.partition("//")[2].partition("/")[0]
    with pytest.raises(ServerUnavailable, match="does not know the name"):
        kvstream.open(f"redis+sentinel://{hosts}/unknown?wait_s=0")
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1: no connection"):
        kvstream.open(f"redis+sentinel://127.0.0.1:1/{NAME}", wait_s=0)
    with _open_at_once(pair.url) as store:
        wait_until(lambda: _can_add(store), "an add")
        old = pair.nodes[0]
        wait_linked(pair.nodes[1])
        old.kill()
        with pytest.raises((ServerUnavailable, UnknownOutcome), match=NAME):
            len(store.stream("s"))
        pair.take_over()
        wait_until(lambda: _can_add(store), "a later call")
    with pytest.raises(StoreClosed):
        store.stream("s").add({"n": 1})
    pair.settle()


def test_a_worker_stops_while_there_is_no_primary(tmp_path: Path) -> None:
    program, node = sentinel_program(), Node(tmp_path / "one")
    sentinels = Sentinels(program, tmp_path, node.port, DOWN_MS)
    hosts = ",".join(f"127.0.0.1:{port}" for port in sentinels.ports)
    try:
        with Jobs(f"redis+sentinel://{hosts}/{NAME}?wait_s={TOLD_S:g}") as jobs:
            jobs.task(_nothing)
            stop = threading.Event()
            worker = threading.Thread(target=Worker(jobs).run, args=(stop,), daemon=True)
            worker.start()
            until(lambda: node.information("clients")["blocked_clients"] != "0", "it", 0.05)
            sentinels.stop()
            node.kill()
            time.sleep(1)  # it notices
            stop.set()
            worker.join(PATIENCE_S)
            assert not worker.is_alive()
    finally:
        sentinels.stop()
        node.end()
    with Store.open(node.directory) as store:
        assert store.check() == []


def _nothing() -> None:
    """Do nothing, as a job."""


def _open_at_once(url: str) -> Store:
    """Open a store whose calls ask the Sentinels once; on a busy machine they may be late."""
    deadline = time.monotonic() + TOLD_S
    while True:
        try:
            return kvstream.open(url, wait_s=0)
        except ServerUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _can_add(store: Store) -> bool:
    try:
        return bool(store.stream("s").add({"n": 2}))
    except (ServerUnavailable, UnknownOutcome):
        return False
