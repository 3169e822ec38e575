"""The methods of a ``Jobs`` that list and count jobs."""

from __future__ import annotations

import asyncio
from typing import Unpack, cast

from kvstream.engine.coerce import at_least_1
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.listing.counts import JobCounts, count_jobs
from kvstream.jobs.listing.filters import Criteria, JobFilter, filter_of
from kvstream.jobs.listing.pages import JobPage, read_page

PAGE = 100
"""Jobs of a page, by default."""


class Listing:
    """What a ``Jobs`` tells operators of its jobs."""

    def find(
        self, *, count: int = PAGE, after: str | None = None, **criteria: Unpack[Criteria]
    ) -> JobPage:
        """Return a page of the jobs that meet all criteria, the newest first.

        ``status`` is one or several of those of a handle, ``task`` and ``key`` are names, ``tag``
        is one of the job's tags. ``since`` and ``until`` bound the time at which it ended, or came
        into its queue: a datetime, a timedelta before now, or text such as ``"now-1h"``.
        ``failed_with``: failed jobs whose error has this text. Delayed jobs come behind all others.

        ``after`` is the cursor of the page before. A page looks at 20,000 entries at most: with
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
        keeps. Others are counted one by one, and of each status up to 20,000 entries:
        ``at_least`` has the statuses of which there may be more. ::

            jobs.count(status="failed").total
        """
        return count_jobs(self._described, self._filter(criteria))

    async def acount(self, **criteria: Unpack[Criteria]) -> JobCounts:
        """Count jobs as ``count`` does, without blocking the event loop."""
        return await asyncio.to_thread(lambda: self.count(**criteria))

    @property
    def _described(self) -> AnyJobs:
        return cast("AnyJobs", self)

    def _filter(self, criteria: Criteria) -> JobFilter:
        return filter_of(criteria, self._described.store.now_ms)
