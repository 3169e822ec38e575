"""The jobs of an application, read from its store without its code.

Jobs of one application are in streams that begin with its name: its queues, the dead letters and
the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.queues.delayed import read_delayed
from kvstream.cli.tables import printable
from kvstream.errors import InvalidArgument, NoGroup, RequestError, WrongType
from kvstream.jobs import Jobs
from kvstream.jobs.arguments import unpack
from kvstream.jobs.dependents import AFTER, DEPENDENTS, WHERE, text_of
from kvstream.jobs.handle import RETRY, JobHandle, state_of
from kvstream.jobs.history.log import HISTORY, WORKFLOW, WorkflowLog
from kvstream.jobs.job import Job, Refused, creation_ms
from kvstream.jobs.notes import NOTES
from kvstream.jobs.registry import is_of_registry
from kvstream.jobs.workflows.handle import WorkflowHandle, is_workflow
from kvstream.meta.policy import DEAD_SUFFIX
from kvstream.queue import Queue
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.records import Fields

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream

_PAGE = 1000
_PENDING_MAX = 100 * _PAGE
"""Pending entries that are read for one page: deleted entries may be pending too."""
_RESULT, _WORKFLOW, _HISTORY = ":result:", f":{WORKFLOW}:", f":{HISTORY}:"
_NOTES = f":{NOTES}:"
_AFTER, _DEPENDENTS = f":{AFTER}:", f":{DEPENDENTS}:"


class StoredJobs(Jobs):
    """The jobs of an application whose code is not there."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__("", name=name)
        self.use(store)

    def queues(self, names: Sequence[str] = ()) -> list[Queue]:
        """Return a queue for each stream of jobs, each priority by itself."""
        return [Queue(self.store, key, group=self.group) for key in self._keys()]

    def _keys(self) -> list[bytes]:
        store, name = self.store, self.name.encode("utf-8", "surrogateescape")
        parts = (_RESULT, _WORKFLOW, _HISTORY, _NOTES, _AFTER, _DEPENDENTS)
        others = (name + DEAD_SUFFIX, *(name + part.encode() for part in parts))
        keys = [
            key
            for key in store.scan_keys(name + b":*")
            if not key.startswith(others) and not is_of_registry(self.name, key)
        ]
        return sorted(key for key in (name, *keys) if store.type(key) == "stream")

    def dead_streams(self) -> list[Stream]:
        """Return the streams of the dead letters, each once."""
        streams = {queue.dead_stream().key: queue.dead_stream() for queue in self.queues()}
        return list(streams.values())

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job or workflow, which need not exist."""
        return (WorkflowHandle if is_workflow(self, job_id) else JobHandle)(self, job_id)

    def existing(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job; RequestError if nothing is known of it."""
        handle = self.handle(job_id)
        try:
            status = handle.status
        except InvalidArgument:  # only a workflow can have had such an ID
            status = "unknown"
        if status == "unknown":
            raise RequestError(
                f"no job {job_id} of {printable(self.name)!r} is known: it ended longer ago than "
                "its result is kept, or it has another --name"
            )
        return handle


def _row(fields: Fields, where: StreamID | Ticket, status: str, queue: Any) -> dict[str, Any]:
    """Return a job by the names of its parts; the fields of another message give Refused."""
    job = Job.of(fields, where)
    args, kwargs = _arguments(job)
    return {
        "id": job.id,
        "task": job.task_name,
        "status": status,
        "queue": queue,
        "enqueued_ms": job.enqueued_ms or _creation_ms(job.id),
        "due_ms": where.at_ms if isinstance(where, Ticket) else None,
        "error": None,
        "args": args,
        "kwargs": kwargs,
    }


def _creation_ms(job_id: str) -> int | None:
    """Return when an ID was made; None if another program has chosen it."""
    try:
        return creation_ms(job_id)
    except InvalidArgument:
        return None


def _arguments(job: Job) -> tuple[Any, Any]:
    """Return the arguments of a job by place and by name; None if they cannot be shown."""
    try:
        args, kwargs = unpack(job.packed, job.form)
        dumps(jsonable([args, kwargs]))  # RecursionError
    except Exception:  # bytes of another program
        return None, None
    return args, kwargs


