"""Continue the archive of a store although the archive's end is damaged.

The damaged objects stay where they are. A fence behind them begins the history anew, and the
directory of the store notes it as its own: the next opening makes a snapshot, from which everything
leads on. The store loses nothing. The archive loses the moments between the last piece that can be
read and that snapshot.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from kvstream.archive import format as formats
from kvstream.archive.format import LOG, Piece, piece_key, snapshot_key
from kvstream.archive.history import put_fence, read_snapshots
from kvstream.archive.mark import Mark, owner_at
from kvstream.archive.objects import Objects
from kvstream.archive.pieces import (
    decode_piece,
    find_sources,
    list_merged,
    list_numbers,
    read_source,
)
from kvstream.archive.times import time_after
from kvstream.errors import ArchiveDamaged, ArchiveTaken, Corruption
from kvstream.types.clock import now_ms

MISSING_MAX = 10
"""Missing pieces that are named of those that follow one another."""


@dataclass(slots=True)
class End:
    """The end of an archive, as far as it can be read."""

    head: Piece | None
    """The last piece that can be read."""
    bytes: int
    """The bytes of all pieces up to it, as objects."""
    next: int
    """The number behind all that is there."""
    damaged: list[str]
    """The keys of what is damaged behind it, or missing, and of the newest snapshot if that is."""


def find_end(objects: Objects) -> End:
    """Look for the last piece of an archive that can be read. Raises ArchiveUnavailable."""
    snapshots = list(read_snapshots(objects))
    numbers = [
        *(number + 1 for number in list_numbers(objects, LOG)),
        *(source.last + 1 for source in list_merged(objects)),
        *(number for number, _ in snapshots),
    ]
    end = End(None, 0, max(numbers, default=0), [])
    _read_back(objects, end)
    newest, found = snapshots[-1] if snapshots else (0, None)
    if isinstance(found, Corruption) and (end.head is None or newest > end.head.base):
        end.damaged.append(snapshot_key(newest))
    return end


def _read_back(objects: Objects, end: End) -> None:
    expected = end.next - 1
    for source in reversed(find_sources(objects, 0)):
        missing = range(expected, max(source.last, expected - MISSING_MAX), -1)
        end.damaged += [piece_key(number) for number in missing]
        expected = source.first - 1
        try:
            pieces = read_source(objects, source) or []
        except Corruption:
            end.damaged.append(source.key)
            continue
        for number, data in reversed(list(enumerate(pieces, source.first))):
            try:
                head = decode_piece(number, data)
            except Corruption:
                end.damaged.append(piece_key(number))
                continue
            end.head, end.bytes = head.piece, head.piece.bytes_before + head.size
            return


def restart(objects: Objects, end: End, directory: Path, sequence: int) -> None:
    """Begin the history of an archive anew with the store in a directory, which nobody writes to.

    ``sequence`` is its last commit. Raises ArchiveTaken if it is no owner of the archive, lacks
    commits that are there, or if another one goes on with it; Corruption if no piece can be read.
    """
    head, own, url = end.head, Mark.read(directory), objects.url
    if head is None:
        raise ArchiveDamaged(f"no piece of the archive {url} can be read: give another URL")
    if own is None or own.archive != head.archive:
        raise ArchiveTaken(
            f"the store in {directory} has never put anything into the archive {url}: give the "
            "directory of its owner, or another URL"
        )
    if head.last > sequence:
        raise ArchiveTaken(
            f"the archive {url} has commits up to {head.last}, {directory} only up to {sequence}: "
            "it has lost some, or is an old copy; restore the archive with --lsn instead"
        )
    fence = replace(
        head,
        number=end.next,
        epoch=uuid4().hex,
        before=_sum_before(objects, end.next),
        base=end.next,
        written_ms=time_after(head.latest_ms, now_ms()),
        bytes_before=end.bytes,
        parts=[],
        times=[],
        owner=owner_at(directory),
    )
    Mark(own.archive, own.epoch, fence.epoch).write(directory)
    if put_fence(objects, fence) is None:
        raise ArchiveTaken(f"another owner goes on with the archive {url} at this moment")
    Mark(own.archive, fence.epoch).write(directory)


def _sum_before(objects: Objects, number: int) -> bytes:
    """Return what stands in the place of the SHA-256 at the end of a piece; it may be damaged."""
    with suppress(Corruption):  # it cannot be decrypted
        return formats.sum_of(objects.get(piece_key(number - 1)) or b"")
    return b""
