"""Jobs that start once other jobs have ended: ``depends_on=``.

A job that waits for others is in no queue. Streams have it::

    <name>:after:<id>       its message and where to put it; then an entry for each job to wait for
    <name>:dependents:<id>  an entry for each job that waits for <id>: ``job``, ``entry`` (its entry
                            there), ``if_failed``

The commit that ends a job, in whatever way, deletes the entries of those that need wait for it no
more, and puts the message of each that waits for nothing else. So no start is lost or done twice,
whichever process dies. What an end means for those that wait is one rule (``_fate_of``): they wait
on only if a retry of the failed job may still end well. Most jobs have no dependents: the commit
that ends several jobs only looks whether one of them has (``dependents_key``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstream.engine.queue_arguments import moment_ms, one_of, span_ms
from kvstream.errors import InvalidArgument, JobUnknown, show
from kvstream.jobs.arguments import pack
from kvstream.jobs.history.events import CANCELLED, DONE, FAILED
from kvstream.jobs.history.log import WorkflowLog
from kvstream.jobs.job import TASK, AnyJobs, Job, Refused, new_id
from kvstream.types.ids import StreamID, Ticket

if TYPE_CHECKING:
    from kvstream.stream import Stream

AFTER, DEPENDENTS = "after", "dependents"
"""Parts of the keys."""
WAIT, RUN, FAIL = IF_FAILED = "wait", "run", "fail"
"""What happens to a job if one that it depends on fails."""
REFUSED = ("unique", "window", "on_conflict")
"""Options that a job with ``depends_on`` does not take."""
WHERE, _WHEN = b"after:queue", ("delay", "at", "ttl")
ENDED = "kvstream.ended"
"""The name of the built-in task that tells the dependents of a job."""
_JOB, _ENTRY, _IF_FAILED = b"job", b"entry", b"if_failed"
LOST = "failed for good"
"""The end of a failed job that nobody can retry: it has no dead letter."""
FINAL = "final"
"""The field of the outcome of such a job."""
_HOW = {
    FAILED: "has failed",
    LOST: "has failed, and cannot be retried",
    CANCELLED: "was cancelled",
    "expired": "has expired",
    "skipped": "was skipped",
}
_ENDED = frozenset({DONE, *_HOW})


def _after(jobs: AnyJobs, job_id: str) -> Stream[bytes]:
    return jobs.store.stream(f"{jobs.name}:{AFTER}:{job_id}")


def dependents_key(name: str, job_id: str) -> bytes:
    """Return the key of the stream that has the jobs which wait for one; most jobs have none.

    ``name`` is that of the Jobs.
    """
    return f"{name}:{DEPENDENTS}:{job_id}".encode("utf-8", "surrogateescape")


class Fate(NamedTuple):
    """The decision about a job that depends on others."""

    status: str
    """DONE: it starts; FAILED or CANCELLED: it ends so."""
    error: str = ""


STARTS = Fate(DONE)


def _fate_of(if_failed: str, job_id: str, status: str | None) -> Fate | None:
    """Decide about a job by the end of one that it depends on; None: it still waits."""
    if status is None:
        return None
    if status == DONE or if_failed == RUN:
        return STARTS
    why = f"the job {job_id}, which it depends on, {_HOW[status]}"
    if if_failed == FAIL:
        return Fate(FAILED, why)
    return None if status == FAILED else Fate(CANCELLED, why)


# --- enqueueing ---------------------------------------------------------------------------------


class Dependencies:
    """The jobs that a new one waits for."""

    def __init__(self, jobs: AnyJobs, depends_on: Any, if_failed: str | None) -> None:
        """Check the jobs; JobUnknown if there is no such job."""
        self._jobs = jobs
        self._if_failed = one_of(if_failed or WAIT, IF_FAILED, "if_failed")
        is_one = isinstance(depends_on, str) or not isinstance(depends_on, Iterable)
        handles = {_id_of(each): each for each in ((depends_on,) if is_one else depends_on)}
        for job_id, handle in handles.items():
            self._check(job_id, handle)
        self.ids = list(handles)
        self._records = jobs.results.records_of(self.ids)
        self._records.read(jobs.store)  # most of them, before the transaction

    def _check(self, job_id: str, handle: Any) -> None:
        task = getattr(handle, "_task", None)
        if task is not None and task.result_ttl <= 0:
            raise InvalidArgument(
                f"depends_on has the job {job_id} of {task.name}, whose outcome is not kept: give "
                "the task a result_ttl"
            )
        where = getattr(handle, "_where", None)
        if where is not None and not isinstance(where, StreamID | Ticket):
            return  # it is put by the open transaction on a server, which cannot be asked
        known = self._jobs.handle(job_id) if isinstance(handle, str) else handle
        if known.status == "unknown":
            raise JobUnknown(
                f"depends_on has the job {job_id}, of which nothing is known: its result is not "
                "kept, or it was not enqueued"
            )

    def register(self, job_id: str, stored: Mapping[bytes, Any]) -> Fate | None:
        """Make a job wait, in the open transaction; return its fate if it need not wait.

        ``stored`` is what ``start`` gets once it is to be put into its queue.
        """
        self._records.read(self._jobs.store)
        fates = {each: self._fate_by(each) for each in self.ids}
        open_ids = [each for each, fate in fates.items() if fate is None]
        ends = [fate for fate in fates.values() if fate is not None and fate.error]
        if ends or not open_ids:
            return ends[0] if ends else STARTS
        first = StreamID(self._jobs.now_ms(), 1)  # another one of its ID has other entries
        after, entry = _after(self._jobs, job_id), first
        after.add(stored, entry)
        for each in open_ids:
            entry = entry.next()
            after.add({_JOB: each}, entry)
            self._jobs.store.stream(dependents_key(self._jobs.name, each)).add(
                {_JOB: job_id, _ENTRY: str(entry), _IF_FAILED: self._if_failed}
            )
        return None

    def _fate_by(self, job_id: str) -> Fate | None:
        return _fate_of(self._if_failed, job_id, _outcome_in(self._records.last[job_id]))


def dependencies_of(jobs: AnyJobs, options: Mapping[str, Any]) -> Dependencies:
    """Return what a job waits for, by its options."""
    for name in REFUSED:
        if options.get(name):
            raise InvalidArgument(f"a job with depends_on has no {name}: leave it out")
    return Dependencies(jobs, options["depends_on"], options.get("if_failed"))


def put_after(
    jobs: AnyJobs, job_id: str, stored: Mapping[bytes, Any], dependencies: Dependencies
) -> None:
    """Make a job wait for others; put or fail it now, if it need not wait."""

    def put() -> None:
        fate = dependencies.register(job_id, stored)
        if fate == STARTS:
            put_stored(jobs, stored)
        elif fate is not None:
            _end_unput(jobs, job_id, stored, fate)

    WorkflowLog(jobs, job_id).commit(put)


def _id_of(job: Any) -> str:
    found = job if isinstance(job, str) else getattr(job, "id", None)
    if not isinstance(found, str) or not found:
        raise InvalidArgument(f"depends_on has handles of jobs, or their IDs, not {show(job)}")
    return found


def outcome_of(jobs: AnyJobs, job_id: str) -> str | None:
    """Return the outcome of a job, which may be LOST; None if it has not ended."""
    return _outcome_in(jobs.results.last(job_id))


def _outcome_in(fields: Mapping[bytes, bytes]) -> str | None:
    status = fields.get(b"status", b"").decode()
    if status == FAILED and FINAL.encode() in fields:
        return LOST
    return status if status in _ENDED else None


def message_of(
    fields: Mapping[bytes, Any], stream: Stream[bytes], options: Mapping[str, Any]
) -> dict[bytes, Any]:
    """Return what is stored of a job until it starts; ``delay`` and ``ttl`` count from there."""
    stored = {**fields, WHERE: stream.key}
    for name in _WHEN:
        value = options.get(name)
        if value is not None:
            ms = moment_ms(value, name) if name == "at" else span_ms(value, name)
            stored[f"after:{name}".encode()] = str(ms)
    return stored


def waits_for(jobs: AnyJobs, job_id: str) -> list[str]:
    """Return the IDs of the jobs that a job waits for."""
    return [entry.fields[_JOB].decode() for entry in _after(jobs, job_id).range()[1:]]


def text_of(number: int) -> str:
    """Return how a wait for jobs is shown."""
    return "1 job" if number == 1 else f"{number} jobs"


# --- the ends of jobs ---------------------------------------------------------------------------


def cancel_waiting(jobs: AnyJobs, job_id: str) -> bool:
    """Cancel a job that waits for others, in the open transaction; False if it does not wait."""
    after = _after(jobs, job_id)
    if not len(after):
        return False
    stored = after.range(count=1)[0].fields
    found = Ends(jobs)
    found.add(job_id, CANCELLED)
    jobs.store.delete(after.key)
    _end_unput(jobs, job_id, stored, Fate(CANCELLED))
    found.write()
    return True


def _end_unput(jobs: AnyJobs, job_id: str, stored: Mapping[bytes, Any], fate: Fate) -> None:
    """End a job that was not put, in the open transaction: it has no dead letter."""
    outcome: dict[str, str | bytes | int] = {"task": stored.get(TASK, b""), **outcome_by(fate)}
    if fate.status == FAILED:
        outcome[FINAL] = 1
    jobs.record(job_id, fate.status.encode(), fields=outcome)
    fields = {
        name: value if isinstance(value, bytes) else str(value).encode()
        for name, value in stored.items()
    }
    with suppress(Refused):
        jobs.note_end(Job.of(fields, job_id), fate.status, fate.error)


def forget_waiting(jobs: AnyJobs, job_id: str) -> None:
    """Delete what is kept of a job that waits for others, in the open transaction."""
    jobs.store.delete(_after(jobs, job_id).key)


def tell_dependents(jobs: AnyJobs, job: Job) -> None:
    """Start the jobs that have waited for one that is done, in the open transaction."""
    tell_of_end(jobs, job.id, DONE)


def tell_of_end(jobs: AnyJobs, job_id: str, status: str) -> None:
    """Start the jobs that have waited for the end of one, in the open transaction.

    On a server it reads before it writes.
    """
    found = Ends(jobs)
    found.add(job_id, status)
    found.write()


def nudge_dependents(jobs: AnyJobs, job: Job) -> None:
    """Put a job whose worker tells the dependents of a job, in a user's transaction on a server.

    What a transaction has read may not change until its end, and the ends of other jobs change what
    a dependent waits for. So the transaction only puts a job that tells.
    """
    if not len(jobs.store.stream(dependents_key(jobs.name, job.id))):
        return
    assert job.message is not None
    now, packed = jobs.now_ms(), pack([[job.id], {}], jobs.format)
    told = Job(new_id(now), ENDED, packed, jobs.format, enqueued_ms=now)
    jobs.store.stream(job.message.key).add(told.fields())


def tells_dependents(jobs: AnyJobs) -> Callable[[str], None]:
    """Return the function of the built-in task that tells the dependents of a job that is done."""

    def ended(job_id: str) -> None:
        WorkflowLog(jobs, job_id).commit(lambda: tell_of_end(jobs, job_id, DONE))

    return ended


class Ends:
    """Ends of jobs, and what follows from them: all is read before anything is written."""

    def __init__(self, jobs: AnyJobs) -> None:
        self._jobs = jobs
        self._left: dict[str, int] = {}
        """How many others a job waits for; 0 if it is to start or to fail."""
        self._gone: dict[str, list[str]] = {}
        """The entries that are to be deleted."""
        self._writes: list[Callable[[], object]] = []

    def add(self, job_id: str, status: str) -> None:
        """Read what follows from the end of a job."""
        ended = deque([(job_id, status)])
        while ended:
            ended.extend(self._read(*ended.popleft()))

    def _read(self, job_id: str, status: str) -> list[tuple[str, str]]:
        """Read what follows from one end; return the jobs that end with it, and how."""
        stream = self._jobs.store.stream(dependents_key(self._jobs.name, job_id))
        if not len(stream):
            return []
        entries, told, ended = stream.range(), [], []
        for entry in entries:
            fate = _fate_of(entry.fields[_IF_FAILED].decode(), job_id, status)
            if fate is None:
                continue
            told.append(entry.id)
            waiting, found = entry.fields[_JOB].decode(), entry.fields[_ENTRY].decode()
            if not self._waits(waiting, found):
                continue
            if fate.error:
                self._left[waiting] = 0
                ended.append((waiting, self._plan_end(waiting, fate)))
                continue
            self._left[waiting] -= 1
            self._gone.setdefault(waiting, []).append(found)
            if not self._left[waiting]:
                self._plan_start(waiting)
        if told and len(told) == len(entries):
            self._writes.append(lambda: self._jobs.store.delete(stream.key))
        elif told:
            self._writes.append(lambda: stream.delete(*told))
        return ended

    def _waits(self, waiting: str, entry: str) -> bool:
        """Return whether a job still waits, and for this entry: its ID may have been used again."""
        after = _after(self._jobs, waiting)
        if waiting not in self._left:
            self._left[waiting] = max(0, len(after) - 1)
        return self._left[waiting] > 0 and after.get(entry) is not None

    def _plan_start(self, waiting: str) -> None:
        stored = _after(self._jobs, waiting).range(count=1)[0].fields
        del self._gone[waiting]
        self._writes.append(lambda: forget_waiting(self._jobs, waiting))
        if WHERE in stored:
            self._writes.append(lambda: put_stored(self._jobs, stored))
            return
        log = WorkflowLog(self._jobs, waiting)
        state = log.state()
        if state is not None and not state.has_ended:
            self._writes.append(lambda: log.wake_now(state))

    def _plan_end(self, waiting: str, fate: Fate) -> str:
        """Plan the end of a job that waits; return its status for those that depend on it."""
        stored = _after(self._jobs, waiting).range(count=1)[0].fields
        self._gone.pop(waiting, None)
        self._writes.append(lambda: forget_waiting(self._jobs, waiting))
        if WHERE in stored:
            self._writes.append(lambda: _end_unput(self._jobs, waiting, stored, fate))
            return LOST if fate.status == FAILED else fate.status
        log = WorkflowLog(self._jobs, waiting)
        state = log.state()
        if state is not None and not state.has_ended:
            outcome = outcome_by(fate)
            self._writes.append(lambda: log.end(state, fate.status, outcome))
        return fate.status

    def write(self) -> None:
        """Write what was read, in the open transaction."""
        for waiting, entries in self._gone.items():
            _after(self._jobs, waiting).delete(*entries)
        for write in self._writes:
            write()


def outcome_by(fate: Fate) -> dict[str, str | bytes]:
    """Return the outcome of a job that ends before it starts."""
    if fate.status == FAILED:
        return {"error": f"JobError: {fate.error}", "traceback": ""}
    return {"error": fate.error} if fate.error else {}


def put_stored(jobs: AnyJobs, stored: Mapping[bytes, bytes]) -> Any:
    """Put the message of a job that waits no more into its queue; return its ID or ticket."""
    fields = {name: value for name, value in stored.items() if not name.startswith(b"after:")}
    when: dict[str, Any] = {
        name: int(stored[f"after:{name}".encode()]) / 1000
        for name in _WHEN
        if f"after:{name}".encode() in stored
    }
    return jobs.store.stream(stored[WHERE]).add(fields, **when)
