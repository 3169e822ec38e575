"""The registry of workers: who is there, what they do, and requests that reach them."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from kvstream import Jobs
from kvstream.jobs import Worker, WorkerRecord
from kvstream.jobs.renewal import Beats, Renewal
from kvstream.jobs.workers import registration, registry
from kvstream.operations.queues import workers
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def wait_task(jobs: Jobs, gate: threading.Event) -> Any:
    """A task that waits for the gate."""

    @jobs.task(timeout=600)
    def wait() -> str:
        gate.wait(PATIENCE_S)
        return "waited"

    return wait


def only(jobs: Jobs) -> WorkerRecord:
    (found,) = jobs.workers()
    return found


def test_a_worker_is_listed_with_what_it_does(
    jobs: Jobs, wait_task: Any, gate: threading.Event, working: Callable[..., Working]
) -> None:
    @jobs.task
    def fail() -> None:
        raise ValueError

    one = working(jobs, concurrency=2, app_version="7")
    until(lambda: len(jobs.workers()) == 1)
    handle = wait_task.enqueue()
    until(lambda: bool(only(jobs).jobs))  # begun after the beat
    found = only(jobs)
    assert (found.name, found.state, found.app_version) == (jobs.consumer, "working", "7")
    assert (found.queues, found.concurrency, found.program) == (("default",), 2, "")
    (job,) = found.jobs
    assert (job.id, job.task, job.queue, job.timeout) == (handle.id, "wait", "jobs", 600)
    assert 0 <= job.seconds < 600
    assert 0 < job.lease_left <= 30
    assert not job.is_late
    gate.set()
    handle.result(PATIENCE_S)
    fail.enqueue()
    until(lambda: one.worker._failed == 1)
    assert only(jobs).jobs == ()
    one.stop()
    assert jobs.workers() == []
    assert not jobs.store.exists("jobs:workers")


def test_a_beat_replaces_the_one_before_and_has_the_counts(
    jobs: Jobs,
    wait_task: Any,
    gate: threading.Event,
    working: Callable[..., Working],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "BEAT_S", 0.02)
    gate.set()
    working(jobs)
    wait_task.enqueue_many([()] * 3)
    until(lambda: [each.done for each in jobs.workers()] == [3])
    assert 0 < (jobs.store.ttl("jobs:workers") or 0) <= registry.LOST_KEPT_S
    first = only(jobs).beat
    until(lambda: only(jobs).beat > first)
    assert len(jobs.store.stream("jobs:workers")) <= 2  # one is deleted once the next is there


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_that_drains_finishes_what_it_runs_and_takes_nothing_more(
    jobs: Jobs,
    wait_task: Any,
    gate: threading.Event,
    working: Callable[..., Working],
    is_async: bool,
) -> None:
    one = working(jobs, concurrency=2, grace=0)
    handle = wait_task.enqueue()
    until(lambda: any(each.jobs for each in jobs.workers()))
    found = only(jobs)
    assert not (asyncio.run(found.adrain()) if is_async else found.drain())
    until(lambda: only(jobs).state == "draining")
    until(lambda: one.worker._has_taken.is_set())
    later = wait_task.enqueue()
    assert not found.drain(0.05)
    gate.set()
    assert found.drain(PATIENCE_S)
    one._thread.join(PATIENCE_S)
    assert one.worker.has_left
    assert handle.result(PATIENCE_S) == "waited"
    assert later.status == "queued"
    assert asyncio.run(jobs.aworkers()) == []


def test_a_worker_that_is_stopped_gives_back_what_is_not_done_within_its_grace(
    jobs: Jobs, wait_task: Any, gate: threading.Event, working: Callable[..., Working]
) -> None:
    one = working(jobs, grace=0.05)
    handle = wait_task.enqueue()
    until(lambda: any(each.jobs for each in jobs.workers()))
    assert only(jobs).stop(PATIENCE_S)
    one._thread.join(PATIENCE_S)
    assert one.worker.given_back == 1
    assert handle.status == "queued"
    gate.set()


def test_a_stop_ends_a_drain(
    jobs: Jobs, wait_task: Any, gate: threading.Event, working: Callable[..., Working]
) -> None:
    one = working(jobs, grace=0.05)
    handle = wait_task.enqueue()
    until(lambda: any(each.jobs for each in jobs.workers()))
    one.worker.drain()
    until(lambda: one.worker._has_taken.is_set())
    assert not one.worker.given_back
    assert asyncio.run(only(jobs).astop(PATIENCE_S))
    assert handle.status == "queued"
    gate.set()


def test_a_worker_whose_beats_stay_away_is_lost(
    jobs: Jobs, wait_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = registration.facts_of(jobs, {}, 8, "program", "")
    registry.write(jobs, facts, registry.Work("working", 1, 2, 0, ()))
    assert (only(jobs).state, only(jobs).done, only(jobs).failed) == ("working", 1, 2)
    monkeypatch.setattr(workers, "LOST_BEATS", 0.0001)
    until(lambda: only(jobs).state == "lost")
    registry.note_silent(jobs, jobs.consumer)
    monkeypatch.setattr(workers, "LOST_BEATS", 3.5)
    assert only(jobs).state == "silent"
    monkeypatch.setattr(registry, "LOST_KEPT_S", 0.001)
    time.sleep(0.01)
    registry.forget_lost(jobs)
    assert jobs.workers() == []
    registry.remove(jobs, jobs.consumer)
    assert not jobs.store.exists("jobs:workers")


def test_an_idle_worker_beats_less_often_and_is_lost_later(
    jobs: Jobs, wait_task: Any, gate: threading.Event, working: Callable[..., Working]
) -> None:
    one = working(jobs)
    until(lambda: len(jobs.workers()) == 1)
    facts = registration.facts_of(jobs, {}, 8, "program", "")
    beats = registration.Registration(jobs, lambda: facts, one.worker._work, {}, lambda _: None)
    beats._fields = facts

    def beat() -> str:
        beats._beat()
        (last,) = registry.records_of(jobs).revrange(count=1)
        now_ms = last.id.ms + 36_000
        assert workers.is_lost(last, now_ms) == (last.fields[b"every"] == b"10")
        assert workers.is_lost(last, last.id.ms + 106_000)
        return last.fields[b"every"].decode()

    assert [beat(), beat()] == ["10", "30"]
    handle = wait_task.enqueue()
    until(lambda: bool(one.worker._runs))
    assert [beat(), beat()] == ["10", "10"]
    gate.set()
    handle.result(PATIENCE_S)
    until(lambda: not one.worker._runs)
    assert [beat(), beat()] == ["10", "30"]


class Silent:
    """The beats of a child that has sent none for a while."""

    def __init__(self, name: str, silent_s: float) -> None:
        self.consumer, self.note_due, self._silent_s = name.encode(), 0.0, silent_s

    def silent_s(self) -> float:
        return self._silent_s


def test_each_worker_that_is_silent_for_long_is_shown_as_silent(jobs: Jobs) -> None:
    jobs.task(name="short", timeout=1)(lambda: None)
    facts = registration.facts_of(jobs, {}, 8, "program", "")
    for name in "abc":
        registry.write(jobs, {**facts, "name": name}, registry.Work("working", 0, 0, 0, ()))
    renewal, beats = Renewal(jobs, ()), [Silent("a", 10.0), Silent("b", 10.0), Silent("c", 1.0)]
    for each in (*beats, *beats):
        renewal.renew(cast("Beats", each), lambda: None)
    states = {worker.name: worker.state for worker in jobs.workers()}
    assert states == {"a": "silent", "b": "silent", "c": "working"}
    assert len(registry.records_of(jobs)) == 3


def test_entries_of_other_programs_are_no_workers(jobs: Jobs, wait_task: Any) -> None:
    registry.records_of(jobs).add({"name": "x", "pid": "many"})
    registry.records_of(jobs).add({"name": "y", "pid": "1", "queues": "[[["})
    registry.records_of(jobs).add({"odd": b"\xff"})
    assert jobs.workers() == []


def test_requests_for_others_and_unknown_ones_change_nothing(
    jobs: Jobs, wait_task: Any, gate: threading.Event, working: Callable[..., Working]
) -> None:
    gate.set()
    working(jobs)
    until(lambda: len(jobs.workers()) == 1)
    registry.ask(jobs, "drain", worker="another")
    registry.ask(jobs, "dance", worker=jobs.consumer)
    registry.ask(jobs, "drain")
    assert wait_task.enqueue().result(PATIENCE_S) == "waited"
    assert only(jobs).state == "working"


def test_a_worker_counts_jobs_of_its_own_only(jobs: Jobs, wait_task: Any) -> None:
    worker = Worker(jobs)
    assert worker._work() == registry.Work("working", 0, 0, 0, [])
