"""``workers``: the workers of an application, as its store knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, example
from kvstream.cli.queues.job_lists import name_option
from kvstream.cli.session import Session
from kvstream.cli.tables import (
    TIME_WIDTH,
    Column,
    count_column,
    duration,
    name_column,
    plural,
    printable,
    time_of,
    unix_ms,
)
from kvstream.errors import RequestError, nearest

if TYPE_CHECKING:
    from kvstream.jobs import RunningJob, WorkerRecord

DRAIN, STOP = "drain", "stop"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else duration(round(seconds * 1000))


_LS = (
    name_column("worker"),
    Column("state", "state", width=8),
    Column("jobs", "in_work", right=True),
    Column("oldest", "oldest", _seconds, right=True),
    count_column("late"),
    count_column("done"),
    count_column("failed"),
    Column("queues", "queue_names", shrinks=True, spare=True),
    Column("last beat", "beat_ms", time_of, width=TIME_WIDTH, spare=True),
    Column("version", "app_version", spare=True),
    name_column("program"),
)
_JOBS = (
    Column("id", "id", width=36),
    name_column("task"),
    Column("running", "seconds", _seconds, right=True),
    Column("late", "late"),
    Column("lease left", "lease_left", _seconds, right=True),
    name_column("worker"),
    Column("queue", "queue", shrinks=True, spare=True),
)

names_argument = click.argument("names", metavar="[NAME...]", nargs=-1)
version_option = click.option(
    "--app-version", metavar="TEXT", help="All of this version of the application."
)
wait_option = click.option(
    "--wait",
    type=Duration(),
    default="0s",
    metavar="DURATION",
    help="How long to wait until they have ended.",
)


@click.group(epilog=example("kvstream workers ls"))
def workers() -> None:
    """List, drain and stop the workers of an application.

    The application need not be there, only its store.
    """


@workers.command(
    "ls",
    epilog=example(
        "kvstream workers ls", "kvstream workers ls --jobs", "kvstream workers ls --json"
    ),
)
@click.option("--jobs", "with_jobs", is_flag=True, help="List the jobs that they have in work.")
@name_option
@output_options
def list_workers(session: Session, out: Output, /, with_jobs: bool, name: str) -> None:
    """List the workers, and what they do.

    A worker is working, draining, stopping, silent (a job holds Python's lock) or lost: it has
    given no sign of life for 35 seconds. Those that have ended are not listed; lost ones are for a
    day. A job is late once it has run for longer than its timeout, or than an hour if it has none.
    """
    from kvstream.jobs.stored import StoredJobs

    with session.reading() as store:
        found = StoredJobs(store, name).workers()
    if with_jobs:
        rows = [_job_row(job, worker) for worker in found for job in worker.jobs]
        out.table(_JOBS, rows, nothing="no jobs are in work")
    else:
        out.table(_LS, map(_row, found), nothing="no workers")


def _row(worker: WorkerRecord) -> dict[str, Any]:
    late = worker.hanging + sum(job.is_late for job in worker.jobs)
    return {
        "worker": worker.name,
        "state": worker.state,
        "in_work": f"{len(worker.jobs)} of {worker.concurrency}",
        "oldest": worker.jobs[0].seconds if worker.jobs else None,
        "late": late,
        "done": worker.done,
        "failed": worker.failed,
        "hanging": worker.hanging,
        "host": worker.host,
        "pid": worker.pid,
        "program": worker.program or None,
        "application": worker.application,
        "app_version": worker.app_version or None,
        "version": worker.version,
        "queue_names": ", ".join(worker.queues),
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "started_ms": unix_ms(worker.started),
        "beat_ms": unix_ms(worker.beat),
        "jobs": [_job_row(job, worker) for job in worker.jobs],
    }


def _job_row(job: RunningJob, worker: WorkerRecord) -> dict[str, Any]:
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "since_ms": unix_ms(job.since),
        "seconds": job.seconds,
        "timeout": job.timeout,
        "lease_left": job.lease_left,
        "late": job.is_late,
        "worker": worker.name,
    }


@workers.command(
    epilog=example(
        "kvstream workers drain web1-4711 --wait 10m",
        "kvstream workers drain --app-version v7 --wait 2h",
    )
)
@names_argument
@version_option
@wait_option
@name_option
@output_options
def drain(
    session: Session,
    out: Output,
    /,
    names: tuple[str, ...],
    app_version: str | None,
    wait: float,
    name: str,
) -> None:
    """Let workers finish what they run and end; they take nothing more.

    NAME is that of a worker, or of a program: then all its workers are meant, and `kvstream work`
    ends with them. A job may take as long as it needs. With --wait the exit code is 1 if a
    worker has not ended in time.
    """
    _end(session, out, DRAIN, _Wanted(names, app_version), wait, name)


@workers.command(epilog=example("kvstream workers stop web1-4711-9f3ab2c1 --wait 60s"))
@names_argument
@version_option
@wait_option
@name_option
@output_options
def stop(
    session: Session,
    out: Output,
    /,
    names: tuple[str, ...],
    app_version: str | None,
    wait: float,
    name: str,
) -> None:
    """Stop workers as SIGTERM does.

    They take nothing more. Running jobs may finish within the --grace of their workers; the others
    are given back. Otherwise it is as `drain`.
    """
    _end(session, out, STOP, _Wanted(names, app_version), wait, name)


class _Wanted(NamedTuple):
    """The workers that are to end, by their names or those of their programs, or by a version."""

    names: Sequence[str]
    version: str | None


def _end(
    session: Session, out: Output, command: str, asked: _Wanted, wait_s: float, name: str
) -> None:
    from kvstream.jobs.stored import StoredJobs
    from kvstream.jobs.workers.registry import ask, wait_for_end

    with session.writing() as store:
        jobs = StoredJobs(store, name)
        wanted = _selected(jobs.workers(), asked)
        for each in wanted:
            ask(jobs, command, worker=each)
        left = wait_for_end(jobs, wanted, wait_s)
    verb = "asked to drain" if command == DRAIN else "asked to stop"
    texts = [
        f"{printable(each)} {verb if each in left else 'has ended'}" for each in sorted(wanted)
    ]
    out.result("\n".join(texts), asked=sorted(wanted), left=sorted(left))
    fail_unless(not (wait_s and left))


def _selected(found: Sequence[WorkerRecord], asked: _Wanted) -> set[str]:
    """Return the names of the workers that are asked; RequestError for one that is not there."""
    if bool(asked.names) == (asked.version is not None):
        raise click.UsageError("give the names of workers or programs, or --app-version")
    here = [worker for worker in found if worker.state != "lost"]
    wanted = {worker.name for worker in here if worker.app_version == asked.version}
    if asked.version is not None and not wanted:
        raise RequestError(f"there is no worker of version {printable(asked.version)}")
    for name in asked.names:
        own = {worker.name for worker in here if name in (worker.name, worker.program)}
        if not own:
            known = [*(worker.name for worker in here), *(worker.program for worker in here)]
            runs = "runs" if len(here) == 1 else "run"
            hint = nearest(name, known) or f": {plural(len(here), 'worker')} {runs}"
            raise RequestError(f"there is no worker {printable(name)}{hint}")
        wanted |= own
    return wanted
