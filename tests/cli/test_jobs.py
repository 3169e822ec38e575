"""Jobs from the command line, without their application."""

from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kvstream import Group, Jobs
from kvstream.cli.json_values import dumps, jsonable
from kvstream.jobs.stored import StoredJobs
from tests.cli.program import Program
from tests.jobs.foreign import ODD, REFUSED

pytestmark = pytest.mark.places("store", "server")


def statuses(with_jobs: Program) -> dict[str, str]:
    return {row["id"]: row["status"] for row in with_jobs.json("jobs", "ls")}


def test_jobs_ls_shows_the_status_of_each(with_jobs: Program, job_ids: dict[str, str]) -> None:
    rows = {row["status"]: row for row in with_jobs.json("jobs", "ls")}
    assert {status: row["id"] for status, row in rows.items()} == job_ids
    assert {row["task"] for row in rows.values()} == {"send"}
    assert rows["failed"]["error"] == "ValueError: no such user"
    assert rows["failed"]["queue"] == "jobs"
    assert rows["scheduled"]["due_ms"] > rows["queued"]["enqueued_ms"]
    text = with_jobs("jobs", "ls", "--status", "failed").stdout
    assert job_ids["failed"] in text
    assert job_ids["done"] not in text
    assert with_jobs.json("jobs", "ls", "--task", "none") == []
    assert with_jobs.json("jobs", "ls", "--name", "others") == []
    assert len(with_jobs.json("jobs", "ls", "--count", "2")) == 2


def test_messages_of_other_programs_hide_no_job(
    with_jobs: Program, job_ids: dict[str, str]
) -> None:
    lines = [
        dumps({name: jsonable(value) for name, value in fields.items()})
        for fields in [*REFUSED.values(), *ODD.values()]
    ]
    with_jobs("import", "jobs", "--format", "jsonl", "-", input="\n".join(lines).encode())
    with_jobs("add", "jobs:result:x", "status=done", "result=[[[")
    with_jobs("add", "jobs:ended:done:send", "state=odd")
    with_jobs("add", "jobs:dead", "task=a", "args=1", "id=z")
    shown = statuses(with_jobs)
    assert set(job_ids.values()) <= set(shown)
    assert shown["z"] == "failed"
    assert "forged" in with_jobs("jobs", "ls").stdout
    assert "cannot be read" in with_jobs("jobs", "show", "x", code=1).stderr


def test_jobs_show_has_result_or_error(with_jobs: Program, job_ids: dict[str, str]) -> None:
    done = with_jobs.one("jobs", "show", job_ids["done"])
    assert (done["status"], done["result"], done["task"]) == ("done", "sent to ann", "send")
    failed = with_jobs.one("jobs", "show", job_ids["failed"])
    assert failed["error"] == "ValueError: no such user"
    assert "raise ValueError" in failed["traceback"]
    assert "  Traceback (most recent call last):" in with_jobs.lines(
        "jobs", "show", job_ids["failed"]
    )
    waiting = with_jobs.one("jobs", "show", job_ids["queued"])
    assert (waiting["status"], waiting["result"]) == ("queued", None)
    assert (waiting["args"], waiting["kwargs"]) == ([], {"to": "cyd"})
    lines = with_jobs.lines("jobs", "show", job_ids["queued"])
    assert 'arguments  to="cyd"' in lines
    assert any(line.startswith("enqueued   20") for line in lines)


def test_jobs_cancel_ends_unfinished_jobs(with_jobs: Program, job_ids: dict[str, str]) -> None:
    with_jobs("jobs", "cancel", job_ids["queued"], job_ids["scheduled"])
    assert statuses(with_jobs) == {
        job_ids["done"]: "done",
        job_ids["failed"]: "failed",
        job_ids["queued"]: "cancelled",
        job_ids["scheduled"]: "cancelled",
    }
    lines = with_jobs.lines("jobs", "cancel", job_ids["done"], code=1)
    assert lines == [f"{job_ids['done']} had ended: it is done"]


def test_jobs_retry_queues_a_failed_one_again(with_jobs: Program, job_ids: dict[str, str]) -> None:
    assert with_jobs.lines("jobs", "retry", job_ids["failed"]) == [
        f"{job_ids['failed']} queued again"
    ]
    assert statuses(with_jobs)[job_ids["failed"]] in ("queued", "retrying")
    assert with_jobs.lines("jobs", "retry", job_ids["queued"], code=1) == [
        f"{job_ids['queued']} has not failed: it is queued"
    ]


def test_who_looks_for_failed_jobs_learns_of_those_to_be_tried_again(tmp_path: Path) -> None:
    program = Program(tmp_path / "store")
    with Jobs(program.directory, shared=False) as jobs:
        task = jobs.task(name="send", retries=1, backoff=60)(lambda: None)
        job_id = task.enqueue().id
        (queue,) = jobs.queues()
        queue.nack(*queue.get(), delay=60)
    said = program("jobs", "ls", "--status", "failed")
    assert (said.stdout, said.stderr) == ("", "no jobs have failed; retrying: 1\n")
    assert program("jobs", "ls", "--status", "failed", "--task", "other").stderr == "no jobs\n"
    assert program.lines("jobs", "retry", job_id, code=1) == [
        f"{job_id} has not failed: it is retrying"
    ]


