"""The methods of a ``Jobs`` that list, count and change many jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Unpack, cast

from kvstream.engine.coerce import at_least_1
from kvstream.engine.queue_arguments import Rate, rate_of
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.listing.changes import (
    CANCELS,
    DELETES,
    RETRIES,
    Act,
    Changed,
    cancel_jobs,
    change,
    delete_jobs,
    refuse_all,
    restrict,
    retry_jobs,
)
from kvstream.jobs.listing.counts import JobCounts, count_jobs
from kvstream.jobs.listing.filters import Criteria, JobFilter, filter_of
from kvstream.jobs.listing.pages import JobPage, read_page

PAGE = 100
"""Jobs of a page, by default."""


class ChangeOptions(Criteria, total=False):
    """Which jobs are changed, and how."""

    dry_run: bool
    most: int | None
    rate: Rate | None


class Listing:
    """The methods by which operators list, count and change the jobs of a ``Jobs``."""

    def find(
        self, *, count: int = PAGE, after: str | None = None, **criteria: Unpack[Criteria]
    ) -> JobPage:
        """Return a page of the jobs that meet all criteria, the newest first.

        ``status`` is one or several of those of a handle, ``task`` and ``key`` are names, ``tag``
        is one of the job's tags. ``since`` and ``until`` bound the time at which it ended, or came
        into its queue: a datetime, a timedelta before now, or text such as ``"now-1h"``.
        ``failed_with``: failed jobs whose error has this text. Delayed jobs come behind all others.

        ``after`` is the cursor of the page before. A page looks at 10,000 entries at most: with
        criteria that no index answers it may have less than ``count`` jobs and a cursor to go on
        with. ::

            page = jobs.find(status="failed", task="mail", since="now-1d")
        """
        return read_page(self._described, self._filter(criteria), at_least_1(count, "count"), after)

    async def afind(
        self, *, count: int = PAGE, after: str | None = None, **criteria: Unpack[Criteria]
    ) -> JobPage:
        """Return a page of jobs as ``find`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.find(count=count, after=after, **criteria))

    def count(self, **criteria: Unpack[Criteria]) -> JobCounts:
        """Count the jobs that meet all criteria, which are those of ``find``.

        Status, time and, of ended jobs, task are counted by lengths and figures that the store
        keeps. Others are counted one by one, as far as one page of ``find`` looks for them:
        ``at_least`` has the statuses of which there may be more. ::

            jobs.count(status="failed").total
        """
        return count_jobs(self._described, self._filter(criteria))

    async def acount(self, **criteria: Unpack[Criteria]) -> JobCounts:
        """Count jobs as ``count`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.count(**criteria))

    # --- changes of many ------------------------------------------------------------------------

    def cancel(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Cancel the jobs that meet all criteria and have not ended; return their IDs.

        At least one criterion of ``find`` is given. ``most`` bounds their number,
        ``rate=(100, 60)`` allows 100 in 60 seconds, ``dry_run`` only returns the IDs. The work is
        done in short commits: if it is interrupted, call it again. ::

            jobs.cancel(task="mail", tag="campaign-7", dry_run=True)
        """
        return self._change("cancel", CANCELS, cancel_jobs, options)

    async def acancel(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Cancel jobs as ``cancel`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.cancel(**options))

    def retry(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Move the failed jobs that meet all criteria back to their queues; return their IDs.

        The options are those of ``cancel``. Each is tried as often as a new job; a workflow goes on
        at the step that failed.
        """
        return self._change("retry", RETRIES, retry_jobs, options)

    async def aretry(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Retry jobs as ``retry`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.retry(**options))

    def delete(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Delete the ended jobs that meet all criteria, with results and notes; return their IDs.

        The options are those of ``cancel``. Of failed jobs the dead letters are deleted.
        """
        return self._change("delete", DELETES, delete_jobs, options)

    async def adelete(self, **options: Unpack[ChangeOptions]) -> Changed:
        """Delete jobs as ``delete`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.delete(**options))

    def changes(self, what: str, **options: Unpack[ChangeOptions]) -> Iterator[Changed]:
        """Yield what ``cancel``, ``retry`` or ``delete`` has done, a page at a time."""
        statuses, act = {
            "cancel": (CANCELS, cancel_jobs),
            "retry": (RETRIES, retry_jobs),
            "delete": (DELETES, delete_jobs),
        }[what]
        return self._changes(what, statuses, act, options)

    def _change(
        self, what: str, statuses: frozenset[str], act: Act, options: ChangeOptions
    ) -> Changed:
        found = Changed([], [])
        for page in self._changes(what, statuses, act, options):
            found.done.extend(page.done)
            found.left.extend(page.left)
        return found

    def _changes(
        self, what: str, statuses: frozenset[str], act: Act, options: ChangeOptions
    ) -> Iterator[Changed]:
        given: dict[str, Any] = dict(options)
        is_dry, rate, most = (given.pop(name, None) for name in ("dry_run", "rate", "most"))
        refuse_all(given, what)
        wanted = restrict(self._filter(cast("Criteria", given)), statuses, what)
        if rate is not None:
            number, ms = rate_of(rate)
            rate = number, ms / 1000
        yield from change(
            self._described,
            wanted,
            None if is_dry else act,
            most=None if most is None else at_least_1(most, "most"),
            rate=rate,
        )

    @property
    def _described(self) -> AnyJobs:
        return cast("AnyJobs", self)

    def _filter(self, criteria: Criteria) -> JobFilter:
        return filter_of(criteria, self._described.store.now_ms)
