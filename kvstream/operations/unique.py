"""UNIQUE of KVSTREAM.ADD: keep messages of equal unique IDs out of a stream.

The last message that took an ID holds it: for a window of time from then on, or, with a window of
0, until that message is done. It is done once its entry has left the stream, or once a group that
has read past it does not have it pending. Groups are asked when a message with the ID is added, so
an acknowledgement does no more work than in other streams and leaves nothing to a later commit::

    unique row := "U" id    -> is_entry(u8) holder(16 bytes) until_ms(u64, 0: done) check_ms(u64)
                               [since_ms(u64) taken(u64)]
    start row  := "G" group -> id
    timer         kind 8, rest = id, at check_ms: the end of the window, or the next look at
                  whether the message is done

``since_ms`` is the time of the first message that others have replaced by DEBOUNCE, for its longest
wait, or the begin of the first window in which ``taken`` messages have the ID (``most``, THROTTLE).
There ``until_ms`` is the end of the last window that a message was put into.

A group that began above its stream's first ID never reads the entries below. Its start row has the
ID after which it began.
"""

from collections.abc import Sequence
from enum import Enum, StrEnum, auto
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, TypeAlias

from kvstream.errors import Corruption, InvalidArgument, nearest, quote, show
from kvstream.layout.keys import ID_BYTES
from kvstream.meta import pel, timers
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS
from kvstream.meta.timers import DELAY_MAX_MS, Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.operations.delete import erase
from kvstream.operations.reads.rows import exists
from kvstream.operations.trim import drop_references
from kvstream.types.ids import MIN_ID, PACKED, UNPACKED, StreamID, Ticket

ROW_TAG, START_TAG = b"U", b"G"
ID_BYTES_MAX = 1024
LOOK_MIN_MS, LOOK_MAX_MS = 60_000, 3_600_000
"""A row without a window is looked at when its message is twice as old, between these times."""
_ROW = Struct(">B16sQQ")
_SINCE = Struct(">QQ")
MOST_MAX = 1 << 32

Holder: TypeAlias = StreamID | Ticket


