"""Where jobs are found: the streams that have those of a filter, read in slices, newest first.

Ended jobs are in the streams of ``ended``, failed ones among the dead letters, the others in their
queues. A slice is bounded, and so is the work for it: in a queue it also reads what is pending
among its entries. Everything below the last delivered entry of a queue is in work or to be tried
again, since jobs that are done are deleted; all above waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from kvstream.errors import InvalidArgument, NoGroup, NoSuchKey, WrongType
from kvstream.jobs.arguments import unpack
from kvstream.jobs.dependents import AFTER, WHERE, text_of
from kvstream.jobs.handle import state_of
from kvstream.jobs.history.log import NUDGE, WORKFLOW, WorkflowLog
from kvstream.jobs.job import AnyJobs, Job, Refused, creation_ms, has_id
from kvstream.jobs.listing import ended
from kvstream.jobs.listing.filters import (
    ENDED,
    FAILED,
    IN_QUEUE,
    QUEUED,
    RUNNING,
    SCHEDULED,
    WAITING,
    JobFilter,
    JobInfo,
)
from kvstream.jobs.results import SKEW_MS
from kvstream.types.ids import MAX_ID, StreamID, Ticket

if TYPE_CHECKING:
    from kvstream.stream import Stream
    from kvstream.types.records import Entry, Fields, PendingEntry

_PENDING_MAX = 100_000
"""Pending entries that are read for one slice: deleted entries may be pending too."""

KEYS_PAGE = 1000
"""Keys that are looked at together."""
KEYS_OF_ENTRY = 10
"""Keys that may be looked at in place of one entry."""
_LEASED_MAX = 10_000
"""Entries in work that are listed by the workers that have them."""
_ENDS_LOOKED_AT = 1000
"""Ends of each task and outcome among which one job is looked for."""
_ENDS_OF_TASK = 200
"""Ends among which a job is looked for whose task and outcome are known."""

Row = tuple[StreamID, JobInfo | None]
"""The ID of an entry, and its job; None if it has no job, or one of another status."""


class Source(Protocol):
    """A stream that has jobs."""

    @property
    def key(self) -> str: ...

    def read(self, last: StreamID, count: int) -> list[Row]:
        """Return the entries from an ID back, at most ``count``, the newest first."""
        ...


def sources_of(jobs: AnyJobs, wanted: JobFilter) -> list[Source]:
    """Return the streams that may have the jobs of a filter, but for those that are delayed."""
    found: list[Source] = []
    outcomes = wanted.statuses.intersection(ENDED)
    if outcomes and wanted.tag is not None:
        found.append(TaggedSource(jobs, wanted, wanted.tag))
    elif outcomes:
        found += [
            EndedSource(jobs, wanted, *each) for each in jobs.ended.streams(outcomes, wanted.task)
        ]
    if FAILED in outcomes:
        found += [LetterSource(stream, wanted) for stream in dead_streams(jobs)]
    if wanted.statuses.intersection(IN_QUEUE):
        found += [QueueSource(jobs, stream, wanted) for stream in queue_streams(jobs, wanted.task)]
    return found


def queue_streams(jobs: AnyJobs, task: str | None) -> list[Stream]:
    """Return the streams of the queues that may have jobs of a task, or of any."""
    known = jobs.find_task(task) if task is not None else None
    queues = jobs.queues() if known is None else [jobs.queue_of(known)]
    return [stream for queue in queues for stream in queue.streams()]


def dead_streams(jobs: AnyJobs) -> list[Stream]:
    """Return the streams of the dead letters, each once."""
    found = [queue.dead_stream() for queue in jobs.queues()]
    return list({stream.key: stream for stream in found}.values())


def text_key(stream: Stream) -> str:
    """Return the key of a stream as text."""
    return stream.key.decode("utf-8", "surrogateescape")


def find_end(
    jobs: AnyJobs,
    wanted: JobFilter,
    job_id: str,
    status: str | None = None,
    task: str | None = None,
) -> JobInfo | None:
    """Return an ended job by its ID, if it is listed among the next ends after its ID was made.

    There is no index of IDs: of each task and outcome so many ends are looked at. The record of the
    outcome, which is kept for a shorter time, is found at once. With a status and a task fewer are
    looked at, in one stream.
    """
    made_ms = _creation_ms(job_id)
    if made_ms is None:
        return None
    start = max(0, made_ms - SKEW_MS)
    most = _ENDS_LOOKED_AT if status is None else _ENDS_OF_TASK
    named = jobs.ended.streams(ENDED if status is None else (status,), task)
    found: list[EndedSource | LetterSource] = [EndedSource(jobs, wanted, *each) for each in named]
    if status in (None, FAILED):
        found += [LetterSource(stream, wanted) for stream in dead_streams(jobs)]
    for source in found:
        for entry in jobs.store.stream(source.key).range(start, count=most):
            info = source.info(entry) if has_id(entry.fields, entry.id, job_id) else None
            if info is not None:
                return info
    return None


# --- the sources ----------------------------------------------------------------------------------


class EndedSource:
    """The jobs of one task that have ended in one way."""

    def __init__(self, jobs: AnyJobs, wanted: JobFilter, status: str, task: str) -> None:
        self._wanted = wanted
        self.key = jobs.ended.key(status, task)
        self._jobs, self._status, self._task = jobs, status, task
        self._stream = jobs.store.stream(self.key)

    def read(self, last: StreamID, count: int) -> list[Row]:
        return [(entry.id, self.info(entry)) for entry in _slice(self._stream, last, count)]

    def info(self, entry: Entry[bytes]) -> JobInfo | None:
        """Return the job of an entry."""
        if not self._wanted.may_admit(entry.fields, ended.ERROR):
            return None
        return _ended_info(self._jobs, entry, self._status, self._task, self.key)


class TaggedSource:
    """The ended jobs that have a tag."""

    def __init__(self, jobs: AnyJobs, wanted: JobFilter, tag: str) -> None:
        self._wanted = wanted
        self.key = jobs.ended.tag_key(tag)
        self._jobs, self._stream = jobs, jobs.store.stream(self.key)

    def read(self, last: StreamID, count: int) -> list[Row]:
        return [(entry.id, self.info(entry)) for entry in _slice(self._stream, last, count)]

    def info(self, entry: Entry[bytes]) -> JobInfo | None:
        """Return the job of an entry."""
        if not self._wanted.may_admit(entry.fields, ended.ERROR):
            return None
        status, task = _text(entry.fields.get(ended.STATUS)), _text(entry.fields.get(ended.TASK))
        return _ended_info(self._jobs, entry, status or "", task or "", self.key)


class LetterSource:
    """The failed jobs in a stream of dead letters."""

    def __init__(self, stream: Stream, wanted: JobFilter) -> None:
        self.key, self._stream, self._wanted = text_key(stream), stream, wanted

    def read(self, last: StreamID, count: int) -> list[Row]:
        return [(entry.id, self.info(entry)) for entry in _slice(self._stream, last, count)]

    def info(self, entry: Entry[bytes]) -> JobInfo | None:
        """Return the job of an entry."""
        fields = entry.fields
        if not self._wanted.may_admit(fields, b"dead:error"):
            return None
        return info_of(fields, entry.id, FAILED, self.key)


class QueueSource:
    """The jobs in one stream of a queue that wait for a worker, or that one has in work."""

    def __init__(self, jobs: AnyJobs, stream: Stream, wanted: JobFilter) -> None:
        self.key, self._stream = text_key(stream), stream
        self._group = stream.group(jobs.group)
        self._statuses, self._wanted = wanted.statuses.intersection(IN_QUEUE), wanted
        self._group_name = jobs.group.encode()
        self._top: StreamID | None = None
        """The last ID that may have a job of the filter."""
        self._leased: list[PendingEntry] | None = None
        """The entries that workers have, the newest first, if only jobs in work are asked for."""

    def read(self, last: StreamID, count: int) -> list[Row]:
        if self._top is None:
            self._top = self._find_top()
            self._leased = self._find_leased() if self._statuses == {RUNNING} else None
        if self._leased is not None:
            rows = [row for row in self._leased if row.id <= last][:count]
            found = [(row, self._stream.get(row.id)) for row in rows]
            return [(row.id, entry and self._info(entry, row)) for row, entry in found]
        entries = _slice(self._stream, min(last, self._top), count)
        pending = self._pending(entries)
        return [(entry.id, self._info(entry, pending.get(entry.id))) for entry in entries]

    def _find_top(self) -> StreamID:
        """Return the last delivered ID if only delivered jobs are asked for."""
        if QUEUED in self._statuses:
            return MAX_ID
        with suppress(NoSuchKey):
            for group in self._stream.groups():
                if group.name == self._group_name:
                    return group.last_delivered_id
        return StreamID(0, 0)

    def _find_leased(self) -> list[PendingEntry] | None:
        """Return the entries that workers have, the newest first; None if there are very many.

        If keys take turns, all that waits is pending, and those in work may be far behind the end.
        """
        leased: list[PendingEntry] = []
        with suppress(NoGroup, NoSuchKey, WrongType):
            for consumer in self._group.consumers():
                if consumer.pending:
                    leased += self._group.pending_range(count=_LEASED_MAX, consumer=consumer.name)
                if len(leased) >= _LEASED_MAX:
                    return None
        return sorted(leased, key=lambda row: row.id, reverse=True)

    def _pending(self, entries: Sequence[Entry[bytes]]) -> dict[StreamID, PendingEntry]:
        if not entries:
            return {}
        try:
            rows = self._group.pending_range(entries[-1].id, entries[0].id, _PENDING_MAX)
        except (NoGroup, NoSuchKey):  # no worker has been there
            return {}
        return {row.id: row for row in rows}

    def _info(self, entry: Entry[bytes], pending: PendingEntry | None) -> JobInfo | None:
        status = state_of(pending)
        if status not in self._statuses or not self._wanted.may_admit(entry.fields, b"error"):
            return None
        info = info_of(entry.fields, entry.id, status, self.key)
        tries = 0 if pending is None else pending.deliveries
        return None if info is None else info._replace(attempt=max(1, tries))


# --- delayed jobs, and those that wait ------------------------------------------------------------


def delayed_jobs(
    stream: Stream, start: Ticket | None, count: int
) -> Iterator[tuple[Ticket, JobInfo | None]]:
    """Yield the delayed jobs of a stream from a ticket on, the soonest due first."""
    key = text_key(stream)
    while page := stream.delayed(start, count):
        for message in page:
            yield message.ticket, info_of(message.fields, message.ticket, SCHEDULED, key)
        last = page[-1].ticket
        start = Ticket(last.at_ms, last.number + 1)


def waiting_jobs(
    jobs: AnyJobs, cursor: int, room: Callable[[], int]
) -> Iterator[tuple[int, JobInfo | None, int]]:
    """Yield the workflows that wait for something, and the jobs that wait for others.

    There is no index of them: the keys of the store are looked at in the order of their creation,
    from a cursor of SCAN on. Each step has the cursor behind its page of keys, a job or None, and
    in the last step of the page how many keys it had; one that is read counts for more. A page has
    at most as many jobs as there is ``room`` for, so the step that fills it is the last with a job.
    """
    kinds = {
        f"{jobs.name}:{part}:".encode("utf-8", "surrogateescape"): read
        for part, read in ((WORKFLOW, _waiting_workflow), (AFTER, dependent_of))
    }
    prefixes = tuple(kinds)

    def scan(count: int) -> tuple[int, int, list[bytes]]:
        following, keys = jobs.store.key_page(cursor, count)
        return following, len(keys), [key for key in keys if key.startswith(prefixes)]

    while left := room():
        following, number, named = scan(KEYS_PAGE)
        if len(named) > left:
            following, number, named = scan(left)
        for key in named:
            prefix = next(each for each in prefixes if key.startswith(each))
            info = None
            with suppress(WrongType, ValueError, TypeError):  # a key of another program
                info = kinds[prefix](jobs, key.decode("utf-8", "replace")[len(prefix.decode()) :])
            yield following, info, 0
        if not following:
            return
        yield following, None, number + KEYS_OF_ENTRY * len(named)
        cursor = following
    yield cursor, None, 0


def _waiting_workflow(jobs: AnyJobs, workflow_id: str) -> JobInfo | None:
    """Return a workflow that waits. Its arguments are in the history, which is not read."""
    state = WorkflowLog(jobs, workflow_id).state()
    if state is None or state.status != WAITING:
        return None
    times = state.at_ms, state.at_ms
    info = _new_info(workflow_id, state.task, WAITING, *times, None, state.queue, stream="")
    return info._replace(error=state.why or None, is_workflow=True)


def dependent_of(jobs: AnyJobs, job_id: str) -> JobInfo | None:
    """Return a job that waits for others; None for a workflow, which is listed by its state."""
    stream = jobs.store.stream(f"{jobs.name}:{AFTER}:{job_id}")
    for entry in stream.range(count=1):
        if WHERE in entry.fields:
            info = info_of(entry.fields, entry.id, WAITING, text_key(stream))
            text = text_of(len(stream) - 1)
            return info and info._replace(queue=_text(entry.fields[WHERE]), error=text)
    return None


# --- rows -----------------------------------------------------------------------------------------


def _slice(stream: Stream, last: StreamID, count: int) -> list[Entry[bytes]]:
    try:
        return stream.revrange(last, count=count)
    except WrongType:  # a key of another program
        return []


def info_of(
    fields: Fields[bytes], where: StreamID | Ticket, status: str, key: str
) -> JobInfo | None:
    """Return the job in a message or dead letter; None if it is none, or wakes a workflow."""
    try:
        job = Job.of(fields, where)
    except Refused:
        return None
    is_delayed = isinstance(where, Ticket)
    is_wake = job.generation is not None
    if job.generation == NUDGE or (is_wake and job.generation and is_delayed):
        return None
    enqueued_ms = job.enqueued_ms or _creation_ms(job.id)
    at_ms = (enqueued_ms or 0) if isinstance(where, Ticket) else where.ms
    info = _new_info(job.id, job.task_name, status, at_ms, enqueued_ms, where, key, stream=key)
    args, kwargs = (None, None) if is_wake else _arguments(job)
    if status == FAILED:
        info = info._replace(
            queue=_text(fields.get(b"dead:stream")),
            error=_text(fields.get(b"dead:error")),
            attempt=_number(fields.get(b"dead:deliveries"), 1),
        )
    return info._replace(
        due=_time(where.at_ms) if isinstance(where, Ticket) else None,
        key=None if is_wake else job.key,
        is_workflow=is_wake,
        tags=job.tags,
        args=args,
        kwargs=kwargs,
    )


def _ended_info(
    jobs: AnyJobs, entry: Entry[bytes], status: str, task: str, key: str
) -> JobInfo | None:
    fields = entry.fields
    job_id = _text(fields.get(ended.ID)) or ""
    if status == FAILED and ended.WORKFLOW in fields:
        state = WorkflowLog(jobs, job_id).state()
        if state is None or state.status != FAILED:  # it was retried
            return None
    at = fields.get(ended.AT)
    took = fields.get(ended.TOOK)
    enqueued_ms = _creation_ms(job_id) if at is None else _number(at, 0)
    info = _new_info(job_id, task, status, entry.id.ms, enqueued_ms, entry.id, None, stream=key)
    return info._replace(
        key=_text(fields.get(ended.KEY)),
        tags=tuple(tags.split(",")) if (tags := _text(fields.get(ended.TAGS))) else (),
        attempt=_number(fields.get(ended.ATTEMPT), 1),
        seconds=None if took is None else _number(took, 0) / 1000,
        error=_text(fields.get(ended.ERROR)),
        is_workflow=ended.WORKFLOW in fields,
    )


def _new_info(
    job_id: str,
    task: str,
    status: str,
    at_ms: int,
    enqueued_ms: int | None,
    place: Any,
    queue: str | None,
    *,
    stream: str,
) -> JobInfo:
    enqueued = None if enqueued_ms is None else _time(enqueued_ms)
    return JobInfo(
        *(job_id, task, status, _time(at_ms), enqueued, None, queue, None, (), 1),
        *(None, None, None, None, place, stream),
    )


_YEAR_9999_MS = 253_402_300_799_000


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(min(ms, _YEAR_9999_MS) / 1000, UTC)


def _creation_ms(job_id: str) -> int | None:
    """Return the creation time in an ID; None if another program has chosen the ID."""
    try:
        return creation_ms(job_id)
    except InvalidArgument:
        return None


def _arguments(job: Job) -> tuple[Any, Any]:
    """Return the arguments of a job by place and by name; None if they cannot be read."""
    try:
        args, kwargs = unpack(job.packed, job.form)
    except Exception:  # bytes of another program
        return None, None
    return args, kwargs


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _number(value: bytes | None, default: int) -> int:
    return int(value) if value is not None and value.isdigit() else default
