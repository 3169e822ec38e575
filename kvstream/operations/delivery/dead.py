"""Dead letters: complete copies of entries that a group has given up, in a stream of their own.

``bury`` moves entries there in the commit that acknowledges them. A dead letter has the fields of
its entry in their order, then a block of fields that begin with ``dead:``: where it comes from, who
had it last, why and when it was given up. The message itself is deleted once no group needs it.
``strip`` returns the fields without that block, even if the entry itself has such fields.

An entry whose message was deleted is only acknowledged. If the dead letters cannot be written (the
key has another type), nothing is lost: ``bury`` raises, and ``bury_or_wait`` lets the entries wait
for a minute, so that other entries are read meanwhile.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from kvstream.errors import InvalidArgument, RequestError, WrongType, quote
from kvstream.layout.keys import beside, key_of
from kvstream.layout.values import Names, encode_flat
from kvstream.logs import DeferredLogger, Throttle
from kvstream.meta import pel, timers
from kvstream.meta.events.queues import Reason
from kvstream.meta.policy import DEAD_SUFFIX
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.timers import Kind
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.delete import erase
from kvstream.operations.delivery import failures
from kvstream.operations.reads.rows import read_entries_of
from kvstream.operations.trim import find_referenced
from kvstream.types.glob import is_own_key
from kvstream.types.ids import StreamID, ascending_packed
from kvstream.types.images import PackedID

_log = DeferredLogger(__name__)
_refusals = Throttle()

STREAM, ID, GROUP, REASON = b"dead:stream", b"dead:id", b"dead:group", b"dead:reason"
BLOCK = (
    STREAM,
    ID,
    GROUP,
    b"dead:consumer",
    b"dead:deliveries",
    REASON,
    b"dead:at",
    b"dead:error",
    b"dead:traceback",
)
"""The fields that follow those of the entry, in this order."""
WAIT_MS = 60_000
"""How long entries wait if the dead letters cannot be written."""

Parts = Sequence[tuple[Run, Sequence[PackedID]]]
"""Runs of a group, each with some IDs within its bounds, as ``pel.runs_at`` yields them."""


class Cause(NamedTuple):
    """Why entries are given up, and the error of their consumer."""

    reason: Reason
    error: bytes = b""
    traceback: bytes = b""


class DeadLettersRefused(RequestError):
    """The dead letters of a group cannot be written; the entries stay pending."""


def dead_key(stream: StreamMeta, group: GroupMeta) -> bytes:
    """Return the key of a group's dead letters."""
    key = key_of(stream.name)
    return key + DEAD_SUFFIX if group.policy is None else group.policy.dead_key(key)


def bury(
    txn: Txn,
    name: bytes,
    stream: StreamMeta,
    group: GroupMeta,
    parts: Parts,
    cause: Cause,
) -> int:
    """Move pending entries to the dead letters of their group; return how many were moved.

    If ``cause`` has no error, a dead letter has the last error that was kept of its entry.
    Raise DeadLettersRefused, before any change, if the dead letters cannot be written.
    """
    pending = [(run, pel.pending_of(run, ids)) for run, ids in parts]
    letters: list[tuple[bytes, Names]] = []
    buried: list[StreamID] = []
    for run, ids in pending:
        for entry in read_entries_of(txn, stream, ids):
            if entry is not None:
                told = _explain(txn, stream, group, entry.id, cause)
                block = _block(txn, stream, group, run, entry.id, told)
                letters.append(_encode([*entry.flat, *block]))
                buried.append(entry.id)
    if letters:
        _add(txn, name, dead_key(stream, group), letters)
    for eid in buried:
        txn.catalog.queue_events.bury(stream.name, group.name, eid, cause.reason)
    pel.discard(txn, group, ascending_packed([eid for _, ids in pending for eid in ids]))
    buried.sort()
    kept = find_referenced(txn, stream, buried)
    erase(txn, stream, [eid for eid in buried if eid not in kept])
    return len(letters)


