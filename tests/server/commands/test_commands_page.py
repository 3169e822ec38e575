"""docs/commands.md says what the server's table has."""

import re
from pathlib import Path

from kvstream.commands.command import Command
from kvstream.commands.reference import rows
from kvstream.server.commands import reference
from kvstream.server.commands.table import TABLE

ALL = list(rows(tuple(TABLE.values())))
PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_current() -> None:
    stale = "run: python -m kvstream.server.commands.reference > docs/commands.md"
    assert PAGE.read_text() == reference.render(), stale


def test_every_command_is_written_out_and_nothing_else() -> None:
    assert {command.name for command in ALL} == set(reference.WORDS.syntax)
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(command.name.upper().replace("|", " ") for command in ALL)


def test_every_option_is_described_and_nothing_else() -> None:
    used = {option for command in ALL for option in reference.WORDS.options_of(command)}
    assert used == set(reference.WORDS.options)
    for name, option in reference.WORDS.meanings:
        command = next(command for command in ALL if command.name == name)
        assert option in reference.WORDS.options_of(command)


def _least_words(command: Command) -> int:
    syntax = reference.WORDS.syntax[command.name]
    while "[" in syntax:
        syntax = re.sub(r"\[[^\[\]]*\]", "", syntax)
    return len(command.name.split("|")) + len(syntax.split())


def test_what_must_be_given_is_the_least_number_of_words() -> None:
    for command in ALL:
        assert _least_words(command) >= abs(command.arity), command.name
        assert command.arity < 0 or _least_words(command) == command.arity, command.name
