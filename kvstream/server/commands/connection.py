"""HELLO, QUIT and RESET: what a connection is.

MULTI, DISCARD, WATCH and UNWATCH; EXEC is the executor's own.
"""

from kvstream.commands.args import Argv, integer, text
from kvstream.commands.replies import OK, RESP2, RESP3, Map, Reply, Simple
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import Watched
from kvstream.server.commands.admin import server_of
from kvstream.server.runtime.client import Client, Queue


def multi(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Queue the commands that follow until EXEC, which runs them as one commit."""
    if client.queue is not None:
        raise RequestError("MULTI calls can not be nested")
    client.queue = Queue()
    return OK


def exec_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Run the queued commands, all of them in one commit; a null where a watched key changed."""
    raise RequestError("EXEC without MULTI")


def discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget the queued commands."""
    if client.queue is None:
        raise RequestError("DISCARD without MULTI")
    client.end_queue()
    return OK


def watch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Have EXEC do nothing if one of the keys is changed before."""
    if client.queue is not None:
        raise RequestError("WATCH inside MULTI is not allowed")
    for key in argv[1:]:
        client.watched.add(txn, client.prefix + key)
    return OK


def unwatch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Watch no key any more."""
    client.watched = Watched()
    return OK


REDIS_VERSION = b"8.10.0"
"""The level of the stream commands, which clients take for the server's version."""


class NoProtocol(RequestError):
    """HELLO asked for a version of RESP that there is none of."""

    code = "NOPROTO"


def hello(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Speak RESP2 or RESP3 from here on, and answer what the server is."""
    protocol, name = client.protocol, None
    user: tuple[bytes, bytes] | None = None
    rest = list(argv[1:])
    if rest:
        protocol = integer(rest.pop(0), "Protocol version is not an integer or out of range")
        if protocol not in (RESP2, RESP3):
            raise NoProtocol("unsupported protocol version")
    while rest:
        word = rest.pop(0)
        if word.upper() == b"AUTH" and len(rest) >= 2:
            user = rest.pop(0), rest.pop(0)
        elif word.upper() == b"SETNAME" and rest:
            name = valid_name(rest.pop(0))
        else:
            raise InvalidArgument(f"Syntax error in HELLO option '{text(word)}'")
    if user is not None:
        server_of(client).log_in(client, *user)
    if not client.authenticated:
        raise NoAuthForHello(_HELLO_NEEDS_AUTH)
    if name is not None:
        client.name = name
    client.protocol = protocol
    return Map(
        [
            (b"server", b"redis"),
            (b"version", REDIS_VERSION),
            (b"proto", protocol),
            (b"id", client.id),
            (b"mode", b"standalone"),
            (b"role", b"master"),
            (b"modules", []),
        ]
    )


class NoAuthForHello(RequestError):
    """HELLO without AUTH where a password is needed."""

    code = "NOAUTH"


_HELLO_NEEDS_AUTH = (
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> "
    "AUTH <user> <pass> option can be used to authenticate the client and select the RESP "
    "protocol version at the same time"
)


def valid_name(name: bytes) -> bytes:
    """Return a client's name; an error for blanks and what cannot be printed."""
    if any(not 33 <= byte <= 126 for byte in name):
        raise InvalidArgument("Client names cannot contain spaces, newlines or special characters.")
    return name


def quit_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Close the connection."""
    client.closing = True
    return OK


def reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make the connection as a new one."""
    server_of(client).hush(client)
    client.reset()
    return Simple("RESET")
