"""The reply queue: replies wait until their turn is as durable as the store promises."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from kvstream.commands.command import Answer, Blocked, Later, Stepwise
from kvstream.commands.replies import (
    ErrorReply,
    Paged,
    Reply,
    internal_error,
)
from kvstream.commands.reply_pages import memory_of
from kvstream.engine.engine import TurnFailed
from kvstream.errors import DataError, KVStreamError, UnknownOutcome
from kvstream.logs import Throttle
from kvstream.meta.txn import Txn
from kvstream.resp import twins
from kvstream.resp.replies import encode
from kvstream.server.runtime.client import Client, Server
from kvstream.server.runtime.group_fsync import GroupFsync
from kvstream.server.runtime.reply_streaming import Paging
from kvstream.server.runtime.xadd_requests import Burst
from kvstream.storage.durability import Committer

_log, _damage = logging.getLogger(__name__), Throttle()

LONG = 64 << 10
"""Bytes: a larger reply is sent as soon as it is encoded, to save memory."""

HELD_MAX = 64 << 20
"""Bytes of replies that may wait for an fsync; beyond that the executor waits for it too."""
_UNWRITTEN: Final = frozenset({Blocked, Later, Stepwise, Paged})
"""Answers that are not written here."""

Operation = Callable[[Txn], Answer]


@dataclass(slots=True, eq=False)
class Slot:
    """A reply, and the unit that made it, in case it has to run again."""

    client: Client
    reply: Answer = None
    unit: Operation | None = None
    """Makes the reply; None: it does not depend on the store."""
    db: int = 0
    protocol: int = 0
    """That of the request; 0: that of the client when the reply is written."""
    keeps: bool = True
    """It depends on the store: if the fsync fails it is replaced by an error."""
    told: bool | None = None
    """Whether it is written, by CLIENT REPLY; None: not decided yet."""
    reads: bool = False
    """The unit does not write, but may delete what has expired."""

    def encoded(self) -> bytes:
        """Return the encoded reply; empty if nothing is written."""
        reply = self.reply
        if self.told is False or type(reply) in _UNWRITTEN:
            return b""
        protocol = self.protocol or self.client.protocol
        try:
            return encode(cast(Reply, reply), protocol)
        except KVStreamError as error:  # damaged rows are found when they are encoded
            return encode(ErrorReply.of(error), protocol)

    def is_wanted(self) -> bool:
        """Return whether the reply is written; decided once, since CLIENT REPLY SKIP counts."""
        if self.told is None:
            self.told = self.client.wants_next()
        return self.told

    def fail(self, error: ErrorReply) -> None:
        """Replace a reply that depends on the store by the error of the fsync."""
        if self.keeps and not isinstance(self.reply, Blocked | ErrorReply):
            self.reply = error


class Again(list[bytes]):
    """A request of a failed turn, put back among its client's requests."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self.slot = slot


class Kept(Protocol):
    """A slot, or an XADD burst with its replies."""

    @property
    def client(self) -> Client: ...

    def encoded(self) -> bytes: ...

    def fail(self, error: ErrorReply) -> None: ...


class Outbox:
    """The replies of committed turns, in order."""

    def __init__(self, committer: Committer, server: Server, paging: Paging) -> None:
        self._committer = committer
        self._server = server
        self._paging = paging
        self._waiting: deque[tuple[int, list[Kept], list[Client], int]] = deque()
        self.held = 0
        """Bytes of memory that waiting replies take."""
        self.group_fsync: GroupFsync | None = None
        """None: each turn asks for its own fsync."""

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """The number of waiting replies; those of a burst are one."""
        return sum([len(slots) for _, slots, _, _ in self._waiting])

    def send(self, sequence: int, slots: list[Kept]) -> None:
        """Write replies once that sequence number is durable, after those of earlier turns."""
        closing = closing_clients(slots)
        if not self._waiting and not self._committer.delays(sequence):
            return self._write(slots, closing)
        if self._waiting:  # replies are sent in order
            sequence = max(sequence, self._waiting[-1][0])
        size = sum(map(_memory_of, slots))
        self._waiting.append((sequence, slots, closing, size))
        self.held += size
        if self.held > HELD_MAX:
            self.wait()
        elif self.group_fsync is not None and self._committer.delays(sequence):
            self.group_fsync.begin()
        else:
            self.ask()

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
        while waiting and waiting[0][0] <= sequence:
            _, slots, closing, size = waiting.popleft()
            self.held -= size
            if error is not None:
                for slot in slots:
                    if isinstance(slot, Slot) and type(slot.reply) is Paged and slot.told:
                        self._paging.release(slot.client)
                    slot.fail(ErrorReply.of(error))
            self._write(slots, closing)
        if self.group_fsync is not None:
            self.group_fsync.done()

    def _write(self, slots: list[Kept], closing: list[Client]) -> None:
        write_replies(slots, self._begin_pages, LONG)
        for client in closing:
            client.close()

    def _begin_pages(self, slot: Kept) -> None:
        """Begin to stream a long reply after the replies before it."""
        if isinstance(slot, Slot) and type(slot.reply) is Paged and slot.told:
            self._paging.begin(slot.client, slot.reply, slot.protocol or slot.client.protocol)


def _memory_of(kept: Kept) -> int:
    """Return the bytes that a reply, or a burst with its entries, takes while it waits."""
    if isinstance(kept, Burst):
        return len(kept.encoded()) + sum(len(row) for row, _ in kept.entries)
    return memory_of(kept.reply) if isinstance(kept, Slot) else len(kept.encoded())


def write_in_python(slots: list[Kept], begin_pages: Callable[[Kept], None], most: int) -> None:
    """Send replies, those of one client together; one above ``most`` bytes as soon as encoded.

    ``begin_pages`` is called for a slot without bytes whose client is paged.
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
    """Return the clients of ``slots`` that are closing."""
    return [slot.client for slot in slots if slot.client.closing]


write_replies, closing_clients = write_in_python, closing_in_python
if twins is not None:
    write_replies, closing_clients = twins.write_replies, twins.closing_clients


def _send(client: Client, replies: bytes | list[bytes]) -> None:
    client.send(b"".join(replies) if isinstance(replies, list) else replies)


def told(failure: TurnFailed) -> ErrorReply:
    """Return the error reply for a failed unit; raise what is no Exception."""
    cause = failure.__cause__
    if isinstance(cause, DataError):
        _damage.log(_log, logging.ERROR, "a request has met damage: %s", cause)
    if isinstance(cause, KVStreamError):
        return ErrorReply.of(cause)
    if isinstance(cause, Exception):
        return internal_error(cause)
    raise failure
