"""CLIENT TRACKING and what belongs to it: who keeps what it has read, and hears of changes."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstream.commands.args import NOT_AN_INTEGER, Args, Argv, integer, syntax_error, text
from kvstream.commands.replies import OK, RESP2, RESP3, Map, Reply, SetReply
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.client import Client
from kvstream.server.commands.context import server_of
from kvstream.server.invalidation import Tracking

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
