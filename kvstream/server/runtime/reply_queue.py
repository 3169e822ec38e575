"""The replies of a server: they wait until their turn is durable, and long ones are streamed.

The reply queue holds replies until their turn is as durable as the store promises. Clients with
durability ``always`` share an fsync. Answered clients send their next requests within moments; an
fsync that begins before those arrive does not cover them, so they would wait for it and for the
next one. Therefore replies ask for an fsync once as many wait as were answered last, or after half
the mean time of an fsync. The event loop itself does the fsync of a quick disk: waking a thread,
and the loop again, takes as long.

``always: XADD, -P 16`` needs 1.7 times as many fsyncs if each turn asks for its own, ``-P 1`` 1.4
times as many: a disk with slow fsyncs serves that many fewer clients.

The pages of a long reply are made between turns, as fast as the client reads them. No other request
of the client runs until its reply is complete. The reply is made from a snapshot, which keeps files
of the store, so a client that stops reading is disconnected after a time. Sans-IO: the owner of the
sockets calls ``ReplyStreaming.write`` between turns.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from kvstream.commands.command import Answer, Blocked, Later, Stepwise
from kvstream.commands.replies import ErrorReply, Paged, Reply, internal_error
from kvstream.commands.reply_pages import memory_of
from kvstream.engine.turns import TurnFailed
from kvstream.errors import DataError, KVStreamError, UnknownOutcome
from kvstream.logs import DeferredLogger, Throttle
from kvstream.meta.txn import Txn
from kvstream.resp.replies import CHUNK, encode, encode_pages
from kvstream.server.compiled import twins
from kvstream.server.runtime.client import Client, PendingReplies, Server
from kvstream.server.runtime.client_state import ClientState, Event
from kvstream.server.runtime.pubsub import Message, PubSub
from kvstream.storage.durability import Committer
from kvstream.types.clock import monotonic

LINGER_S = 0.001
"""The longest wait for replies to other clients."""
QUICK_S = 0.002
"""The longest mean time of an fsync of a quick disk."""
SLOWEST_S = 0.05
"""A longer fsync counts as this time, so that ten to twenty quick ones restore the mean."""
SHARE = 8
"""The mean moves by this part of the way towards the time of the last fsync."""


class WaitingReplies(Protocol):
    """The replies of a server that wait for an fsync."""

    @property
    def waiting(self) -> int:
        """The number of waiting replies."""
        ...

    def ask(self) -> None:
        """Ask for an fsync that covers them."""
        ...

    def wait(self) -> None:
        """Fsync in this thread, and call ``GroupFsync.end``."""
        ...


class GroupFsync:
    """Decides when the waiting replies of one server ask for their fsync."""

    def __init__(
        self,
        replies: WaitingReplies,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``soon`` calls a function after the reads of the next iteration of the event loop.

        The loop's own clock counts milliseconds, too coarse for an fsync.
        """
        self._replies, self._soon, self._clock = replies, soon, clock
        self._mean_s = 0.0
        """The mean time of an fsync; 0: unknown."""
        self._until = self._asked_at = 0.0
        self._asked_for = self._expected = 0
        self._under_way = self._asked = False

    def begin(self) -> None:
        """Note that replies wait; ask for nothing while an fsync is under way."""
        if not self._under_way:
            self._under_way = True
            self._until = self._clock() + min(self._mean_s / 2, LINGER_S)
            self._soon(self._ask_if_due)

    def end(self) -> None:
        """Note the end of an fsync; expect requests again from the clients that it answered."""
        if not self._asked:
            return
        self._asked = self._under_way = False
        took = min(self._clock() - self._asked_at, SLOWEST_S)
        mean = self._mean_s or took
        self._mean_s = mean + (took - mean) / SHARE
        waiting = self._replies.waiting
        self._expected = self._asked_for + waiting
        if waiting:
            self.begin()

    def _ask_if_due(self) -> None:
        waiting, now = self._replies.waiting, self._clock()
        if waiting < self._expected and now < self._until:
            self._soon(self._ask_if_due)
        elif waiting:
            self._asked, self._asked_for, self._asked_at = True, waiting, now
            if 0 < self._mean_s <= QUICK_S:
                self._replies.wait()
            else:
                self._replies.ask()
        else:  # they were answered otherwise: the durability was changed
            self._under_way = False


