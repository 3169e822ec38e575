"""huey on a store: its storage, its consumers, and tasks whose consumers are killed."""

import importlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pickle import UnpicklingError
from typing import Any

import pytest
from huey.constants import EmptyData
from huey.serializer import SignedSerializer

from kvstream.adapters.huey import KVStreamHuey, KVStreamStorage
from tests.adapters.conftest import (
    LEASE_S,
    Start,
    all_are_done_though_workers_are_killed,
    options_of,
    stand_still,
)
from tests.patience import until


@pytest.fixture
def storage(place: str) -> Iterator[KVStreamStorage]:
    storage = KVStreamStorage("app", place, read_timeout=0.01, **options_of(place))
    yield storage
    storage.close()


@pytest.fixture
def huey(place: str) -> Iterator[KVStreamHuey]:
    huey = KVStreamHuey("app", place, read_timeout=0.01, utc=False, **options_of(place))
    yield huey
    huey.storage.close()


def test_tasks_are_read_by_priority_then_in_order(storage: KVStreamStorage) -> None:
    for n, priority in enumerate((1, None, 5, 2.5, None, -1, 0)):
        storage.enqueue(b"%d" % n, priority)
    assert storage.enqueued_items(3) == [b"2", b"3", b"0"]
    assert storage.queue_size() == 7
    read = [storage.dequeue() for _ in range(8)]
    assert read == [b"2", b"3", b"0", b"1", b"4", b"6", b"5", None]
    assert storage.queue_size() == 0


def test_a_flush_deletes_everything(storage: KVStreamStorage) -> None:
    storage.enqueue(b"a")
    storage.enqueue(b"b", 3)
    storage.add_to_schedule(b"c", datetime.now())
    storage.put_data("d", b"1")
    storage.incr("e")
    storage.flush_all()
    assert (storage.queue_size(), storage.schedule_size()) == (0, 0)
    assert (storage.result_items(), storage.incr("e")) == ({}, 1)
    storage.enqueue(b"f")
    assert storage.dequeue() == b"f"


def test_entries_of_another_program_stop_no_schedule(storage: KVStreamStorage) -> None:
    stream = storage.schedule.stream
    for fields in (
        {"at": "soon", "task": "a"},
        {"at": "nan", "task": "b"},
        {"at": "1"},
        {"x": "y"},
    ):
        stream.add(fields)
    storage.add_to_schedule(b"c", datetime(2020, 1, 1))
    assert storage.scheduled_items() == [b"c"]
    assert storage.read_schedule(datetime.now()) == [b"c"]


def test_due_tasks_are_read_once_and_in_order(storage: KVStreamStorage) -> None:
    now = datetime.now()
    for data, seconds in ((b"late", 5), (b"second", -1), (b"first", -2)):
        storage.add_to_schedule(data, now + timedelta(seconds=seconds))
    assert storage.scheduled_items() == [b"first", b"second", b"late"]
    assert storage.read_schedule(now) == [b"first", b"second"]
    assert storage.read_schedule(now) == []
    assert storage.scheduled_items(9) == [b"late"]


def test_results_locks_and_counters(storage: KVStreamStorage) -> None:
    storage.put_data(b"k", b"1", is_result=True)
    assert (storage.peek_data("k"), storage.peek_data("none")) == (b"1", EmptyData)
    assert not storage.put_if_empty("k", b"2")
    assert storage.put_if_empty("lock", b"1", ttl=0.02)
    until(lambda: not storage.has_data_for_key("lock"))
    assert (storage.pop_data("k"), storage.pop_data("k")) == (b"1", EmptyData)
    assert not storage.delete_data("k")
    assert [storage.incr("n", 5), storage.incr("n", -2)] == [5, 3]


def test_an_executed_task_is_deleted(huey: KVStreamHuey) -> None:
    @huey.task()
    def add(a: int, b: int) -> int:
        return a + b

    result = add(1, 2)
    task = huey.dequeue()
    assert huey.dequeue() is None
    assert len(huey.storage.place.store.stream("huey:app:queue")) == 1
    huey.execute(task)
    assert len(huey.storage.place.store.stream("huey:app:queue")) == 0
    assert result.get() == 3


def test_a_late_ack_leaves_a_task_with_its_new_consumer(place: str) -> None:
    late, other = (
        KVStreamHuey("app", place, read_timeout=0, lease=LEASE_S, **options_of(place))
        for _ in range(2)
    )
    late.task(name="note")(bool)()
    other.task(name="note")(bool)
    task = late.dequeue()
    stand_still(late.storage.tasks)
    again = other.dequeue()
    late.execute(task)
    stream = other.storage.place.store.stream("huey:app:queue")
    assert stream.group("workers").pending().count == 1
    other.execute(again)
    assert len(stream) == 0
    for each in (late, other):
        each.storage.close()


def test_an_interrupted_task_is_given_back(huey: KVStreamHuey) -> None:
    @huey.task()
    def stop() -> None:
        raise KeyboardInterrupt

    stop()
    huey.execute(huey.dequeue())
    assert huey.dequeue() is not None


def test_a_scheduled_task_moves_to_the_queue_once(huey: KVStreamHuey) -> None:
    @huey.task(priority=2)
    def nothing() -> None: ...

    task = nothing.s()
    task.eta = datetime.now() - timedelta(seconds=1)
    huey.add_schedule(task)
    for _ in range(2):
        huey.enqueue_due()
    assert (huey.scheduled_count(), huey.pending_count()) == (0, 1)
    assert huey.dequeue().id == task.id


def test_a_message_that_is_no_task_is_not_redelivered(huey: KVStreamHuey) -> None:
    huey.storage.enqueue(b"nonsense")
    with pytest.raises(UnpicklingError):
        huey.dequeue()
    assert huey.dequeue() is None


def test_a_message_that_is_not_signed_runs_nothing(place: str, huey: KVStreamHuey) -> None:
    ran: list[str] = []
    huey.task(name="note")(ran.append)("forged")
    options = {"read_timeout": 0.01, "serializer": SignedSerializer(secret="key")}
    signed = KVStreamHuey("app", place, **options, **options_of(place))
    note = signed.task(name="note")(lambda text: text)
    with pytest.raises(ValueError, match="not found"):
        signed.dequeue()
    result = note("own")
    signed.execute(signed.dequeue())
    assert (result(), ran) == ("own", [])
    assert signed.dequeue() is None
    signed.storage.close()


def test_killed_consumers_lose_no_task(
    place: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSTREAM_PLACE", place)
    app: Any = importlib.import_module("tests.adapters.huey_app")
    huey = KVStreamHuey("app", place, lease=LEASE_S, **options_of(place))
    note = huey.task(name="note")(app.note.func)
    words = ("-w", "2", "-k", "thread" if "://" in place else "process", "-q")
    workers = start("huey.bin.huey_consumer", "tests.adapters.huey_app.huey", *words)
    all_are_done_though_workers_are_killed(place, note, workers)
    huey.storage.close()
