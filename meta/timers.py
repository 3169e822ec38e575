"""The queue tree of a stream: its timers, and other rows of queues.

A stream that was never used as a queue has no such tree. A timer is a row that is due at a time;
what it does is its kind's concern (engine/timer_thread.py)::

    timer row := queue tree(u64) "T" at_ms(u64) kind(u8) rest -> value
    other row := queue tree(u64) tag rest                     -> value     of the tag's own kind

A stream's record has the time of its first timer, and an index of the store lists the streams that
have one by that time (meta/keyspace.py). The time may be too early after a timer was taken away;
the step that then finds nothing due sets it again. Scans begin at that time, so that they step over
no rows of timers that have fired.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import U64, decode_number, successor, tree_prefix
from kvstream.meta import nodes
from kvstream.meta.changeset import Changeset
from kvstream.meta.policy import ADDED_ROW, REAP_ROWS, TIMER_ROW
from kvstream.meta.records import StreamMeta
from kvstream.storage.batch import Family

_TREES = Family.TREES
TIMER = b"T"
_TIMER = Struct(">cQB")
_KIND_BYTES = 1
TIME_MAX = (1 << 63) - 1
"""The latest time of a timer, in Unix milliseconds."""
DELAY_MAX_MS = 100 * 365 * 86_400_000
"""The longest time that a rule or a message may ask for, a hundred years: a later one is in
microseconds."""


class Kind(IntEnum):
    """What a timer does when it is due; ``rest`` and ``value`` are the kind's own."""

    DELAYED = 1
    """Adds a message."""
    RETRY = 2
    """Makes pending entries ready to be delivered again."""
    CRON = 3
    """Adds the message of a schedule."""
    RETENTION = 4
    """Removes entries that the stream need not keep."""
    REAP = 5
    """Deletes idle consumers of a group."""
    REDRIVE = 6
    """Moves dead letters back."""
    EXPIRED = 7
    """Deletes a message whose time to live is over."""
    UNIQUE = 8
    """Forgets an ID that kept others of its kind out."""
    FAILURE = 9
    """Forgets the last error of an entry that is not pending any more."""


class Timer(NamedTuple):
    """One timer, in the order in which timers are due."""

    at_ms: int
    kind: int
    rest: bytes
    value: bytes


def tree(txn: Changeset, stream: StreamMeta) -> bytes:
    """Return the prefix of the stream's queue tree, which is made if there is none."""
    if not stream.queue_tree:
        stream.queue_tree = txn.allocate()
        txn.record_changed(stream)
    return tree_prefix(stream.queue_tree)


# --- other rows ---------------------------------------------------------------------------------


def get_row(txn: Changeset, stream: StreamMeta, suffix: bytes) -> bytes | None:
    """Return the value of a row, given by its tag and rest."""
    if not stream.queue_tree:
        return None
    return txn.batch.get(_TREES, tree_prefix(stream.queue_tree) + suffix)


def put_row(txn: Changeset, stream: StreamMeta, suffix: bytes, value: bytes) -> None:
    txn.batch.put(_TREES, tree(txn, stream) + suffix, value)


def delete_row(txn: Changeset, stream: StreamMeta, suffix: bytes) -> None:
    if stream.queue_tree:
        txn.batch.delete(_TREES, tree_prefix(stream.queue_tree) + suffix)


