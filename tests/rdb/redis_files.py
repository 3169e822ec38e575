"""A redis-server that writes and loads the files of these tests."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.server.asking import Asker

DATABASES = 16


def require_redis() -> None:
    """Skip the test where redis-server is not installed, or fail it where it must be."""
    if shutil.which("redis-server") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is required here: apt-get install redis-server")
        pytest.skip("redis-server is not installed: apt-get install redis-server")


class RedisFiles:
    """A redis-server that keeps its files in a directory, which outlives it."""

    def __init__(self, directory: Path, **settings: object) -> None:
        require_redis()
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.port = free_port()
        given = {"port": self.port, "dir": directory, "save": "", "loglevel": "warning"}
        given |= {name.replace("_", "-"): value for name, value in settings.items()}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        self._log = (directory / "log").open("ab")
        self._process = subprocess.Popen(["redis-server", *words], stdout=self._log)
        self._clients: list[redis.Redis] = []
        self._wait()

    def client(self, db: int = 0) -> "redis.Redis":
        """Return a client of a database, whose replies are bytes."""
        client = redis.Redis(port=self.port, db=db, protocol=2)
        self._clients.append(client)
        return client

    def ask(self, db: int, *words: bytes | str) -> Any:
        """Return a reply as it is on the wire."""
        with Asker(self.port) as asker:
            asker.ask("SELECT", str(db))
            return asker.ask(*words)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.client().ping():
                    return
            except (redis.ConnectionError, redis.BusyLoadingError):
                if self._process.poll() is not None:
                    pytest.fail((self.directory / "log").read_text())
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def saved(self) -> Path:
        """Save, and return the file."""
        self.client().save()
        return self.directory / "dump.rdb"

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End it; it saves nothing."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> "RedisFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
