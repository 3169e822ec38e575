"""CLIENT: what connections are, and what may be done to others.

CLIENT TRACKING and what belongs to it: who keeps what it has read, and hears of changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvstream.commands.args import NOT_AN_INTEGER, Args, Argv, at_least, integer, syntax_error, text
from kvstream.commands.replies import OK, RESP2, RESP3, Map, Reply, SetReply, Verbatim
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.commands.admin import help_of, not_so, server_of
from kvstream.server.commands.connection import valid_name
from kvstream.server.runtime.client import Answers, Client
from kvstream.server.runtime.dispatch import listed
from kvstream.server.runtime.tracking import Tracking

_OPTIN_OUT = (b"OPTIN", b"OPTOUT")
_MODES = (b"BCAST", *_OPTIN_OUT, b"NOLOOP")
_ANEW = "before disabling tracking for this client, and then re-enabling it with a different mode."


@dataclass(slots=True)
class _Wanted:
    modes: set[bytes] = field(default_factory=set)
    prefixes: list[bytes] = field(default_factory=list)
    redirect: int = 0


def client_tracking(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Have the connection, or another one, told when keys change that it has read."""
    wanted = _wanted(client, Args(argv, 3))
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
        prefixes = [*prefixes, *(wanted.prefixes or ([] if prefixes else [b""]))]
    trackers.begin(client, Tracking(frozenset(wanted.modes), prefixes, wanted.redirect))
    return OK


def _wanted(client: Client, args: Args) -> _Wanted:
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
            wanted.redirect = integer(args.next(), NOT_AN_INTEGER)
            if wanted.redirect not in server_of(client).clients:
                raise InvalidArgument("The client ID you want redirect to does not exist")
        else:
            raise syntax_error()
    hearer = server_of(client).clients.get(wanted.redirect)
    if hearer is not None and hearer is not client and hearer.protocol == RESP2:
        raise InvalidArgument("the client to redirect to must speak RESP3: there are no channels")
    return wanted


