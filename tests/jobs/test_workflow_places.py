"""Workflows on each kind of place, with workers in threads."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from kvstream import JobCancelled, JobFailed, Jobs, JobUnknown
from kvstream.jobs import (
    WorkflowHandle,
    current_job,
    gather,
    on_failure,
    pause,
    publish,
    step,
    wait_for,
)
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until

Start = Callable[..., Working]


class Orders:
    """An application with one workflow of each kind of call."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.did: list[str] = []
        self.lock = threading.Lock()

        def act(what: str) -> str:
            with self.lock:
                self.did.append(what)
            return what

        def book(n: int) -> int:
            with current_job().transaction() as store:
                store.stream("booked").add({"n": n})
                current_job().result = n
            return n

        @jobs.task
        def square(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return n * n

        @jobs.workflow(timeout=timedelta(hours=1))
        def order(n: int) -> list[Any]:
            found: list[Any] = [step(act, f"begin {n}"), step(book, n)]
            publish("at", n)
            pause(0.01)
            found += gather(square.start(k) for k in range(n))
            found.append(wait_for("paid", timeout=timedelta(minutes=30)))
            return found

        @jobs.workflow
        async def order_async(n: int) -> list[Any]:
            found: list[Any] = [await square.run(n)]
            await pause(0.01)
            found += await gather(square.start(k) for k in range(n))
            found.append(await wait_for("paid"))
            return found

        @jobs.workflow
        def breaks() -> None:
            step(act, "do")
            on_failure(act, "undo")
            square.run(-1)

        self.order, self.order_async, self.breaks = order, order_async, breaks


@pytest.fixture
def orders(jobs: Jobs) -> Orders:
    return Orders(jobs)


def test_workflows_run_to_their_ends(orders: Orders, working: Start) -> None:
    worker = working(orders.jobs)
    handles = [orders.order.with_options(id=f"order:{n}").enqueue(n) for n in range(4)]
    others = [orders.order_async.enqueue(n) for n in range(3)]
    for handle in [*handles, *others]:
        assert handle.send("paid", handle.id)
    for n, handle in enumerate(handles):
        wanted = [f"begin {n}", n, *(k * k for k in range(n)), handle.id]
        assert handle.result(PATIENCE_S) == wanted
        assert [(each.name, each.value) for each in handle.updates()] == [("at", n)]
        assert {each.status for each in handle.steps()} == {"done"}
    for n, handle in enumerate(others):
        wanted = [n * n, *(k * k for k in range(n)), handle.id]
        assert asyncio.run(handle.aresult(PATIENCE_S)) == wanted
    worker.stop()
    store = orders.jobs.store
    assert len(store.stream("booked")) == 4
    assert len(store.stream("jobs")) == 0
    again = orders.jobs.handle("order:1")
    assert isinstance(again, WorkflowHandle)
    assert (again.status, again.send("paid")) == ("done", False)
    with pytest.raises(JobUnknown):
        orders.order.handle("order:77").send("paid")


@pytest.mark.parametrize("place", ["shared", "server"], indirect=True)
def test_two_workers_share_the_children_of_many_workflows(
    make_jobs: Callable[..., Jobs], working: Start
) -> None:
    first, second = Orders(make_jobs()), Orders(make_jobs())
    workers = [working(each.jobs, concurrency=4) for each in (first, second)]
    handles = [first.order.enqueue(4) for _ in range(6)]
    senders = [
        threading.Thread(target=second.order.handle(handle.id).send, args=("paid", n))
        for n, handle in enumerate(handles)
    ]
    for each in senders:
        each.start()
    for n, handle in enumerate(handles):
        assert handle.result(PATIENCE_S) == ["begin 4", 4, 0, 1, 4, 9, n]
    for each in senders:
        each.join()
    for worker in workers:
        worker.stop()
    assert len(first.did) + len(second.did) == 6
    assert len(first.jobs.store.stream("booked")) == 6


@pytest.mark.parametrize("place", ["shared", "server"], indirect=True)
def test_children_whose_transactions_overlap_all_tell_their_parent(
    make_jobs: Callable[..., Jobs], working: Start
) -> None:
    jobs, runs = make_jobs(), list[int]()
    begun = threading.Barrier(4)

    @jobs.task
    def book(n: int) -> int:
        runs.append(n)
        with current_job().transaction() as store:
            store.stream("booked").add({"n": n})
            current_job().result = n
            begun.wait(PATIENCE_S)
        return n

    @jobs.workflow
    def books() -> list[int]:
        return list(gather(book.start(n) for n in range(4)))

    worker = working(jobs, concurrency=5)
    handle = books.enqueue()
    assert handle.result(PATIENCE_S) == [0, 1, 2, 3]
    until(lambda: len(jobs.store.stream("jobs")) == 0)
    worker.stop()
    assert sorted(runs) == [0, 1, 2, 3]
    assert len(jobs.store.stream("booked")) == 4


@pytest.mark.parametrize("place", ["server"], indirect=True)
def test_a_result_that_a_server_refuses_fails_its_workflow_and_tells_the_parent(
    place: tuple[str, dict[str, Any]], jobs: Jobs, working: Start
) -> None:
    @jobs.workflow
    def makes(size: int) -> str:
        return "x" * size

    @jobs.workflow
    def parent(size: int) -> int:
        return len(makes.run(size))

    with redis.Redis.from_url(place[0]) as client:
        before = client.config_get("stream-entry-max-bytes")
        client.config_set("stream-entry-max-bytes", "1mb")
        try:
            handles = [parent.enqueue(1_000_100), parent.enqueue(2_000_000)]
            worker = working(jobs)
            assert handles[0].result(PATIENCE_S) == 1_000_100
            with pytest.raises(JobFailed, match="larger than the stream-entry-max-bytes"):
                handles[1].result(PATIENCE_S)
            worker.stop()
        finally:
            client.config_set(*before.popitem())


def test_a_workflow_that_fails_is_undone_and_retried(orders: Orders, working: Start) -> None:
    worker = working(orders.jobs)
    handle = orders.breaks.enqueue()
    with pytest.raises(JobFailed, match="square: ValueError: negative"):
        handle.result(PATIENCE_S)
    assert orders.did == ["do", "undo"]
    assert handle.retry(from_step="square")
    with pytest.raises(JobFailed, match="negative"):
        handle.result(PATIENCE_S)
    assert orders.did == ["do", "undo", "undo"]
    worker.stop()


def test_a_workflow_is_cancelled_while_it_waits_and_while_it_runs(
    jobs: Jobs, working: Start
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        ends.wait(PATIENCE_S)

    @jobs.workflow
    def runs() -> None:
        step(hangs)
        step(never)

    def never() -> None:
        raise AssertionError

    @jobs.workflow
    def waits() -> None:
        wait_for("a")

    worker = working(jobs)
    waiting, running = waits.enqueue(), runs.enqueue()
    until(lambda: waiting.status == "waiting")
    assert begun.wait(PATIENCE_S)
    assert running.status == "running"
    for handle in (waiting, running):
        assert handle.cancel()
        assert handle.status == "cancelled"
    ends.set()
    for handle in (waiting, running):
        with pytest.raises(JobCancelled):
            handle.result(PATIENCE_S)
    worker.stop()
    assert len(jobs.store.stream("jobs")) == 0


@pytest.mark.parametrize("place", ["shared", "server"], indirect=True)
def test_another_worker_goes_on_where_one_was_stopped(
    make_jobs: Callable[..., Jobs], working: Start
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def define(jobs: Jobs, hangs: bool) -> Any:
        def first() -> str:
            did.append("first")
            return "first"

        def second() -> str:
            did.append("second")
            if hangs:
                begun.set()
                ends.wait(PATIENCE_S)
            return f"second {hangs}"

        @jobs.workflow
        def runs() -> list[str]:
            return [step(first), step(second)]

        return runs

    did = list[str]()
    one, two = make_jobs(), make_jobs()
    handle = define(one, True).enqueue()
    define(two, False)
    worker = working(one, grace=0)
    assert begun.wait(PATIENCE_S)
    worker.stop(at_once=True)
    working(two)
    assert handle.result(PATIENCE_S) == ["first", "second False"]
    ends.set()
    assert did == ["first", "second", "second"]


def test_updates_are_streamed_while_it_runs(orders: Orders, working: Start) -> None:
    handle = orders.order.enqueue(0)
    seen: list[Any] = []

    def listen() -> None:
        seen.extend(handle.updates())

    listener = threading.Thread(target=listen)
    listener.start()
    working(orders.jobs)
    handle.send("paid")
    handle.result(PATIENCE_S)
    listener.join(PATIENCE_S)
    assert [(each.name, each.value) for each in seen] == [("at", 0)]
