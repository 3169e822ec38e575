"""Pages of a list of jobs: a merge of streams, newest first, with a cursor.

The list has three parts: the streams of ``sources`` by the time of their entries, newest first;
delayed jobs, the soonest due first; workflows and jobs that wait, in order of creation. A cursor
names the part and the last entry that was looked at. A page looks at a bounded number of entries,
so one with a filter that no index answers may be short, or empty, and its cursor says where to go
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import merge
from typing import Any, NamedTuple

from kvstream.errors import InvalidArgument, InvalidID, show
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.listing.filters import SCHEDULED, WAITING, JobFilter, JobInfo
from kvstream.jobs.listing.sources import (
    KEYS_OF_ENTRY,
    Source,
    delayed_jobs,
    queue_streams,
    sources_of,
    text_key,
    waiting_jobs,
)
from kvstream.types.ids import MIN_ID, StreamID, Ticket

LOOK_MAX = 10_000
"""Entries that one page looks at: some tens of milliseconds."""
SLICE_MIN, SLICE_MAX = 8, 1000
"""Entries that are read at once from one stream."""
_ENTRIES, _DELAYED, _WAITS = "1", "2", "3"
_READ: dict[str, Callable[[str], object]] = {
    _ENTRIES: StreamID.parse,
    _DELAYED: Ticket.parse,
    _WAITS: int,
}
"""What reads the place in a cursor, by the part of the list."""


class JobPage(NamedTuple):
    """A part of a list of jobs."""

    jobs: list[JobInfo]
    """The jobs, the newest first."""
    after: str | None
    """The cursor of the next page; None: there is none."""
    looked: int
    """Entries that were looked at. The page has less than ``count`` jobs, and a cursor, if it has
    looked at as many as it may, or at ten times as many keys, for jobs that wait."""


class Cursor(NamedTuple):
    """Where a list goes on: behind an entry of a stream, in one part of the list."""

    part: str
    place: str
    key: str

    def __str__(self) -> str:
        return ":".join(self)

    @classmethod
    def of(cls, text: str | None) -> Cursor:
        """Return the cursor in a text; that of the begin if it is None."""
        if text is None:
            return cls(_ENTRIES, "", "")
        parts = str(text).split(":", 2)
        if len(parts) == len(cls._fields):
            found = cls(*parts)
            try:
                _check(found)
            except (InvalidID, ValueError):
                pass
            else:
                return found
        raise InvalidArgument(f"{show(text)} is no cursor: give the one of the page before")


def _check(cursor: Cursor) -> None:
    """Raise ValueError or InvalidID for a cursor of no place."""
    if cursor.part not in _READ:
        raise ValueError(cursor.part)
    if cursor.place:
        _READ[cursor.part](cursor.place)


Step = tuple[Cursor, JobInfo | None, int]
"""A cursor behind an entry, the job in the entry, and a number of keys that were looked at."""


def read_page(jobs: AnyJobs, wanted: JobFilter, count: int, after: str | None) -> JobPage:
    """Return the next page of a list."""
    found: list[JobInfo] = []
    looked, keys, last = 0, 0, None

    def room() -> int:
        return count - len(found)

    for cursor, info, of_keys in _steps(jobs, wanted, count, Cursor.of(after), room):
        if not room() or looked + keys // KEYS_OF_ENTRY >= LOOK_MAX:
            return JobPage(found, str(last), looked)
        looked, keys = looked + (cursor.part != _WAITS), keys + of_keys
        last = cursor
        if info is not None and wanted.admits(info):
            found.append(info)
    return JobPage(found, None, looked)


def _steps(
    jobs: AnyJobs, wanted: JobFilter, count: int, start: Cursor, room: Callable[[], int]
) -> Iterator[Step]:
    """Yield the entries of all parts, from a cursor on."""
    if start.part == _ENTRIES:
        yield from _entries(sources_of(jobs, wanted), wanted, count, start)
        start = Cursor(_DELAYED, "", "")
    if start.part == _DELAYED:
        if SCHEDULED in wanted.statuses:
            yield from _delayed(jobs, wanted, count, start)
        start = Cursor(_WAITS, "0", "")
    if WAITING in wanted.statuses:
        for at, info, of_keys in waiting_jobs(jobs, int(start.place or 0), room):
            is_timely = info is not None and wanted.admits_time(info)
            yield Cursor(_WAITS, str(at), ""), info if is_timely else None, of_keys


# --- entries --------------------------------------------------------------------------------------


def _entries(
    sources: Sequence[Source], wanted: JobFilter, count: int, start: Cursor
) -> Iterator[Step]:
    """Yield the entries of streams, the newest first, and of equal IDs by descending key."""
    size = min(SLICE_MAX, max(SLICE_MIN, 2 * count // max(1, len(sources))))
    parts = [_descending(source, wanted, size, start) for source in sources]
    for place, key, info in merge(*parts, key=lambda step: step[:2], reverse=True):
        yield Cursor(_ENTRIES, str(place), key), info, 0


def _descending(
    source: Source, wanted: JobFilter, size: int, start: Cursor
) -> Iterator[tuple[StreamID, str, JobInfo | None]]:
    """Yield the entries of one stream behind a cursor, in slices that grow."""
    last = wanted.last
    if start.place:
        place = StreamID.parse(start.place)
        is_behind = source.key < start.key
        if place == MIN_ID and not is_behind:
            return
        last = min(last, place if is_behind else place.previous())
    while rows := source.read(last, size):
        for place, info in rows:
            if place < wanted.first:
                return
            yield place, source.key, info
        if len(rows) < size or rows[-1][0] == MIN_ID:
            return
        last, size = rows[-1][0].previous(), min(SLICE_MAX, 2 * size)


def _delayed(jobs: AnyJobs, wanted: JobFilter, count: int, start: Cursor) -> Iterator[Step]:
    """Yield the delayed jobs of all queues, the soonest due first."""
    size = min(SLICE_MAX, max(SLICE_MIN, count))

    def of(stream: Any) -> Iterator[tuple[Ticket, str, JobInfo | None]]:
        key, first = text_key(stream), None
        if start.place:  # the number of a ticket is that of one message of the store
            place = Ticket.parse(start.place)
            first = Ticket(place.at_ms, place.number + 1)
        return ((ticket, key, info) for ticket, info in delayed_jobs(stream, first, size))

    parts = [of(stream) for stream in queue_streams(jobs, wanted.task)]
    for ticket, key, info in merge(*parts, key=lambda step: step[:2]):
        is_timely = info is not None and wanted.admits_time(info)
        yield Cursor(_DELAYED, str(ticket), key), info if is_timely else None, 0


def all_jobs(jobs: AnyJobs, wanted: JobFilter, page: int = SLICE_MAX) -> Iterator[JobInfo]:
    """Yield all jobs of a filter."""
    read = partial(read_page, jobs, wanted, page)
    after: str | None = None
    while True:
        found = read(after)
        yield from found.jobs
        after = found.after
        if after is None:
            return
