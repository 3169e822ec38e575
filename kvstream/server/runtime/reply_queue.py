"""Replies on their way: kept until what they tell of is as durable as the store promises."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

from kvstream.commands.command import Answer, Blocked, Later, Stepwise
from kvstream.commands.replies import (
    Entries,
    ErrorReply,
    Paged,
    Reply,
    Rows,
    Streams,
    internal_error,
)
from kvstream.commands.reply_pages import memory_of
from kvstream.engine.engine import TurnFailed
from kvstream.errors import DataError, KVStreamError, UnknownOutcome
from kvstream.logs import Throttle
from kvstream.meta.txn import Txn
from kvstream.resp.compiled import twins
from kvstream.resp.replies import encode
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.reply_streaming import Paging
from kvstream.server.runtime.xadd_requests import Burst
from kvstream.storage.durability import Committer

_log, _damage = logging.getLogger(__name__), Throttle()

LONG = 64 << 10
"""A reply from this size on is not kept until all others are made: its client may not read."""

HELD_MAX = 64 << 20
"""Bytes that may wait for an fsync: beyond that no more is made before it has ended."""
OF_ROWS: Final = frozenset({Entries, Rows, Streams})
"""Replies that are made at once."""
_UNWRITTEN: Final = frozenset({Blocked, Later, Stepwise, Paged})
"""Answers of which nothing is written here."""

Operation = Callable[[Txn], Answer]


@dataclass(slots=True, eq=False)
class Slot:
    """A reply on its way, and how to come by it again."""

    client: Client
    reply: Answer = None
    unit: Operation | None = None
    """What makes the reply; None where it needs no store."""
    db: int = 0
    protocol: int = 0
    """The one that the request came in; 0: the one that the client speaks by then."""
    keeps: bool = True
    """It tells of what is in the store: not to be told before that is durable."""
    told: bool | None = None
    """False: CLIENT REPLY wants nothing written. None: nobody has asked, and it is written."""
    made: bytes = b""
    """The reply in bytes, where it has been made already."""
    reads: bool = False
    """What makes the reply changes nothing, but may tidy up what has expired."""

    def encoded(self) -> bytes:
        """Return the reply in bytes, none where it is not to be written."""
        if self.made:
            return self.made
        reply = self.reply
        if self.told is False or type(reply) in _UNWRITTEN:
            return b""
        protocol = self.protocol or self.client.protocol
        try:
            return encode(cast(Reply, reply), protocol)
        except KVStreamError as error:  # rows are decoded as they are written: they are damaged
            return encode(ErrorReply.of(error), protocol)

    def make(self) -> None:
        """Make a reply of rows at once, and let go of them: they are many objects."""
        if self.told is not False:
            self.made, self.reply = self.encoded(), None

    def is_wanted(self) -> bool:
        """Tell whether it is to be written: SKIP holds for one, and a unit may run again."""
        if self.told is None:
            self.told = self.client.wants_next()
        return self.told

    def fail(self, error: ErrorReply) -> None:
        """Tell that the log could not be made durable instead of what is not durable."""
        if self.keeps and not isinstance(self.reply, Blocked | ErrorReply):
            self.reply, self.made = error, b""


class Again(list[bytes]):
    """Among the requests of a client: one of a turn that failed, which waits for one before it."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.slot = slot


class Kept(Protocol):
    """What the outbox knows of a slot, or of a burst with its replies."""

    @property
    def client(self) -> Client: ...

    def encoded(self) -> bytes: ...

    def fail(self, error: ErrorReply) -> None: ...


class Gatherer(Protocol):
    """Who says when replies that wait for an fsync ask for it."""

    def begin(self) -> None:
        """Note that some wait for whom nobody has asked."""
        ...

    def done(self) -> None:
        """Note that those are answered for whom was asked."""
        ...