_log, _damage = DeferredLogger(__name__), Throttle()

LONG = 64 << 10
"""Bytes: a larger reply is sent as soon as it is encoded, to save memory."""

WAITING_BYTES_MAX = 64 << 20
"""Bytes of replies that may wait for an fsync; beyond that the executor waits for it too."""
HOLDING: Final = frozenset({Blocked, Later, Stepwise, Paged})
"""Types of answers after which no more requests of the client run for now: no reply is there yet,
or it is written page by page."""

Operation = Callable[[Txn], Answer]


@dataclass(slots=True, eq=False)
class PendingReply:
    """A reply, and the unit that made it, in case it has to run again."""

    client: Client
    reply: Answer = None
    unit: Operation | None = None
    """The function that makes the reply; None: the reply does not depend on the store."""
    db: int = 0
    protocol: int = 0
    """The version of RESP; 0: that of the client when the reply is written."""
    depends: bool = True
    """It depends on the store: if the fsync fails it is replaced by an error."""
    is_sent: bool | None = None
    """Whether it is written, by CLIENT REPLY; None: not decided yet."""
    reads: bool = False
    """The unit does not write, but may delete what has expired."""
    head: bytes = b""
    """Encoded replies to requests before this one, which are sent with it."""

    def encode(self) -> bytes:
        """Return the encoded reply; empty if nothing is written."""
        reply = self.reply
        if self.is_sent is False or type(reply) in HOLDING:
            return b""
        protocol = self.protocol or self.client.protocol
        try:
            encoded = encode(cast(Reply, reply), protocol)
        except KVStreamError as error:  # damaged rows are found when they are encoded
            encoded = encode(ErrorReply.of(error), protocol)
        return self.head + encoded if self.head else encoded

    def is_wanted(self) -> bool:
        """Return whether the reply is written; decided once, since CLIENT REPLY SKIP counts."""
        if self.is_sent is None:
            self.is_sent = self.client.wants_next()
        return self.is_sent

    def memory(self) -> int:
        """Return the bytes that the reply takes while it waits."""
        return memory_of(self.reply)

    def depends_on_store(self) -> bool:
        """Return whether the reply, or one that is sent with it, depends on the store."""
        return self.depends or bool(self.head)

    def fail(self, error: ErrorReply) -> None:
        """Replace a reply that depends on the store by the error of the fsync."""
        if self.depends and not isinstance(self.reply, Blocked | ErrorReply):
            self.reply = error


if twins is not None:
    twins.bind_replies(PendingReply)


class Requeued(list[bytes]):
    """A request put back among its client's requests: its turn failed, or it was put off."""

    __slots__ = ("pending",)

    def __init__(self, pending: PendingReply) -> None:
        super().__init__()
        self.pending = pending


# --- long replies ---------------------------------------------------------------------------------

PAGES_S = 0.002
"""Time for pages between two turns."""
AHEAD = CHUNK
"""No page is made for a client with more unread bytes than this."""
IDLE_S = 60.0
"""A client that reads nothing of a reply for so long is disconnected."""


@dataclass(slots=True)
class StreamedReply:
    """A reply that is streamed."""

    pages: Iterator[bytes]
    command: str
    memory: int
    """Bytes that it took when streaming began."""
    moved: float
    """When the last page was sent."""


