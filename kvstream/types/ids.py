"""Stream IDs: two unsigned 64-bit numbers, milliseconds and sequence, ordered as one of 128 bits.

Parsing follows Redis: ``123`` alone is ``123-0``, or ``123-18446744073709551615`` as the end of a
range; in ranges ``-`` and ``+`` are the least and the greatest ID, and ``(id`` excludes an ID.
The bounds of ranges may also be times, which are UTC without a zone.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from itertools import islice, pairwise
from operator import lt
from struct import Struct
from typing import NamedTuple

from kvstream.errors import IDsExhausted, InvalidArgument, InvalidID, advise, show
from kvstream.types.clock import now_ms as _system_ms

U64_MAX = (1 << 64) - 1

_ID = re.compile(rb"([0-9]{1,64})(?:-([0-9]{1,62}))?")
_TICKET = re.compile(rb"@([0-9]{1,20})-([0-9]{1,20})")
_PACKED = Struct(">QQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d{1,15}(?:\.\d+)?)(ms|s|m|h|d)?")
_AGO = re.compile(
    r"(last |past |an? )?(?:(\d{1,15}(?:\.\d+)?) ?)?"
    r"(ms|[smhdw]|(?:millisecond|second|sec|minute|min|hour|hr|day|week)s?)( ago)?"
)
_NOW = re.compile(r"now(?:-(.+))?")
_DAY = re.compile(r"(today|yesterday)(?: (\d?\d)(:\d\d(?::\d\d)?))?", re.IGNORECASE)
_SECONDS = range(10**9, 1 << 32)
"""Numbers that mean 2001 to 2106 as Unix seconds, but early 1970 as milliseconds."""

NowMs = Callable[[], int]


class StreamID(NamedTuple):
    """The ID of an entry; compares and sorts as a 128-bit number.

    >>> kvstream.StreamID.parse("5-1") < kvstream.StreamID(5, 2)
    True
    >>> str(kvstream.StreamID(5, 1).next()), str(kvstream.StreamID.parse(5))
    ('5-2', '5-0')
    """

    ms: int
    """Milliseconds; since the Unix epoch if the store made the ID."""
    seq: int
    """Sequence number within the millisecond."""

    def __str__(self) -> str:
        return f"{self[0]}-{self[1]}"

    def __bytes__(self) -> bytes:
        return b"%d-%d" % self

    def __repr__(self) -> str:
        return f"StreamID('{self[0]}-{self[1]}')"

    @property
    def packed(self) -> bytes:
        """The ID as 16 bytes, big-endian, which sort as IDs do."""
        return _PACKED.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> "StreamID":
        """Return the ID of 16 ``packed`` bytes."""
        return new_id(_PACKED.unpack(packed))

    @classmethod
    def parse(cls, value: "IDLike", missing_seq: int = 0) -> "StreamID":
        """Return the ID that ``value`` names; raise InvalidID for any other value.

        ``value`` is a StreamID, a (ms, seq) pair, the text ``ms`` or ``ms-seq``, an int of
        milliseconds, a datetime or a date, which are UTC without a time zone.
        """
        if type(value) is StreamID:
            return value
        if isinstance(value, str | bytes):
            return _parse_text(value, missing_seq)
        if isinstance(value, tuple) and len(value) == 2:
            ms, seq = value
        elif isinstance(value, date):
            ms, seq = _date_ms(value), missing_seq
        else:
            ms, seq = value, missing_seq
        if not (_is_u64(ms) and _is_u64(seq)):
            raise _no_id(value)
        return cls(ms, seq)

    def next(self) -> "StreamID":
        """Return the ID right above; raise IDsExhausted at the greatest."""
        if self.seq < U64_MAX:
            return new_id((self.ms, self.seq + 1))
        if self.ms < U64_MAX:
            return StreamID(self.ms + 1, 0)
        raise IDsExhausted("The stream has exhausted the last possible ID")

    def previous(self) -> "StreamID":
        """Return the ID right below; raise InvalidID at 0-0."""
        if self.seq > 0:
            return StreamID(self.ms, self.seq - 1)
        if self.ms > 0:
            return StreamID(self.ms - 1, U64_MAX)
        raise InvalidID


def is_ascending(ids: Sequence[StreamID] | Sequence[bytes]) -> bool:
    """Return whether each ID, packed or not, is above the one before."""
    return len(ids) < 2 or all(map(lt, ids, islice(ids, 1, None)))  # type: ignore[arg-type]


def ascending(ids: Sequence[StreamID]) -> list[StreamID]:
    """Return IDs in ascending order, each once."""
    return list(ids) if is_ascending(ids) else sorted(set(ids))


def ascending_packed(ids: Sequence[bytes]) -> Sequence[bytes]:
    """Return packed IDs in ascending order, each once."""
    return ids if is_ascending(ids) else sorted(dict.fromkeys(ids))


def ascending_parts(ids: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Split packed IDs into consecutive parts that are ascending and distinct."""
    if is_ascending(ids):
        return [ids]
    ends = [at for at in range(1, len(ids)) if ids[at] <= ids[at - 1]]
    return [ids[start:end] for start, end in pairwise([0, *ends, len(ids)])]


