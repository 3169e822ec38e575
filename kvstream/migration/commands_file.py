"""The commands of an append-only file.

::

    file       := entry*
    entry      := command | annotation
    command    := "*" count CRLF argument*count
    argument   := "$" length CRLF byte*length CRLF
    annotation := "#" text CRLF                       such as #TS:1700000000, the server's time

What a crash has cut off at the end is no damage, and is told as a number of bytes; all else that
is no entry is. SELECT, MULTI and EXEC are understood here, other commands are passed on unread.
"""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from kvstream.errors import BadPayload
from kvstream.options import DATABASES_MAX, MEGABYTE
from kvstream.resp.compiled import twins
from kvstream.resp.requests import BULK_MAX, COUNT_MAX, LINE_MAX, take_plain

CHUNK_BYTES = 1 << 18
UNIT_BYTES_MAX = 1024 * MEGABYTE
"""Largest transaction: it is held in memory until its EXEC is there."""

_CRLF = b"\r\n"
_STAR, _DOLLAR, _HASH = b"*$#"
_DIGITS_MAX = 10
_CONTROL_MAX = len(b"SELECT")
_take_plain = take_plain if twins is None else twins.take_plain


class Command(NamedTuple):
    """What was executed, and in which database."""

    db: int
    argv: list[bytes]


class Unit(NamedTuple):
    """A command, or those of a transaction: all of them were executed, or none."""

    commands: list[Command]


class _CutOff(Exception):
    """The file ends within an entry."""


