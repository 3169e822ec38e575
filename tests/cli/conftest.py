"""Fixtures of the command line: the program, with an empty store or one with sample data.

``kvstream`` and ``orders`` run the program on a store in a directory, unless ``places`` marks a
test or a module: then they run it in turn on such a store, on one behind a server of kvstream, and
on a redis-server with the same data.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvstream import Jobs, ManualClock, Queue, Store
from kvstream.jobs import Worker
from kvstream.layout.keys import qualified
from kvstream.operations.queues import schedules
from tests.cli.program import Program, RemoteProgram
from tests.patience import until
from tests.server.conftest import Served, redis_port, redis_process

__all__ = ["redis_port", "redis_process"]

FAR_FUTURE_S = 4_000_000_000
LONG_AGO_MS = 1_700_000_000_000
PENDING = ("1700000000000-0", "1700000001000-0")


@pytest.fixture(scope="session")
def store_of_orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store to copy: creating one takes much longer."""
    directory = tmp_path_factory.mktemp("orders") / "store"
    with Store.open(directory, durability="no", clock=ManualClock()) as store:
        stream = store.stream("orders")
        for at in range(5):
            stream.add({"sku": f"a{at}", "qty": str(at)}, id=1_700_000_000_000 + at * 1000)
        group = stream.create_group("billing", "0")
        group.consumer("worker-1").read(2)
        group.create_consumer("idle-worker")
        store.stream("orders:2025").add({"sku": "old"}, id=1_600_000_000_000)
        store.expire_at("orders", FAR_FUTURE_S)
        assert store.check() == []
    return directory


EMAILS_DUE_S, EMAILS_WAIT_S = 4_000_000_000, 2_000_000_000
"""When the delayed message of the queue is due, and the delay of another one."""


@pytest.fixture(scope="session")
def store_of_emails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with a queue, to copy."""
    directory = tmp_path_factory.mktemp("emails") / "store"
    clock = ManualClock()
    with Store.open(directory, durability="no", clock=clock) as store:
        emails = Queue(store, "emails", consumer="w", lease=30, max_deliveries=3, backoff=60)
        emails.get()
        emails.groups()[0].set_policy(reap=0)  # the consumer will be idle for years
        for to in ("ann", "bob", "cyd", "dan", "eve", "fay"):
            emails.put({"to": to})
            clock.advance(1000)
        emails.put({"to": "gil"}, at=EMAILS_DUE_S)
        ann, bob, cyd, _ = emails.get(4)
        try:
            raise ConnectionError("no such host")
        except ConnectionError as error:
            ann.nack(fatal=True, error=error)
        clock.advance(1000)
        bob.nack(fatal=True, error="no such user")
        cyd.nack(delay=EMAILS_WAIT_S)
        emails.redrive(where=("to", "nobody"))
        rule = ("0 3 1 1 *", [b"kind", b"report"], "Europe/Berlin", schedules.Misfire.SKIP)
        store.engine.run(schedules.set_schedule, qualified(0, b"emails"), b"nightly", *rule)
        assert store.check() == []
    return directory


@pytest.fixture(scope="session")
def store_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A closed store with jobs, to copy, and the IDs of the jobs by their status."""
    directory = tmp_path_factory.mktemp("jobs") / "store"
    jobs = Jobs(directory, durability="no")

    @jobs.task(name="send", retries=0)
    def send(to: str) -> str:
        if to == "nobody":
            raise ValueError("no such user")
        return f"sent to {to}"

    with jobs:
        ended = {"done": send.enqueue("ann"), "failed": send.enqueue("nobody")}
        stopping = threading.Event()
        worker = threading.Thread(target=Worker(jobs).run, args=[stopping, threading.Event()])
        worker.start()
        until(lambda: all(handle.status == status for status, handle in ended.items()))
        stopping.set()
        worker.join()
        left = {
            "scheduled": send.with_options(delay=10**9).enqueue("bob"),
            "queued": send.enqueue("cyd"),
        }
    return directory, {status: handle.id for status, handle in {**ended, **left}.items()}


