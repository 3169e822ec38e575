"""The handle of a job: its status, its result, and its end by hand.

A job's outcome is an entry of a stream (results.py), written by the commit that acknowledges the
job and kept for ``result_ttl``. So to wait for a result is a blocked read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kvstream.engine.blocking_reads import PlainRead, read_position
from kvstream.engine.engine import Engine
from kvstream.engine.queue_arguments import Duration
from kvstream.engine.waiters import Outcome
from kvstream.errors import (
    Conflict,
    InvalidArgument,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    JobSkipped,
    JobUnknown,
    NoGroup,
    ServerUnavailable,
    describe,
)
from kvstream.jobs.arguments import unpack
from kvstream.jobs.dependents import (
    cancel_waiting,
    outcome_of,
    tell_of_end,
    text_of,
    waits_for,
)
from kvstream.jobs.history.child import tell_parent
from kvstream.jobs.history.log import WorkflowLog
from kvstream.jobs.job import (
    GENERATION,
    PARENT,
    AnyJobs,
    Job,
    Refused,
    creation_ms,
    expires_ms_of,
    has_id,
    to_seconds,
)
from kvstream.jobs.notes import LogLine, Progress, lines_of, progress_of
from kvstream.jobs.results import RETRY, SKEW_MS, Reader, left_of
from kvstream.jobs.retrying import Letter, move_back
from kvstream.jobs.tries import Try, tries_of
from kvstream.jobs.workers.stacks import TIMEOUT_S as STACK_S
from kvstream.jobs.workers.stacks import JobStack, ask_stack
from kvstream.operations.ack import acknowledge
from kvstream.surface import Public
from kvstream.types.clock import call_later, monotonic
from kvstream.types.ids import StreamID, Ticket

if TYPE_CHECKING:
    from kvstream.queue import Queue
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.records import Entry, Fields, PendingEntry

R = TypeVar("R")

Asked = tuple[Reader, float | None] | None
"""What a wait needs next: records, and for how long to wait for them, or None: the status."""
DONE, FAILED, CANCELLED = b"done", b"failed", b"cancelled"
EXPIRED, SKIPPED = b"expired", b"skipped"
LOOK_S = 5.0
"""Longest single wait for a result; then the handle checks whether the job still exists."""
LOOK_EACH_S, LOOK_MAX_S = 0.01, 60.0
"""Where many results are awaited, such a check is made every LOOK_EACH_S in the whole program, and
once in LOOK_MAX_S for each: it costs as much as to run a job."""
AWAY_S = 0.2
"""Pause between two tries while the server is away."""
_TRIES = 100
_PAGE = 1000


def _wait_s(timeout: float | timedelta | None) -> float | None:
    """Return how many seconds to wait: None for ever, 0 for a time that has passed."""
    if isinstance(timeout, int | float) and type(timeout) is not bool:
        if timeout == inf:
            return None
        timeout = 0 if timeout < 0 else timeout
    return None if timeout is None else to_seconds(timeout, "timeout")


def is_late(jobs: AnyJobs, job_id: str, expires_ms: int, entry_id: StreamID) -> bool:
    """Return whether a job has waited for longer than it may.

    One that has failed for good and was moved back after its time is not late: somebody wants it.
    """
    if not 0 < expires_ms <= jobs.now_ms():
        return False
    if entry_id.ms < expires_ms:
        return True
    records = JobHandle(jobs, job_id)._records()
    return all(each.fields.get(b"status") != FAILED for each in records)


def state_of(pending: PendingEntry | None) -> str:
    """Return the state of a job in its stream, by its pending entry.

    A job that a worker has given back untried is queued.
    """
    if pending is not None and pending.consumer:
        return "running"
    return "retrying" if pending is not None and pending.deliveries else "queued"


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


async def _read_own(
    reader: Reader, store: Store, engine: Engine, block: float | None
) -> list[Entry]:
    """Return what ``reader.read`` returns; the commit that writes a record wakes the task."""
    if block is None:
        return reader.read(store)
    until = monotonic() + block
    while True:
        left = left_of(until)
        if left is None:
            return reader.read(store)
        if reader.take(await _read_blocking(reader, store, engine, left), left):
            return reader.found()


async def _read_blocking(
    reader: Reader, store: Store, engine: Engine, block: float
) -> dict[bytes, list[Entry]]:
    """Read what ``reader`` wants; wait for it without blocking the loop."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[Outcome | None] = loop.create_future()

    def settle(outcome: Outcome | None) -> None:
        if not arrived.done():
            arrived.set_result(outcome)

    def deliver(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, outcome)

    names = {store.name_of(key): key for key in reader.after}
    wanted = [
        (name, read_position(reader.after[key], engine.clock.now_ms)) for name, key in names.items()
    ]
    reply, waiter = engine.submit([*names], PlainRead(wanted, reader.count, lambda: None), deliver)
    if waiter is not None:
        timer = call_later(loop, block, settle, None)
        try:
            outcome = await arrived
            reply = None if outcome is None else outcome.get()
        finally:
            timer.cancel()
            engine.cancel(waiter)
    return {names[name]: cast("list[Entry]", entries) for name, entries in reply or ()}


