"""A job: one call of a task, as it stands in a queue and as a worker runs it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from kvstream.engine.queue_arguments import Duration, span_ms
from kvstream.errors import InvalidArgument, LeaseLost, describe, quote, show
from kvstream.jobs.notes import add_note
from kvstream.operations.queues.schedules import AT_FIELD, NAME_FIELD
from kvstream.storage.contexts import contextmanager
from kvstream.surface import Public
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.queue import Message, Queue
    from kvstream.store import Store

TASK, ID, ARGS, VERSION, FORMAT = b"task", b"id", b"args", b"version", b"format"
AT, KEY, HEADERS, APP, EXPIRES = b"at", b"key", b"headers", b"app", b"expires"
PARENT, GENERATION, TAGS = b"parent", b"generation", b"tags"
THEN = b"then"
EXPIRES_AFTER = b"expires:after"
"""Milliseconds after ``cron:at``: a schedule has it in place of a time, for all its messages."""
TAGS_MAX, TAG_LENGTH_MAX = 20, 200
"""Most tags of a job, and characters of one."""
_DIGITS_MAX = 20
"""Digits of a time in milliseconds."""


def to_seconds(span: Duration, what: str) -> float:
    """Return a duration in seconds; InvalidArgument if it is negative or no duration."""
    return span_ms(span, what) / 1000


class Retry(Exception):
    """Raised by a task to be tried again, after ``delay`` seconds instead of its backoff."""

    def __init__(self, message: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(message)
        self.delay = None if delay is None else to_seconds(delay, "delay")


class GiveUp(Exception):
    """Raised by a task that must not be tried again: the job goes to the dead letters."""


class JobTimeout(Exception):
    """The job has run for longer than the ``timeout`` of its task."""


class Refused(Exception):
    """A worker cannot run a job: its task is unknown, or its arguments do not fit."""


class UnknownTask(Refused):
    """A worker does not have the task of a job, or not in its version; another worker may."""


class RunEnded(BaseException):
    """Ends a run of a workflow that has no outcome yet; no ``except Exception`` catches it."""

    def __init__(self, outcome: str, why: str = "") -> None:
        """``outcome``: "waits", "stale" (it was not begun), "ended" (by others) or "lost"."""
        super().__init__(why)
        self.outcome, self.why = outcome, why


class AnyJobs(Protocol):
    """The ``Jobs``, as its tasks, handles, runs and test mode see it."""

    name: str
    format: str
    group: str
    middleware: Any
    tasks: dict[str, Any]
    schedules: Any
    testing: Any
    consumer: str
    unknown_grace: float
    result_ttl: float

    @property
    def application(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def lease_s(self) -> float: ...

    def use(self, store: Store | None) -> None: ...

    def declare(self) -> None: ...

    def now_ms(self) -> int: ...

    def queues(self) -> list[Queue]: ...

    def queue_of(self, task: Any) -> Queue: ...

    def find_task(self, name: str) -> Any: ...

    def handle(self, job_id: str) -> Any: ...

    def dead_keys(self) -> list[str]: ...

    def put(self, task: Any, job: Job, *, priority: str | None, **options: Any) -> Any: ...

    def put_many(
        self,
        task: Any,
        jobs: Sequence[Job],
        names: Sequence[str | None],
        *,
        priority: str | None,
        **options: Any,
    ) -> list[Any]: ...

    def record(
        self,
        job_id: str,
        status: bytes,
        ttl: float | None = ...,
        fields: Mapping[str, str | bytes | int] = ...,
    ) -> None: ...

    ended: Any
    results: Any

    def after_commit(self) -> None: ...

    def run_fields(self, job: Job) -> dict[bytes, str]: ...

    def note_end(self, job: Job, status: str, error: str = ...) -> None: ...

    def additions_of_end(self, job: Job, status: str, error: str = ...) -> list[Any]: ...

    def finishing(self, job: Job) -> AbstractContextManager[Store]: ...

    def finish(self, jobs: Sequence[Job]) -> None: ...


def new_id(now_ms: int) -> str:
    """Return a UUID of version 7, which sorts by time; RFC 9562."""
    return _uuid(now_ms, os.urandom(10))


def _uuid(ms: int, rest: bytes) -> str:
    text = ((ms & (1 << 48) - 1).to_bytes(6, "big") + rest).hex()
    variant = "89ab"[rest[2] >> 4 & 3]
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def id_of(fields: Mapping[bytes, bytes], entry_id: object) -> str:
    """Return the ID of the job in a message; ValueError if it is not UTF-8.

    A message of a schedule has no field for the ID. Its ID is made of its time and schedule, so it
    is the same after the message has come back from the dead letters.
    """
    if ID in fields:
        return fields[ID].decode()
    at = fields.get(AT_FIELD, b"")
    if at.isdigit():
        name = fields.get(NAME_FIELD, b"")
        return _uuid(int(at), blake2b(name, digest_size=10).digest())
    return str(entry_id)


def has_id(fields: Mapping[bytes, bytes], entry_id: object, job_id: str) -> bool:
    """Return whether a message holds the job with an ID; any program may have written it."""
    try:
        return id_of(fields, entry_id) == job_id
    except ValueError:
        return False


def is_time(value: bytes) -> bool:
    """Return whether a field is a time in milliseconds."""
    return value.isdigit() and len(value) < _DIGITS_MAX


def expires_ms_of(fields: Mapping[bytes, bytes]) -> int | None:
    """Return the Unix time after which a job does not begin; 0: no limit, None: not a time.

    The messages of a schedule expire some time after the time that they were planned for.
    """
    expires = fields.get(EXPIRES)
    if expires is None:
        after = fields.get(EXPIRES_AFTER)
        if after is None:
            return 0
        at = fields.get(AT_FIELD, b"")
        return int(at) + int(after) if is_time(at) and is_time(after) else 0
    return int(expires) if is_time(expires) else None


def creation_ms(job_id: str) -> int:
    """Return the Unix milliseconds at which an ID was made."""
    try:
        return UUID(job_id).int >> 80
    except ValueError:  # the ID of an entry: its message has no ID of its own
        ms = job_id.partition("-")[0]
        if ms.isdecimal() and len(ms) < _DIGITS_MAX:
            return int(ms)
        raise InvalidArgument(f"{show(job_id)} is not the ID of a job") from None


def may_be_of_job(job_id: str) -> bool:
    """Return whether a job may have an ID; if not, it is that of a workflow."""
    try:
        return creation_ms(job_id) >= 0
    except InvalidArgument:
        return False


@dataclass(eq=False)
class Job(Public):
    """One call of a task. A task gets it by ``current_job()``, middleware as an argument."""

    _internal = frozenset(
        {
            *("begun", "done", "ending", "form", "generation", "of", "outcome", "packed", "parent"),
            *("expires_ms", "link", "result_packed", "returned", "run", "settled", "then"),
            "took_ms",
        }
    )

    id: str
    """Its ID, which ``jobs.handle`` takes."""
    task_name: str
    """The name of its task."""
    packed: bytes
    """The arguments."""
    form: str = "json"
    """How its arguments are encoded."""
    version: str = ""
    """The version of the task's signature when the job was enqueued."""
    key: str | None = None
    """Jobs of one key run in order, one at a time."""
    headers: dict[str, str] = field(default_factory=dict)
    """For middleware: they travel with the job."""
    enqueued_ms: int = 0
    """When it was enqueued, in Unix milliseconds."""
    attempt: int = 1
    """1 for the first run."""
    parent: str | None = None
    """The ID of the workflow that has started it."""
    generation: int | None = None
    """That of the wait which this message ends; None if the job is no workflow."""
    tags: tuple[str, ...] = ()
    """Words by which jobs are found."""
    expires_ms: int = 0
    """The Unix milliseconds after which no try begins; 0: there is no such time."""
    args: tuple[Any, ...] = ()
    """Its arguments by place."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Its arguments by name."""
    state: dict[Any, Any] = field(default_factory=dict)
    """For middleware, for as long as this run lasts."""
    result: Any = None
    """The result that ``transaction`` keeps; otherwise the return value of the task."""
    task: Any = None
    """The ``Task``."""
    message: Message | None = None
    """The message of the queue that brought it; None in a test without a worker."""
    begun: float = 0.0
    """When the run began, by ``time.monotonic``."""
    returned: float | None = None
    """When its function and middleware had returned or raised; None until then."""
    ending: bool = False
    """Its outcome is being written."""
    outcome: str = ""
    """How this try has ended: ``"done"`` or ``"failed"``, whether it is tried again or not."""
    done: bool = False
    """Its transaction has ended it."""
    run: Any = None
    """The run of a workflow."""
    result_packed: bytes = b""
    """The result of a child, for its parent, or of a workflow."""
    then: bytes = b""
    """The calls that follow a child of a chain; see ``history.links``."""
    link: Any = None
    """The next one of them, once the child has returned."""
    settled: bool = False
    """It is done, given back or given up; or another worker has it."""

    def fields(self) -> dict[bytes, str | bytes]:
        """Return the fields of its message."""
        found: dict[bytes, str | bytes] = {
            TASK: self.task_name,
            ID: self.id,
            ARGS: self.packed,
            VERSION: self.version,
            AT: str(self.enqueued_ms),
        }
        if self.form != "json":
            found[FORMAT] = self.form
        if self.key is not None:
            found[KEY] = self.key
        if self.headers:
            found[HEADERS] = json.dumps(self.headers)
        if self.parent is not None:
            found[PARENT] = self.parent
        if self.then:
            found[THEN] = self.then
        if self.generation is not None:
            found[GENERATION] = str(self.generation)
        if self.tags:
            found[TAGS] = ",".join(self.tags)
        if self.expires_ms:
            found[EXPIRES] = str(self.expires_ms)
        return found

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes], entry_id: object, attempt: int = 1) -> Job:
        """Return the job in a message; raise Refused if it is none.

        Any program may have written the message, so its fields may hold anything.
        """
        generation = fields.get(GENERATION)
        if generation is not None and not (generation.isdigit() and len(generation) < _DIGITS_MAX):
            raise _no_job(f"its generation is no number: {quote(generation)}")
        at, expires_ms = fields.get(AT, b"0"), expires_ms_of(fields)
        if not is_time(at) or expires_ms is None:
            name = AT if expires_ms is not None else EXPIRES
            time = fields.get(name, b"")
            raise _no_job(f"its field {name.decode()} is no time in milliseconds: {quote(time)}")
        key = fields.get(KEY)
        try:
            job_id = id_of(fields, entry_id)
        except ValueError as error:
            raise _no_job(f"its ID: {error}") from None
        job = cls(  # by position, which is faster
            job_id,
            _text(fields, TASK),
            _field(fields, ARGS),
            _text(fields, FORMAT, b"json"),
            _text(fields, VERSION, b""),
            None if key is None else _text(fields, KEY),
            _headers(fields),
            int(at),
            attempt,
            _text(fields, PARENT) if PARENT in fields else None,
            None if generation is None else int(generation),
            tags_in(fields),
            expires_ms,
        )
        if THEN in fields:
            job.then = fields[THEN]
        return job

    @property
    def took_ms(self) -> int | None:
        """How long the run has taken; None if it has not begun here."""
        if not self.begun:
            return None
        return round(1000 * ((self.returned or monotonic()) - self.begun))

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress, from 0 to 1, and what the job does, for ``handle.progress``. ::

        current_job().progress(0.4, "resizing")
        """
        add_note(self.task.jobs, self.id, text, fraction, self.task.result_ttl)

    def log(self, text: str) -> None:
        """Keep ``text``, a line, with the job, for ``handle.log()``: the last 1000 of them."""
        add_note(self.task.jobs, self.id, text, None, self.task.result_ttl)

    @contextmanager
    def transaction(self) -> Iterator[Store]:
        """Run everything that this thread does in the block, and the end of the job, as one commit.

        So the job has its effect inside the store exactly once. An exception undoes the block, and
        so does LeaseLost, if another worker has the job by then. The block ends the job: set
        ``result`` in it if there is one. In a step of a workflow it ends the step. Within the block
        no other thread uses a store in a directory of this process, and an async task must not
        await: its event loop would run other tasks inside the transaction. ::

            with current_job().transaction() as store:
                store.stream("invoices").add({"order": order})
        """
        if self.settled:
            raise LeaseLost(f"the job {self.id} has ended, or another worker has it")
        if self.run is not None:
            with self.run.transaction() as store, without_await():
                yield store
            return
        with self.task.jobs.finishing(self) as store, without_await():
            yield store
        self.settled = self.done = True


def _no_job(why: str) -> Refused:
    return Refused(f"the message is not a job: {why}")


def _no_field(name: bytes) -> Refused:
    return _no_job(f"it has no field {name.decode()}")


def _field(fields: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = fields.get(name)
    if value is None:
        raise _no_field(name)
    return value


def _text(fields: Mapping[bytes, bytes], name: bytes, default: bytes | None = None) -> str:
    value = fields.get(name, default)
    if value is None:
        raise _no_field(name)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _no_job(f"its field {name.decode()} is not UTF-8: {show(value)}") from None


def tags_in(fields: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Return the tags in the fields of a message."""
    raw = fields.get(TAGS)
    return tuple(raw.decode("utf-8", "replace").split(",")) if raw else ()


