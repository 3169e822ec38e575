"""The jobs that have ended, as streams in which they are found by outcome, task and tag.

The commit that ends a job adds one entry to ``<name>:ended:<status>:<task>``, and one to
``<name>:tagged:<tag>`` for each of its tags. Its ID is the time of the end, so a page of a list is
a merge of the ends of some streams, and a count is the sum of their lengths. A job that failed and
has a dead letter has no such entry: the dead letters are the list, and a redrive takes a job out of
it. Rules of retention of these streams bound them by age and number.

``<name>:ended`` names these streams and those of the queues, each once or a few times, so that no
reader looks through all keys of a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kvstream.errors import AccessDenied, KVStreamError
from kvstream.jobs.dependents import ENDED as TELLS
from kvstream.jobs.handle import CANCELLED, DONE, EXPIRED, FAILED, SKIPPED
from kvstream.jobs.job import AnyJobs, Job
from kvstream.jobs.results import Addition, keep_for

if TYPE_CHECKING:
    from kvstream.queue import Queue

ENDED, TAGGED = "ended", "tagged"
"""Parts of the keys of these streams."""
ENDED_TTL_S, ENDED_MAX = 7 * 86_400.0, 1_000_000
"""How long ended jobs are listed, and how many of each task and outcome, or of each tag."""
ENDS = tuple(end.decode() for end in (DONE, FAILED, CANCELLED, EXPIRED, SKIPPED))
ID, AT, KEY, TASK, STATUS, TAGS = b"id", b"at", b"key", b"task", b"status", b"tags"
ATTEMPT, TOOK, ERROR, WORKFLOW = b"attempt", b"took", b"error", b"workflow"
ERROR_LENGTH = 500
"""Characters of an error in a list; the record of the job has all of it."""
_NAMES_MAX = 100_000
"""Entries of the stream of names that a reader takes."""

Fields = Mapping[str, str]
_UNLISTED = frozenset({"", TELLS})
"""Tasks whose jobs are not listed: none, and the built-in one that tells of ends."""
_NAMED_MAX = 100_000
"""Keys that a process remembers to have named."""


class End(NamedTuple):
    """How a job has ended."""

    job: Job
    status: str
    took_ms: int | None = None
    error: str = ""


def fields_of(end: End) -> dict[str, str]:
    """Return the fields of the entry of an ended job; what is usual is left out."""
    job = end.job
    found = {"id": job.id}
    if end.took_ms is not None:
        found["took"] = str(end.took_ms)
    made = job.id[:8] + job.id[9:13]  # the time in the ID, which is usually that of the job
    if job.enqueued_ms and made != f"{job.enqueued_ms:012x}":
        found["at"] = str(job.enqueued_ms)
    if job.key is not None:
        found["key"] = job.key
    if job.attempt > 1:
        found["attempt"] = str(job.attempt)
    if end.error:
        found["error"] = end.error[:ERROR_LENGTH]
    if job.tags:
        found["tags"] = ",".join(job.tags)
    if job.generation is not None:
        found["workflow"] = "1"
    return found


class EndedJobs:
    """The streams of the ended jobs of a Jobs: their names and their entries."""

    def __init__(self, jobs: AnyJobs, ttl_s: float, most: int) -> None:
        self._jobs = jobs
        self.ttl_s, self.most = ttl_s, most
        self._named: set[str] = set()
        """Streams that have their names and rules in the open store."""
        self._new: dict[str, Fields] = {}
        """Streams that have entries, and as yet neither name nor rules, with their names."""
        self._keys: dict[tuple[str, str], bytes] = {}
        """The keys of outcomes and tasks that had an end in this store."""
        self._queues: set[Queue] = set()
        """Queues whose streams are named."""

    def forget(self) -> None:
        """Forget which streams have names: another store may be opened."""
        self._named, self._new, self._keys, self._queues = set(), {}, {}, set()

    def look_again(self) -> None:
        """Look for the name of each stream again: all keys may have been deleted since."""
        self._named, self._keys, self._queues = set(), {}, set()

    def key(self, status: str, task: str) -> str:
        return f"{self._jobs.name}:{ENDED}:{status}:{task}"

    def tag_key(self, tag: str) -> str:
        return f"{self._jobs.name}:{TAGGED}:{tag}"

    @property
    def names_key(self) -> str:
        return f"{self._jobs.name}:{ENDED}"

    # --- writing --------------------------------------------------------------------------------

    def additions(self, ends: Sequence[End]) -> list[Addition]:
        """Return the entries for jobs that end; the caller adds them in the commit of the end."""
        if not (self.ttl_s and self.most):
            return []
        found: list[Addition] = []
        for end in ends:
            job = end.job
            if job.task_name in _UNLISTED:
                continue
            of_task = end.status, job.task_name
            key, fields = self._keys.get(of_task) or self._key_for(of_task), fields_of(end)
            found.append((key, fields, None))
            for tag in job.tags:  # of tags there may be many, so their streams expire whole
                of_tag = {**fields, "status": end.status, "task": job.task_name}
                found.append((self.tag_key(tag), of_tag, self.ttl_s))
                self._note_new(self.tag_key(tag), {})
        return found

    def _key_for(self, of_task: tuple[str, str]) -> bytes:
        """Return the key for an outcome and task, and see that the stream gets a name."""
        key = self.key(*of_task)
        self._note_new(key, {"status": of_task[0], "task": of_task[1]})
        self._keys[of_task] = key.encode("utf-8", "surrogateescape")
        return self._keys[of_task]

    def _note_new(self, key: str, name: Fields) -> None:
        if key not in self._named and key not in self._new:
            self._new[key] = name

    def name_new(self) -> None:
        """Name new streams, and give them their rules: after the commit that has made them.

        A transaction may be undone, and on a server it reads nothing. If the process dies before
        this, the next end of a job of that task and outcome leads to it.
        """
        if not self._new or self._jobs.store.has_transaction():
            return
        if len(self._named) > _NAMED_MAX:
            self._named, self._keys = set(), {}
        with suppress(KVStreamError):  # the store is away, or the user may not
            names = self._names() if any(self._new.values()) else ()  # tags have none
            known = list(map(dict, names))
            new = dict(self._new)
            for fields in filter(None, new.values()):
                self._name(fields, known)
            keep_for(self._jobs, new, self.ttl_s, self.most)
            self._named.update(new)
            for key in new:
                self._new.pop(key, None)

    def note_queue(self, queue: Queue) -> None:
        """Name the streams of a queue that jobs are put into or taken from."""
        if queue in self._queues or self._jobs.store.has_transaction():
            return
        fresh = queue.keys()
        with suppress(KVStreamError):  # the next one tries again
            with suppress(AccessDenied):  # a program that may only enqueue: its workers name them
                known = list(map(dict, self._names()))
                for key in fresh:
                    self._name({"queue": key}, known)
            self._queues.add(queue)

    def _name(self, fields: Fields, known: Sequence[Mapping[bytes, bytes]]) -> None:
        encoded = {
            name.encode(): text.encode("utf-8", "surrogateescape") for name, text in fields.items()
        }
        if encoded not in known:
            self._jobs.store.stream(self.names_key).add(encoded)

    # --- reading --------------------------------------------------------------------------------

    def _names(self) -> Iterator[Mapping[bytes, bytes]]:
        entries = self._jobs.store.stream(self.names_key).range(count=_NAMES_MAX)
        return (entry.fields for entry in entries)

    def queue_keys(self) -> list[str]:
        """Return the keys of the streams of queues that are named; none in an older store."""
        found = (fields[b"queue"] for fields in self._names() if b"queue" in fields)
        return sorted({key.decode("utf-8", "surrogateescape") for key in found})

    def streams(self, statuses: Iterable[str], task: str | None) -> list[tuple[str, str]]:
        """Return the outcomes and tasks that have a stream, of those that are asked for."""
        wanted, found = set(statuses), set[tuple[str, str]]()
        for fields in self._names():
            if TASK in fields and STATUS in fields:
                status = fields[STATUS].decode("utf-8", "replace")
                name = fields[TASK].decode("utf-8", "surrogateescape")
                if status in wanted and task in (None, name):
                    found.add((status, name))
        return sorted(found)
