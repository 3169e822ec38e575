"""docs/commands.md matches the records of the commands."""

import re
from pathlib import Path

from kvstream.commands.command import every
from kvstream.server.commands import TABLE, reference

ALL = every(TABLE)
PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_current() -> None:
    stale = "run: python -m kvstream.server.commands.reference > docs/commands.md"
    assert PAGE.read_text() == reference.render(), stale


def test_every_command_occurs_once() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(command.name.upper().replace("|", " ") for command in ALL)


def test_every_option_is_described_and_nothing_else() -> None:
    used = {name for command in ALL for name in reference.options_of(command)}
    assert set(reference.OPTIONS) <= used
    for command in ALL:
        assert set(reference.own_options(command)) <= set(reference.options_of(command)), command


def test_only_few_commands_have_an_arity_beside_their_syntax() -> None:
    given = {"command": -1, "quit": -1, "client|kill": -3, "hotkeys|start": -2}
    assert {name: command.arity for command in ALL if (name := command.name) in given} == given
