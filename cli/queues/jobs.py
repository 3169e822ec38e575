"""``jobs`` and ``work``: the jobs of an application, read from its store, and its workers."""

import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from kvstream.cli.exit_codes import fail_unless
from kvstream.cli.json_values import dumps, jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import Duration, example
from kvstream.cli.queues.job_lists import (
    STATUSES,
    count_jobs,
    list_jobs,
    name_option,
    row_of,
)
from kvstream.cli.session import Session
from kvstream.cli.tables import plain, printable, time_of
from kvstream.logs import FORMATS, LEVEL, LEVELS

job_argument = click.argument("job_id", metavar="ID")
jobs_argument = click.argument("job_ids", metavar="[ID...]", nargs=-1)
task_option = click.option("--task", help="All of this task.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say which they are.")
_ENDED = ("done", "failed", "cancelled")


@click.group(epilog=example("kvstream jobs ls --status failed"))
def jobs() -> None:
    """List, count, show, cancel and retry jobs.

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

    A workflow is shown with its steps. The arguments of a job that is done or cancelled are not
    kept.
    """
    from kvstream.cli.queues.stored_jobs import StoredJobs

    with session.reading() as store:
        stored = StoredJobs(store, name)
        handle = stored.existing(job_id)
        info = stored.info(handle)
        facts = stored.facts(handle) if info is None else row_of(info)
        outcome = {"status": handle.status, "result": None, "error": handle.error}
        values = {**facts, **outcome}
        traceback = handle.traceback or ""
        steps = _steps_of(handle)
        progress, lines = handle.progress, handle.log()
        if progress is not None:
            values["progress"] = f"{progress.fraction:.0%} {progress.text}".rstrip()
        if values["status"] == "done":
            values["result"] = handle.result(0)
    if out.for_programs:
        more: dict[str, Any] = {"log": [each.text for each in lines]}
        if steps is not None:
            more["steps"] = [jsonable(each._asdict()) for each in steps]
        out.object(**values, traceback=traceback or None, **more)
        return
    _show(out, values)
    for said in lines:
        click.echo(f"  {printable(said.text)}")
    for each in steps or ():
        result = each.error or (each.status if each.result is None else jsonable(each.result))
        ended = "" if each.ended is None else time_of(round(each.ended.timestamp() * 1000))
        click.echo(f"  {each.kind} {printable(each.name)}: {plain(str(result))} {ended}".rstrip())
    for line in traceback.splitlines():
        click.echo(f"  {printable(line)}")


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
        **{name: values.get(name) for name in ("progress", "error", "result")},
    }
    shown = {name: value for name, value in facts.items() if value is not None}
    out.record(shown, {"enqueued": time_of, "due": time_of})


@jobs.command(
    epilog=example(
        "kvstream jobs cancel 018bcfe5-6800-7000-8000-000000000001",
        "kvstream jobs cancel --task mail --status scheduled --dry-run",
    )
)
@jobs_argument
@task_option
@click.option(
    "--status",
    type=click.Choice([each for each in STATUSES if each not in _ENDED]),
    help="All of this status.",
)
@dry_run_option
@name_option
@output_options
def cancel(
    session: Session,
    out: Output,
    /,
    job_ids: tuple[str, ...],
    task: str | None,
    status: str | None,
    dry_run: bool,
    name: str,
) -> None:
    """Cancel jobs that have not ended.

    They are named by their IDs, or are all of a task or status. A job that runs loses its lease;
    its result is refused. The exit code is 1 if one that was named had ended.
    """
    from kvstream.cli.queues.stored_jobs import StoredJobs

    is_wanted = {status} if status else set(STATUSES).difference(_ENDED)
    with session.writing() as store:
        stored = StoredJobs(store, name)
        wanted = _selected(stored, job_ids, task, is_wanted, bool(task or status))
        done = wanted if dry_run else [each for each in wanted if stored.existing(each).cancel()]
    verb = "would be cancelled" if dry_run else "cancelled"
    _tell(out, wanted, done, verb, "had ended", by_id=bool(job_ids))


@jobs.command(
    epilog=example(
        "kvstream jobs retry 018bcfe5-6800-7000-8000-000000000001",
        "kvstream jobs retry --task mail --failed-with ConnectionError",
    )
)
@jobs_argument
@task_option
@click.option("--failed-with", metavar="TEXT", help="All whose error has this text.")
@dry_run_option
@name_option
@output_options
def retry(
    session: Session,
    out: Output,
    /,
    job_ids: tuple[str, ...],
    task: str | None,
    failed_with: str | None,
    dry_run: bool,
    name: str,
) -> None:
    """Move failed jobs back to their queues.

    They are named by their IDs, or are all of a task or error. Each is tried as often as a new one;
    a workflow goes on at the step that failed. The exit code is 1 if one that was named has not
    failed.
    """
    from kvstream.cli.queues.stored_jobs import StoredJobs

    with session.writing() as store:
        stored = StoredJobs(store, name)
        is_by_filter = bool(task or failed_with)
        wanted = _selected(stored, job_ids, task, {"failed"}, is_by_filter, failed_with)
        done = wanted if dry_run else [each for each in wanted if stored.existing(each).retry()]
    verb = "would be queued again" if dry_run else "queued again"
    _tell(out, wanted, done, verb, "has not failed", by_id=bool(job_ids))


def _selected(
    stored: Any,
    job_ids: Sequence[str],
    task: str | None,
    statuses: Container[str],
    is_by_filter: bool,
    error: str | None = None,
) -> list[str]:
    """Return the jobs that are named, or those that a filter selects."""
    if bool(job_ids) == is_by_filter:
        raise click.UsageError("give the IDs of jobs, or options that select them")
    if job_ids:
        return list(job_ids)
    wanted = [each for each in STATUSES if each in statuses]
    return [info.id for info in stored.find_all(status=wanted, task=task, failed_with=error)]


def _tell(
    out: Output,
    wanted: Sequence[str],
    done: Sequence[str],
    verb: str,
    otherwise: str,
    *,
    by_id: bool,
) -> None:
    known = set(done)
    texts = [f"{each} {verb if each in known else otherwise}" for each in wanted]
    out.result("\n".join(texts) if texts else "no such jobs", done=list(done))
    fail_unless(not by_id or len(done) == len(wanted))


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
    multiple=True,
    metavar="NAME[,NAME]",
    help="Only jobs of these queues. Repeatable. By default all of the application.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="30s",
    metavar="DURATION",
    help="How long jobs may take to finish after a signal to stop.",
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
@click.pass_context
def work(
    ctx: click.Context,
    /,
    target: str,
    processes: int,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    app_version: str,
    reload: bool,
    loglevel: str,
    log_format: str,
    job_log: bool,
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
            folder=os.getcwd(),
        ),
        processes,
        reload=reload,
        unused=unused,
    )