IDLike = StreamID | tuple[int, int] | str | bytes | int | date
"""What names an ID; a datetime is a date."""

BoundLike = IDLike | timedelta
"""What names a bound of a range: also a time of ``time_ms``."""

PACKED = _PACKED.pack
"""Return the 16 bytes of an ID, from its two numbers."""

UNPACKED = _PACKED.unpack
"""Return the two numbers of an ID, from its 16 bytes."""

new_id = partial(tuple.__new__, StreamID)
"""Return a StreamID of a pair without running Python code."""


class Ticket(NamedTuple):
    """The name of a delayed message, which gets an ID only when it is due.

    Tickets sort in the order in which their messages become due.
    """

    at_ms: int
    """Unix time in milliseconds at which the message is due."""
    number: int
    """A number that no other message of the store has; it grows with each one."""

    def __str__(self) -> str:
        return f"@{self[0]}-{self[1]}"

    def __bytes__(self) -> bytes:
        return b"@%d-%d" % self

    def __repr__(self) -> str:
        return f"Ticket('{self}')"

    @classmethod
    def parse(cls, value: "Ticket | str | bytes") -> "Ticket":
        """Return the ticket of a text ``@ms-number``; raise InvalidID for any other value."""
        if type(value) is Ticket:
            return value
        if isinstance(value, Ticket):  # the result of a transaction on a server
            return cls(*value)
        match = _TICKET.fullmatch(_ascii(value)) if isinstance(value, str | bytes) else None
        if match is None or int(match[1]) > U64_MAX or int(match[2]) > U64_MAX:
            raise InvalidID("a ticket of a delayed message is '@ms-number'", value)
        return cls(int(match[1]), int(match[2]))


MIN_ID = StreamID(0, 0)
MAX_ID = StreamID(U64_MAX, U64_MAX)


def _is_u64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= U64_MAX


def _no_id(value: object) -> InvalidID:
    """Return the error of a value that is no ID, which says what to give instead."""
    if isinstance(value, float):
        hint = "a float; give int milliseconds, or datetime.fromtimestamp(seconds, UTC)"
    elif isinstance(value, timedelta):
        hint = "a time span, which only the bounds of ranges may be; give an ID or a datetime"
    elif isinstance(value, date):
        hint = "before 1970, where IDs begin"
    else:
        hint = "an ID is 'ms-seq', an int of milliseconds or a datetime"
    return InvalidID().with_detail(f"{show(value)} ({hint})")


def _ascii(value: str | bytes) -> bytes:
    try:
        return value.encode("ascii") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise _no_id(value) from None


def _parse_text(value: str | bytes, missing_seq: int) -> StreamID:
    match = _ID.fullmatch(_ascii(value))
    if match is None:
        raise _no_id(value)
    ms = int(match[1])
    seq = missing_seq if match[2] is None else int(match[2])
    if ms > U64_MAX or seq > U64_MAX:
        raise _no_id(value)
    return StreamID(ms, seq)