class JobHandle(Public, Generic[R]):
    """A job that was enqueued; ``await`` it for its result in asyncio."""

    __slots__ = ("_jobs", "_task", "_where", "id")
    _internal = frozenset({"message", "task_name"})

    def __init__(
        self, jobs: AnyJobs, job_id: str, task: Any = None, where: StreamID | Ticket | None = None
    ) -> None:
        # ``where``: the ID of the message, its ticket while it is delayed, or None if unknown.
        self.id = job_id
        self._jobs = jobs
        self._task = task
        self._where = where

    @property
    def where(self) -> StreamID | Ticket | None:
        """The ID or ticket of its message; None if unknown, as in a transaction on a server."""
        return self._where if isinstance(self._where, StreamID | Ticket) else None

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # --- the outcome ----------------------------------------------------------------------------

    def _records(self) -> list[Entry]:
        return cast("list[Entry]", self._jobs.results.records(self.id))

    def _last_record(self) -> dict[bytes, bytes]:
        """Return the last record of the job; empty if there is none."""
        return cast("dict[bytes, bytes]", self._jobs.results.last(self.id))

    def _end(self) -> str | None:
        """Return the outcome of the job, such as "done" or "failed"; None if it has not ended."""
        status = self._last_record().get(b"status", RETRY)
        if status == FAILED:
            if self._is_redriven():
                return None
            status = self._last_record().get(b"status", RETRY)  # it may have ended just now
        return None if status == RETRY else _decode(status)

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the job, and return what its task returned.

        ``timeout`` is in seconds or a timedelta, None waits for ever. Raises TimeoutError,
        JobFailed with error and traceback once the job is not tried again, JobCancelled, JobExpired
        or JobSkipped if it was not run, or JobUnknown if its result is not kept any more. A server
        that is away may come back within ``timeout``.
        """
        wait_s = _wait_s(timeout)
        steps, found = self._wait_steps(wait_s), None
        deadline = None if wait_s is None else monotonic() + wait_s
        while True:
            try:
                asked = steps.send(found)
            except StopIteration as end:
                return cast(R, end.value)
            found = self._ask(asked, deadline)

    def _ask(self, asked: Asked, deadline: float | None) -> Any:
        """Return what a wait step asks for; wait for a server that is away."""
        while True:
            try:
                return self.status if asked is None else asked[0].read(self._jobs.store, asked[1])
            except ServerUnavailable:
                if deadline is None or monotonic() >= deadline:
                    raise
            time.sleep(AWAY_S)

    def _wait_steps(self, timeout: float | None) -> Generator[Asked, Any, R]:
        """Yield what the wait for the result asks for, to be sent its answer; return the result."""
        deadline = None if timeout is None else monotonic() + timeout
        late = f"not done after {timeout or 0:g} s"
        if self._jobs.testing:  # a job that is not done stays so while this thread waits
            deadline, late = monotonic(), "not due yet: turn the clock of the test"
        with self._jobs.results.waiting_reader(self.id) as reader:
            return (yield from self._wait_with(reader, deadline, late))

    def _wait_with(
        self, reader: Reader, deadline: float | None, late: str
    ) -> Generator[Asked, Any, R]:
        known = True
        while True:
            wait_s = max(LOOK_S, min(LOOK_MAX_S, LOOK_EACH_S * len(self._jobs.results.waiting)))
            if deadline is not None:
                wait_s = min(wait_s, deadline - monotonic())
            found = yield reader, (wait_s if known and wait_s > 0 else None)
            status = found[-1].fields.get(b"status", RETRY) if found else RETRY
            if status != RETRY and (status != FAILED or (yield None) == "failed"):
                return self._outcome(found[-1].fields)
            if not known:
                raise JobUnknown(f"the job {self.id} has no result, and is in no queue")
            is_late = deadline is not None and monotonic() >= deadline
            state = yield None
            if state == "expired":
                raise JobExpired(f"the job {self.id} has waited for longer than it may")
            known = state != "unknown"
            if known and is_late:
                raise TimeoutError(f"the job {self.id} is {state}, {late}")

    def _outcome(self, fields: Any) -> R:
        status = fields[b"status"]
        if status == DONE:
            return self._load_result(fields)
        if status == CANCELLED:
            why = _decode(fields.get(b"error", b""))
            raise JobCancelled(f"the job {self.id} was cancelled" + (why and f": {why}"))
        if status in (EXPIRED, SKIPPED):
            kind = JobExpired if status == EXPIRED else JobSkipped
            raise kind(f"the job {self.id} was not run: {_decode(fields.get(b'error', b''))}")
        failed = JobFailed(_decode(fields.get(b"error", b"")))
        failed.traceback = _decode(fields.get(b"traceback", b""))
        raise failed

    def _load_result(self, fields: Any) -> R:
        """Return the result in a record; JobError if this program cannot read it.

        Another version of the task, or another program, may have written it.
        """
        try:
            plain = unpack(fields[b"result"], fields.get(b"format", b"json").decode())
            task = self._task or self._jobs.tasks.get(fields.get(b"task", b"").decode())
            value: R = plain if task is None else task.signature.load_result(plain)
        except Exception as error:
            raise JobError(
                f"the result of the job {self.id} cannot be read: {describe(error)}"
            ) from error
        return value

    async def aresult(self, timeout: float | timedelta | None = None) -> R:
        """Await the result, as ``result`` waits for it, without blocking a thread."""
        wait_s = _wait_s(timeout)
        steps, found = self._wait_steps(wait_s), None
        deadline = None if wait_s is None else monotonic() + wait_s
        while True:
            try:
                asked = steps.send(found)
            except StopIteration as end:
                return cast(R, end.value)
            try:
                found = None if asked is None else await self._aread(*asked)
            except ServerUnavailable:  # below, a thread waits for the server or for a new owner
                asked = asked and (asked[0], None)
                found = None
            if found is None:
                found = await asyncio.to_thread(self._ask, asked, deadline)

    async def _aread(self, reader: Reader, block: float | None) -> list[Entry]:
        """Return what ``reader.read`` returns."""
        store = self._jobs.store
        own = store.own_engine
        if own is not None:
            return await _read_own(reader, store, own, block)
        from kvstream.aio import StoreOfLoop  # programs that await nothing need no greenlet

        async with StoreOfLoop(store.url, db=store.db) as found:
            until = None if block is None else monotonic() + block
            while True:
                left = left_of(until)
                if reader.take(await found.read(reader.after, reader.count, left), left):
                    return reader.found()

    def __await__(self) -> Generator[Any, Any, R]:
        return self.aresult().__await__()

    @property
    def error(self) -> str | None:
        """The last exception of the job, as ``"ValueError: text"``; None if there is none."""
        return self._text(b"error")

    @property
    def traceback(self) -> str | None:
        """The traceback of its last exception; None if there is none."""
        return self._text(b"traceback")

    @property
    def progress(self) -> Progress | None:
        """The last progress that ``current_job().progress`` has reported; None if there is none."""
        return progress_of(self._jobs, self.id)

    @property
    def tries(self) -> list[Try]:
        """The tries of the job, the first one first; at least the last 50 that left a record.

        They are kept as long as the result.
        """
        place = self._find_message() if self._end() is None else None
        row = None if place is None else self._pending(*place)
        is_running = row is not None and bool(row.consumer)
        return tries_of(self._records(), row if is_running else None)

    def log(self) -> list[LogLine]:
        """Return the last lines that ``current_job().log`` has kept, oldest first."""
        return lines_of(self._jobs, self.id)

    def stack(self, timeout: Duration = STACK_S) -> JobStack:
        """Return where the job is in its code now, as its worker sees it, without any values.

        TimeoutError if no worker answers within ``timeout`` seconds, or runs the job.
        """
        return ask_stack(self._jobs, self.id, timeout, lambda: self.status)

    async def astack(self, timeout: Duration = STACK_S) -> JobStack:
        """Return the stack as ``stack`` does, without blocking the event loop."""
        return await asyncio.to_thread(self.stack, timeout)

    def _text(self, name: bytes) -> str | None:
        value = self._last_record().get(name)
        return None if value is None else _decode(value)

    # --- the state ------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """Where the job is.

        ``"waiting"`` (for other jobs), ``"scheduled"`` (delayed), ``"queued"``, ``"running"``,
        ``"retrying"`` (it failed and is to be tried again), ``"done"``, ``"failed"``,
        ``"cancelled"``, ``"expired"`` or ``"skipped"`` (it was not run), or ``"unknown"``: it ended
        longer ago than its result was kept.
        """
        if (end := self._end()) is not None:
            return end
        if self.where is None and waits_for(self._jobs, self.id):
            return "waiting"
        if self._find_delayed() is not None:
            return "scheduled"
        place = self._find_message()
        if place is None:
            return self._end() or "unknown"  # it may have ended just now
        state = state_of(self._pending(*place))
        if state in ("queued", "retrying") and self._is_late(*place):
            return "expired"  # the next worker that has room notes it
        return state

    def _pending(self, stream: Stream, entry_id: StreamID) -> PendingEntry | None:
        try:
            rows = stream.group(self._jobs.group).pending_range(entry_id, entry_id, 1)
        except NoGroup:
            return None
        return rows[0] if rows else None

    def _is_late(self, stream: Stream, entry_id: StreamID) -> bool:
        """Return whether a job has waited for longer than it may."""
        entry = stream.get(entry_id)
        expires_ms = 0 if entry is None else expires_ms_of(entry.fields) or 0
        return is_late(self._jobs, self.id, expires_ms, entry_id)

    @property
    def waits_for(self) -> str | None:
        """What the job waits for, such as ``"2 jobs"`` of ``depends_on``; None if it does not
        wait."""
        found = waits_for(self._jobs, self.id)
        return text_of(len(found)) if found else None

    def _find_delayed(self) -> tuple[Stream, Ticket] | None:
        """Return the stream and ticket of the job's message; None if it is not delayed."""
        where = self.where
        if isinstance(where, StreamID):
            return None
        for stream in self._streams():
            start, count = (None, _PAGE) if where is None else (where, 1)
            while page := stream.delayed(start, count):
                for each in page:
                    if has_id(each.fields, each.ticket, self.id):
                        return stream, each.ticket
                if where is not None:
                    break
                start = Ticket(page[-1].ticket.at_ms, page[-1].ticket.number + 1)
        return None

    def _streams(self) -> list[Stream]:
        """Return the streams that the job may be in."""
        if self._task is not None:
            return self._jobs.queue_of(self._task).streams()
        return [stream for queue in self._jobs.queues() for stream in queue.streams()]

    def _find_message(self) -> tuple[Stream, StreamID] | None:
        """Return the stream and ID of the job's message; None if it is in no queue."""
        where = self.where
        if isinstance(where, StreamID):
            for stream in self._streams():
                entry = stream.get(where)
                if entry is not None and self._is_mine(entry):
                    return stream, where
            if self._last_record().get(b"status") not in (RETRY, FAILED):
                return None  # else it may have a new ID, from the dead letters
        start = where.at_ms if isinstance(where, Ticket) else max(0, creation_ms(self.id) - SKEW_MS)
        for stream in self._streams():
            for entry in stream.scan(f"{start}-0"):
                if self._is_mine(entry):
                    return stream, entry.id
        return None

    def message(self) -> tuple[Stream, StreamID | Ticket, Fields[bytes]] | None:
        """Return the stream, place and fields of its message or dead letter; None without one."""
        end = self._end()
        if end is not None:
            letter = (
                self._find_letter(f"{self._records()[-1].id.ms}-0") if end == "failed" else None
            )
            place = None if letter is None else (letter[0].dead_stream(), letter[1])
        elif (delayed := self._find_delayed()) is not None:
            stream, ticket = delayed
            return next(((stream, ticket, each.fields) for each in stream.delayed(ticket, 1)), None)
        else:
            place = self._find_message()
        entry = None if place is None else place[0].get(place[1])
        return None if place is None or entry is None else (*place, entry.fields)

    @property
    def task_name(self) -> str | None:
        """The task of a job that is done; None if that is not known."""
        return self._text(b"task")

    def _is_mine(self, entry: Entry) -> bool:
        return has_id(entry.fields, entry.id, self.id)

    def cancel(self) -> bool:
        """Cancel the job; return False if it had ended before.

        A job that runs loses its lease: an async one is cancelled when its worker extends it next,
        and a thread's result is refused. In a transaction it is part of that.
        """
        done = self._cancel()
        self._jobs.after_commit()
        if self._jobs.testing is not None:
            self._jobs.testing.run()  # a workflow may have waited for it
        return done

    def _cancel(self) -> bool:
        log = WorkflowLog(self._jobs, self.id)
        if self.where is None and log.commit(lambda: cancel_waiting(self._jobs, self.id)):
            return True
        delayed = self._find_delayed()
        if delayed is not None and log.commit(lambda: self._cancel_delayed(*delayed)):
            return True
        is_part = self._jobs.store.has_transaction()
        for _ in range(_TRIES):
            place = self._find_message()
            if place is None or self._end() is not None:
                return False
            stream, entry_id = place
            try:
                with nullcontext() if is_part else self._jobs.store.brief_transaction():
                    entry = stream.get(entry_id)
                    if entry is None:
                        return False
                    self._end_cancelled(entry.fields)
                    group = self._jobs.group.encode()  # no worker may have made it yet
                    self._jobs.store.run(acknowledge, stream.key, group, [entry_id])
                    stream.delete(entry_id)
                return True
            except Conflict:
                continue
        raise InvalidArgument(f"the job {self.id} changes all the time")

    def _cancel_delayed(self, stream: Stream, ticket: Ticket) -> bool:
        """Cancel the job, in the open transaction; return False if it is not delayed any more."""
        found = [each for each in stream.delayed(ticket, 1) if each.ticket == ticket]
        if not found or outcome_of(self._jobs, self.id) is not None:
            return False
        self._end_cancelled(found[0].fields)
        stream.cancel(ticket)
        return True

    def _end_cancelled(self, fields: Mapping[bytes, bytes]) -> None:
        """Write the end of the job, whose message has ``fields``, in the open transaction."""
        self._refuse_workflow(fields)
        tell_of_end(self._jobs, self.id, CANCELLED.decode())
        self._tell_parent(fields)
        self._jobs.record(self.id, CANCELLED, self._ttl)
        self._note_cancelled(fields)

    def _refuse_workflow(self, fields: Mapping[bytes, bytes]) -> None:
        """Raise for a wake, without which its workflow would wait for ever."""
        if GENERATION in fields:
            raise InvalidArgument(
                f"the job {self.id} is a workflow, and this program has none: cancel it by a Jobs "
                "that has it, or by kvstream jobs cancel"
            )

    def _note_cancelled(self, fields: Mapping[bytes, bytes]) -> None:
        """List the job as cancelled, unless any other program has written its message."""
        with suppress(Refused):
            self._jobs.note_end(Job.of(fields, self.id), CANCELLED.decode())

    def _tell_parent(self, fields: Mapping[bytes, bytes]) -> None:
        """Tell the workflow that has started the job that it was cancelled."""
        parent = fields.get(PARENT)
        if parent is not None:
            tell_parent(self._jobs, _decode(parent), self.id, CANCELLED.decode(), {})

    def retry(self) -> bool:
        """Move a failed job from the dead letters back to its queue; return whether it was there.

        It is tried as often as a new one. In a transaction it is part of that.
        """
        records = self._records()
        if not records or records[-1].fields.get(b"status") != FAILED:
            return False
        last = records[-1].fields
        failure: dict[str, str | bytes | int] = {
            name: last.get(name.encode(), b"") for name in ("error", "traceback")
        }
        for start in (f"{records[-1].id.ms}-0", "-"):
            if (found := self._find_letter(start)) is not None:
                queue, place = found
                letter = Letter(place, self.id, failure, self._ttl)
                return bool(move_back(self._jobs, queue, [letter]))
        return False

    def _dead_letter_queues(self) -> list[Queue]:
        """Return a queue for each stream of dead letters."""
        return [*{queue.dead_stream().key: queue for queue in self._jobs.queues()}.values()]

    def _find_letter(self, start: str) -> tuple[Queue, StreamID] | None:
        """Find the dead letter of the job from an ID on; return its queue and its ID.

        The commit that wrote the failure added it.
        """
        for queue in self._dead_letter_queues():
            for letter in queue.dead_stream().scan(start):
                if self._is_mine(letter):
                    return queue, letter.id
        return None

    def _is_redriven(self) -> bool:
        """Return whether a redrive of many has moved the failed job back to its queue.

        The records of the job do not tell: of redrives only ``retry`` writes one.
        """
        if not any(queue.redrive_status() for queue in self._dead_letter_queues()):
            return False
        records = self._records()
        start = f"{records[-1].id.ms}-0" if records else "-"
        return self._find_letter(start) is None and self._find_message() is not None

    @property
    def _ttl(self) -> float | None:
        return None if self._task is None else self._task.result_ttl
