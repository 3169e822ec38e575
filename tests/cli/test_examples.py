"""Every command has help, with an example that works unchanged."""

import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from kvstream.cli import main
from tests.cli.program import Program, examples_of

PROGRAM = "kvstream"


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each runnable command, with its full name."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from leaves(child, *path, name)
    else:
        yield " ".join(path), command


COMMANDS = dict(leaves(main))
ELSEWHERE = {
    *("serve", "top", "monitor", "shell", "archive", "restore", "migrate", "diff", "spark", "work"),
    *("console", "workers"),
}
EXAMPLES = [
    pytest.param(line, id=line)
    for name, command in COMMANDS.items()
    # See test_serving.py, test_top.py, test_monitor.py, test_shell.py,
    # test_archive.py, tests/migration/test_command_line.py, tests/spark, tests/jobs, tests/console.
    if name.split()[0] not in ELSEWHERE
    for line in examples_of(command)
]


def words_of(line: str) -> list[str]:
    """Return the arguments of kvstream in an example, without the pipes around it."""
    words = shlex.split(line)
    start = words.index(PROGRAM) + 1
    end = next(
        (at for at, word in enumerate(words) if at > start and word in ("|", ">", ">>")), None
    )
    return words[start:end]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_its_own_example(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.get_short_help_str(100).endswith(".")
    lines = examples_of(command)
    assert lines
    assert all(" ".join(words_of(line)).startswith(name) for line in lines)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_fits_80_columns(name: str) -> None:
    help = CliRunner().invoke(main, [*name.split(), "--help"], terminal_width=80).stdout
    assert max(map(len, help.splitlines())) <= 80


def test_every_group_has_an_example() -> None:
    groups = [each for each in main.commands.values() if isinstance(each, click.Group)]
    assert groups
    assert all(examples_of(group) for group in groups)


ON_QUEUES = {"queue", "dead", "delayed", "schedule"}


def run_on_queue(words: list[str], emails: Program) -> None:
    """Run an example about queues; its ticket is that of the delayed message."""
    (delayed,) = emails.json("delayed", "ls", "emails")
    if words[:2] == ["dead", "cancel"]:
        emails("dead", "redrive", "emails", "--all", "--rate", "1/1d", "--no-wait")
    emails(*(delayed["ticket"] if word[:2] == "@4" else word for word in words))


def run_on_jobs(words: list[str], with_jobs: Program, ids: dict[str, str]) -> None:
    """Run an example about jobs; its ID is that of a job of the fitting status."""
    job_id = ids[{"cancel": "queued", "retry": "failed"}.get(words[1], "done")]
    code = int(words[1] == "stack")  # no worker runs the job
    with_jobs(*(job_id if word.startswith("018bcfe5-") else word for word in words), code=code)


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_runs_unchanged(
    line: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = words_of(line)
    if words[0] in ON_QUEUES:
        run_on_queue(words, request.getfixturevalue("emails"))
        return
    if words[0] == "jobs":
        run_on_jobs(words, request.getfixturevalue("with_jobs"), request.getfixturevalue("job_ids"))
        return
    orders: Program = request.getfixturevalue("orders")
    monkeypatch.chdir(tmp_path)
    rows = '{"sku": "x"}\n{"sku": "y"}\n'
    Path("orders.jsonl").write_text(rows)
    Path("temps.csv").write_text("day,degrees\n2023/11/14,7.5\n")
    table = pa.table({"measured_at": [datetime(2023, 11, 14, tzinfo=UTC)], "degrees": [7.5]})
    parquet.write_table(table, "temps.parquet")
    orders(*words, input=rows)


ON_FILES = {"check", "checkpoint", "recover", "replication", "version", "completion"}
"""Commands whose examples use the files of a store, or no store."""


@pytest.mark.parametrize(
    "line", [each for each in EXAMPLES if words_of(str(each.id))[0] not in ON_FILES]
)
@pytest.mark.places("server")
def test_every_example_about_streams_runs_on_a_server(
    line: str,
    place: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert place == "server"
    test_every_example_runs_unchanged(line, request, tmp_path, monkeypatch)


def test_the_sections_of_the_help_name_every_command_once(kvstream: Program) -> None:
    shown = [line.split()[0] for line in kvstream.lines("--help") if line.startswith("  ")]
    assert [command.name for command in main.commands.values()] == list(main.commands)
    assert sorted(set(main.commands)) == sorted(name for name in shown if name in main.commands)
