"""The engine's lock: threads park before it, and are woken, handed it, or look by themselves."""

import threading

import pytest

from kvstream import Store
from kvstream.engine import lock as locks
from kvstream.engine.lock import EngineLock
from tests.engine.waiting import Call
from tests.patience import until


def parked(lock: EngineLock, count: int) -> None:
    until(lambda: len(lock.parked) == count, "threads to park")


def use(lock: EngineLock) -> None:
    with lock.held():
        pass


def test_a_thread_waits_until_the_lock_is_left_and_is_woken() -> None:
    lock = EngineLock()
    with lock.held():
        call = Call(lambda: use(lock))
        parked(lock, 1)
        assert lock.busy
    call.result()
    assert not lock.busy
    assert not lock.parked


def test_a_thread_that_has_the_lock_takes_it_again_and_leaves_it_busy() -> None:
    lock = EngineLock()
    with lock.held():
        use(lock)
        assert lock.busy
        assert lock.is_held_here()
    assert not lock.busy
    assert not lock.is_held_here()


def test_a_thread_that_has_waited_long_is_handed_the_lock_before_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "RETRY_S", 3600.0)
    lock, order = EngineLock(), []

    def taken_by(name: str) -> None:
        with lock.held():
            order.append(name)

    with lock.held():
        patient = Call(lambda: taken_by("patient"))
        parked(lock, 1)
        monkeypatch.setattr(locks, "HANDOVER_S", 0.0)
        hurried = Call(lambda: taken_by("hurried"))
        parked(lock, 2)
    hurried.result()
    patient.result()
    assert order == ["hurried", "patient"]


@pytest.mark.parametrize("handed", [False, True])
def test_a_wake_up_that_an_interrupt_lost_delays_and_no_more(
    monkeypatch: pytest.MonkeyPatch, handed: bool
) -> None:
    monkeypatch.setattr(locks, "HANDOVER_S", 0.0 if handed else 3600.0)
    lock = EngineLock()
    with lock:
        lock.busy = True  # and nobody takes it back
        call = Call(lambda: use(lock))
        parked(lock, 1)
    call.result()
    assert not lock.busy
    assert not lock.parked


def test_calls_of_threads_that_switch_all_the_time_all_end(store: Store) -> None:
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
