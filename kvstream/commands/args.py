"""Reading the arguments of one request by Redis's rules, with Redis's error texts.

The functions read one argument; ``Args`` walks over those that follow the fixed ones. Nothing here
knows a command or the store.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from kvstream.errors import InvalidArgument, InvalidID
from kvstream.layout.compiled import twins
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, U64_MAX, StreamID

T = TypeVar("T")

Argv: TypeAlias = Sequence[bytes]
"""One request: the command's name, then its arguments."""

NOT_AN_INTEGER = "value is not an integer or out of range"
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
ID_BYTES_MAX = 127
"""Longest text of an ID: the size of the buffer in which Redis parses it."""

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_LOOSE_U64 = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)")


def syntax_error() -> InvalidArgument:
    return InvalidArgument("syntax error")


def wrong_arity(name: str) -> InvalidArgument:
    """Return the error of a request with too few or too many arguments."""
    return InvalidArgument(f"wrong number of arguments for '{name}' command")


def text(raw: bytes) -> str:
    """Return an argument as it stands in an error text, which ``ErrorReply`` encodes back."""
    return raw.decode("utf-8", "surrogateescape")


def integer(raw: bytes, message: str = NOT_AN_INTEGER) -> int:
    """Return a signed 64-bit integer; InvalidArgument with ``message`` for anything else.

    One number has one text: no sign, space or zero before it.
    """
    if _INTEGER.fullmatch(raw) is None:
        raise InvalidArgument(message)
    number = int(raw)
    if not I64_MIN <= number <= I64_MAX:
        raise InvalidArgument(message)
    return number


def at_least(least: int, raw: bytes, message: str, unreadable: str = NOT_AN_INTEGER) -> int:
    """Return an integer that is not below ``least``, or raise with ``message``."""
    number = integer(raw, unreadable)
    if number < least:
        raise InvalidArgument(message)
    return number


# --- IDs ----------------------------------------------------------------------------------------


def stream_id(raw: bytes, missing_seq: int = 0) -> StreamID:
    """Return a whole ID, ``ms`` or ``ms-seq``; InvalidID for anything else."""
    if twins is not None and not missing_seq:
        ids = twins.parse_ids([raw], StreamID)
        if ids is not None:
            return ids[0]
    try:
        return StreamID.parse(raw, missing_seq)
    except InvalidID:
        return _loose_id(raw, missing_seq)


def stream_ids(raw: Argv) -> list[StreamID]:
    """Return whole IDs; InvalidID where one is none."""
    return plain_ids(raw) or [stream_id(each) for each in raw]


def plain_ids(raw: Argv) -> list[StreamID] | None:
    """Do so where compiled code finds all of them to be as they mostly are; None: one is not."""
    if twins is not None and type(raw) is list:
        return twins.parse_ids(raw, StreamID)
    return None


def packed_ids(raw: Argv) -> list[bytes]:
    """Return whole IDs as they are stored; InvalidID where one is none."""
    if twins is not None and type(raw) is list:
        ids = twins.pack_ids(raw)
        if ids is not None:
            return ids
    return [PACKED(*stream_id(each)) for each in raw]


def _loose_id(raw: bytes, missing_seq: int) -> StreamID:
    """Read what C's strtoull lets Redis read besides: blanks and a sign before a number."""
    ms, dash, seq = raw.partition(b"-")
    if len(raw) > ID_BYTES_MAX:
        raise InvalidID
    return StreamID(_loose_u64(ms), _loose_u64(seq) if dash else missing_seq)


def _loose_u64(raw: bytes) -> int:
    match = _LOOSE_U64.fullmatch(raw)
    if match is None or int(match[2]) > U64_MAX:
        raise InvalidID
    if match[1] != b"-":
        return int(match[2])
    if _INTEGER.fullmatch(raw):
        raise InvalidID  # a proper negative number is refused; others wrap around
    return -int(match[2]) & U64_MAX


def stream_id_or_sign(raw: bytes, missing_seq: int = 0) -> StreamID:
    """Return an ID; ``-`` is the least and ``+`` the greatest one."""
    if raw == b"-":
        return MIN_ID
    if raw == b"+":
        return MAX_ID
    return stream_id(raw, missing_seq)


def range_start(raw: bytes) -> StreamID:
    """Return the first ID of a range: an ID, ``-``, ``+`` or ``(id``."""
    if raw[:1] != b"(" or len(raw) == 1:
        return stream_id_or_sign(raw)
    bound = stream_id(raw[1:])
    if bound == MAX_ID:
        raise InvalidArgument("invalid start ID for the interval")
    return bound.next()


def range_end(raw: bytes) -> StreamID:
    """Return the last ID of a range: an ID, ``-``, ``+`` or ``(id``."""
    if raw[:1] != b"(" or len(raw) == 1:
        return stream_id_or_sign(raw, U64_MAX)
    bound = stream_id(raw[1:], U64_MAX)
    if bound == MIN_ID:
        raise InvalidArgument("invalid end ID for the interval")
    return bound.previous()


# --- options ------------------------------------------------------------------------------------


class Args:
    """A cursor over the arguments from ``at`` on; true while any are left."""

    __slots__ = ("_argv", "_end", "at")

    def __init__(self, argv: Argv, at: int) -> None:
        self._argv = argv
        self._end = len(argv)
        self.at = at

    def __bool__(self) -> bool:
        return self.at < self._end

    def __len__(self) -> int:
        return self._end - self.at

    def peek(self) -> bytes:
        """Return the next argument without taking it."""
        return self._argv[self.at]

    def next(self) -> bytes:
        """Take an argument; a syntax error where none is left."""
        at = self.at
        if at >= self._end:
            raise syntax_error()
        self.at = at + 1
        return self._argv[at]

    def option(self) -> bytes:
        """Take an argument as a keyword: in capitals."""
        return self.next().upper()

    def take(self, count: int) -> Argv:
        """Take ``count`` arguments, which must be there."""
        self.at += count
        return self._argv[self.at - count : self.at]

    def rest(self) -> Argv:
        """Take all that is left."""
        return self.take(self._end - self.at)

    def take_option(self, table: "Mapping[bytes, Option[T]]", options: T) -> bool:
        """Take an option of the table with its arguments, and note it in ``options``.

        False where the next argument is none of them, or too few follow it.
        """
        at = self.at
        option = table.get(self._argv[at].upper())
        if option is None or self._end - at <= option[0]:
            return False
        self.at = at + 1
        option[1](self, options)
        return True

    def integer(self, message: str = NOT_AN_INTEGER) -> int:
        return integer(self.next(), message)

    def at_least(self, least: int, message: str, unreadable: str = NOT_AN_INTEGER) -> int:
        return at_least(least, self.next(), message, unreadable)

    def id(self) -> StreamID:
        return stream_id(self.next())


Option: TypeAlias = tuple[int, Callable[[Args, T], None]]
"""The least number of arguments that an option has, and what takes them and notes it."""
