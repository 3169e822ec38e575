"""Kill a server under load at a random moment: the acknowledged writes of its clients survive.

Kill -9 loses no acknowledged write at any durability: the system has all written data. Power loss
loses no write acknowledged with ``always``.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
import redis

from kvstream import Durability, Store
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.crash.clients import Client, Operating, clients, connected
from tests.crash.rounds import rounds
from tests.faultshim.disk import FaultyDisk
from tests.opening import LEVELS
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess

ROUNDS = 1
ROUNDS_PER_ROUND = 10
"""A server takes longer to start and to check than the processes of other crash tests."""
LIFE_S = (0.02, 0.6)


class Load:
    """Clients at work, each in its own thread."""

    def __init__(self, port: int, workers: list[Client]) -> None:
        self._port = port
        self._faults: list[BaseException] = []
        self._replied = [threading.Event() for _ in workers]
        self._threads = [
            threading.Thread(target=self._run, args=pair)
            for pair in zip(workers, self._replied, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, worker: Client, replied: threading.Event) -> None:
        try:
            with closing(connected(self._port)) as client:
                while True:
                    worker.work(client)
                    replied.set()
        except redis.ConnectionError:
            pass
        except BaseException as error:
            self._faults.append(error)
        finally:
            replied.set()

    def await_all(self) -> None:
        """Wait until each client has got a reply."""
        assert all(replied.wait(PATIENCE_S) for replied in self._replied)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self._faults:
            raise self._faults[0]


class Site:
    """A store directory, its server, and the clients, over many deaths of the server."""

    def __init__(
        self, directory: Path, level: Durability, environment: Mapping[str, str] | None = None
    ) -> None:
        self._base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30))
        print(f"seed {self._base} (repeat with KVSTREAM_CRASH_SEED={self._base})")
        self.directory = directory / "store"
        self._arguments = ["--durability", level, "--checkpoint-dir", str(directory / "saved")]
        self._environment = environment
        self.clients = clients(self._base)

    def rounds(self) -> list[random.Random]:
        count = max(ROUNDS, rounds(ROUNDS) // ROUNDS_PER_ROUND)
        return [random.Random(f"{self._base} {number}") for number in range(count)]

    def _started(self) -> ServerProcess:
        """Return a server, after a check of its store."""
        server = ServerProcess(self.directory, *self._arguments, environment=self._environment)
        with closing(connected(server.port)) as client:
            for each in self.clients:
                each.prepare(client)
            for each in self.clients:
                each.settle(client)
        return server

    def live_and_die(self, chance: random.Random) -> None:
        server = self._started()
        load = Load(server.port, self.clients)
        load.await_all()
        time.sleep(chance.uniform(*LIFE_S))
        server.kill()
        load.join()

    def end(self) -> None:
        """Start the server once more, and stop it properly."""
        self._started().stop()
        check = [sys.executable, "-m", "kvstream", "--store", str(self.directory), "check"]
        done = forking.run(check, env={**os.environ, **ENVIRONMENT}, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def is_sound(directory: Path) -> bool:
    with Store.open(directory) as store:
        return not store.check()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_server_loses_no_acknowledged_write(tmp_path: Path, level: Durability) -> None:
    site = Site(tmp_path, level)
    site.clients.append(Operating(0))
    for chance in site.rounds():
        site.live_and_die(chance)
        if chance.random() < 0.5:  # otherwise the restarted server is the first to open the store
            assert is_sound(site.directory)
    site.end()


@pytest.mark.timeout(3600)
def test_power_loss_loses_no_write_acknowledged_with_always(
    faulty_disk: FaultyDisk,
) -> None:
    site = Site(faulty_disk.root, Durability.ALWAYS, faulty_disk.environment())
    for chance in site.rounds():
        site.live_and_die(chance)
        faulty_disk.cut_power()
        assert is_sound(site.directory)
        faulty_disk.forget()
    site.end()
