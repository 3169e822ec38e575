"""The log of jobs: a line when a try begins and when it ends, and texts that are cut."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvstream import Jobs, current_job
from kvstream.errors import TEXT_BYTES_MAX, format_trace, stored_text
from kvstream.jobs import JobFailed, job_log
from kvstream.logs import JsonFormatter, TextFormatter
from tests.jobs.conftest import Working
from tests.patience import PATIENCE_S, until

Start = Callable[..., Working]
LOGGER = logging.getLogger("kvstream.jobs.job_log")


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, job_id: str) -> list[logging.LogRecord]:
        return [each for each in self.records if each.__dict__["job"]["id"] == job_id]

    def lines(self, job_id: str) -> list[str]:
        return [f"{each.levelname} {each.getMessage()}" for each in self.of(job_id)]


@contextmanager
def handling(handler: logging.Handler, *more: logging.Logger) -> Iterator[None]:
    """Give a handler the records of jobs, and those of ``more``."""
    for logger in (LOGGER, *more):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in (LOGGER, *more):
            logger.removeHandler(handler)


@pytest.fixture
def log() -> Iterator[Records]:
    handler = Records()
    LOGGER.setLevel(logging.INFO)
    with handling(handler):
        yield handler
    LOGGER.setLevel(logging.NOTSET)


def shape(line: str) -> str:
    """Return a line of the log without its ID and seconds."""
    words = line.split(" ")
    return " ".join(word if "." not in word else "T" for word in [words[0], *words[3:]])


def test_each_try_has_a_line_at_its_begin_and_one_at_its_end(
    jobs: Jobs, working: Start, log: Records
) -> None:
    @jobs.task
    def fine() -> int:
        return 1

    @jobs.task
    async def asynchronous() -> None: ...

    @jobs.task
    def in_transaction() -> None:
        with current_job().transaction() as store:
            store.stream("effects").add({"n": 1})

    @jobs.task(retries=1, backoff=0)
    def broken() -> None:
        raise RuntimeError("no disk\nleft")

    working(jobs)
    handles = [task.enqueue() for task in (fine, asynchronous, in_transaction, broken)]
    for handle in handles[:3]:
        handle.result(PATIENCE_S)
    with pytest.raises(JobFailed):
        handles[3].result(PATIENCE_S)
    until(lambda: len(log.records) == 10)
    for handle, name in zip(handles, ("fine", "asynchronous", "in_transaction"), strict=False):
        assert [shape(line) for line in log.lines(handle.id)] == [
            f"INFO of {name} begins: attempt 1",
            f"INFO of {name} is done: attempt 1, T s",
        ]
    assert [shape(line) for line in log.lines(handles[3].id)] == [
        "INFO of broken begins: attempt 1",
        "WARNING of broken failed: attempt 1, T s, tried again in 0 s: RuntimeError: no disk\nleft",
        "INFO of broken begins: attempt 2",
        "ERROR of broken failed for good: attempt 2, T s: RuntimeError: no disk\nleft",
    ]
    failed = log.of(handles[3].id)[-1]
    assert failed.__dict__["job"] | {"seconds": 0} == {
        **{"id": handles[3].id, "task": "broken", "attempt": 2, "outcome": "failed"},
        **{"seconds": 0, "error": "RuntimeError: no disk\nleft"},
    }
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], RuntimeError)
    text = TextFormatter().format(failed)
    assert "RuntimeError: no disk\\x0aleft\n  Traceback (most" in text
    assert text.endswith("\n  RuntimeError: no disk\n  left")
    fields = json.loads(JsonFormatter().format(failed))
    assert fields["job"] == failed.__dict__["job"]
    assert fields["exception"].endswith("\nRuntimeError: no disk\nleft")


def test_only_failures_are_logged_if_the_job_log_is_off(log: Records) -> None:
    for shows, level, expected in (
        (True, "notice", logging.INFO),
        (False, "notice", logging.WARNING),
        (False, "verbose", logging.WARNING),
        (True, "warning", logging.NOTSET),
        (True, "nothing", logging.NOTSET),
    ):
        LOGGER.setLevel(logging.NOTSET)
        job_log.show(shows, level)
        assert LOGGER.level == expected


def test_a_handler_that_raises_fails_no_job(jobs: Jobs, working: Start, log: Records) -> None:
    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the disk of the log is full")

    @jobs.task(retries=1, backoff=0)
    def unsteady() -> int:
        return 1 // (current_job().attempt - 1)

    with handling(Raises(), logging.getLogger("kvstream")):
        worker = working(jobs)
        assert unsteady.enqueue().result(PATIENCE_S) == 1
        worker.stop()


def test_a_handler_may_use_the_store(jobs: Jobs, working: Start, log: Records) -> None:
    class Stores(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            jobs.store.stream("log").add({"line": record.getMessage()})

    @jobs.task
    def fine() -> None: ...

    with handling(Stores()):
        working(jobs)
        fine.enqueue().result(PATIENCE_S)
        until(lambda: len(jobs.store.stream("log")) == 2)


def test_long_texts_of_errors_are_cut_and_stored_once(
    jobs: Jobs, working: Start, log: Records
) -> None:
    @jobs.task(retries=1, backoff=0)
    def large() -> None:
        raise RuntimeError("\u00e4" * 5_000_000)

    handle = large.enqueue()
    working(jobs)
    with pytest.raises(JobFailed, match=r"\[cut: it has 10000014 bytes\]"):
        handle.result(PATIENCE_S)
    (letter,) = jobs.store.stream("jobs:dead").range()
    records = jobs.store.stream(jobs.results.own_key(handle.id)).range()
    assert len(records) == 2
    for error, traceback in (
        *((each.fields[b"error"], each.fields[b"traceback"]) for each in records),
        (letter.fields[b"dead:error"], letter.fields[b"dead:traceback"]),
    ):
        assert error.decode().startswith("RuntimeError: \u00e4\u00e4")
        assert len(error) <= TEXT_BYTES_MAX
        assert len(traceback.decode()) < 8192
        assert b"raise RuntimeError" in traceback
    until(lambda: len(log.records) == 4)
    assert all(len(TextFormatter().format(each)) < 20_000 for each in log.records)


class Unshown(Exception):
    """Has a text of its own making."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __str__(self) -> str:
        text: str = self.make()
        return text


