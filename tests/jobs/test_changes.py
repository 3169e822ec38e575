"""Changes of many jobs by criteria, and the tries of one."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream import InvalidArgument, JobFailed, JobHandle, Jobs
from kvstream.jobs import Retry, current_job, step
from kvstream.jobs.listing import changes
from kvstream.jobs.tries import LOST_MAX
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until


def test_the_tries_of_a_job_are_kept(jobs: Jobs, working: Callable[..., Working]) -> None:
    runs: list[int] = []

    @jobs.task(retries=1, backoff=0)
    def flaky() -> int:
        runs.append(current_job().attempt)
        if len(runs) < 3:
            raise ValueError(f"no {len(runs)}")
        return 1

    handle = flaky.enqueue()
    assert handle.tries == []
    working(jobs)
    with pytest.raises(JobFailed):
        handle.result(PATIENCE_S)
    assert handle.retry()
    assert handle.result(PATIENCE_S) == 1
    assert runs == [1, 2, 1]
    tries = jobs.handle(handle.id).tries
    assert [(each.attempt, each.outcome, each.error) for each in tries] == [
        (1, "failed", "ValueError: no 1"),
        (2, "failed", "ValueError: no 2"),
        (3, "done", None),
    ]
    for each in tries:
        assert each.worker == jobs.consumer
        assert each.begun is not None
        assert each.ended is not None
        assert each.seconds is not None
        assert each.begun <= each.ended
    assert "raise ValueError" in (tries[0].traceback or "")


def test_a_try_that_was_cut_short_is_shown_and_one_in_work(tmp_path: Path) -> None:
    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run", retries=500)(lambda: None)
        handle = task.enqueue()
        (queue,) = jobs.queues()
        for _ in range(2):
            (message,) = queue.get()
            message.nack(0)
        queue.get()
        tries = handle.tries
        assert [(each.attempt, each.outcome) for each in tries] == [
            *((1, "lost"), (2, "lost"), (3, "running"))
        ]
        assert tries[2].worker == jobs.consumer
        jobs.record(handle.id, b"retry", None, {"error": "x", "attempt": 300})
        assert len(handle.tries) == 2 + LOST_MAX + 2  # of a try that is back at 3, two are lost
        assert jobs.store.check() == []


def test_jobs_are_cancelled_by_criteria(jobs: Jobs) -> None:
    @jobs.task
    def send(to: str) -> str:
        return to

    @jobs.workflow
    def flow() -> None:
        step(print)

    mails = send.enqueue_many([(str(n),) for n in range(5)], tags=["campaign"])
    later = send.with_options(delay=60, tags=["campaign"]).enqueue("later")
    other = flow.enqueue()
    after = send.with_options(depends_on=other).enqueue("after")
    dry = jobs.cancel(tag="campaign", dry_run=True)
    assert set(dry.done) == {later.id, *(mail.id for mail in mails)}
    assert jobs.count(status="cancelled").total == 0
    assert len(jobs.cancel(tag="campaign", most=2).done) == 2
    assert len(asyncio.run(jobs.acancel(tag="campaign", rate=(1000, 1))).done) == 4
    assert jobs.cancel(tag="campaign").done == []
    assert jobs.count(status="cancelled").total == 6
    assert jobs.cancel(status="waiting").done == [after.id]
    assert jobs.cancel(task="flow").done == [other.id]
    assert (later.status, after.status, other.status) == ("cancelled",) * 3
    with pytest.raises(InvalidArgument, match="cancel needs criteria"):
        jobs.cancel()
    with pytest.raises(InvalidArgument, match=r"cancel is for jobs that are .*, not done"):
        jobs.cancel(status="done")


def test_failed_jobs_are_retried_and_ended_ones_deleted(
    jobs: Jobs, working: Callable[..., Working]
) -> None:
    works: list[bool] = []

    @jobs.task(tags=["all"])
    def send(to: str) -> str:
        if not works:
            raise ValueError(f"no {to}")
        return to

    @jobs.task(dead_letter=False)
    def once() -> None:
        raise Retry(delay=0) if works else KeyError("gone")

    mails = [send.enqueue(str(n)) for n in range(3)]
    gone = once.enqueue()
    worker = working(jobs)
    handles: list[JobHandle[Any]] = [*mails, gone]
    until(lambda: {each.status for each in handles} == {"failed"})
    worker.stop()
    assert jobs.retry(failed_with="no 1", dry_run=True).done == [mails[1].id]
    assert jobs.retry(failed_with="no 1").done == [mails[1].id]
    assert mails[1].status in ("queued", "retrying")
    found = jobs.retry(status="failed")
    assert (set(found.done), found.left) == ({mails[0].id, mails[2].id}, [gone.id])
    works.append(True)
    worker = working(jobs)
    assert [mail.result(PATIENCE_S) for mail in mails] == ["0", "1", "2"]
    worker.stop()
    assert jobs.delete(task="once").done == [gone.id]
    assert jobs.delete(tag="all", status="done", most=1).done
    assert jobs.count(tag="all", status="done").total == 2
    assert jobs.count(task="send", status="done").total == 2
    assert len(asyncio.run(jobs.adelete(task="send")).done) == 2
    assert jobs.count().total == 0
    assert {mail.status for mail in mails} == {"unknown"}
    assert not [key for key in jobs.store.scan_keys("jobs:result*") if len(jobs.store.stream(key))]


def test_a_change_of_many_jobs_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PAGE", 10)
    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run")(lambda n: None)
        task.enqueue_many([(n,) for n in range(100)])
        last = jobs.task(name="other")(lambda: None).enqueue()
        for each in range(100):
            task.with_options(depends_on=last).enqueue(each)
        pages = jobs.changes("cancel", task="run", status=["queued", "waiting"])
        for _ in range(3):
            next(pages)
        pages.close()  # type: ignore[attr-defined]
        assert jobs.count(status="cancelled").total == 30
        assert len(jobs.cancel(task="run").done) == 170
        assert jobs.count().by_status == {"cancelled": 200, "queued": 1}
        assert len(jobs.delete(since="now-1h").done) == 200
        assert jobs.count().by_status == {"queued": 1}
        assert jobs.store.check() == []
