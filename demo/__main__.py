"""``python -m demo``: run the job, show each step, and fail unless every sum is equal."""

import shutil
import sys
import time
from pathlib import Path

import click
from rich.columns import Columns
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from demo import archive, lake, mail, workflow
from demo.job import (
    NAMES,
    DemoFailed,
    Run,
    append,
    backlog,
    faults,
    sums_of_the_files,
    sums_of_the_store,
    sums_over_the_wire,
    work,
)
from demo.readings import SOURCES, DataMissing, Key, Sum, data_folder
from demo.worker import BATCH, DOOMED, DOOMED_BATCHES, GROUP, RESULTS

FOLDER = Path("demo-data")
LAKE, PICTURE = "-lake", "-hours.svg"
"""The suffixes of the Parquet folder and of the picture, after the name of the store."""
ROWS_MIN = len(NAMES) * DOOMED_BATCHES * BATCH
"""The rows of each file at least, so that every consumer gets some before one of them dies."""
SUGGESTIONS = {
    "ls": "the streams",
    f"range {RESULTS} --count 3": "the results",
    f"group ls {SOURCES[2].stream}": "the group",
    "queue info emails": "the queue",
    "check": "every row",
    "--help": "all else",
}
"""Commands to try on the demo's store, and what they show."""
SERVING = "serve --port 6390"
CLIENT = f"redis-cli -p 6390 XLEN {RESULTS}"
"""The command that runs until it is stopped, and a client to try meanwhile."""
CONSOLE = "console"
"""It prints the address of the web console, and serves it until it is stopped."""


class Show:
    """Prints numbered steps, each with its results."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.number = 0

    def step(self, title: str) -> None:
        self.number += 1
        self.console.print(f"\n[bold cyan]{self.number}[/] [bold]{title}")

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", highlight=True)


def _fresh(folder: Path) -> None:
    """Remove the store of an earlier demo. Raises DemoFailed if the folder has anything else."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / "CURRENT").exists():
            raise DemoFailed(f"{folder} is not a store: give an empty or new folder")
        shutil.rmtree(folder)


def _work(show: Show, folder: Path, names: tuple[str, ...], total: int, kill: bool) -> Run:
    columns = (TextColumn("  delivered"), BarColumn(), MofNCompleteColumn())
    shown = show.console.is_terminal
    with Progress(*columns, console=show.console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=total)
        kill_at = total if kill else None

        def update(done: int) -> None:
            # The last batch may have more entries than were left to the kill.
            progress.update(task, completed=min(done, total))

        return work(folder, names, kill_at, update)


def _equal(mine: Sum | None, other: Sum | None) -> str:
    return "[green]=[/]" if mine == other else "[bold red]differs[/]"


def _table(title: str, stream: str, store: dict[Key, Sum], files: dict[Key, Sum]) -> Table:
    # Narrow enough for two tables side by side in 80 columns.
    table = Table(
        title=f"\n{title}",
        title_style="bold",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="underline",
    )
    for head in ("period", "count", "mean", "low", "high"):
        table.add_column(head, justify="left" if head == "period" else "right")
    table.add_column("file", justify="center")
    for key in sorted(key for key in store.keys() | files.keys() if key[0] == stream):
        part = store.get(key)
        shown = ["-"] * 4
        if part is not None:
            shown = [
                f"{part.count:,}",
                f"{part.total / part.count:.2f}",
                str(part.low),
                str(part.high),
            ]
        table.add_row(key[1], *shown, _equal(part, files.get(key)))
    return table


def _prove(show: Show, folder: Path, data: Path, rows_max: int | None) -> None:
    store, files = sums_of_the_store(folder), sums_of_the_files(data, rows_max)
    tables = [_table(source.title, source.stream, store, files) for source in SOURCES]
    show.console.print(Columns(tables))
    if store != files:
        raise DemoFailed("the sums of the store differ from those of the files")
    show.say(
        f"[green]equal:[/] all {len(files)} counts, sums, minima and maxima, in exact decimals"
    )
    found = faults(folder)
    if found:
        raise DemoFailed("check: " + "; ".join(found))
    left = backlog(folder)
    if left.pending or left.lag:
        raise DemoFailed(f"{left.pending} entries are still pending, {left.lag} not delivered")
    show.say("[green]check passes:[/] every row was read and recounted, and nothing is pending")


def _prove_served(show: Show, folder: Path, data: Path, rows_max: int | None) -> None:
    measured, results, count = sums_over_the_wire(folder)
    files = sums_of_the_files(data, rows_max)
    if not measured == results == files:
        raise DemoFailed("the sums over the wire differ from those of the files")
    show.say(f"{count:,} entries by XRANGE from kvstream serve")
    show.say("[green]equal:[/] the sums of the entries, those of the consumers, and the files'")