class Conflict(StrEnum):
    """What becomes of a new message while another one holds its unique ID."""

    SKIP = "SKIP"
    """It is not added."""
    REPLACE = "REPLACE"
    """It takes the place of the holder, unless that was delivered: then as SKIP."""
    DEBOUNCE = "DEBOUNCE"
    """It takes the place of a delayed holder, and so restarts the delay."""
    AFTER = "AFTER"
    """It is added if the holder was delivered, so that at most one waits."""
    THROTTLE = "THROTTLE"
    """It is delayed to the next window that has room."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise InvalidArgument(
            "the rule for a unique ID must be SKIP, REPLACE, DEBOUNCE, AFTER, or THROTTLE"
        ).with_detail(f"{show(value)}{nearest(str(value), cls)}")


class Unique(NamedTuple):
    """The unique ID of a new message."""

    id: bytes
    window_ms: int = 0
    """How long it is held; 0: until the message is done."""
    conflict: Conflict = Conflict.SKIP
    most: int = 1
    """How many messages may have it in a window: SKIP and THROTTLE alone."""
    max_wait_ms: int = 0
    """DEBOUNCE: how long after the first message the last one is due at the latest; 0: no limit."""

    @property
    def counts(self) -> bool:
        """Return whether messages are counted, window by window."""
        return self.most > 1 or self.conflict is Conflict.THROTTLE

    def refuse_wrong(self, is_delayed: bool) -> None:
        """Raise InvalidArgument if the rule cannot hold."""
        if not 1 <= len(self.id) <= ID_BYTES_MAX:
            raise InvalidArgument(f"a unique ID has 1 to {ID_BYTES_MAX} bytes, not {len(self.id)}")
        if not 0 <= self.window_ms <= DELAY_MAX_MS:
            raise InvalidArgument(f"a window must be 0 to 100 years in ms, not {self.window_ms}")
        if self.conflict is Conflict.DEBOUNCE and not is_delayed:
            raise InvalidArgument("DEBOUNCE needs a delay, which each message starts anew")
        if not 1 <= self.most <= MOST_MAX:
            raise InvalidArgument(f"at least 1 message may have a unique ID, not {self.most}")
        if self.counts and not self.window_ms:
            raise InvalidArgument("MOST and THROTTLE need a window above 0, in which they count")
        if self.most > 1 and self.conflict not in (Conflict.SKIP, Conflict.THROTTLE):
            raise InvalidArgument(f"MOST goes with SKIP or THROTTLE, not with {self.conflict}")
        if self.max_wait_ms and self.conflict is not Conflict.DEBOUNCE:
            raise InvalidArgument(f"MAXWAIT goes with DEBOUNCE, not with {self.conflict}")
        if not 0 <= self.max_wait_ms <= DELAY_MAX_MS:
            raise InvalidArgument(f"MAXWAIT must be 0 to 100 years in ms, not {self.max_wait_ms}")


class Row(NamedTuple):
    """Who holds a unique ID, and until when."""

    holder: Holder
    until_ms: int
    check_ms: int
    since_ms: int = 0
    taken: int = 0

    def encode(self) -> bytes:
        is_entry = type(self.holder) is StreamID
        row = _ROW.pack(is_entry, PACKED(*self.holder), self.until_ms, self.check_ms)
        if self.since_ms or self.taken:
            row += _SINCE.pack(self.since_ms, self.taken)
        return row


def decode(unique_id: bytes, value: bytes) -> Row:
    """Return a unique row; raise Corruption if it is damaged."""
    try:
        is_entry, packed, until_ms, check_ms = _ROW.unpack(value[: _ROW.size])
        since = _SINCE.unpack(value[_ROW.size :]) if len(value) > _ROW.size else (0, 0)
    except StructError:
        raise Corruption(f"the row of the unique ID {quote(unique_id)} is damaged") from None
    holder = (StreamID if is_entry else Ticket)(*UNPACKED(packed))
    return Row(holder, until_ms, check_ms, *since)


# --- the state of a message ---------------------------------------------------------------------


class State(Enum):
    """How far an entry has come."""

    WAITING = auto()
    """No consumer has got it."""
    DELIVERED = auto()
    """It is pending in a group, and done in none."""
    DONE = auto()
    """It was acknowledged in a group, or has left the stream."""


def state_of(txn: Txn, stream: StreamMeta, eid: StreamID) -> State:
    """Return how far an entry has come in the group that is ahead of the others."""
    if not stream.length or eid < stream.first or not exists(txn, stream, eid):
        return State.DONE
    state = State.WAITING
    packed = eid.packed
    for group in txn.catalog.groups(txn, stream):
        if group.last_delivered < eid:
            continue
        run = pel.run_at(txn, group, packed)
        if run is not None and run.has(packed):
            waits = run.rank and not run.deliveries  # for another of its key, or its key's turn
            if run.time_ms != HELD_MS and not waits:
                state = State.DELIVERED
        elif eid > _start_of(txn, stream, group):
            return State.DONE
    return state


def _start_of(txn: Txn, stream: StreamMeta, group: GroupMeta) -> StreamID:
    packed = timers.get_row(txn, stream, START_TAG + group.name)
    if packed is not None and len(packed) != ID_BYTES:
        raise Corruption(f"the start of the group {quote(group.name)} has no ID")
    return MIN_ID if packed is None else StreamID.unpack(packed)


def note_position(txn: Txn, stream: StreamMeta, group: GroupMeta, is_new: bool) -> None:
    """Record where a group was set to: it has not done the entries below."""
    if not stream.queue_tree:  # no message has an ID so far, and later ones are above
        return
    at, start = group.last_delivered, _start_of(txn, stream, group)
    if at < start or (is_new and at > MIN_ID):
        timers.put_row(txn, stream, START_TAG + group.name, at.packed)


def forget_position(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
    """Forget where a deleted group began."""
    timers.delete_row(txn, stream, START_TAG + group.name)


# --- who holds an ID ----------------------------------------------------------------------------


def row_of(txn: Txn, stream: StreamMeta, unique_id: bytes) -> Row | None:
    """Return the row of a unique ID, None if there is none; the ID may be free by now."""
    value = timers.get_row(txn, stream, ROW_TAG + unique_id)
    return None if value is None else decode(unique_id, value)


def held_row(txn: Txn, stream: StreamMeta, unique_id: bytes) -> Row | None:
    """Return the row of a unique ID that a message holds; None if it is free."""
    row = row_of(txn, stream, unique_id)
    return row if row is not None and _is_held(txn, stream, row) else None


def _is_held(txn: Txn, stream: StreamMeta, row: Row) -> bool:
    if row.until_ms:
        return row.until_ms > txn.now_ms
    holder = row.holder
    return isinstance(holder, Ticket) or state_of(txn, stream, holder) is not State.DONE


def resolve_conflict(txn: Txn, stream: StreamMeta, unique: Unique, holder: Holder) -> bool:
    """Decide a conflict: return whether the new message is added.

    If it is, the caller must remove a delayed holder; a holder in the stream is deleted here.
    """
    rule = unique.conflict
    if isinstance(holder, Ticket):
        return rule in (Conflict.REPLACE, Conflict.DEBOUNCE)
    if rule in (Conflict.SKIP, Conflict.THROTTLE):
        return False
    if rule is Conflict.DEBOUNCE:  # the change came too late for the holder
        return True
    is_waiting = state_of(txn, stream, holder) is State.WAITING
    if rule is Conflict.AFTER:
        return not is_waiting
    if is_waiting:
        drop_references(txn, stream, [holder])  # it may be pending behind others of its key
        erase(txn, stream, [holder])
    return is_waiting


def due_ms(row: Row | None, unique: Unique, now_ms: int, at_ms: int | None) -> int | None:
    """Return when a message is due that was to be due at ``at_ms``; ``row``: that of the holder."""
    if row is None:
        return at_ms
    if unique.conflict is Conflict.THROTTLE and row.taken:
        begin_ms = row.since_ms + row.taken // unique.most * unique.window_ms
        return max(at_ms or 0, begin_ms) if begin_ms > now_ms else at_ms
    if unique.max_wait_ms and row.since_ms and at_ms is not None:
        return min(at_ms, row.since_ms + unique.max_wait_ms)
    return at_ms


def is_full(row: Row, unique: Unique) -> bool:
    """Return whether the window has no room for another message, which is left out."""
    return unique.conflict is Conflict.SKIP and row.taken >= unique.most


def assign(
    txn: Txn, stream: StreamMeta, unique: Unique, holder: Holder, before: Row | None = None
) -> None:
    """Give a unique ID to a new message; ``before``: the row of a holder that it was added beside.

    That is, one that it has replaced by DEBOUNCE, or of the same window.
    """
    _take_timer(txn, stream, unique.id)
    since_ms, taken = 0, 0
    if unique.counts:
        since_ms, taken = (before.since_ms, before.taken) if before else (txn.now_ms, 0)
        taken += 1
    elif unique.max_wait_ms:
        since_ms = (before and before.since_ms) or txn.now_ms
    windows = -(-taken // unique.most) if taken else 1
    until_ms = (since_ms if taken else txn.now_ms) + windows * unique.window_ms
    until_ms = until_ms if unique.window_ms else 0
    at_ms = holder.at_ms if isinstance(holder, Ticket) else txn.now_ms
    check_ms = until_ms or at_ms + LOOK_MIN_MS
    _put(txn, stream, unique.id, Row(holder, until_ms, check_ms, since_ms, taken))


def rename(txn: Txn, stream: StreamMeta, unique_id: bytes, holder: Holder, new: Holder) -> None:
    """Record the new name of a message that was moved to another time or has become due."""
    found = row_of(txn, stream, unique_id)
    if found is not None and found.holder == holder:
        row = found._replace(holder=new)
        timers.put_row(txn, stream, ROW_TAG + unique_id, row.encode())


def release(txn: Txn, stream: StreamMeta, unique_id: bytes, holder: Holder) -> None:
    """Free the unique ID of a removed message, if it is still the holder."""
    row = row_of(txn, stream, unique_id)
    if row is None or row.holder != holder:
        return
    if row.taken:  # the window counts it all the same
        timers.put_row(txn, stream, ROW_TAG + unique_id, row._replace(holder=MIN_ID).encode())
        return
    _take_timer(txn, stream, unique_id)
    timers.delete_row(txn, stream, ROW_TAG + unique_id)


def _put(txn: Txn, stream: StreamMeta, unique_id: bytes, row: Row) -> None:
    timers.put_row(txn, stream, ROW_TAG + unique_id, row.encode())
    timers.put(txn, stream, row.check_ms, Kind.UNIQUE, unique_id)


def restore(txn: Txn, stream: StreamMeta, unique_id: bytes, row: Row) -> None:
    """Store the row of a unique ID of another stream's image."""
    _take_timer(txn, stream, unique_id)
    _put(txn, stream, unique_id, row)


def _take_timer(txn: Txn, stream: StreamMeta, unique_id: bytes) -> None:
    row = row_of(txn, stream, unique_id)
    if row is not None:
        timers.take(txn, stream, row.check_ms, Kind.UNIQUE, unique_id)


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: Sequence[Timer]) -> None:
    """Delete the rows of windows that have ended, and of messages that are done."""
    for timer in due:
        try:
            row = row_of(txn, stream, timer.rest)
        except Corruption:  # check reports it, and the others go on
            continue
        if row is None or row.check_ms != timer.at_ms:
            continue
        if row.until_ms or not _is_held(txn, stream, row):
            timers.delete_row(txn, stream, ROW_TAG + timer.rest)
            continue
        holder = row.holder
        if isinstance(holder, Ticket):
            check_ms = max(txn.now_ms, holder.at_ms) + LOOK_MIN_MS
        else:
            age_ms = txn.now_ms - holder.ms
            check_ms = txn.now_ms + min(max(age_ms, LOOK_MIN_MS), LOOK_MAX_MS)
        _put(txn, stream, timer.rest, row._replace(check_ms=check_ms))
