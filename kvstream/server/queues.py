"""What MULTI has queued, as EXEC runs it: one unit of a turn."""

from kvstream.commands.command import Blocked, Command, Later, Stepwise
from kvstream.commands.replies import NULL_ARRAY, ErrorReply, Reply
from kvstream.meta.txn import Txn
from kvstream.operations.watching import Watched
from kvstream.server.calls import Calls
from kvstream.server.client import Answers, Argv, Client, Queue

_UNTOLD = frozenset({Blocked, Later, Stepwise})
"""What is no reply; the last two are answered to those alone who take pages."""
_EXEC_ALONE = ErrorReply("ERR", "EXEC without MULTI")
_EXECABORT = ErrorReply("EXECABORT", "Transaction discarded because of previous errors.")


def refusal_of_exec(calls: Calls, client: Client) -> ErrorReply | None:
    """End a client's MULTI; return why what it has queued is not to be run, where it is not."""
    queue = client.queue
    if queue is None:
        return calls.failed("exec", _EXEC_ALONE)
    client.end_queue()
    return calls.failed("exec", _EXECABORT) if queue.failed else None


def run_queue(calls: Calls, client: Client, queue: Queue, watched: Watched, txn: Txn) -> Reply:
    """Run queued commands; the error of one does not stop the others."""
    begun = calls.clock()
    if watched.is_changed(txn):
        return NULL_ARRAY
    pages, client.pages = client.pages, False  # what follows must be seen by none of its reads
    tracking = calls.trackers.clients.get(client)
    caching = tracking is not None and tracking.caching
    replies = []
    client.in_exec = True
    try:
        for command, argv in queue.commands:
            if tracking is not None:
                tracking.caching = caching  # CLIENT CACHING is about all of them
            replies.append(_answer(calls, client, command, argv, txn))
    finally:
        client.pages, client.in_exec = pages, False
        client.last_command = "exec"
    if client.answers is Answers.SKIP_NEXT:  # the one of EXEC is as a whole
        client.answers = Answers.SKIP
    calls.statistics.ran("exec", calls.clock() - begun)
    return replies


def _answer(calls: Calls, client: Client, command: Command, argv: Argv, txn: Txn) -> Reply:
    client.last_command = "exec"
    if client.user.free and not calls.crowded:
        reply = calls.answer(client, command, argv, txn)
    else:  # rights may have changed since
        refusal = calls.refusal_in_exec(client, command, argv)
        reply = refusal or calls.answer(client, command, argv, txn)
    if type(reply) in _UNTOLD:
        assert isinstance(reply, Blocked)
        return reply.expired
    return reply  # type: ignore[return-value]
