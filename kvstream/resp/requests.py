"""Parse the requests of a client: multibulk and inline, by the rules of Redis 7.

Some bytes are not checked, as in Redis: the one after the CR of a length, and the two after an
argument. This module knows no command and no socket. However the bytes are cut, each is looked at
and copied a fixed number of times, and no announced length allocates memory before its bytes.

The words of an inline request are separated by blanks. ``"..."`` knows the escapes below, ``'...'``
only ``\'``; a quote may open inside a word, and must end the word where it closes.
"""

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Final

from kvstream.errors import ProtocolError
from kvstream.resp import twins

_BLANKS = rb"[ \t\n\v\f\r]*"
# Vertical tabs and form feeds separate words where blanks are skipped, but do not end a bare word.
_WORD = re.compile(
    rb"""
    (?P<bare> [^ \t\n\r"']*+ )
    (?: "(?P<double> (?: \\. | [^"\\] )*+ )"  (?= [ \t\n\v\f\r] | \Z )
      | '(?P<single> (?: \\' | [^'] )*+ )'    (?= [ \t\n\v\f\r] | \Z )
      | (?= [ \t\n\r] | \Z )
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_ODD = re.compile(rb"[\"'\v\f]")
_SKIPPED = re.compile(_BLANKS)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[bytes]:
    """Return the words of a line without its end; ProtocolError if a quote does not close."""
    if not _ODD.search(line):
        return line.split()
    words = []
    at = _after_blanks(line, 0)
    while at < len(line):
        match = _WORD.match(line, at)
        if match is None:
            raise ProtocolError("Protocol error: unbalanced quotes in request")
        bare, double, single = match["bare"], match["double"], match["single"]
        if double is not None:
            bare += _ESCAPE.sub(_unescape, double)
        elif single is not None:
            bare += single.replace(b"\\'", b"'")
        words.append(bare)
        at = _after_blanks(line, match.end())
    return words


def _after_blanks(line: bytes, at: int) -> int:
    match = _SKIPPED.match(line, at)
    return match.end() if match else at


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1] is not None:
        return bytes.fromhex(match[1].decode())
    return _ESCAPED.get(match[2], match[2])


BULK_MAX: Final = 512 << 20
"""The longest argument of a request: Redis's ``proto-max-bulk-len``."""
QUERY_MAX: Final = 1 << 30
"""Bytes of unfinished requests of a client: Redis's ``client-query-buffer-limit``."""
QUERY_LIMIT: Final = "Protocol error: query buffer limit reached"
"""The error if a client exceeds that, or the configured limit."""
LINE_MAX: Final = 64 << 10
"""Bytes of an inline request, or of a line with a length."""
COUNT_MAX: Final = (1 << 31) - 1
UNTRUSTED_COUNT_MAX: Final = 10
UNTRUSTED_BULK_MAX: Final = 16384
ARGUMENT_BYTES: Final = 48
"""Bytes that each argument of an unfinished request counts besides its own: a Python object, so
that the limit holds for memory."""
BIG: Final = 32 << 10
"""Arguments from this size on are collected in a buffer of their own."""
TAKEN_MAX: Final = 64
"""Inline requests after which ``take`` stops: they are parsed in Python, a microsecond each, and 16
KB may hold 8192 of them. Plain requests are parsed together, however many."""

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_INT64 = range(-(1 << 63), 1 << 63)
_STAR, _DOLLAR = b"*"[0], b"$"[0]
# Common lengths; all others are parsed digit by digit.
_COUNTS = {b"*%d" % count: count for count in range(1, 1025)}
_LENGTHS = {b"$%d" % length: length for length in range(1025)}
_HEAD_NEAR = 8
# Empty lines, of LINE_MAX bytes at most, and requests without arguments; so many in one match, as
# each takes memory until its end. (A possessive group would take none, but consumes too much when
# an alternative fails behind its first byte: python/cpython#106052, in Python up to 3.11.4.)
_EMPTY = re.compile(
    rb"(?: [ \t\v\f\r]{0,%d}+ \n | \*(?: 0 | -[1-9][0-9]{0,17} )\r. ){1,1000}" % LINE_MAX,
    re.VERBOSE | re.DOTALL,
)

Request = list[bytes]


def request_bytes(argv: Sequence[bytes]) -> int:
    """Return the bytes that a request takes on the wire, as clients and Redis encode it."""
    size = len(b"*%d\r\n" % len(argv))
    for word in argv:
        size += len(word) + len(b"%d" % len(word)) + 5
    return size


class RequestReader:
    """Turn bytes into requests: ``feed`` the bytes, then ``take`` until it returns none.

    ``trusted`` is False before AUTH: then a request has at most 10 arguments of 16 KB, and is
    returned alone, since it may change the limits of the next. Limits may change at any time; they
    hold for the lengths parsed after that.
    """

    __slots__ = (
        "_args",
        "_at",
        "_big",
        "_body",
        "_bulk",
        "_counted",
        "_fault",
        "_grown",
        "_held",
        "_kept",
        "_left",
        "_mark",
        "_wanted",
        "bulk_max",
        "is_cut",
        "query_max",
        "trusted",
    )

    def __init__(
        self, *, trusted: bool = True, bulk_max: int = BULK_MAX, query_max: int = QUERY_MAX
    ) -> None:
        self.trusted = trusted
        self.bulk_max = bulk_max
        self.query_max = query_max
        self.is_cut = False
        """The last ``take`` stopped before the end of the bytes: there may be more requests."""
        self._fault = ""
        # The bytes not yet taken: those of _held from _at on, then those of _grown. While _held is
        # empty, _grown is, too, and no mark is awaited.
        self._held = b""
        self._at = 0
        self._grown: BytesIO | None = None
        # The next step of take() needs so many bytes, or this mark in them.
        self._wanted = 1
        self._mark = b""
        # The current request: its arguments so far, their number, and the length of the next.
        self._args: Request = []
        self._left = 0
        self._bulk = -1
        self._body: bytes | None = None  # a large argument without its final CR LF
        self._big: BytesIO | None = None
        self._counted = self._kept = 0  # arguments of _args, and their bytes

    @property
    def is_empty(self) -> bool:
        """Return whether the next byte begins a request; False after a fault, too."""
        return not (self._held or self._left or self._fault) and self._big is None

    @property
    def buffered(self) -> int:
        """The number of bytes held: not yet taken, or in the arguments of an unfinished request."""
        for argument in self._args[self._counted :]:
            self._kept += len(argument) + ARGUMENT_BYTES
        self._counted = len(self._args)
        big = 0 if self._big is None else self._big.tell()
        return self._waiting() + self._kept + big + len(self._body or b"")

    def feed(self, data: bytes) -> None:
        """Take received bytes; faults are reported by ``take``."""
        if not self._held:
            if self._big is not None:
                data = self._fill(self._big, data)
            if not self._fault:
                self._held = data
            return
        if self._mark and (self._mark in data or self._waiting() + len(data) > LINE_MAX):
            self._wanted, self._mark = 0, b""
        if self._grown is None:
            self._grown = BytesIO()
        self._grown.write(data)

    def take(self) -> list[Request]:
        """Return the next whole requests in order; none if more bytes are needed.

        Raises ProtocolError after the requests before the fault were returned. Its text is for the
        client, whose connection must then be closed.
        """
        requests: list[Request] = []
        self.is_cut = False
        if self._held and self._simple():
            self._at, args, self._left = _take_plain(
                self._held, self._at, requests, [], 0, self.bulk_max
            )
            if self._at == len(self._held) and not self._left:
                self._held, self._at = b"", 0
                return requests
            self._begin(args)
            self._wanted = 1
        if self._held or self._big is not None:
            try:
                self._take(requests)
            except ProtocolError as error:
                self._fail(str(error))
        if self._fault and not requests:
            raise ProtocolError(self._fault)
        return requests

    def whole(self, data: bytes) -> list[Request]:
        """Return the requests in bytes that begin and end with a request; the reader must be empty.

        Return none if the bytes are anything else: use ``feed`` and ``take`` then.
        """
        requests: list[Request] = []
        at, _, left = _take_plain(data, 0, requests, [], 0, self.bulk_max)
        return requests if at == len(data) and not left and self.trusted else []

    def _simple(self) -> bool:
        """Return whether the bytes held begin a request, and are all that there are."""
        return self.trusted and not self._left and self._grown is None and not self._mark

    def _take(self, requests: list[Request]) -> None:
        if self._waiting() >= self._wanted and not self._mark:
            self._join()
            self._wanted = 1
            most = TAKEN_MAX if self.trusted else 1
            while self._advance(requests) and len(requests) < most:
                pass
            if self._at == len(self._held):
                self._held, self._at = b"", 0
            else:
                self.is_cut = len(requests) >= most
        if self.buffered > self.query_max:
            raise ProtocolError(QUERY_LIMIT)

    def _fail(self, text: str) -> None:
        self._fault = text
        self._held, self._at, self._grown = b"", 0, None
        self._args, self._body, self._big = [], None, None
        self._counted = self._kept = 0

    # --- bytes held and awaited ---------------------------------------------------------------

    def _waiting(self) -> int:
        grown = 0 if self._grown is None else self._grown.tell()
        return len(self._held) - self._at + grown

    def _join(self) -> None:
        if self._grown is not None:
            rest = memoryview(self._held)[self._at :]
            self._held, self._at = b"".join((rest, self._grown.getvalue())), 0
            self._grown = None

    def _wait(self, wanted: int, mark: bytes = b"") -> bool:
        """Make ``take`` wait until so many bytes from here on, or ``mark``, have arrived."""
        if self._at:
            self._held, self._at = self._held[self._at :], 0
        self._wanted, self._mark = wanted, mark
        return False

    def _fill(self, big: BytesIO, data: bytes) -> bytes:
        """Append bytes to a large argument; return the rest."""
        missing = self._bulk - big.tell()
        big.write(data if len(data) <= missing else memoryview(data)[:missing])
        if big.tell() == self._bulk:
            self._body, self._big = big.getvalue(), None
            self._wanted = 2
        return data[missing:]

    # --- steps: each returns False if more bytes are needed -------------------------------------

    def _advance(self, requests: list[Request]) -> bool:
        if self.trusted and self._bulk < 0:
            self._at, args, self._left = _take_plain(
                self._held, self._at, requests, self._args, self._left, self.bulk_max
            )
            self._begin(args)
        if self._left:
            return self._argument(requests)
        if self._at < len(self._held):
            self._at = skip_empty(self._held, self._at)
        if self._at == len(self._held):
            return self._wait(1)
        if self._held[self._at] == _STAR:
            return self._count()
        return self._inline(requests)

    def _inline(self, requests: list[Request]) -> bool:
        end = self._held.find(b"\n", self._at, self._at + LINE_MAX + 1)
        if end < 0:
            return self._unfinished("inline request", b"\n")
        words = split_words(self._held[self._at : end].removesuffix(b"\r"))
        self._at = end + 1
        if words:
            requests.append(words)
        return True

    def _count(self) -> bool:
        line = self._line("mbulk count string")
        if line is None:
            return False
        count = _integer(line[1:])
        if count is None or count > COUNT_MAX:
            raise ProtocolError("Protocol error: invalid multibulk length")
        if count > UNTRUSTED_COUNT_MAX and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated multibulk length")
        self._left = max(count, 0)
        return True

    def _argument(self, requests: list[Request]) -> bool:
        if self._bulk < 0 and not self._length():
            return False
        held, at = self._held, self._at
        stop = at + (self._bulk if self._body is None else 0)
        if len(held) < stop + 2:
            return self._incomplete(len(held) < stop, stop - at)
        self._args.append(held[at:stop] if self._body is None else self._body)
        self._at, self._bulk, self._body = stop + 2, -1, None
        self._left -= 1
        if not self._left:
            requests.append(self._args)
            self._begin([])
        return True

    def _begin(self, args: Request) -> None:
        if args is not self._args:
            self._args, self._counted, self._kept = args, 0, 0

    def _incomplete(self, lacking: bool, length: int) -> bool:
        if lacking and length >= BIG:
            self._big = BytesIO()
            self._big.write(memoryview(self._held)[self._at :])
            self._at = len(self._held)
        return self._wait(length + 2)

    def _length(self) -> bool:
        """Parse the length of the next argument."""
        first = self._held[self._at : self._at + 1]
        if not first:
            return self._wait(1)
        line = self._line("bulk count string")
        if line is None:
            return False
        if first != b"$":
            got = first.decode("utf-8", "surrogateescape")
            raise ProtocolError(f"Protocol error: expected '$', got '{got}'")
        length = _integer(line[1:])
        if length is None or not 0 <= length <= self.bulk_max:
            raise ProtocolError("Protocol error: invalid bulk length")
        if length > UNTRUSTED_BULK_MAX and not self.trusted:
            raise ProtocolError("Protocol error: unauthenticated bulk length")
        self._bulk = length
        return True

    def _line(self, what: str) -> bytes | None:
        """Return a line up to its CR; skip the byte after that."""
        held, at = self._held, self._at
        end = held.find(b"\r", at, at + LINE_MAX + 1)
        if end < 0:
            self._unfinished(what, b"\r")
            return None
        if len(held) < end + 2:
            self._wait(end + 2 - at)
            return None
        self._at = end + 2
        return held[at:end]

    def _unfinished(self, what: str, mark: bytes) -> bool:
        if len(self._held) - self._at > LINE_MAX:
            raise ProtocolError(f"Protocol error: too big {what}")
        return self._wait(0, mark)


def _integer(digits: bytes) -> int | None:
    """Parse a 64-bit number in canonical form, as Redis does."""
    if not _INTEGER.fullmatch(digits):
        return None
    number = int(digits)
    return number if number in _INT64 else None


def skip_empty(data: bytes, at: int) -> int:
    """Return the position of the first request from ``at`` on that is not empty."""
    while match := _EMPTY.match(data, at):
        at = match.end()
    return at


def take_plain(
    data: bytes, at: int, requests: list[Request], args: Request, left: int, bulk_max: int
) -> tuple[int, Request, int]:
    """Parse whole arguments from ``at`` on, until something is unusual or cut.

    Whole requests are appended to ``requests``. Returns where it stopped, the arguments of the
    unfinished request, and the number that it still lacks.
    """
    find, length_of = data.find, _LENGTHS.get
    size = len(data)
    while True:
        while left:
            end = find(b"\r\n", at, at + _HEAD_NEAR)
            length = length_of(data[at:end], -1) if end >= 0 else -1
            stop = end + 2 + length
            if not 0 <= length <= bulk_max or size < stop + 2:
                return at, args, left
            args.append(data[end + 2 : stop])
            at = stop + 2
            left -= 1
        if args:
            requests.append(args)
            args = []
        end = find(b"\r\n", at, at + _HEAD_NEAR)
        count = _COUNTS.get(data[at:end]) if end >= 0 else None
        if count is None:
            return at, args, left
        left, at = count, end + 2


_take_plain = take_plain if twins is None else twins.take_plain
