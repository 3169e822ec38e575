"""A replica that is killed while it follows, takes a copy, or exchanges its files, under load.

Afterwards it has the rows of its primary. KVSTREAM_CRASH_ROUNDS sets how often.
"""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from kvstream.storage import replacement
from tests.crash.rounds import rounds
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.replicas.load import Level, Load
from tests.replicas.servers import Node, refuse_differences, wait_equal, wait_linked

__all__ = ["fault_library"]

COPY_ENTRIES, COPY_BYTES = 100, 100_000
"""Entries that do not compress: a copy of them takes a while."""
CHANGES = 400
"""Changes of files in which a death is looked for: those of a start and a copy, about."""
LOOK_S = 0.2
"""How often it is asked whether a copy is over."""


def wait_until(deadline: float, condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds, without a pause: it does for a moment; or at a time."""
    while not condition() and time.monotonic() < deadline:
        pass


class Killed:
    """A primary under load, and a replica that dies again and again."""

    def __init__(self, disk: FaultyDisk, folder: Path, chance: random.Random) -> None:
        self.disk, self.chance = disk, chance
        self.primary = Node(folder / "primary")
        self.port = free_port()
        self.directory = disk.root / "store"
        self.replica = self.start()
        self.met: Counter[str] = Counter()
        """What each death has struck."""

    def start(self, die_at: int = 0) -> Node:
        """Start the replica; it dies at its ``die_at``-th change of a file, unless that is 0."""
        words = ["--replicaof", f"127.0.0.1:{self.primary.port}"]
        environment = self.disk.environment(die_at=die_at)
        return Node(self.directory, *words, port=self.port, environment=environment)

    def restart(self) -> None:
        """Start the replica, and wait until it follows."""
        self.replica = self.start()
        wait_linked(self.replica)

    def strike(self) -> None:
        """Kill the replica, or note that it has died, and what of its files."""
        with suppress(ProcessLookupError):
            os.kill(self.replica.process.pid, signal.SIGKILL)
        self.replica.process.communicate(timeout=PATIENCE_S)
        incoming = self.directory / replacement.INCOMING
        struck = (
            "exchange"
            if (incoming / replacement.READY).exists()
            or (self.directory / replacement.OUTGOING).exists()
            else ("copy" if incoming.exists() else "log")
        )
        self.met[struck] += 1

    def kill_while_it_follows(self) -> None:
        time.sleep(self.chance.uniform(0.02, 0.4))
        self.strike()
        self.restart()

    def kill_in_its_first_copy(self) -> None:
        self.replica.kill()
        shutil.rmtree(self.directory)
        self.replica = self.start()
        incoming = self.directory / replacement.INCOMING
        linked = self.replica.copies_taken
        until(lambda: incoming.exists() or linked(), "the copy", 0.001)
        time.sleep(self.chance.uniform(0, 0.1))
        self.strike()
        self.restart()

    def kill_in_an_exchange(self) -> None:
        """Kill it while a copy replaces rows that it alone has: at some change of a file, or then.

        The new files take the places of the old ones within milliseconds.
        """
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
            client.xadd("alone", {"n": 1})
        self.replica.kill()
        dies_at = self.chance.choice([0, self.chance.randint(1, CHANGES)])
        with suppress(AssertionError, OSError, redis.RedisError):  # it is dead already
            self.replica = self.start(dies_at)
            with self.replica.client() as client:
                client.replicaof("127.0.0.1", str(self.primary.port))
            if dies_at:
                until(lambda: self.has_died() or self.is_linked(), "its end")
            else:
                ready = self.directory / replacement.INCOMING / replacement.READY
                while not ready.exists() and not self.is_linked():
                    wait_until(time.monotonic() + LOOK_S, ready.exists)
                time.sleep(self.chance.uniform(0, 0.01))
        self.strike()
        self.replica = self.start()
        with self.replica.client() as client:  # it may have died before its role was kept
            client.replicaof("127.0.0.1", str(self.primary.port))
        wait_linked(self.replica)

    def has_died(self) -> bool:
        return self.replica.process.poll() is not None

    def is_linked(self) -> bool:
        try:
            return self.replica.copies_taken()
        except (OSError, EOFError, KeyError):
            return False


@pytest.mark.timeout(7200)
def test_a_replica_that_is_killed_at_any_moment(fault_library: Path, tmp_path: Path) -> None:
    base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30))
    print(f"seed {base} (repeat with KVSTREAM_CRASH_SEED={base})")
    (tmp_path / "notes").mkdir()
    disk = FaultyDisk(fault_library, tmp_path / "replica", tmp_path / "notes")
    pair = Killed(disk, tmp_path, random.Random(base))
    wait_linked(pair.replica)
    with pair.primary.client() as client:
        for _ in range(COPY_ENTRIES):
            client.xadd("large", {"text": os.urandom(COPY_BYTES)})
    load = Load(Level.NONE, lambda: pair.primary.port, is_kvstream=True)
    load.begin(pair.primary.port)
    ways = (pair.kill_while_it_follows, pair.kill_in_its_first_copy, pair.kill_in_an_exchange)
    for number in range(rounds(3)):
        ways[number % 3]()
        if number % 10 == 9:
            print(f"{number + 1} deaths: {dict(pair.met)}", flush=True)
    load.end()
    total = load.find_all(pair.primary.port)
    print(f"struck {dict(pair.met)}; {total.acknowledged} acknowledged")
    assert total.acknowledged > 0
    assert (total.lost_acknowledged, total.undone, total.invented) == (0, 0, [])
    wait_equal(pair.primary, pair.replica)
    pair.primary.stop()
    pair.replica.stop()
    refuse_differences(pair.primary.directory, pair.directory)
