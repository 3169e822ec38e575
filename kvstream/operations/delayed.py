"""KVSTREAM.ADD and KVSTREAM.DELAYED: messages that enter their stream at a later time.

A delayed message is a timer of its stream, outside the stream itself, and has a ticket. When it is
due it is appended as XADD does, and gets its ID then. So the entries of a stream are in the order
in which they became visible. Messages due at the same millisecond keep the order in which they were
added::

    timer   kind 1, rest = number(u64)
    value   := ttl_ms(u64) length(u32) unique-id(length bytes) entry
    row "D" -> u64        how many delayed messages the stream has

``entry`` is the value of a message row. The numbers come from the counter of trees and generations.
DEL and RENAME, FLUSHDB and the expiry of a key take its delayed messages along. COPY and migration
to another kvstream carry them (queues/image.py); DUMP does not.

A message may have a time to live, which begins when it is due. At its end it is deleted from the
stream and from all pending lists, acknowledged or not. If a group has delivered it, has it
pending, and has dead letters (DEAD or DELIVERIES of its policy), it is moved there with the reason
``expired``. If the
time ends before the message was added, because the store was closed, it is not added::

    timer   kind 7, rest = id
"""

import logging
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption, IDsExhausted, InvalidArgument, quote
from kvstream.layout.keys import U64, decode_number, key_of
from kvstream.layout.values import Names, decode_checked
from kvstream.logs import DeferredLogger, Throttle
from kvstream.meta import pel, timers
from kvstream.meta.events.queues import Reason
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import DELAY_MAX_MS, Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import append
from kvstream.operations.delete import erase
from kvstream.operations.delivery import dead
from kvstream.operations.reads.rows import find_live
from kvstream.operations.trim import drop_references
from kvstream.operations.unique import (
    Conflict,
    Row,
    Unique,
    assign,
    due_ms,
    held_row,
    is_full,
    release,
    rename,
    resolve_conflict,
)
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.records import Fields, RepeatedFields

LIST_COUNT = 100
"""The default number of messages on a page of ``list_messages``."""
_SECONDS = range(10**9, 1 << 32)
"""Times that are Unix seconds from 2001 to 2106; as milliseconds they are days of 1970."""
LIST_MAX = 5000
"""The most messages on a page: 20 milliseconds of work."""
_PAGE_BYTES = 1 << 20
_RETRY_MS = 60_000
"""The time after which a message that cannot be added is tried again."""
_HEAD = Struct(">QI")
COUNT_ROW = b"D"

_log, _refusals, _burial_refusals = DeferredLogger(__name__), Throttle(), Throttle()

Added = StreamID | Ticket


class Message(NamedTuple):
    """A message that is not in its stream yet."""

    value: bytes
    """The value of its row in the stream."""
    ttl_ms: int = 0
    """The time after which it is deleted, from when it is due; 0: never."""
    unique_id: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(self.ttl_ms, len(self.unique_id)) + self.unique_id + self.value


class Delayed(NamedTuple):
    """One delayed message of a list."""

    ticket: Ticket
    fields: Fields
    ttl_ms: int
    unique_id: bytes


def decode(value: bytes) -> Message:
    """Return the message of a timer; raise Corruption if it is damaged."""
    try:
        ttl_ms, length = _HEAD.unpack_from(value)
    except StructError:
        raise Corruption("a delayed message is damaged: it is too short") from None
    end = _HEAD.size + length
    return Message(value[end:], ttl_ms, value[_HEAD.size : end])


def ticket_of(timer: Timer) -> Ticket:
    """Return the ticket of a timer of kind DELAYED; raise Corruption if it is damaged."""
    return Ticket(timer.at_ms, decode_number(b"T", timer.rest))


def decode_timer(timer: Timer) -> tuple[Ticket, Message, Fields]:
    """Return what a timer of kind DELAYED holds; raise Corruption if it is damaged."""
    message = decode(timer.value)
    return ticket_of(timer), message, decode_checked([message.value])[0]


# --- adding -------------------------------------------------------------------------------------


def add(
    txn: Txn,
    name: bytes,
    value: bytes,
    names: Names,
    at_ms: int | None = None,
    ttl_ms: int = 0,
    unique: Unique | None = None,
) -> Added:
    """Add an encoded message that is due at a Unix time, or now if that has passed or is None.

    Return the ID of an entry that was appended, or the ticket of a delayed message. If the unique
    ID is taken and nothing was added, return the ID or ticket of the message that holds it.
    """
    refuse_time(txn, at_ms)
    refuse_delay(ttl_ms)
    before: Row | None = None
    if unique is not None:
        unique.refuse_wrong(at_ms is not None)
        holder, before = _admit(txn, name, unique)
        if holder is not None:
            txn.catalog.queue_events.duplicates_skipped += 1
            txn.catalog.repeats_write = True
            return holder
        at_ms = due_ms(before, unique, txn.now_ms, at_ms)
        refuse_time(txn, at_ms)
    if at_ms is None or at_ms <= txn.now_ms:
        added: Added = _append(txn, name, value, names, ttl_ms)
    else:
        message = Message(value, ttl_ms, b"" if unique is None else unique.id)
        stream = txn.stream(name) or txn.catalog.create_stream(txn, name)
        added = put(txn, stream, at_ms, message)
    if unique is not None:
        assign(txn, txn.existing_stream(name), unique, added, before)
    return added


