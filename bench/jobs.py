"""Jobs from enqueue to done: ``Jobs`` beside huey on SQLite, and rq and dramatiq on redis-server.

Each side enqueues jobs that do nothing, one by one, and then runs them in threads of this process
until all are done, with a result of each. So no side pays for starting processes, nor for opening
its store, which each has done before. rq has no threads: its worker runs the jobs one after the
other, without the process that it forks for each by default.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.processes import port_of, redis_server
from bench.results import Comparison, Log
from bench.workload import Sizes

if TYPE_CHECKING:
    from kvstream.jobs import Jobs

THREADS = 8
POLL_S = 0.001


class Side(NamedTuple):
    """One system: enqueue a job; run all jobs until so many are done."""

    enqueue: Callable[[int], object]
    run: Callable[[int], None]


done: list[int] = []
"""The arguments of the jobs that have run."""


def work(number: int) -> int:
    """Run as the job of every side."""
    done.append(number)
    return number


def wait(count: int) -> None:
    """Wait until so many jobs are done."""
    while len(done) < count:
        time.sleep(POLL_S)


def run_worker(jobs: "Jobs", count: int) -> None:
    """Run a worker of kvstream until so many jobs are done."""
    from kvstream.jobs import Worker

    stop = threading.Event()
    thread = threading.Thread(target=Worker(jobs, concurrency=THREADS).run, args=[stop])
    thread.start()
    wait(count)
    stop.set()
    thread.join()


@contextmanager
def _kvstream(folder: Path) -> Iterator[Side]:
    from kvstream.jobs import Jobs

    with Jobs(folder / "jobs") as jobs:
        yield Side(jobs.task(work).enqueue, partial(run_worker, jobs))


@contextmanager
def _huey(folder: Path) -> Iterator[Side]:
    from huey import SqliteHuey

    huey = SqliteHuey(filename=str(folder / "huey.db"), fsync=False)
    task = huey.task()(work)

    def run(count: int) -> None:
        consumer = huey.create_consumer(workers=THREADS, periodic=False, initial_delay=0.001)
        consumer.start()
        wait(count)
        consumer.stop(graceful=True)

    yield Side(task, run)


@contextmanager
def _dramatiq(folder: Path) -> Iterator[Side]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker: Any

    with redis_server(folder / "redis", "everysec") as server:
        url = f"redis://127.0.0.1:{port_of(server)}/0"
        broker = RedisBroker(url=url)  # type: ignore[no-untyped-call]
        results: Any = Results
        broker.add_middleware(results(backend=RedisBackend(url=url), store_results=True))
        actor = dramatiq.actor(broker=broker)(work)

        def run(count: int) -> None:
            worker = dramatiq.Worker(broker, worker_threads=THREADS)
            worker.start()
            wait(count)
            worker.stop()

        yield Side(actor.send, run)
        broker.close()


@contextmanager
def _rq(folder: Path) -> Iterator[Side]:
    import redis
    from rq import Queue, SimpleWorker

    with (
        redis_server(folder / "redis", "everysec") as server,
        redis.Redis(port=port_of(server)) as client,
    ):
        queue = Queue(connection=client)

        def run(count: int) -> None:
            logging.getLogger("rq.worker").setLevel(logging.ERROR)
            SimpleWorker([queue], connection=client).work(burst=True, logging_level="ERROR")
            wait(count)

        yield Side(lambda number: queue.enqueue(work, number), run)


Open = Callable[[Path], AbstractContextManager[Side]]
_RIVALS: dict[str, Open] = {"huey": _huey, "dramatiq": _dramatiq, "rq": _rq}


def sides() -> dict[str, Open]:
    """Return kvstream and the installed rivals, by name."""
    installed = {name: opened for name, opened in _RIVALS.items() if find_spec(name) is not None}
    return {"kvstream": _kvstream, **installed}


@contextmanager
def signals_kept() -> Iterator[None]:
    """Undo what rq and huey do with signals: Ctrl-C ends the benchmark."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(number, signal.getsignal(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def seconds_of(opened: Open, folder: Path, count: int) -> float:
    """Enqueue and run jobs; return the seconds until the last one was done."""
    folder.mkdir(parents=True)
    done.clear()
    with signals_kept(), opened(folder) as side:
        begun = time.perf_counter()
        for number in range(count):
            side.enqueue(number)
        side.run(count)
        seconds = time.perf_counter() - begun
    if sorted(done) != list(range(count)):
        raise RuntimeError(f"{len(done)} jobs were done, of {count}")
    return seconds


def run_jobs(sizes: Sizes, folder: Path, log: Log) -> Iterator[Comparison]:
    """Measure all sides by turns; huey on SQLite is the other side of the ratio."""
    title = f"jobs, {THREADS} threads: enqueue until done, with results"
    log(title)
    result = Comparison("jobs", title, 1, sizes.jobs)
    seconds: dict[str, list[float]] = result.further_seconds
    for number in range(sizes.command_rounds):
        for name, opened in sides().items():
            path = folder / f"jobs-{number}-{name}"
            seconds.setdefault(name, []).append(seconds_of(opened, path, sizes.jobs))
    result.seconds.extend(seconds.pop("kvstream"))
    result.peer_seconds.extend(seconds.pop("huey"))
    yield result
