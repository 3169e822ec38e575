"""redis-servers for one test: started, killed, restarted."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.patience import PATIENCE_S
from tests.ports import free_port


def require_redis() -> None:
    """Skip the test without a redis-server, or fail it if skips are forbidden."""
    if shutil.which("redis-server") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is required here: apt-get install redis-server")
        pytest.skip("redis-server is not installed: apt-get install redis-server")


class RedisServer:
    """A redis-server with its own port and folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._options = options
        self._clients: list[redis.Redis] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it has loaded its data."""
        words = ["--port", str(self.port), "--dir", str(self.folder), "--save", "", *self._options]
        self._process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with redis.Redis(port=self.port) as client:
                    client.ping()
                return
            except redis.AuthenticationError:
                return
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def client(self, **options: Any) -> Any:
        """Return a client whose replies are bytes; its types do not cover all commands."""
        client = redis.Redis(port=self.port, protocol=2, **options)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._process.kill()
        self._process.wait()

    def saved(self) -> Path:
        """Save an RDB file, and return its path."""
        self.client().save()
        return self.folder / "dump.rdb"
