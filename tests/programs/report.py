"""Run programs beside Redis; write docs/compatibility.json, and from it docs/compatibility.md.

`python -m tests.programs.report` runs all; with names of programs, these alone: the results of the
others stay. `--page`, the name of no program, writes the page anew.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.cli.program import ROOT
from tests.peers import PeerProcess
from tests.programs.catalog import PROGRAMS
from tests.programs.environment import Missing
from tests.programs.outcomes import Outcome, Program, reason_of
from tests.serving import ServerProcess

PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / "docs" / "compatibility.json"
_PEERS = {"redis-7.0": "7.0.15", "redis-8.2": "8.2.3"}
_NAMES_MAX = 3
_STATUSES = ("passed", "failed", "skipped")

_HEAD = """\
# Compatibility

Programs for Redis, and test suites of others, run on kvstream as they are. This page is made by
`python -m tests.programs.report`: it installs each at the version below, and runs it on kvstream
and on redis-server. `make programs` runs the same as tests, which fail if a test fails for a reason
that is not on this page. CI runs the programs marked \\*.

| program | version | from | passed | failed | skipped | on redis-server: passed, failed |
| --- | --- | --- | --- | --- | --- | --- |
"""
_REASONS = """
## What does not work

Tests fail that need a type or a feature that kvstream does not have:

| program | reason | tests | such as |
| --- | --- | --- | --- |
"""
_RUN = """
## What was run

"""


def _on_kvstream(program: Program) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="kvstream-report-") as place:
        server = ServerProcess(Path(place) / "store", "--durability", "no", "--loglevel", "nothing")
        try:
            return program.run(server.port)
        finally:
            server.end()


def _on_redis(program: Program) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="kvstream-report-") as place:
        server = PeerProcess(program.peer, Path(place))
        try:
            return (program.run_on_peer or program.run)(server.port)
        finally:
            server.stop()


def _reasons(program: Program, outcomes: list[Outcome]) -> dict[str, list[str]]:
    """Return the names of failed tests by reason."""
    found: dict[str, list[str]] = {}
    for each in outcomes:
        if each.status == "failed":
            reason = reason_of(each, program.known) or "not known"
            found.setdefault(reason, []).append(each.test.rpartition("::")[2])
    return dict(sorted(found.items()))


def measured(program: Program) -> dict[str, Any]:
    """Run a program on both servers; return the counts and reasons for the page."""
    begun = time.monotonic()
    program.install()
    with ThreadPoolExecutor() as both:
        ours, theirs = both.map(lambda run: run(program), (_on_kvstream, _on_redis))
    counts = [Counter(each.status for each in outcomes) for outcomes in (ours, theirs)]
    print(f"{program.key}: {time.monotonic() - begun:.0f} s", *counts, file=sys.stderr)
    mine, redis = ({status: each[status] for status in _STATUSES} for each in counts)
    return {"kvstream": mine, "redis": redis, "reasons": _reasons(program, ours)}


def page(results: dict[str, Any]) -> str:
    """Return the page of results."""
    table = reasons = runs = ""
    for program in PROGRAMS:
        found = results.get(program.key)
        if found is None:
            continue
        redis = found["redis"]
        cells = (
            program.name + (r" \*" if program.core else ""),
            program.version,
            program.origin,
            *(found["kvstream"][status] for status in _STATUSES),
            f"{_PEERS[program.peer]}: {redis['passed']}, {redis['failed']}",
        )
        table += f"| {' | '.join(map(str, cells))} |\n"
        for reason, tests in found["reasons"].items():
            shown = "; ".join(tests[:_NAMES_MAX]).replace("|", "\\|")
            reasons += f"| {program.name} | {reason} | {len(tests)} | {shown} |\n"
        left_out = f" Left out: {program.left_out}." if program.left_out else ""
        runs += f"- **{program.name}**: {program.ran}.{left_out}\n"
    return _HEAD + table + _REASONS + reasons + _RUN + runs


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def main(names: list[str]) -> None:
    """Run programs, all or those of these names, and write the page."""
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        try:
            result = measured(program)
        except Missing as error:
            print(f"{program.key}: {error}", file=sys.stderr)
            continue
        # Read again: another report may have run meanwhile.
        text = json.dumps({**_kept(), program.key: result}, indent=1, sort_keys=True)
        RESULTS.write_text(text + "\n")
    PAGE.write_text(page(_kept()))


if __name__ == "__main__":
    main(sys.argv[1:])
