"""Plain commands: they need one lookup by their word, their handler, and a record of the call.

Pipelines run them for clients in no special state (``pipelines.py``), and compiled code runs those
of EXEC and of scripts: without it a MULTI of 10 INCR takes 1.5 times the processor time, and a
script that releases a lock twice. There the Python twin is ``Dispatcher.answer``, which checks all
that can be unusual.
"""

from collections.abc import Iterable
from typing import Any, Final

from kvstream.commands.command import Command, Container, Flag, Table, spellings
from kvstream.commands.reply_pages import READERS
from kvstream.server.compiled import calls

WITHOUT_KEYS: Final = frozenset({"echo", "ping"})
_EXCLUDED = frozenset({"restore"})
"""RESTORE sets the last use of its key."""


def by_words(commands: Iterable[Command]) -> dict[bytes, Command]:
    """Return the plain commands among commands or subcommands, by their words."""
    return {
        word: command
        for command in commands
        if _is_plain(command)
        for word in spellings(command.name.partition("|")[2] or command.name)
    }


def _is_plain(command: Command) -> bool:
    if command.is_admin or command.is_immediate or command.name in _EXCLUDED:
        return False
    return command.keys is not None or command.name in WITHOUT_KEYS or publishes(command)


def publishes(command: Command) -> bool:
    """Return whether a command publishes a message."""
    return command.channels is not None and Flag.MAY_REPLICATE in command.flags


def may_change(command: Command) -> bool:
    """Return whether a script that may only read must not call a command."""
    return command.writes or Flag.MAY_REPLICATE in command.flags


def compiled_calls(dispatcher: Any, commands: Table) -> "calls.PlainCalls | None":
    """Return what runs the plain commands of EXEC and scripts; None without compiled code."""
    if calls is None:
        return None
    rows = [row for row in commands.values() if not isinstance(row, Container)]
    table = {
        word: (row, may_change(row), Flag.NOSCRIPT not in row.flags)
        for word, row in by_words(rows).items()
        if row.channels is None
    }
    return calls.PlainCalls(dispatcher, table, dict(READERS))
