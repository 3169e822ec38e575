"""Stream IDs: two unsigned 64-bit numbers, milliseconds and sequence, ordered as one of 128 bits.

Parsing follows Redis: ``123`` alone is ``123-0``, or ``123-18446744073709551615`` as the end of a
range; in ranges ``-`` and ``+`` are the least and the greatest ID, and ``(id`` excludes an ID.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from operator import lt
from struct import Struct
from typing import NamedTuple

from kvstream.errors import IDsExhausted, InvalidArgument, InvalidID

U64_MAX = (1 << 64) - 1

_ID = re.compile(rb"([0-9]{1,64})(?:-([0-9]{1,62}))?")
_PACKED = Struct(">QQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class StreamID(NamedTuple):
    """The ID of an entry; compares and sorts as a 128-bit number."""

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
        milliseconds, or a datetime, which is local time without a time zone.
        """
        if type(value) is StreamID:
            return value
        if isinstance(value, str | bytes):
            return _parse_text(value, missing_seq)
        if isinstance(value, tuple) and len(value) == 2:
            ms, seq = value
        elif isinstance(value, datetime):
            ms, seq = (value.astimezone(UTC) - _EPOCH) // _MILLISECOND, missing_seq
        else:
            ms, seq = value, missing_seq
        if not (_is_u64(ms) and _is_u64(seq)):
            raise InvalidID(value=value)
        return cls(ms, seq)

    def next(self) -> "StreamID":
        """Return the ID right above; raise IDsExhausted at the greatest."""
        if self.seq < U64_MAX:
            return StreamID(self.ms, self.seq + 1)
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
    """Tell whether each ID, packed or not, is above the one before."""
    return all(map(lt, ids, islice(ids, 1, None)))  # type: ignore[arg-type]


def ascending(ids: Sequence[StreamID]) -> list[StreamID]:
    """Return IDs in ascending order, each once."""
    return list(ids) if is_ascending(ids) else sorted(set(ids))


def ascending_packed(ids: Sequence[bytes]) -> Sequence[bytes]:
    """Return packed IDs in ascending order, each once."""
    return ids if is_ascending(ids) else sorted(dict.fromkeys(ids))


def ascending_parts(ids: Sequence[StreamID]) -> Iterator[Sequence[StreamID]]:
    """Split IDs into consecutive parts that are ascending and distinct."""
    at = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] <= ids[end - 1]:
            yield ids[at:end]
            at = end


IDLike = StreamID | tuple[int, int] | str | bytes | int | datetime

PACKED = _PACKED.pack
"""Return the 16 bytes of an ID, from its two numbers."""

UNPACKED = _PACKED.unpack
"""Return the two numbers of an ID, from its 16 bytes."""

new_id = partial(tuple.__new__, StreamID)
"""Return a StreamID of a pair without running Python code."""

MIN_ID = StreamID(0, 0)
MAX_ID = StreamID(U64_MAX, U64_MAX)


def _is_u64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= U64_MAX


def _ascii(value: str | bytes) -> bytes:
    try:
        return value.encode("ascii") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise InvalidID(value=value) from None


def _parse_text(value: str | bytes, missing_seq: int) -> StreamID:
    match = _ID.fullmatch(_ascii(value))
    if match is None:
        raise InvalidID(value=value)
    ms = int(match[1])
    seq = missing_seq if match[2] is None else int(match[2])
    if ms > U64_MAX or seq > U64_MAX:
        raise InvalidID(value=value)
    return StreamID(ms, seq)


def _is(value: IDLike, sign: str) -> bool:
    return value == sign or value == sign.encode()


def _bound(value: IDLike, missing_seq: int) -> tuple[StreamID, bool]:
    """Return the ID of a bound, and whether it is excluded."""
    if isinstance(value, str | bytes):
        if value[:1] in ("(", b"("):
            return StreamID.parse(value[1:], missing_seq), True
        if _is(value, "-"):
            return MIN_ID, False
        if _is(value, "+"):
            return MAX_ID, False
    return StreamID.parse(value, missing_seq), False


def range_start(value: IDLike) -> StreamID:
    """Return the first ID of a range that starts at ``value``: an ID, ``-``, ``+`` or ``(id``."""
    bound, excluded = _bound(value, 0)
    if not excluded:
        return bound
    if bound == MAX_ID:
        raise InvalidArgument("invalid start ID for the interval")
    return bound.next()


def range_end(value: IDLike) -> StreamID:
    """Return the last ID of a range that ends at ``value``: an ID, ``-``, ``+`` or ``(id``."""
    bound, excluded = _bound(value, U64_MAX)
    if not excluded:
        return bound
    if bound == MIN_ID:
        raise InvalidArgument("invalid end ID for the interval")
    return bound.previous()


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