class CommandsFile:
    """Iterates over the units of a file, once; BadPayload, with the offset, where it is damaged.

    ``file`` stands at ``start``, which its offsets count from, and stays the caller's.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._entries = _Entries(file, start)
        self._db = 0
        self._begun: _Place | None = None  # where the MULTI of an unfinished transaction is
        self._unit: list[Command] = []
        self._bytes = 0
        self.cut = 0
        """Bytes at the end that are no whole unit; known when all units were given."""

    @property
    def offset(self) -> int:
        """Bytes of the file that were read, about."""
        return self._entries.offset

    def __iter__(self) -> Iterator[Unit]:
        for argvs, start in self._entries:
            for index, argv in enumerate(argvs):
                if len(argv[0]) <= _CONTROL_MAX and argv[0].upper() in _CONTROLS:
                    unit = self._control(argv, _Place(start, argvs, index))
                    if unit is not None:
                        yield unit
                elif self._begun is None:
                    yield Unit([Command(self._db, argv)])
                else:
                    self._keep(argv)
        whole = self._entries.whole if self._begun is None else self._begun.offset
        self.cut = self._entries.offset - whole

    def _keep(self, argv: list[bytes]) -> None:
        self._bytes += sum(map(len, argv))
        if self._bytes > UNIT_BYTES_MAX and self._begun is not None:
            at = self._begun.offset
            raise BadPayload(f"a transaction of more than {UNIT_BYTES_MAX} bytes", at)
        self._unit.append(Command(self._db, argv))

    def _control(self, argv: list[bytes], place: "_Place") -> Unit | None:
        """Do what a command says that is not passed on; return the transaction that it ends."""
        word = argv[0].upper()
        if len(argv) != _CONTROLS[word]:
            raise BadPayload(f"{word.decode()} has {len(argv) - 1} arguments", place.offset)
        if word == b"SELECT":
            self._db = _database(argv[1], place)
        elif word == b"MULTI":
            if self._begun is not None:
                raise BadPayload("a MULTI within a MULTI", place.offset)
            self._begun = place
        else:
            if self._begun is None:
                raise BadPayload("an EXEC without a MULTI", place.offset)
            unit = Unit(self._unit)
            self._begun, self._unit, self._bytes = None, [], 0
            return unit
        return None


_CONTROLS = {b"SELECT": 2, b"MULTI": 1, b"EXEC": 1}
"""Commands that are not passed on, and their words."""


def _database(word: bytes, place: "_Place") -> int:
    if word.isdigit() and len(word) <= _DIGITS_MAX and int(word) < DATABASES_MAX:
        return int(word)
    raise BadPayload("a SELECT of no database", place.offset)


class _Place(NamedTuple):
    """Where a command stands: counted out only if somebody asks."""

    start: int
    argvs: list[list[bytes]]
    position: int

    @property
    def offset(self) -> int:
        return self.start + sum(_size(argv, len(argv)) for argv in self.argvs[: self.position])


def _size(argv: list[bytes], count: int) -> int:
    """Return the bytes that the first words of a command of ``count`` take."""
    heads = sum(len(b"$%d" % len(word)) for word in argv) + len(b"*%d" % count)
    return heads + sum(map(len, argv)) + len(_CRLF) * (2 * len(argv) + 1)


class _Entries:
    """Iterates over the commands of a file in runs, with the offset at which each run begins."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self._before = start  # bytes of the file before the data
        self._read = start
        self.whole = start
        """Where the last whole entry ends."""

    @property
    def offset(self) -> int:
        """Bytes of the file that were read."""
        return self._read

    @property
    def _here(self) -> int:
        return self._before + self._at

    def __iter__(self) -> Iterator[tuple[list[list[bytes]], int]]:
        try:
            while self._has(1):
                start = self._here
                argvs: list[list[bytes]] = []
                self._at, argv, left = _take_plain(self._data, self._at, argvs, [], 0, BULK_MAX)
                self.whole = self._here - (_size(argv, len(argv) + left) if left else 0)
                if argvs:
                    yield argvs, start
                if left or self._has(1):
                    start = self.whole
                    if left or (left := self._begin()):
                        self._finish(argv, left)
                        yield [argv], start
                    self.whole = self._here
        except _CutOff:
            pass

    def _begin(self) -> int:
        """Take the head of a command, or an annotation; return the words that follow."""
        kind = self._data[self._at]
        if kind == _STAR:
            return self._number(_STAR, 1, COUNT_MAX)
        if kind != _HASH:
            raise BadPayload(f"no command begins with byte {kind:#04x}", self._here)
        self._line()
        return 0

    def _finish(self, argv: list[bytes], left: int) -> None:
        """Take the words that a command lacks."""
        for _ in range(left):
            length = self._number(_DOLLAR, 0, BULK_MAX)
            if not self._has(length + len(_CRLF)):
                raise _CutOff
            argv.append(self._data[self._at : self._at + length])
            self._at += length + len(_CRLF)

    def _number(self, mark: int, least: int, most: int) -> int:
        """Take a line that is ``mark`` and a number."""
        at = self._here
        line = self._line()
        digits = line[1:]
        if line[:1] != bytes((mark,)) or not digits.isdigit() or len(digits) > _DIGITS_MAX:
            raise BadPayload(f"{chr(mark)} and a number should stand here", at)
        number = int(digits)
        if not least <= number <= most:
            raise BadPayload(f"{number} is not between {least} and {most}", at)
        return number

    def _line(self) -> bytes:
        while (end := self._data.find(_CRLF, self._at, self._at + LINE_MAX)) < 0:
            if len(self._data) - self._at >= LINE_MAX:
                raise BadPayload("a line does not end", self._here)
            if not self._has(len(self._data) - self._at + 1):
                raise _CutOff
        line = self._data[self._at : end]
        self._at = end + len(_CRLF)
        return line

    def _has(self, size: int) -> bool:
        """Have ``size`` bytes at hand; False where the file has not so many."""
        if size <= len(self._data) - self._at:
            return True
        parts = [self._data[self._at :]]
        have = len(parts[0])
        while have < size and (part := self._file.read(CHUNK_BYTES)):
            parts.append(part)
            have += len(part)
            self._read += len(part)
        self._before += self._at
        self._data, self._at = b"".join(parts), 0
        return size <= have
