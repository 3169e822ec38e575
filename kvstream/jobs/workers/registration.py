"""A worker's entry in the registry, and what it does on request.

One thread does both: it writes a beat, then reads the requests, blocked until the next beat. So an
idle worker costs one write and one read in thirty seconds, and a request reaches it at once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from kvstream.engine.waiters import Interrupt
from kvstream.errors import KVStreamError, StoreClosed
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.job_log import log_problem, logger_of
from kvstream.jobs.workers import registry, stacks
from kvstream.jobs.workers.registry import Work
from kvstream.jobs.workers.stacks import JobStack
from kvstream.operations.queues.workers import BEAT_S, IDLE_BEAT_S
from kvstream.stream import read_until
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.version import VERSION

if TYPE_CHECKING:
    from kvstream.queue import Queue

LOOK_S = 0.05
"""Pause between two tries to end a blocked read: one is lost if the read has not begun yet."""
KEEP_S = 3600.0
"""Seconds between two calls that keep the stream from expiring, which it does after a day."""
END_S = 5.0
"""Longest time to remove the entry at the end: the store may be away."""
_log = logger_of(__name__)

Fields = Mapping[bytes, bytes]


def facts_of(
    jobs: AnyJobs,
    queues: Mapping[str, Queue],
    concurrency: int,
    program: str,
    app_version: str,
) -> dict[str, str]:
    """Return the fields of a worker of some queues, by their names, that stay the same."""
    streams = [os.fsdecode(stream.key) for queue in queues.values() for stream in queue.streams()]
    return {
        "name": jobs.consumer,
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "program": program,
        "application": jobs.application,
        "app_version": app_version,
        "version": VERSION,
        "queues": json.dumps(list(queues)),
        "streams": json.dumps(streams),
        "lease": repr(jobs.lease_s),
        "concurrency": str(concurrency),
        "started": str(jobs.store.now_ms()),
    }


class Requests:
    """Reads what is asked of workers, in the thread that calls ``read``."""

    def __init__(self, jobs: AnyJobs, ending: Interrupt) -> None:
        """``ending`` ends a read that waits."""
        self._jobs, self._ending = jobs, ending
        self._after: StreamID | None = None
        """The last request that was read; None before ``begin``."""

    def begin(self) -> None:
        """Read those that come from now on; nothing if it has begun."""
        if self._after is None:
            self._after = StreamID(self._jobs.store.now_ms(), 0)

    def read(self, wait_s: float) -> Iterator[tuple[StreamID, Fields]]:
        """Yield the ID and fields of new requests; wait at most ``wait_s`` for the first."""
        stream, after = registry.requests_of(self._jobs), self._after or MIN_ID
        for entry in read_until(stream, after, wait_s, self._ending):
            self._after = entry.id
            yield entry.id, entry.fields


def command_of(fields: Fields) -> str:
    """Return what a request asks for."""
    return _text(fields, b"command")


def is_for(fields: Fields, *names: str) -> bool:
    """Return whether a request is for a worker that has one of these names."""
    wanted = _text(fields, b"worker")
    return bool(wanted) and wanted in names


def job_in(fields: Fields) -> str:
    """Return the ID of the job in a request."""
    return _text(fields, b"job")


def _text(fields: Fields, name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


class Registration:
    """Keeps the entry of a worker, and obeys requests, until ``end``."""

    def __init__(
        self,
        jobs: AnyJobs,
        facts: Callable[[], Mapping[str, str]],
        work: Callable[[], Work],
        commands: Mapping[str, Callable[[], None]],
        stack_of: Callable[[str], tuple[str, str] | None],
    ) -> None:
        """``commands``: what to do on a request, by its name; it must return at once.

        ``stack_of`` returns kind and text of the stack of a job by its ID, if the worker runs it.
        """
        self._jobs, self._facts, self._work, self._commands = jobs, facts, work, commands
        self._stack_of = stack_of
        self._fields: Mapping[str, str] = {}
        self._written: list[StreamID] = []
        """Entries of this worker; all but the last one are to be deleted."""
        self._last: Work | None = None
        """What it did at the last beat."""
        self._due = self._keep_due = 0.0
        """When the next beat is due, and when streams get their rules and names anew."""
        self._ending = Interrupt()
        self._requests = Requests(jobs, self._ending)
        self._thread = threading.Thread(
            target=self._run, name="kvstream-jobs-registry", daemon=True
        )

    def begin(self) -> None:
        """Begin; requests about the jobs that the worker takes from now on are read."""
        with suppress(KVStreamError):  # the store is away: the thread tries it again
            self._requests.begin()
        self._thread.start()

    def end(self) -> None:
        """Remove the entry; give up if the store is away."""
        until = monotonic() + END_S
        while self._thread.is_alive() and monotonic() < until:
            self._ending.set()
            self._thread.join(LOOK_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                if not self._fields:
                    self._begin()
                if monotonic() >= self._due:
                    self._beat()
                for request, fields in self._requests.read(max(0.001, self._due - monotonic())):
                    self._obey(request, fields)
            except StoreClosed:
                return
            except KVStreamError as error:  # the thread that takes jobs says that it is away
                _log.debug("a beat is not written: %s", error)
                self._ending.wait(BEAT_S)
            except Exception as error:  # the worker is to stay reachable
                log_problem(_log, logging.ERROR, "a request has failed", error=error)
                self._ending.wait(BEAT_S)
        with suppress(KVStreamError):
            registry.remove(self._jobs, self._jobs.consumer)

    def _begin(self) -> None:
        self._requests.begin()
        registry.forget_lost(self._jobs)
        self._fields = self._facts()

    def _beat(self) -> None:
        work = self._work()
        every_s = IDLE_BEAT_S if work == self._last and not work.runs else BEAT_S
        self._last = work
        self._written.append(registry.write(self._jobs, self._fields, work, every_s))
        if old := self._written[:-1]:
            registry.records_of(self._jobs).delete(*old)
            self._written = self._written[-1:]
        if monotonic() >= self._keep_due:
            registry.keep(self._jobs)
            self._jobs.ended.look_again()
            self._jobs.results.look_again()
            self._keep_due = monotonic() + KEEP_S
        self._due = monotonic() + every_s

    def _obey(self, request: StreamID, fields: Fields) -> None:
        command, name = command_of(fields), self._fields["name"]
        if command == registry.STACK:
            if (found := self._stack_of(job_in(fields))) is not None:
                stacks.answer(self._jobs, request, JobStack(name, *found))
        elif command in self._commands and is_for(fields, name, self._fields["program"]):
            self._due = 0.0  # its state has changed
            self._commands[command]()