def jobs_of(jobs: StoredJobs) -> Iterator[dict[str, Any]]:
    """Yield workflows, jobs that wait for others, in queues, that failed, and with results."""
    queues, shown = jobs.queues(), set[str]()
    for row in _workflows(jobs):
        shown.add(row["id"])
        yield row
    workflows = frozenset(shown)
    yield from (row for row in _dependent(jobs) if row["id"] not in workflows)
    was_redriven = any(queue.redrive_status() for queue in queues)
    for queue in queues:
        for stream in queue.streams():
            yield from (row for row in _waiting(stream) if row["id"] not in workflows)
            for row in _in_stream(stream, jobs):
                if row["id"] in workflows:  # a wake of it
                    continue
                if was_redriven:  # its result still says that it failed
                    shown.add(row["id"])
                yield row
    for stream in jobs.dead_streams():
        for entry in stream.scan():
            try:
                row = _row(entry.fields, entry.id, "failed", entry.fields.get(b"dead:stream"))
            except Refused:
                continue
            shown.add(row["id"])
            yield {**row, "error": _text(entry.fields.get(b"dead:error"))}
    yield from _with_results(jobs, shown)


def _workflows(jobs: StoredJobs) -> Iterator[dict[str, Any]]:
    """Yield the workflows, by their states; the arguments are in the history, which is not read."""
    prefix = f"{jobs.name}{_WORKFLOW}"
    for key in jobs.store.scan_keys(f"{prefix}*"):
        workflow_id = key.decode("utf-8", "replace").removeprefix(prefix)
        try:
            state = WorkflowLog(jobs, workflow_id).state()
        except (WrongType, ValueError, TypeError):  # a key of another program
            continue
        if state is None:
            continue
        yield {
            "id": workflow_id,
            "task": state.task,
            "status": state.status,
            "queue": None if state.has_ended else state.queue.encode(),
            "enqueued_ms": state.at_ms,
            "due_ms": None,
            "error": state.why or (jobs.handle(workflow_id).error if state.has_ended else None),
            "args": None,
            "kwargs": None,
        }


def _dependent(jobs: StoredJobs) -> Iterator[dict[str, Any]]:
    """Yield the jobs that wait for others."""
    prefix = f"{jobs.name}{_AFTER}"
    for key in jobs.store.scan_keys(f"{prefix}*"):
        with suppress(WrongType):  # a key of another program
            for entry in jobs.store.stream(key).range(count=1):
                number = len(jobs.store.stream(key)) - 1
                for row in _readable(entry.fields, entry.id, "waiting", entry.fields.get(WHERE)):
                    yield {**row, "error": text_of(number)}


def _waiting(stream: Stream) -> Iterator[dict[str, Any]]:
    for message in read_delayed(stream):
        yield from _readable(message.fields, message.ticket, "scheduled", stream.key)


def _in_stream(stream: Stream, jobs: StoredJobs) -> Iterator[dict[str, Any]]:
    group, entries = stream.group(jobs.group), stream.scan()
    while page := list(islice(entries, _PAGE)):
        first, last = page[0].id, page[-1].id
        try:
            found = group.pending_range(first, last, _PENDING_MAX)
            pending = {each.id: each for each in found}
        except NoGroup:  # no worker has been there
            pending = {}
        for entry in page:
            status = state_of(pending.get(entry.id))
            yield from _readable(entry.fields, entry.id, status, stream.key)


def _readable(
    fields: Fields, where: StreamID | Ticket, status: str, queue: bytes | None
) -> Iterator[dict[str, Any]]:
    try:
        yield _row(fields, where, status, queue)
    except Refused:  # a message that is no job
        return


def _with_results(jobs: StoredJobs, shown: set[str]) -> Iterator[dict[str, Any]]:
    prefix = f"{jobs.name}{_RESULT}"
    for key in jobs.store.scan_keys(f"{prefix}*"):
        job_id = key.decode("utf-8", "replace").removeprefix(prefix)
        try:
            last = jobs.store.stream(key).revrange(count=1)
        except WrongType:  # a key of another program
            continue
        fields = last[0].fields if last else {}
        if job_id in shown or fields.get(b"status", RETRY) == RETRY:
            continue
        yield {
            "id": job_id,
            "task": _text(fields.get(b"task")),
            "status": _text(fields[b"status"]),
            "queue": None,
            "enqueued_ms": _creation_ms(job_id),
            "due_ms": None,
            "error": _text(fields.get(b"error")),
            "args": None,
            "kwargs": None,
        }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
