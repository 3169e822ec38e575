"""Servers that follow one another: reads, roles, links that break, and what nobody may lose.

KVSTREAM_CRASH_ROUNDS sets how often a process is killed.
"""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import kvstream
from kvstream import Store
from kvstream.replicas.lost import lost_histories
from kvstream.storage import replacement
from tests.cli.program import Program, RemoteProgram
from tests.crash.rounds import rounds
from tests.patience import until
from tests.ports import free_port
from tests.replicas.servers import (
    Node,
    refuse_differences,
    replica_of,
    wait_equal,
    wait_linked,
)
from tests.server.asking import Failure

READONLY = "READONLY You can't write against a read only replica."
Start = Callable[..., Node]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """The servers of a test, which are stopped at its end, before their folders are removed."""
    started: list[Node] = []
    yield started
    for node in started:
        if node.process.poll() is None:
            node.end()


@pytest.fixture
def primary(nodes: list[Node], tmp_path: Path) -> Node:
    nodes.append(Node(tmp_path / "primary"))
    return nodes[-1]


@pytest.fixture
def replica(nodes: list[Node], primary: Node, tmp_path: Path) -> Node:
    primary.client().xadd("first", {"n": 1})
    nodes.append(replica_of(primary, tmp_path / "replica"))
    return nodes[-1]


def test_a_replica_reads_what_the_primary_writes(primary: Node, replica: Node) -> None:
    writer, reader = primary.client(), replica.client()
    writer.xadd("orders", {"n": 1}, id="1-1")
    writer.xgroup_create("orders", "workers", id="0")
    writer.xreadgroup("workers", "ann", {"orders": ">"})
    writer.set("text", "value")
    assert writer.wait(1, 60_000) == 1
    assert reader.xrange("orders") == [(b"1-1", {b"n": b"1"})]
    assert reader.xlen("first") == 1
    assert reader.get("text") == b"value"
    assert reader.xinfo_groups("orders")[0]["pending"] == 1
    assert reader.xpending("orders", "workers")["consumers"] == [{"name": b"ann", "pending": 1}]
    assert reader.dbsize() == 3


def test_a_replica_refuses_writes_as_redis_does(replica: Node) -> None:
    with replica.asker() as asker:
        for line in (
            *("XADD first * n 1", "DEL first", "XGROUP CREATE first g 0", "SET a b"),
            *("XREADGROUP GROUP g ann STREAMS first >", "FLUSHALL", "XTRIM first MAXLEN 0"),
        ):
            assert asker.ask(line) == READONLY
        script = asker.ask("EVAL", "return redis.call('set', 'a', 'b')", "0")
        assert script.startswith(READONLY)
        assert asker.ask("MULTI") == b"OK"
        assert asker.ask("SET a b") == READONLY
        assert asker.ask("EXEC").startswith("EXECABORT")
        assert asker.ask("XLEN first") == 1
        assert "WAIT cannot be used with replica instances" in asker.ask("WAIT 1 10")


def test_a_blocked_read_of_a_replica_gets_what_arrives(primary: Node, replica: Node) -> None:
    writer = primary.client()
    writer.rename("first", "renamed")
    writer.wait(1, 60_000)
    with replica.asker() as asker, replica.asker() as other:
        asker.send("XREAD", "BLOCK", "0", "STREAMS", "orders", "renamed", "$", "$")
        other.send("XREAD", "BLOCK", "0", "STREAMS", "renamed", "$")
        until(lambda: int(replica.information("clients")["blocked_clients"]) == 2, "blocked")
        writer.xadd("renamed", {"n": 1}, id="9999999999999-1")
        wanted = [b"renamed", [[b"9999999999999-1", [b"n", b"1"]]]]
        assert asker.read() == [wanted]
        assert other.read() == [wanted]


