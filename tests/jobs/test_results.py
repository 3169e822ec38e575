"""Where the results of jobs are kept, for how long, and how the result of one job is found."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kvstream import Jobs
from kvstream.errors import InvalidArgument, JobFailed, JobUnknown
from kvstream.jobs import JobHandle
from kvstream.jobs.job import new_id
from kvstream.jobs.workers import registration
from kvstream.layout.keys import qualified
from kvstream.operations.queues import redrive
from kvstream.types.ids import StreamID
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until

Start = Callable[..., Working]


def shared(job_id: str) -> str:
    """Return the key that docs/jobs.md names, as another language would compute it."""
    return f"jobs:results:{crc32(job_id.encode()) % 1024}"


def own(job_id: str) -> str:
    return f"jobs:result:{job_id}"


def fill(jobs: Jobs, job_id: str, number: int, **fields: str) -> None:
    """Add results of other jobs to the stream that a job shares with them."""
    stream = jobs.store.stream(shared(job_id))
    with jobs.store.brief_transaction():
        for n in range(number):
            stream.add({"id": f"other-{n}", "status": "done", "result": "0", **fields})


@pytest.fixture
def tested(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path / "unused", result_ttl=60, results_max=2048)
    with jobs.test():
        yield jobs
        assert jobs.store.check() == []


def test_a_small_result_is_an_entry_of_a_shared_stream(tested: Jobs) -> None:
    @tested.task
    def add(a: int, b: int) -> int:
        return a + b

    handles = [add.enqueue(n, 1) for n in range(50)]
    assert [handle.result() for handle in handles] == [*range(1, 51)]
    for handle in handles:
        stream = tested.store.stream(shared(handle.id))
        (entry,) = (each for each in stream.range() if each.fields[b"id"] == handle.id.encode())
        assert entry.fields[b"status"] == b"done"
        assert entry.fields[b"result"] == str(handle.result()).encode()
        rules = stream.retention()
        assert rules is not None
        assert (rules.max_age_ms, rules.max_length) == (60_000, 2)
        assert not tested.store.exists(own(handle.id))
        (only,) = handle.tries
        assert (only.attempt, only.outcome) == (1, "done")


def test_other_records_are_in_the_stream_of_their_job(tested: Jobs) -> None:
    failures = iter([True, False])

    @tested.task
    def large() -> str:
        return "x" * 2000

    @tested.task(result_ttl=61)
    def longer() -> int:
        return 1

    @tested.task(retries=1, backoff=0)
    def again() -> int:
        if next(failures):
            raise ValueError("once")
        return 2

    @tested.task(dead_letter=False)
    def failing() -> None:
        raise ValueError("always")

    for task, wanted in ((large, "x" * 2000), (longer, 1), (again, 2), (failing, None)):
        handle: JobHandle[Any] = task.enqueue()
        if task is failing:
            with pytest.raises(JobFailed, match="always"):
                handle.result()
        else:
            assert handle.result() == wanted
        assert tested.store.exists(own(handle.id))
        assert not tested.store.exists(shared(handle.id))
        assert handle.tries[-1].outcome == handle.status


def test_a_program_whose_clock_is_ahead_finds_its_result(tested: Jobs) -> None:
    @tested.task
    def work() -> int:
        return 7

    early = new_id(tested.now_ms() + 3_600_000)
    tested.store.stream("jobs").add({"task": "work", "id": early, "args": "[[],{}]"})
    assert tested.testing is not None
    tested.testing.run()
    assert tested.handle(early).result() == 7
    assert tested.store.exists(own(early))


def test_a_result_is_found_if_the_clock_was_set_back_meanwhile(tested: Jobs) -> None:
    @tested.task
    def work() -> int:
        return 7

    enqueued_ms = tested.now_ms() + 61_000
    job_id = new_id(enqueued_ms)
    message = {"task": "work", "id": job_id, "args": "[[],{}]"}
    tested.store.stream("jobs").add(message, StreamID(enqueued_ms, 0))
    assert tested.testing is not None
    tested.testing.run()
    assert tested.handle(job_id).result() == 7
    assert tested.handle(job_id).status == "done"


def test_results_are_kept_by_age_and_number(tested: Jobs) -> None:
    @tested.task
    def work() -> int:
        return 1

    assert tested.testing is not None
    handle = work.enqueue()
    kept = work.enqueue()
    while shared(kept.id) == shared(handle.id):
        kept = work.enqueue()
    fill(tested, handle.id, 3)
    tested.testing.turn(1)
    until(lambda: len(tested.store.stream(shared(handle.id))) == 2)
    assert handle.status == "unknown"
    with pytest.raises(JobUnknown):
        handle.result()
    assert kept.status == "done"
    tested.testing.turn(61)
    until(lambda: kept.status == "unknown")
    with pytest.raises(InvalidArgument, match="results_max must be at least 1"):
        Jobs("unused", results_max=0)


def test_streams_get_names_and_rules_again_after_all_keys_were_deleted(
    jobs: Jobs, working: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "KEEP_S", 0.0)
    monkeypatch.setattr(registration, "BEAT_S", 0.1)
    monkeypatch.setattr(registration, "IDLE_BEAT_S", 0.1)

    @jobs.task
    def one() -> int:
        return 1

    def is_listed() -> bool:
        handle = one.enqueue()
        assert handle.result(PATIENCE_S) == 1
        return any(each.id == handle.id for each in jobs.find(status="done").jobs)

    working(jobs)
    until(is_listed)
    jobs.store.delete("jobs:ended", "jobs:ended:done:one")
    until(is_listed)


def test_a_shared_stream_that_was_deleted_gets_rules_again(tested: Jobs) -> None:
    stream = tested.store.stream(shared("order-17"))

    def retention_of_a_result() -> Any:
        tested.results.note_shared(stream.key)
        stream.add({"id": "order-17", "status": "done", "result": "1"})
        tested.results.set_rules()
        return stream.retention()

    assert retention_of_a_result()
    tested.store.delete(stream.key)
    tested.results.look_again()
    assert retention_of_a_result()


def test_new_shared_streams_leave_no_work_for_later(tested: Jobs) -> None:
    keys = [shared(f"order-{n}").encode() for n in range(100)]
    engine = tested.store.own_engine
    assert engine is not None
    for key in keys:
        tested.store.stream(key).add({"id": "", "status": "done"})
        tested.results.note_shared(key)
    now_ms = tested.now_ms()
    tested.results.set_rules()
    for key in keys:
        rules, stream = (
            tested.store.stream(key).retention(),
            engine.catalog.streams[qualified(0, key)],
        )
        assert rules is not None
        assert rules.max_age_ms == 60_000
        assert stream.due_at >= now_ms + 60_000


def test_the_rules_that_were_set_last_hold_and_replacing_others_is_logged_once(
    tested: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    @tested.task
    def work() -> int:
        return 1

    handles = [work.enqueue() for _ in range(5)]
    assert not caplog.records
    tested.result_ttl = 30.0  # as another program that has the same streams
    tested.results.look_again()
    for handle in handles:
        tested.results.note_shared(shared(handle.id).encode())
    work.enqueue()
    for handle in handles:
        rules = tested.store.stream(shared(handle.id)).retention()
        assert rules is not None
        assert rules.max_age_ms == 30_000
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert "are kept for 30 s, 2 in a stream; before it was 60 s and 2" in line


def test_the_last_record_counts_for_an_id_that_a_program_has_chosen(tested: Jobs) -> None:
    stream = tested.store.stream(shared("order-17"))
    for result in ("1", "2"):
        stream.add({"id": "order-17", "status": "done", "result": result, "format": "json"})
        fill(tested, "order-17", 2500)
    assert tested.handle("order-17").result() == 2


def test_a_result_among_many_is_found_by_one_read(tested: Jobs) -> None:
    assert tested.testing is not None
    before = new_id(tested.now_ms() - 120_000)
    fill(tested, before, 3000)
    tested.testing.clock.advance(120_000)
    mine = next(
        each for _ in range(20_000) if shared(each := new_id(tested.now_ms())) == shared(before)
    )
    tested.store.stream(shared(mine)).add({"id": mine, "status": "done", "result": "5"})
    fill(tested, mine, 3000)
    reader = tested.results.reader(mine)
    entries = tested.store.read(reader.after, reader.count)
    assert sum(map(len, entries.values())) <= 100
    assert reader.take(entries, None)
    assert [record.fields[b"result"] for record in reader.found()] == [b"5"]
    assert tested.handle(mine).status == "done"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_goes_on_when_the_result_of_another_job_arrives(
    jobs: Jobs, working: Start, is_async: bool
) -> None:
    begun, go = threading.Event(), threading.Event()

    @jobs.task
    def work() -> str:
        begun.set()
        assert go.wait(PATIENCE_S)
        return "mine"

    handle = work.enqueue()
    found: list[str] = []

    def wait() -> None:
        awaited = asyncio.run(handle.aresult(PATIENCE_S)) if is_async else None
        found.append(handle.result(PATIENCE_S) if awaited is None else awaited)

    thread = threading.Thread(target=wait)
    thread.start()
    working(jobs)
    assert begun.wait(PATIENCE_S)
    for _ in range(2):
        fill(jobs, handle.id, 150, task="other")
    assert not found
    go.set()
    thread.join(PATIENCE_S)
    assert found == ["mine"]


def test_a_retry_and_a_cancellation_are_part_of_a_transaction(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def fail() -> None:
        raise ValueError("no")

    failed = fail.enqueue()
    worker = working(jobs)
    with pytest.raises(JobFailed):
        failed.result(PATIENCE_S)
    worker.stop()
    queued, delayed = fail.enqueue(), fail.with_options(delay=60).enqueue()
    handles = (failed, queued, delayed)

    def change_all(error: Exception | None) -> None:
        """Change each job in a transaction of its own: on a server it reads before it writes."""
        for change in (failed.retry, queued.cancel, delayed.cancel):
            with suppress(LookupError), jobs.store.transaction():
                assert change()
                if error is not None:
                    raise error

    change_all(LookupError())
    assert [each.status for each in handles] == ["failed", "queued", "scheduled"]
    change_all(None)
    assert [each.status for each in handles] == ["queued", "cancelled", "cancelled"]
    assert len(jobs.store.stream("jobs")) == 1
    assert len(jobs.store.stream("jobs:dead")) == 0


def test_a_retry_that_fails_changes_nothing(tested: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    @tested.task
    def fail() -> None:
        raise ValueError("no")

    handle = fail.enqueue()
    with pytest.raises(JobFailed):
        handle.result()

    def away(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(redrive, "move", away)
    with pytest.raises(KeyboardInterrupt):
        handle.retry()
    assert [record.fields[b"status"] for record in tested.results.records(handle.id)] == [b"failed"]
    assert handle.status == "failed"
    monkeypatch.undo()
    assert handle.retry()
    assert handle.status == "queued"
