"""kombu and Celery on a store: messages, exchanges, results, and workers that are killed."""

import importlib
import sys
import time
from collections.abc import Iterator
from socket import timeout as Timeout
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TimeoutError
from kombu import pools
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Consumer
from kombu.transport.virtual import Message

from kvstream import InvalidArgument
from kvstream.adapters.kombu import _url_of, place_of
from tests.adapters.conftest import (
    LEASE_S,
    Start,
    all_are_done_though_workers_are_killed,
    open_place,
    options_of,
    stand_still,
)


@pytest.fixture
def url(place: str) -> str:
    return f"kvstream+{place}" if "://" in place else f"kvstream://{place}"


@pytest.fixture
def connection(url: str, place: str) -> Iterator[Connection]:
    options = {"visibility_timeout": LEASE_S, **options_of(place)}
    with Connection(url, transport_options=options) as connection:
        yield connection


def test_the_highest_priority_comes_first(connection: Connection) -> None:
    queue = connection.SimpleQueue("q")
    for body, priority in (("a", 3), ("b", 7), ("c", 3), ("d", None)):
        queue.put(body, priority=priority)
    assert queue.qsize() == 4
    assert [queue.get(timeout=1).payload for _ in range(4)] == ["b", "a", "c", "d"]
    queue.close()


def test_a_message_is_deleted_when_it_is_acknowledged(connection: Connection, place: str) -> None:
    queue = connection.SimpleQueue("q")
    queue.put("a")
    message = queue.get(timeout=1)
    with open_place(place) as store:
        assert len(store.stream("kombu:q")) == 1
        message.ack()
        assert len(store.stream("kombu:q")) == 0
    queue.close()


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b"\xff", b"1", b"{}", b'{"properties": {"delivery_info": 1}}', b"9" * 5000],
    ids=["nested", "bytes", "number", "empty", "wrong", "digits"],
)
def test_what_is_no_message_becomes_a_dead_letter(
    connection: Connection, place: str, body: bytes
) -> None:
    queue = connection.SimpleQueue("q")
    with open_place(place) as store:
        store.stream("kombu:q").add({"task": body})
        queue.put("a")
        assert queue.get(timeout=1).payload == "a"
        (dead,) = store.stream("kombu:q:dead").range()
        assert dead.fields == {b"task": body}
    queue.close()


def test_a_rejected_message_is_redelivered(connection: Connection) -> None:
    queue = connection.SimpleQueue("q")
    queue.put("a")
    queue.get(timeout=1).requeue()
    message = queue.get(timeout=1)
    assert message.delivery_info["redelivered"]
    message.reject()
    with pytest.raises(queue.Empty):
        queue.get_nowait()
    queue.close()


def test_unacknowledged_messages_go_to_the_next_connection(
    connection: Connection, url: str
) -> None:
    with connection.clone() as first:
        queue = first.SimpleQueue("q")
        queue.put("a")
        queue.get(timeout=1)
    assert connection.SimpleQueue("q").get(timeout=1).payload == "a"


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_a_late_ack_leaves_a_message_with_its_new_connection(
    connection: Connection, place: str, how: str
) -> None:
    with connection.clone() as late:
        queue = late.SimpleQueue("q")
        queue.put("a")
        message = queue.get(timeout=1)
        stand_still(late.default_channel.tasks)
        again = connection.SimpleQueue("q").get(timeout=30)
        getattr(message, how)()
        with open_place(place) as store:
            assert store.stream("kombu:q").group("workers").pending().count == 1
            again.ack()
            assert len(store.stream("kombu:q")) == 0


def test_a_producer_accepts_a_callback_for_unroutable_messages(connection: Connection) -> None:
    connection.Producer(on_return=print).publish("a", routing_key="nowhere")


def test_a_purge_deletes_undelivered_messages(connection: Connection) -> None:
    queue = connection.SimpleQueue("q")
    for priority in range(3):
        queue.put("a", priority=priority)
    taken = queue.get(timeout=1)
    assert queue.clear() == 2
    assert queue.qsize() == 0
    taken.requeue()
    assert queue.qsize() == 1
    queue.close()


def test_expired_messages_are_not_delivered(connection: Connection, place: str) -> None:
    queue = connection.SimpleQueue("q")
    queue.put("a", expiration=0.001)
    with open_place(place) as store:
        (expired,) = store.stream("kombu:q").range()
        store.stream("kombu:q").add_many([expired.fields] * 1000)
    queue.put("of Celery", expiration=0.001, headers={"expires": "2026-01-01"})
    time.sleep(0.002)
    queue.put("b")
    assert queue.get(timeout=1).payload == "of Celery"  # whose worker says that it is revoked
    assert queue.get(timeout=1).payload == "b"
    queue.close()


@pytest.mark.parametrize(("kind", "received"), [("direct", 1), ("topic", 2), ("fanout", 3)])
def test_exchanges(connection: Connection, kind: str, received: int) -> None:
    exchange = Exchange("x", type=kind)
    keys = ["a.b", "a.*" if kind == "topic" else "c", "d"]
    queues = [Queue(f"q{n}", exchange, routing_key=key) for n, key in enumerate(keys)]
    got: list[Message] = []
    with connection.clone() as sender:  # another process would have no other memory
        for queue in queues:
            queue(connection).declare()
        sender.Producer(exchange=exchange).publish("m", routing_key="a.b", declare=[exchange])
    with Consumer(connection, queues, callbacks=[lambda _, message: got.append(message)]):
        for _ in range(received):
            connection.drain_events(timeout=5)
        with pytest.raises(Timeout):
            connection.drain_events(timeout=0.02)
    assert len(got) == received


