"""COMMAND: the records of commands, for clients and proxies."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat

from kvstream.commands.args import Argv, syntax_error, text
from kvstream.commands.command import LOOKUP, Command, Container, Family, Flag, every
from kvstream.commands.replies import Map, Reply, SetReply, Simple
from kvstream.commands.table import find
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.command_docs import (
    Argument,
    KeyUse,
    arguments_of,
    categories_of,
    find_key_places,
    flags_of,
    key_specs,
    key_uses,
    list_category,
)
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import server_of
from kvstream.types.glob import matcher

COMMANDS = Family("server")
COMMANDS.add_help("command", since="5.0.0", categories="connection")
Row = Command | Container


@COMMANDS.command(
    *("command", "", LOOKUP),
    since="2.8.13",
    categories="connection",
    tips="nondeterministic_output_order",
    arity=-1,
)
def command(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the arity, flags, keys and categories of every command."""
    return [_describe(row) for row in server_of(client).commands.values()]


@COMMANDS.command("command|count", "", LOOKUP, since="2.8.13", categories="connection")
def command_count(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the number of commands."""
    return len(server_of(client).commands)


@COMMANDS.command(
    *("command|info", "[command [command ...]]", LOOKUP),
    since="2.8.13",
    categories="connection",
    tips="nondeterministic_output_order",
)
def command_info(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the same of the given commands, or of all; null for an unknown one.

    Key specifications have no notes.
    """
    if len(argv) == 2:
        return command(txn, client, argv)
    commands = (_find(client, word) for word in argv[2:])
    return [None if row is None else _describe(row) for row in commands]


def _find(client: Client, word: bytes) -> Row | None:
    """Return a command, a container, or the subcommand ``container|name``."""
    name, _, rest = word.lower().partition(b"|")
    row = server_of(client).commands.get(name)
    if rest and isinstance(row, Container):
        return row.subcommands.get(rest)
    return None if rest else row


def _describe(row: Row) -> Reply:
    if not isinstance(row, Container):
        return _row_of(row, SetReply([]))  # in RESP3 Redis sends a set if there are none
    parts: list[Reply] = [_describe(each) for each in row.subcommands.values()]
    if row.alone is not None:
        return _row_of(row.alone, parts)
    nothing = SetReply([])
    return [row.name.encode(), -2, nothing, 0, 0, 0, _set(["@slow"]), nothing, nothing, parts]


def _row_of(row: Command, subcommands: Reply) -> Reply:
    flags, categories = _set(flags_of(row)), _set([f"@{each}" for each in categories_of(row)])
    tips = SetReply([tip.encode() for tip in row.tips.split()])
    specs = SetReply([_spec(spec) for spec in key_specs(row)])
    name = row.name.encode()
    return [name, row.arity, flags, *_positions(row), categories, tips, specs, subcommands]


def _set(words: list[str]) -> SetReply:
    return SetReply([Simple(word) for word in words])


def _positions(row: Command) -> tuple[int, int, int]:
    """Return the places of the first and the last key, and the step; zeros if they vary."""
    keys = find_key_places(row)
    return (0, 0, 0) if keys is None or not keys.first else (keys.first, keys.last, keys.step)


def _spec(value: object) -> Reply:
    """Return a part of a key specification as a reply."""
    if isinstance(value, dict):
        return Map([(key.encode(), _spec(part)) for key, part in value.items()])
    if isinstance(value, list):
        return _set(value)
    return value if isinstance(value, int) else str(value).encode()


# --- DOCS ---------------------------------------------------------------------------------------


@COMMANDS.command(
    *("command|docs", "[command [command ...]]", LOOKUP),
    since="7.0.0",
    categories="connection",
    tips="nondeterministic_output_order",
)
def command_docs(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the documentation of the given commands, or of all, without unknown ones.

    The summaries are kvstream's own.
    """
    if len(argv) == 2:
        rows: list[Row | None] = list(server_of(client).commands.values())
    else:
        rows = [_find(client, word) for word in argv[2:]]
    return Map([(row.name.encode(), _document(row)) for row in rows if row is not None])


_DEPRECATED = {
    "slaveof": ("5.0.0", "`REPLICAOF`"),
    "cluster|slaves": ("5.0.0", "`CLUSTER REPLICAS`"),
    "cluster|slots": ("7.0.0", "`CLUSTER SHARDS`"),
    "getset": ("6.2.0", "`SET` with the `!GET` argument"),
    "psetex": ("2.6.12", "`SET` with the `PX` argument"),
    "quit": ("7.2.0", "just closing the connection"),
    "setex": ("2.6.12", "`SET` with the `EX` argument"),
    "setnx": ("2.6.12", "`SET` with the `NX` argument"),
    "substr": ("2.0.0", "`GETRANGE`"),
}
"""Commands that Redis calls deprecated: since which version, and what replaces them."""
_OF_SERVERS = ("replconf",)
"""Commands that servers send to each other."""


def _document(row: Row) -> Reply:
    pairs: list[tuple[Reply, Reply]] = [
        (b"summary", _summary(row).encode()),
        (b"since", row.since.encode()),
        (b"group", row.group.encode()),
    ]
    if row.name in _DEPRECATED:
        since, replacement = _DEPRECATED[row.name]
        pairs.append((b"doc_flags", _set(["deprecated"])))
        pairs.append((b"deprecated_since", since.encode()))
        pairs.append((b"replaced_by", replacement.encode()))
    if row.name in _OF_SERVERS:
        pairs.append((b"doc_flags", _set(["syscmd"])))
    syntax = "" if isinstance(row, Container) else row.syntax
    arguments = arguments_of(syntax, row.name)
    if arguments:
        places = 0 if isinstance(row, Container) else len(key_specs(row))
        keys = chain(range(places), repeat(places - 1)) if places else iter(())
        pairs.append((b"arguments", [_argument(each, keys) for each in arguments]))
    if isinstance(row, Container):
        parts = [(each.name.encode(), _document(each)) for each in row.subcommands.values()]
        pairs.append((b"subcommands", Map(parts)))
    return Map(pairs)


def _argument(argument: Argument, keys: Iterator[int]) -> Reply:
    """Return an argument; ``keys`` yields the key specification of each key."""
    token, parts = argument.token, argument.parts
    possible = ("optional", "multiple", "multiple_token")
    flags = [word for word in possible if getattr(argument, word)]
    place = next(keys, None) if argument.kind == "key" else None
    pairs: list[tuple[Reply, Reply]] = [
        (b"name", argument.name.encode()),
        (b"type", argument.kind.encode()),
        (b"display_text", argument.name.encode()),
        *([(b"key_spec_index", place)] if place is not None else []),
        *([(b"token", token.encode())] if token else []),
        *([(b"flags", _set(flags))] if flags else []),
        *([(b"arguments", [_argument(each, keys) for each in parts])] if parts else []),
    ]
    return Map(pairs)


def _summary(row: Row) -> str:
    if isinstance(row, Container):
        return f"The {row.name.upper()} commands."
    return row.summary


# --- names --------------------------------------------------------------------------------------


@COMMANDS.command(
    *("command|list", "[FILTERBY (MODULE name|ACLCAT category|PATTERN pattern)]", LOOKUP),
    since="7.0.0",
    categories="connection",
    tips="nondeterministic_output_order",
)
def command_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the names of all commands, or of those that pass a filter.

    FILTERBY: The filter.
    MODULE: Commands of a module: none.
    ACLCAT: Commands of an ACL category.
    PATTERN: Commands whose names match a pattern.
    """
    if len(argv) == 2:
        return [name.encode() for name in _names(client)]
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise syntax_error()
    choose = _CHOICES.get(argv[3].upper())
    if choose is None:
        raise syntax_error()
    return [name.encode() for name in choose(client, argv[4])]


def _of_category(client: Client, word: bytes) -> Iterable[str]:
    return (
        each.name for each in list_category(every(server_of(client).commands), text(word.lower()))
    )


def _of_pattern(client: Client, pattern: bytes) -> Iterable[str]:
    test = matcher(pattern, ignore_case=True)
    return (name for name in _names(client) if test(name.encode()))


def _names(client: Client) -> Iterable[str]:
    for row in server_of(client).commands.values():
        yield row.name
        if isinstance(row, Container):
            yield from (each.name for each in row.subcommands.values())


def _of_module(client: Client, word: bytes) -> Iterable[str]:
    return ()


_CHOICES: dict[bytes, Callable[[Client, bytes], Iterable[str]]] = {
    b"ACLCAT": _of_category,
    b"MODULE": _of_module,
    b"PATTERN": _of_pattern,
}


# --- keys ---------------------------------------------------------------------------------------


def _request(client: Client, argv: Argv) -> Command:
    """Return the command of the request in the arguments."""
    row = _find_row(client, argv)
    if row is None:
        raise RequestError("Invalid command specified")
    if isinstance(row, Container) or row.keys is None:
        raise RequestError("The command has no key arguments")
    try:
        return find(argv, server_of(client).commands)
    except InvalidArgument:
        raise RequestError("Invalid number of arguments specified for command") from None


def _find_row(client: Client, argv: Argv) -> Row | None:
    """Return the command or container that a request names."""
    row = server_of(client).commands.get(argv[0].lower())
    if not isinstance(row, Container) or len(argv) == 1:
        return row
    return row.subcommands.get(argv[1].lower())


def _uses(client: Client, argv: Argv) -> list[KeyUse]:
    """Return the keys of the request in the arguments, and what it does to them."""
    request = _request(client, argv)
    uses = key_uses(request, argv)
    if not uses and Flag.NO_MANDATORY_KEYS not in request.flags:
        raise RequestError("Invalid arguments specified for command")
    return uses


@COMMANDS.command(
    *("command|getkeys", "command [arg ...]", LOOKUP),
    since="2.8.13",
    categories="connection",
)
def command_getkeys(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the keys of a request."""
    return [use.key for use in _uses(client, argv[2:])]


@COMMANDS.command(
    *("command|getkeysandflags", "command [arg ...]", LOOKUP),
    since="7.0.0",
    categories="connection",
)
def command_getkeysandflags(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the keys of a request, and what it does to them."""
    return [[use.key, _set(list(use.flags))] for use in _uses(client, argv[2:])]
