"""The figures of workers and of the jobs that they run, in metrics and INFO."""

import json
import time
from typing import Any

import pytest

from kvstream import Store
from kvstream.layout.keys import qualified
from kvstream.operations.queues import workers
from tests.server.conftest import Serve
from tests.server.metrics.scraping import Scrape, scrape


def beat(client: Any, name: str, state: str, *runs: tuple[str, float, float | None]) -> None:
    """Write the entry of a worker, whose runs have a task, seconds and a timeout."""
    now_ms = round(time.time() * 1000)
    listed = [
        ("id", task, "jobs:high", "1-1", now_ms - round(seconds * 1000), timeout)
        for task, seconds, timeout in runs
    ]
    fields = {"name": name, "state": state, "hanging": "1", "jobs": json.dumps(listed)}
    client.xadd("jobs:workers", fields)


def test_metrics_and_info_show_what_workers_run(serve: Serve) -> None:
    served = serve(metrics_port=0, metrics_streams=0)
    client: Any = served.client(decode_responses=True)
    lost = {"name": "lost", "state": "working", "hanging": "9", "jobs": "[]"}
    client.xadd("jobs:workers", lost, id="2000000000-0")
    client.xadd("jobs:workers", {"odd": "entry"})
    client.xadd("jobs:workers", {"name": "odd", "hanging": "1", "jobs": "[[["})
    client.set("text:workers", "no stream")
    beat(client, "a", "working", ("resize", 1, None))  # replaced by the next
    beat(client, "a", "working", ("resize", 5000, None), ("resize", 50, None))
    beat(client, "b", "draining", ("mail,=\n", 30, 10.0))

    found: Scrape = scrape(served)
    of_jobs = {"db": "0", "jobs": "jobs"}
    states = {each: found.one("kvstream_workers", state=each, **of_jobs) for each in workers.STATES}
    assert states == {"working": 1, "draining": 1, "stopping": 0, "silent": 0, "lost": 1}
    assert found.one("kvstream_jobs_hanging", **of_jobs) == 2
    resize = {"db": "0", "queue": "jobs:high", "task": "resize"}
    assert found.one("kvstream_jobs_running", **resize) == 2
    assert found.one("kvstream_jobs_late", **resize) == 1
    assert found.one("kvstream_jobs_oldest_running_seconds", **resize) == pytest.approx(5000, abs=1)
    assert found.one("kvstream_jobs_late", task="mail,=\n") == 1

    shown = client.info("workers")
    expected = {"db": 0, "jobs": "jobs", **states, "hanging": 2}
    assert shown["workers_0"] == expected
    tasks = {shown[f"jobs_running_{n}"]["task"]: shown[f"jobs_running_{n}"] for n in range(2)}
    assert set(tasks) == {"resize", "mail\\x2c\\x3d\\x0a"}
    assert (tasks["resize"]["running"], tasks["resize"]["late"]) == (2, 1)
    assert not [name for name in client.info() if name.startswith("workers")]

    client.delete("jobs:workers")
    assert client.info("workers") == {}


def test_registries_are_found_beyond_other_keys(serve: Serve) -> None:
    served = serve()
    client: Any = served.client(decode_responses=True)
    with client.pipeline(transaction=False) as pipeline:
        for number in range(1500):
            pipeline.xadd(f"s{number}", {"f": "v"})
        pipeline.execute()
    beat(client, "a", "working")
    found = [client.info("workers") for _ in range(2)]
    assert [bool(each) for each in found] == [False, True]


def test_a_stream_of_large_entries_with_such_a_name_is_not_read_whole(store: Store) -> None:
    stream = store.stream("film:workers")
    for number in range(30):
        stream.add({"name": str(number), "frame": bytes(100_000)})
    assert len(store.engine.run(workers.latest_beats, qualified(0, b"film:workers"))) == 10