def test_a_deleted_queue_leaves_its_exchange(connection: Connection, place: str) -> None:
    exchange = Exchange("x", type="fanout")
    for name in ("kept", "gone"):
        Queue(name, exchange)(connection).declare()
    with open_place(place) as store:
        store.delete("kombu:gone")
        connection.Producer(exchange=exchange).publish("m")
        assert "kombu:gone" not in store
        assert len(store.stream("kombu:kept")) == 1
        store.delete("kombu:kept")
        Queue("new", exchange)(connection).declare()
    assert [queue for _, _, queue in connection.default_channel.get_table("x")] == ["new"]


def test_a_url_without_a_directory_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="names no directory"):
        place_of("kvstream://", {})
    assert repr(place_of("kvstream:///a%20b", {})) == "<Place '/a b'>"


def test_a_connection_fails_over_to_another_url(url: str, place: str) -> None:
    dead = "kvstream+redis://127.0.0.1:1"
    with Connection(f"{dead};{url}", transport_options=options_of(place)) as connection:
        connection.SimpleQueue("q").put("a")
        assert connection.SimpleQueue("q").get(timeout=1).payload == "a"
        with open_place(place) as store:
            assert len(store.stream("kombu:q")) == 1


@pytest.mark.parametrize(
    "url",
    [
        "kvstream+redis://u%2F:p%40@host:7/3",
        "kvstream+rediss://host/",
        "kvstream:///a%20b/c",
        "kvstream://data/",
    ],
)
def test_a_connection_switches_to_the_given_url(url: str) -> None:
    with Connection("kvstream://first") as connection:
        connection.switch(url)
        assert _url_of(connection) == url


@pytest.fixture
def app(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("KVSTREAM_PLACE", place)
    sys.modules.pop("tests.adapters.celery_app", None)
    module = importlib.import_module("tests.adapters.celery_app")
    yield module
    module.app.backend._place.close()
    module.app.close()
    pools.reset()


def test_results_expire_and_are_forgotten(app: Any) -> None:
    backend = app.app.backend
    backend.store_result("id", {"a": 1}, "SUCCESS")
    result = app.app.AsyncResult("id")
    assert (result.status, result.get(timeout=1)) == ("SUCCESS", {"a": 1})
    assert 86_000 < backend._place.store.ttl(backend.get_key_for_task("id")) <= 86_400
    result.forget()
    assert app.app.AsyncResult("id").status == "PENDING"


def test_waiting_for_a_result_raises_the_error_of_an_earlier_task(app: Any) -> None:
    def earlier() -> None:
        raise ValueError("the earlier task")

    app.app.backend.store_result("id", RuntimeError("this task"), "FAILURE")
    with pytest.raises(ValueError, match="the earlier task"):
        app.app.backend.wait_for("id", on_interval=earlier)


def test_a_wait_for_a_result_ends_at_its_timeout(app: Any) -> None:
    with pytest.raises(TimeoutError):
        app.app.AsyncResult("id").get(timeout=0.02)


class Chord:
    """A chord of two tasks, with calls of their workers and of the sender."""

    def __init__(self, app: Any, place: str, size: int = 2) -> None:
        self.app, self.place = app, place
        self.backend = app.app.backend
        results = [app.app.AsyncResult(f"task-{n}") for n in range(2)]
        self.backend.apply_chord(("group", results), app.total.s())
        self.backend.set_chord_size("group", size)

    def request(self, n: int) -> Any:
        return SimpleNamespace(id=f"task-{n}", group="group", chord=self.app.total.s())

    def end_part(self, n: int) -> None:
        self.backend.store_result(f"task-{n}", n, "SUCCESS")
        self.backend.on_chord_part_return(self.request(n), "SUCCESS", n)

    def bodies(self) -> int:
        with open_place(self.place) as store:
            return len(store.stream("kombu:celery"))


def test_a_chord_task_that_runs_twice_counts_once(app: Any, place: str) -> None:
    chord = Chord(app, place)
    chord.end_part(0)
    chord.end_part(0)
    assert chord.bodies() == 0
    chord.end_part(1)
    assert chord.bodies() == 1
    chord.end_part(0)
    chord.end_part(1)
    assert chord.bodies() == 1


def test_a_chord_waits_for_all_tasks_of_a_nested_group(app: Any, place: str) -> None:
    chord = Chord(app, place, size=3)
    chord.end_part(0)
    chord.end_part(1)
    assert chord.bodies() == 0
    chord.end_part(2)
    assert chord.bodies() == 1


def test_a_chord_completes_after_its_last_worker_was_killed(app: Any, place: str) -> None:
    chord = Chord(app, place)
    chord.end_part(0)
    chord.backend.store_result("task-1", 1, "SUCCESS")
    chord.backend._part = chord.request(1)
    chord.backend._part.chord["chord_size"] = 2
    assert chord.backend.incr(chord.backend.get_key_for_chord("group")) == 2
    assert chord.bodies() == 0
    chord.end_part(1)
    assert chord.bodies() == 1


def test_a_chord_that_is_sent_again_waits_for_all_tasks_again(app: Any, place: str) -> None:
    for sent in (1, 2):
        chord = Chord(app, place)
        chord.end_part(0)
        assert chord.bodies() == sent - 1
        chord.end_part(1)
        assert chord.bodies() == sent


def test_killed_workers_lose_no_task(app: Any, place: str, start: Start) -> None:
    words = ("worker", "--concurrency", "2", "--loglevel", "ERROR", "--without-heartbeat")
    workers = start("celery", "-A", "tests.adapters.celery_app", *words)
    all_are_done_though_workers_are_killed(place, app.note.delay, workers)
    from celery import chord

    assert chord(app.note.s(n) for n in range(3))(app.total.s()).get(timeout=30) == 3
