"""What MULTI has queued, as EXEC runs it: one unit of a turn."""

from kvstream.commands.command import Blocked, Command, Later, Stepwise
from kvstream.commands.paging import given_up, memory_of
from kvstream.commands.replies import NULL_ARRAY, ErrorReply, Paged, Reply
from kvstream.meta.limits import Limits
from kvstream.meta.txn import Txn
from kvstream.operations.pages import SHORT_BYTES
from kvstream.operations.watching import Watched
from kvstream.server.calls import Calls
from kvstream.server.client import Answers, Argv, Client, Queue

SMALL = 1 << 10
"""A reply of no more bytes than this is told in any case."""
_UNTOLD = frozenset({Blocked, Later, Stepwise})
"""What is no reply; the last two are answered outside of EXEC alone."""
_EXEC_ALONE = ErrorReply("ERR", "EXEC without MULTI")
_EXECABORT = ErrorReply("EXECABORT", "Transaction discarded because of previous errors.")


class Room:
    """The memory that the replies of one EXEC may take: they are one reply, with one limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held = 0
        """Bytes that they take."""
        self.is_long = False
        """Whether the whole is to be written page by page."""

    def take(self, command: Command, reply: Reply) -> Reply:
        """Count a reply and return it, or an error instead where it is one too many.

        What a command has written is told in any case.
        """
        limits, size = self._limits, memory_of(reply)
        held = self.held + size
        if size > SMALL and 0 < limits.reply_max < held and not command.writes:
            return ErrorReply.of(limits.too_large())
        self.held = limits.reply_held = held
        if type(reply) is Paged or held > SHORT_BYTES:
            self.is_long = True
        return reply

    def leave(self) -> None:
        """Let the replies of others have their own limits."""
        self._limits.reply_held = 0


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
    room = Room(txn.catalog.limits)
    tracking = calls.trackers.clients.get(client)
    caching = tracking is not None and tracking.caching
    replies: list[Reply] = []
    client.in_exec = True
    try:
        for command, argv in queue.commands:
            if tracking is not None:
                tracking.caching = caching  # CLIENT CACHING is about all of them
            reply = _answer(calls, client, command, argv, txn)
            replies.append(room.take(command, reply))
    finally:
        client.in_exec = False
        room.leave()
        client.last_command = "exec"
    if client.answers is Answers.SKIP_NEXT:  # the one of EXEC is as a whole
        client.answers = Answers.SKIP
    calls.statistics.ran("exec", calls.clock() - begun)
    return given_up(replies, room.held) if client.pages and room.is_long else replies


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
