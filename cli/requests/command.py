"""``cmd``: one command of Redis, on a server or, in this process, on a directory.

A directory is served by the command table of ``kvstream serve`` without a socket, so a command
means the same in both places.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.json_values import jsonable
from kvstream.cli.output import Output, output_options
from kvstream.cli.parameters import example
from kvstream.cli.session import DirectorySession, ServerSession, Session
from kvstream.cli.tables import printable
from kvstream.errors import (
    ClientMissing,
    IDTooSmall,
    InvalidArgument,
    KVStreamError,
    RequestError,
    install_command,
    naming_stream,
)

if TYPE_CHECKING:
    from kvstream.remote.connection import Connection
    from kvstream.store import Store


@click.command(
    epilog=example(
        "kvstream cmd XAUTOCLAIM orders billing worker-2 60000 0",
        "kvstream cmd --json XINFO STREAM orders",
    ),
    context_settings={"allow_interspersed_args": False},
)
@click.argument("words", metavar="COMMAND [ARGUMENT]...", nargs=-1, required=True)
@output_options
def cmd(session: Session, out: Output, /, words: tuple[str, ...]) -> None:
    """Run one command of Redis, also on a directory.

    The reply is shown as by redis-cli, and with --json as {"reply": ...}. Options go before
    COMMAND, since all words after it belong to it. A directory needs no server: the command runs in
    this process, with redis-py (the extra "server"). One reply is shown and the connection ends, so
    MONITOR, SUBSCRIBE, MULTI and the like are refused. The exit code is 1 for an error reply.
    """
    argv = [os.fsencode(word) for word in words]
    _refuse_more_than_a_reply(words)
    try:
        if isinstance(session, ServerSession):
            reply = _ask_server(session.connection(), argv)
        else:
            reply = _ask_store(session, argv)
    except IDTooSmall as error:
        raise _naming_the_stream(error, session, argv) from None
    if out.for_programs:
        out.object(reply=jsonable(reply))
    else:
        for line in reply_lines(reply):
            click.echo(line)


_CLIENT = "use a client, such as redis-cli, on a server (kvstream serve)"
_CONNECTION = "its effect would end with the connection"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"),
        f"messages come after the reply: {_CLIENT}; kvstream monitor shows the requests of clients",
    ),
    "MONITOR": "its lines come after the reply: use kvstream monitor, for a server with --url",
    **dict.fromkeys(
        ("MULTI", "WATCH", "UNWATCH"),
        f"{_CONNECTION}: {_CLIENT}, or transaction() of the library",
    ),
    **dict.fromkeys(
        ("RESET", "QUIT", "CLIENT REPLY", "KVSTREAM.ERRORS", "READONLY", "READWRITE"),
        f"{_CONNECTION}: {_CLIENT}",
    ),
    "HELLO": f"{_CONNECTION}: cmd INFO server describes a server; for its protocol {_CLIENT}",
    "SELECT": f"{_CONNECTION}: give --db N",
}
"""Commands that need more than one reply or act on their connection alone, with advice."""


def _refuse_more_than_a_reply(words: Sequence[str]) -> None:
    """Raise UsageError for a command that would wait for ever, or do nothing."""
    name, both = words[0].upper(), " ".join(words[:2]).upper()
    for each in (name, both):
        if each in _REFUSED:
            raise click.UsageError(
                f"cmd shows one reply, so it does not run {each}: {_REFUSED[each]}"
            )


def _naming_the_stream(error: IDTooSmall, session: Session, argv: Sequence[bytes]) -> IDTooSmall:
    """Add the stream of a command and its last ID to an error, if they are known."""
    from kvstream.commands.table import COMMANDS, command_of

    command = command_of(argv, COMMANDS)
    keys = [] if command is None else command.keys_of(argv)
    if len(keys) == 1:
        with suppress(KVStreamError), session.reading() as store:
            naming_stream(error, keys[0], store.stream(keys[0]).info().last_generated_id)
    return error


def _ask_server(connection: "Connection", argv: Sequence[bytes]) -> Any:
    try:
        return connection.do(*argv)
    except InvalidArgument as error:
        raise _error_reply(error) from None


def _error_reply(error: KVStreamError) -> KVStreamError:
    """Return the error for an error reply: here InvalidArgument does not mean wrong usage."""
    return RequestError(str(error)) if isinstance(error, InvalidArgument) else error


def _ask_store(session: DirectorySession, argv: Sequence[bytes]) -> Any:
    """Run a command on a directory, or by the process that shares it."""
    from kvstream.commands.table import COMMANDS, command_of

    if (engine := session.shared_engine()) is not None:
        with closing(engine):
            return _ask_server(engine.connection(), argv)
    command = command_of(argv, COMMANDS)
    if command is not None and not command.writes:
        with session.reading() as store:
            return _run(store, argv)
    with session.writing(create=command is not None and command.grows) as store:
        return _run(store, argv)


def _run(store: "Store", argv: Sequence[bytes]) -> Any:
    try:
        import redis
    except ModuleNotFoundError:
        raise ClientMissing(f"this needs redis-py: {install_command('server')}") from None
    from kvstream.inprocess import connect
    from kvstream.remote.connection import name_classes
    from kvstream.remote.server_errors import error_of

    with connect(store, db=store.db, redis_connect_func=name_classes) as client:
        connection = client.connection_pool.get_connection()
        try:
            connection.send_command(*argv)
            return connection.read_response(disable_decoding=True)
        except redis.RedisError as error:
            raise _error_reply(error_of(error, writing=True)) from None
        finally:
            client.connection_pool.release(connection)


def reply_lines(reply: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a reply, as redis-cli shows them."""
    if isinstance(reply, dict):
        reply = [part for pair in reply.items() for part in pair]
    if isinstance(reply, list | tuple | set | frozenset):
        yield from _list_lines(list(reply), indent)
    elif isinstance(reply, bool):
        yield f"({str(reply).lower()})"
    elif isinstance(reply, int):
        yield f"(integer) {reply}"
    elif reply is None:
        yield "(nil)"
    elif isinstance(reply, Exception):
        yield f"(error) {printable(str(reply))}"
    elif isinstance(reply, bytes | str):
        yield from _text_lines(reply, alone=not indent)
    else:
        yield str(reply)


def _text_lines(text: bytes | str, alone: bool) -> Iterator[str]:
    """Yield the lines of a text; inside a list it is one line."""
    whole = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    if not alone:
        yield printable(text)
    else:
        yield from map(printable, whole.splitlines() or [""])


def _list_lines(parts: list[Any], indent: str) -> Iterator[str]:
    if not parts:
        yield "(empty array)"
    width = len(str(len(parts)))
    for at, part in enumerate(parts, 1):
        head = f"{at:{width}}) "
        first, *rest = reply_lines(part, indent + " " * len(head))
        yield (indent if at > 1 else "") + head + first
        yield from rest
