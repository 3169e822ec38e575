"""Both servers in processes of their own, as a user starts them, and redis-benchmark as load."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from bench.peer import START_S_MAX, PeerMissing, free_port, redis_server, wait_until_up

CLIENTS = 50


def require_load() -> None:
    """Raise PeerMissing unless redis-benchmark is there."""
    if shutil.which("redis-benchmark") is None:
        raise PeerMissing("redis-benchmark is missing. Install it: apt-get install redis-tools")


@contextmanager
def kvstream_server(folder: Path, durability: str) -> Iterator[Redis]:
    """Run ``kvstream serve`` on a store in ``folder`` and yield a client of it."""
    port = free_port()
    program = [sys.executable, "-m", "kvstream", "serve", "--dir", str(folder)]
    options = ["--port", str(port), "--durability", durability]
    options += ["--checkpoint-dir", str(folder.with_name(folder.name + "-checkpoints"))]
    server = subprocess.Popen([*program, *options], stdout=subprocess.DEVNULL)
    client = Redis(host="127.0.0.1", port=port, protocol=2)
    try:
        wait_until_up(client, server)
        yield client
    finally:
        client.close()
        server.terminate()
        try:
            server.wait(START_S_MAX)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def both(folder: Path, durability: str) -> Iterator[tuple[Redis, Redis]]:
    """Run kvstream and redis-server at the same durability; yield a client of each."""
    with (
        kvstream_server(folder / f"serve-{durability}", durability) as own,
        redis_server(folder / f"redis-serve-{durability}", durability) as peer,
    ):
        yield own, peer


def framed(*words: object) -> bytes:
    """Return a request as clients send it."""
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def port_of(client: Redis) -> int:
    """Return the port that a client talks to."""
    return int(client.connection_pool.connection_kwargs["port"])


def loaded(client: Redis, requests: int, pipeline: int, *command: str) -> dict[str, float]:
    """Send one command very often from 50 clients; return what redis-benchmark measured.

    ``rps`` is requests per second; ``p99_latency_ms`` and its kind are milliseconds.
    """
    arguments = ["redis-benchmark", "-p", str(port_of(client)), "-c", str(CLIENTS), "--csv"]
    arguments += ["-n", str(requests), "-P", str(pipeline), *command]
    said = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    head, row = list(csv.reader(said.splitlines()))[-2:]
    return {name: float(value) for name, value in zip(head, row, strict=True) if name != "test"}
