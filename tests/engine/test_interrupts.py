"""A call interrupted at any point leaves no lock and no thread behind."""

import gc
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import kvstream
from kvstream import Corruption, Durability, Queue, Store
from kvstream.engine import engine
from kvstream.engine.expiry import Expiry
from kvstream.engine.waiters import Interrupt
from kvstream.layout.keys import qualified
from kvstream.logs import DeferredLogger, emit_deferred
from kvstream.storage.durability import Committer
from tests.engine.waiting import Call
from tests.interrupting import interrupted_at
from tests.patience import until

SOME = 9
"""Every ninth point of a long call."""


def _keeping(kept: list[BaseException], call: Callable[[], object]) -> None:
    """Call, and keep the interrupt: its frames may hold what they should have released."""
    try:
        call()
    except KeyboardInterrupt as error:
        kept.append(error)
        raise


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NO])
def test_the_next_close_completes_an_interrupted_one(
    tmp_path: Path, durability: Durability
) -> None:
    written = 0
    kept: list[BaseException] = []
    for point in count(1, SOME):
        store = Store.open(tmp_path, durability=durability)
        assert len(store.stream("s")) == written
        store.stream("s").add({"f": "v"})
        written += 1
        kept.clear()
        interrupted = interrupted_at(point, lambda: _keeping(kept, store.close))  # noqa: B023
        store.close() if point % 2 else Call(store.close).result()
        kept.clear()
        if not interrupted:
            break
    assert written > 10


@pytest.mark.parametrize("error", [KeyboardInterrupt, Corruption("of rows"), MemoryError])
@pytest.mark.parametrize("part", ["staged_loads", "Expiry", "Committer", "Upkeep", "TimerThread"])
def test_an_interrupted_opening_leaves_the_store_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException
) -> None:
    fails = Mock(side_effect=error, **{"recover.side_effect": error})
    threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(engine, part, fails)
        with pytest.raises(BaseException, match=r"of rows|^$"):
            Store.open(tmp_path)
    until(lambda: threading.active_count() <= threads, "the threads to end")
    with Store.open(tmp_path) as store:
        assert store.stream("s").add({"f": "v"})


def test_a_committer_interrupted_during_its_creation_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, threads = Committer._start_thread, threading.active_count()

    def interrupted(committer: Committer) -> None:
        start(committer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Store.open(tmp_path)
    until(lambda: threading.active_count() <= threads, "the thread to end")
    Store.open(tmp_path).close()


def test_an_interrupted_transaction_does_not_block_others(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:

        def add_two() -> None:
            with store.transaction():
                store.stream("s").add({"f": "v"})
                store.stream("s").add({"f": "v"})

        for point in count(1, 5):
            interrupted = interrupted_at(point, add_two)
            length = len(store.stream("s"))
            Call(lambda: store.stream("s").add({"f": "v"}, nomkstream=True)).result()
            assert len(store.stream("s")) in (0, length + 1)
            store.delete("s")
            assert length in (0, 2)
            if not interrupted:
                break
        assert point > 100
        assert store.check() == []


def test_an_interrupted_emission_of_log_lines_leaves_the_thread_able_to_emit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = DeferredLogger("kvstream.interrupts")
    for point in range(1, 5):  # later ones are inside logging, which would keep a lock of its own
        logger.warning("interrupted")
        assert interrupted_at(point, emit_deferred)
        logger.warning("point %d", point)
        emit_deferred()
        assert caplog.messages[-1] == f"point {point}"


def test_an_interrupted_change_of_the_owner_does_not_refuse_the_next_one(tmp_path: Path) -> None:
    with kvstream.open(tmp_path, shared=True) as store:
        engine: Any = store._engine

        def change() -> None:
            with engine._changing_owner():
                pass

        for point in count(1):
            if not interrupted_at(point, change):
                break
            change()
        assert point > 10


def _transaction(store: Store) -> None:
    with store.transaction():
        store.stream("s").add({"f": "v"})


def _settle(store: Store) -> None:
    queue = Queue(store, "jobs")
    queue.put({"f": "v"})
    for message in queue.get(1):
        with message.transaction():
            store.stream("s").add({"f": "v"})


def _read_and_ack(store: Store) -> None:
    group = store.stream("s").create_group("g", start="0", exist_ok=True)
    group.ack(group.consumer("c").read(count=1))


CALLS: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.stream("s").add({"f": "v"}),
    "add_many": lambda store: store.stream("s").add_many([{"f": "v"}] * 2),
    "trim": lambda store: store.stream("s").trim(maxlen=5),
    "transaction": _transaction,
    "blocked_read": lambda store: store.stream("s").read(after="$", block=0.001),
    "read_and_ack": _read_and_ack,
    "message_transaction": _settle,
    "flush": lambda store: store.engine.flush(),
    "compact": lambda store: store.compact(),
    "sync": lambda store: store.engine.sync(),
}


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.EVERYSEC])
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_call_leaves_the_store_to_other_threads(
    tmp_path: Path, call: str, durability: Durability
) -> None:
    """Also while somebody keeps the exception, and with it the frames of the call."""
    kept: list[BaseException] = []
    with Store.open(tmp_path / "store", durability=durability) as store:
        step = SOME if call in ("message_transaction", "compact") else 3
        for point in count(1, step):
            interrupted = interrupted_at(
                point,
                lambda: _keeping(kept, lambda: CALLS[call](store)),
            )
            Call(lambda: store.stream("other").add({"f": "v"})).result()
            assert store.stream("other").add({"f": "v"})
            if not interrupted:
                break
        assert kept
        assert store.check() == []
        Call(store.close).result()
    kept.clear()
    gc.collect()  # a frame may have a handle of RocksDB, which has the directory


def test_an_interrupted_stop_of_the_expiry_can_be_repeated() -> None:
    for point in count(1):
        expiry = Expiry(lambda step, most: 0)
        expiry.start()
        interrupted = interrupted_at(point, expiry.stop)
        Call(expiry.stop).result()
        expiry.join()
        if not interrupted:
            break
    assert point > 3


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NO])
def test_an_interrupted_wait_leaves_no_lock_and_no_waiter(
    tmp_path: Path, durability: Durability
) -> None:
    name = qualified(0, b"s")
    with Store.open(tmp_path, durability=durability) as store:
        for point in count(1):
            interrupted = interrupted_at(
                point, lambda: store.engine.wait_for([name], lambda txn: None, 0.001)
            )
            assert len(store.engine.waiters) == 0
            Call(lambda: store.stream("s").add({"f": "v"})).result()
            if not interrupted:
                break
        assert point > 10
        assert len(store.stream("s")) == point


def test_an_interrupted_wait_for_the_end_of_reads_does_not_block_who_ends_them() -> None:
    for point in count(1):
        ending = Interrupt()
        interrupted = interrupted_at(point, lambda: ending.wait(0.001))  # noqa: B023
        Call(ending.set).result()
        assert ending.wait(0)
        if not interrupted:
            break
    assert point > 1
