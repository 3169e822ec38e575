"""The log of a primary on its way to replicas: where a position is in it, and what is new.

The bytes are sent as they are in the files, also those of a record that is not whole yet: the
replica puts them together. A failed write may leave bytes at the end of a log that are no record.
The next log continues with the same sequence number, and the replica drops these bytes.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from kvstream.layout.history import History
from kvstream.layout.keys import HISTORY_KEY
from kvstream.storage.changes import log_numbers, open_log
from kvstream.storage.log import MORE, PUT, LogReader, find_end

_SEQUENCE = Struct("<7xQ")
"""The beginning of a log: the head of the first fragment, then the number of the first row."""
_PIECE = 1 << 20


class Part(NamedTuple):
    """Bytes of a log that are to be sent."""

    descriptor: int
    log: int
    offset: int
    size: int


class LogTail:
    """The bytes of an open store's log behind a position, while they are written."""

    def __init__(self, directory: Path, log: int, offset: int) -> None:
        """Begin at an end of a record; FileNotFoundError if that log is gone."""
        self._directory = directory
        self._descriptor = open_log(directory, log)
        self.log, self.offset = log, offset

    def part(self, most: int, looks: bool = True) -> Part | None:
        """Return the next bytes, at most ``most``; None if there are none.

        It goes on to the next log if it ``looks`` for one. FileNotFoundError if that is gone.
        """
        size = self._unsent()
        while not size and looks:
            later = [each for each in log_numbers(self._directory) if each > self.log]
            size = self._unsent()  # what was written before the next log was begun
            if size or not later:
                break
            self._go_to(later[0])
            size = self._unsent()
        return Part(self._descriptor, self.log, self.offset, min(size, most)) if size else None

    def sent(self, size: int) -> None:
        """Go on behind some bytes."""
        self.offset += size

    def unsent_bytes(self) -> int:
        """Return how many bytes of the present log are left."""
        return self._unsent()

    def close(self) -> None:
        """Close the log; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _unsent(self) -> int:
        return os.fstat(self._descriptor).st_size - self.offset

    def _go_to(self, log: int) -> None:
        descriptor = open_log(self._directory, log)
        self.close()
        self._descriptor, self.log, self.offset = descriptor, log, 0


def locate(directory: Path, sequence: int, last: int) -> tuple[int, int] | None:
    """Return the log, and the offset in it, behind the row of a sequence number.

    ``last`` is the number of the store's last row. None if no record ends there, or it is not in
    the logs any more. It reads a log from its beginning: 0.1 s for 64 MB.
    """
    begun = None
    for number in log_numbers(directory):
        first = _first_sequence(directory, number)
        if first is None:  # empty: it may be the one that the next row goes to
            begun = number if begun is None else begun
        elif first <= sequence + 1:
            begun = number
        elif begun is None:
            return None
        else:
            break
    if begun is None:
        return None
    first = _first_sequence(directory, begun)
    if first == sequence + 1 or (first is None and sequence == last):
        return begun, 0
    if first is None:
        return None
    return _find_in(directory, begun, sequence)


class Commit(NamedTuple):
    """The end of a commit that has a history row: a position that a replica once had."""

    log: int
    offset: int
    sequence: int
    """The number of its last row here."""
    lsn: int


def find_commit(directory: Path, lsn: int) -> Commit | None:
    """Return the last commit of a former replica that reaches at most to ``lsn``.

    It has joined the commits of its primary, so there may be none that ends there. None if it is
    not in the logs any more. It reads a log or two: half a second each.
    """
    for number in reversed(log_numbers(directory)):
        found = None
        for commit in _read_commits(directory, number):
            if commit.lsn > lsn:
                break
            found = commit
        if found is not None:
            return found
    return None


def _read_commits(directory: Path, log: int) -> Iterator[Commit]:
    """Yield the commits of a log that have a history row."""
    reader = LogReader()
    with suppress(FileNotFoundError), open(open_log(directory, log), "rb") as file:
        while data := file.read(_PIECE):
            for record in reader.feed(data):
                for _, kind, key, value in record.rows():
                    if key == HISTORY_KEY and kind == PUT and value is not None:
                        lsn = History.decode(value).lsn
                        yield Commit(log, record.end, record.last, lsn)


def _first_sequence(directory: Path, log: int) -> int | None:
    """Return the number of the first row of a log; None if it is empty or gone."""
    try:
        descriptor = open_log(directory, log)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(descriptor, _SEQUENCE.size, 0)
    finally:
        os.close(descriptor)
    if len(data) < _SEQUENCE.size:
        return None
    sequence: int = _SEQUENCE.unpack(data)[0]
    return sequence


def _find_in(directory: Path, log: int, sequence: int) -> tuple[int, int] | None:
    descriptor = open_log(directory, log)
    try:
        at, last, size = 0, -1, _PIECE
        while True:
            data = os.pread(descriptor, size, at)
            end, last, state = find_end(data, 0, at, last, sequence)
            at += end
            if state != MORE or (not end and len(data) < size):
                return (log, at) if last == sequence else None
            size = _PIECE if end else 2 * size  # a record of many megabytes
    finally:
        os.close(descriptor)