def test_roles_are_shown_as_in_redis(primary: Node, replica: Node) -> None:
    wait_equal(primary, replica)
    with primary.asker() as asker:
        role, offset, shown = asker.ask("ROLE")
        assert (role, shown) == (b"master", [[b"127.0.0.1", b"%d" % replica.port, b"%d" % offset]])
        assert asker.ask("CLIENT LIST TYPE replica").count(b"flags=S") == 1
    with replica.asker(3) as asker:
        assert asker.ask("ROLE") == [b"slave", b"127.0.0.1", primary.port, b"connected", offset]
        assert asker.ask("CONFIG GET replicaof") == {
            b"replicaof": f"127.0.0.1 {primary.port}".encode()
        }
    told, seen = primary.replication(), replica.replication()
    assert told["slave0"].startswith(f"ip=127.0.0.1,port={replica.port},state=online,offset=")
    assert seen["master_link_status"] == "up"
    assert seen["master_replid"] == told["master_replid"]
    assert (seen["role"], seen["slave_priority"], seen["slave_read_only"]) == ("slave", "100", "1")


def test_the_library_and_the_command_line_read_from_a_replica(
    primary: Node, replica: Node, tmp_path: Path
) -> None:
    with kvstream.open(f"redis://127.0.0.1:{primary.port}") as store:
        ids = store.stream("orders").add_many([{"n": n} for n in range(50)])
        store.stream("orders").create_group("workers", start="0").consumer("ann").read(count=3)
    wait_equal(primary, replica)
    with kvstream.open(f"redis://127.0.0.1:{replica.port}") as store:
        stream = store.stream("orders")
        assert [entry.id for entry in stream.range()] == ids
        assert [entry.id for entry in stream.read("0", count=2)] == ids[:2]
        assert stream.groups()[0].pending == 3
        assert stream.count() == 50
        with pytest.raises(kvstream.KVStreamError, match="read only replica"):
            stream.add({"n": 1})
    program = RemoteProgram(tmp_path, f"redis://127.0.0.1:{replica.port}")
    shown = program.one("top", "--once")["server"]["replication"]
    assert (shown["role"], shown["link"]) == ("replica", "up")
    assert shown["replicaof"] == f"127.0.0.1:{primary.port}"
    assert "link up" in program("top", "--once").stdout


def test_expired_keys_are_hidden_until_the_primary_deletes_them(
    primary: Node, replica: Node
) -> None:
    writer, reader = primary.client(), replica.client()
    with primary.asker() as asker:
        asker.ask("DEBUG SET-ACTIVE-EXPIRE 0")
    writer.set("brief", "value", px=1)
    writer.wait(1, 60_000)
    until(lambda: reader.get("brief") is None, "hidden")
    assert reader.exists("brief") == 0
    writer.get("brief")
    writer.wait(1, 60_000)
    assert reader.dbsize() == 1


def test_replicas_are_waited_for(primary: Node, replica: Node) -> None:
    writer = primary.client()
    for n in range(20):
        writer.xadd("orders", {"n": n})
        assert writer.wait(1, 60_000) == 1
    with primary.asker() as asker:
        assert asker.ask("WAITAOF 1 1 60000") == [1, 1]
    assert writer.wait(2, 20) == 1
    pipeline = writer.pipeline(transaction=False)
    pipeline.xadd("orders", {"n": 1})
    pipeline.wait(1, 60_000)
    assert pipeline.execute()[1] == 1
    replica.freeze()
    writer.xadd("orders", {"n": 1})
    assert writer.wait(1, 50) == 0
    replica.process.send_signal(signal.SIGCONT)
    assert writer.wait(1, 60_000) == 1


def test_both_have_a_write_on_disk_with_the_durability_always(
    nodes: list[Node], tmp_path: Path
) -> None:
    nodes.append(Node(tmp_path / "primary", "--durability", "always"))
    primary = nodes[-1]
    nodes.append(replica_of(primary, tmp_path / "replica", "--durability", "always"))
    with primary.asker() as asker:
        for _ in range(10):
            asker.ask("XADD orders * n 1")
            assert asker.ask("WAITAOF 1 1 60000") == [1, 1]


def test_writes_are_refused_without_enough_replicas(primary: Node, replica: Node) -> None:
    with primary.asker() as asker:
        assert asker.ask("CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 1") == b"OK"
        until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.02)
        replica.freeze()
        error = "NOREPLICAS Not enough good replicas to write."
        until(lambda: asker.ask("XADD orders * n 1") == error, "the refusal", 0.05)
        assert asker.ask("XLEN first") == 1
        replica.process.send_signal(signal.SIGCONT)
        until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.05)


