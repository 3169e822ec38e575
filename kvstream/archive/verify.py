"""Read every object of an archive, and report what is missing or damaged.

Hashes are checked, the numbers of the pieces and the chain of their sums, the commits in them, and
the tables of each snapshot. The archive may be written meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from kvstream.archive import format as formats
from kvstream.archive.format import (
    LOG,
    SNAPSHOTS,
    TABLES,
    Part,
    Piece,
    Snapshot,
    number_of,
    piece_key,
    snapshot_key,
    table_key,
)
from kvstream.archive.history import fetch, list_numbers
from kvstream.archive.objects import Objects
from kvstream.archive.retention import pin
from kvstream.errors import Corruption, DataError
from kvstream.storage.log import LogReader


class ArchiveFault(NamedTuple):
    """An object that is missing or damaged."""

    key: str
    message: str


@dataclass(slots=True)
class Verified:
    """What was read, and what is wrong with it."""

    snapshots: int = 0
    pieces: int = 0
    tables: int = 0
    bytes: int = 0
    histories: int = 0
    """How often the history began, or began anew: the moments in between are not there."""
    unneeded: int = 0
    """Tables that no snapshot names: an archiver was killed while it made a snapshot."""
    faults: list[ArchiveFault] = field(default_factory=list)

    def report(self, key: str, fault: str | DataError) -> None:
        """Add a fault of an object."""
        prefix = str(formats.damaged(key, ""))
        self.faults.append(ArchiveFault(key, str(fault).removeprefix(prefix)))


def total_bytes(objects: Objects) -> int:
    """Return the bytes of all objects, which ``verify`` reads."""
    return sum(found.size for prefix in (SNAPSHOTS, LOG, TABLES) for found in objects.list(prefix))


def verify(objects: Objects, found: Verified | None = None) -> Verified:
    """Read all objects; return their numbers and their faults.

    ``found`` is filled meanwhile, so that another thread can show how far it is. Raises
    ArchiveUnavailable.
    """
    found = Verified() if found is None else found
    with pin(objects):
        snapshots = list(_read_snapshots(objects, found))
        pieces = _Pieces(found)
        pieces.read(objects, min((each.first_piece for each in snapshots), default=0))
        if not found.faults:  # else it would be reported twice
            for snapshot in snapshots:
                pieces.check_snapshot(snapshot)
        _check_tables(objects, found, snapshots)
    return found


def _read_snapshots(objects: Objects, found: Verified) -> Iterator[Snapshot]:
    keys = [snapshot_key(number) for number in list_numbers(objects, SNAPSHOTS)]
    for key, data in fetch(objects.get, keys):
        if data is None:
            found.report(key, "it is missing")
            continue
        found.snapshots += 1
        found.bytes += len(data)
        try:
            yield formats.decode(Snapshot, key, data)[0]
        except DataError as error:
            found.report(key, error)


class _Pieces:
    """Reads the pieces in their order, and looks whether each snapshot has those that it needs."""

    def __init__(self, found: Verified) -> None:
        self._found = found
        self._before: bytes | None = None
        """The SHA-256 of the piece before; None: unknown."""
        self._end: tuple[int, int] | None = None
        """The last log and the end of its bytes; None: unknown."""
        self._last = -1
        """The last commit; -1: unknown."""
        self._begun: dict[int, int] = {}
        """The piece with the first byte of each log."""
        self._seen: dict[int, int] = {}
        """The last piece with bytes of each log."""

    def read(self, objects: Objects, needed: int) -> None:
        """Read all pieces; ``needed`` is the first one that there must be."""
        # before them there are fences, and perhaps what a prune has left
        keys = [piece_key(each) for each in list_numbers(objects, LOG) if each >= needed]
        expected = needed
        for key, data in fetch(objects.get, keys):
            number = number_of(key)
            if data is None:
                continue
            if number > expected:
                more = f", and {number - expected - 1} after it" if number > expected + 1 else ""
                self._found.report(piece_key(expected), f"it is missing{more}")
                self._forget()
            expected = number + 1
            self._found.pieces += 1
            self._found.bytes += len(data)
            try:
                self._check(number, key, data)
            except DataError as error:
                self._found.report(key, error)
                self._forget()

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Report a snapshot whose first log is there in part."""
        log, first = snapshot.first_log, snapshot.first_piece
        if self._seen.get(log, -1) >= first > self._begun.get(log, -1):
            self._found.report(
                snapshot_key(snapshot.piece), f"the log {log} has no beginning from {first} on"
            )

    def _forget(self) -> None:
        """Compare the next piece with none before it."""
        self._before, self._end, self._last = None, None, -1

    def _check(self, number: int, key: str, data: bytes) -> None:
        piece, body = formats.decode(Piece, key, data)
        if piece.number != number:
            raise Corruption(f"it is piece {piece.number}")
        if self._before is not None and piece.before != self._before:
            self._found.report(key, "it does not follow the piece before it")
        self._before = formats.sum_of(data)
        if piece.is_base or not self._found.histories:
            self._found.histories += 1
            self._end, self._last = None, -1
        raw, at = formats.raw_of(key, piece, body), 0
        for part in piece.parts:
            self._check_part(number, part, raw[at : at + part.size])
            at += part.size
        if piece.parts and self._last != piece.last:
            raise Corruption(f"it ends with commit {self._last}, not {piece.last}")

    def _check_part(self, number: int, part: Part, data: bytes) -> None:
        """Check that bytes of a log follow those before them, and are whole commits."""
        log, offset, size = part
        if self._end is not None:
            follows = self._end[1] if self._end[0] == log else 0
            if offset != follows:
                raise Corruption(f"it has byte {offset} of the log {log}, not {follows}")
        self._end, self._seen[log] = (log, offset + size), number
        if offset == 0:
            self._begun[log] = number
        reached = offset
        for record in LogReader(offset).feed(data):
            if record.row_count and self._last >= 0 and record.sequence != self._last + 1:
                raise Corruption(f"commit {record.sequence} follows commit {self._last}")
            self._last, reached = record.last, record.end
        if reached != offset + size:
            raise Corruption(f"the log {log} is cut within a commit, at {reached}")


def _check_tables(objects: Objects, found: Verified, snapshots: Iterable[Snapshot]) -> None:
    """Read each table that a snapshot names once."""
    needed = {
        table_key(digest): size for each in snapshots for digest, size in each.tables.values()
    }
    there = {each.key for each in objects.list(TABLES)}
    found.unneeded = len(there - needed.keys())

    def read(key: str) -> tuple[int, str]:
        hashed, size = sha256(), 0
        for data in objects.chunks(key):
            hashed.update(data)
            size += len(data)
        return size, table_key(hashed.hexdigest())

    for key, (size, name) in fetch(read, sorted(needed)):
        found.tables += 1
        found.bytes += size
        if size != needed[key] or name != key:
            is_missing = key not in there and not size
            wrong = "its SHA-256 is not its name" if size == needed[key] else f"it has {size} bytes"
            found.report(key, "it is missing" if is_missing else wrong)
