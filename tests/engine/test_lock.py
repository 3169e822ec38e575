"""The engine's lock: waiting threads are woken, are handed the lock, or retry."""

import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.engine.lock import HANDOVER_S, RETRY_S, EngineLock
from tests.engine.waiting import Call
from tests.patience import until


def parked(lock: EngineLock, count: int) -> None:
    until(lambda: len(lock.parked) == count, "threads to park")


def lock_with(retry_s: float = RETRY_S, handover_s: float = HANDOVER_S) -> EngineLock:
    lock = EngineLock()
    lock.retry_s, lock.handover_s = retry_s, handover_s
    return lock


def use(lock: EngineLock) -> None:
    with lock.hold():
        pass


def test_a_thread_waits_until_the_lock_is_released_and_is_woken() -> None:
    lock = EngineLock()
    with lock.hold():
        call = Call(lambda: use(lock))
        parked(lock, 1)
        assert lock.busy
    call.result()
    assert not lock.busy
    assert not lock.parked


def test_the_lock_is_reentrant() -> None:
    lock = EngineLock()
    with lock.hold():
        use(lock)
        assert lock.busy
        assert lock.is_held_here()
    assert not lock.busy
    assert not lock.is_held_here()


def test_a_thread_that_has_waited_long_gets_the_lock_first() -> None:
    lock, order = lock_with(retry_s=3600.0), []

    def taken_by(name: str) -> None:
        with lock.hold():
            order.append(name)

    with lock.hold():
        patient = Call(lambda: taken_by("patient"))
        parked(lock, 1)
        lock.handover_s = 0.0
        hurried = Call(lambda: taken_by("hurried"))
        parked(lock, 2)
    hurried.result()
    patient.result()
    assert order == ["hurried", "patient"]


@pytest.mark.parametrize("handed", [False, True])
def test_a_wake_up_lost_to_an_interrupt_only_delays(handed: bool) -> None:
    lock = lock_with(handover_s=0.0 if handed else 3600.0)
    with lock:
        lock.busy = True  # and no thread takes it back
        call = Call(lambda: use(lock))
        parked(lock, 1)
    call.result()
    assert not lock.busy
    assert not lock.parked


def test_calls_of_constantly_switching_threads_all_end(store: Store) -> None:
    before, ends = threading.active_count(), 400

    def add() -> None:
        stream = store.stream("s")
        for number in range(ends):
            if number % 40:
                stream.add({"f": "v"})
            else:
                with store.transaction():
                    stream.add({"f": "v"})

    calls = [Call(add) for _ in range(6)]
    for call in calls:
        call.result()
    until(lambda: threading.active_count() <= before, "the threads to end")
    assert len(store.stream("s")) == 6 * ends
    lock = store.engine._lock
    assert not lock.parked
    assert store.check() == []


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_transaction_releases_the_lock(tmp_path: Path, fails: bool) -> None:
    """Otherwise the next call would wait for RETRY_S."""
    with Store.open(tmp_path / "store") as store:
        with suppress(RuntimeError), store.transaction():
            store.stream("s").add({"f": "v"})
            if fails:
                raise RuntimeError("undone")
        assert not store.engine._lock.busy
        assert store.exists("s") is not fails


class LateWakeUps(deque[tuple[threading.Lock, bool]]):
    """Wakes a thread when it has just stopped waiting, and again when it waits again."""

    wake_ups = 0

    def append(self, mine: tuple[threading.Lock, bool]) -> None:
        super().append(mine)
        if self.wake_ups == 1:
            self.wake()

    def remove(self, mine: tuple[threading.Lock, bool]) -> None:
        if self.wake_ups == 0:
            self.wake()
        super().remove(mine)

    def wake(self) -> None:
        self.wake_ups += 1
        self.popleft()[0].release()


def test_a_late_wake_up_does_not_disturb_the_next() -> None:
    lock = lock_with(retry_s=0.001, handover_s=3600.0)
    lock.parked = parked = LateWakeUps()
    with lock:
        lock.busy = True
        call = Call(lambda: use(lock))
        until(lambda: parked.wake_ups == 2 or call.ended, "a late wake-up")
    call.result()
