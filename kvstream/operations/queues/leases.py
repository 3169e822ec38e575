"""Acknowledge, give back and extend deliveries by their tokens.

A token is the consumer and the delivery count of a pending entry: the lease of one delivery. It is
lost once the entry is delivered again, claimed or given back. A late call with a lost token changes
nothing, and the outcome of that token says so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from kvstream.errors import InvalidArgument
from kvstream.layout.values import Names
from kvstream.meta.compiled import plain
from kvstream.meta.pel import (
    Targets,
    discard,
    discard_leased,
    note_renewal,
    pending_of,
    plan,
    runs_at,
    signal_freed,
)
from kvstream.meta.records import GroupMeta
from kvstream.meta.runs import Run
from kvstream.meta.timers import TIME_MAX
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.ack import note_released
from kvstream.operations.delete import delete
from kvstream.operations.delivery import failures
from kvstream.operations.delivery.backoff import GivenBack
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.operations.watch import lost_lease
from kvstream.types.ids import PACKED, StreamID, ascending_packed
from kvstream.types.images import PackedID
from kvstream.types.records import LeaseOutcome

# Python reads a name of this module much faster than a member of an enum.
_DONE, _LOST, _NOT_PENDING = LeaseOutcome.DONE, LeaseOutcome.LOST, LeaseOutcome.NOT_PENDING

Token = tuple[StreamID, int]
"""The ID of a pending entry, and how often it has been delivered."""


Parts = list[tuple[Run, list[PackedID]]]
"""Runs, each with some of its IDs."""


def check_tokens(
    txn: Txn, group: GroupMeta, consumer: bytes, tokens: Sequence[Token], again: LeaseOutcome
) -> tuple[list[int], Parts]:
    """Return the outcome of each token, and the entries whose token is current.

    ``again`` is the outcome of a current token that the request repeats.
    """
    asked = [(PACKED(*eid), deliveries) for eid, deliveries in tokens]
    current: dict[PackedID, int | None] = {}
    parts: Parts = []
    wanted = set(asked)
    for run, within in runs_at(txn, group, ascending_packed([eid for eid, _ in asked])):
        pending = pending_of(run, within)
        own = run.owned and run.owner == consumer
        current.update(dict.fromkeys(pending, run.deliveries if own else None))
        valid = [eid for eid in pending if own and (eid, run.deliveries) in wanted]
        if valid:
            parts.append((run, valid))
    outcomes: list[int] = []
    seen: set[PackedID] = set()
    for eid, deliveries in asked:
        if eid not in current:
            outcomes.append(_NOT_PENDING)
        elif current[eid] != deliveries:
            outcomes.append(_LOST)
        else:
            outcomes.append(again if eid in seen else _DONE)
            seen.add(eid)
    return outcomes, parts


def ack_delete(
    txn: Txn, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[Token]
) -> list[int]:
    """Acknowledge the deliveries whose tokens are current, and delete their entries."""
    outcomes = ack(txn, name, group, consumer, tokens)
    asked = zip(tokens, outcomes, strict=True)
    delete(txn, name, [token[0] for token, outcome in asked if outcome == _DONE])
    return outcomes


_ID_OF = itemgetter(0)


class Result(NamedTuple):
    """The result of a delivery: the first entry of a new stream that expires, or one that stays."""

    name: bytes
    """The qualified name of the stream."""
    value: bytes
    names: Names
    """The encoded entry, and the names of its fields."""
    ttl_ms: int | None
    """Above 0; None: the expiry of the stream does not change."""


def finish(
    txn: Txn,
    name: bytes,
    group: bytes,
    consumer: bytes,
    tokens: Sequence[Token],
    results: Sequence[Result] = (),
    unless: Sequence[bytes] = (),
) -> bool:
    """Acknowledge deliveries, delete their entries and add their results.

    If one of the keys ``unless`` exists, return False, and nothing is done. If one of the tokens is
    not current, raise LeaseLost and fail the transaction.
    """
    for key in unless:
        if txn.key(key) is not None:
            return False
    outcomes = ack(txn, name, group, consumer, tokens)
    if outcomes.count(_DONE) < len(tokens):
        txn.failed = True
        for (eid, deliveries), outcome in zip(tokens, outcomes, strict=True):
            if outcome != _DONE:
                raise lost_lease(name, consumer, eid, deliveries)
    delete(txn, name, [*map(_ID_OF, tokens)])
    for result in results:
        if result.ttl_ms is None:
            append.add(txn, result.name, result.value, result.names)
        else:
            append.add_expiring(
                txn, result.name, result.value, result.names, txn.now_ms + result.ttl_ms
            )
    return True


def ack(txn: Txn, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[Token]) -> list[int]:
    """Acknowledge the deliveries whose tokens are current."""
    if plain is not None and len(tokens) == 1:
        outcome = plain.settle(Run, txn, name, group, consumer, *tokens[0])
        if outcome >= -1:
            return [outcome]
    _, of_group = group_of_key(txn, name, group)
    txn.frees = True
    if len(tokens) == 1:
        eid, deliveries = tokens[0]
        outcome = discard_leased(txn, of_group, PACKED(*eid), consumer, deliveries)
        if outcome == _DONE:
            signal_freed(txn, name, of_group)
        return [outcome]
    outcomes, parts = check_tokens(txn, of_group, consumer, tokens, _NOT_PENDING)
    if parts:
        discard(txn, of_group, [eid for _, ids in parts for eid in ids])
        signal_freed(txn, name, of_group)
    return outcomes


def extend(
    txn: Txn, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[Token]
) -> list[int]:
    """Restart the leases whose tokens are current."""
    _, of_group = group_of_key(txn, name, group)
    outcomes, parts = check_tokens(txn, of_group, consumer, tokens, _DONE)
    if parts:
        _change(txn, of_group, parts, partial(_renew, txn.now_ms))
        note_renewal(txn, of_group)
        txn.member_changed(of_group)
        consumer_of(txn, name, of_group, consumer)  # it is not idle: REAP does not remove it
    return outcomes


def nack(
    txn: Txn,
    name: bytes,
    group: bytes,
    consumer: bytes,
    tokens: Sequence[Token],
    delay_ms: int | None = None,
    fatal: bool = False,
    error: bytes = b"",
    traceback: bytes = b"",
    max_deliveries: int = 0,
    untried: bool = False,
) -> list[int]:
    """Give back the deliveries whose tokens are current.

    They are delivered again after ``delay_ms``, or the backoff of the group's policy. With
    ``fatal`` all of them move to the dead letters with ``error`` and ``traceback``, otherwise those
    that were delivered as often as ``max_deliveries`` or the policy allows. The error of the others
    is kept, in case they become dead letters later. ``untried``: the delivery does not count, and
    none is given up.
    """
    if delay_ms is not None and not 0 <= delay_ms <= TIME_MAX:
        raise InvalidArgument("a delay must not be negative")
    if untried and (fatal or max_deliveries):
        raise InvalidArgument("a delivery that was not tried is not given up")
    stream, of_group = group_of_key(txn, name, group)
    outcomes, parts = check_tokens(txn, of_group, consumer, tokens, _LOST)
    if not parts:
        return outcomes
    rank = of_group.nack_rank + 1
    back = GivenBack(txn, of_group, delay_ms, fatal, max_deliveries)
    shares = [
        (run, ids, back.share(run, ids, run.deliveries - untried, rank, tried=not untried))
        for run, ids in parts
    ]
    buried = back.bury(name, stream, error, traceback)
    targets = {eid: target for _, _, share in shares for eid, target in share.items()}
    repeated = [(run, ids) for run, ids, share in shares if share]
    _change(txn, of_group, repeated, lambda run, ids: {eid: targets[eid] for eid in ids})
    if error or traceback:
        failures.keep(txn, stream, of_group, list(targets), error, traceback)
    back.set_timers(stream)
    note_released(txn, name, of_group, rank, buried + len(targets))
    return outcomes


def _renew(now_ms: int, run: Run, ids: Sequence[PackedID]) -> Targets:
    return dict.fromkeys(ids, (run.owner, now_ms, run.deliveries, 0))


def _change(
    txn: Txn, group: GroupMeta, parts: Parts, decide: Callable[[Run, Sequence[PackedID]], Targets]
) -> None:
    """Change pending entries to the states that ``decide`` returns."""

    def decide_pending(run: Run | None, ids: Sequence[PackedID]) -> Targets:
        return {} if run is None else decide(run, ids)

    plan(txn, group, parts, decide_pending).apply(txn, group)