def _explain(txn: Txn, stream: StreamMeta, group: GroupMeta, eid: StreamID, cause: Cause) -> Cause:
    """Return the cause of an entry, with its last kept error if ``cause`` has none."""
    if cause.error or cause.traceback:
        return cause
    failure = failures.last(txn, stream, group, eid.packed)
    return cause if failure is None else Cause(cause.reason, failure.error, failure.traceback)


def bury_or_wait(
    txn: Txn,
    name: bytes,
    stream: StreamMeta,
    group: GroupMeta,
    parts: Parts,
    reason: Reason,
) -> int:
    """Do ``bury``; if the dead letters are refused, make the entries wait for a minute.

    It is for reads, which deliver other entries even then.
    """
    try:
        return bury(txn, name, stream, group, parts, Cause(reason))
    except DeadLettersRefused as refused:
        _refusals.log(_log, logging.WARNING, "%s", refused)
    until_ms, rank = txn.now_ms + WAIT_MS, group.nack_rank + 1
    group.nack_rank = rank
    pending = sorted((run, pel.pending_of(run, ids)) for run, ids in parts)
    pel.plan(txn, group, pending, partial(_make_wait, until_ms, rank)).apply(txn, group)
    timers.put(txn, stream, until_ms, Kind.RETRY, group.name)
    txn.member_changed(group)
    return 0


def _make_wait(until_ms: int, rank: int, run: Run | None, ids: Sequence[PackedID]) -> pel.Targets:
    return {} if run is None else dict.fromkeys(ids, (b"", until_ms, run.deliveries, rank))


def _block(
    txn: Txn, stream: StreamMeta, group: GroupMeta, run: Run, eid: StreamID, cause: Cause
) -> Iterable[bytes]:
    """Yield the ``dead:`` fields of a dead letter, each followed by its value."""
    values = (
        key_of(stream.name),
        str(eid).encode(),
        group.name,
        run.owner,
        b"%d" % run.deliveries,
        cause.reason.encode(),
        b"%d" % txn.now_ms,
        *failures.shorten(cause.error, cause.traceback),
    )
    for field, value in zip(BLOCK, values, strict=True):
        yield field
        yield value


def _encode(flat: list[bytes]) -> tuple[bytes, Names]:
    try:
        return encode_flat(flat)
    except InvalidArgument as error:
        raise DeadLettersRefused(f"a dead letter cannot be made: {error}") from error


def _add(txn: Txn, name: bytes, key: bytes, made: list[tuple[bytes, Names]]) -> None:
    """Add dead letters to a stream in the database of ``name``; create it if it is missing."""
    where = f"the dead letters of {quote(key_of(name))} cannot be added to {quote(key)}"
    target = beside(name, key)
    if target == name:
        raise DeadLettersRefused(f"{where}: it is the same stream")
    try:
        append.add_many(txn, target, made)
    except WrongType as error:
        raise DeadLettersRefused(f"{where}: the key holds another type") from error
    except RequestError as error:
        raise DeadLettersRefused(f"{where}: {error}") from error


def is_letter(flat: Sequence[bytes]) -> bool:
    """Return whether an entry's fields end with the block of a dead letter."""
    return len(flat) > 2 * len(BLOCK) and tuple(flat[-2 * len(BLOCK) :: 2]) == BLOCK


def target_of(flat: Sequence[bytes]) -> bytes:
    """Return the key that a dead letter goes back to; empty if it names none that it may go to.

    A program that adds a letter by itself may name any key. Into a key that kvstream keeps for
    itself, such as the audit of the console, no letter is moved.
    """
    key = origin(flat).get(STREAM, b"")
    return b"" if is_own_key(key) else key


def strip(flat: Sequence[bytes]) -> Sequence[bytes]:
    """Return the fields of the entry that became a dead letter."""
    return flat[: -2 * len(BLOCK)] if is_letter(flat) else flat


def origin(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the ``dead:`` fields of a dead letter by name; none if it is no dead letter."""
    if not is_letter(flat):
        return {}
    block = flat[-2 * len(BLOCK) :]
    return dict(zip(block[::2], block[1::2], strict=True))