def _prove_in_spark(show: Show, folder: Path, data: Path, rows_max: int | None) -> None:
    parquet = folder.with_name(folder.name + LAKE)
    columns = (SpinnerColumn(), TextColumn("a JVM starts, then Spark works:"), TimeElapsedColumn())
    shown = show.console.is_terminal
    with Progress(*columns, console=show.console, transient=True, disable=not shown) as progress:
        progress.add_task("", total=None)
        lake.run(folder, parquet)
    files = lake.sums_of_the_files(data, rows_max)
    if not lake.sums_of_the_lake(parquet) == lake.sums_of_the_stream(folder) == files:
        raise DemoFailed("the sums of Spark differ from those of the files")
    drawn = folder.with_name(folder.name + PICTURE)
    drawn.write_text(lake.picture(files))
    show.say(f"{len(files):,} hours, in {parquet} as Parquet and in the stream {lake.HOURS!r}")
    show.say("[green]equal:[/] the sums in Parquet, those in the stream, and the files'")
    show.say(f"the mean temperature by hour of the day: {drawn}")
    found = faults(folder)
    if found:
        raise DemoFailed("check: " + "; ".join(found))


def run(show: Show, folder: Path, data: Path, rows_max: int | None, spark: bool) -> None:
    """Run the whole job, or raise DemoFailed."""
    start = time.perf_counter()
    _fresh(folder)
    show.step("Append real measurements, each at its own time")
    rows = append(folder, data, rows_max)
    took = time.perf_counter() - start
    show.say(f"{rows:,} rows of {len(SOURCES)} files, one by one, in {took:.2f} s")

    show.step(f"Process them: group {GROUP!r}, consumers {', '.join(NAMES)}")
    first = _work(show, folder, NAMES, rows // 2, kill=True)
    show.say(f"{DOOMED} died with {first.abandoned} entries pending")
    show.say(
        f"the whole process was [red]killed with -9[/] after {first.delivered.total():,} deliveries"
    )

    left = backlog(folder)
    show.step("Start a new process on the same folder")
    show.say(f"found: {left.pending} entries pending, {left.lag:,} not yet delivered")
    alive = tuple(name for name in NAMES if name != DOOMED)
    second = _work(show, folder, alive, left.pending + left.lag, kill=False)
    show.say(f"{second.delivered['resumed']} read again by the consumers that had them pending")
    claimed = first.delivered["claimed"] + second.delivered["claimed"]
    show.say(f"{claimed} pending entries of {DOOMED} claimed by the others")
    show.say(f"{second.delivered['new']:,} new ones delivered")
    if not claimed:
        raise DemoFailed("nobody claimed the entries of the dead consumer")

    show.step("Prove the results against the files")
    _prove(show, folder, data, rows_max)

    show.step("Serve the same store on a port, and read it back with redis-py")
    _prove_served(show, folder, data, rows_max)

    show.step("A queue: a mail fails, backs off, is given up and redriven")
    mail.run(folder, show.say)

    show.step("A workflow: its worker is killed in the middle, and another one goes on")
    workflow.run(folder, show.say)

    if spark:
        show.step("Sum the streams by hour in Spark, into Parquet and back into a stream")
        _prove_in_spark(show, folder, data, rows_max)

    show.step("Delete the directory, and restore it from its archive")
    archive.run(folder, show.say)
    if sums_of_the_store(folder) != sums_of_the_files(data, rows_max):
        raise DemoFailed("the sums of the restored store differ from those of the files")
    show.say("[green]nothing is lost:[/] the sums of the results are those of the files")
    show.say(f"all in {time.perf_counter() - start:.1f} s")


def suggested(kvstream: Path, folder: Path) -> list[str]:
    """Return the commands to try, in columns of what is typed and what is shown."""
    commands = {CONSOLE: "in a browser", **SUGGESTIONS, SERVING: "for clients"}
    lines = {f"{kvstream} --store {folder} {command}": what for command, what in commands.items()}
    lines[CLIENT] = "one of them"
    width = max(map(len, lines))
    return [f"{line:{width}}  [dim]# {what}[/]" for line, what in lines.items()]


def _next(show: Show, folder: Path) -> None:
    kvstream = Path(sys.executable).with_name("kvstream")
    if kvstream.is_relative_to(Path.cwd()):
        kvstream = kvstream.relative_to(Path.cwd())
    show.step("Try next")
    for line in suggested(kvstream, folder):
        show.console.print(f"  {line}", highlight=False, soft_wrap=True)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True)
@click.option("--rows", type=click.IntRange(ROWS_MIN), help="Read at most this many rows a file.")
@click.option(
    "--spark/--no-spark",
    default=None,
    help="With or without Spark; by default with it if it is installed.",
)
def main(folder: Path, rows: int | None, spark: bool | None) -> None:
    """Run the demo on real data; the exit code is 1 unless all results are equal."""
    show = Show(Console())
    try:
        run(show, folder, data_folder(), rows, lake.is_installed() if spark is None else spark)
    except (DemoFailed, DataMissing) as error:
        show.console.print(f"[bold red]The demo failed:[/] {error}")
        sys.exit(1)
    _next(show, folder)


if __name__ == "__main__":
    main(prog_name="python -m demo")
