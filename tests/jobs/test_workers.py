"""Workers: leases, timeouts, stopping, and which jobs they leave."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kvstream import (
    InvalidArgument,
    JobFailed,
    Jobs,
    LeaseLost,
    Queue,
    ServerUnavailable,
    current_job,
)
from kvstream.engine.lease_renewal import SignalStop
from kvstream.engine.waiters import Flag
from kvstream.jobs import Worker
from kvstream.jobs.worker import Times
from kvstream.queue import take
from tests.engine.waiting import Call
from tests.interrupting import interrupted_at
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until
from tests.ports import free_port
from tests.serving import ServerProcess

Start = Callable[..., Working]


def end_lease(jobs: Jobs, message: Any) -> None:
    """End the lease of a message, as time does."""
    group = jobs.store.stream(message.key).group(jobs.group)
    group.claim(jobs.consumer, message.id, idle=PATIENCE_S, justid=True)


def test_a_worker_leases_only_jobs_that_it_can_start_at_once(jobs: Jobs, working: Start) -> None:
    go = threading.Event()

    @jobs.task
    def hold(n: int) -> None:
        go.wait(PATIENCE_S)

    handles = hold.enqueue_many([(n,) for n in range(10)])
    worker = working(jobs, concurrency=3)
    until(lambda: len(worker.worker._runs) == 3)
    states = [handle.status for handle in handles]
    go.set()
    assert states == ["running"] * 3 + ["queued"] * 7
    for handle in handles:
        handle.result(PATIENCE_S)


def test_a_job_that_takes_longer_than_its_lease_runs_once(jobs: Jobs, working: Start) -> None:
    ran = []

    @jobs.task(timeout=0.3)
    def short() -> None: ...

    @jobs.task
    def long() -> None:
        ran.append(1)
        time.sleep(1.2)

    assert jobs.lease_s == 0.3
    idle = [working(jobs, concurrency=1) for _ in range(2)]
    until(lambda: all(each.worker._keeps_none for each in idle))  # nobody looks at leases
    handle = long.enqueue()
    handle.result(PATIENCE_S)
    assert ran == [1]


def test_a_job_of_a_dead_worker_runs_again(jobs: Jobs, working: Start) -> None:
    attempts = []

    @jobs.task
    def run() -> int:
        attempts.append(current_job().attempt)
        return 1

    handle = run.enqueue()
    gone = Worker(jobs, concurrency=1)
    jobs.declare()
    (message,) = take(gone._queues, 1, None)
    assert handle.status == "running"
    end_lease(jobs, message)
    working(jobs)
    assert handle.result(PATIENCE_S) == 1
    assert attempts == [2]


@pytest.mark.parametrize("result_ttl", [60, 0])
def test_jobs_of_a_dead_worker_run_one_at_a_time(
    jobs: Jobs, working: Start, result_ttl: float
) -> None:
    """Also after one that runs for long, and those that fail are tried again beside others."""
    together: dict[str, int] = {}
    running: set[str] = set()

    @jobs.task(retries=5, backoff=0, result_ttl=result_ttl)
    def run(name: str) -> None:
        running.add(name)
        time.sleep(0.02)
        together[name] = len(running)
        if name == "raises" and current_job().attempt < 4:
            running.discard(name)
            raise RuntimeError(name)
        running.discard(name)

    run.enqueue_many([(f"old {n}",) for n in range(5)])
    gone = Worker(jobs)
    jobs.declare()
    lost = take(gone._queues, 5, None)
    assert len(lost) == 5
    for message in lost:
        end_lease(jobs, message)
    taken = [stream for queue in jobs.queues() for stream in queue.streams() if len(stream)]
    run.enqueue_many([("raises",), *((f"new {n}",) for n in range(20))])
    working(jobs)
    until(lambda: not any(len(stream) for stream in taken))
    assert [together[f"old {n}"] for n in range(5)] == [1] * 5
    assert max(together.values()) > 1
    assert not jobs.store.exists("jobs:dead")


def test_a_job_of_a_dead_worker_that_waits_for_another_is_alone_for_a_while(
    jobs: Jobs, working: Start
) -> None:
    @jobs.task(timeout=0.3)
    def short() -> None: ...

    @jobs.task
    def part() -> int:
        return 1

    @jobs.task
    def whole() -> int:
        return part.enqueue().result(PATIENCE_S)

    handle = whole.enqueue()
    jobs.declare()
    assert len(take(jobs.queues())) == 1
    working(jobs, concurrency=2, times=Times(alone=0.1))
    assert handle.result(PATIENCE_S) == 1


def test_an_async_job_is_cancelled_at_its_timeout(jobs: Jobs, working: Start) -> None:
    ended = []

    @jobs.task(timeout=1)  # which is its lease: on a busy machine a shorter one may end first
    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(1)

    working(jobs)
    with pytest.raises(JobFailed, match="JobTimeout: hang has run for more than"):
        hang.enqueue().result(PATIENCE_S)
    assert ended == [1]


def test_a_thread_that_takes_too_long_loses_its_job_and_its_result_is_refused(
    jobs: Jobs, working: Start
) -> None:
    go = threading.Event()
    lost: list[BaseException] = []
    attempts = []

    @jobs.task(timeout=0.3, retries=1, backoff=0)
    def hang() -> int:
        job = current_job()
        attempts.append(job.attempt)
        if job.attempt == 2:
            return 2
        go.wait(PATIENCE_S)
        try:
            with job.transaction() as store:
                store.stream("effects").add({"attempt": 1})
        except LeaseLost as error:
            lost.append(error)
        return 1

    worker = working(jobs, concurrency=2)
    assert hang.enqueue().result(PATIENCE_S) == 2
    go.set()
    until(lambda: lost)
    worker.stop()
    assert attempts == [1, 2]
    assert "effects" not in jobs.store


def test_a_worker_whose_threads_all_hang_leases_no_more_jobs(jobs: Jobs, working: Start) -> None:
    go = threading.Event()

    @jobs.task(timeout=0.2)
    def hang() -> None:
        go.wait(PATIENCE_S)

    handles = hang.enqueue_many([()] * 8)
    worker = working(jobs, concurrency=2)
    until(lambda: worker.worker.is_stuck)
    until(lambda: not worker._thread.is_alive())
    assert handles[-1].status == "queued"
    go.set()


@pytest.mark.parametrize("blocks", [False, True])
def test_an_async_task_that_ignores_its_timeout_loses_its_job(
    jobs: Jobs, working: Start, blocks: bool
) -> None:
    go = threading.Event()

    @jobs.task(timeout=0.2)
    async def hang() -> None:
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                if blocks:
                    go.wait(PATIENCE_S)
                await asyncio.sleep(0.01)

    @jobs.task
    async def other() -> int:
        return 1

    worker = working(jobs, concurrency=2, grace=0.1, times=Times(late=0.2, hangs=0.2))
    try:
        with pytest.raises(JobFailed, match="JobTimeout: hang has run for more than"):
            hang.enqueue().result(PATIENCE_S)
        if blocks:
            until(lambda: not worker._thread.is_alive())
            assert worker.worker.is_stuck
        else:
            assert other.enqueue().result(PATIENCE_S) == 1
            assert not worker.worker.is_stuck
    finally:
        go.set()


def test_an_idle_worker_waits_and_does_not_poll(jobs: Jobs) -> None:
    """New jobs, ends of leases and the event to stop wake it."""
    counted: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            counted.append(frame.f_code.co_qualname)

    @jobs.task
    def run(n: int) -> int:
        return n

    @jobs.task(queue="other")
    def other() -> None: ...

    run.enqueue(0)
    threading.setprofile(count)
    worker = Working(jobs)
    try:
        until(lambda: not jobs.queue_of(run).info().leased)
        seen = -1
        while seen != len(counted):  # it begins to wait
            seen = len(counted)
            time.sleep(0.2)
        time.sleep(1.0)
        calls = counted[seen:]
        assert run.enqueue(1).result(PATIENCE_S) == 1
    finally:
        threading.setprofile(None)
        begun = time.perf_counter()
        worker.stop()
    assert time.perf_counter() - begun < PATIENCE_S / 2
    assert len(calls) < 150, Counter(calls)


@pytest.mark.parametrize("make", [threading.Event, Flag, asyncio.Event, SignalStop])
def test_any_event_stops_an_idle_worker(
    jobs: Jobs, working: Start, make: Callable[[], Any]
) -> None:
    @jobs.task
    def run() -> None: ...

    worker = working(jobs, stopping=make())
    run.enqueue().result(PATIENCE_S)
    worker.stop()


def test_a_stopped_worker_finishes_its_jobs_and_starts_none(jobs: Jobs, working: Start) -> None:
    begun, go = threading.Event(), threading.Event()

    @jobs.task
    def run(n: int) -> int:
        begun.set()
        go.wait(PATIENCE_S)
        return n

    one, two = run.enqueue(1), run.enqueue(2)
    worker = working(jobs, concurrency=1)
    assert begun.wait(PATIENCE_S)
    worker.stopping.set()
    go.set()
    worker.stop()
    assert (one.result(PATIENCE_S), two.status, worker.worker.given_back) == (1, "queued", 0)


def test_a_lost_lease_takes_no_result_from_jobs_that_end_with_it(
    jobs: Jobs, working: Start
) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    @jobs.task
    def double(n: int) -> int:
        begun.release()
        go.wait(PATIENCE_S)
        return 2 * n

    handles = double.enqueue_many([(n,) for n in range(8)])
    worker = working(jobs, concurrency=8)
    assert all(begun.acquire(timeout=PATIENCE_S) for _ in handles)
    assert handles[3].cancel()
    kept = [handle for handle in handles if handle is not handles[3]]
    go.set()
    worker.stop()
    assert [handle.result(PATIENCE_S) for handle in kept] == [0, 2, 4, 8, 10, 12, 14]
    assert handles[3].status == "cancelled"
    info = jobs.queue_of(double).info()
    assert (info.ready, info.leased, info.waiting, info.dead) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_jobs_unfinished_at_the_deadline_are_given_back_as_untried(
    jobs: Jobs, working: Start, kind: str
) -> None:
    begun, go = threading.Event(), threading.Event()
    attempts = []

    @jobs.task
    def in_thread() -> int:
        attempts.append(current_job().attempt)
        begun.set()
        go.wait(PATIENCE_S)
        return 1

    @jobs.task
    async def in_loop() -> int:
        attempts.append(current_job().attempt)
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        return 1

    handle = (in_thread if kind == "thread" else in_loop).enqueue()
    first = working(jobs, grace=0.05)
    assert begun.wait(PATIENCE_S)
    first.stop()
    assert first.worker.given_back == 1
    assert handle.status == "queued"
    go.set()
    working(jobs)
    assert handle.result(PATIENCE_S) == 1
    assert attempts == [1, 1]


def test_a_worker_that_stops_leaves_a_job_that_another_one_has(jobs: Jobs) -> None:
    @jobs.task(timeout=0.2)
    def run() -> None: ...

    run.enqueue()
    jobs.declare()
    (queue,) = jobs.queues()
    (late,) = queue.get()
    other = Queue(jobs.store, "jobs", consumer="other")
    (current,) = other.get(block=PATIENCE_S)
    Worker(jobs)._return([late])
    current.extend()
    Worker(jobs)._return([current])
    (again,) = other.get()
    assert (current.deliveries, again.deliveries) == (2, 2)


def test_a_second_signal_gives_jobs_back_at_once(jobs: Jobs, working: Start) -> None:
    begun, go = threading.Event(), threading.Event()

    @jobs.task
    def run() -> None:
        begun.set()
        go.wait(PATIENCE_S)

    run.enqueue()
    worker = working(jobs, grace=3600)
    assert begun.wait(PATIENCE_S)
    worker.stop(at_once=True)
    go.set()
    assert worker.worker.given_back == 1


def test_an_effect_inside_the_store_happens_once_with_a_transaction(
    jobs: Jobs, working: Start
) -> None:
    @jobs.task(retries=3, backoff=0)
    def charge(order: str) -> str:
        job = current_job()
        with job.transaction() as store:
            store.stream("effects").add({"order": order, "attempt": job.attempt})
            if job.attempt < 3:
                raise OSError("away")
            job.result = f"charged {order}"
        return "not kept"

    handle = charge.enqueue("7")
    working(jobs)
    assert handle.result(PATIENCE_S) == "charged 7"
    (effect,) = jobs.store.stream("effects").range()
    assert effect.fields == {b"order": b"7", b"attempt": b"3"}


def test_an_async_task_that_awaits_in_its_transaction_is_undone(jobs: Jobs, working: Start) -> None:
    @jobs.task
    async def run(pause: bool) -> str:
        job = current_job()
        with job.transaction() as store:
            store.stream("effects").add({"pause": int(pause)})
            if pause:
                await asyncio.sleep(0)
            job.result = "done"
        return "ignored"

    working(jobs)
    assert run.enqueue(False).result(PATIENCE_S) == "done"
    with pytest.raises(JobFailed, match="await nothing within the transaction"):
        run.enqueue(True).result(PATIENCE_S)
    (effect,) = jobs.store.stream("effects").range()
    assert effect.fields == {b"pause": b"0"}


def test_wrong_options_of_a_worker_are_refused() -> None:
    jobs = Jobs("unused")
    with pytest.raises(InvalidArgument, match="jobs has no task: import the modules"):
        Worker(jobs)
    with jobs.test():
        jobs.task(name="run")(lambda: None)
        for options, says in (
            ({"concurrency": 0}, "concurrency must be at least 1"),
            ({"concurrency": "4"}, "concurrency must be a whole number"),
            ({"grace": -1}, "grace is negative"),
            ({"queues": "mail"}, "queues are a list of names"),
        ):
            with pytest.raises(InvalidArgument, match=says):
                Worker(jobs, **options)
        for stops in ((True, None), (threading.Event(), True)):
            with pytest.raises(TypeError, match="not True"):
                Worker(jobs).run(*stops)


def test_a_worker_of_some_queues_leaves_the_others(jobs: Jobs, working: Start) -> None:
    @jobs.task(queue="mail")
    def mail() -> str:
        return "mail"

    @jobs.task
    def other() -> str:
        return "other"

    handles = other.enqueue(), mail.enqueue()
    worker = working(jobs, queues=["mail"])
    assert handles[1].result(PATIENCE_S) == "mail"
    assert handles[0].status == "queued"
    worker.stop()
    working(jobs)
    assert handles[0].result(PATIENCE_S) == "other"


def test_no_queue_of_a_worker_is_starved_by_another(jobs: Jobs, working: Start) -> None:
    ran: list[str] = []
    enough = threading.Event()

    def run(name: str) -> None:
        ran.append(name)
        if len(ran) == 90:
            enough.set()

    for queue in ("default", "mail", "images"):
        jobs.task(name=queue, queue=queue)(partial(run, queue))
        jobs.tasks[queue].enqueue_many([()] * 200)
    worker = working(jobs, concurrency=2)
    assert enough.wait(PATIENCE_S)
    worker.stop()
    shares = Counter(ran[:90])
    assert min(shares[queue] for queue in ("default", "mail", "images")) > 20, shares


def test_four_failing_jobs_do_not_block_the_others(jobs: Jobs, working: Start) -> None:
    many = 4_000 if jobs._options == {"durability": "no", "shared": False} else 1000
    done = []

    @jobs.task(retries=2, backoff=0, timeout=5)
    def run(n: int) -> None:
        if n % (many // 4) == 99:
            raise ValueError(f"bad {n}")
        done.append(n)

    run.enqueue_many([(n,) for n in range(many)])
    working(jobs, concurrency=4)
    until(lambda: len(done) == many - 4)
    until(lambda: len(jobs.store.stream("jobs:dead")) == 4)
    assert sorted(done) == [n for n in range(many) if n % (many // 4) != 99]
    until(lambda: len(jobs.store.stream("jobs")) == 0)


def test_a_task_limits_its_concurrent_jobs(jobs: Jobs, working: Start) -> None:
    lock = threading.Lock()
    running, most = 0, []

    @jobs.task(max_in_flight=2)
    def run() -> None:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        time.sleep(0.01)
        with lock:
            running -= 1

    handles = run.enqueue_many([()] * 20)
    for _ in range(2):
        working(jobs, concurrency=4)
    for handle in handles:
        handle.result(PATIENCE_S)
    assert max(most) <= 2


def test_a_unique_job_is_enqueued_once_on_every_place(jobs: Jobs, working: Start) -> None:
    ran = []

    @jobs.task
    def run(n: int) -> int:
        ran.append(n)
        return n

    one = run.with_options(unique="u", window=3600).enqueue(1)
    assert run.with_options(unique="u", window=3600).enqueue(2) == one
    working(jobs)
    assert one.result(PATIENCE_S) == 1
    assert run.with_options(unique="u", window=3600).enqueue(3).result(PATIENCE_S) == 1
    later = run.with_options(unique="v", delay=3600).enqueue(4)
    assert (
        run.with_options(unique="v", delay=0.01, on_conflict="replace")
        .enqueue(5)
        .result(PATIENCE_S)
        == 5
    )
    assert later.status == "unknown"
    assert ran == [1, 5]


def test_jobs_that_are_enqueued_together_are_unique(jobs: Jobs, working: Start) -> None:
    ran = []

    @jobs.task(unique="run:{n}")
    def run(n: int) -> int:
        ran.append(n)
        return n

    one, two, again = run.enqueue_many([(1,), (2,), {"n": 1}])
    assert one == again != two
    assert run.enqueue(2) == two
    working(jobs)
    assert [handle.result(PATIENCE_S) for handle in (one, two, again)] == [1, 2, 1]
    assert sorted(ran) == [1, 2]


def test_a_unique_job_that_ends_at_once_has_its_handle(
    jobs: Jobs, working: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    @jobs.task
    def run(n: int) -> int:
        return n

    def look_late(where: Any, queue: Queue, look: Any = Jobs._fields_at) -> Any:
        stream = jobs.store.stream(queue.name)
        until(lambda: not len(stream) and not stream.delayed_count())
        return look(where, queue)

    working(jobs)
    monkeypatch.setattr(Jobs, "_fields_at", staticmethod(look_late))
    for n, delay in enumerate((None, 0.01)):
        assert run.with_options(unique=f"u{n}", delay=delay).enqueue(n).result(PATIENCE_S) == n


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_that_ends_while_the_server_is_away_does_not_run_again(
    tmp_path: Path, working: Start, fails: bool
) -> None:
    """A program that waits for the result, or awaits it, gets it from the next server."""
    port, begun, go, ran = free_port(), threading.Event(), threading.Event(), []
    servers = [ServerProcess(tmp_path / "store", "--port", str(port))]
    with ExitStack() as ends, Jobs(f"redis://127.0.0.1:{port}") as jobs:
        ends.callback(lambda: servers[-1].stop())

        @jobs.task
        def run() -> str:
            ran.append(1)
            begun.set()
            go.wait(PATIENCE_S)
            if fails:
                raise ValueError
            return "ran"

        worker = working(jobs, concurrency=1)
        handle = run.enqueue()
        assert begun.wait(PATIENCE_S)
        servers[-1].kill()
        go.set()
        with pytest.raises(ServerUnavailable):
            handle.result()
        waiting = ThreadPoolExecutor(2)
        ends.callback(waiting.shutdown)
        results = [
            waiting.submit(handle.result, PATIENCE_S),
            waiting.submit(asyncio.run, handle.aresult(PATIENCE_S)),
        ]
        time.sleep(0.1)
        servers.append(ServerProcess(tmp_path / "store", "--port", str(port)))
        for result in results:
            if fails:
                with pytest.raises(JobFailed, match="ValueError"):
                    result.result()
            else:
                assert result.result() == "ran"
        worker.stop()
    assert ran == [1]


def test_an_interrupted_worker_leaves_its_lock_to_its_other_threads(jobs: Jobs) -> None:
    jobs.task(print)
    worker = Worker(jobs)
    for point in count(1):
        interrupted = interrupted_at(point, worker._room)
        Call(worker._end_taking).result()
        if not interrupted:
            break
    assert point > 3


def test_the_end_of_a_worker_is_noticed_while_leases_are_kept(jobs: Jobs) -> None:
    jobs.task(print)
    worker = Worker(jobs)

    class Wakes(threading.Event):
        """The worker ends just before its thread of leases clears the event."""

        def clear(self) -> None:
            worker._ended.set()
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            raise AssertionError("waits although the worker has ended")

    worker._wakes = Wakes()
    worker._keep()
