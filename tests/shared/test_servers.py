"""uvicorn, gunicorn and Celery: their workers share a store, and are killed under load."""

import http.client
import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S, until
from tests.peers import PeerProcess
from tests.ports import free_port
from tests.shared import apps
from tests.shared.conftest import owner_of, shared

KILLS = rounds(3)
ADDED_BETWEEN = 30
WORKERS = 3
PAUSE_S = 0.002
"""Between two requests of a load, which else keeps a core busy while workers start."""

pytestmark = pytest.mark.timeout(7200)


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


@contextmanager
def running(
    directory: Path, *command: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of many processes, and end them all."""
    with open(directory.parent / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "KVSTREAM_STORE": str(directory)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers_of(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the children that run the program."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in children}
    return [int(pid) for pid, line in lines.items() if b"resource_tracker" not in _read(line)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class Load(threading.Thread):
    """Asks a web program to add numbers; notes which it has acknowledged."""

    def __init__(self, port: int, first: int) -> None:
        super().__init__(daemon=True)
        self.port, self.next = port, first
        self.acknowledged: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self.next += 1
            if self.asked(self.next):
                self.acknowledged.append(self.next)
            time.sleep(PAUSE_S)

    def asked(self, n: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/{n}")
            return connection.getresponse().read() == b"added"
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def under_load(directory: Path, process: "subprocess.Popen[bytes]", port: int) -> None:
    """Kill workers under load; check that the store has what was acknowledged, each once."""
    chance = random.Random(1)
    loads = [Load(port, 1_000_000 * place) for place in range(4)]
    until(lambda: loads[0].asked(0), "the program", 0.05)
    for load in loads:
        load.start()
    try:
        for number in range(KILLS):
            before = sum(len(load.acknowledged) for load in loads)
            until(lambda: sum(len(load.acknowledged) for load in loads) >= before + ADDED_BETWEEN)  # noqa: B023
            until(lambda: len(workers_of(process)) >= WORKERS, "the workers", 0.02)
            victims = workers_of(process)
            owner = owner_of(directory)  # which every second kill hits, where it is a worker
            hits = number % 2 == 0 and owner in victims
            with suppress(ProcessLookupError):  # it may have ended with the owner
                os.kill(owner if hits and owner else chance.choice(victims), signal.SIGKILL)
    finally:
        for load in loads:
            load.stop.set()
        for load in loads:
            load.join(PATIENCE_S)
    with shared(directory) as store:
        added = Counter(int(entry.fields[b"n"]) for entry in store.stream("n"))
    assert max(added.values()) == 1
    assert {n for load in loads for n in load.acknowledged} <= added.keys()


@needs("uvicorn")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_uvicorn(directory: Path, loop: str) -> None:
    port = free_port()
    words = ("--port", str(port), "--workers", str(WORKERS), "--loop", loop, "--log-level", "error")
    with running(directory, "uvicorn", f"{apps.__name__}:asgi", *words) as process:
        under_load(directory, process, port)


@needs("gunicorn")
@pytest.mark.parametrize("program", ["wsgi", "preloaded()"])
def test_gunicorn(directory: Path, program: str) -> None:
    """With --preload the parent, which is not killed, owns the store."""
    port = free_port()
    words = ["--bind", f"127.0.0.1:{port}", "--workers", str(WORKERS), "--log-level", "error"]
    if program != "wsgi":
        words.append("--preload")
    with running(directory, "gunicorn", f"{apps.__name__}:{program}", *words) as process:
        under_load(directory, process, port)


@needs("celery")
def test_celery(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    peer = PeerProcess("redis-7.0", tmp_path)  # a folder as broker has a lock, which the dead keep
    request.addfinalizer(peer.stop)
    monkeypatch.setenv("KVSTREAM_BROKER", f"redis://127.0.0.1:{peer.port}")
    app = apps.celery()
    words = ("worker", "--pool", "prefork", "--concurrency", str(WORKERS), "--loglevel", "ERROR")
    chance, numbers = random.Random(1), iter(range(10_000))
    sent = 0
    with (
        running(directory, "celery", "-A", "tests.shared.celery_app", *words) as process,
        shared(directory) as store,
    ):
        stream = store.stream("n")
        for _ in range(KILLS):
            for _ in range(ADDED_BETWEEN):
                app.send_task("add", [next(numbers)])
            sent += ADDED_BETWEEN
            until(lambda: len(stream) >= sent - ADDED_BETWEEN // 2, "tasks", 0.02)  # noqa: B023
            with suppress(ProcessLookupError):
                os.kill(chance.choice(workers_of(process)), signal.SIGKILL)

        def added() -> set[int]:
            return {int(entry.fields[b"n"]) for entry in stream}

        until(lambda: added() == set(range(sent)), "all tasks", 0.1)  # some twice: acks_late
    app.close()