class Outbox:
    """The replies of committed turns, in order."""

    def __init__(self, committer: Committer, server: Server, paging: Paging) -> None:
        self._committer = committer
        self._server = server
        self._paging = paging
        self._waiting: deque[tuple[int, list[Kept], list[Client], int]] = deque()
        self.held = 0
        """Bytes of memory that the replies that wait take."""
        self.gatherer: Gatherer | None = None
        """None: each turn asks for its fsync at once."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """The number of replies that wait; a burst's are one."""
        return sum([len(slots) for _, slots, _, _ in self._waiting])

    def send(self, sequence: int, slots: list[Kept]) -> None:
        """Write replies once the write of that number is durable, behind those of earlier turns."""
        closing = closing_clients(slots)  # behind these, not before
        if not self._waiting and not self._committer.delays(sequence):
            return self._write(slots, closing)
        if self._waiting:  # they go out in order: a read may have nothing of its own to wait for
            sequence = max(sequence, self._waiting[-1][0])
        size = sum(map(_memory_of, slots))
        self._waiting.append((sequence, slots, closing, size))
        self.held += size
        if self.held > HELD_MAX:  # whoever asks waits for the fsync in any case
            self.wait()
        elif self.gatherer is not None and self._committer.delays(sequence):
            self.gatherer.begin()
        else:
            self.ask()

    def ask(self) -> None:
        """Have all that wait written once the last of them is durable."""
        sequence = self._waiting[-1][0]
        self._committer.after(
            sequence, partial(self._post, sequence, None), partial(self._post, sequence)
        )

    def wait(self) -> None:
        """Make the last of them durable in this thread, and write them all."""
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
        while waiting and waiting[0][0] <= sequence:
            _, slots, closing, size = waiting.popleft()
            self.held -= size
            if error is not None:
                for slot in slots:
                    if isinstance(slot, Slot) and type(slot.reply) is Paged and slot.told:
                        self._paging.release(slot.client)  # this has it held, and nothing else
                    slot.fail(ErrorReply.of(error))
            self._write(slots, closing)
        if self.gatherer is not None:
            self.gatherer.done()

    def _write(self, slots: list[Kept], closing: list[Client]) -> None:
        write_replies(slots, self._begin_pages, LONG)
        for client in closing:
            client.close()

    def _begin_pages(self, slot: Kept) -> None:
        """Have a long reply written behind what is written now: nothing follows it."""
        if isinstance(slot, Slot) and type(slot.reply) is Paged and slot.told:
            self._paging.begin(slot.client, slot.reply, slot.protocol or slot.client.protocol)


def _memory_of(kept: Kept) -> int:
    """Return the bytes that a reply, or a burst with its entries, takes while it waits."""
    if isinstance(kept, Slot):
        reply = kept.reply
        if type(reply) is bytes:
            return len(reply)
        return len(kept.made) + (memory_of(reply) if type(reply) is list else 0)
    size = len(kept.encoded())
    return size + sum(len(row) for row, _ in kept.entries) if isinstance(kept, Burst) else size


def write_in_python(slots: list[Kept], begin_pages: Callable[[Kept], None], most: int) -> None:
    """Write replies, those of one client together; one above ``most`` bytes as soon as it is made.

    ``begin_pages`` is called for what leaves nothing to write of a client that is paged.
    """
    parts: dict[Client, bytes | list[bytes]] = {}
    for slot in slots:
        client = slot.client
        if client.lost:
            continue
        reply = slot.encoded()
        if not reply:
            if client.paged:
                begin_pages(slot)
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
    for client, replies in parts.items():
        _send(client, replies)


def closing_in_python(slots: list[Kept]) -> list[Client]:
    """Return the clients among those of ``slots`` that are to be closed."""
    return [slot.client for slot in slots if slot.client.closing]


closing_clients: Any = closing_in_python if twins is None else twins.closing_clients
write_replies: Any = write_in_python if twins is None else twins.write_replies


def _send(client: Client, replies: bytes | list[bytes]) -> None:
    client.send(b"".join(replies) if isinstance(replies, list) else replies)


def told(failure: TurnFailed) -> ErrorReply:
    """Return what a client is told whose request could not be run."""
    cause = failure.__cause__
    if isinstance(cause, DataError):
        _damage.log(_log, logging.ERROR, "a request has met damage: %s", cause)
    if isinstance(cause, KVStreamError):
        return ErrorReply.of(cause)
    if isinstance(cause, Exception):
        return internal_error(cause)
    raise failure