def check_tags(tags: Any) -> tuple[str, ...]:
    """Return tags, each once; raise InvalidArgument for others than a list of words."""
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise InvalidArgument(f"tags are a list of texts, not {show(tags)}")
    found = tuple(dict.fromkeys(tags))
    for tag in found:
        if not isinstance(tag, str) or not tag or len(tag) > TAG_LENGTH_MAX or "," in tag:
            raise InvalidArgument(
                f"a tag is a text of 1 to {TAG_LENGTH_MAX} characters without a comma, not "
                f"{show(tag)}"
            )
    if len(found) > TAGS_MAX:
        raise InvalidArgument(f"a job has at most {TAGS_MAX} tags, not {len(found)}")
    return found


def _headers(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    raw = fields.get(HEADERS)
    if raw is None:
        return {}
    try:
        headers = json.loads(raw)
    except (ValueError, RecursionError, MemoryError) as error:
        raise _no_job(f"its headers are not JSON: {describe(error)}") from None
    if not isinstance(headers, dict):
        raise _no_job(f"its headers are no JSON object: {show(headers)}")
    return headers


@contextmanager
def without_await() -> Iterator[None]:
    """Raise InvalidArgument at the end of a block if the event loop has run within it."""
    has_run: list[bool] = []
    try:
        mark = asyncio.get_running_loop().call_soon(has_run.append, True)
    except RuntimeError:  # no event loop
        yield
        return
    try:
        yield
    finally:
        mark.cancel()
    if has_run:
        raise InvalidArgument(
            "await nothing within the transaction of a job: other tasks of the event loop would be "
            "part of it"
        )


current: ContextVar[Job] = ContextVar("kvstream-job")


def current_job() -> Job:
    """Return the job that this thread or asyncio task runs; LookupError if it runs none."""
    try:
        return current.get()
    except LookupError:
        raise LookupError(
            "current_job() is for the code of a task while a worker runs it"
        ) from None
