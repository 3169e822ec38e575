"""``python -m bench``: run the benchmarks, print the results, and write them into docs/."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench.calls import calls
from bench.commands import COMMAND_NAMES, MIXED_ROWS, command_rows
from bench.copies.archive import ARCHIVE_LIMITS
from bench.copies.replicas import REPLICA_LIMITS
from bench.jobs import run_jobs
from bench.library import LIBRARY_ROWS, run_library
from bench.limits.library import LIBRARY_LIMITS, tasks_beside_redis
from bench.limits.server import SERVER_LIMITS
from bench.limits.spark import SPARK_LIMITS
from bench.machine.neighbour import Neighbour, OneCore, neighbour_bytes
from bench.migrate import MIGRATION_ROWS, run_migration
from bench.nats import run_nats
from bench.open_loop import open_loop
from bench.processes import PeerMissing, peer_version, require_load, require_peer
from bench.queue_cycle import CYCLE_ROWS, READING_ROWS
from bench.report import Report, as_json, print_report, write_docs
from bench.results import Scaling
from bench.rivals import EMBEDDED_LIMITS, run_rivals
from bench.server import SERVER_ROWS, ServerRow, run_server
from bench.spark import SPARK_KEYS, run_spark
from bench.wakeups import PUBLISH_ROWS, publish_latency, wakeups
from bench.workflows import run_workflows
from bench.workload import FULL, LOADED, LOADED_MB, QUICK, Sizes

LOAD_VARIABLE = "KVSTREAM_LOAD"
WIDTH = 220
"""Columns of the tables if the output is not a terminal."""

LIMITS = {
    **LIBRARY_LIMITS,
    **EMBEDDED_LIMITS,
    **SERVER_LIMITS,
    "open-loop": ("XADD at fixed rates", open_loop),
    "wakeups": ("blocked clients", wakeups),
    "publish-latency": ("messages to very many subscribers", publish_latency),
    "async-tasks": ("tasks of an event loop", tasks_beside_redis),
    **SPARK_LIMITS,
    **ARCHIVE_LIMITS,
    **REPLICA_LIMITS,
}
COMMAND_GROUPS: dict[str, Sequence[ServerRow]] = {
    "commands": command_rows(),
    "mixed": MIXED_ROWS,
    "cycle": CYCLE_ROWS,
    "reading": READING_ROWS,
    "publish": PUBLISH_ROWS,
}
"""Groups of rows that run together, beside those of ``serve``."""
ROWS = (
    *(work.key for work in (*LIBRARY_ROWS, *SERVER_ROWS, *MIGRATION_ROWS)),
    *COMMAND_GROUPS,
    "nats",
    "rivals",
    "jobs",
    "workflows",
    *SPARK_KEYS,
    *LIMITS,
)
PARTS: dict[str, tuple[str, ...]] = {
    "library": (
        *(work.key for work in LIBRARY_ROWS),
        *("rivals", "jobs", "workflows", "async-tasks"),
        *LIBRARY_LIMITS,
        *EMBEDDED_LIMITS,
    ),
    "server": (*(row.key for row in SERVER_ROWS), *COMMAND_GROUPS),
    "bounds": (*SERVER_LIMITS, "open-loop", "wakeups", "publish-latency", "nats"),
    "loads": (*(row.key for row in MIGRATION_ROWS), *SPARK_KEYS, *SPARK_LIMITS),
    "archive": tuple(ARCHIVE_LIMITS),
    "replicas": tuple(REPLICA_LIMITS),
}
"""Parts of the rows, each with a place of its own in docs/benchmarks.md."""
QUICK_ROWS = tuple(row for row in ROWS if not row.startswith("spark"))
"""Spark sessions are slow to start: their rows run in a quick run only if named by --only."""


def run_rows(
    report: Report,
    chosen: Sequence[str],
    groups: Mapping[str, Sequence[ServerRow]],
    sizes: Sizes,
    folder: Path,
    console: Console,
    neighbour: Neighbour | None = None,
) -> None:
    """Measure the chosen rows, and add each to the report at once.

    ``groups`` has the rows of commands. Those of the server run beside the neighbour too.
    """

    def log(title: str) -> None:
        console.print(f"[dim]measuring: {title}")

    library = [row for row in LIBRARY_ROWS if row.key in chosen]
    server = [row for row in SERVER_ROWS if row.key in chosen]
    migration = [row for row in MIGRATION_ROWS if row.key in chosen]
    report.library.extend(run_library(library, sizes, folder, log))
    report.server.extend(run_server(server, sizes, folder, log, neighbour))
    several = [row for key, rows in groups.items() if key in chosen for row in rows]
    report.commands.extend(run_server(several, sizes, folder / "commands", log, neighbour))
    for key, (title, measure) in LIMITS.items():
        if key in chosen:
            log(title)
            report.limits.extend(measure(folder, sizes))
    if "nats" in chosen:
        report.nats.extend(run_nats(sizes, folder, log))
    if "rivals" in chosen:
        report.rivals.extend(run_rivals(sizes, folder, log))
    if "jobs" in chosen:
        report.jobs.extend(run_jobs(sizes, folder, log))
    if "workflows" in chosen:
        report.workflows.extend(run_workflows(sizes, folder, log))
    report.migration.extend(run_migration(migration, sizes, folder, log))
    for row in run_spark([key for key in SPARK_KEYS if key in chosen], sizes, folder, log):
        if isinstance(row, Scaling):
            report.scaling.append(row)
        else:
            report.spark.append(row)


@contextmanager
def _neighbour(size: int) -> Iterator[Neighbour | None]:
    """Run a neighbour that streams through ``size`` bytes, if that is more than none."""
    if not size:
        yield None
        return
    try:
        neighbour = Neighbour(size)
    except OneCore as error:
        raise click.ClickException(str(error)) from None
    with closing(neighbour):
        yield neighbour


@click.group(invoke_without_command=True)
@click.option(
    "--only", multiple=True, type=click.Choice(ROWS), help="A row or a group; repeatable."
)
@click.option(
    "--command",
    "commands",
    multiple=True,
    type=click.Choice(COMMAND_NAMES),
    help="A command of the group commands; repeatable.",
)
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(1, 10_000),
    help="Send the commands from this number of clients, one by one; repeatable.",
)
@click.option(
    "--neighbour",
    "beside",
    is_flag=True,
    help="Measure the server's rows also beside a process that streams through memory.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(tuple(PARTS)),
    help="The rows of a part of docs/benchmarks.md; repeatable.",
)
@click.option("--quick", is_flag=True, help="Small sizes, to check that it runs.")
@click.option(
    "--write",
    is_flag=True,
    help="Write the tables of each part, plot and JSON into docs/; with --neighbour.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write JSON to this file."
)
@click.option("--sparked", type=click.IntRange(1000), help="Entries of the Spark rows.")
@click.option(
    "--sparked-mb",
    type=click.IntRange(1),
    help="Megabytes of the store larger than Spark's memory.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="A folder on the disk to measure; default: here.",
)
@click.pass_context
def main(
    context: click.Context,
    only: tuple[str, ...],
    commands: tuple[str, ...],
    clients: tuple[int, ...],
    beside: bool,
    parts: tuple[str, ...],
    quick: bool,
    write: bool,
    json_path: Path | None,
    sparked: int | None,
    sparked_mb: int | None,
    folder: Path | None,
) -> None:
    """Compare kvstream with redis-server, both on this machine in the same run."""
    if context.invoked_subcommand is not None:
        return
    if commands or clients:
        only = (*only, "commands")
    if write and (quick or only):
        raise click.UsageError("--write needs whole parts: name no rows, and no --quick")
    if parts and only:
        raise click.UsageError("give either parts or rows")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        require_peer()
        require_load()
    except PeerMissing as error:
        raise click.ClickException(str(error)) from None
    # In the working directory: /tmp may be in memory, where an fsync costs nothing.
    work = Path(tempfile.mkdtemp(prefix="bench-data-", dir=folder or Path.cwd()))
    sizes = QUICK if quick else FULL
    if LOAD_VARIABLE in os.environ:
        sizes = replace(sizes, sparked_mb=LOADED_MB, loaded=LOADED)
    given = {"sparked": sparked, "sparked_mb": sparked_mb}
    sizes = replace(sizes, **{name: size for name, size in given.items() if size is not None})
    streamed = neighbour_bytes() if beside or write else 0
    groups = {**COMMAND_GROUPS, "commands": command_rows(commands, clients)}
    chosen: dict[str, Sequence[str]] = {"": only or (QUICK_ROWS if quick else ROWS)}
    if parts or write:  # each is written as soon as it is measured
        chosen = {part: PARTS[part] for part in parts or PARTS}
    try:
        with _neighbour(streamed) as neighbour:
            for part, rows in chosen.items():
                report = Report(os.getloadavg()[0], peer_version(), neighbour=streamed)
                try:
                    run_rows(report, rows, groups, sizes, work, console, neighbour)
                finally:
                    print_report(report, console)  # of a failed run too, what was measured
                if json_path is not None:
                    json_path.write_text(as_json(report))
                if write:
                    write_docs(part, report)
    finally:
        shutil.rmtree(work)


main.add_command(calls)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with the run
    main(prog_name="python -m bench")