def scan_rows(
    txn: Changeset, stream: StreamMeta, prefix: bytes, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (suffix, value) of the rows whose suffixes begin with ``prefix``, from one on."""
    if not stream.queue_tree:
        return
    head = tree_prefix(stream.queue_tree)
    for key, value in txn.batch.scan(_TREES, head + max(prefix, start), successor(head + prefix)):
        yield key[len(head) :], value


# --- timers -------------------------------------------------------------------------------------


def suffix_of(at_ms: int, kind: int, rest: bytes) -> bytes:
    """Return the suffix of a timer's row."""
    return _TIMER.pack(TIMER, at_ms, kind) + rest


def decode(suffix: bytes, value: bytes) -> Timer:
    """Return the timer of a row; raise Corruption if it is damaged."""
    if len(suffix) < _TIMER.size:
        raise Corruption(f"the timer {suffix.hex()} is damaged")
    _, at_ms, kind = _TIMER.unpack_from(suffix)
    return Timer(at_ms, kind, suffix[_TIMER.size :], value)


def put(
    txn: Changeset, stream: StreamMeta, at_ms: int, kind: int, rest: bytes, value: bytes = b""
) -> None:
    """Set a timer; one of the same time, kind and rest is replaced."""
    at_ms = min(max(0, at_ms), TIME_MAX)
    suffix = suffix_of(at_ms, kind, rest)
    put_row(txn, stream, suffix, value)
    taken = txn.catalog.timers_taken
    if taken and suffix < taken.get(stream.queue_tree, b""):
        del taken[stream.queue_tree]
    if not stream.due_at or at_ms < stream.due_at:
        set_due(txn, stream, at_ms)


def row(stream: StreamMeta, at_ms: int, kind: int, rest: bytes) -> bytes:
    """Return the key of a timer of a stream that has a queue tree."""
    return tree_prefix(stream.queue_tree) + suffix_of(at_ms, kind, rest)


def take(txn: Changeset, stream: StreamMeta, at_ms: int, kind: int, rest: bytes) -> bytes | None:
    """Take a timer away and return its value; None if there is none."""
    suffix = suffix_of(at_ms, kind, rest)
    value = get_row(txn, stream, suffix)
    if value is not None:
        delete_row(txn, stream, suffix)
    return value


def get(txn: Changeset, stream: StreamMeta, at_ms: int, kind: int, rest: bytes) -> bytes | None:
    """Return the value of a timer; None if there is none."""
    return get_row(txn, stream, suffix_of(at_ms, kind, rest))


def scan(
    txn: Changeset,
    stream: StreamMeta,
    kind: int | None = None,
    start_ms: int = 0,
    rest: bytes = b"",
) -> Iterator[Timer]:
    """Yield the timers, of one kind if it is given, from a time on (``rest``: within that time)."""
    if start_ms < stream.due_at:
        start_ms, rest = stream.due_at, b""
    start = suffix_of(start_ms, kind or 0, rest)
    for suffix, value in scan_rows(txn, stream, TIMER, max(start, _first(txn, stream))):
        timer = decode(suffix, value)
        if kind is None or timer.kind == kind:
            yield timer


# --- entries that timers have added ---------------------------------------------------------------


def note_added(txn: Changeset, stream: StreamMeta, before: int) -> None:
    """Note that timers have added entries to a stream that had ``before`` in all.

    Nothing is noted once another entry was added, or a group reads the stream.
    """
    if not stream.groups_count and stream.entries_added > before == count_added(txn, stream):
        put_row(txn, stream, ADDED_ROW, U64.pack(stream.entries_added))


def count_added(txn: Changeset, stream: StreamMeta) -> int:
    """Return how many entries a stream had when timers had added all of them."""
    return decode_number(ADDED_ROW, get_row(txn, stream, ADDED_ROW))


# --- timers of which a stream, or a group, has one ----------------------------------------------

_TIME_ROWS: Mapping[Kind, bytes] = {Kind.RETENTION: TIMER_ROW, Kind.REAP: REAP_ROWS}
"""The row, before ``rest``, that has the time of the only timer of a kind and rest."""


def time_row(kind: int, rest: bytes) -> bytes | None:
    """Return the suffix of the row with the time of an only timer; None: its kind has no row."""
    return _TIME_ROWS[Kind(kind)] + rest if kind in _TIME_ROWS else None


def arm(txn: Changeset, stream: StreamMeta, kind: Kind, at_ms: int, rest: bytes = b"") -> None:
    """Set the only timer of a kind and rest, in place of the one before."""
    disarm(txn, stream, kind, rest)
    at_ms = min(at_ms, TIME_MAX)
    put(txn, stream, at_ms, kind, rest)
    put_row(txn, stream, _TIME_ROWS[kind] + rest, U64.pack(at_ms))


def disarm(txn: Changeset, stream: StreamMeta, kind: Kind, rest: bytes = b"") -> None:
    """Take away the only timer of a kind and rest, if it is set."""
    suffix = _TIME_ROWS[kind] + rest
    packed = get_row(txn, stream, suffix)
    if packed is not None:
        try:
            take(txn, stream, U64.unpack(packed)[0], kind, rest)
        except StructError as error:
            raise nodes.damage_error(stream, f"has a damaged row {suffix!r}") from error
        delete_row(txn, stream, suffix)


# --- due timers ---------------------------------------------------------------------------------

_FEW = 32
STEP_BYTES = 1 << 20
"""Bytes of the timers of one step, with which it ends: delayed messages may be large."""


def take_due(txn: Changeset, stream: StreamMeta, limit: int) -> list[Timer]:
    """Take up to ``limit`` timers that are due, in order, and set the time of the next one.

    They end with the one that brings their values to STEP_BYTES.
    """
    if not stream.due_at or stream.due_at > txn.now_ms:
        return []
    head = tree_prefix(stream.queue_tree)
    lower = head + _first(txn, stream)
    due: list[Timer] = []
    keys: list[bytes] = []
    size = next_ms = 0
    for key, value in txn.batch.scan(_TREES, lower, successor(head + TIMER)):
        timer = decode(key[len(head) :], value)
        if timer.at_ms > txn.now_ms or len(due) == limit or size > STEP_BYTES:
            next_ms = timer.at_ms
            break
        due.append(timer)
        keys.append(key)
        size += len(value)
    _delete_first(txn, keys)
    set_due(txn, stream, next_ms)
    if due and due[-1].at_ms == next_ms:
        txn.catalog.timers_taken[stream.queue_tree] = keys[-1][len(head) :] + b"\0"
    else:
        txn.catalog.timers_taken.pop(stream.queue_tree, None)
    return due


def _first(txn: Changeset, stream: StreamMeta) -> bytes:
    """Return a suffix below that of the stream's first timer, and above those that have fired.

    A million timers of one millisecond leave two thousand deleted ranges.
    """
    first = suffix_of(stream.due_at, 0, b"")
    taken = txn.catalog.timers_taken.get(stream.queue_tree, b"")
    return taken if taken.startswith(first[:-_KIND_BYTES]) else first


def _delete_first(txn: Changeset, keys: list[bytes]) -> None:
    """Delete adjacent rows: many of them as one range, which scans step over at once."""
    if len(keys) > _FEW:
        txn.batch.delete_range(_TREES, keys[0], keys[-1] + b"\0")
        return
    for key in keys:
        txn.batch.delete(_TREES, key)


def set_due(txn: Changeset, stream: StreamMeta, at_ms: int) -> None:
    """Set the time of the stream's first timer, 0 if it has none."""
    if at_ms != stream.due_at:
        txn.catalog.set_due(txn, stream, at_ms)
        txn.record_changed(stream)
