"""Redrive: move dead letters back to where they came from, or to another stream.

A redrive goes through the dead letters in order, up to the last one there is when it begins: an
entry that becomes a dead letter again is not moved twice. Each step is one commit that adds entries
to their streams and deletes their letters, so a crash loses or doubles none. ``start`` runs the
first step. If there is more to do, or a rate is given, a timer runs the other steps; ``cancel``
ends them. One redrive of a stream runs at a time::

    job row := queue tree(u64) "R"   -> msgpack array of the fields of Job
    ids row := queue tree(u64) "RI"  -> id*      the letters to redrive, if they were given by ID
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from enum import StrEnum
from typing import TypedDict, Unpack

import msgpack

from kvstream.errors import Corruption, InvalidArgument, RequestError, quote
from kvstream.layout.keys import ID_BYTES, beside, key_of
from kvstream.layout.values import Names, encode_flat
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.delete import erase
from kvstream.operations.delivery import dead
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning, run_at_once
from kvstream.operations.reads.range import read_whole
from kvstream.operations.reads.rows import read_entries_of
from kvstream.operations.trim import drop_references
from kvstream.types.glob import is_own_key
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, StreamID, ascending
from kvstream.types.records import Entry

_BEHIND = b"\xff" * (ID_BYTES + 1)
"""The cursor behind all letters."""
JOB, IDS = b"R", b"RI"
"""Suffixes of rows in the queue tree."""
STEP_LETTERS = 500
"""Dead letters of one step: some milliseconds of work."""
STEP_BYTES = 4 << 20
"""Memory of the letters of one step."""
IDS_MAX = 10_000
"""IDs of one redrive: each step reads them all."""
PAUSE_MS = 1
"""The time between two steps without a rate, for other commands."""


class State(StrEnum):
    """What a redrive does."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """A target refused the entries; the letters are still there."""
    DRY_RUN = "dry-run"
    """Nothing was moved; ``moved`` and ``streams`` count the letters that would be."""


@dataclass(slots=True)
class Job:
    """One redrive: what to take, and how far it has come."""

    state: str = State.RUNNING
    to: bytes = b""
    """The key to add to; empty: the stream that each entry comes from."""
    where: tuple[bytes, bytes] | tuple[()] = ()
    """A field and its value: the letters to take; empty: all."""
    by_ids: bool = False
    left: int = -1
    """How many letters may still be moved; -1: any number."""
    rate_count: int = 0
    rate_ms: int = 0
    """At most ``rate_count`` letters are moved in each ``rate_ms``; 0: as fast as possible."""
    cursor: bytes = MIN_ID.packed
    """The first letter that was not looked at."""
    end: bytes = MAX_ID.packed
    """The last letter to look at."""
    next_ms: int = 0
    """When the next step is due."""
    moved: int = 0
    skipped: int = 0
    """Letters that stay, since they name no stream that they may go to."""
    error: bytes = b""
    """Why it failed."""
    streams: dict[bytes, int] = field(default_factory=dict)
    """The entries moved to each of the first STREAMS_MAX keys."""

    def encode(self) -> bytes:
        return bytes(msgpack.packb(astuple(self), use_bin_type=True))

    @classmethod
    def decode(cls, value: bytes) -> "Job":
        """Decode a row; raise Corruption if it is damaged."""
        try:
            parts = msgpack.unpackb(value, use_list=False, strict_map_key=False)
            if len(parts) != len(_KINDS):
                raise ValueError(f"{len(parts)} fields")
            for part, kind in zip(parts, _KINDS, strict=True):
                if type(part) is not kind:
                    raise ValueError(f"a field is {type(part).__name__}, not {kind.__name__}")
            return cls(*parts)
        except Exception as error:  # msgpack raises errors of many classes
            raise Corruption(f"the record of a redrive is damaged: {error!r}") from error

    def note(self, target: bytes, count: int) -> None:
        self.moved += count
        if target in self.streams or len(self.streams) < STREAMS_MAX:
            self.streams[target] = self.streams.get(target, 0) + count


STREAMS_MAX = 100
"""Keys whose entries a redrive counts: each step writes the counts."""
_KINDS = [type(value) if not isinstance(value, str) else str for value in astuple(Job())]
assert len(_KINDS) == len(fields(Job))


class Asked(TypedDict, total=False):
    """Which letters a redrive moves, and where to."""

    to: bytes
    """The key to add to; empty: the stream that each letter comes from."""
    ids: Sequence[StreamID] | None
    """Only these letters."""
    where: tuple[bytes, bytes] | None
    """Only letters with a field of this name and value, in the entry or in the ``dead:`` block."""
    count: int | None
    """The most letters to move."""
    rate: tuple[int, int] | None
    """The most letters to move in a time, and this time in milliseconds; a dry run ignores it."""


def start(txn: Txn, name: bytes, **asked: Unpack[Asked]) -> Job:
    """Begin to redrive the dead letters of a stream, and run the first step.

    The result is DONE, or RUNNING if later steps do the rest. If another redrive of the stream
    runs, or a target refuses entries, raise RequestError and change nothing.
    """
    job, wanted = _new(name, **asked)
    stream = txn.stream(name)
    if stream is None or stream.length == 0:
        job.state = State.DONE
        return job
    running = job_of(txn, stream)
    if running is not None and running.state == State.RUNNING:
        raise RequestError(
            f"a redrive of {quote(key_of(name))} is running: wait for it, or cancel it"
        )
    job.end = stream.last.packed
    _advance(txn, name, stream, job, wanted)
    timers.delete_row(txn, stream, IDS)
    if job.state == State.RUNNING and wanted:
        timers.put_row(txn, stream, IDS, wanted)
    _keep(txn, stream, job)
    return job


def move(
    txn: Txn,
    name: bytes,
    ids: Sequence[StreamID] | None,
    where: tuple[bytes, bytes] | None = None,
    rate: tuple[int, int] | None = None,
) -> None:
    """Redrive dead letters as ``start`` does, for a transaction that needs no result of it."""
    start(txn, name, ids=ids, where=where, rate=rate)


def status(txn: Txn, name: bytes) -> Job | None:
    """Return the redrive that runs, or the last one that ended; None if there was none."""
    stream = txn.stream(name)
    return None if stream is None else job_of(txn, stream)


def cancel(txn: Txn, name: bytes) -> bool:
    """Stop the redrive of a stream; return whether one ran. What was moved stays moved."""
    stream = txn.stream(name)
    job = None if stream is None else job_of(txn, stream)
    if stream is None or job is None or job.state != State.RUNNING:
        return False
    timers.take(txn, stream, job.next_ms, Kind.REDRIVE, b"")
    job.state = State.CANCELLED
    _keep(txn, stream, job)
    return True


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Run the next step of the redrive of a stream."""
    job = job_of(txn, stream)
    if job is None or job.state != State.RUNNING:
        return
    try:
        _advance(txn, name, stream, job, timers.get_row(txn, stream, IDS) or b"")
    except RequestError as error:
        job.state, job.error = State.FAILED, str(error).encode("utf-8", "surrogateescape")
    _keep(txn, stream, job)


