"""What an archive holds: its snapshots, its pieces, and who continued it last."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from kvstream.archive import format as formats
from kvstream.archive.format import (
    LOG,
    SNAPSHOTS,
    Piece,
    Snapshot,
    fence_key,
    number_of,
    piece_key,
    snapshot_key,
)
from kvstream.archive.objects import Objects
from kvstream.errors import Corruption
from kvstream.logs import DeferredLogger

_log = DeferredLogger(__name__)

FETCHES = 8
"""Objects that are fetched at a time."""


@dataclass(frozen=True, slots=True)
class History:
    """The end of an archive, and its snapshots, the oldest first."""

    snapshots: list[Snapshot]
    head: Piece | None
    """The last piece; None in an archive that has none yet."""
    sum: bytes
    """Its SHA-256, which the next one must have."""

    @property
    def next(self) -> int:
        """The number of the next piece."""
        return self.head.number + 1 if self.head else 0

    @property
    def is_based(self) -> bool:
        """Whether a snapshot leads to the last commit."""
        newest = self.snapshots[-1] if self.snapshots else None
        return bool(newest and self.head and newest.first_piece >= self.head.base)


def read_history(objects: Objects) -> History:
    """Read the snapshots and the last piece of an archive.

    Raises Corruption if one is damaged, ArchiveUnavailable.
    """
    snapshots = list(read_snapshots(objects))
    after = (
        piece_key(snapshots[-1].first_piece - 1) if snapshots and snapshots[-1].first_piece else ""
    )
    numbers = list_numbers(objects, LOG, after)
    if not numbers:
        if snapshots:
            raise Corruption(f"the archive {objects.url} has snapshots, and no pieces behind them")
        return History([], None, b"")
    head, data = get_piece(objects, max(numbers))
    return History(snapshots, head, formats.sum_of(data))


def list_numbers(objects: Objects, prefix: str, after: str = "") -> list[int]:
    """Return the numbers of the objects below a prefix, in order; other objects are ignored."""
    numbers = []
    for found in objects.list(prefix, after):
        with suppress(ValueError):
            numbers.append(number_of(found.key))
    return numbers


def put_fence(objects: Objects, fence: Piece) -> bytes | None:
    """Create a fence; return its bytes, None if there is another piece of its number."""
    objects.create(fence_key(fence.number), b"")  # first: it must not be deleted as a piece
    key, data = piece_key(fence.number), formats.encode(fence)
    if objects.create(key, data) or objects.get(key) == data:  # or its answer was lost
        return data
    return None


def read_snapshots(objects: Objects) -> Iterator[Snapshot]:
    """Yield all snapshots, the oldest first.

    One that is damaged is left out: the one before it and the pieces lead to the same moments. Of
    the newest Corruption is raised.
    """
    keys = [snapshot_key(number) for number in list_numbers(objects, SNAPSHOTS)]
    with ThreadPoolExecutor(FETCHES) as pool:
        for key, data in zip(keys, pool.map(objects.get, keys), strict=True):
            if data is None:  # it was deleted meanwhile
                continue
            try:
                yield formats.decode(Snapshot, key, data)[0]
            except Corruption as error:
                if key == keys[-1]:
                    raise
                _log.warning("%s: the snapshot before it is taken", error)


def get_piece(objects: Objects, number: int) -> tuple[Piece, bytes]:
    """Return a piece and its bytes; raise Corruption if it is missing or damaged."""
    key = piece_key(number)
    data = objects.get(key)
    if data is None:
        raise formats.damaged(key, "it is missing")
    piece, _ = formats.decode(Piece, key, data)
    if piece.number != number:
        raise formats.damaged(key, f"it is piece {piece.number}")
    return piece, data


def piece_of(objects: Objects, snapshot: Snapshot) -> Piece:
    """Return the piece up to which a snapshot has all commits."""
    return get_piece(objects, snapshot.piece - 1)[0]


def read_pieces(objects: Objects, first: int) -> Iterator[tuple[Piece, bytes]]:
    """Yield the pieces from a number on with their raw bytes, some fetched ahead.

    It ends before a fence at which the history begins anew. Raises Corruption if a piece is
    missing, damaged, or does not follow the one before it.
    """
    after = piece_key(first - 1) if first else ""
    numbers = list_numbers(objects, LOG, after)
    if not numbers:
        raise formats.damaged(piece_key(first), "it is missing")
    before = None
    with ThreadPoolExecutor(FETCHES) as pool:
        ahead = [pool.submit(get_piece, objects, number) for number in numbers[:FETCHES]]
        for at, number in enumerate(numbers):
            if number != first + at:
                raise formats.damaged(piece_key(first + at), "it is missing")
            piece, data = ahead.pop(0).result()
            if at + FETCHES < len(numbers):
                ahead.append(pool.submit(get_piece, objects, numbers[at + FETCHES]))
            if piece.is_base and number > first:
                return
            if before is not None and piece.before != before:
                raise formats.damaged(piece_key(number), "it does not follow the piece before it")
            before = formats.sum_of(data)
            _, body = formats.decode(Piece, piece_key(number), data)
            yield piece, formats.raw_of(piece_key(number), piece, body)
