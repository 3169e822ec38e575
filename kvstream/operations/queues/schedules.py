"""KVSTREAM.SCHEDULE: add messages at the times of cron expressions.

::

    schedule row := "S" name -> msgpack array: cron, zone, misfire, most, next_ms, last_ms, error,
                                field, value ...
    timer           kind 3, rest = name, at next_ms

The commit that adds a message also sets the schedule's next time, so each time fires once. The next
time is above the last one, so no time repeats if the clock is set back. A message has the fields of
its schedule, and then ``cron:name`` and ``cron:at``, the planned time in Unix milliseconds.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice, takewhile
from typing import NamedTuple

import msgpack

from kvstream.errors import (
    Corruption,
    IDsExhausted,
    InvalidArgument,
    NoSuchKey,
    no_choice,
    quote,
    show,
)
from kvstream.layout.keys import key_of
from kvstream.layout.values import encode_flat
from kvstream.logs import DeferredLogger
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import append
from kvstream.types import cron
from kvstream.types.cron import Times
from kvstream.types.ids import StreamID
from kvstream.types.options import KEY_BYTES_MAX

ROW_TAG = b"S"
NAME_FIELD, AT_FIELD = b"cron:name", b"cron:at"
MOST_MAX = 1000
"""Missed times that one schedule may make up for."""
LATE_MS = 5000
"""SKIP leaves out a time that fires later than this."""
STEP_SCHEDULES, STEP_MESSAGES = 50, 500
"""The most schedules and messages of one commit; an expression takes some 50 us."""
_log = DeferredLogger(__name__)
_SILENT = (
    "the schedule %s of stream %s fired while the clock was ahead: it is silent for %.0f s, unless "
    "it is deleted and set anew"
)
_pack = msgpack.Packer(use_bin_type=True).pack


class Misfire(StrEnum):
    """What becomes of times that passed while the store could not fire them."""

    SKIP = "SKIP"
    """They are left out."""
    ONCE = "ONCE"
    """One message stands for all of them."""
    ALL = "ALL"
    """Each gets its message, the latest ``most`` of them."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise no_choice("the misfire rule must be SKIP, ONCE, or ALL", value, cls)


class Schedule(NamedTuple):
    """One schedule of a stream."""

    name: bytes
    cron: str
    zone: str
    """A name such as Europe/Berlin; UTC if it is empty."""
    flat: tuple[bytes, ...]
    """Field, value, field, value ... of its messages."""
    misfire: Misfire = Misfire.ONCE
    most: int = 1
    """Messages that ALL adds at once."""
    next_ms: int = 0
    """The next time; 0 after an error."""
    last_ms: int = 0
    """The planned time of the last message; 0: there was none."""
    error: str = ""
    """Why it has stopped, for example because the system no longer has its time zone."""

    @property
    def times(self) -> Times:
        return cron.parse(self.cron, self.zone)

    def entry(self, at_ms: int) -> list[bytes]:
        """Return the fields of the message of a time."""
        return [*self.flat, NAME_FIELD, self.name, AT_FIELD, b"%d" % at_ms]

    def encode(self) -> bytes:
        rule = [self.cron, self.zone, self.misfire.value, self.most]
        return bytes(_pack([*rule, self.next_ms, self.last_ms, self.error, *self.flat]))


_RULES = 7
_TYPES = (str, str, str, int, int, int, str)


def decode(name: bytes, value: bytes) -> Schedule:
    """Return the schedule of a row; raise Corruption if it is damaged."""
    try:
        parts = msgpack.unpackb(value, use_list=False)
        rule, flat = parts[:_RULES], parts[_RULES:]
        if tuple(map(type, rule)) != _TYPES or set(map(type, flat)) != {bytes} or len(flat) % 2:
            raise ValueError("parts of a wrong type")
        text, zone, misfire, most, next_ms, last_ms, error = rule
        for at_ms in (next_ms, last_ms):
            datetime.fromtimestamp(at_ms / 1000, UTC)  # or raises
        return Schedule(name, text, zone, flat, Misfire(misfire), most, next_ms, last_ms, error)
    except Exception as error:  # msgpack raises errors of many classes
        raise Corruption(f"the schedule {quote(name)} is damaged: {error!r}") from error


# --- set, list, delete, run ---------------------------------------------------------------------


def set_schedule(
    txn: Txn,
    name: bytes,
    schedule: bytes,
    expression: str,
    flat: Sequence[bytes],
    zone: str = "",
    misfire: Misfire = Misfire.ONCE,
    most: int = 1,
) -> Schedule:
    """Create or change a schedule; a stream is created if there is none.

    A schedule of the same expression and zone keeps its next time, even if that has passed.
    """
    new = Schedule(schedule, expression, zone, tuple(flat), misfire, most)
    _refuse_wrong(txn, new)
    stream = txn.stream(name)
    old = None if stream is None else _get(txn, stream, schedule)
    if old is not None and old[1:3] == new[1:3] and old.next_ms:
        next_ms: int | None = old.next_ms
        if stream is not None and old.last_ms > txn.now_ms:
            _log.warning(_SILENT, *_places(stream, old), (old.last_ms - txn.now_ms) / 1000)
    else:
        next_ms = new.times.after(txn.now_ms)
    if next_ms is None:
        raise InvalidArgument(f"the cron expression {show(expression)} has no time in 50 years")
    stream = stream or txn.catalog.create_stream(txn, name)
    new = new._replace(next_ms=next_ms, last_ms=0 if old is None else old.last_ms)
    _put(txn, stream, new, old)
    return new


def refuse_most(most: int) -> None:
    """Raise InvalidArgument if the number of missed times is out of range."""
    if not 1 <= most <= MOST_MAX:
        raise InvalidArgument(f"MISFIRE ALL must be 1 to {MOST_MAX}, not {most}")


