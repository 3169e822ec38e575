"""MULTI and EXEC: queued commands run as one unit of a turn; their replies have one limit.

Requests that need no check before EXEC are queued together, with one lookup each, and EXEC runs
with them if it is next: all have one reply. Without that a MULTI of 100 INCR takes 1.5 times the
processor time. EXEC appends XADDs to one key together; without that a MULTI of 100 XADD takes 1.6
times.
"""

from collections.abc import Mapping
from itertools import groupby

from kvstream.commands.append import add_plain
from kvstream.commands.command import (
    LATER,
    Answer,
    Blocked,
    Command,
    Container,
    Flag,
    spellings,
)
from kvstream.commands.replies import (
    NULL_ARRAY,
    OK,
    ErrorReply,
    Paged,
    Reply,
    Shared,
    Simple,
)
from kvstream.commands.reply_pages import OBJECT_BYTES, free_when_written, memory_of
from kvstream.errors import RequestError
from kvstream.meta.txn import Txn
from kvstream.operations.watch import Watched
from kvstream.resp.replies import encode
from kvstream.resp.requests import ARGUMENT_BYTES
from kvstream.server.compiled import calls as twins
from kvstream.server.runtime.client import Argv, Client, MultiQueue, ReplyMode
from kvstream.server.runtime.dispatch import Dispatcher
from kvstream.server.runtime.reply_queue import PendingReply
from kvstream.types.options import Limits

SMALL = 1 << 10
"""Bytes: smaller replies are never refused."""
_MINIMAL = frozenset({int, Simple, type(None)})
"""Types of replies whose size need not be measured."""
QUEUED = Simple("QUEUED")
_MULTI, _EXEC = spellings("multi"), spellings("exec")
_EXEC_ALONE = ErrorReply("ERR", "EXEC without MULTI")
_EXECABORT = ErrorReply("EXECABORT", "Transaction discarded because of previous errors.")


class ExecReplies:
    """The memory that the replies of one EXEC may take together: as much as one other reply."""

    def __init__(self, limits: Limits, short_bytes: int) -> None:
        self.limits, self.short_bytes = limits, short_bytes
        self.size = 0
        """Bytes that the replies take so far."""
        self.is_long = False
        """Whether the whole reply is to be streamed."""

    def take(self, command: Command, reply: Reply) -> Reply:
        """Count a reply and return it, or return an error if it exceeds the limit.

        The reply of a command that has written is never refused.
        """
        limits, size = self.limits, OBJECT_BYTES if type(reply) in _MINIMAL else memory_of(reply)
        total = self.size + size
        if size > SMALL and 0 < limits.reply_max < total and not command.writes:
            return ErrorReply.of(limits.too_large())
        self.size = limits.reply_held = total
        if type(reply) is Paged or total > self.short_bytes:
            self.is_long = True
        return reply

    def leave(self) -> None:
        """Restore the full limit for the replies of others."""
        self.limits.reply_held = 0


def queueable(commands: Mapping[bytes, Command | Container]) -> dict[bytes, Command]:
    """Return the commands that MULTI queues, by their names as clients write them."""
    return {
        word: row
        for row in commands.values()
        if isinstance(row, Command)
        and not row.is_immediate
        and Flag.NO_MULTI not in row.flags
        and row.channels is None
        for word in spellings(row.name)
    }


def queue_plain(client: Client, commands: dict[bytes, Command], most: int) -> int:
    """Queue the next requests of a client in MULTI that need no check; return how many.

    It stops at a request that is not one of ``commands`` or has a wrong number of words.
    """
    if not (client.user.free and client.authenticated and client.reply_mode is ReplyMode.ON):
        return 0
    queue = client.queue
    assert queue is not None
    if twins is not None and not queue.failed:
        return twins.queue_plain(client, commands, most, ARGUMENT_BYTES)
    return queue_in_python(client, queue, commands, most)


def queue_in_python(
    client: Client, queue: MultiQueue, commands: Mapping[bytes, Command], most: int
) -> int:
    """Do what ``queue_plain`` does for a client that needs no check."""
    requests, count = client.requests, 0
    while requests and count < most:
        argv = requests[0]
        command = commands.get(argv[0]) if argv else None  # a Requeued is empty
        if command is None or (len(argv) != command.arity and not 0 < -command.arity <= len(argv)):
            break
        queue.add(command, requests.popleft())
        client.last_command = command.name
        count += 1
    return count


def is_multi(argv: Argv) -> bool:
    """Return whether a request is MULTI as most clients write it."""
    return len(argv) == 1 and argv[0] in _MULTI


def is_exec(argv: Argv) -> bool:
    """Return whether a request is EXEC as most clients write it."""
    return len(argv) == 1 and argv[0] in _EXEC


def begin(dispatcher: Dispatcher, client: Client) -> None:
    """Run the next request of a plain client, which is MULTI; the caller updates its path."""
    begun = dispatcher.clock()
    client.requests.popleft()
    client.begin_queue()
    client.last_command = "multi"
    client.commands_run += 1
    dispatcher.statistics.count("multi", dispatcher.clock() - begun)