def test_jobs_are_cancelled_and_retried_by_a_filter(
    with_jobs: Program, job_ids: dict[str, str]
) -> None:
    dry = with_jobs.lines("jobs", "cancel", "--task", "send", "--dry-run")
    assert {line.split()[0] for line in dry} == {job_ids["queued"], job_ids["scheduled"]}
    assert all(line.endswith("would be cancelled") for line in dry)
    lines = with_jobs.lines("jobs", "cancel", "--status", "scheduled")
    assert lines == [f"{job_ids['scheduled']} cancelled"]
    assert with_jobs.lines("jobs", "cancel", "--task", "none") == ["no such jobs"]
    assert with_jobs.lines("jobs", "retry", "--failed-with", "KeyError") == ["no such jobs"]
    lines = with_jobs.lines("jobs", "retry", "--failed-with", "no such user", "--task", "send")
    assert lines == [f"{job_ids['failed']} queued again"]
    with_jobs("jobs", "cancel", code=2)
    with_jobs("jobs", "retry", job_ids["failed"], "--task", "send", code=2)


def test_jobs_are_counted_paged_and_deleted(with_jobs: Program, job_ids: dict[str, str]) -> None:
    number = with_jobs.one("jobs", "count")
    assert number["by_status"] == dict.fromkeys(job_ids, 1)
    assert (number["total"], number["at_least"]) == (4, [])
    assert any(line.split() == ["done", "1"] for line in with_jobs.lines("jobs", "count"))
    first = with_jobs("jobs", "ls", "--count", "3")
    cursor = first.stderr.strip().rpartition(" ")[2]
    (last,) = with_jobs.json("jobs", "ls", "--after", cursor)
    assert last["id"] not in first.stdout
    assert with_jobs.json("jobs", "ls", "--until", "now-1h", "--state", "done") == []
    (tried,) = with_jobs.one("jobs", "show", job_ids["failed"])["tries"]
    assert (tried["attempt"], tried["outcome"]) == (1, "failed")
    assert "  try 1: failed 20" in with_jobs("jobs", "show", job_ids["failed"]).stdout
    dry = with_jobs.lines("jobs", "delete", "--status", "failed", "--dry-run")
    assert dry == [f"{job_ids['failed']} would be deleted"]
    assert with_jobs.one("jobs", "delete", "--task", "send")["done"]
    assert set(statuses(with_jobs).values()) == {"queued", "scheduled"}
    with_jobs("jobs", "delete", code=2)


def test_a_job_that_was_redriven_with_others_is_listed_once(
    with_jobs: Program, job_ids: dict[str, str]
) -> None:
    with_jobs("dead", "redrive", "jobs", "--all")
    found = [row for row in with_jobs.json("jobs", "ls") if row["id"] == job_ids["failed"]]
    assert [row["status"] for row in found] == ["queued"]
    assert with_jobs.one("jobs", "show", job_ids["failed"])["status"] == "queued"


def test_a_job_whose_result_has_expired_is_shown(
    with_jobs: Program, job_ids: dict[str, str]
) -> None:
    for status in ("done", "failed"):
        job_id = job_ids[status]
        key = f"jobs:results:{crc32(job_id.encode()) % 1024}"
        with_jobs("rm", key if status == "done" else f"jobs:result:{job_id}")
    done = with_jobs.one("jobs", "show", job_ids["done"])
    assert (done["status"], done["result"], done["task"]) == ("done", None, "send")
    failed = with_jobs.one("jobs", "show", job_ids["failed"])
    assert (failed["status"], failed["error"]) == ("failed", "ValueError: no such user")
    assert with_jobs.one("jobs", "retry", "--task", "send")["done"] == [job_ids["failed"]]


def test_a_missing_job_is_reported(with_jobs: Program) -> None:
    errors = with_jobs("jobs", "show", "018bcfe5-6800-7000-8000-000000000001", code=1).stderr
    assert "another --name" in errors
    # A workflow may have any ID.
    assert "another --name" in with_jobs("jobs", "show", "nonsense", code=1).stderr


@pytest.mark.places("store")
def test_the_status_of_many_jobs_needs_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    def counted(group: Group, *bounds: Any, read: Any = Group.pending_range) -> Any:
        reads.append(1)
        return read(group, *bounds)

    with Jobs(tmp_path / "store", shared=False) as jobs:
        task = jobs.task(name="run", retries=1, backoff=60)(lambda n: None)
        task.enqueue_many([(n,) for n in range(2500)])
        (queue,) = jobs.queues()
        leased = queue.get(1200)
        queue.nack(*leased[:100], delay=60)
        jobs.store.stream("jobs").delete(*[message.id for message in leased[-200:]])
        monkeypatch.setattr(Group, "pending_range", counted)
        found = Counter(info.status for info in StoredJobs(jobs.store, "jobs").find_all())
    assert found == {"retrying": 100, "running": 900, "queued": 1300}
    assert len(reads) < 10
