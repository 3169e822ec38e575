"""The workers of an application, as its store knows them, and what is asked of them.

Streams hold all of it, which any client may read::

    jobs:workers            one entry for each worker, which it replaces at each beat
    jobs:workers:requests   what is asked of workers: drain, stop, stack
    jobs:workers:reply:ID   the answers to a request, for a minute

An entry of the first has the jobs that its worker ran at that beat. The list of workers joins it
with the pending entries of the queues, so it is exact, and a job costs no write of its own. A
worker deletes its entry at a clean end; one whose beats stay away is shown as lost for a day.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvstream.engine.queue_arguments import Duration
from kvstream.errors import Conflict, NoGroup, NoSuchKey
from kvstream.jobs.job import Job, Refused, to_seconds
from kvstream.operations.queues.workers import (
    BEAT_S,
    EVERY,
    LATE_S,
    Run,
    is_lost,
    run_of,
    text_of,
)
from kvstream.types.clock import monotonic
from kvstream.types.ids import StreamID

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.records import Entry, PendingEntry

WORKERS = "workers"
LOST_KEPT_S = 86_400.0
WORKERS_MAX = 10_000
"""Most entries: each worker has one, and those of lost workers go after a day."""
RUNS_MAX = 100
"""Most jobs in a beat, the oldest first."""
REQUESTS_MAX, REQUESTS_KEPT_S = 1000, 3600.0
DRAIN, STOP, STACK = "drain", "stop", "stack"
LOOK_S = 0.2
"""Pause between two checks whether a worker has ended."""
_PAGE = 1000


class Place(Protocol):
    """The Jobs, as the registry sees it."""

    name: str
    group: str
    tasks: dict[str, Any]

    @property
    def store(self) -> Store: ...


class Work(NamedTuple):
    """What a worker does at a beat."""

    state: str
    done: int
    failed: int
    hanging: int
    runs: Sequence[Run]


class RunningJob(NamedTuple):
    """A job that a worker has in work."""

    id: str
    """The ID of the job."""
    task: str
    """The name of its task."""
    queue: str
    """The key of the stream that it came from."""
    since: datetime
    """When this run began, in UTC."""
    seconds: float
    """How long it has run."""
    lease_left: float
    """Seconds until another worker may take it, unless its own extends the lease."""
    timeout: float | None
    """Seconds that a run may take; None: no limit."""

    @property
    def is_late(self) -> bool:
        """Whether it has run for longer than its timeout, or than an hour if it has none."""
        return self.seconds > (LATE_S if self.timeout is None else self.timeout)


@dataclass(frozen=True)
class WorkerRecord:
    """A worker in the list of ``jobs.workers()``."""

    name: str
    """Its name, which ``drain`` and ``stop`` of the command line take."""
    state: str
    """``"working"``, ``"draining"``, ``"stopping"``, ``"silent"`` (a job holds Python's lock), or
    ``"lost"``: it has given no sign of life for 35 seconds, or for 105 if it was idle."""
    host: str
    """The name of its host."""
    pid: int
    """The number of its process."""
    program: str
    """The ``kvstream work`` that it is a process of; empty for a Worker in another program."""
    application: str
    """The name of the application, as the Jobs has it."""
    app_version: str
    """That of the application, as ``--app-version`` names it."""
    version: str
    """That of kvstream."""
    queues: tuple[str, ...]
    """The names of the queues that it takes jobs from."""
    concurrency: int
    """How many jobs it runs at a time."""
    started: datetime
    """When it began, in UTC."""
    beat: datetime
    """The last sign of life."""
    done: int
    """Jobs that it has finished."""
    failed: int
    """Tries that have failed, whether their jobs are tried again or not."""
    hanging: int
    """Jobs that still run after their timeout; their threads cannot be ended."""
    jobs: tuple[RunningJob, ...]
    """What it has in work now, the oldest first."""
    _jobs: Any = field(repr=False, compare=False)

    def drain(self, wait: Duration | None = None) -> bool:
        """Ask it to finish what it runs, take nothing more, and end.

        It learns of it at once, if it can reach the store. Waits at most ``wait`` seconds for its
        end; returns whether it has ended.
        """
        return ask_to_end(self._jobs, DRAIN, self.name, wait)

    def stop(self, wait: Duration | None = None) -> bool:
        """Ask it to stop as SIGTERM does: jobs may finish within its grace, the rest is given back.

        Waits as ``drain`` does.
        """
        return ask_to_end(self._jobs, STOP, self.name, wait)

    async def adrain(self, wait: Duration | None = None) -> bool:
        """Drain it as ``drain`` does, without blocking the event loop."""
        return await asyncio.to_thread(self.drain, wait)

    async def astop(self, wait: Duration | None = None) -> bool:
        """Stop it as ``stop`` does, without blocking the event loop."""
        return await asyncio.to_thread(self.stop, wait)


def records_of(jobs: Place) -> Stream[bytes]:
    """Return the stream of the entries of all workers."""
    return jobs.store.stream(f"{jobs.name}:{WORKERS}")


def requests_of(jobs: Place) -> Stream[bytes]:
    """Return the stream of what is asked of workers."""
    return jobs.store.stream(f"{jobs.name}:{WORKERS}:requests")


def reply_to(jobs: Place, request: StreamID) -> Stream[bytes]:
    """Return the stream of the answers to a request."""
    return jobs.store.stream(f"{jobs.name}:{WORKERS}:reply:{request}")


def is_of_registry(name: str, key: bytes) -> bool:
    """Return whether a key of the Jobs of a name is the registry's, and no queue."""
    own = f"{name}:{WORKERS}".encode("utf-8", "surrogateescape")
    return key == own or key.startswith(own + b":")


# --- writing --------------------------------------------------------------------------------------


def write(jobs: Place, fields: Mapping[str, str], work: Work, every_s: float = BEAT_S) -> StreamID:
    """Add the entry of a worker at a beat; return its ID. The next beat is in ``every_s``."""
    stream = records_of(jobs)
    runs = sorted(work.runs, key=lambda run: run.since_ms)[:RUNS_MAX]
    now = {
        "state": work.state,
        "done": str(work.done),
        "failed": str(work.failed),
        "hanging": str(work.hanging),
        "jobs": json.dumps(runs),
        EVERY: str(round(every_s)),
    }
    return stream.add({**fields, **now}, maxlen=WORKERS_MAX, approximate=True)


def keep(jobs: Place) -> None:
    """Expire the entries a day from now, if no worker calls this meanwhile."""
    jobs.store.expire(records_of(jobs).key, LOST_KEPT_S)


def forget_lost(jobs: Place) -> None:
    """Delete the entries of workers that were lost a day ago."""
    oldest = jobs.store.now_ms() - round(LOST_KEPT_S * 1000)
    records_of(jobs).trim(minid=f"{max(0, oldest)}-0")


def remove(jobs: Place, name: str) -> None:
    """Delete the entries of a worker that has ended; with the last one, the stream."""
    stream = records_of(jobs)
    if own := [entry.id for entry in stream.range() if text_of(entry.fields, "name") == name]:
        stream.delete(*own)
    with suppress(Conflict), jobs.store.brief_transaction():
        if not len(stream):
            jobs.store.delete(stream.key)


def note_silent(jobs: Place, name: str) -> None:
    """Write a beat for a worker that cannot, because a job holds Python's lock."""
    stream = records_of(jobs)
    own = [entry for entry in stream.range() if text_of(entry.fields, "name") == name]
    if own:
        stream.add({**own[-1].fields, b"state": b"silent"}, maxlen=WORKERS_MAX, approximate=True)
        stream.delete(*(entry.id for entry in own))


# --- requests -------------------------------------------------------------------------------------


def ask(jobs: Place, command: str, **fields: str) -> StreamID:
    """Add a request, which all workers read; return its ID."""
    stream = requests_of(jobs)
    asked = {"command": command, **fields}
    written = stream.add(asked, maxlen=REQUESTS_MAX, approximate=True)
    jobs.store.expire(stream.key, REQUESTS_KEPT_S)
    return written


def ask_to_end(jobs: Place, command: str, name: str, wait: Duration | None) -> bool:
    """Ask a worker to drain or stop; return whether it has ended within ``wait`` seconds."""
    wait_s = 0.0 if wait is None else to_seconds(wait, "wait")
    ask(jobs, command, worker=name)
    return not wait_for_end(jobs, {name}, wait_s)


def wait_for_end(jobs: Place, names: Set[str], wait_s: float) -> set[str]:
    """Wait until workers have ended, at most ``wait_s``; return those that have not."""
    until = monotonic() + wait_s
    while True:
        here = {text_of(entry.fields, "name") for entry in records_of(jobs).range()}
        rest_s = until - monotonic()
        if not here & names or rest_s <= 0:
            return here & names
        time.sleep(min(LOOK_S, rest_s))


# --- reading --------------------------------------------------------------------------------------


def workers_of(jobs: Place) -> list[WorkerRecord]:
    """Return the workers, by name, with the jobs that they have in work now."""
    newest: dict[str, Entry[bytes]] = {}
    for entry in records_of(jobs).range():
        newest[text_of(entry.fields, "name")] = entry
    found = (_record_of(jobs, newest[name]) for name in sorted(newest))
    return [record for record in found if record is not None]


def _record_of(jobs: Place, entry: Entry[bytes]) -> WorkerRecord | None:
    """Return the record in an entry; None if another program has written it."""
    fields, now_ms = entry.fields, jobs.store.now_ms()
    try:
        return WorkerRecord(
            name=text_of(fields, "name"),
            state="lost" if is_lost(entry, now_ms) else text_of(fields, "state"),
            host=text_of(fields, "host"),
            pid=int(text_of(fields, "pid")),
            program=text_of(fields, "program"),
            application=text_of(fields, "application"),
            app_version=text_of(fields, "app_version"),
            version=text_of(fields, "version"),
            queues=tuple(map(str, json.loads(text_of(fields, "queues")))),
            concurrency=int(text_of(fields, "concurrency")),
            started=_time_of(int(text_of(fields, "started"))),
            beat=_time_of(entry.id.ms),
            done=int(text_of(fields, "done")),
            failed=int(text_of(fields, "failed")),
            hanging=int(text_of(fields, "hanging")),
            jobs=tuple(sorted(_jobs_of(jobs, fields, now_ms), key=lambda job: job.since)),
            _jobs=jobs,
        )
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None


def _jobs_of(jobs: Place, fields: Mapping[bytes, bytes], now_ms: int) -> Iterator[RunningJob]:
    """Yield what a worker has in work: its pending entries, with what its last beat says of them.

    Jobs that have begun since then are read from their messages.
    """
    lease_s, name = float(text_of(fields, "lease")), text_of(fields, "name")
    listed = {(run.key, run.entry): run for run in map(run_of, json.loads(text_of(fields, "jobs")))}
    for key in json.loads(text_of(fields, "streams")):
        stream = jobs.store.stream(key)
        for row in _pending(stream, jobs.group, name):
            idle_ms = row.idle_ms or 0
            run = listed.get((key, str(row.id))) or _read_run(jobs, stream, row, now_ms - idle_ms)
            if run is not None:
                yield RunningJob(
                    id=run.id,
                    task=run.task,
                    queue=key,
                    since=_time_of(run.since_ms),
                    seconds=max(0, now_ms - run.since_ms) / 1000,
                    lease_left=max(0.0, lease_s - idle_ms / 1000),
                    timeout=run.timeout,
                )


def _pending(stream: Stream[bytes], group: str, name: str) -> Iterable[PendingEntry[bytes]]:
    try:
        return stream.group(group).pending_range(count=_PAGE, consumer=name)
    except (NoGroup, NoSuchKey):
        return ()


def _read_run(
    jobs: Place, stream: Stream[bytes], row: PendingEntry[bytes], since_ms: int
) -> Run | None:
    """Return the run of a job that has begun since the last beat; None if it has ended."""
    entry = stream.get(row.id)
    if entry is None:
        return None
    try:
        job = Job.of(entry.fields, entry.id)
    except Refused:
        return None
    task = jobs.tasks.get(job.task_name)
    timeout = None if task is None else task.timeout
    return Run(job.id, job.task_name, os.fsdecode(stream.key), str(row.id), since_ms, timeout)


def _time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