class ReplyStreaming:
    """The streamed replies of one server's clients."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.under_way: dict[Client, StreamedReply] = {}

    def begin(self, client: Client, reply: Paged, protocol: int) -> None:
        """Begin to stream a reply; the replies before it are sent."""
        pages = encode_pages(reply.reply, protocol)
        self.under_way[client] = StreamedReply(
            pages, client.last_command, memory_of(reply), self._server.clock()
        )

    def memory_of(self, client: Client) -> int:
        """Return the bytes that a client's streamed reply takes."""
        reply = self.under_way.get(client)
        return 0 if reply is None else reply.memory

    def release(self, client: Client) -> None:
        """Resume a client whose reply was streamed, or close it if it is closing."""
        if client.state is ClientState.STREAMED:
            client.handle(Event.RESUME)
            if client.closing:
                client.close()
            else:
                self._server.ready[client] = None

    def forget(self, client: Client) -> None:
        """Stop streaming to a client and release the snapshot."""
        reply = self.under_way.pop(client, None)
        if reply is not None:
            reply.pages.close()  # type: ignore[attr-defined]

    def write(self) -> bool:
        """Write pages for PAGES_S; return whether more can be written at once."""
        clock = self._server.clock
        until = clock() + PAGES_S
        waiting = [client for client in self.under_way if client.pending_output() <= AHEAD]
        while waiting:
            following = []
            for client in waiting:
                if client in self.under_way and self._write_page(client):
                    following.append(client)
                if clock() >= until:
                    return True
            waiting = following
        return False

    def _write_page(self, client: Client) -> bool:
        """Write one page; return whether the client may get another one now."""
        reply = self.under_way[client] = self.under_way.pop(client)  # to the end of the queue
        begun = self._server.clock()
        try:
            page = next(reply.pages, None)
        except Exception as error:
            self._fail(client, reply, error)
            return False
        reply.moved = client.last_used = self._server.clock()
        self._server.statistics.of(reply.command).seconds += reply.moved - begun
        if page is None:
            del self.under_way[client]
            self.release(client)
            return False
        if page:
            client.send(page)
        return client.pending_output() <= AHEAD

    def _fail(self, client: Client, reply: StreamedReply, error: Exception) -> None:
        """Close a connection in the middle of a reply, where no error can be sent."""
        code = error.code if isinstance(error, KVStreamError) else "ERR"
        self._server.statistics.count_failure(reply.command, code)
        _log.error("%s: a reply of %s broke off: %s", client.address, reply.command, str(error))
        self._server.drop(client)

    def tick(self) -> None:
        """Disconnect clients that have stopped reading."""
        over = self._server.clock() - IDLE_S
        for client, reply in list(self.under_way.items()):
            if reply.moved < over:
                self._server.statistics.output_disconnections += 1
                self._server.drop(client)


# --- the queue ------------------------------------------------------------------------------------


class Acks(Protocol):
    """What replicas have acknowledged, if replies wait for that."""

    wanted: int
    """How many must have a write before it is acknowledged; 0: none."""
    reached: int
    """The sequence number up to which they have."""

    def delays(self, sequence: int) -> bool:
        """Return whether replies to a commit wait for replicas."""
        ...

    def release_by(
        self,
        release: Callable[[KVStreamError | None], None],
        fail: Callable[[KVStreamError], None],
    ) -> None:
        """Call ``release`` when replies wait no more, with an error if that took too long.

        ``fail`` ends all waits, whatever they are for.
        """
        ...


