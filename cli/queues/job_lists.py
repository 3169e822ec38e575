"""``jobs ls`` and ``jobs count``: the jobs that meet some criteria, and how many there are.

The options for these criteria are also those of changes of many jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Count, RangeBound, example
from kvstream.cli.queues.policy import Rate
from kvstream.cli.session import Session
from kvstream.cli.tables import (
    TIME_WIDTH,
    Column,
    count_column,
    name_column,
    number,
    plain,
    printable,
    time_of,
)

if TYPE_CHECKING:
    from kvstream.jobs.listing.filters import JobInfo
    from kvstream.jobs.stored import StoredJobs

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = (
    *("scheduled", "queued", "running", "retrying", "waiting"),
    *("done", "failed", "cancelled", "expired", "skipped"),
)
COUNT = 100


def _first_line(error: str | None) -> str:
    return plain(None if error is None else error.partition("\n")[0])


_LS = (
    Column("id", "id", width=36),
    name_column("task"),
    Column("status", "status", width=9),
    Column("error", "error", _first_line, wraps=True, spare=True),
    Column("at", "at_ms", time_of, width=TIME_WIDTH, spare=True),
    Column("queue", "queue", shrinks=True, spare=True),
)
_COUNT = (Column("status", "status", width=9), count_column("jobs"))

name_option = click.option(
    "--name", default="jobs", help="The name of the Jobs, with which its streams begin."
)
_CRITERIA = (
    click.option("--task", help="Only those of this task."),
    click.option("--tag", help="Only those with this tag."),
    click.option("--key", help="Only those with this key."),
    click.option("--since", type=RangeBound(), help="Only those since this time, as now-1h."),
    click.option("--until", type=RangeBound(), help="Only those until this time."),
    click.option("--failed-with", metavar="TEXT", help="Only those whose error has this text."),
)


CHANGE_NAMES = ("dry_run", "rate", "most")
_CHANGE = (
    click.option("--dry-run", is_flag=True, help="Only say which they are."),
    click.option("--rate", type=Rate(), metavar="N/DURATION", help="At most N in this time."),
    click.option("--count", "-n", "most", type=Count(1), metavar="N", help="At most N."),
)


def change_options(command: F) -> F:
    """Add the options of a change of many jobs."""
    for option in reversed(_CHANGE):
        command = option(command)
    return command


def criteria_options(
    statuses: tuple[str, ...] = STATUSES, *, has_error: bool = True
) -> Callable[[F], F]:
    """Add the options that select jobs; they are the criteria of ``Jobs.find``."""

    def add(command: F) -> F:
        for option in reversed(_CRITERIA if has_error else _CRITERIA[:-1]):
            command = option(command)
        if statuses:
            command = click.option(
                *("--status", "--state", "status"),
                type=click.Choice(statuses),
                metavar="STATUS",
                help=f"Only those of this status: {', '.join(statuses)}.",
            )(command)
        return command

    return add


def row_of(info: JobInfo) -> dict[str, Any]:
    """Return a job as a row; times are in milliseconds."""
    args, kwargs = _shown(info.args, info.kwargs)
    return {
        "id": info.id,
        "task": info.task,
        "status": info.status,
        "queue": info.queue,
        "at_ms": _ms(info.at),
        "enqueued_ms": _ms(info.enqueued),
        "due_ms": _ms(info.due),
        "key": info.key,
        "tags": list(info.tags),
        "attempt": info.attempt,
        "seconds": info.seconds,
        "error": info.error,
        "args": args,
        "kwargs": kwargs,
    }


def _shown(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments if they can be shown, else None: any program may have written them."""
    try:
        dumps(jsonable([args, kwargs]))
    except Exception:  # RecursionError
        return None, None
    return args, kwargs


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


@click.command(
    "ls",
    epilog=example(
        "kvstream jobs ls",
        "kvstream jobs ls --status failed --since now-1d --json",
        "kvstream jobs ls --tag import --status done --count 1000",
    ),
)
@name_option
@criteria_options()
@click.option("--count", "-n", type=Count(1), default=COUNT, metavar="N", help="Show at most N.")
@click.option("--after", metavar="CURSOR", help="Go on after this page; the page before names it.")
@output_options
def list_jobs(
    session: Session,
    out: Output,
    /,
    name: str,
    count: int,
    after: str | None,
    **criteria: Any,
) -> None:
    """List jobs, by default all, the newest first.

    A job is scheduled (delayed), queued, running, retrying (it failed and is to be tried again),
    waiting (a workflow, or a job that depends on others; the error is what it waits for), done,
    failed, cancelled, expired or skipped (it was not run). Its time is that of its end, or of its
    way into the queue. Scheduled jobs come after all others, the next one first, then those that
    wait.

    Ended jobs are found by status, task and tag, others in their queues. A page looks at 10,000
    entries at most. If there are more, stderr has the cursor for --after.
    """
    from kvstream.jobs.stored import StoredJobs

    with session.reading() as store:
        stored = StoredJobs(store, name)
        page = stored.find(count=count, after=after, **criteria)
        nothing = "" if page.jobs or page.after or out.for_programs else _none_of(stored, criteria)
    out.table(_LS, map(row_of, page.jobs), nothing=nothing)
    if page.after is not None:
        looked = f"looked at {number(page.looked)} jobs; go on with" if page.looked else "more:"
        click.echo(f"{looked} --after {printable(page.after)}", err=True)


def _none_of(stored: StoredJobs, criteria: Mapping[str, Any]) -> str:
    """Return the message of an empty list: who asks for failed jobs may mean the retrying ones."""
    if criteria["status"] != "failed":
        return "no jobs"
    others = {**criteria, "status": "retrying", "failed_with": None}
    retrying = stored.count(**others).total
    return f"no jobs have failed; retrying: {number(retrying)}" if retrying else "no jobs"


@click.command(
    "count",
    epilog=example("kvstream jobs count", "kvstream jobs count --task mail --since now-1h"),
)
@name_option
@criteria_options()
@output_options
def count_jobs(session: Session, out: Output, /, name: str, **criteria: Any) -> None:
    """Count jobs, by status.

    Numbers of ended jobs are kept by task and status. Where no index answers, jobs are counted one
    by one, up to 10,000 entries of each status; then there may be more, and JSON has at_least.
    """
    from kvstream.jobs.stored import StoredJobs

    with session.reading() as store:
        found = StoredJobs(store, name).count(**criteria)
    if out.for_programs:
        at_least = sorted(found.at_least)
        out.object(total=found.total, by_status=found.by_status, at_least=at_least)
        return
    _show_counts(out, found.by_status)
    for status in sorted(found.at_least):
        click.echo(f"there may be more jobs that are {status}", err=True)


def _show_counts(out: Output, by_status: Mapping[str, int]) -> None:
    rows = [{"status": status, "jobs": count} for status, count in by_status.items()]
    out.table(_COUNT, rows, nothing="no jobs")
