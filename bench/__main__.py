"""``python -m bench``: run the comparison, print it, and write it into docs/ when asked to."""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench.claims import CLAIMS
from bench.contests import CONTESTS
from bench.migrating import MOVED, run_moved
from bench.peer import PeerMissing, require_peer
from bench.report import Report, as_json, print_report, write_docs
from bench.results import Scaled
from bench.runner import run_contests
from bench.servers import require_load
from bench.serving import SERVED, run_served
from bench.serving_claims import SERVED_CLAIMS
from bench.sparking import SPARKED_ROWS, run_sparked
from bench.sparking_claims import SPARKED_CLAIMS
from bench.workload import FULL, LOADED, LOADED_MB, QUICK, Sizes

LOAD_VARIABLE = "KVSTREAM_LOAD"
WIDTH = 120
"""Columns of the tables where the output is no terminal."""

ALL_CLAIMS = {**CLAIMS, **SERVED_CLAIMS, **SPARKED_CLAIMS}
ROWS = (*(work.key for work in (*CONTESTS, *SERVED, *MOVED)), *SPARKED_ROWS, *ALL_CLAIMS)
QUICK_ROWS = tuple(row for row in ROWS if not row.startswith("spark"))
"""Sessions of Spark are not quick; their rows run so if they are asked for by name."""


def _run(
    report: Report, chosen: Sequence[str], sizes: Sizes, folder: Path, console: Console
) -> None:
    """Measure the chosen rows; each is in the report as soon as it has been measured."""

    def tell(title: str) -> None:
        console.print(f"[dim]measuring: {title}")

    contests = [work for work in CONTESTS if work.key in chosen]
    served = [work for work in SERVED if work.key in chosen]
    moved = [row for row in MOVED if row.key in chosen]
    sparked = [row for row in SPARKED_ROWS if row in chosen]
    report.contests.extend(run_contests(contests, sizes, folder, tell))
    report.served.extend(run_served(served, sizes, folder, tell))
    for key, (title, claim) in ALL_CLAIMS.items():
        if key in chosen:
            tell(title)
            report.claims.extend(claim(folder, sizes))
    report.moved.extend(run_moved(moved, sizes, folder, tell))
    for row in run_sparked(sparked, sizes, folder, tell):
        if isinstance(row, Scaled):
            report.scaled.append(row)
        else:
            report.sparked.append(row)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="One row; may be repeated.")
@click.option("--quick", is_flag=True, help="Small sizes: does it run, not how fast.")
@click.option("--write", is_flag=True, help="Write table, plot and JSON into docs/.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write JSON there.")
@click.option("--sparked", type=click.IntRange(1000), help="Entries that Spark reads.")
@click.option("--sparked-mb", type=click.IntRange(1), help="Size of what is more than its memory.")
@click.option("--folder", type=click.Path(path_type=Path), help="Disk to measure; default: here.")
def main(
    only: tuple[str, ...],
    quick: bool,
    write: bool,
    json_path: Path | None,
    sparked: int | None,
    sparked_mb: int | None,
    folder: Path | None,
) -> None:
    """Compare kvstream with redis-server, both on this machine, in this run."""
    if write and (quick or only):
        raise click.UsageError("--write puts a whole run into the docs: not with --quick or --only")
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    try:
        require_peer()
        require_load()
    except PeerMissing as error:
        raise click.ClickException(str(error)) from None
    # In the working directory, not in /tmp: that may be memory, where an fsync costs nothing.
    work = Path(tempfile.mkdtemp(prefix="bench-data-", dir=folder or Path.cwd()))
    sizes = QUICK if quick else FULL
    if LOAD_VARIABLE in os.environ:
        sizes = replace(sizes, sparked_mb=LOADED_MB, loaded=LOADED)
    given = {"sparked": sparked, "sparked_mb": sparked_mb}
    sizes = replace(sizes, **{name: size for name, size in given.items() if size is not None})
    report = Report(os.getloadavg()[0])
    try:
        _run(report, only or (QUICK_ROWS if quick else ROWS), sizes, work, console)
    finally:
        shutil.rmtree(work)
        print_report(report, console)  # of a run that failed, or was stopped, what there is
    if json_path is not None:
        json_path.write_text(as_json(report))
    if write:
        write_docs(report)


if __name__ == "__main__":
    main(prog_name="python -m bench")
