"""What an archive holds: its snapshots, its pieces, and who continued it last."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

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

K = TypeVar("K")
T = TypeVar("T")

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
    head = get_piece(objects, max(numbers))
    return History(snapshots, head.piece, head.sum)


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
    for key, data in fetch(objects.get, keys):
        if data is None:  # it was deleted meanwhile
            continue
        try:
            yield formats.decode(Snapshot, key, data)[0]
        except Corruption as error:
            if key == keys[-1]:
                raise
            _log.warning("%s: the snapshot before it is taken", error)


def get_snapshot(objects: Objects, piece: int) -> Snapshot:
    """Return the snapshot before a piece; raise Corruption if it is missing or damaged."""
    key = snapshot_key(piece)
    data = objects.get(key)
    if data is None:
        raise formats.damaged(key, "it is missing")
    return formats.decode(Snapshot, key, data)[0]


class Fetched(NamedTuple):
    """A piece that was read."""

    piece: Piece
    body: bytes
    """Its bytes of logs, compressed."""
    sum: bytes
    """Its SHA-256."""


def get_piece(objects: Objects, number: int) -> Fetched:
    """Return a piece; raise Corruption if it is missing or damaged."""
    key = piece_key(number)
    data = objects.get(key)
    if data is None:
        raise formats.damaged(key, "it is missing")
    piece, body = formats.decode(Piece, key, data)
    if piece.number != number:
        raise formats.damaged(key, f"it is piece {piece.number}")
    return Fetched(piece, body, formats.sum_of(data))


def piece_of(objects: Objects, snapshot: Snapshot) -> Piece:
    """Return the piece up to which a snapshot has all commits."""
    return get_piece(objects, snapshot.piece - 1).piece


def read_pieces(objects: Objects, first: int) -> Iterator[Fetched]:
    """Yield the pieces from a number on, some fetched ahead.

    It ends before a fence at which the history begins anew. Raises Corruption if a piece is
    missing, damaged, or does not follow the one before it.
    """
    after = piece_key(first - 1) if first else ""
    numbers = list_numbers(objects, LOG, after)
    if not numbers:
        raise formats.damaged(piece_key(first), "it is missing")
    expected, before = first, None
    for number, fetched in fetch(partial(get_piece, objects), numbers):
        if number != expected:
            raise formats.damaged(piece_key(expected), "it is missing")
        if fetched.piece.is_base and number > first:
            return
        if before is not None and fetched.piece.before != before:
            raise formats.damaged(piece_key(number), "it does not follow the piece before it")
        expected, before = number + 1, fetched.sum
        yield fetched


def fetch(get: Callable[[K], T], keys: Iterable[K]) -> Iterator[tuple[K, T]]:
    """Yield each key and its object, some fetched ahead."""
    remaining = iter(keys)
    with ThreadPoolExecutor(FETCHES) as pool:
        ahead = deque((key, pool.submit(get, key)) for key in islice(remaining, FETCHES))
        while ahead:
            key, fetching = ahead.popleft()
            yield key, fetching.result()
            ahead.extend((key, pool.submit(get, key)) for key in islice(remaining, 1))
