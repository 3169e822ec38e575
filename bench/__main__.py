"""``python -m bench``: run the comparison, print it, and write it into docs/ when asked to."""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from bench.claims import CLAIMS
from bench.contests import CONTESTS
from bench.peer import PeerMissing, require_peer
from bench.report import Report, as_json, print_report, write_docs
from bench.results import Claim
from bench.runner import run_contests
from bench.servers import require_load
from bench.serving import SERVED, run_served
from bench.serving_claims import SERVED_CLAIMS
from bench.workload import FULL, QUICK, Sizes

WIDTH = 120
"""Columns of the tables where the output is no terminal."""

ALL_CLAIMS = {**CLAIMS, **SERVED_CLAIMS}
ROWS = (*(work.key for work in (*CONTESTS, *SERVED)), *ALL_CLAIMS)


def _run(chosen: Sequence[str], sizes: Sizes, folder: Path, console: Console) -> Report:
    load = os.getloadavg()[0]

    def tell(title: str) -> None:
        console.print(f"[dim]measuring: {title}")

    contests = run_contests([work for work in CONTESTS if work.key in chosen], sizes, folder, tell)
    served = run_served([work for work in SERVED if work.key in chosen], sizes, folder, tell)
    claims: list[Claim] = []
    for key, (title, claim) in ALL_CLAIMS.items():
        if key in chosen:
            tell(title)
            claims += claim(folder, sizes)
    return Report(load, contests, claims, served)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="One row; may be repeated.")
@click.option("--quick", is_flag=True, help="Small sizes: does it run, not how fast.")
@click.option("--write", is_flag=True, help="Write table, plot and JSON into docs/.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write JSON there.")
@click.option("--folder", type=click.Path(path_type=Path), help="Disk to measure; default: here.")
def main(
    only: tuple[str, ...], quick: bool, write: bool, json_path: Path | None, folder: Path | None
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
    try:
        report = _run(only or ROWS, QUICK if quick else FULL, work, console)
    finally:
        shutil.rmtree(work)
    print_report(report, console)
    if json_path is not None:
        json_path.write_text(as_json(report))
    if write:
        write_docs(report)


if __name__ == "__main__":
    main(prog_name="python -m bench")