def _refuse_wrong(txn: Txn, new: Schedule) -> None:
    """Raise InvalidArgument for a schedule with a wrong value."""
    if not new.name or len(new.name) > KEY_BYTES_MAX:
        raise InvalidArgument(f"the name of a schedule has 1 to {KEY_BYTES_MAX} bytes")
    refuse_most(new.most)
    for own in (NAME_FIELD, AT_FIELD):
        if own in new.flat[::2]:
            raise InvalidArgument(f"the field {own.decode()} is set by the schedule itself")
    if not new.flat or len(new.flat) % 2:
        raise InvalidArgument("a schedule needs fields and values for its messages")
    encode_flat(new.entry(txn.now_ms), txn.catalog.limits.entry_max_bytes)
    cron.parse(new.cron, new.zone)


def schedules(txn: Txn, name: bytes) -> list[Schedule]:
    """Return the schedules of a stream by name."""
    stream = txn.stream(name)
    if stream is None:
        return []
    rows = timers.scan_rows(txn, stream, ROW_TAG)
    return [decode(suffix[1:], value) for suffix, value in rows]


def delete_schedule(txn: Txn, name: bytes, schedule: bytes) -> bool:
    """Delete a schedule; return whether it existed."""
    stream = txn.stream(name)
    old = None if stream is None else _get(txn, stream, schedule)
    if stream is None or old is None:
        return False
    txn.frees = True
    timers.take(txn, stream, old.next_ms, Kind.CRON, schedule)
    timers.delete_row(txn, stream, ROW_TAG + schedule)
    return True


def run_schedule(txn: Txn, name: bytes, schedule: bytes) -> StreamID:
    """Add a message of a schedule now; its next time stays."""
    stream = txn.stream(name)
    stored = None if stream is None else _get(txn, stream, schedule)
    if stored is None:
        error = NoSuchKey(f"no such schedule {quote(schedule)}")
        raise error.with_detail(f"there is none in stream {quote(key_of(name))}")
    return _add(txn, name, stored, [txn.now_ms])[0]


def _get(txn: Txn, stream: StreamMeta, schedule: bytes) -> Schedule | None:
    value = timers.get_row(txn, stream, ROW_TAG + schedule)
    return None if value is None else decode(schedule, value)


def _put(txn: Txn, stream: StreamMeta, new: Schedule, old: Schedule | None = None) -> None:
    """Write a schedule and its timer; remove the timer of the old one if it is given."""
    if old is not None and old.next_ms and old.next_ms != new.next_ms:
        timers.take(txn, stream, old.next_ms, Kind.CRON, old.name)
    timers.put_row(txn, stream, ROW_TAG + new.name, new.encode())
    if new.next_ms:
        timers.put(txn, stream, new.next_ms, Kind.CRON, new.name)


def restore(txn: Txn, stream: StreamMeta, new: Schedule) -> None:
    """Store a schedule of another stream's image, with its times."""
    _put(txn, stream, new, _get(txn, stream, new.name))


# --- the due ones -------------------------------------------------------------------------------


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Add the messages of schedules that are due, and set their next times."""
    added = 0
    for at, timer in enumerate(due):
        if at >= STEP_SCHEDULES or added >= STEP_MESSAGES:
            timers.put(txn, stream, timer.at_ms, Kind.CRON, timer.rest)
            continue
        try:
            stored = _get(txn, stream, timer.rest)
        except Corruption as error:  # check reports it, and the others go on
            _log.warning("%s", error)
            continue
        if stored is not None and stored.next_ms == timer.at_ms:
            added += _fire(txn, name, stream, stored)


def _fire(txn: Txn, name: bytes, stream: StreamMeta, schedule: Schedule) -> int:
    """Add the messages of one schedule; return how many."""
    try:
        planned = schedule.times
        times = list(_due_times(planned, schedule, txn.now_ms))[::-1]
        next_ms = planned.after(txn.now_ms)
        if times:
            _add(txn, name, schedule, times)
            txn.signal(name, Wake.DUE)
    except (InvalidArgument, IDsExhausted) as error:  # the others go on
        _log.warning("the schedule %s of stream %s stops: %s", *_places(stream, schedule), error)
        _put(txn, stream, schedule._replace(next_ms=0, error=str(error)))
        return 0
    events = txn.catalog.queue_events
    events.cron_fired += len(times)
    events.cron_missed += not times
    last_ms = times[-1] if times else schedule.last_ms
    _put(txn, stream, schedule._replace(next_ms=next_ms or 0, last_ms=last_ms))
    txn.catalog.index.report_change(stream)  # no client's command has made the change
    return len(times)


def _due_times(planned: Times, schedule: Schedule, now_ms: int) -> Iterator[int]:
    """Yield the times for which messages are added now, the latest first."""
    passed = takewhile(lambda at_ms: at_ms >= schedule.next_ms, planned.until(now_ms))
    if schedule.misfire is Misfire.ALL:
        yield from islice(passed, schedule.most)
        return
    latest = next(passed, schedule.next_ms)
    if schedule.misfire is Misfire.ONCE or now_ms - latest <= LATE_MS:
        yield latest


def _add(txn: Txn, name: bytes, schedule: Schedule, times: list[int]) -> list[StreamID]:
    stream = txn.existing_stream(name)
    before = stream.entries_added
    added = append.add_many(txn, name, [encode_flat(schedule.entry(at_ms)) for at_ms in times])
    timers.note_added(txn, stream, before)
    return added


def _places(stream: StreamMeta, schedule: Schedule) -> tuple[str, str]:
    return quote(schedule.name), quote(key_of(stream.name))
