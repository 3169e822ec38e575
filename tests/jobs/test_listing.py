"""Lists and counts of jobs: criteria, pages with a cursor, and what bounds them."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, JobHandle, Jobs, Store
from kvstream.jobs import JobInfo, current_job, step, wait_for
from kvstream.jobs.listing import counts, pages, sources
from kvstream.stream import Stream
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until


def found(jobs: Jobs, **criteria: Any) -> list[str]:
    """Return the arguments or IDs of all jobs that meet criteria, from pages of two."""
    return [each.id for each in all_pages(jobs, 2, **criteria)]


def all_pages(jobs: Jobs, count: int, **criteria: Any) -> Iterator[JobInfo]:
    after: str | None = None
    while True:
        page = jobs.find(count=count, after=after, **criteria)
        assert len(page.jobs) <= count
        yield from page.jobs
        after = page.after
        if after is None:
            return


def test_jobs_are_found_and_counted_by_each_criterion(
    jobs: Jobs, working: Callable[..., Working]
) -> None:
    @jobs.task(tags=["mail"])
    def send(to: str) -> str:
        if to == "bob":
            raise ValueError("no such user")
        return " ".join(current_job().tags)

    @jobs.task(dead_letter=False)
    def lost() -> None:
        raise KeyError("gone")

    ann = send.with_options(tags=["vip", "mail"], key="ann").enqueue("ann")
    bob, cyd = send.enqueue("bob"), send.enqueue_many([("cyd",)], tags=["vip"])[0]
    gone = lost.enqueue()
    worker = working(jobs)
    assert ann.result(PATIENCE_S) == "mail vip"
    until(lambda: {bob.status, cyd.status, gone.status} == {"failed", "done"})
    worker.stop()
    stays = send.with_options(key="dan").enqueue("dan")
    later = send.with_options(delay=3600, tags=["vip"]).enqueue("eve")
    dropped = send.enqueue("fay")
    dropped.cancel()

    assert found(jobs, status="queued") == [stays.id]
    assert found(jobs, status=["done", "scheduled"], tag="vip") in (
        [cyd.id, ann.id, later.id],
        [ann.id, cyd.id, later.id],
    )
    assert found(jobs, status="cancelled") == [dropped.id]
    assert set(found(jobs, status="failed")) == {bob.id, gone.id}
    assert found(jobs, failed_with="such user") == [bob.id]
    assert found(jobs, task="lost") == [gone.id]
    assert found(jobs, key="ann") == [ann.id]
    assert found(jobs, task="none") == found(jobs, tag="none") == []
    everything: list[JobHandle[Any]] = [ann, bob, cyd, gone, stays, later, dropped]
    assert sorted(found(jobs)) == sorted(each.id for each in everything)
    assert found(jobs)[-1] == later.id  # delayed ones come last
    assert found(jobs, until="now-1h") == []
    assert len(found(jobs, since="now-1h")) == len(everything)

    total = jobs.count()
    assert total.total == len(everything)
    assert total.by_status == {
        **{"scheduled": 1, "queued": 1},
        **{"done": 2, "failed": 2, "cancelled": 1},
    }
    assert total.at_least == frozenset()
    assert jobs.count(task="send", status="done").total == 2
    assert jobs.count(tag="vip").by_status == {"scheduled": 1, "done": 2}
    assert jobs.count(since="now-1h", status=["done", "failed"]).total == 4
    assert asyncio.run(jobs.acount(task="send", status="failed")).total == 1
    (info,) = asyncio.run(jobs.afind(key="ann")).jobs
    assert (info.task, info.status, info.attempt, info.tags) == ("send", "done", 1, ("mail", "vip"))
    assert info.seconds is not None
    assert info.enqueued is not None
    assert info.enqueued <= info.at
    (info,) = jobs.find(status="queued").jobs
    assert (info.queue, info.key, info.args or info.kwargs) == ("jobs", "dan", {"to": "dan"})
    assert not any(handle.retry() for handle in [gone])
    assert bob.retry()
    assert found(jobs, status="failed") == [gone.id]
    assert set(found(jobs, status="queued")) == {stays.id, bob.id}


def test_jobs_in_work_and_to_be_tried_again_are_found(
    jobs: Jobs, working: Callable[..., Working]
) -> None:
    @jobs.task(retries=1, backoff=3600)
    def breaks() -> None:
        raise ValueError("later")

    @jobs.task
    def idles() -> None:
        raise AssertionError("nobody runs it")

    handle = breaks.enqueue()
    worker = working(jobs)
    until(lambda: handle.status == "retrying")
    worker.stop()
    (queue,) = jobs.queues()
    idle = idles.enqueue()
    assert [message.deliveries for message in queue.get()] == [1]
    waiting = idles.enqueue()
    assert found(jobs, status="retrying") == [handle.id]
    assert found(jobs, status="running") == [idle.id]
    assert found(jobs, status=["running", "queued", "retrying"]) == [
        *(waiting.id, idle.id, handle.id)
    ]
    assert jobs.count().by_status == {"queued": 1, "running": 1, "retrying": 1}
    assert jobs.count(task="idles").by_status == {"queued": 1, "running": 1}


def test_workflows_are_found_by_what_they_do(jobs: Jobs, working: Callable[..., Working]) -> None:
    def breaks() -> None:
        raise ValueError("no")

    @jobs.workflow
    def greet(name: str) -> str:
        return f"{name} {wait_for('go')}"

    @jobs.workflow
    def fail() -> None:
        step(breaks)

    worker = working(jobs)
    waits = greet.with_options(id="waits").enqueue("ann")
    done = greet.with_options(id="done").enqueue("bob")
    failed = fail.with_options(id="failed").enqueue()
    done.send("go", 1)
    until(lambda: (waits.status, done.status, failed.status) == ("waiting", "done", "failed"))
    worker.stop()
    assert {(each.id, each.status) for each in all_pages(jobs, 1)} == {
        *(("waits", "waiting"), ("done", "done"), ("failed", "failed"))
    }
    assert failed.retry()
    assert found(jobs, status="failed") == []
    assert found(jobs, status="queued", task="fail") == ["failed"]


def test_a_filter_without_an_index_looks_at_slices_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run")(lambda n: None)
        task.enqueue_many([(n,) for n in range(50)], tags=["rare"])
        task.enqueue_many([(n,) for n in range(200)])
        monkeypatch.setattr(pages, "LOOK_MAX", 100)
        page = jobs.find(tag="rare")
        assert (page.jobs, page.looked) == ([], 100)
        assert page.after is not None
        assert len(list(all_pages(jobs, 20, tag="rare"))) == 50
        number = jobs.count(tag="rare", status="queued")
        assert (number.total, number.at_least) == (0, frozenset({"queued"}))
        assert jobs.count().total == 250
        for wrong in ("x", "1:x:jobs", "7:1-1:jobs", "2:1-1:jobs"):
            with pytest.raises(InvalidArgument, match="is no cursor"):
                jobs.find(after=wrong)
        with pytest.raises(InvalidArgument, match=r"no such status: 'dome'.*done"):
            jobs.find(status="dome")
        assert jobs.store.check() == []


def test_jobs_in_work_are_found_before_a_long_backlog_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run", fair=True, max_per_key=2)(lambda n: None)
        handles = [
            handle
            for key in ("a", "b")
            for handle in task.enqueue_many([(n,) for n in range(100)], key=key)
        ]
        (queue,) = jobs.queues()
        got = queue.get(3)
        assert len(got) == 3
        monkeypatch.setattr(pages, "LOOK_MAX", 20)
        page = jobs.find(status="running")
        expected = [job for job in handles[::-1] if job.status == "running"]
        assert [job.id for job in page.jobs] == [job.id for job in expected]
        assert (len(page.jobs), page.after) == (3, None)
        assert jobs.find(status="running", count=2, after=None).jobs == page.jobs[:2]
        assert found(jobs, status="running") == [job.id for job in expected]
        assert jobs.count(status="running", task="run").total == 3
        queue.stream_for(None).delete(got[0].id)
        assert len(jobs.find(status=["running", "done"]).jobs) == 2
        got[1].ack()
        assert [jobs.count(status="running", key=key).total for key in "ab"] == [1, 0]


def test_jobs_that_wait_are_looked_for_among_so_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run")(lambda n: None)
        first = task.enqueue(0)
        waiting = []
        for n in range(3):
            for each in range(30):
                jobs.store.stream(f"other:{n}:{each}").add({"a": "b"})
            waiting.append(task.with_options(depends_on=first).enqueue(n).id)
        monkeypatch.setattr(pages, "LOOK_MAX", 2)
        monkeypatch.setattr(sources, "KEYS_PAGE", 20)
        page = jobs.find(status="waiting")
        assert (page.jobs, page.looked) == ([], 0)
        assert found(jobs, status="waiting") == waiting
        assert jobs.count(status="waiting").at_least == {"waiting"}
        monkeypatch.undo()
        assert jobs.count(status="waiting") == (3, {"waiting": 3}, frozenset())
        assert jobs.store.check() == []


def test_pages_of_jobs_that_wait_look_at_each_key_once_and_lose_none(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "KEYS_PAGE", 20)
    task = jobs.task(name="run")(lambda n: None)
    first = task.enqueue(0)
    waiting = [task.with_options(depends_on=first).enqueue(n) for n in range(25)]
    for each in range(60):
        jobs.store.stream(f"other:{each}").add({"a": "b"})
    waiting += [task.with_options(depends_on=first).enqueue(n) for n in range(5)]
    scanned, keys = list[int](), jobs.store.size()

    def counted(store: Store, *call: int, page: Any = Store.key_page) -> Any:
        found = page(store, *call)
        scanned.append(len(found[1]))
        return found

    monkeypatch.setattr(Store, "key_page", counted)
    ids, after, pages_read = list[str](), None, 0
    while pages_read == 0 or after is not None:
        page = jobs.find(status="waiting", count=7, after=after)
        ids += [job.id for job in page.jobs]
        after, pages_read = page.after, pages_read + 1
        if pages_read == 2:
            assert waiting[3].cancel()  # a page behind it does not move
    assert ids == [each.id for each in waiting]
    assert pages_read == 5
    assert sum(scanned) < 2.5 * keys


def test_a_page_of_many_ended_jobs_reads_few_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(stream: Any, *bounds: Any, read: Any = Stream.revrange, **options: Any) -> Any:
        entries = read(stream, *bounds, **options)
        reads.append(len(entries))
        return entries

    with Jobs(tmp_path / "store", shared=False, durability="no") as jobs:
        tasks = [f"task{n}" for n in range(10)]
        for task in tasks:
            entries = [{"id": f"{task}-{n}", "took": "1"} for n in range(10_000)]
            jobs.store.stream(jobs.ended.key("done", task)).add_many(entries)
            jobs.store.stream(jobs.ended.names_key).add({"status": "done", "task": task})
        monkeypatch.setattr(Stream, "revrange", counted)
        page = jobs.find(count=100)
        assert len(page.jobs) == page.looked == 100
        assert sum(reads) < 1000
        reads.clear()
        assert len(jobs.find(count=100, after=page.after, task="task3", status="done").jobs) == 100
        assert sum(reads) < 500
        reads.clear()
        for task in ("one", "two"):  # two queues, which share their dead letters
            jobs.task(name=task, queue=task)(lambda: None).enqueue()
        monkeypatch.delattr(Stream, "scan")
        assert jobs.count().total == 100_002
        assert jobs.count(task="task7", status="done", since="now-1h").total == 10_000
        assert reads == []
        monkeypatch.setattr(counts, "COUNTED_MAX", 1000)
        assert jobs.count(key="x", status="done").at_least == {"done"}


def test_ended_jobs_are_kept_by_number_and_age(tmp_path: Path) -> None:
    with Jobs(tmp_path / "store", shared=False, ended_max=100, ended_ttl=3600) as jobs:
        task = jobs.task(name="run", tags=["all"])(lambda: None)
        handle = task.enqueue()
        handle.cancel()
        rules = jobs.store.stream("jobs:ended:cancelled:run").retention()
        assert rules is not None
        assert (rules.max_length, rules.max_age_ms) == (100, 3_600_000)
        assert 3500 < (jobs.store.ttl("jobs:tagged:all") or 0) <= 3600
        with pytest.raises(InvalidArgument, match="cannot be called ended"):
            jobs.task(queue="ended")(print)
        for wrong in ("mail", [""], ["a,b"], [1], ["x"] * 2 + [str(n) for n in range(20)]):
            with pytest.raises(InvalidArgument, match="tag"):
                task.with_options(tags=wrong)  # type: ignore[arg-type]
    with Jobs(tmp_path / "other", shared=False, ended_max=0) as jobs:
        handle = jobs.task(name="run")(lambda: None).enqueue()
        handle.cancel()
        assert handle.status == "cancelled"
        assert jobs.find(status="cancelled").jobs == []
