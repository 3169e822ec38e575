"""AUTH and ACL: who a client is, and what users may do."""

import secrets
import time

from kvstream.commands.args import Argv, integer, syntax_error, text
from kvstream.commands.replies import OK, Double, Map, Reply, SetReply
from kvstream.commands.table import find
from kvstream.errors import InvalidArgument, RequestError
from kvstream.meta.txn import Txn
from kvstream.server.acl import DEFAULT, Denial, NoPermission, Rights, User
from kvstream.server.command_docs import CATEGORIES, every, named
from kvstream.server.commands.admin import help_of, not_so, server_of
from kvstream.server.runtime.client import Client

_NO_PASSWORD = (
    "AUTH <password> called without any password configured for the default user. Are you sure "
    "your configuration is correct?"
)
_GENPASS_BITS, _GENPASS_BITS_MAX = 256, 4096
_LOG_ENTRIES = 10
_NO_FILE = (
    "This Redis instance is not configured to use an ACL file. You may want to specify users via "
    "the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis "
    "configuration file set) in order to store users in the Redis configuration."
)
"""Redis's own words, for tools look for them. Here CONFIG REWRITE stores no users."""


def auth(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Give the password, of the default user where no other is named."""
    if len(argv) > 3:
        raise syntax_error()
    if len(argv) == 2 and server_of(client).acl.default.nopass:
        raise RequestError(_NO_PASSWORD)
    server_of(client).log_in(client, argv[1] if len(argv) == 3 else DEFAULT, argv[-1])
    return OK


def acl_whoami(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the name of this connection's user."""
    return client.user.name


def acl_users(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the names of all users."""
    return sorted(server_of(client).acl.users)


def acl_list(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the rules of every user."""
    return [user.describe() for _, user in sorted(server_of(client).acl.users.items())]


def acl_cat(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer the categories, or the commands of one."""
    if len(argv) == 2:
        return [name.encode() for name in CATEGORIES]
    if len(argv) > 3:
        raise not_so("ACL", argv)
    category = text(argv[2].lower())
    if category not in CATEGORIES:
        raise InvalidArgument(f"Unknown category '{text(argv[2])}'")
    return [each.name.encode() for each in named(every(server_of(client).commands), category)]


def acl_getuser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what a user is and may do; a null where there is none."""
    user = server_of(client).acl.users.get(argv[2])
    if user is None:
        return None
    flags: list[Reply] = [b"on" if user.on else b"off"]
    flags += [b"nopass"] if user.nopass else []
    return Map(
        [
            (b"flags", SetReply(flags)),
            (b"passwords", list(user.passwords)),
            *_told(user.root),
            (b"selectors", [Map(_told(rights)) for rights in user.selectors]),
        ]
    )


def _told(rights: Rights) -> list[tuple[Reply, Reply]]:
    return [
        (b"commands", rights.commands_text),
        (b"keys", rights.keys_text),
        (b"channels", rights.channels_text),
    ]


def acl_setuser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make or change a user by rules, by all of them or none."""
    if any(byte <= 32 for byte in argv[2]):
        raise InvalidArgument("Usernames can't contain spaces or null characters")
    server = server_of(client)
    kept = server.options.kept.get(b"acl-pubsub-default")
    new = kept == b"allchannels" and argv[2] not in server.acl.users
    server.acl.set_user(argv[2], [b"allchannels", *argv[3:]] if new else argv[3:])
    return OK


def acl_deluser(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Forget users, close their connections, and answer how many there were."""
    server = server_of(client)
    if DEFAULT in argv[2:]:
        raise InvalidArgument("The 'default' user cannot be removed")
    gone = [user for name in argv[2:] if (user := server.acl.delete_user(name)) is not None]
    for other in list(server.clients.values()):
        if any(other.user is user for user in gone):
            _part(client, other)
    return len(gone)


def _part(client: Client, other: Client) -> None:
    if other is client:
        client.closing = True
    else:
        server_of(client).drop(other)


def acl_genpass(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer a password that nobody guesses, of 256 bits unless told."""
    bits = _GENPASS_BITS
    if len(argv) > 3:
        raise not_so("ACL", argv)
    if len(argv) == 3:
        bits = integer(argv[2])
        if not 0 < bits <= _GENPASS_BITS_MAX:
            raise InvalidArgument(
                "ACL GENPASS argument must be the number of bits for the output password, a "
                f"positive number up to {_GENPASS_BITS_MAX}"
            )
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits].encode()


def acl_dryrun(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer OK, or why a user may not run a command."""
    user = server_of(client).acl.users.get(argv[2])
    if user is None:
        raise InvalidArgument(f"User '{text(argv[2])}' not found")
    return _dry_run(client, user, argv[3:])


def _dry_run(client: Client, user: User, argv: Argv) -> Reply:
    try:
        command = find(argv, server_of(client).commands)
    except RequestError as error:
        raise InvalidArgument(f"Command '{text(argv[0])}' not found") from error
    try:
        user.check(command, argv)
    except NoPermission as refusal:
        told = str(refusal)
        if refusal.kind == "key":
            key = text(refusal.object)
            told = f"User {text(user.name)} has no permissions to access the '{key}' key"
        return told.encode("utf-8", "surrogateescape")
    return OK


def acl_save(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Write all users into the ACL file."""
    path = server_of(client).options.aclfile
    if path is None:
        raise RequestError(_NO_FILE)
    server_of(client).acl.save(path)
    return OK


def acl_load(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Read all users from the ACL file, or none where one is wrong."""
    path = server_of(client).options.aclfile
    if path is None:
        raise RequestError(_NO_FILE)
    gone = server_of(client).acl.load(path)
    for other in list(server_of(client).clients.values()):
        if any(other.user is user for user in gone):
            _part(client, other)
    return OK


def acl_log(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Answer what was refused last, ten entries unless told, or forget it."""
    denials = server_of(client).calls.denials
    if len(argv) > 3:
        raise not_so("ACL", argv)
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
            (b"age-seconds", Double((now_ms - denial.created_ms) / 1000)),
            (b"client-info", denial.client.encode("utf-8", "surrogateescape")),
            (b"entry-id", denial.number),
            (b"timestamp-created", denial.created_ms),
            (b"timestamp-last-updated", denial.updated_ms),
        ]
    )


acl_help = help_of(
    "ACL",
    ("CAT [<category>]", "Show the categories, or the commands of one."),
    ("DELUSER <name> [<name> ...]", "Forget users and close their connections."),
    ("DRYRUN <name> <command> [<arg> ...]", "Show whether a user may run a command."),
    ("GENPASS [<bits>]", "Make a password."),
    ("GETUSER <name>", "Show what a user is and may do."),
    ("LIST", "Show the rules of every user."),
    ("LOAD", "Read all users from the ACL file."),
    ("LOG [<count>|RESET]", "Show what was refused last, 10 entries unless given, or forget it."),
    ("SAVE", "Write all users into the ACL file."),
    ("SETUSER <name> [<rule> ...]", "Make or change a user."),
    ("USERS", "Show the names of all users."),
    ("WHOAMI", "Show the user of this connection."),
)
