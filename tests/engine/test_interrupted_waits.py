"""A thread interrupted while it waits for the disk passes its turn on."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from tests.patience import PATIENCE_S, until


class SlowDisk:
    """The store's fsync, which returns only after ``release``."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self._flush = store.engine.database.flush_wal
        self._committer = store.engine.committer
        monkeypatch.setattr(store.engine.database, "flush_wal", self)

    def __call__(self) -> int:
        sequence = self._flush()
        self.begun.set()
        assert self.let_go.wait(PATIENCE_S)
        return sequence

    def await_queued(self, count: int) -> None:
        until(lambda: len(self._committer._queue) >= count, "the threads that wait for the disk")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", durability="always") as opened:
        yield opened


def test_an_interrupted_writer_passes_its_turn_to_flush_to_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = store.stream("s")
    disk = SlowDisk(store, monkeypatch)
    writers = [threading.Thread(target=stream.add, args=({"n": n},)) for n in range(3)]

    def others() -> None:
        disk.await_queued(1)  # the main thread, first in the queue
        for at, writer in enumerate(writers[1:], 2):
            writer.start()
            disk.await_queued(at)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    writers[0].start()
    assert disk.begun.wait(PATIENCE_S)
    interrupter = threading.Thread(target=others)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        stream.add({"n": "interrupted"})
    interrupter.join()
    disk.let_go.set()
    for writer in writers:
        writer.join(PATIENCE_S)
    assert not any(writer.is_alive() for writer in writers)
    assert len(stream) == 4
    assert store.check() == []
