"""COMMAND: what the table knows, for clients and proxies."""

from collections.abc import Callable, Iterator

from kvstream.commands.args import Argv, syntax_error, text
from kvstream.commands.command import Command, Container
from kvstream.commands.replies import Map, Reply, SetReply, Simple
from kvstream.commands.table import find
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.command_docs import (
    GROUPS,
    SYNTAX,
    TIPS,
    Argument,
    arguments_of,
    categories_of,
    every,
    flags_of,
    key_specs,
    key_uses,
    named,
)
from kvstream.server.commands.admin import help_of, server_of
from kvstream.server.runtime.client import Client
from kvstream.types.glob import matcher

Row = Command | Container


def command(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what every command is: arity, flags, keys, categories."""
    return [_described(row) for row in server_of(client).commands.values()]


def command_count(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer how many commands there are."""
    return len(server_of(client).commands)


def command_info(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what the given commands are, or all; a null for one that is not here."""
    if len(argv) == 2:
        return command(txn, client, argv)
    found = (_named(client, word) for word in argv[2:])
    return [None if row is None else _described(row) for row in found]


def _named(client: Client, word: bytes) -> Row | None:
    """Return a command, a container, or the subcommand that ``container|name`` means."""
    name, _, rest = word.lower().partition(b"|")
    row = server_of(client).commands.get(name)
    if rest and isinstance(row, Container):
        return row.subcommands.get(rest)
    return None if rest else row


def _described(row: Row) -> Reply:
    if isinstance(row, Container):
        parts: list[Reply] = [_described(each) for each in row.subcommands.values()]
        if row.alone is None:
            return _row(row.name, -2, [], (0, 0, 0), ["slow"], SetReply([]), parts)
        alone = row.alone
        flags, categories = flags_of(alone), categories_of(alone)
        return _row(row.name, alone.arity, flags, (0, 0, 0), categories, SetReply([]), parts)
    specs = SetReply([_spec(spec) for spec in key_specs(row)])
    return _row(row.name, row.arity, flags_of(row), _places(row), categories_of(row), specs, [])


def _row(
    name: str,
    arity: int,
    flags: list[str],
    places: tuple[int, int, int],
    categories: list[str],
    specs: SetReply,
    subcommands: list[Reply],
) -> Reply:
    told = _set([f"@{category}" for category in categories])
    tips = SetReply([tip.encode() for tip in TIPS.get(name, ())])
    return [name.encode(), arity, _set(flags), *places, told, tips, specs, subcommands]


def _set(words: list[str]) -> SetReply:
    return SetReply([Simple(word) for word in words])


def _places(row: Command) -> tuple[int, int, int]:
    """Return the first and last key and the step between; zeros where they move, or for none."""
    keys = row.keys
    return (0, 0, 0) if keys is None or not keys.first else (keys.first, keys.last, keys.step)


def _spec(value: object) -> Reply:
    """Return a part of a key specification as a reply."""
    if isinstance(value, dict):
        return Map([(key.encode(), _spec(part)) for key, part in value.items()])
    if isinstance(value, list):
        return _set(value)
    return value if isinstance(value, int) else str(value).encode()


# --- for people ---------------------------------------------------------------------------------


def command_docs(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what the given commands do, or all; those that are not here are left out."""
    if len(argv) == 2:
        rows: list[Row | None] = list(server_of(client).commands.values())
    else:
        rows = [_named(client, word) for word in argv[2:]]
    return Map([(row.name.encode(), _documented(row)) for row in rows if row is not None])


def _documented(row: Row) -> Reply:
    group = GROUPS.get(row.name.partition("|")[0], "stream").encode()
    pairs: list[tuple[Reply, Reply]] = [
        (b"summary", _summary(row).encode()),
        (b"since", row.since.encode()),
        (b"group", group),
    ]
    arguments = arguments_of(SYNTAX.get(row.name, ""))
    if arguments:
        pairs.append((b"arguments", [_argument(each) for each in arguments]))
    if isinstance(row, Container):
        parts = [(each.name.encode(), _documented(each)) for each in row.subcommands.values()]
        pairs.append((b"subcommands", Map(parts)))
    return Map(pairs)


def _argument(argument: Argument) -> Reply:
    token, parts = argument.token, argument.parts
    flags = [word for word in ("optional", "multiple") if getattr(argument, word)]
    pairs: list[tuple[Reply, Reply]] = [
        (b"name", argument.name.encode()),
        (b"type", argument.kind.encode()),
        (b"display_text", argument.name.encode()),
        *([(b"key_spec_index", 0)] if argument.kind == "key" else []),
        *([(b"token", token.encode())] if token else []),
        *([(b"flags", _set(flags))] if flags else []),
        *([(b"arguments", [_argument(each) for each in parts])] if parts else []),
    ]
    return Map(pairs)


def _summary(row: Row) -> str:
    if isinstance(row, Container):
        return f"The {row.name.upper()} commands."
    return row.summary


# --- names --------------------------------------------------------------------------------------


def command_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the names of all commands, or of those of a category or a pattern."""
    if len(argv) == 2:
        return [name.encode() for name in _names(client)]
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise syntax_error()
    choose = _CHOICES.get(argv[3].upper())
    if choose is None:
        raise syntax_error()
    return [name.encode() for name in choose(client, argv[4])]


def _of_category(client: Client, word: bytes) -> Iterator[str]:
    return (each.name for each in named(every(server_of(client).commands), text(word.lower())))


def _of_pattern(client: Client, pattern: bytes) -> Iterator[str]:
    test = matcher(pattern, ignore_case=True)
    return (name for name in _names(client) if test(name.encode()))


def _names(client: Client) -> Iterator[str]:
    for row in server_of(client).commands.values():
        yield row.name
        if isinstance(row, Container):
            yield from (each.name for each in row.subcommands.values())


def _of_module(client: Client, word: bytes) -> Iterator[str]:
    return iter(())


_CHOICES: dict[bytes, Callable[[Client, bytes], Iterator[str]]] = {
    b"ACLCAT": _of_category,
    b"MODULE": _of_module,
    b"PATTERN": _of_pattern,
}


# --- keys ---------------------------------------------------------------------------------------


def _request(client: Client, argv: Argv) -> Command:
    """Return the command of a request that is given as arguments."""
    row = _meant(client, argv)
    if row is None:
        raise RequestError("Invalid command specified")
    if isinstance(row, Container) or row.keys is None:
        raise RequestError("The command has no key arguments")
    try:
        return find(argv, server_of(client).commands)
    except InvalidArgument:
        raise RequestError("Invalid number of arguments specified for command") from None


def _meant(client: Client, argv: Argv) -> Row | None:
    """Return what the first words of a request name."""
    row = server_of(client).commands.get(argv[0].lower())
    if not isinstance(row, Container) or len(argv) == 1:
        return row
    return row.subcommands.get(argv[1].lower())


_NO_KEYS = "Invalid arguments specified for command"


def command_getkeys(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the keys that a request names."""
    keys = _request(client, argv[2:]).keys_of(argv[2:])
    if not keys:
        raise RequestError(_NO_KEYS)
    return keys


def command_getkeysandflags(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the keys that a request names, and what it does to them."""
    found = _request(client, argv[2:])
    uses = key_uses(found, argv[2:])
    if not uses:
        raise RequestError(_NO_KEYS)
    return [[use.key, _set(list(use.flags))] for use in uses]


command_help = help_of(
    "COMMAND",
    ("(no subcommand)", "Show what every command is."),
    ("COUNT", "Show how many commands there are."),
    ("DOCS [<command> ...]", "Show what commands do."),
    ("GETKEYS <command> [<arg> ...]", "Show the keys that a request names."),
    ("GETKEYSANDFLAGS <command> [<arg> ...]", "Show what it does to them, too."),
    ("INFO [<command> ...]", "Show what commands are."),
    ("LIST [FILTERBY (MODULE|ACLCAT|PATTERN) <value>]", "Show the names of commands."),
)
