"""Debian's redis-sentinel fails a pair of servers over: no write that a replica had is lost.

KVSTREAM_CRASH_ROUNDS sets how often the primary is killed.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from tests.crash.rounds import rounds
from tests.patience import until
from tests.ports import free_port
from tests.replicas.servers import Node, refuse_differences, replica_of, wait_equal, wait_linked

NAME = "watched"
DOWN_MS = 2000
TOLD_S = 240.0
"""How long a former primary may wait to be told to follow: Sentinel looks for eight seconds whether
both are well, and begins anew whenever a busy machine has delayed an answer."""
WRITERS = 3


class Sentinels:
    """Three of them, and what they say."""

    def __init__(self, program: str, place: Path, port: int) -> None:
        self.ports = [free_port() for _ in range(3)]
        self._processes = []
        for own in self.ports:
            folder = place / f"sentinel-{own}"
            folder.mkdir()
            file = folder / "sentinel.conf"
            file.write_text(
                f"port {own}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {NAME} 127.0.0.1 {port} 2\n"
                f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\n"
                f"sentinel failover-timeout {NAME} 5000\n"
            )
            command = [program, str(file), "--sentinel"]
            self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def client(self) -> Any:
        """Return a client that asks them."""
        places = [("127.0.0.1", port) for port in self.ports]
        return Sentinel(places, socket_timeout=2)  # type: ignore[no-untyped-call]

    def wait_known(self, replicas: int) -> None:
        """Wait until each knows the others and the replicas."""
        for port in self.ports:
            with redis.Redis(port=port, decode_responses=True) as client:
                until(lambda client=client: _knows(client, replicas), "the others", 0.1)  # type: ignore[misc]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _knows(client: Any, replicas: int) -> bool:
    try:
        state: dict[str, Any] = client.sentinel_master(NAME)
    except redis.RedisError:
        return False
    return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] >= replicas)


@pytest.fixture
def program() -> str:
    found = shutil.which("redis-sentinel") or shutil.which("redis-server")
    if found is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-sentinel is not installed")
        pytest.skip("redis-sentinel is not installed: apt-get install redis-sentinel")
    return found


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Node]]:
    """The servers of a test, which are stopped at its end, before their folders are removed."""
    nodes: list[Node] = []
    yield nodes
    for node in nodes:
        if node.process.poll() is None:
            node.end()


class Writers:
    """Clients that ask the Sentinels for the primary, write, and remember what was confirmed.

    With ``waits`` they ask by WAIT 1; without, each acknowledged write is to be confirmed.
    """

    def __init__(self, sentinels: Sentinels, waits: bool) -> None:
        self._sentinels, self._stops, self._waits = sentinels, threading.Event(), waits
        self.waited: set[bytes] = set()
        """Entries of which WAIT 1 has said that a replica has them."""
        self.acked: set[bytes] = set()
        """Other entries that were acknowledged."""
        self.longest_s = 0.0
        """The longest time without a write."""
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        count, last = 0, time.monotonic()
        while not self._stops.is_set():
            try:
                primary = self._sentinels.client().master_for(NAME, socket_timeout=2)
                while not self._stops.is_set():
                    count += 1
                    value = b"%d-%d" % (number, count)
                    pipeline = primary.pipeline(transaction=False)
                    pipeline.xadd("orders", {"v": value})
                    if self._waits:
                        pipeline.wait(1, 1000)
                    replicas = pipeline.execute()[-1]
                    (self.waited if replicas else self.acked).add(value)
                    now = time.monotonic()
                    self.longest_s, last = max(self.longest_s, now - last), now
            except redis.RedisError:
                self._stops.wait(0.05)

    def stop(self) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()


def _is_primary(sentinels: Sentinels, node: Node) -> bool:
    try:
        found = sentinels.client().discover_master(NAME)
        with node.client(socket_timeout=2) as client:
            return bool(found[1] == node.port and client.role()[0] == b"master")
    except redis.RedisError:
        return False


def _wait_told(former: Node) -> None:
    deadline = time.monotonic() + TOLD_S
    while former.replication()["role"] != "slave":
        assert time.monotonic() < deadline, "no Sentinel has told the former primary to follow"
        time.sleep(0.1)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_killed_primary_is_replaced_and_nothing_confirmed_is_lost(
    program: str, started: list[Node], tmp_path: Path, acks: int
) -> None:
    primary = Node(tmp_path / "one")
    started.append(primary)
    replica = replica_of(primary, tmp_path / "two")
    started.append(replica)
    for node in started:
        node.client().config_set("replica-acks", acks)
    sentinels = Sentinels(program, tmp_path, primary.port)
    stops = [sentinels.stop]
    promoted_s = []
    try:
        sentinels.wait_known(1)
        writers = Writers(sentinels, waits=not acks)
        stops.append(writers.stop)
        for _ in range(rounds(1)):
            time.sleep(2)
            primary.kill()
            killed = time.monotonic()
            until(lambda node=replica: _is_primary(sentinels, node), "the promotion", 0.05)  # type: ignore[misc]
            promoted_s.append(time.monotonic() - killed)
            former = primary.again()  # it believes that it is the primary until it is told
            former.client().config_set("replica-acks", acks)
            started.append(former)
            _wait_told(former)
            wait_linked(former)
            primary, replica = replica, former
            sentinels.wait_known(1)
        time.sleep(1)
        writers.stop()
        wait_equal(primary, replica)
        entries: Any = primary.client().xrange("orders")
        found = {fields[b"v"] for _, fields in entries}
        lost = len(writers.waited - found), len(writers.acked - found)
        print(
            f"promoted after {promoted_s}, longest gap {writers.longest_s:.2f} s, "
            f"{len(writers.waited)} confirmed and {len(writers.acked)} others, lost {lost}"
        )
        assert len(writers.waited) > 10
        assert lost[0] == 0
    finally:
        for stop in reversed(stops):
            stop()
    primary.stop()
    replica.stop()
    refuse_differences(primary.directory, replica.directory)