def files_of(directory: Path) -> set[tuple[str, int, int]]:
    """Return name, size and time of every file, which show whether anything was written."""
    return {
        (entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
        for entry in os.scandir(directory)
    }


@pytest.fixture
def in_store(tmp_path: Path, store_of_orders: Path) -> Iterator[Program]:
    """The program on a store that does not exist yet; if created, it is checked afterwards.

    The store of orders is known to be sound, and so is a copy that was only read.
    """
    directory = tmp_path / "store"
    yield Program(directory)
    if directory.exists() and files_of(directory) != files_of(store_of_orders):
        with Store.open(directory, read_only=True) as store:  # faster than opening for writing
            assert store.check() == []


@pytest.fixture
def in_store_of_orders(in_store: Program, store_of_orders: Path) -> Program:
    """The program on a store of orders."""
    shutil.copytree(store_of_orders, in_store.directory)
    return in_store


@pytest.fixture
def on_server(tmp_path: Path) -> Iterator[RemoteProgram]:
    """The program on a server of kvstream, without any stream."""
    yield from _served(tmp_path / "served")


@pytest.fixture
def on_server_of_orders(tmp_path: Path, store_of_orders: Path) -> Iterator[RemoteProgram]:
    """The program on a server of the store of orders."""
    shutil.copytree(store_of_orders, tmp_path / "served")
    yield from _served(tmp_path / "served")


def _served(directory: Path) -> Iterator[RemoteProgram]:
    served = Served(directory)
    yield RemoteProgram(directory, f"redis://127.0.0.1:{served.port}")
    served.stop()


@pytest.fixture
def on_redis(redis_port: int, tmp_path: Path) -> RemoteProgram:
    """The program on a redis-server without any key."""
    return RemoteProgram(tmp_path / "none", f"redis://127.0.0.1:{redis_port}")


@pytest.fixture
def on_redis_of_orders(on_redis: RemoteProgram) -> RemoteProgram:
    """The program on a redis-server with the data of the store of orders."""
    with redis.Redis.from_url(on_redis.url) as client:
        for at in range(5):
            client.xadd("orders", {"sku": f"a{at}", "qty": at}, f"{1_700_000_000_000 + at * 1000}")
        client.xgroup_create("orders", "billing", "0")
        client.xreadgroup("billing", "worker-1", {"orders": ">"}, 2)
        client.xclaim("orders", "billing", "worker-1", 0, PENDING, time=LONG_AGO_MS, retrycount=1)
        client.xgroup_createconsumer("orders", "billing", "idle-worker")
        client.xadd("orders:2025", {"sku": "old"}, "1600000000000")
        client.pexpireat("orders", FAR_FUTURE_S * 1000)
    return on_redis


@pytest.fixture
def emails(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    """The program on a store or server with a queue ``emails``, whose group is ``workers``.

    ``ann`` and ``bob`` are dead letters, ``cyd`` waits for a retry, ``dan`` is leased to
    consumer ``w`` (the lease has ended), ``eve`` and ``fay`` are ready, ``gil`` is delayed.
    """
    source: Path = request.getfixturevalue("store_of_emails")
    directory = tmp_path / "emails"
    shutil.copytree(source, directory)
    if place == "server":
        yield from _served(directory)
        return
    yield Program(directory)
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []


@pytest.fixture
def job_ids(store_of_jobs: tuple[Path, dict[str, str]]) -> dict[str, str]:
    """The IDs of the jobs of ``with_jobs`` by their status."""
    return store_of_jobs[1]


@pytest.fixture
def with_jobs(
    place: str, store_of_jobs: tuple[Path, dict[str, str]], tmp_path: Path
) -> Iterator[Program]:
    """The program on a store or server with four jobs, one of each status."""
    directory = tmp_path / "jobs"
    shutil.copytree(store_of_jobs[0], directory)
    if place == "server":
        yield from _served(directory)
        return
    yield Program(directory)
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []


PLACES = {
    "store": ("in_store", "in_store_of_orders"),
    "server": ("on_server", "on_server_of_orders"),
    "redis": ("on_redis", "on_redis_of_orders"),
}
"""The fixtures of the places of the program: of an empty one, and of one with orders."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("places")
    if marker is not None and "place" in metafunc.fixturenames:
        metafunc.parametrize("place", marker.args)


@pytest.fixture
def place() -> str:
    """The place of the program, for tests without a mark of places."""
    return "store"


@pytest.fixture
def kvstream(place: str, request: pytest.FixtureRequest) -> Program:
    """The program on a store that does not exist yet; if created, it is checked afterwards."""
    program: Program = request.getfixturevalue(PLACES[place][0])
    return program


@pytest.fixture
def orders(place: str, request: pytest.FixtureRequest) -> Program:
    """The program on a store of orders.

    Stream ``orders``: five entries, a second apart from 1700000000000-0 on; group ``billing`` has
    the first two pending with ``worker-1``, and a consumer ``idle-worker``. Stream ``orders:2025``:
    one entry.
    """
    program: Program = request.getfixturevalue(PLACES[place][1])
    return program
