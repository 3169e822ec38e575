"""A worker's entry in the registry, and what it does on request.

One thread does both: it writes a beat, then reads the requests, blocked until the next beat. So an
idle worker costs one write and one read in ten seconds, and a request reaches it at once.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvstream.engine.waiters import Interrupt
from kvstream.errors import KVStreamError, StoreClosed
from kvstream.jobs import registry
from kvstream.jobs.job_log import log_problem, logger_of
from kvstream.jobs.registry import BEAT_S, Work
from kvstream.stream import read_until
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.version import VERSION

if TYPE_CHECKING:
    from kvstream.jobs.application import Jobs

LOOK_S = 0.05
"""Pause between two tries to end a blocked read: one is lost if the read has not begun yet."""
END_S = 5.0
"""Longest time to remove the entry at the end: the store may be away."""
_log = logger_of(__name__)

Fields = Mapping[bytes, bytes]


def facts_of(
    jobs: Jobs, names: Sequence[str], concurrency: int, program: str, app_version: str
) -> dict[str, str]:
    """Return the fields of a worker of the queues of these names that stay the same."""
    queues = jobs.queues_to_work(names)
    streams = [os.fsdecode(stream.key) for queue in queues for stream in queue.streams()]
    return {
        "name": jobs.consumer,
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "program": program,
        "application": jobs.application,
        "app_version": app_version,
        "version": VERSION,
        "queues": json.dumps(list(names) or jobs.queue_names()),
        "streams": json.dumps(streams),
        "lease": repr(jobs.lease_s),
        "concurrency": str(concurrency),
        "started": str(jobs.store.now_ms()),
    }


class Registration:
    """Keeps the entry of a worker, and obeys requests, until ``end``."""

    def __init__(
        self,
        jobs: Jobs,
        facts: Callable[[], Mapping[str, str]],
        work: Callable[[], Work],
        commands: Mapping[str, Callable[[], None]],
    ) -> None:
        """``commands``: what to do on a request, by its name; it must return at once."""
        self._jobs, self._facts, self._work, self._commands = jobs, facts, work, commands
        self._fields: Mapping[str, str] = {}
        self._written: list[StreamID] = []
        """Entries of this worker; all but the last one are to be deleted."""
        self._after = MIN_ID
        """The last request that was read."""
        self._due = 0.0
        self._ending = Interrupt()
        self._thread = threading.Thread(
            target=self._run, name="kvstream-jobs-registry", daemon=True
        )

    def begin(self) -> None:
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
                self._read(max(0.001, self._due - monotonic()))
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
        last = registry.requests_of(self._jobs).revrange(count=1)
        self._after = last[0].id if last else MIN_ID
        registry.forget_lost(self._jobs)
        self._fields = self._facts()

    def _beat(self) -> None:
        self._written.append(registry.write(self._jobs, self._fields, self._work()))
        if old := self._written[:-1]:
            registry.records_of(self._jobs).delete(*old)
            self._written = self._written[-1:]
        self._due = monotonic() + BEAT_S

    def _read(self, wait_s: float) -> None:
        """Wait for requests until the next beat, and obey those that are for this worker."""
        stream = registry.requests_of(self._jobs)
        for entry in read_until(stream, self._after, wait_s, self._ending):
            self._after = entry.id
            self._obey(entry.fields)

    def _obey(self, fields: Fields) -> None:
        command = fields.get(b"command", b"").decode("utf-8", "replace")
        if command in self._commands and self._is_for_me(fields):
            self._due = 0.0  # its state has changed
            self._commands[command]()

    def _is_for_me(self, fields: Fields) -> bool:
        wanted = fields.get(b"worker", b"").decode("utf-8", "replace")
        return bool(wanted) and wanted in (self._fields["name"], self._fields["program"])