def test_a_stopped_primary_acknowledges_nothing_after_it_was_replaced(
    primary: Node, replica: Node
) -> None:
    with primary.asker() as asker, primary.asker() as other:
        assert asker.ask("CONFIG SET min-replicas-to-write 1 replica-lease-ms 300") == b"OK"
        until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.02)
        wait_equal(primary, replica)
        primary.freeze()
        for each in (asker, other):
            for _ in range(50):
                each.send("XADD", "orders", "*", "n", "1")
        time.sleep(0.5)
        with replica.asker() as promoted:
            assert promoted.ask("REPLICAOF NO ONE") == b"OK"
            until(lambda: promoted.ask("SET a c") == b"OK", "the promotion", 0.01)
        primary.process.send_signal(signal.SIGCONT)
        answers = [each.read() for each in (asker, other) for _ in range(50)]
        assert {*answers} == {"NOREPLICAS Not enough good replicas to write."}
        assert asker.ask("EXISTS orders") == 0


PATIENT = "replica-lease-ms 60000 replica-ack-timeout 60000"
"""Settings with which a busy machine is no lost replica."""


def test_writes_wait_for_replicas_if_they_have_to(primary: Node, replica: Node) -> None:
    with primary.asker() as asker, primary.asker() as other:
        assert asker.ask(f"CONFIG SET replica-acks 1 {PATIENT}") == b"OK"
        until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.02)
        for _ in range(50):
            asker.send("XADD", "orders", "*", "n", "1")
            other.send("XADD", "orders", "*", "n", "1")
            assert not any(isinstance(each.read(), Failure) for each in (asker, other))
        acknowledged = replica.offset()
        assert acknowledged == primary.offset()


def test_a_write_that_no_replica_confirms_is_an_error(primary: Node, replica: Node) -> None:
    with primary.asker() as asker:
        assert asker.ask(f"CONFIG SET replica-acks 1 {PATIENT}") == b"OK"
        until(lambda: not isinstance(asker.ask("SET a b"), Failure), "writes", 0.02)
        replica.freeze()
        try:
            assert asker.ask("CONFIG SET replica-ack-timeout 300") == b"OK"
            assert asker.ask("XADD late 1-1 n 1").startswith("NOREPLICAS The write was done here")
            assert asker.ask("XLEN late") == 1
            assert asker.ask("CONFIG SET replica-lease-ms 300") == b"OK"
            until(lambda: asker.ask("SET a b").startswith("NOREPLICAS Not enough"), "the refusal")
            assert asker.ask("CONFIG SET replica-acks-degrade yes") == b"OK"
            assert asker.ask("SET a b") == b"OK"
            assert primary.replication()["replica_acks_degraded"] == "1"
        finally:
            replica.process.send_signal(signal.SIGCONT)
        assert asker.ask(f"CONFIG SET replica-acks-degrade no {PATIENT}") == b"OK"
        until(lambda: asker.ask("SET a d") == b"OK", "the replica", 0.02)
        assert primary.replication()["replica_acks_degraded"] == "0"
        assert replica.client().get("a") == b"d"


def test_a_killed_link_goes_on_without_a_copy(primary: Node, replica: Node) -> None:
    writer = primary.client()
    for n in range(5):
        writer.xadd("orders", {"n": n})
        with (replica if n % 2 else primary).asker() as asker:
            assert asker.ask(f"CLIENT KILL TYPE {'master' if n % 2 else 'replica'}") == 1
            assert asker.ask(f"CLIENT KILL TYPE {'replica' if n % 2 else 'master'}") == 0
        writer.xadd("orders", {"n": n})
        until(lambda: writer.wait(1, 1000) == 1, "the replica")
    assert primary.copies() == 1
    wait_equal(primary, replica)


