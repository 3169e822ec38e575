"""The logs of an open store on their way into an archive: which there are, and what is unread.

The bytes are taken as they are in the files, whole commits at a time (storage/changes.py says which
files there are). A log that RocksDB needs no more is removed once it is read.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvstream.archive.format import RAW_MAX, Part
from kvstream.errors import Corruption
from kvstream.storage.changes import ARCHIVE, log_numbers, log_size, open_log
from kvstream.storage.log import MORE, UNSOUND, LogReader, find_end


class Position(NamedTuple):
    """What has been read: the end of a commit in a log."""

    log: int
    offset: int


class Chunk(NamedTuple):
    """Bytes of logs, whole commits."""

    parts: list[Part]
    raw: bytes
    position: Position
    last: int
    """The sequence number of the last commit; 0 if there is none."""


class Logs:
    """The logs of a store, read from a position on."""

    def __init__(
        self,
        directory: Callable[[], Path],
        position: Position,
        last: int,
        trim: Callable[[int], None],
    ) -> None:
        """``last`` is the sequence number of the last commit before ``position``; -1: unknown.

        ``directory`` returns the present path of the store. ``trim`` removes the kept logs before
        a number that nobody else needs either.
        """
        self._directory, self._trim = directory, trim
        self.position = position
        self.last = last

    def read(self, until: int) -> Chunk:
        """Return the next commits up to the sequence number ``until``, at most some megabytes.

        Raises Corruption if a log is damaged or missing.
        """
        parts: list[Part] = []
        has_more = False
        data: list[bytes] = []
        position, last, size = self.position, self.last, 0
        numbers = log_numbers(self._directory())
        for number in numbers:
            if number < position.log:
                continue
            offset = position.offset if number == position.log else 0
            with suppress(FileNotFoundError):  # moved away, empty, between the look and now
                is_newest = number == numbers[-1]
                most = RAW_MAX - size
                raw, last, has_more = self._read_log(number, offset, last, until, most, is_newest)
                if raw:
                    position = Position(number, offset + len(raw))
                    parts.append(Part(number, offset, len(raw)))
                    data.append(raw)
                    size += len(raw)
            if has_more or size >= RAW_MAX or last >= until:
                break
        return Chunk(parts, b"".join(data), position, last)

    def _read_log(
        self, number: int, offset: int, last: int, until: int, most: int, is_newest: bool
    ) -> tuple[bytes, int, bool]:
        """Return whole commits of one log, the number of the last one, and whether it has more.

        They are of ``most`` bytes, or one.

        Power loss or a full disk may leave a torn end, behind which a newer log goes on.
        """
        data, end, size, state = b"", 0, most, MORE
        with os.fdopen(open_log(self._directory(), number), "rb") as file:
            file.seek(offset)
            there = os.fstat(file.fileno()).st_size - offset
            while state == MORE and not end and last < until and (more := file.read(size)):
                data += more
                end, last, state = find_end(data, 0, offset, last, until)
                size = len(data)  # one commit of many megabytes
        if state == UNSOUND:
            self._refuse_unsound(number, offset + end, data[end:], last, is_newest)
        return data[:end], last, len(data) < there

    def _refuse_unsound(
        self, number: int, at: int, data: bytes, last: int, is_newest: bool
    ) -> None:
        """Raise Corruption for what follows a commit, unless it may be a torn end."""
        try:
            records = LogReader(at).feed(data)
        except Corruption as error:
            if is_newest:
                raise Corruption(f"{number:06d}.log: {error}") from None
            return
        raise Corruption(
            f"the log {number:06d}.log goes on with commit {records[0].sequence} behind commit "
            f"{last}"
        )

    def trim(self) -> None:
        """Remove the kept logs before the position, unless somebody else needs them."""
        self._trim(self.position.log)

    def kept_bytes(self) -> int:
        """Return the bytes behind the position in finished logs that RocksDB needs no more."""
        total = 0
        for path in (self._directory() / ARCHIVE).glob("*.log"):
            number = int(path.stem)
            if number >= self.position.log:
                with suppress(FileNotFoundError):
                    total += path.stat().st_size
                total -= self.position.offset if number == self.position.log else 0
        return max(total, 0)

    def unread_bytes(self) -> int:
        """Return the bytes behind the position, torn ends included."""
        total = 0
        for number in log_numbers(self._directory()):
            if number >= self.position.log:
                with suppress(FileNotFoundError):
                    total += log_size(self._directory(), number)
        return max(total - self.position.offset, 0)


def reaches(directory: Path, position: Position) -> bool:
    """Return whether the log of a position is there up to it."""
    try:
        return log_size(directory, position.log) >= position.offset
    except FileNotFoundError:
        return False


def oldest(directory: Path) -> int:
    """Return the number of the oldest log that RocksDB needs; 0 if there is none."""
    return min(
        (int(path.stem) for path in directory.glob("*.log") if path.stem.isdigit()), default=0
    )
