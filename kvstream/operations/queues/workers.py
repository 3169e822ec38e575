"""What the workers of jobs say of themselves, for metrics and INFO.

Each worker keeps an entry in a stream of its application, ``jobs:workers``, and replaces it at each
beat; ``kvstream.jobs.workers.registry`` writes and lists them. The figures are those of the last
beats, so they are at most ten seconds old, thirty if the worker was idle, and cost nothing between
two questions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from kvstream.errors import WrongType
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn
from kvstream.operations.reads.limits import FIRST_PAGE, first_page
from kvstream.operations.reads.range import Range, scan
from kvstream.types.records import Entry

SUFFIX = b":workers"
"""The end of the key of a registry."""
BEAT_S, IDLE_BEAT_S = 10.0, 30.0
"""Seconds between two beats of a worker that does something, and of one that waits for jobs."""
LOST_BEATS = 3.5
"""A worker whose last beat is older than so many of its beats is lost."""
EVERY = "every"
"""The field of a beat that has the seconds until the next one; BEAT_S without it."""
LATE_S = 3600.0
"""A job without a timeout that has run for longer counts as late."""
REGISTRIES_MAX = 100
WORKERS_READ = 500
"""Workers of one registry that have figures, the latest beats."""
TASKS_MAX = 200
"""Tasks of one registry that have figures."""
_KEYS_A_STEP = 50


class Run(NamedTuple):
    """A job in a beat of its worker."""

    id: str
    task: str
    key: str
    """That of the stream of its message."""
    entry: str
    """The ID of its message."""
    since_ms: int
    timeout: float | None

    def is_late(self, seconds: float) -> bool:
        """Return whether it is late once it has run for ``seconds``."""
        return seconds > (LATE_S if self.timeout is None else self.timeout)


def run_of(listed: Any) -> Run:
    """Return a job in the list of a beat; ValueError or TypeError if it is none."""
    job_id, task, key, entry, since_ms, timeout = listed
    limit = None if timeout is None else float(timeout)
    return Run(str(job_id), str(task), str(key), str(entry), int(since_ms), limit)


def text_of(fields: Mapping[bytes, bytes], name: str) -> str:
    """Return a field of an entry as text, or an empty text."""
    return fields.get(name.encode(), b"").decode("utf-8", "backslashreplace")


def is_lost(beat: Entry, now_ms: int) -> bool:
    """Return whether a worker is lost, by its last beat."""
    every = text_of(beat.fields, EVERY)
    every_s = min(int(every), IDLE_BEAT_S) if every.isdecimal() else BEAT_S
    return now_ms - beat.id.ms > LOST_BEATS * every_s * 1000


@dataclass(slots=True)
class TaskFigures:
    """The running jobs of a task."""

    running: int = 0
    late: int = 0
    """Those that have run for longer than their timeout, or than an hour if they have none."""
    oldest_s: float = 0.0
    """How long the one that runs longest had run at the last beat."""


@dataclass(slots=True)
class WorkersFigures:
    """The figures of one registry."""

    states: Counter[str] = field(default_factory=Counter)
    hanging: int = 0
    """Jobs that were given up at their timeout, and whose threads go on."""
    tasks: dict[tuple[str, str], TaskFigures] = field(default_factory=dict)
    """By the key of the queue's stream and the task."""


def latest_beats(txn: Txn, name: bytes) -> list[Entry]:
    """Return the last beat of each worker; [] if there is no such stream.

    Of large entries, which are not those of workers, about a megabyte is read.
    """
    try:
        stream = txn.stream(name)
    except WrongType:
        return []
    if stream is None:
        return []
    few = first_page(stream)
    count = WORKERS_READ if few == FIRST_PAGE else few
    return _latest(scan(txn, Range(name, count=count, reverse=True)) or ())


def _latest(newest_first: Iterable[Entry]) -> list[Entry]:
    latest: dict[str, Entry] = {}
    for entry in newest_first:
        latest.setdefault(text_of(entry.fields, "name"), entry)
    return list(latest.values())


def figures_of(newest_first: Iterable[Entry], now_ms: int) -> WorkersFigures:
    """Return the figures of the workers in the entries of a registry."""
    figures = WorkersFigures()
    for beat in _latest(newest_first):
        add_worker(figures, beat, now_ms)
    return figures


def add_worker(figures: WorkersFigures, beat: Entry, now_ms: int) -> None:
    """Add a worker to the figures, unless another program has written the entry."""
    fields, state = beat.fields, text_of(beat.fields, "state")
    try:
        runs = [run_of(each) for each in json.loads(text_of(fields, "jobs"))]
        hanging = int(text_of(fields, "hanging"))
    except (ValueError, TypeError, RecursionError):
        return
    if is_lost(beat, now_ms):
        figures.states["lost"] += 1
        return
    figures.states[state if state in STATES else "working"] += 1
    figures.hanging += hanging
    for run in runs:
        task = figures.tasks.get((run.key, run.task))
        if task is None:
            if len(figures.tasks) >= TASKS_MAX:
                continue
            task = figures.tasks[run.key, run.task] = TaskFigures()
        seconds = max(0, beat.id.ms - run.since_ms) / 1000
        task.running += 1
        task.late += run.is_late(seconds)
        task.oldest_s = max(task.oldest_s, seconds)


STATES = ("working", "draining", "stopping", "silent", "lost")


class RegistryScan:
    """Finds the registries of a store, a few keys at a time; those that are gone are forgotten."""

    def __init__(self, databases: int) -> None:
        self.names: dict[bytes, None] = {}
        self._databases = databases
        self._at = (0, 0)
        """The database and generation at which the scan continues."""

    def note(self, name: bytes) -> None:
        """Take a key, if it may be a registry; ``figures`` drops it if it is none."""
        if name.endswith(SUFFIX) and len(self.names) < REGISTRIES_MAX:
            self.names[name] = None

    def look(self, txn: Txn, most: int) -> None:
        """Scan up to ``most`` keys more, or to the end of the last database.

        Only names are read: the rows of a thousand keys took 20 ms.
        """
        for _ in range(-(-most // _KEYS_A_STEP)):
            db, cursor = self._at
            page = list(islice(txn.catalog.index.names(txn, db, cursor), _KEYS_A_STEP))
            for _, name in page:
                self.note(name)
            if len(page) == _KEYS_A_STEP:
                self._at = (db, page[-1][0] + 1)
            elif db + 1 < self._databases:
                self._at = (db + 1, 0)
            else:
                self._at = (0, 0)
                return

    def figures(self, txn: Txn) -> Iterator[tuple[bytes, WorkersFigures]]:
        """Yield the figures of each registry that has workers, by its name."""
        for name in list(self.names):
            beats = latest_beats(txn, name)
            if not beats:
                del self.names[name]
                continue
            figures = WorkersFigures()
            for beat in beats:
                add_worker(figures, beat, txn.now_ms)
            if figures.states:
                yield name, figures


def jobs_of(name: bytes) -> bytes:
    """Return the name of the Jobs whose registry has this name."""
    return key_of(name).removesuffix(SUFFIX)