def _slowly() -> str:
    time.sleep(0.4)
    return "slow"


def _exits() -> str:
    raise SystemExit(1)


@pytest.mark.parametrize("made", [_exits, lambda: 5, lambda: None])
def test_a_text_that_cannot_be_made_fails_its_job_alone(
    jobs: Jobs, working: Start, made: Callable[[], Any]
) -> None:
    @jobs.task
    def odd() -> None:
        raise Unshown(made)

    @jobs.task
    async def odd_too() -> None:
        raise Unshown(made)

    worker = working(jobs)
    for task in (odd, odd_too):
        with pytest.raises(JobFailed, match="its text cannot be shown"):
            task.enqueue().result(PATIENCE_S)
    worker.stop()


def test_a_handler_that_makes_a_text_which_exits_fails_no_other_job(
    jobs: Jobs, working: Start
) -> None:
    class Formats(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                str(record.exc_info[1])

    @jobs.task
    def odd() -> None:
        raise Unshown(_exits)

    @jobs.task
    def fine() -> int:
        return 1

    with handling(Formats()):
        worker = working(jobs)
        with pytest.raises(JobFailed, match="its text cannot be shown"):
            odd.enqueue().result(PATIENCE_S)
        assert fine.enqueue().result(PATIENCE_S) == 1
        worker.stop()


def test_making_the_text_of_an_error_is_not_the_time_of_the_job(jobs: Jobs, working: Start) -> None:
    @jobs.task(timeout=0.3)
    def slow() -> None:
        raise Unshown(_slowly)

    working(jobs)
    with pytest.raises(JobFailed, match="Unshown: slow"):
        slow.enqueue().result(PATIENCE_S)


@pytest.mark.parametrize("keep_end", [False, True])
@pytest.mark.parametrize("letter", ["a", "\u00e4", "\u20ac", "\U0001f600"])
def test_a_cut_text_has_no_half_characters(letter: str, keep_end: bool) -> None:
    for more in range(4):
        text = "a" * more + letter * 100_000 + "a" * more
        found = stored_text(text, keep_end=keep_end)
        assert TEXT_BYTES_MAX - 4 < len(found) <= TEXT_BYTES_MAX
        assert f"[cut: it has {len(text.encode())} bytes]" in found.decode()
        assert stored_text(found) == found
    assert stored_text("\ud800") == b"\\ud800"
    assert len(stored_text(b"\x80" * 100_000, keep_end=keep_end)) <= TEXT_BYTES_MAX


def test_a_traceback_with_causes_and_odd_attributes_has_a_text() -> None:
    class Odd(Exception):
        @property
        def __notes__(self) -> Any:  # type: ignore[override]
            raise SystemExit

    error = Odd("last")
    error.__context__ = ValueError("x" * 10_000)
    for error.__suppress_context__ in (True, False):
        assert "last" in format_trace(error)
    assert "[cut: it has 10013 characters]" in format_trace(error.__context__)
