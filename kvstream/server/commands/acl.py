"""ACL: the users, their rules, and the log of refused commands."""

import secrets
import time
from pathlib import Path

from kvstream.commands.args import Argv, bad_subcommand, integer, text
from kvstream.commands.command import OPERATE, Family, every, flags
from kvstream.commands.replies import OK, Double, Map, Reply, SetReply
from kvstream.commands.table import find
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.acl import Denial, NoPermission, Rights, User
from kvstream.server.command_docs import CATEGORIES, list_category
from kvstream.server.runtime.client import Client
from kvstream.server.runtime.executor import disconnect, server_of
from kvstream.server.runtime.pubsub import has_forbidden

COMMANDS = Family("server")
COMMANDS.add_help("acl", since="6.0.0")
_ANY_USER = flags("noscript loading stale local")
_GENPASS_BITS, _GENPASS_BITS_MAX = 256, 4096
_LOG_ENTRIES = 10
_NO_FILE = (
    "This Redis instance is not configured to use an ACL file. You may want to specify users via "
    "the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis "
    "configuration file set) in order to store users in the Redis configuration."
)
"""Redis's text, which tools look for. CONFIG REWRITE of kvstream stores no users."""
_UNCHANGED = (
    "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
)


@COMMANDS.command("acl|whoami", "", _ANY_USER, since="6.0.0")
def acl_whoami(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the name of this connection's user."""
    return client.user.name


@COMMANDS.command("acl|users", "", OPERATE, since="6.0.0")
def acl_users(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the names of all users."""
    return sorted(server_of(client).acl.users)


@COMMANDS.command("acl|list", "", OPERATE, since="6.0.0")
def acl_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the rules of every user."""
    return [user.describe() for _, user in sorted(server_of(client).acl.users.items())]


@COMMANDS.command("acl|cat", "[category]", _ANY_USER, since="6.0.0")
def acl_cat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the categories, or the commands of one."""
    if len(argv) == 2:
        return [name.encode() for name in CATEGORIES]
    if len(argv) > 3:
        raise bad_subcommand(argv)
    category = text(argv[2].lower())
    if category not in CATEGORIES:
        raise InvalidArgument(f"Unknown category '{text(argv[2])}'")
    return [
        each.name.encode() for each in list_category(every(server_of(client).commands), category)
    ]


@COMMANDS.command("acl|getuser", "username", OPERATE, since="6.0.0")
def acl_getuser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the rules of a user; null if it does not exist."""
    user = server_of(client).acl.users.get(argv[2])
    if user is None:
        return None
    return Map(
        [
            (b"flags", SetReply([*user.flags])),
            (b"passwords", list(user.passwords)),
            *_rule_pairs(user.root),
            (b"selectors", [Map(_rule_pairs(rights)) for rights in user.selectors]),
        ]
    )


def _rule_pairs(rights: Rights) -> list[tuple[Reply, Reply]]:
    return [
        (b"commands", rights.commands_text),
        (b"keys", rights.keys_text),
        (b"channels", rights.channels_text),
    ]


@COMMANDS.command(
    *("acl|setuser", "username [rule ...]", OPERATE),
    since="6.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def acl_setuser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Create or change a user by rules, by all of them or none.

    Rules for commands of Redis that kvstream does not have are stored and shown without effect.
    Payloads are always verified: `skip-sanitize-payload` is shown and has no effect. Rules are
    shown in the order in which they were given, as since Redis 7.2. Subscribers whose user may not
    use their channels any more are disconnected. Users last until the server stops, unless there is
    an `aclfile` and ACL SAVE was called.
    """
    if any(byte <= 32 for byte in argv[2]):
        raise InvalidArgument("Usernames can't contain spaces or null characters")
    acl = server_of(client).acl
    before = acl.users[argv[2]].channels if argv[2] in acl.users else set()
    user = acl.set_user(argv[2], argv[3:])
    _disconnect_subscribers(client, {user: before})
    return OK


def _disconnect_subscribers(client: Client, before: dict[User, set[bytes]]) -> None:
    """Close the connections of users that have lost channels which they are subscribed to.

    ``before`` has the channels that the users had.
    """
    losers = [user for user, channels in before.items() if not channels <= user.channels]
    for other in list(server_of(client).pubsub.clients) if losers else ():
        if other.user in losers and has_forbidden(other):
            disconnect(client, other)


@COMMANDS.command(
    *("acl|deluser", "username [username ...]", OPERATE),
    since="6.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def acl_deluser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Delete users and close their connections; return how many existed."""
    server = server_of(client)
    gone = server.acl.delete_users(argv[2:])
    _disconnect_users(client, gone)
    return len(gone)


def _disconnect_users(client: Client, users: list[User]) -> None:
    """Close the connections of users."""
    for other in list(server_of(client).clients.values()):
        if any(other.user is user for user in users):
            disconnect(client, other)


@COMMANDS.command("acl|genpass", "[bits]", _ANY_USER, since="6.0.0")
def acl_genpass(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return a random password, of 256 bits by default."""
    bits = _GENPASS_BITS
    if len(argv) > 3:
        raise bad_subcommand(argv)
    if len(argv) == 3:
        bits = integer(argv[2])
        if not 0 < bits <= _GENPASS_BITS_MAX:
            raise InvalidArgument(
                "ACL GENPASS argument must be the number of bits for the output password, a "
                f"positive number up to {_GENPASS_BITS_MAX}"
            )
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits].encode()


@COMMANDS.command("acl|dryrun", "username command [arg ...]", OPERATE, since="7.0.0")
def acl_dryrun(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return OK if a user may run a command, else the reason."""
    user = server_of(client).acl.users.get(argv[2])
    if user is None:
        raise InvalidArgument(f"User '{text(argv[2])}' not found")
    return _dry_run(client, user, argv[3:])


def _dry_run(client: Client, user: User, argv: Argv) -> Reply:
    try:
        command = find(argv, server_of(client).commands)
    except InvalidArgument:  # the number of arguments is wrong
        raise
    except RequestError as error:
        raise InvalidArgument(f"Command '{text(argv[0])}' not found") from error
    try:
        user.check(command, argv)
    except NoPermission as refusal:
        reason = str(refusal)
        if refusal.kind != "cmd":
            what = f"'{text(refusal.object)}' {refusal.kind}"
            reason = f"User {text(user.name)} has no permissions to access the {what}"
        return reason.encode("utf-8", "surrogateescape")
    return OK


@COMMANDS.command(
    *("acl|save", "", OPERATE),
    since="6.0.0",
    tips="request_policy:all_nodes response_policy:all_succeeded",
)
def acl_save(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write all users to the ACL file."""
    server_of(client).acl.save(_acl_file(client))
    return OK


def _acl_file(client: Client) -> Path:
    path = server_of(client).options.aclfile
    if path is None:
        raise RequestError(_NO_FILE)
    return path


@COMMANDS.command("acl|load", "", OPERATE, since="6.0.0")
def acl_load(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Read all users from the ACL file, or none if one is invalid.

    The connections of users that are not in the file are closed, and those of subscribers whose
    user may not use their channels any more.
    """
    path, acl = _acl_file(client), server_of(client).acl
    before = {user: user.channels for user in acl.users.values()}
    try:
        gone = acl.load(path)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}. {_UNCHANGED}") from None
    _disconnect_subscribers(client, before)
    _disconnect_users(client, gone)
    return OK


@COMMANDS.command("acl|log", "[count|RESET]", OPERATE, since="6.0.0")
def acl_log(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Return the last refusals, ten by default.

    RESET: Clear the log.
    """
    denials = server_of(client).dispatcher.denials
    if len(argv) > 3:
        raise bad_subcommand(argv)
    if len(argv) == 3 and argv[2].upper() == b"RESET":
        denials.clear()
        return OK
    most = _LOG_ENTRIES if len(argv) == 2 else integer(argv[2])
    now_ms = time.time_ns() // 1_000_000
    return [_denial(denial, now_ms) for denial in denials.newest(most)]


def _denial(denial: Denial, now_ms: int) -> Reply:
    return Map(
        [
            (b"count", denial.count),
            (b"reason", denial.reason.encode()),
            (b"context", denial.context.encode()),
            (b"object", denial.object),
            (b"username", denial.user),
            (b"age-seconds", Double((now_ms - denial.updated_ms) / 1000)),
            (b"client-info", denial.client.encode("utf-8", "surrogateescape")),
            (b"entry-id", denial.number),
            (b"timestamp-created", denial.created_ms),
            (b"timestamp-last-updated", denial.updated_ms),
        ]
    )