def test_the_user_of_a_replica_needs_few_rights(primary: Node, tmp_path: Path) -> None:
    with primary.asker() as asker:
        rights = "-@all +kvstream.sync +replconf +ping"
        assert asker.ask(f"ACL SETUSER copier on >secret {rights}") == b"OK"
    node = Node(tmp_path / "other")
    try:
        with node.asker() as asker:
            assert asker.ask("CONFIG SET masteruser copier masterauth secret") == b"OK"
            assert asker.ask(f"REPLICAOF 127.0.0.1 {primary.port}") == b"OK"
        wait_linked(node)
        assert primary.client().xadd("orders", {"n": 1})
        assert primary.client().wait(1, 60_000) == 1
    finally:
        node.end()


def test_a_redis_is_no_replica(primary: Node) -> None:
    with primary.asker() as asker:
        assert asker.ask("REPLCONF listening-port 6379 capa eof capa psync2") == b"OK"
        for line in ("PSYNC ? -1", "SYNC"):
            assert "kvstream migrate" in asker.ask(line)
        assert primary.replication()["connected_slaves"] == "0"
        assert asker.ask("REPLCONF odd") == "ERR syntax error"
        assert asker.ask("REPLCONF odd 1") == "ERR Unrecognized REPLCONF option: odd"
        assert asker.ask("KVSTREAM.SYNC 99 0 00 0").startswith("ERR the replica speaks version 99")


def test_a_replica_without_data_says_so(nodes: list[Node], tmp_path: Path) -> None:
    nodes.append(Node(tmp_path / "lonely", "--replicaof", f"127.0.0.1:{free_port()}"))
    with nodes[-1].asker() as asker:
        assert asker.ask("XLEN orders").startswith("LOADING ")
        assert asker.ask("SET a b") == READONLY
        assert nodes[-1].replication()["slave_priority"] == "0"
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        assert asker.ask("XLEN orders") == 0
        assert asker.ask("SET a b") == b"OK"


def test_stale_data_are_served_unless_that_is_off(primary: Node, replica: Node) -> None:
    primary.stop()
    with replica.asker() as asker:
        until(lambda: replica.replication()["master_link_status"] == "down", "down", 0.02)
        assert asker.ask("XLEN first") == 1
        assert asker.ask("CONFIG SET replica-serve-stale-data no") == b"OK"
        assert asker.ask("XLEN first").startswith("MASTERDOWN Link with MASTER is down")
        assert asker.ask("CONFIG SET replica-serve-stale-data yes") == b"OK"
        assert asker.ask("XLEN first") == 1


def test_a_replica_has_the_password_of_the_primary(nodes: list[Node], tmp_path: Path) -> None:
    nodes.append(Node(tmp_path / "primary", "--requirepass", "secret"))
    primary = nodes[-1]
    nodes.append(Node(tmp_path / "replica", "--replicaof", f"127.0.0.1:{primary.port}"))
    replica = nodes[-1]
    until(lambda: "NOAUTH" in replica.replication()["master_link_error"], "refused", 0.02)
    with replica.asker() as asker:
        assert asker.ask("CONFIG SET masterauth secret") == b"OK"
    wait_linked(replica)
    primary.client(password="secret").xadd("orders", {"n": 1})
    until(lambda: replica.client().xlen("orders") == 1, "the entry")


def test_the_role_is_kept_over_restarts(nodes: list[Node], primary: Node, replica: Node) -> None:
    writer = primary.client()
    replica.stop()
    writer.xadd("orders", {"n": 1})
    again = replica.again()
    nodes.append(again)
    wait_linked(again)
    wait_equal(primary, again)
    assert primary.copies() == 1
    with again.asker() as asker:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        assert asker.ask("SET a b") == b"OK"
    again.stop()
    last = Node(again.directory, "--replicaof", f"127.0.0.1:{primary.port}")
    nodes.append(last)
    assert last.replication()["role"] == "master"


def test_a_restarted_primary_goes_on_without_a_copy(
    nodes: list[Node], primary: Node, replica: Node
) -> None:
    for ending in (primary.kill, None):
        primary.client().xadd("orders", {"n": 1})
        ending() if ending is not None else primary.stop()
        primary = primary.again()
        nodes.append(primary)
        wait_linked(replica)
        primary.client().xadd("orders", {"n": 2})
        wait_equal(primary, replica)
        assert (primary.copies(), primary.replication()["connected_slaves"]) == (0, "1")
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)


