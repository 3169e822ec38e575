"""Servers on ports of their own, and a redis-server to compare them with."""

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from kvstream.engine.engine import Engine
from kvstream.operations.checks import check
from kvstream.server.commands import TABLE
from kvstream.server.metrics.endpoint import serve_metrics
from kvstream.server.metrics.sample import LIMITS
from kvstream.server.net.asyncio_server import Listener, listen
from kvstream.server.net.tls import SecuredServer, listen_secured, load
from kvstream.server.options import ServerOptions
from kvstream.types.options import StoreOptions
from kvstream.types.thresholds import DEFAULT
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.patience import PATIENCE_S
from tests.peers import PeerProcess
from tests.ports import free_port
from tests.server.asking import Asker
from tests.server.talking import Server, Talker, Worker, sound

__all__ = ["fault_library", "faulty_disk"]

Serve = Callable[..., "Served"]


class Served:
    """A server in a thread of this process."""

    def __init__(
        self,
        directory: Path,
        tls: bool = False,
        thresholds: Any = DEFAULT,
        limits: Any = LIMITS,
        clock: Any = None,
        **options: Any,
    ) -> None:
        self._tls, self._limits = tls, limits
        self.tls_port = 0
        self.engine = Engine(directory, StoreOptions(), clock=clock, thresholds=thresholds)
        self._options = ServerOptions(port=0, **options)
        self.stopped = threading.Event()
        self._started = threading.Event()
        self._clients: list[redis.Redis] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        assert self._started.wait(PATIENCE_S)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._accept())
        self._loop.close()

    async def _accept(self) -> None:
        self._over = asyncio.Event()
        tls = load(self._options) if self._tls else None
        self.listener = listener = Listener(self.engine, TABLE, self._options, tls, self._over.set)
        self.executor = listener.executor
        measuring = ExitStack()
        self.metrics_url = measuring.enter_context(serve_metrics(listener, self._limits))
        server = await listen(listener, "127.0.0.1", 0)
        self.port = self.executor.options.port = server.sockets[0].getsockname()[1]
        servers: list[asyncio.Server | SecuredServer] = [server]
        if self._tls:
            servers.append(await listen_secured(listener, "127.0.0.1", 0))
            self.tls_port = servers[1].sockets[0].getsockname()[1]
        self._started.set()
        await self._over.wait()
        self.executor.busy.stop()
        while self.executor.busy.is_on:  # its turn holds the lock of the engine
            self.executor.run()
        self.stopped.set()
        measuring.close()
        for each in servers:
            each.close()
        for client in list(self.executor.clients.values()):
            client.close()
        await asyncio.sleep(0)
        self.executor.checkpoints.join()

    def client(self, protocol: int = 2, **options: Any) -> "redis.Redis":
        """Return a client of redis-py whose replies are bytes."""
        client = redis.Redis(port=self.port, protocol=protocol, **options)
        self._clients.append(client)
        return client

    def asker(self, protocol: int = 2) -> Asker:
        """Return a connection that shows replies unchanged."""
        return Asker(self.port, protocol)

    def hold(self, seconds: float = 0.2) -> None:
        """Keep the event loop busy, so that later requests are read together."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def join(self) -> None:
        """Wait until the server has stopped."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        if not self.stopped.is_set():
            self._loop.call_soon_threadsafe(self._over.set)
        self.join()
        lock = self.engine._lock
        assert lock.acquire(timeout=PATIENCE_S), "the server's thread ended within a turn"
        lock.release()
        faults = self.engine.run(check)
        self.engine.close()
        assert faults == []


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers: ``serve(maxclients=5)``; ``tls=True`` adds a TLS port."""
    started: list[Served] = []

    def start(**options: Any) -> Served:
        started.append(Served(tmp_path / f"store{len(started)}", **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def served(serve: Serve) -> Served:
    """A server with default options."""
    return serve()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """An executor without sockets, on a store that is checked at the end."""
    with sound(tmp_path / "store") as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Talker:
    return server.client()


@pytest.fixture
def bob(server: Server) -> Talker:
    return server.client()


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def client(served: Served, protocol: int) -> redis.Redis:
    """Clients of redis-py, one in each protocol."""
    return served.client(protocol)


@pytest.fixture
def redis_port(redis_process: int) -> Iterator[int]:
    """The port of a redis-server without users and settings of other tests."""
    yield redis_process
    with Asker(redis_process) as asker:
        for name in asker.ask("ACL USERS"):
            if name != b"default":
                asker.ask("ACL", "DELUSER", name)
        asker.ask("FLUSHALL")


@pytest.fixture
def redis82_port(redis82_process: int) -> Iterator[int]:
    """The port of a redis-server 8.2 without keys of other tests."""
    yield redis82_process
    with Asker(redis82_process) as asker:
        for name in asker.ask("ACL USERS"):
            if name != b"default":
                asker.ask("ACL", "DELUSER", name)
        asker.ask("FLUSHALL")


@pytest.fixture(scope="module")
def redis82_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a redis-server 8.2."""
    process = PeerProcess("redis-8.2", tmp_path_factory.mktemp("redis-8.2"))
    yield process.port
    process.stop()


@pytest.fixture(scope="module")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a redis-server for these tests only."""
    if shutil.which("redis-server") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is required here: apt-get install redis-server")
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    port = free_port()
    directory = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await(port)
        yield port
    finally:
        process.kill()
        process.wait()


def _await(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            Asker(port, 2).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def worker(server: Server) -> Worker:
    return Worker(server, 100)
