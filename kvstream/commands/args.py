"""The arguments of a request, parsed by Redis's rules and with Redis's error texts.

The functions parse one argument; ``Args`` is a cursor over the options of a command.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from kvstream.errors import InvalidArgument, InvalidID
from kvstream.layout import twins
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, U64_MAX, StreamID

T = TypeVar("T")

Argv: TypeAlias = Sequence[bytes]
"""One request: the command's name, then its arguments."""

NOT_AN_INTEGER = "value is not an integer or out of range"
I32_MIN, I32_MAX = -(1 << 31), (1 << 31) - 1
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
TIMEOUT_MAX = I64_MAX - (1 << 42)
"""Longest timeout in milliseconds. Redis refuses one whose end is beyond 63 bits of Unix time."""
ID_BYTES_MAX = 127
"""Longest text of an ID: the size of the buffer in which Redis parses it."""

QUOTED_MAX = 128
"""Bytes of a request that an error text quotes."""

COUNT = (b"COUNT", b"count")
"""The word as clients write it."""
SHORT_COUNTS = {b"%d" % count: count for count in range(1, 101)}
"""The counts that most reads give: a lookup takes a tenth of the time of parsing."""

_SIGNS = {b"-": MIN_ID, b"+": MAX_ID}
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_LOOSE_U64 = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_U64_DIGITS_MAX = 20


def syntax_error() -> InvalidArgument:
    return InvalidArgument("syntax error")


def wrong_arity(name: str) -> InvalidArgument:
    """Return the error of a request with too few or too many arguments."""
    return InvalidArgument(f"wrong number of arguments for '{name}' command")


def bad_subcommand(argv: Argv) -> InvalidArgument:
    """Return the error of an unknown subcommand, or of one with the wrong arguments."""
    container, name = text(argv[0]).upper(), text(argv[1][:QUOTED_MAX])
    return InvalidArgument(
        f"unknown subcommand or wrong number of arguments for '{name}'. Try {container} HELP."
    )


def text(raw: bytes) -> str:
    """Decode an argument for an error text, which ``ErrorReply`` encodes back."""
    return raw.decode("utf-8", "surrogateescape")


def integer(raw: bytes, message: str = NOT_AN_INTEGER) -> int:
    """Parse a signed 64-bit integer, or raise InvalidArgument with ``message``.

    A plus sign, a leading zero or a blank is refused.
    """
    if _INTEGER.fullmatch(raw) is None:
        raise InvalidArgument(message)
    number = int(raw)
    if not I64_MIN <= number <= I64_MAX:
        raise InvalidArgument(message)
    return number


def positive_count(raw: bytes) -> int | None:
    """Parse a COUNT; None, which is no limit, if it is not positive."""
    count = SHORT_COUNTS.get(raw)
    return count or max(integer(raw), 0) or None


def at_least(least: int, raw: bytes, message: str, unreadable: str = NOT_AN_INTEGER) -> int:
    """Parse an integer; raise InvalidArgument with ``message`` if it is below ``least``."""
    number = integer(raw, unreadable)
    if number < least:
        raise InvalidArgument(message)
    return number


def timeout(raw: bytes) -> int:
    """Parse a timeout in milliseconds; 0 means no end."""
    unreadable = "timeout is not an integer or out of range"
    milliseconds = at_least(0, raw, "timeout is negative", unreadable)
    if milliseconds > TIMEOUT_MAX:
        raise InvalidArgument("timeout is out of range")
    return milliseconds


def c_int(raw: bytes, message: str) -> int:
    """Parse a signed 32-bit integer, or raise InvalidArgument with ``message``."""
    number = integer(raw, message)
    if not I32_MIN <= number <= I32_MAX:
        raise InvalidArgument(message)
    return number


def database(raw: bytes, databases: int) -> int:
    """Parse the number of a database; ``databases`` is how many there are."""
    number = integer(raw)
    if not I32_MIN <= number <= I32_MAX:
        raise InvalidArgument(f"value is out of range, value must between {I32_MIN} and {I32_MAX}")
    if not 0 <= number < databases:
        raise InvalidArgument("DB index is out of range")
    return number


# --- IDs ----------------------------------------------------------------------------------------


def stream_id(raw: bytes, missing_seq: int = 0) -> StreamID:
    """Parse an ID, ``ms`` or ``ms-seq``, or raise InvalidID."""
    if twins is not None and (not missing_seq or b"-" in raw):
        ids = twins.parse_ids([raw], StreamID)
        if ids is not None:
            return ids[0]
    try:
        return StreamID.parse(raw, missing_seq)
    except InvalidID:
        return _loose_id(raw, missing_seq)


def stream_ids(raw: Argv) -> list[StreamID]:
    """Parse IDs, or raise InvalidID."""
    return plain_ids(raw) or [stream_id(each) for each in raw]


def plain_ids(raw: Argv) -> list[StreamID] | None:
    """Parse IDs in compiled code; None if one is not in the usual form."""
    if twins is not None and type(raw) is list:
        return twins.parse_ids(raw, StreamID)
    return None


def packed_ids(raw: Argv) -> list[bytes]:
    """Parse IDs into 16 bytes each, as they are stored, or raise InvalidID."""
    if twins is not None and type(raw) is list:
        ids = twins.pack_ids(raw)
        if ids is not None:
            return ids
    return [PACKED(*stream_id(each)) for each in raw]


