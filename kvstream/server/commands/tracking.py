"""CLIENT TRACKING and what belongs to it: no keys are tracked, but how it is asked is checked."""

from dataclasses import dataclass, field
from itertools import combinations

from kvstream.commands.args import NOT_AN_INTEGER, Args, Argv, integer, syntax_error, text
from kvstream.commands.replies import OK, RESP3, Map, Reply, SetReply
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.client import Client

_MODES = (b"BCAST", b"OPTIN", b"OPTOUT", b"NOLOOP")


@dataclass(slots=True)
class _Wanted:
    modes: set[bytes] = field(default_factory=set)
    prefixes: list[bytes] = field(default_factory=list)
    redirect: int = 0


def client_tracking(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer OK to OFF, and to ON that keys are not tracked: the client must not cache any."""
    wanted = _wanted(client, Args(argv, 3))
    if argv[2].lower() == b"off":
        return OK
    if argv[2].lower() != b"on":
        raise syntax_error()
    _check(wanted)
    raise RequestError("keys are not tracked here: cache none of them in the client")


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
            if wanted.redirect not in client.server.clients:
                raise InvalidArgument("The client ID you want redirect to does not exist")
        else:
            raise syntax_error()
    return wanted


def _check(wanted: _Wanted) -> None:
    """Refuse what does not go together."""
    modes = wanted.modes
    for is_so, reason in (
        (
            wanted.prefixes and b"BCAST" not in modes,
            "PREFIX option requires BCAST mode to be enabled",
        ),
        (
            b"BCAST" in modes and modes & {b"OPTIN", b"OPTOUT"},
            "OPTIN and OPTOUT are not compatible with BCAST",
        ),
        (
            modes >= {b"OPTIN", b"OPTOUT"},
            "You can't specify both OPTIN mode and OPTOUT mode",
        ),
    ):
        if is_so:
            raise InvalidArgument(reason)
    for one, other in combinations(wanted.prefixes, 2):
        if one.startswith(other) or other.startswith(one):
            raise InvalidArgument(
                f"Prefix '{text(one)}' overlaps with another provided prefix '{text(other)}'. "
                "Prefixes for a single client must not overlap."
            )


def client_caching(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Refused as where nothing is tracked."""
    raise RequestError(
        "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or "
        "OPTOUT mode enabled"
    )


def client_getredir(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer -1: keys are not tracked for clients."""
    return -1


def client_trackinginfo(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer that keys are not tracked for this connection."""
    flags: list[Reply] = [b"off"]
    shown: Reply = SetReply(flags) if client.protocol == RESP3 else flags
    return Map([(b"flags", shown), (b"redirect", -1), (b"prefixes", [])])
