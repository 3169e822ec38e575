"""Read every object of an archive, and report what is missing or damaged.

Hashes are checked, the numbers of the pieces and the chain of their sums, the commits in them, and
the tables of each snapshot. A piece that is there by itself and in a merged object must be the same
in both. The archive may be written meanwhile.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from kvstream.archive import format as formats
from kvstream.archive.format import (
    LOG,
    MERGED,
    SNAPSHOTS,
    TABLES,
    Part,
    Snapshot,
    piece_key,
    snapshot_key,
    table_key,
)
from kvstream.archive.objects import EncryptedObjects, Objects
from kvstream.archive.pieces import (
    Source,
    caught,
    decode_piece,
    fetch,
    find_piece,
    find_sources,
    list_numbers,
    read_source,
)
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
    merged: int = 0
    """Objects with several of them."""
    tables: int = 0
    bytes: int = 0
    histories: int = 0
    """How often the history began, or began anew: the moments in between are not there."""
    unneeded: int = 0
    """Tables that no snapshot names: an archiver was killed while it made a snapshot."""
    keys: dict[str, int] = field(default_factory=dict)
    """How many objects each key has encrypted, by its ID."""
    faults: list[ArchiveFault] = field(default_factory=list)

    def report(self, key: str, fault: str | DataError) -> None:
        """Add a fault of an object."""
        prefix = str(formats.damaged(key, ""))
        self.faults.append(ArchiveFault(key, str(fault).removeprefix(prefix)))


def total_bytes(objects: Objects) -> int:
    """Return the bytes of all objects, which ``verify`` reads."""
    prefixes = SNAPSHOTS, LOG, MERGED, TABLES
    return sum(found.size for prefix in prefixes for found in objects.list(prefix))


def verify(objects: Objects, found: Verified | None = None) -> Verified:
    """Read all objects; return their numbers and their faults.

    ``found`` is filled meanwhile, so that another thread can show how far it is. Raises
    ArchiveUnavailable; WrongArchiveKey if a key is missing.
    """
    found = Verified() if found is None else found
    with pin(objects, "verify"):
        snapshots = list(_read_snapshots(objects, found))
        pieces = _Pieces(found)
        pieces.read(objects, min((each.first_piece for each in snapshots), default=0))
        if not found.faults:  # else it would be reported twice
            for snapshot in snapshots:
                pieces.check_snapshot(snapshot)
        _check_tables(objects, found, snapshots)
    if isinstance(objects, EncryptedObjects):
        found.keys = dict(objects.keys.used)
    return found


def _read_snapshots(objects: Objects, found: Verified) -> Iterator[Snapshot]:
    keys = [snapshot_key(number) for number in list_numbers(objects, SNAPSHOTS)]
    for key, data in fetch(caught(objects.get), keys):
        if data is None:
            found.report(key, "it is missing")
            continue
        found.snapshots += 1
        try:
            if isinstance(data, DataError):
                raise data
            found.bytes += len(data)
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
        self._twice: dict[int, bytes] = {}
        """The SHA-256 in a merged object of the pieces that are there by themselves too."""

    def read(self, objects: Objects, needed: int) -> None:
        """Read all pieces; ``needed`` is the first one that there must be."""
        # before them there are fences, and perhaps what a prune has left
        there = {each for each in list_numbers(objects, LOG) if each >= needed}
        sources, expected = find_sources(objects, needed), needed
        for source, pieces in fetch(partial(_read, objects), sources):
            if source.first > expected:
                self._report_missing(expected, source.first)
            expected = source.last + 1
            if isinstance(pieces, DataError):
                self._found.report(source.key, pieces)
                self._forget()
                continue
            self._found.merged += not source.is_single
            for number, data in enumerate(pieces, source.first):
                if not source.is_single and number in there:
                    self._twice[number] = formats.sum_of(data)
                self._check_next(number, data)
        self._check_twice(objects)

    def _report_missing(self, first: int, end: int) -> None:
        more = f", and {end - first - 1} after it" if end > first + 1 else ""
        self._found.report(piece_key(first), f"it is missing{more}")
        self._forget()

    def _check_next(self, number: int, data: bytes) -> None:
        self._found.pieces += 1
        self._found.bytes += len(data)
        try:
            self._check(number, data)
        except DataError as error:
            self._found.report(piece_key(number), error)
            self._forget()

    def _check_twice(self, objects: Objects) -> None:
        """Compare the pieces that are there by themselves and in a merged object."""

        def get(number: int) -> bytes | None:
            return objects.get(piece_key(number))

        for number, data in fetch(caught(get), self._twice):
            if data is None:  # it was deleted meanwhile
                continue
            try:
                if isinstance(data, DataError):
                    raise data
                self._found.bytes += len(data)
                if decode_piece(number, data).sum == self._twice[number]:
                    continue
                wrong: str | DataError = "it is not what the merged object has of it"
            except DataError as error:
                wrong = error
            self._found.report(piece_key(number), wrong)

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

    def _check(self, number: int, data: bytes) -> None:
        key, (piece, body, summed, _) = piece_key(number), decode_piece(number, data)
        if self._before is not None and piece.before != self._before:
            self._found.report(key, "it does not follow the piece before it")
        self._before = summed
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


def _read(objects: Objects, source: Source) -> list[bytes] | DataError:
    """Return the pieces of an object, or what is wrong with it."""
    try:
        pieces = read_source(objects, source)
        if pieces is None and source.is_single:  # merged meanwhile
            data = find_piece(objects, source.first)
            pieces = None if data is None else [data]
    except DataError as error:
        return error
    return formats.damaged(source.key, "it is missing") if pieces is None else pieces


def _check_tables(objects: Objects, found: Verified, snapshots: Iterable[Snapshot]) -> None:
    """Read each table that a snapshot names once."""
    needed = {
        table_key(digest): size for each in snapshots for digest, size in each.tables.values()
    }
    there = {each.key for each in objects.list(TABLES)}
    found.unneeded = len(there - needed.keys())

    def read(key: str) -> tuple[int, tuple[str, ...]]:
        hashed, size = sha256(), 0
        for data in objects.chunks(key):
            hashed.update(data)
            size += len(data)
        return size, objects.table_names(hashed.hexdigest())

    for key, outcome in fetch(caught(read), sorted(needed)):
        found.tables += 1
        if isinstance(outcome, DataError):
            found.report(key, outcome)
            continue
        size, names = outcome
        found.bytes += size
        if size != needed[key] or key not in map(table_key, names):
            is_missing = key not in there and not size
            wrong = "its SHA-256 is not its name" if size == needed[key] else f"it has {size} bytes"
            found.report(key, "it is missing" if is_missing else wrong)
