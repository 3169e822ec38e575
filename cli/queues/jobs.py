"""``jobs`` and ``work``: the jobs of an application, read from its store, and its workers."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from kvstream.cli.console import BESIDE, console_beside
from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Count, Duration, Size, example
from kvstream.cli.queues.job_lists import (
    CHANGE_NAMES,
    STATUSES,
    change_options,
    count_jobs,
    criteria_options,
    list_jobs,
    name_option,
    row_of,
)
from kvstream.cli.session import Session
from kvstream.cli.tables import plain, printable, time_of
from kvstream.errors import RequestError
from kvstream.logs import FORMATS, LEVEL, LEVELS

job_argument = click.argument("job_id", metavar="ID")
jobs_argument = click.argument("job_ids", metavar="[ID...]", nargs=-1)
_ENDED = ("done", "failed", "cancelled", "expired", "skipped")
_DEPENDS_ON_MAX = 20
"""Most jobs that are shown of those that a job waits for: to find the status of each is a read."""


@click.group(epilog=example("kvstream jobs ls --status failed"))
def jobs() -> None:
    """List, count, show, cancel, retry and delete jobs.

    The application need not be there, only its store. `kvstream work` runs jobs.
    """


jobs.add_command(list_jobs)
jobs.add_command(count_jobs)


@jobs.command(epilog=example("kvstream jobs show 018bcfe5-6800-7000-8000-000000000001"))
@job_argument
@name_option
@output_options
def show(session: Session, out: Output, /, job_id: str, name: str) -> None:
    """Show a job: its task, arguments, status, and its result or error.

    Each try is shown, of a workflow its steps, and the jobs that it waits for. The arguments of a
    job that is done or cancelled are not kept. Result and tries are kept for the time that its task
    says, an hour by default.
    """
    from kvstream.jobs.stored import StoredJobs

    with session.reading() as store:
        stored = StoredJobs(store, name)
        handle = stored.handle(job_id)
        listed = stored.find_ended(job_id) if stored.status(handle) == "unknown" else None
        if listed is None:
            handle = stored.existing(job_id)
            info = stored.info(handle)
            facts = stored.facts(handle) if info is None else row_of(info)
            outcome = {"status": handle.status, "result": None, "error": handle.error}
            values = {**facts, **outcome}
        else:
            values = {**row_of(listed), "result": None}
        traceback = handle.traceback or ""
        waited: list[tuple[str, str]] = []
        steps = _steps_of(handle)
        progress, lines, tries = handle.progress, handle.log(), [] if steps else handle.tries
        if progress is not None:
            values["progress"] = f"{progress.fraction:.0%} {progress.text}".rstrip()
        if values["status"] not in _ENDED:
            values["waits_for"] = handle.waits_for  # a queued one waits for a worker of its version
        if values["status"] == "waiting":
            waited = stored.depends_on(job_id, _DEPENDS_ON_MAX)
        if values["status"] == "done" and listed is None:
            values["result"] = handle.result(0)
    if out.for_programs:
        more: dict[str, Any] = {"log": [each.text for each in lines]}
        more["tries"] = [jsonable(each._asdict()) for each in tries]
        if waited:
            more["depends_on"] = [{"id": each, "status": status} for each, status in waited]
        if steps is not None:
            more["steps"] = [jsonable(each._asdict()) for each in steps]
        out.object(**values, traceback=traceback or None, **more)
        return
    _show(out, values)
    for each, status in waited:
        click.echo(f"  depends on {printable(each)}: {status}")
    for tried in tries:
        click.echo(f"  {_try_text(tried)}")
    for said in lines:
        click.echo(f"  {printable(said.text)}")
    for each in steps or ():
        result = each.error or (each.status if each.result is None else jsonable(each.result))
        ended = "" if each.ended is None else time_of(round(each.ended.timestamp() * 1000))
        click.echo(f"  {each.kind} {printable(each.name)}: {plain(str(result))} {ended}".rstrip())
    for line in traceback.splitlines():
        click.echo(f"  {printable(line)}")


def _try_text(tried: Any) -> str:
    """Return a line about one try of a job."""
    parts = [f"try {tried.attempt}: {tried.outcome}"]
    if tried.ended is not None:
        parts.append(time_of(round(tried.ended.timestamp() * 1000)))
    if tried.seconds is not None:
        parts.append(f"{tried.seconds:.3f} s")
    if tried.worker is not None:
        parts.append(f"by {printable(tried.worker)}")
    error = (tried.error or "").partition("\n")[0]
    return " ".join(parts) + (f": {printable(error)}" if error else "")


@jobs.command(epilog=example("kvstream jobs stack 018bcfe5-6800-7000-8000-000000000001"))
@job_argument
@click.option(
    "--timeout",
    type=Duration(),
    default="5s",
    metavar="DURATION",
    help="How long to wait for the answer of its worker.",
)
@name_option
@output_options
def stack(session: Session, out: Output, /, job_id: str, timeout: float, name: str) -> None:
    """Show where a running job is in its code, as its worker says.

    The files, lines and functions of its thread or its asyncio task, the most recent call last; no
    values. If the job holds Python's lock, the parent process of its worker answers, with all
    threads that run jobs if it is not sure.
    """
    from kvstream.jobs.stored import StoredJobs

    with session.writing() as store:
        try:
            found = StoredJobs(store, name).existing(job_id).stack(timeout)
        except TimeoutError as error:
            raise RequestError(str(error)) from None
    if out.for_programs:
        out.object(**found._asdict())
        return
    lines = found.text.splitlines() or ["  it begins or ends just now"]
    click.echo(f"{printable(found.worker)}, {found.kind}")
    for line in lines:
        click.echo(printable(line))


def _steps_of(handle: Any) -> list[Any] | None:
    """Return the steps of a workflow; None for another job."""
    from kvstream.jobs import WorkflowHandle

    return handle.steps() if isinstance(handle, WorkflowHandle) else None


def _show(out: Output, values: Mapping[str, Any]) -> None:
    args, kwargs = values.get("args") or (), values.get("kwargs") or {}
    named = [f"{name}={dumps(jsonable(value), False)}" for name, value in kwargs.items()]
    facts = {
        "id": values["id"],
        "task": values.get("task"),
        "arguments": ", ".join([*(dumps(jsonable(each), False) for each in args), *named]) or None,
        **{name: values.get(name) for name in ("status", "queue")},
        "enqueued": values.get("enqueued_ms"),
        "due": values.get("due_ms"),
        "waits for": values.get("waits_for"),
        **{name: values.get(name) for name in ("progress", "error", "result")},
    }
    shown = {name: value for name, value in facts.items() if value is not None}
    out.record(shown, {"enqueued": time_of, "due": time_of})


@jobs.command(
    epilog=example(
        "kvstream jobs cancel 018bcfe5-6800-7000-8000-000000000001",
        "kvstream jobs cancel --task mail --status scheduled --dry-run",
        "kvstream jobs cancel --tag campaign-7 --rate 100/1s",
    )
)
@jobs_argument
@criteria_options(tuple(each for each in STATUSES if each not in _ENDED), has_error=False)
@change_options
@name_option
@output_options
def cancel(
    session: Session, out: Output, /, job_ids: tuple[str, ...], name: str, **options: Any
) -> None:
    """Cancel jobs that have not ended.

    They are named by their IDs, or are all that meet criteria. A job that runs loses its lease; its
    result is refused. If the command is interrupted, run it again. The exit code is 1 if one that
    was named had ended.
    """
    words = Words("cancel", "cancelled", "would be cancelled", "had ended")
    _change(session, out, name, job_ids, options, words)


@jobs.command(
    epilog=example(
        "kvstream jobs retry 018bcfe5-6800-7000-8000-000000000001",
        "kvstream jobs retry --task mail --failed-with ConnectionError",
    )
)
@jobs_argument
@criteria_options(())
@change_options
@name_option
@output_options
def retry(
    session: Session, out: Output, /, job_ids: tuple[str, ...], name: str, **options: Any
) -> None:
    """Move failed jobs back to their queues.

    They are named by their IDs, or are all that meet criteria. Each is tried as often as a new one;
    a workflow goes on at the step that failed. If the command is interrupted, run it again. The
    exit code is 1 if one that was named has not failed.
    """
    words = Words("retry", "queued again", "would be queued again", "has not failed")
    _change(session, out, name, job_ids, options, words)


@jobs.command(
    epilog=example(
        "kvstream jobs delete --status done --task mail --until now-1d",
        "kvstream jobs delete --status failed --failed-with Timeout --dry-run",
    )
)
@criteria_options(_ENDED)
@change_options
@name_option
@output_options
def delete(session: Session, out: Output, /, name: str, **options: Any) -> None:
    """Delete ended jobs, with their results, notes and dead letters.

    They are all that meet criteria. If the command is interrupted, run it again.
    """
    words = Words("delete", "deleted", "would be deleted", "has not ended")
    _change(session, out, name, (), options, words)


class Words(NamedTuple):
    """A change, and what is said of jobs that it was done to, would be, or was not."""

    change: str
    done: str
    would: str
    otherwise: str


def _change(
    session: Session,
    out: Output,
    name: str,
    job_ids: Sequence[str],
    options: Mapping[str, Any],
    words: Words,
) -> None:
    """Change the jobs that are named, or those that meet criteria; tell of each."""
    from kvstream.jobs.stored import StoredJobs

    dry_run = options["dry_run"]
    criteria = {name: value for name, value in options.items() if name not in CHANGE_NAMES}
    if bool(job_ids) == any(value is not None for value in criteria.values()):
        raise click.UsageError("give the IDs of jobs, or options that select them")
    with session.reading() if dry_run else session.writing() as store:
        stored, done, left = StoredJobs(store, name), list[str](), dict[str, str]()
        if job_ids:
            for each in job_ids:
                handle = stored.existing(each)
                if dry_run or getattr(handle, words.change)():
                    done.append(each)
                else:
                    left[each] = f"{words.otherwise}: it is {stored.status(handle)}"
        else:
            for page in stored.changes(words.change, **options):
                done += page.done
                left |= dict.fromkeys(page.left, words.otherwise)
    verb = words.would if dry_run else words.done
    texts = [f"{each} {verb}" for each in done] + [f"{each} {why}" for each, why in left.items()]
    out.result("\n".join(texts) if texts else "no such jobs", done=done)
    fail_unless(not job_ids or not left)


def _unused_options(ctx: click.Context, target: str) -> tuple[str, ...]:
    """Return the environment variables of global options, which workers do not use.

    UsageError if the command line has a global option: it would have no effect.
    """
    given = [option for option in ctx.command.params if isinstance(option, click.Option)]
    sources = {option: ctx.get_parameter_source(option.name or "") for option in given}
    for option, source in sources.items():
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"work takes no {option.opts[0]}: the place is that of the Jobs in "
                f"{target.partition(':')[0]}, the first argument of Jobs(...)"
            )
    return tuple(
        str(option.envvar)
        for option, source in sources.items()
        if source is ParameterSource.ENVIRONMENT
    )


@click.command(
    short_help="Run the jobs of an application.",
    epilog=example(
        "kvstream work app:jobs",
        "kvstream work app:jobs --processes 4 --concurrency 8",
        "kvstream work app:jobs --queues mail,images --reload",
    ),
)
@click.argument("target", metavar="MODULE:JOBS")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=lambda: min(4, os.cpu_count() or 1),
    show_default="processors, at most 4",
    metavar="N",
    help="Processes that work.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    metavar="N",
    help="Jobs that one process runs at a time.",
)
@click.option(
    "--queues",
    "--pool",
    multiple=True,
    metavar="NAME[,NAME]",
    help="Only jobs of these queues or pools. Repeatable. By default all that are of no pool.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="30s",
    metavar="DURATION",
    help="How long jobs may take to finish after a signal to stop.",
)
@click.option(
    "--max-jobs", type=Count(1), metavar="N", help="Replace a process after N runs of jobs."
)
@click.option(
    "--max-memory",
    type=Size(),
    metavar="SIZE",
    help="Replace a process that has more resident memory after a job (512MB).",
)
@click.option(
    "--app-version", default="", metavar="TEXT", help="What `workers ls` shows as the version."
)
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes.")
@click.option(
    "--loglevel",
    "--log-level",
    type=click.Choice([*LEVELS]),
    default=LEVEL,
    help="What is logged.",
)
@click.option("--log-format", type=click.Choice(FORMATS), default="text", help="Form of the log.")
@click.option(
    "--job-log/--no-job-log",
    "job_log",
    default=True,
    help="Whether a line is logged when a job begins and when it is done. Failures always are.",
)
@click.option("--console-port", type=click.IntRange(0, 65535), metavar="PORT", help=BESIDE)
@click.pass_context
def work(
    ctx: click.Context,
    /,
    target: str,
    processes: int,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    max_jobs: int | None,
    max_memory: int | None,
    app_version: str,
    reload: bool,
    loglevel: str,
    log_format: str,
    job_log: bool,
    console_port: int | None,
) -> None:
    """Run the jobs of the Jobs at MODULE:JOBS, such as app:jobs, until SIGTERM or Ctrl-C.

    The place is that of the Jobs: --store, --url and the other global options are refused, and
    their variables of the environment have no effect. On a directory this process owns the store,
    unless another program of the Jobs does; it needs redis-py. Logs go to stderr. After a signal no
    job is begun, and running jobs may finish within --grace; the others are given back to other
    workers. A second signal gives them back at once.
    """
    unused = _unused_options(ctx.find_root(), target)
    from kvstream.jobs.processes import WorkOptions, queue_list, supervise

    supervise(
        WorkOptions(
            target=target,
            concurrency=concurrency,
            queues=queue_list(queues),
            grace=grace,
            log_format=log_format,
            log_level=loglevel,
            job_log=job_log,
            app_version=app_version,
            max_jobs=max_jobs,
            max_memory=max_memory,
            folder=os.getcwd(),
        ),
        processes,
        reload=reload,
        unused=unused,
        console=console_beside(console_port),
    )