def restore(txn: Txn, stream: StreamMeta, job: Job, ids: bytes) -> None:
    """Store the redrive of another stream's image; it goes on if it was running."""
    cancel(txn, txn.catalog.databases.shown_name(txn, stream.name))
    if ids:
        timers.put_row(txn, stream, IDS, ids)
    _keep(txn, stream, job)


def job_of(txn: Txn, stream: StreamMeta) -> Job | None:
    value = timers.get_row(txn, stream, JOB)
    return None if value is None else Job.decode(value)


def plan_dry_run(txn: Txn, name: bytes, **asked: Unpack[Asked]) -> Plan[Job]:
    """Plan what ``start`` would move; the steps change nothing."""
    job, wanted = _new(name, **asked)
    job.rate_count = 0
    found = txn.stream(name)
    job.end = MIN_ID.packed if found is None else found.last.packed

    def plan(txn: Txn) -> Planning[Job]:
        while (stream := txn.stream(name)) is not None:
            for key, letters in _choose(txn, name, stream, job, wanted).items():
                job.note(key, len(letters))
            if job.state != State.RUNNING:
                break
            txn = yield ALWAYS_HOLDS
        job.state = State.DRY_RUN
        return job

    return plan


def dry_run(txn: Txn, name: bytes, **asked: Unpack[Asked]) -> Job:
    """Return what ``start`` and the steps after it would move, and to which streams."""
    return run_at_once(txn, plan_dry_run(txn, name, **asked))


# --- one step -----------------------------------------------------------------------------------


