"""The server's table: the commands of the store, and those of connections and operation."""

from collections.abc import Callable
from typing import Any, cast

from kvstream.commands.command import EVERY, NO_KEYS, Command, Container, Flag, Handler, Keys
from kvstream.commands.table import COMMANDS
from kvstream.server.commands import connection, transactions

_LOCAL = frozenset({Flag.FAST, Flag.LOCAL})
_DOOR = frozenset({Flag.FAST, Flag.LOCAL, Flag.NO_AUTH, Flag.IMMEDIATE})
_MULTI = frozenset({Flag.FAST, Flag.LOCAL, Flag.IMMEDIATE})


def _row(
    name: str,
    arity: int,
    flags: frozenset[Flag],
    keys: Keys | None,
    run: Callable[..., Any],
    since: str,
) -> Command:
    """Return a row whose handler takes a Client as its session."""
    return Command(name, arity, flags, keys, cast(Handler, run), since)


SERVER_COMMANDS: tuple[Command | Container, ...] = (
    _row("discard", 1, _MULTI, NO_KEYS, transactions.discard, "2.0.0"),
    _row("exec", 1, frozenset({Flag.IMMEDIATE}), NO_KEYS, transactions.exec_, "1.2.0"),
    _row("hello", -1, _DOOR - {Flag.IMMEDIATE}, NO_KEYS, connection.hello, "6.0.0"),
    _row("multi", 1, _MULTI, NO_KEYS, transactions.multi, "1.2.0"),
    _row("quit", -1, _DOOR, NO_KEYS, connection.quit_, "1.0.0"),
    _row("reset", 1, _DOOR, NO_KEYS, connection.reset, "6.2.0"),
    _row("unwatch", 1, _LOCAL, NO_KEYS, transactions.unwatch, "2.2.0"),
    _row("watch", -2, frozenset({Flag.FAST, Flag.IMMEDIATE}), EVERY, transactions.watch, "2.2.0"),
)

TABLE: dict[bytes, Command | Container] = {
    **COMMANDS,
    **{row.name.encode(): row for row in SERVER_COMMANDS},
}
"""Every command of the server by its name in small letters."""
