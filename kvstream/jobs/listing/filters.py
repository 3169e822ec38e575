"""Which jobs are asked for: the one filter of lists, counts and changes of many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from kvstream.errors import InvalidArgument, nearest, show
from kvstream.types.ids import MAX_ID, MIN_ID, BoundLike, StreamID, range_end, range_start

SCHEDULED, QUEUED, RUNNING, RETRYING = "scheduled", "queued", "running", "retrying"
WAITING, DONE, FAILED, CANCELLED = "waiting", "done", "failed", "cancelled"
EXPIRED, SKIPPED = "expired", "skipped"
ENDED = (DONE, FAILED, CANCELLED, EXPIRED, SKIPPED)
STATUSES = (SCHEDULED, QUEUED, RUNNING, RETRYING, WAITING, *ENDED)
IN_QUEUE = (QUEUED, RUNNING, RETRYING)


class JobInfo(NamedTuple):
    """A job in a list."""

    id: str
    """Its ID, which ``jobs.handle`` takes."""
    task: str
    """The name of its task."""
    status: str
    """Its status, as that of a handle."""
    at: datetime
    """When it ended, or came into its queue; of others, when it was enqueued."""
    enqueued: datetime | None
    """When it was enqueued, in UTC; None if that is not known any more."""
    due: datetime | None
    """When it is to run, if it is scheduled."""
    queue: str | None
    """The key of the stream that it waits in, runs from or failed in; None if it is in none."""
    key: str | None
    """Jobs of one key run in order; None: it has none."""
    tags: tuple[str, ...]
    """Words by which it is found."""
    attempt: int
    """The number of its last try; 1 before the first one."""
    seconds: float | None
    """How long its last run took, if it has ended."""
    error: str | None
    """Its error, or what it waits for; None: there is none."""
    args: Any
    """Arguments by place, as plain data; None once the job is done or cancelled."""
    kwargs: Any
    """Arguments by name; None once the job is done or cancelled."""
    place: Any
    """Where it is: the ID or ticket of its message, the ID of its dead letter or of its end."""
    stream: str
    """The key of the stream that ``place`` is in."""
    is_workflow: bool = False
    """Whether it is a workflow."""


class Criteria(TypedDict, total=False):
    """What a list is restricted to; a criterion that is None or left out admits all jobs."""

    status: str | Collection[str] | None
    task: str | None
    tag: str | None
    key: str | None
    since: BoundLike | None
    until: BoundLike | None
    failed_with: str | None


class JobFilter(NamedTuple):
    """Criteria that were checked."""

    statuses: frozenset[str]
    task: str | None
    tag: str | None
    key: str | None
    first: StreamID
    last: StreamID
    """The time of ``JobInfo.at``, as IDs of entries."""
    error: str | None

    @property
    def has_details(self) -> bool:
        """Whether a criterion needs more than the indexes have, which is status, task and time."""
        return (self.tag, self.key, self.error) != (None, None, None)

    def may_admit(self, fields: Mapping[bytes, bytes], error: bytes) -> bool:
        """Return whether stored fields may be those of an admitted job.

        It decodes nothing: most entries that a page looks at are of other jobs. ``error`` names the
        field of the error.
        """
        return (
            (self.key is None or fields.get(b"key") == self.key.encode())
            and (self.tag is None or self.tag.encode() in fields.get(b"tags", b""))
            and (self.task is None or fields.get(b"task", self.task.encode()) == self.task.encode())
            and (self.error is None or self.error.encode() in fields.get(error, b""))
        )

    def admits(self, job: JobInfo) -> bool:
        """Return whether a job meets all criteria."""
        return (
            job.status in self.statuses
            and self.task in (None, job.task)
            and (self.tag is None or self.tag in job.tags)
            and self.key in (None, job.key)
            and (self.error is None or self.error in (job.error or ""))
        )

    def admits_time(self, job: JobInfo) -> bool:
        """Return whether the time of a job is in the range of the filter."""
        ms = round(job.at.timestamp() * 1000)
        return self.first.ms <= ms <= self.last.ms


def filter_of(criteria: Criteria, now_ms: Callable[[], int]) -> JobFilter:
    """Return checked criteria; raise InvalidArgument for an unknown status or a wrong time."""
    status, error = criteria.get("status"), criteria.get("failed_with")
    statuses = STATUSES if status is None else (status,) if isinstance(status, str) else status
    for each in statuses:
        if each not in STATUSES:
            near = nearest(str(each), STATUSES) or f": {', '.join(STATUSES)}"
            raise InvalidArgument(f"no such status: {show(each)}{near}")
    since, until = criteria.get("since"), criteria.get("until")
    return JobFilter(
        frozenset(statuses) & {FAILED} if error is not None else frozenset(statuses),
        criteria.get("task"),
        criteria.get("tag"),
        criteria.get("key"),
        MIN_ID if since is None else range_start(since, now_ms),
        MAX_ID if until is None else range_end(until, now_ms),
        error,
    )
