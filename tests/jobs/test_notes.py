"""The progress and the lines that a job tells while it runs."""

from collections.abc import Callable

import pytest

from kvstream import InvalidArgument, Jobs, Queue
from kvstream.jobs import current_job
from kvstream.jobs.notes import NOTES_MAX
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S


def test_a_job_tells_how_far_it_is(jobs: Jobs, working: Callable[..., Working]) -> None:
    @jobs.task
    def resize() -> None:
        job = current_job()
        job.progress(0.4, "resizing")
        job.log("first")
        job.progress(1)
        job.log("café")

    handle = resize.enqueue()
    assert (handle.progress, handle.log()) == (None, [])
    working(jobs)
    handle.result(PATIENCE_S)
    assert handle.progress is not None
    assert handle.progress[:2] == (1.0, "")
    assert [line.text for line in handle.log()] == ["first", "café"]
    assert jobs.store.ttl(f"jobs:notes:{handle.id}") is not None
    other = jobs.handle(handle.id)
    assert other.progress == handle.progress


def test_lines_are_bounded_and_progress_is_found_behind_them() -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    def talks() -> None:
        current_job().progress(0.5, "half")
        for n in range(250):
            current_job().log(str(n))

    @jobs.task
    def floods() -> None:
        for n in range(2 * NOTES_MAX):
            current_job().log(str(n))

    with jobs.test():
        handle = talks.enqueue()
        assert handle.progress is not None
        assert handle.progress.text == "half"
        lines = floods.enqueue().log()
        assert NOTES_MAX <= len(lines) < 2 * NOTES_MAX
        assert lines[-1].text == str(2 * NOTES_MAX - 1)


def test_wrong_notes_are_refused() -> None:
    jobs = Jobs("nowhere")

    @jobs.task
    def tells(fraction: float) -> None:
        current_job().progress(fraction)

    with jobs.test():
        assert "progress is a number from 0 to 1, not 40" in (tells.enqueue(40.0).error or "")
    with pytest.raises(InvalidArgument, match="cannot be called notes"):
        jobs.task(queue="notes")(print)


def test_one_message_is_taken_from_a_queue(jobs: Jobs) -> None:
    queue = Queue(jobs.store, "mails")
    assert queue.get_one() is None
    queue.put({"to": "ann"})
    queue.put({"to": "bob"})
    first = queue.get_one()
    assert first is not None
    assert first.fields == {b"to": b"ann"}
    first.ack()
    found = queue.get()
    assert found == [found[0]]
    with pytest.raises(
        AttributeError, match=r"get\(\) returns a list .*: use queue.get_one\(\).ack"
    ):
        found.ack()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"which has no nonsense$"):
        found.nonsense  # type: ignore[attr-defined] # noqa: B018
