"""CLIENT: list, name, pause, unblock and close connections, and track the keys they have read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvstream.commands.args import (
    Args,
    Argv,
    at_least,
    bad_subcommand,
    integer,
    syntax_error,
    text,
    timeout,
)
from kvstream.commands.command import OPERATE, Family, flags
from kvstream.commands.replies import OK, RESP3, Map, Reply, SetReply, Verbatim
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.resp.requests import request_bytes
from kvstream.server.commands.connection import valid_name
from kvstream.server.runtime.client import Client, ReplyMode
from kvstream.server.runtime.dispatch import describe_client
from kvstream.server.runtime.executor import disconnect, server_of
from kvstream.server.runtime.tracking import Tracking

COMMANDS = Family("connection")
COMMANDS.add_help("client", since="5.0.0")
_OWN = flags("noscript loading stale local")
"""Flags of commands about the connection itself."""
_OPTIN_OUT = (b"OPTIN", b"OPTOUT")
_MODES = (b"BCAST", *_OPTIN_OUT, b"NOLOOP")
_ANEW = "before disabling tracking for this client, and then re-enabling it with a different mode."


@dataclass(slots=True)
class _Wanted:
    modes: set[bytes] = field(default_factory=set)
    prefixes: list[bytes] = field(default_factory=list)
    redirect: int = 0


@COMMANDS.command(
    "client|tracking",
    "ON|OFF [REDIRECT client-id] [PREFIX prefix [PREFIX prefix ...]] [BCAST] [OPTIN] [OPTOUT] "
    "[NOLOOP]",
    _OWN,
    since="6.0.0",
)
def client_tracking(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Notify this connection, or another one, when keys change that it has read.

    ON: Begin, or change the options.
    OFF: End.
    REDIRECT: Send the notifications to this client. One that speaks RESP2 must be subscribed, and
    gets them as messages of the channel `__redis__:invalidate`.
    PREFIX: With BCAST, only keys with this prefix.
    BCAST: Notify of all keys, read or not.
    OPTIN: Track only keys read by the command after CLIENT CACHING YES.
    OPTOUT: Do not track keys read by the command after CLIENT CACHING NO.
    NOLOOP: Do not notify of the connection's own changes.

    Notifications come after all replies of a turn, so one may follow a reply that already has the
    newer value. SWAPDB, DEBUG RELOAD and a DEL of very many keys notify that all keys have changed.
    In a program's own process ON is refused.
    """
    wanted = _parse_options(client, Args(argv, 3))
    word, trackers = argv[2].lower(), server_of(client).trackers
    if word == b"off":
        trackers.end(client)
        return OK
    if word != b"on":
        raise syntax_error()
    before = trackers.clients.get(client)
    _check(wanted, before)
    prefixes = [] if before is None else before.prefixes
    if b"BCAST" in wanted.modes:
        _check_prefixes(wanted.prefixes, prefixes)
        prefixes = sorted({*prefixes, *(wanted.prefixes or [b""])})
    trackers.begin(client, Tracking(frozenset(wanted.modes), prefixes, wanted.redirect))
    return OK


def _parse_options(client: Client, args: Args) -> _Wanted:
    wanted = _Wanted()
    while args:
        word = args.option()
        if word in _MODES:
            wanted.modes.add(word)
        elif word == b"PREFIX" and args:
            wanted.prefixes.append(args.next())
        elif word == b"REDIRECT" and args:
            if wanted.redirect:
                raise InvalidArgument("A client can only redirect to a single other client")
            wanted.redirect = args.integer()
            if wanted.redirect not in server_of(client).clients:
                raise InvalidArgument("The client ID you want redirect to does not exist")
        else:
            raise syntax_error()
    return wanted


def _check(wanted: _Wanted, before: Tracking | None) -> None:
    """Refuse modes that exclude each other or the modes set before."""
    modes = wanted.modes
    present = modes if before is None else before.modes
    for is_so, reason in (
        (
            wanted.prefixes and b"BCAST" not in modes,
            "PREFIX option requires BCAST mode to be enabled",
        ),
        (
            (b"BCAST" in modes) != (b"BCAST" in present),
            f"You can't switch BCAST mode on/off {_ANEW}",
        ),
        (
            b"BCAST" in modes and modes & set(_OPTIN_OUT),
            "OPTIN and OPTOUT are not compatible with BCAST",
        ),
        (
            modes >= set(_OPTIN_OUT),
            "You can't specify both OPTIN mode and OPTOUT mode",
        ),
        (
            any(one in modes and two in present for one, two in (_OPTIN_OUT, _OPTIN_OUT[::-1])),
            f"You can't switch OPTIN/OPTOUT mode {_ANEW}",
        ),
    ):
        if is_so:
            raise InvalidArgument(reason)


