"""docs/commands.md says what the table has."""

import re
from pathlib import Path

from kvstream.commands import reference
from kvstream.commands.table import ALL_COMMANDS

ALL = list(reference.rows(ALL_COMMANDS))
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_is_current() -> None:
    stale = "run: python -m kvstream.commands.reference > docs/commands.md"
    assert PAGE.read_text() == reference.render(), stale


def test_every_command_is_written_out_and_nothing_else() -> None:
    assert {command.name for command in ALL} == set(reference.SYNTAX)
    headings = set(re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE))
    assert headings == {command.name.upper().replace("|", " ") for command in ALL}


def test_every_option_is_described_and_nothing_else() -> None:
    used = {option for command in ALL for option in reference.options_of(command)}
    assert used == set(reference.OPTIONS)
    for name, option in reference.MEANINGS:
        command = next(command for command in ALL if command.name == name)
        assert option in reference.options_of(command)


def test_what_must_be_given_is_the_least_number_of_words() -> None:
    for command in ALL:
        syntax = reference.SYNTAX[command.name]
        while "[" in syntax:
            syntax = re.sub(r"\[[^\[\]]*\]", "", syntax)
        words = len(command.name.split("|")) + len(syntax.split())
        assert words >= abs(command.arity), command.name
        assert "[" in reference.SYNTAX[command.name] or words == command.arity, command.name
