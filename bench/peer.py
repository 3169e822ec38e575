"""A redis-server of our own on the loopback: started, reached by redis-py and hiredis, stopped."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.utils import HIREDIS_AVAILABLE

START_S_MAX = 10


class PeerMissing(Exception):
    """What is needed for the comparison is not installed; the message says how to get it."""


def require_peer() -> None:
    """Raise PeerMissing unless redis-server and hiredis are there."""
    if shutil.which("redis-server") is None:
        raise PeerMissing("redis-server is missing. Install it: apt-get install redis-server")
    if not HIREDIS_AVAILABLE:
        raise PeerMissing("hiredis is missing. Install it: pip install hiredis")


def peer_version() -> str:
    """Return the version of redis-server, which says "... v=7.0.15 ..."."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"v=(\S+)", said.stdout)
    return match[1] if match else "unknown"


def free_port() -> int:
    """Return a port of the loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True)
class Served:
    """A redis-server that keeps an RDB file, and no log of commands."""

    client: Any
    log: Path


@contextmanager
def file_server(folder: Path) -> Iterator[Served]:
    """Run a redis-server on the RDB file in ``folder``, if there is one; it has read it then."""
    port = free_port()
    log = folder / "redis.log"
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "logfile": log}
    pairs = ((f"--{name}", str(value)) for name, value in options.items())
    server = subprocess.Popen(["redis-server", *(part for pair in pairs for part in pair)])
    client = redis.Redis(host="127.0.0.1", port=port, protocol=2)
    try:
        wait_until_up(client, server)
        yield Served(client, log)
    finally:
        client.close()
        server.kill()
        server.wait()


def _arguments(folder: Path, port: int, appendfsync: str) -> list[str]:
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": appendfsync,
        # Neither snapshots nor rewrites: they would slow Redis at moments of their own.
        "save": "",
        "auto-aof-rewrite-percentage": 0,
        "logfile": folder / "redis.log",
    }
    pairs = ((f"--{name}", str(value)) for name, value in options.items())
    return ["redis-server", *(part for pair in pairs for part in pair)]


def wait_until_up(client: "redis.Redis", server: subprocess.Popen[bytes]) -> None:
    """Return once a server answers; raise PeerMissing where it does not."""
    deadline = time.monotonic() + START_S_MAX
    while server.poll() is None and time.monotonic() < deadline:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.05)
    raise PeerMissing(f"{server.args!s:.60} did not start")


@contextmanager
def redis_server(folder: Path, appendfsync: str) -> Iterator["redis.Redis"]:
    """Run a redis-server with its append-only file in ``folder`` and yield a client of it."""
    folder.mkdir(parents=True)
    port = free_port()
    server = subprocess.Popen(_arguments(folder, port, appendfsync))
    client = redis.Redis(host="127.0.0.1", port=port, protocol=2)
    try:
        wait_until_up(client, server)
        yield client
    finally:
        client.close()
        server.kill()
        server.wait()
