"""dramatiq on a store: its broker, its results, and workers that are killed."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest
from dramatiq import Message, Worker
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout
from dramatiq.results import Results
from dramatiq.results.errors import ResultMissing, ResultTimeout

from kvstream import ServerUnavailable
from kvstream.adapters.dramatiq import (
    KVStreamBackend,
    KVStreamBroker,
    KVStreamRateLimiterBackend,
)
from tests.adapters.conftest import (
    LEASE_S,
    Start,
    all_are_done_though_workers_are_killed,
    options_of,
    stand_still,
)
from tests.patience import until

JOIN_MS = 60_000


@pytest.fixture
def broker(place: str) -> Iterator[KVStreamBroker]:
    broker = KVStreamBroker(place, lease=LEASE_S, **options_of(place))
    before = dramatiq.get_broker()
    dramatiq.set_broker(broker)
    yield broker
    dramatiq.set_broker(before)
    broker.close()


@contextmanager
def working(broker: KVStreamBroker, threads: int = 2) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=50, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def message_to(actor: str) -> Message[Any]:
    return Message(queue_name="default", actor_name=actor, args=(), kwargs={}, options={})


def test_messages_are_processed_and_deleted(broker: KVStreamBroker) -> None:
    done: list[int] = []

    @dramatiq.actor
    def note(n: int) -> None:
        done.append(n)

    for n in range(50):
        note.send(n)
    assert broker.size("default") == 50
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert sorted(done) == list(range(50))
    assert broker.size("default") == 0


def test_a_delayed_message_waits_and_later_ones_do_not(broker: KVStreamBroker) -> None:
    done: list[tuple[str, float]] = []

    @dramatiq.actor
    def note(name: str) -> None:
        done.append((name, time.time()))

    begun = time.time()
    note.send_with_options(args=("last",), delay=400)
    note.send_with_options(args=("second",), delay=100)
    note.send("first")
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert [name for name, _ in done] == ["first", "second", "last"]
    assert done[-1][1] - begun >= 0.4


def test_a_failing_message_is_retried_and_then_a_dead_letter(broker: KVStreamBroker) -> None:
    tries = []

    @dramatiq.actor(max_retries=1, min_backoff=1, max_backoff=1)
    def fail() -> None:
        tries.append(1)
        raise RuntimeError("as it should")

    fail.send()
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert len(tries) == 2
    (dead,) = broker.dead_letters("default")
    assert Message.decode(dead.fields[b"task"]).actor_name == "fail"


def test_messages_read_with_a_malformed_one_are_not_lost_by_an_error(
    broker: KVStreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.declare_queue("default")
    broker.tasks.put(broker.key("default"), b"nonsense")
    broker.enqueue(message_to("somebody"))
    consumer = broker.consume("default", prefetch=2, timeout=1000)

    def fail(*args: object, **options: object) -> None:
        raise ServerUnavailable("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(broker.tasks, "bury", fail)
        with pytest.raises(ConnectionClosed):
            next(consumer)
    consumer.close()
    message = next(broker.consume("default", prefetch=1, timeout=1000))
    assert message is not None
    assert message.actor_name == "somebody"


def test_messages_without_an_actor_and_malformed_ones_are_dead_letters(
    broker: KVStreamBroker,
) -> None:
    broker.declare_queue("default")
    broker.enqueue(message_to("nobody"))
    broker.tasks.put(broker.key("default"), b"nonsense")
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert len(broker.dead_letters("default")) == 2


def test_old_dead_letters_are_deleted(broker: KVStreamBroker) -> None:
    broker.dead_letters("default").add({"task": "old"}, id="1-1")
    broker.declare_queue("default")
    broker.dead_letters("default").set_id("2-1")
    broker.dead_message_ttl = 1000
    broker.enqueue(message_to("nobody"))
    with working(broker):
        broker.join("default", timeout=JOIN_MS)
    assert broker.dead_letters("default").range(count=1)[0].fields[b"task"] != b"old"


def test_a_stopping_worker_gives_back_messages_that_it_has_not_begun(
    broker: KVStreamBroker,
) -> None:
    begun = []

    @dramatiq.actor
    def slow(n: int) -> None:
        begun.append(n)
        time.sleep(0.2)

    for n in range(4):
        slow.send(n)
    with working(broker, threads=1):
        until(lambda: begun)
    rest = broker.size("default")
    assert rest == 4 - len(begun)
    assert len(broker.tasks.get(broker.key("default"), count=9)) == rest


@pytest.mark.parametrize("how", ["ack", "nack", "requeue"])
def test_a_late_ack_leaves_a_message_with_its_new_worker(
    place: str, broker: KVStreamBroker, how: str
) -> None:
    other = KVStreamBroker(place, lease=LEASE_S, **options_of(place))
    broker.enqueue(message_to("nobody"))
    late, new = (each.consume("default", timeout=30_000) for each in (broker, other))
    message = next(late)
    stand_still(broker.tasks)
    again = next(new)
    assert message is not None
    assert again is not None
    late.requeue([message]) if how == "requeue" else getattr(late, how)(message)
    stream = broker.place.store.stream("dramatiq:default")
    assert stream.group("workers").pending().count == 1
    assert len(broker.dead_letters("default")) == 0
    new.ack(again)
    assert len(stream) == 0
    other.close()


def test_join_times_out_and_flush_empties_the_queue(broker: KVStreamBroker) -> None:
    broker.declare_queue("default")
    broker.enqueue(message_to("a"))
    broker.enqueue(message_to("a"), delay=1000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", interval=1, timeout=10)
    broker.flush_all()
    broker.join("default", timeout=JOIN_MS)


def test_results_are_stored_and_expire(place: str, broker: KVStreamBroker) -> None:
    backend = KVStreamBackend(place, **options_of(place))
    broker.add_middleware(Results(backend=backend))

    @dramatiq.actor(store_results=True, result_ttl=50)
    def add(a: int, b: int) -> int:
        return a + b

    message = add.send(1, 2)
    with pytest.raises(ResultMissing):
        message.get_result(backend=backend)
    with pytest.raises(ResultTimeout):
        message.get_result(backend=backend, block=True, timeout=1)
    add.options["result_ttl"] = 60_000
    message = add.send(1, 2)
    with working(broker):
        assert message.get_result(backend=backend, block=True, timeout=JOIN_MS) == 3
    backend._store("short", 1, 10)
    until(lambda: backend._results.get("short") is None)
    backend.place.close()


def test_limits_hold_for_all_processes(place: str) -> None:
    backend = KVStreamRateLimiterBackend(place, **options_of(place))
    with ThreadPoolExecutor(8) as threads:
        tries = [threads.submit(backend.incr, "jobs", 1, 5, 60_000) for _ in range(8)]
    assert sum(each.result() for each in tries) == 5
    assert backend.decr("jobs", 5, 0, 60_000)
    assert not backend.decr("jobs", 1, 0, 60_000)
    assert backend.add("other", 4, 60_000)
    assert not backend.incr_and_sum("jobs", lambda: ["other"], 2, 5, 60_000)
    assert backend.incr_and_sum("jobs", lambda: ["other"], 1, 5, 60_000)
    assert not backend.wait("done", timeout=1)
    backend.wait_notify("done", ttl=60_000)
    assert backend.wait("done", timeout=JOIN_MS)
    backend.place.close()


def test_killed_workers_lose_no_message(place: str, broker: KVStreamBroker, start: Start) -> None:
    @dramatiq.actor
    def note(n: int) -> None: ...

    words = ("tests.adapters.dramatiq_app", "--processes", "1", "--threads", "2")
    workers = start("dramatiq", *words, "--skip-logging")
    all_are_done_though_workers_are_killed(place, note.send, workers)
