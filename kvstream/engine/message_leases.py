"""Settle the messages of a queue by the tokens of their leases.

A call may settle messages of several streams and consumers: each of these is one operation. In a
transaction on a server the outcomes are known at its end: ``guard`` makes EXEC fail if a lease is
lost.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kvstream.engine.interface import AnyEngine
from kvstream.errors import KVStreamError, LeaseLost, in_parts, quote
from kvstream.operations import watch
from kvstream.operations.ack import Nack, negative_acknowledge
from kvstream.operations.queues import leases
from kvstream.operations.queues.leases import Token
from kvstream.types.options import NackMode
from kvstream.types.records import LeaseOutcome

_WHY = {
    LeaseOutcome.NOT_PENDING: "it was acknowledged, or moved to the dead letters",
    LeaseOutcome.LOST: "it was given back, or delivered again after its lease had ended",
}


class Leased(Protocol):
    """A message that a consumer has."""

    _name: bytes
    """The name of its stream."""
    _consumer: bytes
    _settled: bool

    @property
    def token(self) -> Token: ...


class MessageLeases:
    """The leases of one queue's messages."""

    __slots__ = ("_engine", "_group")

    def __init__(self, engine: AnyEngine, group: bytes) -> None:
        self._engine, self._group = engine, group

    def run(self, operation: Any, messages: Sequence[Leased], **options: Any) -> Any:
        """Run an operation of leases on messages of one stream and consumer."""
        name, consumer = messages[0]._name, messages[0]._consumer
        tokens = [message.token for message in messages]
        return self._engine.run(operation, name, self._group, consumer, tokens, **options)

    def run_each(
        self, operation: Any, messages: Sequence[Leased], **options: Any
    ) -> list[LeaseOutcome]:
        """Run an operation on messages, once for each stream and consumer; return the outcomes."""
        by_lease: dict[tuple[bytes, bytes], list[int]] = {}
        for at, message in enumerate(messages):
            by_lease.setdefault((message._name, message._consumer), []).append(at)
        if len(by_lease) == 1:
            replies = [self.run(operation, messages, **options)]
        else:
            run: Callable[[list[Leased]], Any] = partial(self.run, operation, **options)
            parts = ([messages[at] for at in places] for places in by_lease.values())
            replies = list(in_parts(partial(run, part) for part in parts))
        outcomes: dict[int, LeaseOutcome] = {}
        unknown: list[Any] = []
        for places, done in zip(by_lease.values(), replies, strict=True):
            if not isinstance(done, list):  # in a transaction on a server
                unknown.append(done)
                continue
            for at, outcome in zip(places, done, strict=True):
                outcomes[at] = LeaseOutcome(outcome)
                messages[at]._settled |= operation is not leases.extend and outcome == 1
        if unknown:
            return unknown[0] if len(unknown) == 1 else unknown
        return [outcomes[at] for at in range(len(messages))]

    def settle(self, message: Leased, done: Any) -> None:
        """Mark a message as settled; raise LeaseLost if its lease was lost."""
        self.refuse_lost(message, done)
        message._settled = True

    def refuse_lost(self, message: Leased, done: Any) -> None:
        """Raise LeaseLost if an operation on one message found its lease lost."""
        if not isinstance(done, list):  # in a transaction on a server: EXEC will tell
            self.guard(message)
        elif done[0] != LeaseOutcome.DONE:
            raise LeaseLost(
                f"{message!r} is not leased to {quote(message._consumer)} any more: "
                + _WHY[LeaseOutcome(done[0])]
            )

    def guard(self, message: Leased) -> None:
        """Raise LeaseLost if the lease is lost; in a transaction on a server also at its end."""
        name, consumer = message._name, message._consumer
        self._engine.run(watch.guard, name, self._group, consumer, *message.token)

    def give_back(self, message: Leased) -> None:
        """Give a message back as not delivered, unless another consumer has it."""
        ids, nack = [message.token[0]], Nack(NackMode.SILENT)
        with suppress(KVStreamError), self._engine.transaction():
            self.guard(message)
            self._engine.run(negative_acknowledge, message._name, self._group, ids, nack)
