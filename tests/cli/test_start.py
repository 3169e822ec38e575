"""What a start of the program imports, and the summaries that the help has without imports."""

import subprocess
import sys

import click
import pytest

from kvstream.cli.app import SECTIONS, main, name_of
from tests.cli.program import ROOT

HEAVY = (
    *("kvstream.engine", "kvstream.operations", "kvstream.storage", "kvstream.server"),
    *("kvstream.migration", "kvstream.spark", "kvstream.remote", "rocksdict", "redis", "rich"),
)
START = """\
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from kvstream.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["--version"], ["completion", "-h"]),
        *([name, "--help"] for name in ("ls", "add", "read", "claim", "group", "delayed")),
    ],
)
def test_help_imports_neither_engine_nor_server(words: list[str]) -> None:
    command = [sys.executable, "-c", START, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "kvstream" in done.stdout
    modules = done.stderr.split()
    assert "click" in modules
    assert [name for name in modules if name.startswith(HEAVY)] == []


def test_the_summaries_of_the_help_are_those_of_the_commands() -> None:
    summaries = {
        path: main.commands[name_of(path)].get_short_help_str(60)
        for paths in SECTIONS.values()
        for path in paths
    }
    assert summaries == {path: text for paths in SECTIONS.values() for path, text in paths.items()}
    context = click.Context(main, **main.context_settings)
    shown = " ".join(main.get_help(context).split())
    assert all(" ".join(text.split()) in shown for text in summaries.values())
