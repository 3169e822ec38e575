"""Long histories, kept in memory by the process that runs their workflows.

A wake reads the whole history, and to decode 10,000 events takes 0.2 s. So the process keeps what
it has read of a long history, and the next wake reads the rest. Short ones are not kept: workflows
that wait cost no memory. A copy goes to the run, which adds its own events before they are written.
"""

from __future__ import annotations

import threading
from typing import Any

from kvstream.jobs.history.events import History
from kvstream.jobs.history.log import WorkflowLog

LONG = 200
"""Events from which on a history is kept: a copy takes a tenth of the time that decoding takes."""
EVENTS_MAX = 50_000
"""Events that are kept at most, some 50 MB: the least recently used histories go first."""


class Histories:
    """The long histories of a workflow's function. Any thread may read."""

    def __init__(self) -> None:
        self._store: Any = None
        """The store that they are of."""
        self._kept: dict[str, History] = {}
        self._count = 0
        self._lock = threading.Lock()

    def take(self, workflow_id: str) -> History | None:
        """Keep the history of a workflow no more; return it."""
        with self._lock:
            kept = self._kept.pop(workflow_id, None)
            self._count -= 0 if kept is None else kept.count
        return kept

    def _read(self, log: WorkflowLog) -> History:
        """Read the whole history, or what has come since it was kept."""
        with self._lock:
            if log.store is not self._store:  # the Jobs has opened another one
                self._kept, self._count, self._store = {}, 0, log.store
        kept = self.take(log.id)
        if kept is not None:
            entries = log.entries(kept.read_to.previous())
            last = next(entries, None)
            if last is not None and last.id == kept.read_to:
                return kept.read(entries)
            # The ID was used again, or the store has lost its last writes.
        return log.history()

    def read(self, log: WorkflowLog) -> History:
        """Return the history of a workflow, for one run."""
        found = self._read(log)
        if found.count < LONG or found.end is not None:
            return found
        with self._lock:
            self._kept[log.id] = found
            self._count += found.count
            while self._count > EVENTS_MAX and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                self._count -= self._kept.pop(oldest).count
        return found.copy()