# --- times --------------------------------------------------------------------------------------


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of ``500ms``, ``10s``, ``1.5h``, or ``7``, which is in seconds."""
    match = _DURATION.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNIT_MS[match[2] or "s"])


def time_ms(value: object, now_ms: NowMs = _system_ms) -> int | None:
    """Return the Unix milliseconds of a time, rounded down; None if ``value`` is no time.

    A time is a datetime, a date (its midnight), a timedelta (that long ago), or text: ISO 8601,
    ``now``, ``now-15m``, ``15 minutes ago``, ``1h ago``, ``last hour`` (one hour ago), ``today``
    and ``yesterday`` (midnight) or ``yesterday 14:00``. Without a time zone it is UTC.
    """
    if isinstance(value, str):
        back = _back_ms(value)
        if back is not None:
            return now_ms() - back
        try:
            value = _on_day(value, now_ms) or datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, timedelta):
        return now_ms() - value // _MILLISECOND
    return _date_ms(value) if isinstance(value, date) else None


def _back_ms(text: str) -> int | None:
    """Return how many milliseconds ago ``now``, ``now-15m`` or ``15 minutes ago`` is."""
    span = _AGO.fullmatch(text.lower())
    if span is not None and (span[1] in ("last ", "past ")) != bool(span[4]):
        unit = "ms" if span[3].startswith(("ms", "milli")) else span[3][0]
        return round(float(span[2] or 1) * _UNIT_MS[unit])
    now = _NOW.fullmatch(text)
    if now is None:
        return None
    return 0 if now[1] is None else duration_ms(now[1])


def _on_day(text: str, now_ms: NowMs) -> datetime | None:
    """Return the moment of ``today``, ``yesterday`` or ``yesterday 14:00``; None for other text."""
    named = _DAY.fullmatch(text)
    if named is None:
        return None
    today = datetime.fromtimestamp(now_ms() / 1000, UTC).date()
    clock = time.fromisoformat(f"{int(named[2]):02}{named[3]}") if named[2] else time()
    day = today if named[1].lower() == "today" else today - timedelta(days=1)
    return datetime.combine(day, clock)


def _date_ms(value: date) -> int:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def seconds_hint(value: object) -> str | None:
    """Return a hint if a bound of a range is a number of seconds and not of milliseconds."""
    if isinstance(value, str) and len(value) == 10 and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is not int or value not in _SECONDS:
        return None
    moment = datetime.fromtimestamp(value / 1000, UTC)
    return (
        f"the bound {value} is {moment:%Y-%m-%d %H:%M} in milliseconds: for Unix seconds give "
        f"{value}000, or '{value}-0' if it is an ID"
    )


_TIMES = (
    "a time: a datetime, date or timedelta, '2026-01-31T12:00' (UTC), 'now-15m', '1h ago' or "
    "'yesterday'"
)
ID_OR_TIME = f"an ID such as '1700000000000-0', or {_TIMES}"
BOUNDS = f"a bound is '-', '+', {ID_OR_TIME}"


def id_or_time(
    value: BoundLike,
    missing_seq: int = 0,
    now_ms: NowMs = _system_ms,
    wanted: str = f"give {ID_OR_TIME}",
) -> StreamID:
    """Return the ID that ``value`` names, which may be a time; raise InvalidID for any other value.

    ``wanted`` is what its message asks for. Times before 1970 count as 1970. Warns about an int
    that can only be seconds.
    """
    try:
        eid = StreamID.parse(value, missing_seq)  # type: ignore[arg-type]
    except InvalidID as error:
        ms = time_ms(value, now_ms)
        if ms is not None:
            return StreamID(max(0, ms), missing_seq)
        if isinstance(value, str) or value is None:
            error.detail = f"{show(value)} ({wanted})"
        raise
    hint = seconds_hint(value)
    if hint is not None:
        advise(hint)
    return eid


def position(
    value: BoundLike, now_ms: NowMs = _system_ms, wanted: str = f"give {ID_OR_TIME}"
) -> StreamID:
    """Return the ID after which reading starts; the entries of a time itself are read, too."""
    try:
        return StreamID.parse(value)  # type: ignore[arg-type]
    except InvalidID:
        first = id_or_time(value, now_ms=now_ms, wanted=wanted)
        return first.previous() if first.ms else first


# --- ranges -------------------------------------------------------------------------------------


def _is(value: BoundLike, sign: str) -> bool:
    return value == sign or value == sign.encode()


def _bound(value: BoundLike, missing_seq: int, now_ms: NowMs) -> tuple[StreamID, bool]:
    """Return the ID of a bound, and whether it is excluded."""
    if isinstance(value, str | bytes):
        if value[:1] in ("(", b"("):
            return id_or_time(value[1:], missing_seq, now_ms, BOUNDS), True
        if _is(value, "-"):
            return MIN_ID, False
        if _is(value, "+"):
            return MAX_ID, False
    return id_or_time(value, missing_seq, now_ms, BOUNDS), False


def range_start(value: BoundLike, now_ms: NowMs = _system_ms) -> StreamID:
    """Return the first ID of a range: an ID, a time, ``-``, ``+``, or ``(`` and an ID or time."""
    bound, excluded = _bound(value, 0, now_ms)
    if not excluded:
        return bound
    if bound == MAX_ID:
        raise InvalidArgument("invalid start ID for the interval")
    return bound.next()


def range_end(value: BoundLike, now_ms: NowMs = _system_ms) -> StreamID:
    """Return the last ID of a range, of the same forms; a time includes its whole millisecond."""
    bound, excluded = _bound(value, U64_MAX, now_ms)
    if not excluded:
        return bound
    if bound == MIN_ID:
        raise InvalidArgument("invalid end ID for the interval")
    return bound.previous()


def after_bound(value: BoundLike, now_ms: NowMs = _system_ms) -> StreamID:
    """Return the ID of a bound after which entries are meant: ``-`` is below all of them."""
    return _bound(value, 0, now_ms)[0]


AddID = StreamID | int | None
"""The ID argument of XADD: a whole ID, the ms of ``ms-*``, or None for ``*``."""


def parse_add_id(value: IDLike) -> AddID:
    """Parse the ID argument of XADD: ``*``, ``ms-*`` or a whole ID."""
    if isinstance(value, str | bytes):
        text = _ascii(value)
        if text == b"*":
            return None
        if text.endswith(b"-*"):
            return _parse_text(text[:-2] + b"-0", 0).ms
    return StreamID.parse(value)
