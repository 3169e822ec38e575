"""Workflows of five calls, from enqueue to done, beside Celery, dramatiq and DBOS.

Each side begins workflows one by one, runs them in threads of a process of its own, and ends when
the last one is done. A process of its own, since frameworks change the logging and the signals of
theirs. Their calls do nothing. Celery's chain and dramatiq's pipeline are messages in
redis-server, with a result of each call. DBOS writes each step to SQLite. The plain jobs are
kvstream's own: as many as the workflow has calls.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bench.jobs import THREADS, done, run_worker, wait
from bench.processes import port_of, redis_server
from bench.results import Comparison, Log
from bench.workload import Sizes

ROOT = Path(__file__).resolve().parent.parent
CALLS = 5
SHARE = 10
"""So many jobs are as much work as one workflow, or more."""
DBOS_MAX = 40
"""Workflows of DBOS in one round: it runs a few a second."""


class Side(NamedTuple):
    """One system: begin a workflow; run all until so many are done."""

    begin: Callable[[int], object]
    run: Callable[[int], None]


def add(number: int) -> int:
    """Run as each call of a workflow."""
    return number + 1


def add_last(number: int) -> int:
    """Run as the last call of a workflow; its results are the workflows that are done."""
    done.append(number + 1)
    return number + 1


@contextmanager
def kvstream_side(folder: Path, name: str) -> Iterator[Side]:
    from kvstream.jobs import Jobs, chain, step

    with Jobs(folder / "jobs") as jobs:
        task, last = jobs.task(add), jobs.task(add_last)
        jobs.queue_of(task).prepare()  # opens the store, as the servers of others have begun by now

        @jobs.workflow
        def flow(number: int) -> int:
            for _ in range(CALLS - 1):
                number = step(add, number)
            return step(add_last, number)

        def plain(number: int) -> None:
            for _ in range(CALLS - 1):
                task.enqueue(number)
            last.enqueue(number + CALLS - 1)

        rest = [task.s() for _ in range(CALLS - 2)]
        begins: dict[str, Callable[[int], object]] = {
            "chains": lambda number: chain(task.s(number), *rest, last.s()).enqueue(),
            "workflows": flow.enqueue,
            "plain": plain,
        }
        yield Side(begins[name], partial(run_worker, jobs))


@contextmanager
def _dramatiq(folder: Path, _: str) -> Iterator[Side]:
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
        actor: Any = dramatiq.actor(broker=broker)(add)
        last: Any = dramatiq.actor(broker=broker)(add_last)

        def begin(number: int) -> None:
            rest = [actor.message() for _ in range(CALLS - 2)]
            parts: Any = [actor.message(number), *rest, last.message()]
            pipeline: Any = dramatiq.pipeline
            pipeline(parts, broker=broker).run()

        def run(count: int) -> None:
            worker = dramatiq.Worker(broker, worker_threads=THREADS)
            worker.start()
            wait(count)
            worker.stop()

        yield Side(begin, run)
        broker.close()


@contextmanager
def _celery(folder: Path, _: str) -> Iterator[Side]:
    import celery
    from celery.contrib.testing.worker import start_worker

    with redis_server(folder / "redis", "everysec") as server:
        url = f"redis://127.0.0.1:{port_of(server)}/0"
        app = celery.Celery("bench", broker=url, backend=url, set_as_current=False)
        app.conf.worker_hijack_root_logger = False
        task = app.task(name="bench.add")(add)
        last = app.task(name="bench.add_last")(add_last)

        def begin(number: int) -> None:
            rest = [task.s() for _ in range(CALLS - 2)]
            celery.chain(task.s(number), *rest, last.s(), app=app).apply_async()

        def run(count: int) -> None:
            options: dict[str, Any] = {"pool": "threads", "concurrency": THREADS}
            with start_worker(app, perform_ping_check=False, loglevel="ERROR", **options):
                wait(count)

        yield Side(begin, run)
        app.close()


@contextmanager
def _dbos(folder: Path, _: str) -> Iterator[Side]:
    from dbos import DBOS

    url = f"sqlite:///{folder / 'dbos.db'}"
    config: Any = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)
    one, last = DBOS.step()(add), DBOS.step()(add_last)

    def flow(number: int) -> int:
        for _ in range(CALLS - 1):
            number = one(number)
        return int(last(number))

    workflow = DBOS.workflow(name="bench")(flow)
    handles: list[Any] = []

    def run(count: int) -> None:
        for handle in handles[:count]:
            handle.get_result()

    DBOS.launch()
    yield Side(lambda number: handles.append(DBOS.start_workflow(workflow, number)), run)
    DBOS.destroy()


Open = Callable[[Path, str], Any]
RIVALS: dict[str, Open] = {"dramatiq": _dramatiq, "celery": _celery, "dbos": _dbos}
_SIDES = {"kvstream": kvstream_side, **RIVALS}
_ROWS = {
    "chains": (f"a chain of {CALLS} calls, {THREADS} threads", ("dramatiq", "celery")),
    "workflows": (f"a workflow of {CALLS} steps, {THREADS} threads", ("dramatiq", "dbos")),
}


def seconds_of(side: str, folder: Path, name: str, count: int) -> float:
    """Begin and run workflows in a new process; return the seconds until the last one was done."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.workflows", side, str(folder), name, str(count)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{side} has failed: {ran.stderr[-2000:]}")
    return float(ran.stdout.split()[-1])


def _run(opened: Open, folder: Path, name: str, count: int) -> float:
    with opened(folder, name) as side:
        begun = time.perf_counter()
        for number in range(count):
            side.begin(number)
        side.run(count)
        seconds = time.perf_counter() - begun
    if sorted(done) != list(range(CALLS, CALLS + count)):
        raise RuntimeError(f"{len(done)} workflows were done, of {count}")
    return seconds


def run_workflows(sizes: Sizes, folder: Path, log: Log) -> Iterator[Comparison]:
    """Measure all sides by turns; dramatiq's pipeline is the other side of the ratio."""
    count = max(CALLS, sizes.jobs // SHARE)
    for key, (title, rivals) in _ROWS.items():
        log(title)
        result = Comparison(key, title, 1, count)
        installed = [name for name in rivals if find_spec(name) is not None]
        seconds: dict[str, list[float]] = {}
        for number in range(sizes.command_rounds):
            sides = [("kvstream", "kvstream", key), ("plain jobs", "kvstream", "plain")]
            sides += [(name, name, key) for name in installed]
            for name, side, what in sides:
                of_side = min(count, DBOS_MAX) if name == "dbos" else count
                taken = seconds_of(side, folder / f"{key}-{number}-{side}-{what}", what, of_side)
                seconds.setdefault(name, []).append(taken * count / of_side)
        result.seconds.extend(seconds.pop("kvstream"))
        result.peer_seconds.extend(seconds.pop("dramatiq"))
        result.further_seconds.update(seconds)
        yield result


if __name__ == "__main__":
    _side, _folder, _name, _count = sys.argv[1:]
    print(_run(_SIDES[_side], Path(_folder), _name, int(_count)))
