"""The applications whose jobs a store has: their names, and how many jobs there are."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from kvstream.console.shared_calls import SharedCall
from kvstream.jobs.listing.filters import ENDED, QUEUED, SCHEDULED, STATUSES, WAITING
from kvstream.jobs.stored import StoredJobs
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.console.listing import Listing
    from kvstream.jobs import JobInfo
    from kvstream.jobs.listing.counts import JobCounts

NAME = "jobs"
"""The name of a Jobs that has been given none."""
ENDED_KEY = b":ended"
"""The end of the name of the stream that each application has for its ended jobs."""
OPEN = frozenset(STATUSES) - frozenset(ENDED)
"""The statuses of jobs that have not ended."""
_NOT_BEGUN = frozenset((SCHEDULED, QUEUED, WAITING))
KEPT_S = 5.0
COUNTS_MAX = 100
"""Applications whose counts are kept: a name comes from the address."""


class Applications:
    """Names and counts, which are kept for five seconds for all viewers."""

    def __init__(self, name: str | None) -> None:
        """``name``: that of the Jobs which the console shows, if it shows one."""
        self.own = name
        self._lock = Lock()
        self._counts: dict[str, tuple[float, JobCounts]] = {}
        self._counting: dict[str, SharedCall[JobCounts]] = {}

    def names(self, view: Any) -> list[str]:
        """Return the names of the applications in the store, by the streams of ended jobs."""
        return names_in(view.listing, self.own) or [NAME]

    def counts(self, jobs: StoredJobs) -> JobCounts:
        """Return the number of jobs of each status."""
        taken, counts = self._counts.get(jobs.name, (0.0, None))
        if counts is not None and monotonic() - taken < KEPT_S:
            return counts
        with self._lock:
            if len(self._counting) >= COUNTS_MAX:
                self._counting.clear()
                self._counts.clear()
            counting = self._counting.setdefault(jobs.name, SharedCall())
        counts = counting.run(jobs.count)
        self._counts[jobs.name] = monotonic(), counts
        return counts

    def forget(self) -> None:
        """Count anew: something was changed."""
        self._counts.clear()


def names_in(listing: Listing, first: str | None = None) -> list[str]:
    """Return the names of the applications in a store; ``first`` is one that is known."""
    found = [] if first is None else [first]
    for key in listing.keys:
        if key.endswith(ENDED_KEY):
            with suppress(UnicodeDecodeError):  # a stream of another program
                found.append(key.removesuffix(ENDED_KEY).decode())
    return list(dict.fromkeys(found))


def stored_of(view: Any) -> StoredJobs:
    """Return the jobs of the application that the address names, by default the first."""
    name = view.asked("name") or view.shown.applications.names(view)[0]
    return StoredJobs(view.store, name)


def tries_of(job: JobInfo) -> int:
    """Return how often a job was begun; ``attempt`` is 1 before the first time, too."""
    return 0 if job.attempt == 1 and job.status in _NOT_BEGUN else job.attempt


__all__ = [
    "ENDED_KEY",
    "NAME",
    "OPEN",
    "STATUSES",
    "Applications",
    "names_in",
    "stored_of",
    "tries_of",
]
