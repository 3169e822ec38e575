"""Waits that an interrupt ends: of threads for the disk, and of blocked reads."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.engine.blocking_reads import QueueRead
from kvstream.engine.waiters import Interrupt, Outcome
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.reads.read import Reply
from tests.engine.waiting import Call, blocked
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


def test_an_interrupted_read_that_was_served_waits_for_the_fsync_of_its_outcome(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, name, interrupt = store.stream("s"), qualified(0, b"s"), Interrupt()
    stream.create_group("g", start="$")
    disk = SlowDisk(store, monkeypatch)
    disk.let_go.set()

    class Read(QueueRead):
        def __call__(self, txn: Txn) -> Reply | None:
            leased = super().__call__(txn)
            if leased:
                disk.let_go.clear()
                disk.begun.clear()
            return leased

    read = Read([name], b"g", b"c", 1, 60_000, interrupt)
    reader = blocked(store, lambda: store.engine.wait_for([name], read, None))
    Call(lambda: stream.add({"f": "v"})).result()
    assert disk.begun.wait(PATIENCE_S)
    for _ in range(200):  # a signal handler may call it again and again
        interrupt.set()
        threading.Event().wait(0.001)
    assert not reader.ended
    disk.let_go.set()
    assert reader.result()


def test_an_interrupt_loses_no_wake_up_that_another_reader_has_raised(store: Store) -> None:
    names = [qualified(0, key) for key in (b"a", b"b")]
    outcomes: list[Outcome] = []
    moved: list[bool] = []
    interrupts = [KeyboardInterrupt()]

    def move(txn: Txn) -> bool | None:
        if txn.stream(names[0]) is None:
            return None
        txn.signal(names[1], Wake.ADDED)
        moved.append(True)
        return True

    def read(txn: Txn) -> bool | None:
        if moved and interrupts:
            raise interrupts.pop()
        return True if moved else None

    for name, attempt in zip(names, (move, read), strict=True):
        store.engine.submit([name], attempt, outcomes.append)
    with pytest.raises(KeyboardInterrupt):
        store.stream("a").add({"f": "v"})
    store.stream("other").add({"f": "v"})
    until(lambda: len(outcomes) == 2, "both outcomes")
    assert [outcome.get() for outcome in outcomes] == [True, True]