def leading(words: Argv, parse: Callable[[bytes], T]) -> list[T]:
    """Return the parsed IDs before the first word that is not an ID."""
    found: list[T] = []
    for word in words:
        try:
            found.append(parse(word))
        except InvalidID:
            break
    return found


def _loose_id(raw: bytes, missing_seq: int) -> StreamID:
    """Parse an ID whose numbers are written as C's strtoull takes them."""
    ms, dash, seq = raw.partition(b"-")
    if len(raw) > ID_BYTES_MAX:
        raise InvalidID
    return StreamID(_loose_u64(ms), _loose_u64(seq) if dash else missing_seq)


def _loose_u64(raw: bytes) -> int:
    number = loose_u64(raw)
    if number is None:
        raise InvalidID
    return number


def loose_u64(raw: bytes) -> int | None:
    """Parse a number as C's strtoull does, with blanks and a sign before it; None if it fails.

    A negative number in canonical form is refused; others wrap around.
    """
    match = _LOOSE_U64.fullmatch(raw)
    digits = b"" if match is None else match[2].lstrip(b"0") or b"0"
    too_long = len(digits) > _U64_DIGITS_MAX  # int() refuses very many digits
    if match is None or too_long or int(digits) > U64_MAX:
        return None
    if match[1] != b"-":
        return int(digits)
    return None if _INTEGER.fullmatch(raw) else -int(digits) & U64_MAX


def stream_id_or_sign(raw: bytes) -> StreamID:
    """Parse an ID; ``-`` is the smallest and ``+`` the greatest one."""
    return _SIGNS.get(raw) or stream_id(raw)


def range_start(raw: bytes) -> StreamID:
    """Parse the start of a range: an ID, ``-``, ``+`` or ``(id``."""
    sign = _SIGNS.get(raw)
    if sign is not None:
        return sign
    if raw[:1] != b"(" or len(raw) == 1:
        return stream_id(raw)
    bound = stream_id(raw[1:])
    if bound == MAX_ID:
        raise InvalidArgument("invalid start ID for the interval")
    return bound.next()


def range_end(raw: bytes) -> StreamID:
    """Parse the end of a range: an ID, ``-``, ``+`` or ``(id``."""
    sign = _SIGNS.get(raw)
    if sign is not None:
        return sign
    if raw[:1] != b"(" or len(raw) == 1:
        return stream_id(raw, U64_MAX)
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
        """Take an argument; a syntax error if none is left."""
        at = self.at
        if at >= self._end:
            raise syntax_error()
        self.at = at + 1
        return self._argv[at]

    def option(self) -> bytes:
        """Take an argument and return it in capitals."""
        return self.next().upper()

    def take(self, count: int) -> Argv:
        """Take ``count`` arguments; so many must be left."""
        self.at += count
        return self._argv[self.at - count : self.at]

    def rest(self) -> Argv:
        """Take all arguments that are left."""
        return self.take(self._end - self.at)

    def take_option(self, table: "Mapping[bytes, Option[T]]", options: T) -> bool:
        """Take an option of the table with its arguments, and store it in ``options``.

        Return False if the next argument is not in the table, or too few arguments follow it.
        """
        at = self.at
        option = table.get(self._argv[at].upper())
        if option is None or self._end - at <= option[0]:
            return False
        self.at = at + 1
        option[1](self, options)
        return True

    def take_leading_options(self, table: "Mapping[bytes, Option[T]]", options: T) -> None:
        """Take options of the table up to the first argument that is not one."""
        while self and self.take_option(table, options):
            pass

    def take_options(
        self, table: "Mapping[bytes, Option[T]]", options: T, once: bool = False
    ) -> None:
        """Take all that is left as options of the table, or raise a syntax error.

        ``once``: a repeated option is a syntax error too.
        """
        seen: set[bytes] = set()
        while self:
            word = self._argv[self.at].upper()
            if word in seen or not self.take_option(table, options):
                raise syntax_error()
            if once:
                seen.add(word)

    def integer(self, message: str = NOT_AN_INTEGER) -> int:
        return integer(self.next(), message)

    def at_least(self, least: int, message: str, unreadable: str = NOT_AN_INTEGER) -> int:
        return at_least(least, self.next(), message, unreadable)

    def id(self) -> StreamID:
        return stream_id(self.next())


Option: TypeAlias = tuple[int, Callable[[Args, T], None]]
"""The least number of arguments that an option has, and the function that takes and stores them."""


def switch(attribute: str) -> Option[Any]:
    """Return an option without arguments that makes an attribute true."""
    return 0, lambda args, options: setattr(options, attribute, True)


def value(attribute: str) -> Option[Any]:
    """Return an option with one argument, which is stored as it is."""
    return 1, lambda args, options: setattr(options, attribute, args.next())


Values: TypeAlias = dict[str, Any]
"""The values of options by name, for options that are arguments of an operation."""


def flag_value(name: str) -> Option[Values]:
    """Return an option without arguments, whose value is True."""
    return 0, lambda args, values: values.update({name: True})


def word_value(name: str) -> Option[Values]:
    """Return an option with one argument, which is its value."""
    return 1, lambda args, values: values.update({name: args.next()})


def integer_values(*names: str) -> Option[Values]:
    """Return an option with an integer for each name."""
    return len(names), lambda args, values: values.update([(n, args.integer()) for n in names])