def add_many(
    txn: Txn,
    name: bytes,
    messages: list[tuple[bytes, Names]],
    at_ms: int | None = None,
    ttl_ms: int = 0,
) -> list[Added]:
    """Add encoded messages that are due at the same time; return the ID or ticket of each."""
    return [add(txn, name, value, names, at_ms, ttl_ms) for value, names in messages]


def _admit(txn: Txn, name: bytes, unique: Unique) -> tuple[Added | None, Row | None]:
    """Return the message that keeps a new one out, None if the new one is to be added.

    With it comes the row of a holder beside which it is added, or whose wait it goes on. A message
    that the new one replaces is deleted.
    """
    stream = txn.stream(name)
    row = None if stream is None else held_row(txn, stream, unique.id)
    if stream is None or row is None:
        return None, None
    holder = row.holder
    if unique.counts and row.taken:
        return (holder, None) if is_full(row, unique) else (None, row)
    if unique.conflict is not Conflict.SKIP:  # nothing is deleted if no ID is left
        append.next_id(stream.last, None, txn.now_ms)
    if not resolve_conflict(txn, stream, unique, holder):
        return holder, None
    if isinstance(holder, Ticket):
        take(txn, stream, holder)
        return None, row
    return None, None


def _append(txn: Txn, name: bytes, value: bytes, names: Names, ttl_ms: int) -> StreamID:
    added = append.add(txn, name, value, names)
    assert added is not None
    if ttl_ms:
        set_ttl(txn, txn.existing_stream(name), added, txn.now_ms + ttl_ms)
    return added


def refuse_time(txn: Txn, at_ms: int | None) -> None:
    """Raise InvalidArgument for a time that is not in milliseconds."""
    if at_ms is None:
        return
    if at_ms in _SECONDS:
        raise InvalidArgument(f"the time {at_ms} is in seconds: give milliseconds, {at_ms}000")
    if not 0 <= at_ms <= txn.now_ms + DELAY_MAX_MS:
        raise InvalidArgument(f"the time {at_ms} must be from 0 to 100 years ahead in milliseconds")


def refuse_delay(delay_ms: int) -> None:
    """Raise InvalidArgument for a delay, or time to live, that is out of range."""
    if not 0 <= delay_ms <= DELAY_MAX_MS:
        raise InvalidArgument(f"a delay must be 0 to 100 years in milliseconds, not {delay_ms}")


def put(
    txn: Txn, stream: StreamMeta, at_ms: int, message: Message, number: int | None = None
) -> Ticket:
    """Store a delayed message; ``number`` is the number of its earlier ticket, if it had one."""
    if number is None:
        number = txn.allocate()
    timers.put(txn, stream, at_ms, Kind.DELAYED, U64.pack(number), message.encode())
    _count(txn, stream, 1)
    return Ticket(at_ms, number)


def take(txn: Txn, stream: StreamMeta, ticket: Ticket) -> Message | None:
    """Remove a delayed message and return it; None if there is none with this ticket."""
    value = timers.take(txn, stream, ticket.at_ms, Kind.DELAYED, U64.pack(ticket.number))
    if value is None:
        return None
    _count(txn, stream, -1)
    return decode(value)


def count(txn: Txn, stream: StreamMeta) -> int:
    """Return how many delayed messages a stream has."""
    return decode_number(COUNT_ROW, timers.get_row(txn, stream, COUNT_ROW))


def _count(txn: Txn, stream: StreamMeta, change: int) -> None:
    left = count(txn, stream) + change
    if left > 0:
        timers.put_row(txn, stream, COUNT_ROW, U64.pack(left))
    else:
        timers.delete_row(txn, stream, COUNT_ROW)


# --- delayed messages ---------------------------------------------------------------------------


def length(txn: Txn, name: bytes) -> int:
    """Return how many delayed messages a stream has; 0 if there is no stream."""
    stream = txn.stream(name)
    return 0 if stream is None else count(txn, stream)


def list_messages(
    txn: Txn, name: bytes, start: Ticket | None = None, limit: int = LIST_COUNT
) -> list[Delayed]:
    """Return delayed messages from a ticket on, in the order in which they are due.

    There are at most ``limit`` and LIST_MAX, and fewer if they reach a megabyte.
    """
    stream = txn.stream(name)
    if stream is None or limit <= 0:
        return []
    at_ms, number = start or Ticket(0, 0)
    messages: list[Delayed] = []
    size, left = 0, count(txn, stream)
    for timer in timers.scan(txn, stream, Kind.DELAYED, at_ms, U64.pack(number)) if left else ():
        ticket, message, fields = decode_timer(timer)
        messages.append(Delayed(ticket, fields, message.ttl_ms, message.unique_id))
        size += len(timer.value)
        if len(messages) in (limit, left, LIST_MAX) or size >= _PAGE_BYTES:
            break
    return messages


