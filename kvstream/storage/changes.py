"""The change log of a store across RocksDB's files: which logs there are, and reading on from one.

::

    NNNNNN.log              the logs that RocksDB needs; it writes the last one
    archive/NNNNNN.log      finished ones that it has moved, if the store keeps its logs

RocksDB moves a log while it may be open here: it stays open. Whoever keeps logs must trim them:
RocksDB's own limit of bytes is looked at each ten minutes and at each opening, and then also takes
logs that nobody has read.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvstream.errors import Corruption, LostWrites
from kvstream.layout.history import History
from kvstream.layout.keys import HISTORY_KEY
from kvstream.storage import files
from kvstream.storage.batch import Family, Rows
from kvstream.storage.log import LogReader, Record

ARCHIVE = "archive"
_LOG = re.compile(r"([0-9]+)\.log")
READ_BYTES = 1 << 20


class Position(NamedTuple):
    """A place between two records of a store."""

    log: int
    """The number of the log."""
    offset: int
    """Where the next record begins in it."""
    sequence: int | None
    """The number of the last row before; None if that does not matter."""


class ChangeReader:
    """Read the records of a store in order, also while it is written."""

    def __init__(self, directory: Path, position: Position | None = None) -> None:
        """Begin at a position; None is the beginning of the oldest log.

        Raises LostWrites if its log is not there any more.
        """
        self._directory = directory
        self._descriptor = -1
        self._sequence = None if position is None else position.sequence
        number = min(log_numbers(directory)) if position is None else position.log
        self._open(number, 0 if position is None else position.offset)

    @property
    def position(self) -> Position:
        """The end of the last record that was returned."""
        return Position(self._number, self._log.position, self._sequence)

    def read(self, size: int = READ_BYTES) -> list[Record]:
        """Return the next records, of ``size`` bytes of one log at a time; none if none are there.

        Raises LostWrites if the log goes on with another number than the next one, as after an
        ingest over rows that were there; Corruption for damage, with the file.
        """
        while True:
            data, newer = os.pread(self._descriptor, size, self._at), None
            if not data and (newer := self._newer()) is not None:
                data = os.pread(self._descriptor, size, self._at)  # written before the newer one
            if data:
                self._at += len(data)
                if records := self._feed(data):
                    return records
            elif newer is None:
                return []
            else:  # what is left unread is a torn end
                self._open(newer, 0)

    def close(self) -> None:
        """Close the log; idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self, number: int, offset: int) -> None:
        try:
            descriptor = open_log(self._directory, number)
        except FileNotFoundError:
            raise LostWrites(f"the log {number} of {self._directory} was removed") from None
        self.close()
        self._descriptor, self._number, self._at = descriptor, number, offset
        self._log = LogReader(offset)

    def _newer(self) -> int | None:
        """Return the number of the next log; None if there is none."""
        later = [each for each in log_numbers(self._directory) if each > self._number]
        return later[0] if later else None

    def _feed(self, data: bytes) -> list[Record]:
        try:
            records = self._log.feed(data)
        except Corruption as error:
            raise Corruption(f"{self._number:06}.log: {error}") from None
        for record in records:
            if self._sequence is not None and record.sequence != self._sequence + 1:
                raise LostWrites(
                    f"{self._number:06}.log goes on with the row {record.sequence}, where "
                    f"{self._sequence + 1} is next"
                )
            self._sequence = record.last
        return records


def read_history(rows: Rows) -> History | None:
    """Return the history of a store, in which its changes have positions; None if it has none."""
    value = rows.get(Family.METADATA, HISTORY_KEY)
    return None if value is None else History.decode(value)


def log_numbers(directory: Path) -> list[int]:
    """Return the numbers of all logs of a store, in order."""
    return sorted({number for place in _places(directory) for number in _numbers(place)})


def trim_logs(directory: Path, size: int, before: int = 0) -> None:
    """Remove the oldest archived logs until the others have at most ``size`` bytes.

    All logs below the number ``before`` are removed: nobody will read them again.
    """
    place = directory / ARCHIVE
    sizes = {number: _size(place, number) for number in sorted(_numbers(place))}
    left = sum(sizes.values())
    for number, its_size in sizes.items():
        if left <= size and number >= before:
            return
        with suppress(FileNotFoundError):
            (place / f"{number:06}.log").unlink()
        left -= its_size


def archived_sizes(directory: Path) -> Iterator[tuple[int, int]]:
    """Yield the archived logs and their bytes, the newest first."""
    place = directory / ARCHIVE
    for number in sorted(_numbers(place), reverse=True):
        yield number, _size(place, number)


def remove_archive(directory: Path) -> None:
    """Remove the archived logs of a store that does not keep its logs any more.

    RocksDB never does. While it keeps logs, the folder must stay: it would not make another.
    """
    trim_logs(directory, -1)
    with suppress(OSError):  # there is none, or it holds files of somebody else
        (directory / ARCHIVE).rmdir()


def _places(directory: Path) -> tuple[Path, Path]:
    return directory, directory / ARCHIVE


def _numbers(place: Path) -> Iterator[int]:
    with suppress(FileNotFoundError):
        for name in os.listdir(place):
            if matched := _LOG.fullmatch(name):
                yield int(matched[1])


def _size(place: Path, number: int) -> int:
    try:
        return os.path.getsize(place / f"{number:06}.log")
    except FileNotFoundError:
        return 0


def log_size(directory: Path, number: int) -> int:
    """Return the bytes of a log; FileNotFoundError if there is none."""
    descriptor = open_log(directory, number)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def open_log(directory: Path, number: int) -> int:
    """Return a descriptor of a log; RocksDB may move it from the first place to the second."""
    place, archive = (each / f"{number:06}.log" for each in _places(directory))
    with suppress(FileNotFoundError):
        return files.open_regular(place)
    return files.open_regular(archive)