def test_blocked_clients_hear_of_a_change_of_role(primary: Node, replica: Node) -> None:
    with primary.asker() as asker, primary.asker() as other:
        asker.send("XREAD", "BLOCK", "0", "STREAMS", "orders", "$")
        until(lambda: int(primary.information("clients")["blocked_clients"]) == 1, "blocked")
        assert other.ask("MULTI") == b"OK"
        other.ask("SLAVEOF", "127.0.0.1", str(replica.port))
        assert other.ask("EXEC")[0] == b"OK"
        assert asker.read().startswith("UNBLOCKED force unblock from blocking operation")


def test_what_the_old_primary_alone_had_is_kept(primary: Node, replica: Node) -> None:
    wait_equal(primary, replica)
    with replica.asker() as asker:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        assert asker.ask("XADD orders 1-1 n 1") == b"1-1"
    primary.client().xadd("orders", {"n": "nobody else has it"})
    with primary.asker() as asker:
        assert asker.ask("REPLICAOF", "127.0.0.1", str(replica.port)) == b"OK"
    wait_linked(primary)
    wait_equal(primary, replica)
    assert primary.client().xrange("orders") == [(b"1-1", {b"n": b"1"})]
    [kept] = replacement.kept_folders(primary.directory)
    note = json.loads((kept / replacement.NOTE).read_text())["note"]
    assert note["fork"] < note["lsn"]
    [history] = lost_histories(primary.directory)
    assert (history.fork, history.lsn) == (note["fork"], note["lsn"])
    [(db, key, entry)] = history.entries()
    assert (db, key, entry.fields) == (0, b"orders", {b"n": b"nobody else has it"})
    program = Program(primary.directory)
    [shown] = program.json("replication", "lost")
    assert (shown["stream"], shown["fields"]) == ("orders", {"n": "nobody else has it"})
    assert "nobody else has it" in program("replication", "lost").stdout
    assert program.one("replication", "status") == {
        "role": "slave",
        "replicaof": f"127.0.0.1:{replica.port}",
        "diverged": [kept.name],
    }
    status = RemoteProgram(primary.directory, f"redis://127.0.0.1:{replica.port}").one(
        "replication", "status"
    )
    assert (status["role"], status["connected_slaves"]) == ("master", 1)
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)


def test_a_primary_that_wrote_nothing_since_returns_without_a_copy(
    nodes: list[Node], primary: Node, replica: Node
) -> None:
    wait_equal(primary, replica)
    primary.kill()
    with replica.asker() as asker:
        assert asker.ask("REPLICAOF NO ONE") == b"OK"
        asker.ask("XADD orders 1-1 n 1")
    former = primary.again()
    nodes.append(former)
    assert former.replication()["role"] == "master"
    with former.asker() as asker:
        assert asker.ask("REPLICAOF", "127.0.0.1", str(replica.port)) == b"OK"
    wait_linked(former)
    wait_equal(former, replica)
    assert replica.copies() == 0
    assert not replacement.kept_folders(former.directory)
    former.stop()
    replica.stop()
    refuse_differences(former.directory, replica.directory)