def cancel(txn: Txn, name: bytes, tickets: list[Ticket]) -> int:
    """Delete delayed messages; return how many there were."""
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    cancelled = 0
    for ticket in tickets:
        message = take(txn, stream, ticket)
        if message is not None:
            cancelled += 1
            if message.unique_id:
                release(txn, stream, message.unique_id, ticket)
    return cancelled


def move(txn: Txn, name: bytes, ticket: Ticket, at_ms: int) -> Ticket | None:
    """Make a delayed message due at another time, soon if that has passed; return its new ticket.

    None if there is no such message.
    """
    refuse_time(txn, at_ms)
    stream = txn.stream(name)
    message = None if stream is None else take(txn, stream, ticket)
    if stream is None or message is None:
        return None
    moved = put(txn, stream, max(at_ms, txn.now_ms), message, ticket.number)
    if message.unique_id:
        rename(txn, stream, message.unique_id, ticket, moved)
    return moved


# --- the due ones -------------------------------------------------------------------------------


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Append messages that are due, in their order."""
    try:
        ids = append.next_ids(stream.last, len(due), txn.now_ms)
    except IDsExhausted as error:  # XSETID may make room again
        for timer in due:
            _postpone(txn, stream, timer, error)
        return
    entries: list[tuple[bytes, Names]] = []
    taken = len(due)
    for timer in due:
        try:
            entry = _due_entry(txn, stream, timer, ids[len(entries)])
        except Corruption as error:  # the others go on
            _postpone(txn, stream, timer, error)
            taken -= 1
            continue
        if entry is not None:
            entries.append(entry)
    _count(txn, stream, -taken)
    before = stream.entries_added
    if append.add_many(txn, name, entries):
        txn.signal(name, Wake.DUE)
    timers.note_added(txn, stream, before)
    txn.catalog.index.report_change(stream)  # no client's command has made the change
    txn.catalog.queue_events.delayed_fired += len(entries)


def _postpone(txn: Txn, stream: StreamMeta, timer: Timer, error: Exception) -> None:
    """Make a message that cannot be added due again in a minute."""
    key = quote(key_of(stream.name))
    _refusals.log(_log, logging.WARNING, "a delayed message of %s waits: %s", key, error)
    timers.put(txn, stream, txn.now_ms + _RETRY_MS, Kind.DELAYED, timer.rest, timer.value)


def _due_entry(
    txn: Txn, stream: StreamMeta, timer: Timer, eid: StreamID
) -> tuple[bytes, Names] | None:
    """Return the entry of a message that gets the ID ``eid``; None if its time to live is over."""
    ticket, message, fields = decode_timer(timer)
    names = fields.flat[::2] if isinstance(fields, RepeatedFields) else fields
    ends_ms = timer.at_ms + message.ttl_ms
    if message.ttl_ms and ends_ms <= txn.now_ms:
        if message.unique_id:
            release(txn, stream, message.unique_id, ticket)
        return None
    if message.unique_id:
        rename(txn, stream, message.unique_id, ticket, eid)
    if message.ttl_ms:
        set_ttl(txn, stream, eid, ends_ms)
    return message.value, tuple(names)


# --- times to live --------------------------------------------------------------------------------


def set_ttl(txn: Txn, stream: StreamMeta, eid: StreamID, at_ms: int) -> None:
    """Delete an entry at a Unix time in milliseconds."""
    timers.put(txn, stream, at_ms, Kind.EXPIRED, eid.packed)


def fire_ttl(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Delete the entries whose time is over, or move them to the dead letters."""
    ids = sorted({StreamID.unpack(timer.rest) for timer in due})
    txn.frees = True
    try:
        _bury(txn, name, stream, ids)
    except dead.DeadLettersRefused as refused:
        _burial_refusals.log(_log, logging.WARNING, "%s", refused)
        for eid in ids:
            set_ttl(txn, stream, eid, txn.now_ms + dead.WAIT_MS)
        return
    drop_references(txn, stream, ids)
    erase(txn, stream, find_live(txn, stream, ids))
    txn.catalog.index.report_change(stream)
    txn.signal(name, Wake.FREED)  # a group that had reached a limit may deliver again


def _bury(txn: Txn, name: bytes, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Move pending entries to the dead letters of each group whose policy has some.

    Entries that no consumer has had, as they wait behind others of their key, are only deleted.
    """
    packed = [eid.packed for eid in ids]
    for group in list(txn.catalog.groups(txn, stream)):
        policy = group.policy
        if policy is not None and (policy.dead_letter or policy.max_deliveries):
            runs = pel.runs_at(txn, group, packed)
            parts = [(run, some) for run, some in runs if run.owned or run.deliveries]
            if parts:
                dead.bury(txn, name, stream, group, parts, dead.Cause(Reason.EXPIRED))
