"""ECHO, PING and SELECT."""

from kvstream.commands.args import Argv, database, wrong_arity
from kvstream.commands.command import Family, Session, flags
from kvstream.commands.replies import OK, Reply, Simple
from kvstream.meta.txn import Txn

COMMANDS = Family("connection")
PONG = Simple("PONG")


@COMMANDS.command("echo", "message", flags("loading stale fast"), since="1.0.0")
def echo(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the message."""
    return argv[1]


@COMMANDS.command(
    *("ping", "[message]", flags("fast")),
    since="1.0.0",
    tips="request_policy:all_shards response_policy:all_succeeded",
)
def ping(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return PONG, or the message."""
    if len(argv) > 2:
        raise wrong_arity("ping")
    return argv[1] if len(argv) == 2 else PONG


@COMMANDS.command("select", "index", flags("loading stale fast"), since="1.0.0")
def select(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Select one of the numbered databases for the commands that follow."""
    session.select(database(argv[1], session.databases))
    return OK