def test_a_backup_of_a_replica_is_a_store_of_its_own(
    nodes: list[Node], primary: Node, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    replica = replica_of(primary, tmp_path / "replica", "--checkpoint-dir", str(saved))
    nodes.append(replica)
    primary.client().xadd("orders", {"n": 1}, id="1-1")
    wait_equal(primary, replica)
    assert replica.client().bgsave()
    until(lambda: replica.information("persistence")["rdb_bgsave_in_progress"] == "0", "the save")
    assert replica.information("persistence")["rdb_last_bgsave_status"] == "ok"
    [checkpoint] = saved.iterdir()
    with Store.open(checkpoint) as store:
        assert [str(entry.id) for entry in store.stream("orders")] == ["1-1"]
        store.stream("orders").add({"n": 2})
        assert store.check() == []


def test_another_replica_follows_the_promoted_one_without_a_copy(
    nodes: list[Node], primary: Node, replica: Node, tmp_path: Path
) -> None:
    third = replica_of(primary, tmp_path / "third")
    nodes.append(third)
    writing = Writing(primary.port)
    time.sleep(0.5)
    third.freeze()
    time.sleep(0.5)
    writing.stop()
    wait_equal(primary, replica)
    primary.kill()
    third.process.send_signal(signal.SIGCONT)
    until(lambda: third.replication()["master_link_status"] == "down", "the end of the link")
    for node, words in ((replica, "NO ONE"), (third, f"127.0.0.1 {replica.port}")):
        with node.asker() as asker:
            assert asker.ask(f"REPLICAOF {words}") == b"OK"
    replica.client().xadd("orders", {"n": 1})
    wait_linked(third)
    wait_equal(replica, third)
    assert replica.copies() == 0
    assert replica.information("stats")["sync_partial_ok"] == "1"
    replica.stop()  # first: it deletes expired keys until then
    third.stop()
    refuse_differences(replica.directory, third.directory)


def test_a_replica_that_was_away_for_too_long_gets_one_copy(
    nodes: list[Node], primary: Node, replica: Node
) -> None:
    writer = primary.client()
    writer.config_set("repl-backlog-size", "16kb")
    replica.stop()
    for n in range(4):
        for _ in range(20):
            writer.xadd("orders", {"n": n, "text": "x" * 10_000})
        writer.bgrewriteaof()
        until(lambda: primary.information("persistence")["aof_rewrite_in_progress"] != "1")
    kept = primary.directory / "archive"
    until(lambda: sum(path.stat().st_size for path in kept.glob("*.log")) < 16 << 10, "trimmed")
    replica = replica.again()
    nodes.append(replica)
    wait_linked(replica)
    wait_equal(primary, replica)
    assert primary.copies() == 2
    assert not replacement.kept_folders(replica.directory)


def test_a_primary_that_is_killed_during_a_copy(
    nodes: list[Node], primary: Node, tmp_path: Path
) -> None:
    writer = primary.client()
    for _ in range(200):
        writer.xadd("orders", {"text": "x" * 100_000})
    replica = Node(tmp_path / "replica", "--replicaof", f"127.0.0.1:{primary.port}")
    nodes.append(replica)
    incoming = replica.directory / replacement.INCOMING
    until(lambda: incoming.exists() or replica.copies_taken(), "the copy", 0.001)
    primary.kill()
    primary = primary.again()
    nodes.append(primary)
    wait_linked(replica)
    wait_equal(primary, replica)
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)


class Writing:
    """Threads that write into a primary until they are stopped."""

    def __init__(self, port: int) -> None:
        self._port, self._stops = port, threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        client, chance = redis.Redis(port=self._port), random.Random(number)
        client.xgroup_create("orders", f"g{number}", id="0", mkstream=True)
        while not self._stops.is_set():
            pipeline = client.pipeline(transaction=chance.random() < 0.5)
            for _ in range(chance.randint(1, 40)):
                pipeline.xadd("orders", {"n": "x" * chance.randint(0, 200)}, maxlen=5000)
            pipeline.xreadgroup(f"g{number}", "ann", {"orders": ">"}, count=20)
            pipeline.set(f"key-{chance.randint(0, 50)}", "v", px=chance.choice((None, 20)))
            found = pipeline.execute()[-2]
            if found:
                client.xack("orders", f"g{number}", *[id_ for id_, _ in found[0][1][::2]])
            if chance.random() < 0.02:
                client.delete(f"key-{chance.randint(0, 50)}")

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()


def test_a_replica_that_is_killed_goes_on_where_it_was(
    nodes: list[Node], primary: Node, replica: Node
) -> None:
    chance = random.Random(1)
    writing = Writing(primary.port)
    for _ in range(rounds(3)):
        time.sleep(chance.uniform(0.05, 0.6))
        replica.kill()
        replica = replica.again()
        nodes.append(replica)
    writing.stop()
    wait_linked(replica)
    wait_equal(primary, replica)
    assert primary.copies() == 1
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)
