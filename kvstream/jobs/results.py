"""The records of how jobs have ended, and of their tries: where they are, and for how long.

Most jobs are done at their first try, and have a small result. All jobs of an application share
1024 streams for these, chosen by the ID of the job, so that a result costs one row. Any other
record is in a stream of its job alone, which costs a header and an expiry as well::

    <name>:results:<n>     n := crc32(id in UTF-8) mod 1024, in decimal digits
        id       the ID of the job
        and the fields below, with the status "done"
    <name>:result:<id>     the last 50 records of the job at least, in order of time
        status   "retry", or how it has ended: "done", "failed", "cancelled", "expired", "skipped"
        result   of a job that is done, in ``format``: "json" or "msgpack"
        error    of one that is not, with ``traceback``
        task     the name of the task
        attempt  1 for the first try, which the shared streams leave out
        worker   the consumer that has run it
        took     the milliseconds of the run

The time of a record is that in the ID of its entry. The records of a job are those of both places
in order of time; of one millisecond the shared one is the last. A shared stream keeps records for
``result_ttl``, and ``results_max`` / 1024 of them at most (rules of retention); a stream of one job
expires as its records say. A record goes to its own stream if it has more than SHARED_BYTES, if
it is of a later try, if its task names another ``result_ttl``, or if the clock of the program that
has enqueued the job was more than a minute ahead, or the clock was set back by more since then.

A result is found without an index: an ID of kvstream has the time of the enqueue, and a job ends
after that, so its shared stream is read from there on, up to the record. Such an ID is that of one
job. For another ID, which a program has chosen, the whole stream is read; the last record counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any
from zlib import crc32

from kvstream.errors import InvalidArgument, KVStreamError
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.job_log import logger_of
from kvstream.logs import Throttle
from kvstream.meta.policy import Retention
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import monotonic
from kvstream.types.ids import MIN_ID, StreamID

if TYPE_CHECKING:
    from kvstream.jobs.job import Job
    from kvstream.store import Store
    from kvstream.types.records import Entry

RETRY = b"retry"
"""The status of a job that is tried again."""
SHARED, OWN = "results", "result"
"""Parts of the keys."""
SHARED_STREAMS = 1024
SHARED_BYTES = 1024
"""Most bytes of a result in a shared stream: whoever looks for one reads those of other jobs."""
RESULTS_MAX = 1_000_000
OWN_MAX = 50
"""Records of a job that its own stream keeps at least: tracebacks may be long."""
SKEW_MS = 60_000
"""How far the clocks of a program and of the store may be apart."""
_FIRST_PAGE, _PAGE = 100, 1000
"""Entries that are read at once."""
_TOGETHER = 100
"""Jobs whose records are read at once."""
_UUID_LENGTH, _VERSION_AT = 36, 14
"""The length of a UUID as text, and the place of its version: 7 begins with its time."""
ID = b"id"

_log = logger_of(__name__)
_changes = Throttle(1, 600.0)
"""One line for all streams of a change."""
_CHANGED = (
    "jobs of %s that have ended are kept for %g s, %d in a stream; before it was %g s and %d: "
    "programs of one application need equal limits, since those set last hold for all"
)

Addition = tuple[str | bytes, Mapping[Any, Any], float | None]
"""The key of a stream, the fields of an entry for it, and the seconds until the key expires."""


class Results:
    """The records of the jobs of a ``Jobs``."""

    def __init__(self, jobs: AnyJobs, most: int) -> None:
        if not most:
            raise InvalidArgument("results_max must be at least 1: result_ttl=0 keeps no results")
        self._jobs = jobs
        self._shared = _encode(f"{jobs.name}:{SHARED}:")
        self._most = -(-most // SHARED_STREAMS)
        self._ruled: set[bytes] = set()
        """Shared streams that have their rules in the open store."""
        self._new: set[bytes] = set()
        """Those that have records, and as yet no rules."""
        self.waiting: set[Reader] = set()
        """The readers of this program that wait for a record."""

    def forget(self) -> None:
        """Forget which streams have rules: another store may be opened."""
        self._ruled, self._new = set(), set()

    def look_again(self) -> None:
        """Look at the rules of each shared stream again: all keys may have been deleted since."""
        self._ruled = set()

    def own_key(self, job_id: str) -> bytes:
        """Return the key of the stream that has the records of one job alone."""
        return _encode(f"{self._jobs.name}:{OWN}:{job_id}")

    def shared_key(self, job_id: str) -> bytes:
        """Return the key of the stream that has the record of a job among others."""
        return b"%s%d" % (self._shared, crc32(_encode(job_id)) % SHARED_STREAMS)

    # --- writing --------------------------------------------------------------------------------

    def addition(self, job: Job, outcome: Mapping[Any, Any]) -> Addition:
        """Return the entry for a job that is done; the caller adds it in the commit of the end."""
        assert job.message is not None
        ttl_s = job.task.result_ttl
        if (
            job.attempt > 1
            or ttl_s != self._jobs.result_ttl
            or len(outcome[b"result"]) > SHARED_BYTES
            or (enqueued_ms(job.id) or 0) > min(job.message.id.ms, self._jobs.now_ms()) + SKEW_MS
        ):
            return self.own_key(job.id), outcome, ttl_s
        key = self.shared_key(job.id)
        self.note_shared(key)
        return key, {ID: job.id, **outcome}, None

    def note_shared(self, key: bytes) -> None:
        """Note a shared stream that gets a record: ``set_rules`` gives it its rules."""
        if key not in self._ruled:
            self._new.add(key)

    def add(self, job_id: str, fields: Mapping[Any, Any], ttl_s: float) -> None:
        """Add a record to the stream of its job, in the open transaction if there is one."""
        key = self.own_key(job_id)
        self._jobs.store.stream(key).add(fields, maxlen=OWN_MAX, approximate=True)
        self._jobs.store.expire(key, ttl_s)

    def set_rules(self) -> None:
        """Give new shared streams their rules: after the commit that has made them.

        If the process dies before this, the next record of that stream leads to it.
        """
        if not self._new or self._jobs.store.has_transaction():
            return
        with suppress(KVStreamError):  # the store is away, or the user may not
            new = [*self._new]
            keep_for(self._jobs, new, self._jobs.result_ttl, self._most)
            self._ruled.update(new)
            self._new.difference_update(new)

    # --- reading --------------------------------------------------------------------------------

    def reader(self, job_id: str) -> Reader:
        """Return what reads the records of a job, the first one first."""
        return Reader(self.own_key(job_id), self.shared_key(job_id), job_id)

    @contextmanager
    def waiting_reader(self, job_id: str) -> Iterator[Reader]:
        """Give a reader for a block that waits for the end of a job."""
        reader = self.reader(job_id)
        self.waiting.add(reader)
        try:
            yield reader
        finally:
            self.waiting.discard(reader)

    def records(self, job_id: str) -> list[Entry[bytes]]:
        """Return the records of a job, the first one first."""
        return self.reader(job_id).read(self._jobs.store)

    def last(self, job_id: str) -> dict[bytes, bytes]:
        """Return the fields of the last record of a job; empty if there is none."""
        records = self.records(job_id)
        return dict(records[-1].fields) if records else {}

    def records_of(self, job_ids: Iterable[str]) -> LastRecords:
        """Return what reads the last records of several jobs."""
        return LastRecords({each: self.reader(each) for each in job_ids})

    def own_records(self, job_id: str) -> list[Entry[bytes]]:
        """Return the records of a job but for that of a first try that is done."""
        return self._jobs.store.stream(self.own_key(job_id)).range()

    def place(self, job_id: str, ended_ms: int, most: int) -> list[tuple[bytes, StreamID]]:
        """Return where the shared record of a job is that has ended at a time; empty if it is not.

        At most so many entries of that millisecond are looked at.
        """
        key = self.shared_key(job_id)
        entries = self._jobs.store.stream(key).range(ended_ms, ended_ms, most)
        return [(key, entry.id) for entry in entries if _is_of(entry, job_id)]


def add_all(store: Store, additions: Iterable[Addition]) -> None:
    """Add entries, in the open transaction if there is one."""
    for key, fields, ttl_s in additions:
        store.stream(key).add(fields)
        if ttl_s is not None:
            store.expire(key, ttl_s)


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the ID of a job is not valid Unicode: {error}") from None


def _is_of(entry: Entry[bytes], job_id: str) -> bool:
    return entry.fields.get(ID) == _encode(job_id)


def enqueued_ms(job_id: str) -> int | None:
    """Return when the job of an ID of kvstream was enqueued, by the clock of its program.

    None for an ID that a program has chosen.
    """
    if len(job_id) != _UUID_LENGTH or job_id[_VERSION_AT] != "7":
        return None
    try:
        return int(job_id[:8] + job_id[9:13], 16)
    except ValueError:
        return None


def keep_for(jobs: AnyJobs, keys: Iterable[str | bytes], ttl_s: float, most: int) -> None:
    """Give streams their rules of retention, if they have none or the application has others.

    It is one commit in the process that owns the store: elsewhere a transaction would conflict with
    the results that others write meanwhile.
    """
    store = jobs.store
    wanted = Retention(max_age_ms=round(ttl_s * 1000), max_length=most)
    replaced: Retention | None = None
    with nullcontext() if store.own_engine is None else store.brief_transaction():
        for key in keys:
            stream = store.stream(key)
            present = stream.retention()
            if present is None or (present != wanted and jobs.tasks):
                replaced = present or replaced
                stream.set_retention(max_age=ttl_s, max_length=most)
    if replaced is not None:
        _changes.log(_log, logging.WARNING, _CHANGED, jobs.name, *_shown(wanted), *_shown(replaced))


def _shown(rules: Retention) -> tuple[float, int]:
    return rules.max_age_ms / 1000, rules.max_length


class Reader:
    """Reads the records of a job; whoever waits for one blocks on the streams in ``after``."""

    __slots__ = ("_found", "_id", "_is_single", "_own", "after", "count")

    def __init__(self, own: bytes, shared: bytes, job_id: str) -> None:
        self._own, self._id = own, job_id
        start_ms = enqueued_ms(job_id)
        self._is_single = start_ms is not None
        self.after = {own: MIN_ID, shared: StreamID(max(0, (start_ms or 0) - SKEW_MS), 0)}
        """The keys of the streams, and the last ID that was read of each."""
        self.count = _FIRST_PAGE
        """How many entries of each stream the next read takes."""
        self._found: list[Entry[bytes]] = []

    def read(self, store: Store, block: float | None = None) -> list[Entry[bytes]]:
        """Return the records since the last call; wait up to ``block`` seconds for the first."""
        until = None if block is None else monotonic() + block
        while True:
            left = left_of(until)
            if self.take(store.read(self.after, self.count, left), left):
                return self.found()

    def take(self, reply: Mapping[bytes, Sequence[Entry[bytes]]], left: float | None) -> bool:
        """Take what was read; return whether to stop: a record was found, or no time is left.

        All entries that were there are read first.
        """
        is_all = True
        for key, entries in reply.items():
            self.after[key] = entries[-1].id
            if key == self._own:
                self._found += entries
                is_enough = False
            else:
                of_job = [entry for entry in entries if _is_of(entry, self._id)]
                self._found += of_job
                is_enough = self._is_single and bool(of_job)
            is_all &= is_enough or len(entries) < self.count
        self.count = _PAGE
        return is_all and (bool(self._found) or left is None)

    def found(self) -> list[Entry[bytes]]:
        """Return the records that were taken since the last call, in order of time."""
        found, self._found = self._found, []
        return sorted(found, key=lambda entry: (entry.id.ms, ID in entry.fields))


class LastRecords:
    """The last records of several jobs, of which each ``read`` takes what has come since.

    One reply has the news of many: in a transaction on a server what was read may not change until
    its end, and jobs that end all the time change the shared streams.
    """

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = dict(readers)
        self.last: dict[str, dict[bytes, bytes]] = {each: {} for each in readers}
        """The fields of the last record of each job; empty if there is none."""

    def read(self, store: Store) -> None:
        """Read the records since the last call."""
        all_ids = [*self._readers]
        for at in range(0, len(all_ids), _TOGETHER):
            self._read_some(store, all_ids[at : at + _TOGETHER])

    def _read_some(self, store: Store, ids: Sequence[str]) -> None:
        readers = [self._readers[each] for each in ids]
        while readers:
            wanted: dict[bytes, StreamID] = {}
            for reader in readers:
                for key, after in reader.after.items():
                    wanted[key] = min(after, wanted.get(key, after))
            reply = store.read(wanted, _FIRST_PAGE)
            full = {key for key, entries in reply.items() if len(entries) == _FIRST_PAGE}
            for reader in readers:
                reader.take(_after(reader, reply), None)
            readers = [reader for reader in readers if not full.isdisjoint(reader.after)]
        for each in ids:
            if found := self._readers[each].found():
                self.last[each] = dict(found[-1].fields)


def _after(
    reader: Reader, reply: Mapping[bytes, Sequence[Entry[bytes]]]
) -> dict[bytes, Sequence[Entry[bytes]]]:
    """Return the entries of a reply that a reader has not taken."""
    new = {
        key: [entry for entry in reply[key] if entry.id > after]
        for key, after in reader.after.items()
        if key in reply
    }
    return {key: entries for key, entries in new.items() if entries}


def left_of(until: float | None) -> float | None:
    """Return the seconds until a time of ``monotonic``; None if it has passed, or there is none."""
    left = None if until is None else until - monotonic()
    return None if left is None or left <= 0 else left