def _check_prefixes(wanted: list[bytes], before: Iterable[bytes]) -> None:
    for at, prefix in enumerate(wanted):
        others = [(other, "an existing") for other in before]
        others += [(other, "another provided") for other in wanted[at + 1 :]]
        for other, which in others:
            if prefix.startswith(other) or other.startswith(prefix):
                raise InvalidArgument(
                    f"Prefix '{text(prefix)}' overlaps with {which} prefix '{text(other)}'. "
                    "Prefixes for a single client must not overlap."
                )


@COMMANDS.command("client|caching", "YES|NO", _OWN, since="6.0.0")
def client_caching(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Track the keys that the next command reads, or do not.

    YES: Track them, in the mode OPTIN.
    NO: Do not track them, in the mode OPTOUT.
    """
    tracking = server_of(client).trackers.clients.get(client)
    if tracking is None:
        raise RequestError(
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or "
            "OPTOUT mode enabled"
        )
    mode = {b"yes": b"OPTIN", b"no": b"OPTOUT"}.get(argv[2].lower())
    if mode is None:
        raise syntax_error()
    if mode not in tracking.modes:
        word, needed = text(argv[2].upper()), text(mode)
        raise RequestError(
            f"CLIENT CACHING {word} is only valid when tracking is enabled in {needed} mode."
        )
    tracking.caching = True
    return OK


@COMMANDS.command("client|getredir", "", _OWN, since="6.0.0")
def client_getredir(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the client that is notified instead of this one; 0 for none, -1 without tracking."""
    tracking = server_of(client).trackers.clients.get(client)
    return -1 if tracking is None else tracking.redirect


@COMMANDS.command("client|trackinginfo", "", _OWN, since="6.2.0")
def client_trackinginfo(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the tracking modes and prefixes of this connection."""
    tracking = server_of(client).trackers.clients.get(client)
    words: list[Reply] = [b"off"] if tracking is None else [*_tracking_flags(tracking)]
    shown: Reply = SetReply(words) if client.protocol == RESP3 else words
    prefixes: list[Reply] = [] if tracking is None else [*tracking.prefixes]
    redirect = -1 if tracking is None else tracking.redirect
    return Map([(b"flags", shown), (b"redirect", redirect), (b"prefixes", prefixes)])


def _tracking_flags(tracking: Tracking) -> list[bytes]:
    modes, caching = tracking.modes, tracking.caching
    words = (
        (b"on", True),
        (b"bcast", b"BCAST" in modes),
        (b"optin", b"OPTIN" in modes),
        (b"caching-yes", caching and b"OPTIN" in modes),
        (b"optout", b"OPTOUT" in modes),
        (b"caching-no", caching and b"OPTOUT" in modes),
        (b"noloop", b"NOLOOP" in modes),
        (b"broken_redirect", tracking.broken),
    )
    return [word for word, is_set in words if is_set]


_TYPES = (b"normal", b"master", b"replica", b"slave", b"pubsub")
_NO_CLIENT = "No such client"
_ID = "client-id should be greater than 0"


@COMMANDS.command("client|id", "", _OWN, since="5.0.0")
def client_id(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the ID of this connection."""
    return client.id


@COMMANDS.command("client|getname", "", _OWN, since="2.6.9")
def client_getname(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the name of this connection; null if it has none."""
    return client.name or None


@COMMANDS.command(
    *("client|setname", "name", _OWN),
    since="2.6.9",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def client_setname(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the name of this connection."""
    client.name = valid_name(argv[2])
    return OK


@COMMANDS.command(
    *("client|setinfo", "LIB-NAME libname|LIB-VER libver", _OWN),
    since="7.2.0",
    arity=4,
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def client_setinfo(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Set the name or version of the library that uses this connection.

    LIB-NAME: Its name.
    LIB-VER: Its version.
    """
    what, value = argv[2].lower(), argv[3]
    if what not in (b"lib-name", b"lib-ver"):
        raise InvalidArgument(f"Unrecognized option '{text(argv[2])}'")
    if any(not 33 <= byte <= 126 for byte in value):
        raise InvalidArgument(
            f"{text(argv[2])} cannot contain spaces, newlines or special characters."
        )
    if what == b"lib-name":
        client.lib_name = value
    else:
        client.lib_version = value
    return OK


@COMMANDS.command("client|info", "", _OWN, since="6.2.0", tips="nondeterministic_output")
def client_info(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the state of this connection."""
    tracking = server_of(client).trackers.clients.get(client)
    return Verbatim(describe_client(client, tracking, request_bytes(argv)) + "\n")


@COMMANDS.command(
    "client|list",
    "[TYPE NORMAL|MASTER|REPLICA|PUBSUB] [ID client-id [client-id ...]]",
    OPERATE,
    since="2.4.0",
    tips="nondeterministic_output",
)
def client_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the state of every connection.

    TYPE: Only connections of a type.
    NORMAL: Connections without subscriptions.
    MASTER: No connection: a replica connects to its primary by itself.
    REPLICA: Connections of replicas.
    PUBSUB: Connections with subscriptions.
    ID: Only connections with these IDs.

    Memory of arguments and of reply buffers (`rbs`, `rbp`) is 0, since there is none. `qbuf` is
    the request data that waits to be run; buffers are not allocated in advance, so `qbuf-free` is
    0.
    """
    clients = sorted(server_of(client).clients.values(), key=lambda each: each.id)
    if len(argv) == 4 and argv[2].upper() == b"TYPE":
        clients = list(filter(_by_type(client, argv[3]), clients))
    elif len(argv) > 3 and argv[2].upper() == b"ID":
        ids = [integer(raw, "Invalid client ID") for raw in argv[3:]]
        known = server_of(client).clients
        clients = [known[number] for number in ids if number in known]
    elif len(argv) > 2:
        raise syntax_error()
    size, tracking = request_bytes(argv), server_of(client).trackers.clients
    return Verbatim(
        "".join(
            describe_client(each, tracking.get(each), size * (each is client)) + "\n"
            for each in clients
        )
    )


# --- on and off ---------------------------------------------------------------------------------


def _on_or_off(raw: bytes) -> bool:
    if raw.lower() not in (b"on", b"off"):
        raise syntax_error()
    return raw.lower() == b"on"


@COMMANDS.command("client|no-evict", "ON|OFF", OPERATE, since="7.0.0")
def client_no_evict(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Keep this connection when clients are closed to free memory.

    ON: Keep it.
    OFF: It may be closed: the default.
    """
    client.no_evict = _on_or_off(argv[2])
    return OK


@COMMANDS.command("client|no-touch", "ON|OFF", _OWN, since="7.2.0")
def client_no_touch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Keep the idle time of keys when this connection reads them.

    ON: Keep it.
    OFF: Reading resets it: the default.
    """
    client.no_touch = _on_or_off(argv[2])
    return OK


_REPLY_MODES = {b"on": ReplyMode.ON, b"off": ReplyMode.OFF, b"skip": ReplyMode.SKIP_NEXT}


@COMMANDS.command("client|reply", "ON|OFF|SKIP", _OWN, since="3.2.0")
def client_reply(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Send replies, send none, or skip the next one.

    ON: Send replies: the default.
    OFF: Send none.
    SKIP: Send none to the next command.

    In MULTI it takes effect after EXEC, whose reply is complete; Redis leaves parts of it out.
    """
    mode = _REPLY_MODES.get(argv[2].lower())
    if mode is None:
        raise syntax_error()
    if mode is not ReplyMode.SKIP_NEXT or client.reply_mode is not ReplyMode.OFF:
        client.reply_mode = mode
    return OK


# --- others -------------------------------------------------------------------------------------


@COMMANDS.command("client|unblock", "client-id [TIMEOUT|ERROR]", OPERATE, since="5.0.0")
def client_unblock(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Unblock another client; return 1 if it was blocked.

    TIMEOUT: It gets the reply of a timeout: the default.
    ERROR: It gets an UNBLOCKED error.
    """
    if len(argv) > 4:
        raise bad_subcommand(argv)
    reason = argv[3].upper() if len(argv) == 4 else b"TIMEOUT"
    if reason not in (b"TIMEOUT", b"ERROR"):
        raise InvalidArgument("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    other = server_of(client).clients.get(integer(argv[2]))
    error = "client unblocked via CLIENT UNBLOCK" if reason == b"ERROR" else None
    return int(other is not None and server_of(client).blocking.unblock(other, error))


Test = Callable[[Client], bool]


@COMMANDS.command(
    "client|kill",
    "ip:port|(ID client-id|TYPE (NORMAL|MASTER|SLAVE|REPLICA|PUBSUB)|USER username|ADDR ip:port|"
    "LADDR ip:port|SKIPME (YES|NO)|MAXAGE maxage) ...",
    OPERATE,
    since="2.4.0",
    usage="<ip:port>|<filter> <value> [<filter> <value> ...]",
    arity=-3,
)
def client_kill(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Close the connection from an address, or all that pass every filter, and return how many.

    ID: The client with this ID.
    TYPE: Clients of this type.
    USER: Clients of this user.
    ADDR: The client from this address.
    LADDR: Clients connected to this address of the server.
    SKIPME: Whether to leave this connection open.
    YES: Leave it open: the default.
    NO: Close it too, if it passes.
    MAXAGE: Clients that have been connected for so many seconds.
    NORMAL: Clients that are not subscribed.
    MASTER: The link of a replica to its primary, as the only filter; it is made anew.
    SLAVE: Replicas.
    REPLICA: Replicas.
    PUBSUB: Clients that are subscribed.
    """
    if len(argv) == 3:
        address = text(argv[2])
        clients = [each for each in server_of(client).clients.values() if each.address == address]
        if not clients:
            raise RequestError(_NO_CLIENT)
        disconnect(client, clients[0])
        return OK
    tests, skip_me = _filters(client, Args(argv, 2))
    if len(argv) == 4 and (argv[2].upper(), argv[3].lower()) == (b"TYPE", b"master"):
        return int(server_of(client).replication.end_link())
    killed = [
        each
        for each in server_of(client).clients.values()
        if all(test(each) for test in tests) and not (skip_me and each is client)
    ]
    for each in killed:
        disconnect(client, each)
    return len(killed)


def _filters(client: Client, args: Args) -> tuple[list[Test], bool]:
    """Return the filters, the last of each kind, and whether to skip this connection."""
    tests: dict[bytes, Test] = {}
    skip_me = True
    while args:
        word = args.option()
        make = _FILTERS.get(word)
        if not args or (make is None and word != b"SKIPME"):
            raise syntax_error()
        value = args.next()
        if make is not None:
            tests[word] = make(client, value)
        elif value.lower() not in (b"yes", b"no"):
            raise syntax_error()
        else:
            skip_me = value.lower() == b"yes"
    return list(tests.values()), skip_me


def _by_id(client: Client, raw: bytes) -> Test:
    number = at_least(1, raw, _ID, _ID)
    return lambda each: each.id == number


def _by_age(client: Client, raw: bytes) -> Test:
    unreadable = "maxage is not an integer or out of range"
    seconds = at_least(1, raw, "maxage should be greater than 0", unreadable)
    now = server_of(client).clock()
    return lambda each: now - each.created >= seconds


def _by_user(client: Client, raw: bytes) -> Test:
    user = server_of(client).acl.users.get(raw)
    if user is None:
        raise RequestError(f"No such user '{text(raw)}'")
    return lambda each: each.user is user


def _by_type(client: Client, raw: bytes) -> Test:
    name = raw.lower()
    if name not in _TYPES:
        raise InvalidArgument(f"Unknown client type '{text(raw)}'")
    wanted = b"replica" if name == b"slave" else name
    return lambda each: wanted == _type_of(each)


def _type_of(client: Client) -> bytes:
    if client.replica is not None and client.replica.is_linked:
        return b"replica"
    return b"normal" if client.subscriptions is None else b"pubsub"


def _by_address(client: Client, raw: bytes) -> Test:
    wanted = text(raw)
    return lambda each: each.address == wanted


def _by_local_address(client: Client, raw: bytes) -> Test:
    wanted = text(raw)
    return lambda each: each.local_address == wanted


_FILTERS: dict[bytes, Callable[[Client, bytes], Test]] = {
    b"ADDR": _by_address,
    b"ID": _by_id,
    b"LADDR": _by_local_address,
    b"MAXAGE": _by_age,
    b"TYPE": _by_type,
    b"USER": _by_user,
}


# --- pauses -------------------------------------------------------------------------------------

_PAUSED = {b"ALL": True, b"WRITE": False}


@COMMANDS.command("client|pause", "timeout [WRITE|ALL]", OPERATE, since="3.0.0")
def client_pause(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Run no command for so many milliseconds, or none that writes.

    WRITE: Pause commands that write or publish, scripts that may write, and transactions with such.
    ALL: Pause every command, CLIENT UNPAUSE too: the default.
    """
    if len(argv) > 4:
        raise bad_subcommand(argv)
    every = _PAUSED.get(argv[3].upper()) if len(argv) == 4 else True
    if every is None:
        raise InvalidArgument("CLIENT PAUSE mode must be WRITE or ALL")
    server_of(client).pause.begin(timeout(argv[2]) / 1000, every)
    return OK


@COMMANDS.command("client|unpause", "", OPERATE, since="6.2.0")
def client_unpause(txn: Txn, client: Client, argv: Argv) -> Reply:
    """End a pause of writing commands; a pause of all commands cannot be ended."""
    txn.keeps_expired = txn.read_only  # commands after it may write
    server_of(client).pause.end()
    return OK