def _check(wanted: _Wanted, before: Tracking | None) -> None:
    """Refuse what does not go together, or with what holds already."""
    modes = wanted.modes
    held = modes if before is None else before.modes
    for is_so, reason in (
        (
            wanted.prefixes and b"BCAST" not in modes,
            "PREFIX option requires BCAST mode to be enabled",
        ),
        (
            (b"BCAST" in modes) != (b"BCAST" in held),
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
            any(one in modes and two in held for one, two in (_OPTIN_OUT, _OPTIN_OUT[::-1])),
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


def client_caching(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Say whether what the next command reads is kept: YES where tracked by OPTIN, NO by OPTOUT."""
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
        word, told = text(argv[2].upper()), text(mode)
        raise RequestError(
            f"CLIENT CACHING {word} is only valid when tracking is enabled in {told} mode."
        )
    tracking.caching = True
    return OK


def client_getredir(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer which client hears instead of this one: 0 for none, -1 where nothing is tracked."""
    tracking = server_of(client).trackers.clients.get(client)
    return -1 if tracking is None else tracking.redirect


def client_trackinginfo(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what the connection hears of, and how."""
    tracking = server_of(client).trackers.clients.get(client)
    flags: list[Reply] = [b"off"] if tracking is None else [*_flags(tracking)]
    shown: Reply = SetReply(flags) if client.protocol == RESP3 else flags
    prefixes: list[Reply] = [] if tracking is None else [*tracking.prefixes]
    redirect = -1 if tracking is None else tracking.redirect
    return Map([(b"flags", shown), (b"redirect", redirect), (b"prefixes", prefixes)])


def _flags(tracking: Tracking) -> list[bytes]:
    modes, said = tracking.modes, tracking.caching
    held = (
        (b"on", True),
        (b"bcast", b"BCAST" in modes),
        (b"optin", b"OPTIN" in modes),
        (b"caching-yes", said and b"OPTIN" in modes),
        (b"optout", b"OPTOUT" in modes),
        (b"caching-no", said and b"OPTOUT" in modes),
        (b"noloop", b"NOLOOP" in modes),
        (b"broken_redirect", tracking.broken),
    )
    return [word for word, holds in held if holds]


_TYPES = (b"normal", b"master", b"replica", b"slave", b"pubsub")
_NO_CLIENT = "No such client"
_ID = "client-id should be greater than 0"


def client_id(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the number of this connection."""
    return client.id


def client_getname(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the name that CLIENT SETNAME gave."""
    return client.name or None


def client_setname(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Give this connection a name."""
    client.name = valid_name(argv[2])
    return OK


def client_setinfo(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Note the name or version of the library that this connection uses."""
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


def client_info(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what the server knows of this connection."""
    tracking = server_of(client).trackers.clients.get(client)
    return Verbatim(listed(client, tracking, _size(argv)) + "\n")


def client_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what the server knows of every connection."""
    clients = sorted(server_of(client).clients.values(), key=lambda each: each.id)
    if len(argv) == 4 and argv[2].upper() == b"TYPE":
        clients = clients if _is_normal(argv[3]) else []
    elif len(argv) > 3 and argv[2].upper() == b"ID":
        ids = [integer(raw, "Invalid client ID") for raw in argv[3:]]
        known = server_of(client).clients
        clients = [known[number] for number in ids if number in known]
    elif len(argv) > 2:
        raise syntax_error()
    size, tracking = _size(argv), server_of(client).trackers.clients
    return Verbatim(
        "".join(
            listed(each, tracking.get(each), size * (each is client)) + "\n" for each in clients
        )
    )


def _is_normal(raw: bytes) -> bool:
    """Tell whether a type is that of all clients here, monitors included, or that of none."""
    if raw.lower() not in _TYPES:
        raise InvalidArgument(f"Unknown client type '{text(raw)}'")
    return raw.lower() == b"normal"


def _size(argv: Argv) -> int:
    """Return the bytes of the request that is being answered: it is in its client's buffer."""
    return sum(len(b"$%d\r\n%b\r\n" % (len(word), word)) for word in argv) + len(
        b"*%d\r\n" % len(argv)
    )


# --- on and off ---------------------------------------------------------------------------------


def _on_or_off(raw: bytes) -> bool:
    if raw.lower() not in (b"on", b"off"):
        raise syntax_error()
    return raw.lower() == b"on"


def client_no_evict(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Keep this connection when others are closed for want of memory."""
    client.no_evict = _on_or_off(argv[2])
    return OK


def client_no_touch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Noted and shown; reads leave no trace at the keys."""
    client.no_touch = _on_or_off(argv[2])
    return OK


_ANSWERS = {b"on": Answers.ON, b"off": Answers.OFF, b"skip": Answers.SKIP_NEXT}


def client_reply(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write replies, none from here on, or not the next one."""
    answers = _ANSWERS.get(argv[2].lower())
    if answers is None:
        raise syntax_error()
    if answers is not Answers.SKIP_NEXT or client.answers is not Answers.OFF:
        client.answers = answers
    return OK


# --- others -------------------------------------------------------------------------------------


def client_unblock(txn: Txn, client: Client, argv: Argv) -> Reply:
    """End the wait of another client as if its time were over, or with an error; 1 if it waited."""
    if len(argv) > 4:
        raise not_so("CLIENT", argv)
    reason = argv[3].upper() if len(argv) == 4 else b"TIMEOUT"
    if reason not in (b"TIMEOUT", b"ERROR"):
        raise InvalidArgument("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    other = server_of(client).clients.get(integer(argv[2], NOT_AN_INTEGER))
    return int(other is not None and server_of(client).waits.unblock(other, reason == b"ERROR"))


Test = Callable[[Client], bool]


def client_kill(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Close the connection from an address, or all that pass every filter, and answer how many."""
    if len(argv) == 3:
        address = text(argv[2])
        found = [each for each in server_of(client).clients.values() if each.address == address]
        if not found:
            raise RequestError(_NO_CLIENT)
        _kill(client, found[0])
        return OK
    tests, skip_me = _filters(client, Args(argv, 2))
    killed = [
        each
        for each in server_of(client).clients.values()
        if all(test(each) for test in tests) and not (skip_me and each is client)
    ]
    for each in killed:
        _kill(client, each)
    return len(killed)


def _kill(killer: Client, victim: Client) -> None:
    if victim is killer:
        victim.closing = True  # behind the reply
    else:
        server_of(killer).drop(victim)


def _filters(client: Client, args: Args) -> tuple[list[Test], bool]:
    """Return what a client must be, the last of each kind, and whether to leave this one alone."""
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
    number = integer(raw, _ID)
    if number < 1:
        raise InvalidArgument(_ID)
    return lambda each: each.id == number


def _by_age(client: Client, raw: bytes) -> Test:
    seconds = integer(raw, "maxage is not an integer or out of range")
    if seconds < 1:
        raise InvalidArgument("maxage should be greater than 0")
    now = server_of(client).clock()
    return lambda each: now - each.created >= seconds


def _by_user(client: Client, raw: bytes) -> Test:
    user = server_of(client).acl.users.get(raw)
    if user is None:
        raise RequestError(f"No such user '{text(raw)}'")
    return lambda each: each.user is user


def _by_type(client: Client, raw: bytes) -> Test:
    normal = _is_normal(raw)
    return lambda each: normal


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


def client_pause(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Run no command for so many milliseconds, or none that writes; then go on."""
    if len(argv) > 4:
        raise not_so("CLIENT", argv)
    every = _PAUSED.get(argv[3].upper()) if len(argv) == 4 else True
    if every is None:
        raise InvalidArgument("CLIENT PAUSE mode must be WRITE or ALL")
    message = "timeout is not an integer or out of range"
    milliseconds = at_least(0, argv[2], "timeout is negative", message)
    server_of(client).pause.begin(milliseconds / 1000, every)
    return OK


def client_unpause(txn: Txn, client: Client, argv: Argv) -> Reply:
    """End the pause; one of all commands ends by itself alone."""
    txn.keeps_expired = txn.read_only  # what follows may write
    server_of(client).pause.end()
    return OK


client_help = help_of(
    "CLIENT",
    ("GETNAME", "Show the name of this connection."),
    ("GETREDIR", "-1: keys are not tracked for clients."),
    ("ID", "Show the number of this connection."),
    ("INFO", "Show what is known of this connection."),
    ("KILL <ip:port>", "Close the connection from there."),
    ("KILL <filter> <value> [<filter> <value> ...]", "Close those that pass every filter:"),
    ("    ADDR|LADDR <ip:port>", "from that address, or to it"),
    ("    ID <number>, USER <name>, TYPE (NORMAL|MASTER|REPLICA|PUBSUB)", "of that kind"),
    ("    MAXAGE <seconds>", "that are as old"),
    ("    SKIPME (YES|NO)", "leave this connection alone: YES unless given"),
    ("LIST [TYPE (NORMAL|MASTER|REPLICA|PUBSUB)|ID <number> ...]", "Show connections."),
    ("NO-EVICT (ON|OFF)", "Do not close this connection for want of memory."),
    ("NO-TOUCH (ON|OFF)", "Noted; reads leave no trace at the keys."),
    ("PAUSE <milliseconds> [WRITE|ALL]", "Run nothing for that time, or nothing that writes."),
    ("REPLY (ON|OFF|SKIP)", "Write replies, none, or not the next one."),
    ("SETINFO (LIB-NAME|LIB-VER) <text>", "Note the library of this connection."),
    ("SETNAME <name>", "Give this connection a name."),
    ("TRACKING (ON|OFF) [<option> ...]", "ON is refused: keys are not tracked."),
    ("TRACKINGINFO", "Show that keys are not tracked."),
    ("UNBLOCK <number> [TIMEOUT|ERROR]", "End the wait of a connection."),
    ("UNPAUSE", "End a pause of what writes."),
)
