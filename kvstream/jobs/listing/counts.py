"""How many jobs there are, from the lengths of streams and the figures of groups.

The numbers of ended jobs are the lengths of their streams, or of ranges of them, those of others
the figures of their queues. What these do not tell is counted in slices, up to a bound.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from kvstream.errors import NoSuchKey
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.listing.filters import (
    ENDED,
    FAILED,
    IN_QUEUE,
    QUEUED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    STATUSES,
    JobFilter,
)
from kvstream.jobs.listing.pages import read_page
from kvstream.jobs.listing.sources import dead_streams, queue_streams
from kvstream.operations.queues.info import queue_info
from kvstream.stream import Stream
from kvstream.types.ids import MAX_ID, MIN_ID

COUNTED_MAX = 10_000
"""Jobs of one status that are counted one by one."""
_TOGETHER = frozenset({QUEUED, RETRYING})
"""Statuses that are counted in one walk, since the same entries have them."""


class JobCounts(NamedTuple):
    """A number of jobs."""

    total: int
    """The number of jobs of all statuses."""
    by_status: dict[str, int]
    """Only those that are not 0."""
    at_least: frozenset[str]
    """Statuses of which there may be more: no index answers, and a bound was reached."""


def count_jobs(jobs: AnyJobs, wanted: JobFilter) -> JobCounts:
    """Count the jobs of a filter."""
    found: Counter[str] = Counter()
    at_least: set[str] = set()
    numbers = {each: _from_index(jobs, each, wanted) for each in wanted.statuses}
    found.update({status: number for status, number in numbers.items() if number})
    unknown = frozenset(status for status, number in numbers.items() if number is None)
    for statuses in (unknown & _TOGETHER, *({each} for each in unknown - _TOGETHER)):
        if statuses:
            page = read_page(jobs, wanted._replace(statuses=frozenset(statuses)), COUNTED_MAX, None)
            found.update(info.status for info in page.jobs)
            at_least |= statuses if page.after is not None else set()
    by_status = {status: found[status] for status in STATUSES if found[status]}
    return JobCounts(found.total(), by_status, frozenset(at_least))


def _from_index(jobs: AnyJobs, status: str, wanted: JobFilter) -> int | None:
    """Return the number of jobs of one status; None if lengths and figures do not tell."""
    if wanted.has_details:
        return None
    if status in ENDED and (status != FAILED or wanted.task is None):
        keys = [jobs.ended.key(*each) for each in jobs.ended.streams([status], wanted.task)]
        streams = [jobs.store.stream(key) for key in keys]
        streams += dead_streams(jobs) if status == FAILED else []
        return sum(_length(stream, wanted) for stream in streams)
    if status in ENDED or wanted.task is not None or not _is_of_all_times(wanted):
        return None
    if status == SCHEDULED:
        return sum(stream.delayed_count() for stream in queue_streams(jobs, None))
    return _in_queues(jobs)[status] if status in IN_QUEUE else None


def _is_of_all_times(wanted: JobFilter) -> bool:
    return (wanted.first, wanted.last) == (MIN_ID, MAX_ID)


def _length(stream: Stream, wanted: JobFilter) -> int:
    with suppress(NoSuchKey):
        return len(stream) if _is_of_all_times(wanted) else stream.count(wanted.first, wanted.last)
    return 0


def _in_queues(jobs: AnyJobs) -> dict[str, int]:
    """Return the figures of all queues. A lease that has ended counts as queued.

    ``Queue.info`` would also count the dead letters, which it reads if queues share them.
    """
    found = dict.fromkeys(IN_QUEUE, 0)
    for stream in queue_streams(jobs, None):
        try:
            figures = jobs.store.run(queue_info, stream.key)
        except NoSuchKey:
            continue
        group = next((each for each in figures.groups if each.name == jobs.group.encode()), None)
        if group is None:  # no worker has been there
            found[QUEUED] += figures.length
            continue
        ready = group.ready
        found[QUEUED] += stream.group(jobs.group).backlog() if ready is None else ready
        found[QUEUED] += group.held
        found[RUNNING] += group.leased
        found[RETRYING] += group.waiting
    return found
