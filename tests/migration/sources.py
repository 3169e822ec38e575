"""A redis-server for one test: on a port, with files that survive a kill."""

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

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None and os.environ.get("KVSTREAM_REQUIRE_ALL") != "1",
    reason="redis-server is not installed: apt-get install redis-server",
)


class Source:
    """A redis-server; it runs from its creation until it is stopped."""

    def __init__(self, directory: Path, *options: str, program: str = "redis-server") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.options = options
        self.program = program
        self.port = free_port()
        self._clients: list[Any] = []
        self.start()

    def start(self) -> None:
        """Start it, with the files of its previous run."""
        self.process = subprocess.Popen(
            [
                *(self.program, "--port", str(self.port), "--dir", str(self.directory)),
                *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
                *self.options,
            ],
            stdout=subprocess.DEVNULL,
        )
        self.client = self.connect()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.client.ping()
                return
            except (redis.ConnectionError, redis.BusyLoadingError):
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def connect(self, db: int = 0) -> Any:
        """Return a client whose replies are not converted."""
        client = redis.Redis(port=self.port, db=db, socket_timeout=PATIENCE_S, protocol=2)
        client.response_callbacks.clear()
        self._clients.append(client)
        return client

    def ask(self, *words: str | bytes | int) -> Any:
        """Return the reply to a request, also an error."""
        try:
            return self.client.execute_command(*words)
        except redis.ResponseError as error:
            return error

    def kill(self) -> None:
        """Kill it as ``kill -9`` does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self.kill()