def lines_to_queued(count: int, begins: bool) -> bytes:
    """Return the encoded replies to MULTI, if it ``begins``, and ``count`` queued requests."""
    return OK.line + QUEUED.line * count if begins else QUEUED.line * count


def reply_of_lines(client: Client, lines: bytes) -> PendingReply:
    """Return encoded replies as a pending one, which depends on no commit."""
    shared = Shared(QUEUED, {client.protocol: lines})
    return PendingReply(client, shared, protocol=client.protocol, depends=False, is_sent=True)


def refusal_of_exec(dispatcher: Dispatcher, client: Client) -> ErrorReply | None:
    """End a client's MULTI; return the error if its queue must not run."""
    queue = client.queue
    if queue is None:
        return dispatcher.fail("exec", _EXEC_ALONE)
    client.end_queue()
    return dispatcher.fail("exec", _EXECABORT) if queue.failed else None


def run_queue(
    dispatcher: Dispatcher, client: Client, queue: MultiQueue, watched: Watched, txn: Txn
) -> Answer:
    """Run queued commands; an error of one does not stop the others."""
    if queue.runs_scripts and client.pages and dispatcher.prepare_scripts():
        return LATER
    begun = dispatcher.clock()
    if watched.is_changed(txn):
        return NULL_ARRAY
    room = ExecReplies(txn.catalog.limits, txn.thresholds.short_bytes)
    tracking = dispatcher.trackers.clients.get(client)
    caching = tracking is not None and tracking.caching
    protocol, calls = client.protocol, dispatcher.plain_calls
    replies: list[Reply] = []
    client.in_exec = True
    try:
        for run in _runs(queue.commands) if queue.appends else [queue.commands]:
            are_xadds = queue.appends and len(run) > 1 and _is_xadd(run[0])
            ids = _add_together(dispatcher, client, run, txn) if are_xadds else []
            if ids:
                replies += [room.take(run[0][0], eid) for eid in ids]
                continue
            at = 0
            while at < len(run):
                if calls is not None and client.protocol == protocol:
                    at = calls.run_queue(client, run, at, txn, room, replies)
                    if at == len(run):
                        break
                dispatcher.recorder.record_collected(txn)  # INFO shows the calls before it
                command, argv = run[at]
                at += 1
                if tracking is not None:
                    tracking.caching = caching  # CLIENT CACHING applies to the whole transaction
                reply = room.take(command, _answer(dispatcher, client, command, argv, txn))
                if client.protocol != protocol and type(reply) is not Paged:
                    # HELLO ran: its reply and those after it are of the new protocol
                    reply = Shared(reply, {protocol: encode(reply, client.protocol)})
                replies.append(reply)
                dispatcher.update_path()
    finally:
        client.in_exec = False
        room.leave()
        client.last_command = "exec"
    if client.reply_mode is ReplyMode.SKIP_NEXT:  # EXEC has one reply
        client.reply_mode = ReplyMode.SKIP
    dispatcher.statistics.count("exec", dispatcher.clock() - begun)
    return free_when_written(replies, room.size) if client.pages and room.is_long else replies


Queued = tuple[Command, Argv]


def _is_xadd(queued: Queued) -> bool:
    """Return whether a command is an XADD without options."""
    return queued[0].name == "xadd" and queued[1][2] == b"*"


def _runs(commands: list[Queued]) -> list[list[Queued]]:
    """Split commands into runs: XADDs without options to one key, and all between these."""
    return [
        list(alike)
        for _, alike in groupby(commands, lambda each: each[1][1] if _is_xadd(each) else None)
    ]


def _add_together(
    dispatcher: Dispatcher, client: Client, run: list[Queued], txn: Txn
) -> list[bytes]:
    """Run XADDs to one key as one operation, and return the IDs.

    If they must run one by one, nothing is added and the list is empty.
    """
    dispatcher.update_path()  # commands before them in the queue may change it
    if not (client.user.free and dispatcher.batches_xadds) or dispatcher.trackers.clients:
        return []
    begun = dispatcher.clock()
    try:
        ids = add_plain(txn, client, [argv for _, argv in run])
    except RequestError:  # each of them gets its own reply
        return []
    seconds, names = dispatcher.clock() - begun, [client.prefix + run[0][1][1]]
    dispatcher.recorder.record_xadds(names, len(ids), seconds, txn)
    client.commands_run += len(ids)
    return ids


def _answer(
    dispatcher: Dispatcher, client: Client, command: Command, argv: Argv, txn: Txn
) -> Reply:
    client.last_command = "exec"
    if client.user.free and not dispatcher.over_maxmemory and command.channels is None:
        reply = dispatcher.answer(client, command, argv, txn)
    else:  # the ACL may have changed since the command was queued
        refusal = dispatcher.refusal_in_exec(client, command, argv)
        reply = refusal or dispatcher.answer(client, command, argv, txn)
    if type(reply) is Blocked:  # in EXEC there is neither Later nor Stepwise
        return reply.expired
    return reply  # type: ignore[return-value]
