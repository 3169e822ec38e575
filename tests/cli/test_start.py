"""The imports of a start of the program, and the summaries that the help has without imports."""

import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from kvstream.cli.app import SECTIONS, main, name_of
from tests.cli.program import ROOT

HEAVY = (
    *("kvstream.engine", "kvstream.operations", "kvstream.storage", "kvstream.server"),
    *("kvstream.migration", "kvstream.spark", "kvstream.remote", "kvstream.shared"),
    *("kvstream.commands", "kvstream.layout", "kvstream.store", "kvstream.queue", "kvstream.jobs"),
    *("rocksdict", "redis", "rich", "pyarrow", "asyncio"),
)
START = """\
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from kvstream.cli import main
main(sys.argv[1:])
"""
HELP_OF_EACH = """\
import sys
from kvstream.cli import main
for line in sys.stdin.read().splitlines():
    known = set(sys.modules)
    assert main([*line.split(), "--help"], standalone_mode=False) == 0
    print(f"@ {line}:", *sys.modules.keys() - known, file=sys.stderr)
"""
"""Prints the help of each command in stdin, and the modules that each one imports."""


def paths_of(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and subcommand."""
    for name, command in group.commands.items():
        yield (*above, name)
        if isinstance(command, click.Group):
            yield from paths_of(command, *above, name)


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


PATHS = list(paths_of(main))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["completion", "-h"], ["ls", "-h"]])
def test_help_imports_neither_engine_nor_server(words: list[str]) -> None:
    command = [sys.executable, "-c", START, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "kvstream" in done.stdout
    modules = done.stderr.split()
    assert "click" in modules
    assert [name for name in modules if name.startswith(HEAVY)] == []


@pytest.fixture(scope="module")
def imported_by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules that the help of each command imports, all in one process, in turn."""
    store = {"KVSTREAM_STORE": str(tmp_path_factory.mktemp("store"))}  # it is not opened
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_EACH],
        input="\n".join(map(" ".join, PATHS)),
        env=os.environ | store,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.removeprefix("@ ").partition(":") for line in done.stderr.splitlines())
    return {path: modules.split() for path, _, modules in lines}


@pytest.mark.parametrize("path", [" ".join(path) for path in PATHS])
def test_no_help_of_a_command_imports_unneeded_modules(
    path: str, imported_by: dict[str, list[str]]
) -> None:
    assert [name for name in imported_by[path] if name.startswith(HEAVY)] == []


GROUPS = [path for path in paths_of(main) if isinstance(command_at(path), click.Group)]


@pytest.mark.parametrize("path", GROUPS, ids=" ".join)
def test_no_summary_of_a_subcommand_is_cut(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output
    listed = shown.partition("Commands:")[2]
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


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