class ReplyQueue:
    """The replies of committed turns, in order."""

    def __init__(
        self,
        committer: Committer,
        server: Server,
        streaming: ReplyStreaming,
        pubsub: PubSub,
        acks: Acks,
    ) -> None:
        self._committer, self._acks = committer, acks
        acks.release_by(self.release_acknowledged, self._fail_all)
        self._server = server
        self._streaming = streaming
        self._pubsub = pubsub
        self._waiting: deque[tuple[int, list[PendingReplies], list[Client], int]] = deque()
        self.waiting_bytes = 0
        """Bytes of memory that waiting replies take."""
        self.group_fsync: GroupFsync | None = None
        """None: each turn asks for its own fsync."""

    def is_waiting(self) -> bool:
        """Return whether replies wait for an fsync."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """The number of waiting replies; those of a batch are one."""
        return sum([len(replies) for _, replies, _, _ in self._waiting])

    def ask_together(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """Make several turns share an fsync; ``soon`` is that of ``GroupFsync``."""
        self.group_fsync = GroupFsync(self, soon)

    def send(self, sequence: int, replies: list[PendingReplies]) -> None:
        """Write replies once that sequence number is durable, after those of earlier turns."""
        if self._acks.wanted and (self._waiting or (sequence and self._delays(sequence))):
            replies = self._send_free(replies)
            if not replies:
                return
        closing = closing_clients(replies)
        if not self._waiting and not (sequence and self._delays(sequence)):
            return self._write(replies, closing)
        if self._waiting:  # replies are sent in order
            sequence = max(sequence, self._waiting[-1][0])
        size = sum([pending.memory() for pending in replies])
        self._waiting.append((sequence, replies, closing, size))
        self.waiting_bytes += size
        if self.waiting_bytes > WAITING_BYTES_MAX:
            self.wait()
        elif self.group_fsync is not None and self._committer.delays(sequence):
            self.group_fsync.begin()
        else:
            self.ask()

    def _send_free(self, replies: list[PendingReplies]) -> list[PendingReplies]:
        """Send what depends on no data to clients that wait for nothing; return the others.

        Among those are the replies by which a replica introduces itself: if they waited for
        replicas, it could not come back. A Sentinel takes a PING that waits for a dead server, and
        so one behind a PUBLISH that does; the message itself waits for its turn.
        """
        if all(each.depends_on_store() for each in replies):
            return replies
        held = {each.client for _, waiting, _, _ in self._waiting for each in waiting}
        free, others = list[PendingReplies](), list[PendingReplies]()
        for each in replies:
            client = each.client
            if each.depends_on_store() or client in held or client.subscriptions is not None:
                held.add(client)
                others.append(each)
            else:
                free.append(each)
        write_replies(free, self._begin_pages, LONG)
        for client in closing_clients(free):
            if client.state is not ClientState.STREAMED:
                client.close()
        return others

    def _delays(self, sequence: int) -> bool:
        """Return whether replies wait for an fsync, or for replicas."""
        return self._committer.delays(sequence) or self._acks.delays(sequence)

    def release_acknowledged(self, error: KVStreamError | None) -> None:
        """Send what waits for replicas no more; with an error, all that do wait fail with it."""
        if not self._waiting:
            return
        last = self._waiting[-1][0]
        if error is None and self._acks.delays(last):
            last = self._acks.reached
        if error is None and self._committer.delays(last):
            last = self._committer.durable_sequence
        self._drain(last, error)

    def _fail_all(self, error: KVStreamError) -> None:
        """Answer all that waits with an error."""
        if self._waiting:
            self._drain(self._waiting[-1][0], error)

    def ask(self) -> None:
        """Send the waiting replies after the next fsync."""
        sequence = self._waiting[-1][0]
        self._committer.after(
            sequence, partial(self._post, sequence, None), partial(self._post, sequence)
        )

    def wait(self) -> None:
        """Fsync in this thread, and send all waiting replies."""
        sequence = self._waiting[-1][0]
        try:
            self._committer.wait(sequence)
        except UnknownOutcome as error:
            self._drain(sequence, error)
        else:
            self._drain(sequence, None)

    def _post(self, sequence: int, error: KVStreamError | None) -> None:
        self._server.post(partial(self._drain, sequence, error))

    def _drain(self, sequence: int, error: KVStreamError | None) -> None:
        waiting = self._waiting
        if error is None and self._acks.delays(sequence):
            sequence = self._acks.reached
        while waiting and waiting[0][0] <= sequence:
            _, replies, closing, size = waiting.popleft()
            self.waiting_bytes -= size
            if error is not None:
                for pending in replies:
                    if (
                        isinstance(pending, PendingReply)
                        and type(pending.reply) is Paged
                        and pending.is_sent
                    ):
                        self._streaming.release(pending.client)
                    pending.fail(ErrorReply.of(error))
            self._write(replies, closing)
        if self._pubsub.queue:
            self._pubsub.send_some()
        if self.group_fsync is not None:
            self.group_fsync.end()

    def _write(self, replies: list[PendingReplies], closing: list[Client]) -> None:
        pubsub = self._pubsub
        # has_messages may clear is_used, but turns that still wait may hold messages.
        if pubsub.is_used and (self._waiting or pubsub.has_messages(replies)):
            self._write_with_messages(replies)
        else:
            write_replies(replies, self._begin_pages, LONG)
        for client in closing:
            if client.state is not ClientState.STREAMED:
                client.close()

    def _write_with_messages(self, replies: list[PendingReplies]) -> None:
        """Send replies, in order with the messages to the same clients.

        Messages wait for the next PendingReply: no pipeline or batch is of a subscribed client.
        """
        pubsub, messages, answered = self._pubsub, list[Message](), dict[Client, None]()
        for pending in replies:
            if isinstance(pending, Message):
                messages.append(pending)
                continue
            if messages and isinstance(pending, PendingReply):
                pubsub.append(messages)
                messages = []
            client = pending.client
            reply = b"" if client.lost else pending.encode()
            if reply:
                pubsub.append_reply(client, reply)
                answered[client] = None
            begins_pages = client.reply_unfinished and not reply and not client.lost
            if len(reply) > LONG or begins_pages:
                pubsub.send(client)
            if begins_pages:
                self._begin_pages(pending)
        pubsub.append(messages)
        for client in answered:
            pubsub.send(client)

    def _begin_pages(self, pending: PendingReplies) -> None:
        """Begin to stream a long reply after the replies before it."""
        if isinstance(pending, PendingReply) and type(pending.reply) is Paged and pending.is_sent:
            self._streaming.begin(
                pending.client, pending.reply, pending.protocol or pending.client.protocol
            )


def write_in_python(
    replies: list[PendingReplies], begin_pages: Callable[[PendingReplies], None], most: int
) -> None:
    """Send replies, those of one client together; send one above ``most`` bytes once it is encoded.

    ``begin_pages`` is called for a reply without bytes whose client has an unfinished reply.
    """
    parts: dict[Client, bytes | list[bytes]] = {}
    for pending in replies:
        client = pending.client
        if client.lost:
            continue
        reply = pending.encode()
        if not reply:
            if client.reply_unfinished:
                begin_pages(pending)
            continue
        before = parts.get(client)
        if before is None:
            parts[client] = reply
        elif type(before) is list:
            before.append(reply)
        else:
            parts[client] = [before, reply]  # type: ignore[list-item]
        if len(reply) > most:
            _send(client, parts.pop(client))
    for client, texts in parts.items():
        _send(client, texts)


def closing_in_python(replies: list[PendingReplies]) -> list[Client]:
    """Return the clients of ``replies`` that are closing."""
    return [pending.client for pending in replies if pending.client.closing]


write_replies, closing_clients = write_in_python, closing_in_python
if twins is not None:
    write_replies, closing_clients = twins.write_replies, twins.closing_clients


def _send(client: Client, replies: bytes | list[bytes]) -> None:
    client.send(b"".join(replies) if isinstance(replies, list) else replies)


def error_of(failure: Exception) -> ErrorReply:
    """Return the error reply of a failed unit, from a TurnFailed or its cause.

    Raises the failure if its cause is not an Exception.
    """
    cause = failure.__cause__ if isinstance(failure, TurnFailed) else failure
    if isinstance(cause, DataError):
        _damage.log(_log, logging.ERROR, "a request has met damage: %s", cause)
    if isinstance(cause, KVStreamError):
        return ErrorReply.of(cause)
    if isinstance(cause, Exception):
        return internal_error(cause)
    raise failure
