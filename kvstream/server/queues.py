"""What MULTI has queued, as EXEC runs it: one unit of a turn."""

from kvstream.commands.command import Blocked
from kvstream.commands.replies import NULL_ARRAY, Reply
from kvstream.meta.txn import Txn
from kvstream.operations.watching import fingerprint
from kvstream.server.calls import Calls
from kvstream.server.client import Client, Queue


def run_queue(
    calls: Calls, client: Client, queue: Queue, watched: dict[bytes, object], txn: Txn
) -> Reply:
    """Run queued commands; the error of one does not stop the others."""
    begun = calls.clock()
    if any(fingerprint(txn, name) != before for name, before in watched.items()):
        return NULL_ARRAY
    replies: list[Reply] = []
    for command, argv in queue.commands:
        refusal = calls.refusal(client, command, argv)  # rights may have changed since
        reply = refusal or calls.answer(client, command, argv, txn)
        replies.append(reply.expired if isinstance(reply, Blocked) else reply)
    calls.statistics.ran("exec", calls.clock() - begun)
    return replies