def _new(
    name: bytes,
    to: bytes = b"",
    ids: Sequence[StreamID] | None = None,
    where: tuple[bytes, bytes] | None = None,
    count: int | None = None,
    rate: tuple[int, int] | None = None,
) -> tuple[Job, bytes]:
    """Return a new job and its packed IDs; raise InvalidArgument for wrong arguments."""
    if ids is not None and len(ids) > IDS_MAX:
        raise InvalidArgument(f"a redrive takes at most {IDS_MAX} IDs, not {len(ids)}")
    if count is not None and count < 1:
        raise InvalidArgument("the count of a redrive must be at least 1")
    if rate is not None and min(rate) < 1:
        raise InvalidArgument("the rate of a redrive needs a count and a time above 0")
    if to == key_of(name):
        raise InvalidArgument("the target of a redrive must be another stream")
    if is_own_key(to):
        raise InvalidArgument(f"kvstream keeps {quote(to)} for itself: redrive to another stream")
    rate_count, rate_ms = rate or (0, 0)
    left = -1 if count is None else count
    job = Job(State.RUNNING, to, where or (), ids is not None, left, rate_count, rate_ms)
    return job, b"".join([PACKED(*eid) for eid in ascending(list(ids or ()))])


def _keep(txn: Txn, stream: StreamMeta, job: Job) -> None:
    """Write the job, and the timer of its next step."""
    if job.state == State.RUNNING:
        timers.put(txn, stream, job.next_ms, Kind.REDRIVE, b"")
    else:
        timers.delete_row(txn, stream, IDS)
    timers.put_row(txn, stream, JOB, job.encode())


def _advance(txn: Txn, name: bytes, stream: StreamMeta, job: Job, wanted: bytes) -> None:
    """Move the letters of one step; raise RequestError before any change if a target refuses."""
    chosen = _choose(txn, name, stream, job, wanted)
    values: dict[bytes, list[tuple[bytes, Names]]] = {}
    for key, letters in chosen.items():
        target = beside(name, key)
        other = txn.stream(target)
        if other is not None:
            append.next_ids(other.last, len(letters), txn.now_ms)  # or raises IDsExhausted
        values[target] = [encode_flat([*dead.strip(letter.flat)]) for letter in letters]
    for target, encoded in values.items():
        append.add_many(txn, target, encoded)
        job.note(key_of(target), len(encoded))
        txn.catalog.queue_events.redriven += len(encoded)
    gone = sorted(letter.id for letters in chosen.values() for letter in letters)
    if gone:
        drop_references(txn, stream, gone)
        erase(txn, stream, gone)
    pause_ms = job.rate_ms if gone and job.rate_ms else PAUSE_MS
    job.next_ms = txn.now_ms + pause_ms


def _choose(
    txn: Txn, name: bytes, stream: StreamMeta, job: Job, wanted: bytes
) -> dict[bytes, list[Entry]]:
    """Return the letters that the next step moves, by the key that they go to.

    The cursor moves over the letters that were looked at.
    """
    chosen: dict[bytes, list[Entry]] = {}
    room = job.rate_count or STEP_LETTERS
    letters, following = _letters(txn, stream, job, wanted)
    for letter in letters:
        if not room or not job.left:
            following = letter.id.packed
            break
        flat = letter.flat
        if not _matches(flat, job.where):
            continue
        key = job.to or dead.target_of(flat)
        if not key or key == key_of(name):
            job.skipped += 1
            continue
        chosen.setdefault(key, []).append(letter)
        room -= 1
        job.left -= job.left > 0
    job.cursor = following
    if following == _BEHIND or not job.left:
        job.state = State.DONE
    return chosen


def _letters(
    txn: Txn, stream: StreamMeta, job: Job, wanted: bytes
) -> tuple[Sequence[Entry], bytes]:
    """Return the next letters to look at, and the cursor behind them."""
    if job.by_ids:
        ids = [wanted[at : at + ID_BYTES] for at in range(0, len(wanted), ID_BYTES)]
        del ids[: bisect_left(ids, job.cursor)]
        letters = read_entries_of(txn, stream, ids[:STEP_LETTERS])
        following = ids[STEP_LETTERS] if len(ids) > STEP_LETTERS else _BEHIND
        return [entry for entry in letters if entry is not None], following
    start, end = StreamID.unpack(job.cursor), StreamID.unpack(job.end)
    page = read_whole(txn, stream, start, end, STEP_LETTERS, room=STEP_BYTES)
    at_end = not page or page[-1].id >= end
    return page, _BEHIND if at_end else page[-1].id.next().packed


def _matches(flat: Sequence[bytes], where: Sequence[bytes]) -> bool:
    """Return whether a letter has a field with a value; fields of the ``dead:`` block go first."""
    if not where:
        return True
    name, value = where
    block = dead.origin(flat)
    if name in block:
        return block[name] == value
    own = dead.strip(flat)
    return any(own[at] == name and own[at + 1] == value for at in range(0, len(own), 2))
