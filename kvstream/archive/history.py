"""What an archive holds: its snapshots, its pieces, and who continued it last."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kvstream.archive import format as formats
from kvstream.archive.format import (
    LOG,
    SNAPSHOTS,
    Piece,
    Snapshot,
    fence_key,
    piece_key,
    snapshot_key,
)
from kvstream.archive.objects import Objects
from kvstream.archive.pieces import (
    caught,
    decode_piece,
    fetch,
    find_piece,
    get_piece,
    list_merged,
    list_numbers,
)
from kvstream.errors import ArchiveDamaged, Corruption
from kvstream.logs import DeferredLogger

_log = DeferredLogger(__name__)


@dataclass(frozen=True, slots=True)
class History:
    """The end of an archive, and its snapshots, the oldest first."""

    snapshots: list[Snapshot]
    head: Piece | None
    """The last piece; None in an archive that has none yet."""
    sum: bytes
    """Its SHA-256, which the next one must have."""
    bytes: int = 0
    """The bytes of all pieces up to it, as objects."""

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

    A damaged snapshot is left out: the one before it and the pieces lead to the same moments.
    Raises Corruption if the newest one or the last piece is damaged, ArchiveUnavailable.
    """
    read = list(read_snapshots(objects))
    snapshots = [found for _, found in read if isinstance(found, Snapshot)]
    last = _last_number(objects, snapshots[-1].first_piece if snapshots else 0)
    if last is None:
        if read:
            raise ArchiveDamaged(
                f"the archive {objects.url} has snapshots, and no pieces behind them"
            )
        return History([], None, b"")
    head = get_piece(objects, last)
    for snapshot in snapshots:
        if snapshot.archive != head.piece.archive:
            raise formats.damaged(snapshot_key(snapshot.piece), "it is of another archive")
    for number, found in read:
        if isinstance(found, Corruption):
            if (number, found) == read[-1] and number > head.piece.base:
                raise found
            _log.warning("%s: the snapshot before it is taken", found)
    return History(snapshots, head.piece, head.sum, head.piece.bytes_before + head.size)


def _last_number(objects: Objects, first: int) -> int | None:
    """Return the number of the last piece, at least ``first``; None if there is none.

    Only the pieces behind the merged ones are listed.
    """
    merged = max((source.last for source in list_merged(objects, first)), default=first - 1)
    numbers = list_numbers(objects, LOG, piece_key(merged) if merged >= 0 else "")
    last = max(numbers, default=merged)
    return last if last >= first else None


def put_fence(objects: Objects, fence: Piece) -> bytes | None:
    """Create a fence; return its bytes, None if another piece has, or had, its number."""
    objects.create(fence_key(fence.number), b"")  # first: it must not be deleted as a piece
    key, data = piece_key(fence.number), formats.encode(fence)
    if not objects.create(key, data) and objects.get(key) != data:  # else its answer was lost
        return None
    if _is_passed(objects, fence.number, data):
        objects.delete([key])
        return None
    return data


def _is_passed(objects: Objects, number: int, data: bytes) -> bool:
    """Return whether the archive has gone on without a fence that could be created.

    Its number was taken by a piece that has been merged since this process has read the history.
    The last piece is always there by itself.
    """
    if not list_numbers(objects, LOG, piece_key(number)):
        return False
    following = find_piece(objects, number + 1)
    if following is None:
        return True
    return decode_piece(number + 1, following).piece.before != formats.sum_of(data)


def read_snapshots(
    objects: Objects, after: str = ""
) -> Iterator[tuple[int, Snapshot | Corruption]]:
    """Yield all snapshots, or those behind a key, by their numbers; the oldest first.

    In place of one that is damaged comes the error.
    """
    keys = {snapshot_key(number): number for number in list_numbers(objects, SNAPSHOTS, after)}
    for key, found in fetch(caught(partial(_get_snapshot, objects)), keys):
        if isinstance(found, Snapshot | Corruption):
            yield keys[key], found
        elif found is not None:  # else it was deleted meanwhile
            raise found


def _get_snapshot(objects: Objects, key: str) -> Snapshot | None:
    data = objects.get(key)
    return None if data is None else formats.decode(Snapshot, key, data)[0]


def get_snapshot(objects: Objects, piece: int) -> Snapshot:
    """Return the snapshot before a piece; raise Corruption if it is missing or damaged."""
    key = snapshot_key(piece)
    snapshot = _get_snapshot(objects, key)
    if snapshot is None:
        raise formats.damaged(key, "it is missing")
    return snapshot
