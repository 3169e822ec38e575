"""``work``: run the workers of an application's jobs."""

import os

import click

from kvstream.cli.parameters import Duration, example
from kvstream.logs import FORMATS, LEVEL, LEVELS


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
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes.")
@click.option("--loglevel", type=click.Choice([*LEVELS]), default=LEVEL, help="What is logged.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", help="Form of the log.")
def work(
    target: str,
    processes: int,
    concurrency: int,
    queues: tuple[str, ...],
    grace: float,
    reload: bool,
    loglevel: str,
    log_format: str,
) -> None:
    """Run the jobs of the Jobs at MODULE:JOBS, such as app:jobs, until SIGTERM or Ctrl-C.

    The place is that of the Jobs, not that of --store or --url. On a directory this process owns
    the store, unless another program of the Jobs does; it needs redis-py. Logs go to stderr. After
    a signal no job is begun, and those in work may finish within --grace; the rest is given back to
    other workers. A second signal gives back at once.
    """
    from kvstream.jobs.processes import WorkOptions, queue_list, supervise

    supervise(
        WorkOptions(
            target=target,
            concurrency=concurrency,
            queues=queue_list(queues),
            grace=grace,
            log_format=log_format,
            log_level=loglevel,
            folder=os.getcwd(),
        ),
        processes,
        reload=reload,
    )
