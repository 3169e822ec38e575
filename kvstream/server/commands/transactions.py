"""MULTI, EXEC, DISCARD, WATCH and UNWATCH. The executor runs EXEC itself."""

from kvstream.commands.args import Argv
from kvstream.commands.command import EVERY, Family, flags
from kvstream.commands.replies import OK, Reply
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import Watched
from kvstream.server.runtime.client import Client, Queue

COMMANDS = Family("transactions")
_UNWATCH = flags("noscript loading stale fast allow_busy local")
_MULTI = _UNWATCH | flags("immediate")
_WATCH = flags("noscript loading stale fast allow_busy immediate")


@COMMANDS.command("multi", "", _MULTI, since="1.2.0")
def multi(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Queue the commands that follow until EXEC, which runs them in one commit."""
    if client.queue is not None:
        raise RequestError("MULTI calls can not be nested")
    client.queue = Queue()
    return OK


@COMMANDS.command(
    *("exec", "", flags("noscript loading stale skip_slowlog immediate")), since="1.2.0"
)
def exec_(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Run the queued commands in one commit; null if a watched key has changed."""
    raise RequestError("EXEC without MULTI")


@COMMANDS.command("discard", "", _MULTI, since="2.0.0")
def discard(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Discard the queued commands."""
    if client.queue is None:
        raise RequestError("DISCARD without MULTI")
    client.end_queue()
    return OK


@COMMANDS.command("watch", "key [key ...]", _WATCH, EVERY, since="2.2.0", uses="RO")
def watch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Make EXEC do nothing if one of the keys changes before it."""
    if client.queue is not None:
        raise RequestError("WATCH inside MULTI is not allowed")
    for key in argv[1:]:
        client.watched.add(txn, client.prefix + key)
    return OK


@COMMANDS.command("unwatch", "", _UNWATCH, since="2.2.0")
def unwatch(txn: Txn, client: Client, argv: Argv) -> Reply:
    """Stop watching keys."""
    client.watched = Watched()
    return OK
