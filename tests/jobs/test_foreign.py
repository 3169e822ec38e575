"""Messages of other programs in a queue of jobs: one that is no job is a dead letter, alone."""

from collections.abc import Callable
from typing import Any

import pytest

from kvstream import InvalidArgument, Jobs
from kvstream.jobs import JobError, JobFailed
from kvstream.jobs.arguments import unpack
from kvstream.jobs.handle import JobHandle
from tests.jobs.conftest import Working
from tests.jobs.foreign import ODD, REFUSED
from tests.patience import PATIENCE_S, until

Start = Callable[..., Working]


def test_only_messages_that_are_no_jobs_are_dead_letters(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def square(n: int) -> int:
        return n * n

    jobs.unknown_grace = 0
    queue, handles = jobs.store.stream("jobs"), [square.enqueue(0)]
    for number, fields in enumerate([*REFUSED.values(), *ODD.values()], 1):
        queue.add(fields)
        handles.append(square.enqueue(number))
    assert all(handle.status == "queued" for handle in handles)
    working(jobs)
    assert [handle.result(PATIENCE_S) for handle in handles] == [n * n for n in range(len(handles))]
    until(lambda: not len(queue))
    letters = jobs.store.stream("jobs:dead").range()
    expected = [{k.encode(): _bytes(v) for k, v in each.items()} for each in REFUSED.values()]
    found = [
        {k: v for k, v in each.fields.items() if not k.startswith(b"dead:")} for each in letters
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    for letter in letters:
        assert letter.fields[b"dead:reason"] == b"fatal"
        assert letter.fields[b"dead:error"].startswith((b"Refused: ", b"UnknownTask: "))
        assert len(letter.fields[b"dead:error"]) < 1000


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nested", "nested too deeply"),
        ("nested headers", "headers are not JSON: RecursionError"),
        ("a list of headers", "headers are no JSON object"),
        ("digits", "the arguments do not fit square: .*digits"),
        ("digits of the time", "field at is no time"),
        ("no arguments", "it has no field args"),
        ("an unknown format", "format must be one of json, msgpack, not 'pickle'"),
        ("arguments that are no list", "1 is not a list and a mapping of arguments"),
        ("a key that is not UTF-8", "its field key is not UTF-8"),
    ],
)
def test_the_handle_of_a_refused_message_says_why(
    jobs: Jobs, working: Start, name: str, says: str
) -> None:
    @jobs.task
    def square(n: int) -> int:
        return n * n

    jobs.store.stream("jobs").add(REFUSED[name])
    working(jobs)
    until(lambda: jobs.store.exists("jobs:dead"))
    with pytest.raises(JobFailed, match=says):
        jobs.handle("forged").result(PATIENCE_S)


def test_the_code_of_a_type_may_raise_anything(jobs: Jobs, working: Start) -> None:
    class Odd(int):
        @classmethod
        def model_validate(cls, plain: Any) -> "Odd":
            raise {0: SystemExit, 1: RecursionError, 2: RuntimeError}[plain]

        def model_dump(self, **options: Any) -> int:
            if self == 3:
                raise SystemExit
            return int(self)

    @jobs.task
    def odd(value: Odd) -> int:
        raise AssertionError("it has no argument")

    @jobs.task
    def returned() -> Odd:
        return Odd(3)

    @jobs.task
    def square(n: int) -> int:
        return n * n

    handles: list[JobHandle[Any]] = [square.enqueue(1), *[odd.enqueue(Odd(n)) for n in range(3)]]
    handles += [returned.enqueue(), square.enqueue(2)]
    working(jobs)
    says_each = ("SystemExit", "Recursion", "Runtime", "SystemExit")
    for handle, says in zip(handles[1:5], says_each, strict=True):
        with pytest.raises(JobFailed, match=says):
            handle.result(PATIENCE_S)
    assert [handles[at].result(PATIENCE_S) for at in (0, 5)] == [1, 4]


@pytest.mark.parametrize(
    "fields",
    [
        {"result": b"[" * 100_000},
        {"result": b"\xff"},
        {"result": b"9" * 5000},
        {"result": b'"text"', "task": "square"},
        {"result": b"1", "format": b"\xff"},
        {"result": b"1", "format": b"pickle"},
        {"result": b"\xdd\xff\xff\xff\xff", "format": "msgpack"},
        {},
    ],
)
def test_a_result_that_cannot_be_read_is_a_job_error(jobs: Jobs, fields: dict[str, Any]) -> None:
    @jobs.task
    def square(n: int) -> int:
        return n * n

    jobs.store.stream("jobs:result:x").add({"status": "done", **fields})
    handle: JobHandle[Any] = jobs.handle("x")
    assert handle.status == "done"
    with pytest.raises(JobError, match="the result of the job x cannot be read"):
        handle.result(PATIENCE_S)


def test_records_of_other_programs_have_a_state(jobs: Jobs) -> None:
    stream = jobs.store.stream("jobs:result:x")
    stream.add({"status": "failed", "error": b"\xff", "traceback": b"\xfe"})
    handle: JobHandle[Any] = jobs.handle("x")
    assert (handle.status, handle.error, handle.traceback) == ("failed", "\\xff", "\\xfe")
    with pytest.raises(JobFailed, match="xff"):
        handle.result(PATIENCE_S)
    stream.add({"state": "odd"})
    with pytest.raises(InvalidArgument, match="'x' is not the ID of a job"):
        assert handle.status


def test_unpack_raises_value_errors() -> None:
    for form, data in (("json", b"[" * 100_000), ("msgpack", b"\x91" * 100_000)):
        with pytest.raises(ValueError, match=r"nested|recursion|stack|too deep|^$"):
            unpack(data, form)


def test_forged_dead_letters_hide_no_others(jobs: Jobs, working: Start) -> None:
    @jobs.task
    def fails() -> None:
        raise RuntimeError

    handle = fails.enqueue()
    working(jobs)
    with pytest.raises(JobFailed):
        handle.result(PATIENCE_S)
    dead = jobs.store.stream("jobs:dead")
    fields = dead.range()[0].fields
    for name, value in (("id", b"x"), ("deliveries", b"9" * 5000), ("at", b"9" * 30)):
        dead.add({**fields, f"dead:{name}".encode(): value})
    assert [letter.fields[b"task"] for letter in jobs.queues()[0].dead()] == [b"fails"]
