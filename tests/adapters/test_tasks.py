"""The queues that the adapters share: leases, priorities, threads and forks."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kvstream import InvalidArgument, Store
from kvstream.adapters.taskiq import KVStreamBroker
from kvstream.adapters.tasks import Tasks
from tests.adapters.conftest import LEASE_S, open_place, stand_still
from tests.patience import until


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with open_place(place) as store:
        yield store


def reader(store: Store) -> Tasks:
    return Tasks(lambda: store, LEASE_S)


@pytest.mark.parametrize("lease", [0, -1, "30", None])
def test_a_wrong_lease_is_refused_at_once(lease: Any) -> None:
    with pytest.raises(InvalidArgument, match="lease"):
        Tasks(lambda: pytest.fail("no store is needed"), lease)


def test_a_broker_of_taskiq_reads_at_least_one_task() -> None:
    with pytest.raises(InvalidArgument, match="count must be at least 1"):
        KVStreamBroker("unused", count=0)


def test_a_reader_sees_priorities_that_others_add(store: Store) -> None:
    first, second = reader(store), reader(store)
    assert first.get("q") == []
    for priority in (0, 2, -1.5):
        second.put("q", b"%g" % priority, priority)
    assert [task.body for task in first.get("q", count=9)] == [b"2", b"0", b"-1.5"]


def test_queues_are_read_together_by_priority(store: Store) -> None:
    tasks = reader(store)
    for name, priority in (("a", 0), ("b", 1), ("a", 1), ("c", 0)):
        tasks.put(name, name.encode(), priority)
    read = [tasks.get("a", "b")[0] for _ in range(3)]
    assert sorted(task.queue for task in read[:2]) == ["a", "b"]
    assert read[2].queue == "a"
    assert tasks.get("a", "b") == []


def test_entries_of_another_program_stop_no_reader(store: Store) -> None:
    tasks = reader(store)
    tasks.put("q", b"1", 2)
    for priority in (b"high", b"\xff"):
        store.stream("q:priorities").add({"priority": priority})
    store.stream("q:priorities").add({"level": "3"})
    store.stream("q").add({"body": "2"})
    assert [task.body for task in reader(store).get("q", count=9)] == [b"1", b""]


def test_tasks_of_a_dead_reader_are_redelivered_after_their_lease(store: Store) -> None:
    dead, other = reader(store), reader(store)
    dead.put("q", b"1")
    (task,) = dead.get("q")
    dead.release(task.ref)  # renewed no more, as by a process that was killed
    assert other.get("q") == []
    (again,) = other.get("q", block=0)
    assert (again.ref, again.deliveries) == (task.ref._replace(deliveries=2), 1)


@pytest.mark.parametrize("how", ["ack", "nack", "close"])
def test_a_late_call_does_not_change_the_task_of_another_reader(
    store: Store, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    late, other = reader(store), reader(store)
    late.put("q", b"1")
    (task,) = late.get("q")
    stand_still(late)
    (again,) = other.get("q", block=0)
    if how == "close":
        late._held.add(task.ref)
        late.close()
    else:
        getattr(late, how)(task.ref)
        assert "another reader's by now" in caplog.text
    assert late.get("q") == []
    assert store.stream("q").group("workers").pending().consumers == {other.consumer.encode(): 1}
    other.ack(again.ref)
    assert len(store.stream("q")) == 0


def test_a_late_renewal_loses_the_task(store: Store) -> None:
    late, other = reader(store), reader(store)
    late.put("q", b"1")
    (task,) = late.get("q")
    stand_still(late)
    (again,) = other.get("q", block=0)
    late._held.add(task.ref)
    late._renew()
    assert late._held == set()
    other.ack(again.ref)


def test_a_task_of_a_deleted_queue_is_acknowledged(store: Store) -> None:
    tasks = reader(store)
    tasks.put("q", b"1")
    (task,) = tasks.get("q")
    store.delete("q")
    tasks.ack(task.ref)


def test_a_delayed_task_is_read_when_it_is_due(store: Store) -> None:
    tasks = reader(store)
    tasks.put("q", b"later", delay=0.1)
    assert tasks.get("q") == []
    assert tasks.get("q", block=0)[0].body == b"later"


def test_a_queue_that_was_deleted_is_created_again(store: Store) -> None:
    tasks, other = reader(store), reader(store)
    tasks.put("q", b"1", priority=3)
    other.delete("q")
    assert (tasks.size("q"), tasks.items("q"), tasks.purge("q")) == (0, [], 0)
    other.delete("q")
    tasks.put("q", b"2", priority=3)
    assert reader(store).get("q")[0].body == b"2"


def test_threads_share_a_reader(store: Store) -> None:
    tasks, read = reader(store), []

    def work() -> None:
        while found := tasks.get("q"):
            tasks.ack(found[0].ref)
            read.append(found[0].body)

    for n in range(60):
        tasks.put("q", b"%d" % n, n % 3)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, read)) == list(range(60))
    assert tasks.size("q") == 0


def test_idle_consumers_are_deleted(store: Store) -> None:
    old, new = reader(store), reader(store)
    for tasks in (old, old, new):
        tasks.put("q", b"1")
    tasks_of_old = old.get("q", count=2)
    group = store.stream("q").group("workers")
    new.reap_s = 0.001
    until(lambda: all(info.idle > 1 for info in group.consumers()))
    new.get("q")
    assert len(group.consumers()) == 2  # the old one has tasks
    old.ack(*(task.ref for task in tasks_of_old))
    third = reader(store)
    third.reap_s = 0.001
    third.put("q", b"1")
    until(lambda: all(info.idle > 1 for info in group.consumers()))
    third.get("q")
    assert old.consumer.encode() not in {info.name for info in group.consumers()}


def test_a_forked_child_reads_as_another_consumer(store: Store) -> None:
    tasks = reader(store)
    tasks.put("q", b"1")
    held = tasks.get("q")
    before, end = tasks.consumer, tasks._end
    assert end is not None
    tasks._pid = 0  # as in a child, whose parent had another one
    tasks.put("q", b"2")
    assert tasks.get("q")[0].body == b"2"
    assert tasks.consumer != before
    tasks.close()  # the parent's tasks stay the parent's
    end()
    pending = store.stream("q").group("workers").pending()
    assert pending.consumers == {before.encode(): len(held)}
