"""Changes of many jobs: cancel, retry and delete those that meet criteria.

Jobs are read in pages and changed in short commits, at a rate if one is given. A job that was
changed does not meet the criteria any more (it is not failed, or not there), so a change that was
interrupted goes on where it is called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.jobs.dependents import LOST, Ends
from kvstream.jobs.handle import JobHandle
from kvstream.jobs.history.log import HISTORY, WORKFLOW, WorkflowLog
from kvstream.jobs.job import AnyJobs
from kvstream.jobs.listing.ended import ENDS
from kvstream.jobs.listing.filters import DONE, FAILED, STATUSES, WAITING, JobFilter, JobInfo
from kvstream.jobs.listing.pages import read_page
from kvstream.jobs.notes import NOTES
from kvstream.jobs.retrying import Letter, move_back
from kvstream.types.clock import monotonic

PAGE = 100
"""Jobs that are read at once; those of a page are deleted, or moved back, in one commit."""
SAME_MS_MAX = 10_000
"""Entries of one millisecond that are looked at for one job."""


class Changed(NamedTuple):
    """The jobs that one page of a change was about."""

    done: list[str]
    """The IDs of those that were changed, or would be by a dry run."""
    left: list[str]
    """Those that had changed meanwhile."""


Act = Callable[[AnyJobs, Sequence[JobInfo]], Sequence[bool]]
"""Changes jobs; returns which of them it has changed."""


def change(
    jobs: AnyJobs,
    wanted: JobFilter,
    act: Act | None,
    *,
    most: int | None = None,
    rate: tuple[int, float] | None = None,
) -> Iterator[Changed]:
    """Change the jobs that meet criteria, a page at a time; None only lists them.

    ``most`` bounds their number. ``rate``: at most so many in so many seconds.
    """
    after: str | None = None
    begun, asked = monotonic(), 0
    while most is None or asked < most:
        size = PAGE if most is None else min(PAGE, most - asked)
        size = size if rate is None else max(1, min(size, rate[0]))
        page = read_page(jobs, wanted, size, after)
        if page.jobs:
            _wait(begun, asked, rate)
            done = [True] * len(page.jobs) if act is None else act(jobs, page.jobs)
            asked += len(page.jobs)
            pairs = [*zip(page.jobs, done, strict=True)]
            yield Changed(
                [info.id for info, is_done in pairs if is_done],
                [info.id for info, is_done in pairs if not is_done],
            )
        after = page.after
        if after is None:
            return


def _wait(begun: float, done: int, rate: tuple[int, float] | None) -> None:
    """Wait until the next jobs may be changed."""
    if rate is not None:
        time.sleep(max(0.0, begun + done * rate[1] / rate[0] - monotonic()))


# --- cancel ---------------------------------------------------------------------------------------


def cancel_jobs(jobs: AnyJobs, infos: Sequence[JobInfo]) -> list[bool]:
    """Cancel jobs, each in a commit of its own."""
    return [_handle(jobs, info).cancel() for info in infos]


def _handle(jobs: AnyJobs, info: JobInfo) -> Any:
    is_known = not info.is_workflow and info.status != WAITING
    return JobHandle(jobs, info.id, None, info.place) if is_known else jobs.handle(info.id)


# --- retry ----------------------------------------------------------------------------------------


def retry_jobs(jobs: AnyJobs, infos: Sequence[JobInfo]) -> list[bool]:
    """Move dead letters back, those of a page in one commit for each of their streams."""
    queues = {queue.dead_stream().key: queue for queue in jobs.queues()}
    letters: dict[bytes, list[JobInfo]] = {}
    done: dict[str, bool] = {}
    for info in infos:
        key = info.stream.encode("utf-8", "surrogateescape")
        if key in queues and not info.is_workflow:
            letters.setdefault(key, []).append(info)
        else:
            done[info.id] = bool(jobs.handle(info.id).retry())
    for key, of_stream in letters.items():
        kept = [jobs.store.exists(jobs.results.own_key(info.id)) for info in of_stream]
        moved = move_back(jobs, queues[key], [*map(_letter, of_stream, kept)])
        done |= {info.id: info.place in moved for info in of_stream}
    return [done[info.id] for info in infos]


def _letter(info: JobInfo, is_kept: bool) -> Letter:
    failure: dict[str, str | bytes | int] = {"error": info.error or "", "traceback": ""}
    return Letter(info.place, info.id, failure if is_kept else None)


# --- delete ---------------------------------------------------------------------------------------


def delete_jobs(jobs: AnyJobs, infos: Sequence[JobInfo]) -> list[bool]:
    """Delete ended jobs and all that is kept of them, in one commit.

    What waits for a retry of one that has failed waits for nothing from then on.
    """
    entries = [found for info in infos for found in _entries_of(jobs, info)]

    def delete() -> None:
        ends = Ends(jobs)
        for info in infos:
            if info.status == FAILED and jobs.store.stream(info.stream).get(info.place):
                ends.add(info.id, LOST)
        ends.write()
        for key, place in entries:
            jobs.store.stream(key).delete(place)
        for info in infos:
            jobs.store.delete(*_keys_of(jobs, info))

    WorkflowLog(jobs, "").commit(delete)
    jobs.after_commit()
    return [True] * len(infos)


def _entries_of(jobs: AnyJobs, info: JobInfo) -> list[tuple[str | bytes, Any]]:
    """Return the entries of an ended job; one commit has added them, so at one time."""
    found: list[tuple[str | bytes, Any]] = [(info.stream, info.place)]
    listed = [jobs.ended.key(info.status, info.task), *map(jobs.ended.tag_key, info.tags)]
    wanted, ms = info.id.encode(), info.place.ms
    for key in listed:
        if key != info.stream:
            entries = jobs.store.stream(key).range(ms, ms, SAME_MS_MAX)
            found += [(key, entry.id) for entry in entries if entry.fields.get(b"id") == wanted]
    return [*found, *(jobs.results.place(info.id, ms, SAME_MS_MAX) if info.status == DONE else ())]


def _keys_of(jobs: AnyJobs, info: JobInfo) -> list[str | bytes]:
    parts = (NOTES, HISTORY, WORKFLOW) if info.is_workflow else (NOTES,)
    return [jobs.results.own_key(info.id), *(f"{jobs.name}:{part}:{info.id}" for part in parts)]


# --- which may be changed -------------------------------------------------------------------------

_NOT_ENDED = frozenset(STATUSES).difference(ENDS)
CANCELS, RETRIES, DELETES = _NOT_ENDED, frozenset({FAILED}), frozenset(ENDS)
"""The statuses that a change is for; others are left out, or refused if they are asked for."""


def restrict(wanted: JobFilter, statuses: frozenset[str], what: str) -> JobFilter:
    """Return the filter of a change; InvalidArgument if it asks for nothing that can be changed."""
    found = wanted.statuses & statuses
    if not found and wanted.statuses:
        given = ", ".join(sorted(wanted.statuses))
        admitted = " or ".join(each for each in STATUSES if each in statuses)
        raise InvalidArgument(f"{what} is for jobs that are {admitted}, not {given}")
    return wanted._replace(statuses=found)


def refuse_all(criteria: Any, what: str) -> None:
    """Raise InvalidArgument for a change without criteria."""
    if not any(value is not None for value in criteria.values()):
        raise InvalidArgument(f"{what} needs criteria, such as task= or status=")
