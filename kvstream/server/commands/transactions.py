"""MULTI, DISCARD, WATCH and UNWATCH; EXEC is the executor's own."""

from kvstream.commands.args import Argv
from kvstream.commands.replies import OK, Reply
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.operations.watching import Watched
from kvstream.server.client import Client, Queue


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
