"""The state of a connection: HELLO, AUTH, QUIT and RESET; MULTI, DISCARD, WATCH, KVSTREAM.GUARD.

The executor runs EXEC itself.
"""

from kvstream.commands import keyspace
from kvstream.commands.args import Args, Argv, integer, syntax_error, text, wrong_arity
from kvstream.commands.command import EVERY, FIRST, OURS, Family, flags
from kvstream.commands.keyspace import PONG
from kvstream.commands.replies import OK, RESP2, RESP2_WITH_CLASSES, RESP3, Map, Reply, Simple
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.operations.watch import Guard, Watched
from kvstream.server.acl import DEFAULT, WrongPassword
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.client_state import Event
from kvstream.server.runtime.executor import server_of
from kvstream.server.runtime.scripts import REDIS_VERSION
from kvstream.types.ids import StreamID

COMMANDS, TRANSACTIONS = Family("connection"), Family("transactions")
_NO_AUTH = flags("noscript loading stale fast no_auth allow_busy local")
_END = _NO_AUTH | flags("immediate subscribed")
_NO_PASSWORD = (
    "AUTH <password> called without any password configured for the default user. Are you sure "
    "your configuration is correct?"
)


@COMMANDS.command("auth", "[username] password", _NO_AUTH, since="1.0.0")
def auth(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Log in, as the default user unless another is named."""
    if len(argv) > 3:
        raise syntax_error()
    if len(argv) == 2 and server_of(client).acl.default.nopass:
        raise RequestError(_NO_PASSWORD)
    _log_in(client, argv[1] if len(argv) == 3 else DEFAULT, argv[-1])
    return OK


def _log_in(client: Client, user: bytes, password: bytes) -> None:
    server = server_of(client)
    try:
        client.become(server.acl.authenticate(user, password))
    except WrongPassword:
        server.dispatcher.deny(client, "auth", client.last_command.upper().encode(), user)
        raise


class NoProtocol(RequestError):
    """HELLO asked for an unknown version of RESP."""

    code = "NOPROTO"


class NoAuth(RequestError):
    """The client has not authenticated, although a password is needed."""

    code = "NOAUTH"


_HELLO_NEEDS_AUTH = (
    "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "
    "<user> <pass> option can be used to authenticate the client and select the RESP protocol "
    "version at the same time"
)


@COMMANDS.command(
    *("hello", "[protover [AUTH username password] [SETNAME name]]", _NO_AUTH),
    since="6.0.0",
)
def hello(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Switch to RESP2 or RESP3; return the version and role of the server.

    AUTH: Log in first.
    SETNAME: Set the name of the connection.
    """
    protocol = client.resp
    if len(argv) > 1:
        protocol = integer(argv[1], "Protocol version is not an integer or out of range")
        if protocol not in (RESP2, RESP3):
            raise NoProtocol("unsupported protocol version")
    user, name = _hello_options(Args(argv, 2))
    if user is not None:
        _log_in(client, *user)
    if not client.authenticated:
        raise NoAuth(_HELLO_NEEDS_AUTH)
    if name is not None:
        client.name = name
    client.protocol = protocol
    if client.subscriptions is not None:
        server_of(client).pubsub.encode_anew()
    return Map(
        [
            (b"server", b"redis"),
            (b"version", REDIS_VERSION),
            (b"proto", protocol),
            (b"id", client.id),
            (b"mode", b"standalone"),
            (b"role", b"master" if server_of(client).replication.source is None else b"replica"),
            (b"modules", []),
        ]
    )


def _hello_options(args: Args) -> tuple[Argv | None, bytes | None]:
    """Return the user and password of AUTH, and the name of SETNAME."""
    user: Argv | None = None
    name: bytes | None = None
    while args:
        word = args.next()
        if word.upper() == b"AUTH" and len(args) >= 2:
            user = args.take(2)
        elif word.upper() == b"SETNAME" and args:
            name = valid_name(args.next())
        else:
            raise InvalidArgument(f"Syntax error in HELLO option '{text(word)}'")
    return user, name


@COMMANDS.command("kvstream.errors", "ON|OFF", _NO_AUTH, since=OURS)
def kvstream_errors(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Name the class of each error on this connection, or not.

    ON: The text of an error with the code ERR begins with its class in kvstream.errors, as in
    `-ERR NoSuchKey: no such key`. A tab and what the library says more may follow any error.
    OFF: Errors are as in Redis: the default.

    The library calls it on each of its connections, to raise the same errors as in a directory.
    It needs RESP2; HELLO and RESET end it. Scripts see errors without their class. Every user may
    call it.
    """
    word = argv[1].lower()
    if word not in (b"on", b"off"):
        raise syntax_error()
    if not client.authenticated:
        raise NoAuth("Authentication required.")
    if client.protocol == RESP3:
        raise RequestError("KVSTREAM.ERRORS needs RESP2: call HELLO 2 first")
    client.protocol = RESP2_WITH_CLASSES if word == b"on" else RESP2
    return OK


@COMMANDS.override(keyspace.CONNECTION.commands["ping"])
def ping(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return PONG, or the message; a subscribed RESP2 client gets it like a message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    if client.subscriptions is not None and client.protocol != RESP3:
        return [b"pong", argv[1] if len(argv) == 2 else b""]
    return argv[1] if len(argv) == 2 else PONG


def valid_name(name: bytes) -> bytes:
    """Return a client's name; InvalidArgument if it has blanks or unprintable characters."""
    if any(not 33 <= byte <= 126 for byte in name):
        raise InvalidArgument("Client names cannot contain spaces, newlines or special characters.")
    return name


@COMMANDS.command("quit", "", _END, since="1.0.0", arity=-1)
def quit_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Close the connection."""
    client.handle(Event.CLOSE)
    return OK


@COMMANDS.command("reset", "", _END, since="6.2.0")
def reset(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Reset the connection to the state of a new one."""
    server_of(client).end_subscriptions(client)
    client.reset()
    return Simple("RESET")


# --- transactions -------------------------------------------------------------------------------

_UNWATCH = flags("noscript loading stale fast allow_busy local")
_MULTI = _UNWATCH | flags("immediate")
_WATCH = flags("noscript loading stale fast allow_busy immediate no_touch")


@TRANSACTIONS.command("multi", "", _MULTI, since="1.2.0")
def multi(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Queue the commands that follow until EXEC, which runs them in one commit."""
    if client.queue is not None:
        raise RequestError("MULTI calls can not be nested")
    client.begin_queue()
    return OK


@TRANSACTIONS.command(
    *("exec", "", flags("noscript loading stale skip_slowlog immediate")), since="1.2.0"
)
def exec_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Run the queued commands in one commit; null if a watched key has changed."""
    raise RequestError("EXEC without MULTI")


@TRANSACTIONS.command("discard", "", _MULTI, since="2.0.0")
def discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Discard the queued commands."""
    if client.queue is None:
        raise RequestError("DISCARD without MULTI")
    client.end_queue()
    return OK


@TRANSACTIONS.command("watch", "key [key ...]", _WATCH, EVERY, since="2.2.0", uses="RO")
def watch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make EXEC do nothing if one of the keys changes before it."""
    if client.queue is not None:
        raise RequestError("WATCH inside MULTI is not allowed")
    for key in argv[1:]:
        client.watched.add(txn, client.prefix + key)
    return OK


@TRANSACTIONS.command(
    *("kvstream.guard", "key group consumer id deliveries", _WATCH | flags("readonly"), FIRST),
    since=OURS,
)
def guard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make EXEC do nothing if the lease of a pending entry is lost by then.

    The lease is held while the entry is pending with the consumer and was not delivered again: its
    delivery count is the given one. Returns the error LEASELOST if it is lost already. UNWATCH,
    EXEC and DISCARD end the guard, as they end WATCH.
    """
    if client.queue is not None:
        raise RequestError("KVSTREAM.GUARD inside MULTI is not allowed")
    watched = Guard(
        *(client.prefix + argv[1], argv[2], argv[3]), StreamID.parse(argv[4]), integer(argv[5])
    )
    watched.check(txn)
    client.watched.guards.append(watched)
    return OK


@TRANSACTIONS.command("unwatch", "", _UNWATCH, since="2.2.0")
def unwatch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Stop watching keys."""
    client.watched = Watched()
    return OK
