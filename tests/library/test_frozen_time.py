"""Waits under a clock that stands still, as freezegun makes one: IDs stop, waits do not."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstream
from kvstream import Queue, Store
from kvstream.types.clock import SystemClock
from tests.patience import PATIENCE_S

NOW_MS = 1_767_225_600_000
"""2026-01-01: before or after today, whenever the tests run."""
WAIT_S = 0.05


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the clocks wherever a module has them, as freezegun does.

    It leaves ``threading`` alone, and so the conditions and events of Python.
    """
    monotonic_s = time.monotonic()
    fakes: dict[int, Callable[[], float]] = {
        id(time.monotonic): lambda: monotonic_s,
        id(time.perf_counter): lambda: monotonic_s,
        id(time.time): lambda: NOW_MS / 1000,
        id(time.time_ns): lambda: NOW_MS * 1_000_000,
    }
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name == "time" or name.startswith(("kvstream", "asyncio")):
            for attribute, value in list(vars(module).items()):
                if id(value) in fakes:
                    monkeypatch.setattr(module, attribute, fakes[id(value)])
    yield
    monkeypatch.undo()


def ends(call: Callable[[], object]) -> object:
    """Return the result of a call that must not wait for ever."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the call has not returned"
    return results[0]


def test_no_module_has_a_clock_that_can_be_frozen() -> None:
    clocks = time.monotonic, time.perf_counter, time.monotonic_ns, time.perf_counter_ns
    found = [
        f"{module.__name__}.{name}"
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("kvstream")
        for name, value in vars(module).items()
        if any(value is clock for clock in clocks)
    ]
    assert found == []


def test_no_module_names_a_clock_that_can_be_frozen() -> None:
    root = Path(kvstream.__file__).parent
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    words = "time.monotonic(", "time.perf_counter(", "time import monotonic"
    assert [path for path, text in texts.items() if any(word in text for word in words)] == []


@pytest.mark.usefixtures("frozen")
def test_blocked_reads_end_and_ids_stand_still(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        stream = store.stream("s")
        assert stream.add({"n": 1}).ms == NOW_MS
        assert ends(lambda: stream.read(after="$", block=WAIT_S)) == []
        workers = stream.create_group("workers").consumer("w")
        assert ends(lambda: workers.read(block=WAIT_S)) == []
        ends(store.compact)


@pytest.mark.usefixtures("frozen")
def test_a_delayed_message_waits_for_the_frozen_clock(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        queue = Queue(store, "q")
        queue.put({"n": 1}, delay=3600)
        assert ends(lambda: queue.get(1, WAIT_S)) == []
        queue.put({"n": 2})
        assert len(ends(lambda: queue.get(1, WAIT_S))) == 1  # type: ignore[arg-type]


@pytest.mark.usefixtures("frozen")
def test_a_shared_store_is_elected_read_and_closed(tmp_path: Path) -> None:
    with kvstream.open(tmp_path / "store", shared=True) as store:
        store.stream("s").add({"n": 1})
        assert ends(lambda: store.stream("s").read(after="$", block=WAIT_S)) == []


@pytest.mark.usefixtures("frozen")
def test_blocked_tasks_end(tmp_path: Path) -> None:
    async def read() -> object:
        async with kvstream.aio.open(tmp_path / "store") as store:
            stream = store.stream("s")
            await stream.add({"n": 1})
            return await stream.read(after="$", block=WAIT_S)

    assert ends(lambda: asyncio.run(read())) == []


def test_threads_read_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freezegun gives the real time to calls that are few frames above ``threading``."""

    def time_ns() -> int:
        frame = sys._getframe(1)
        for _ in range(5):
            if frame.f_globals["__name__"] == "threading":
                return 0
            assert frame.f_back is not None
            frame = frame.f_back
        return NOW_MS * 1_000_000

    monkeypatch.setattr(time, "time_ns", time_ns)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(SystemClock().now_ms()))
    thread.start()
    thread.join()
    assert found == [NOW_MS]
