"""What an archive deletes, and what it keeps."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from kvstream.archive.format import (
    FENCES,
    LOG,
    PINS,
    Snapshot,
    piece_key,
    snapshot_key,
    table_key,
)
from kvstream.archive.history import list_numbers
from kvstream.archive.objects import Objects
from kvstream.errors import StoreError
from kvstream.types.clock import now_ms

PIN_MS = 24 * 3600 * 1000
"""How long a restore that was killed keeps the archive from deleting."""


def prune(objects: Objects, snapshots: list[Snapshot], keep_s: float) -> int:
    """Delete snapshots that no moment of the last ``keep_s`` seconds needs; return their number.

    With them go the tables that no other snapshot names, and the pieces that none leads to, but for
    fences. Nothing is deleted while somebody restores: who does sets a pin before it looks for a
    snapshot, so a pin that is not there once the snapshots are gone belongs to nobody who needs
    them. ``snapshots`` are all of them, the oldest first; those that are deleted are removed from
    the list.
    """
    count = count_old(snapshots, keep_s)
    if not count or is_pinned(objects):
        return 0
    gone, kept = snapshots[:count], snapshots[count:]
    objects.delete([snapshot_key(snapshot.piece) for snapshot in gone])
    if is_pinned(objects):
        return 0  # the next call goes on
    named = {digest for snapshot in kept for digest, _ in snapshot.tables.values()}
    tables = {digest for snapshot in gone for digest, _ in snapshot.tables.values()} - named
    objects.delete([table_key(digest) for digest in sorted(tables)])
    first = min(snapshot.first_piece for snapshot in kept)
    fences = set(list_numbers(objects, FENCES))
    pieces = [number for number in list_numbers(objects, LOG) if number < first]
    objects.delete([piece_key(number) for number in pieces if number not in fences])
    del snapshots[:count]
    return count


def count_old(snapshots: list[Snapshot], keep_s: float) -> int:
    """Return how many snapshots no moment of the last ``keep_s`` seconds needs."""
    oldest_ms = now_ms() - int(keep_s * 1000)
    return max(sum(snapshot.written_ms <= oldest_ms for snapshot in snapshots) - 1, 0)


@contextmanager
def pin(objects: Objects) -> Iterator[None]:
    """Keep the archive from deleting what is being read."""
    key = f"{PINS}{now_ms():016x}-{uuid4().hex}"
    with suppress(StoreError):  # the credentials may be for reading only
        objects.create(key, b"")
    try:
        yield
    finally:
        with suppress(StoreError):
            objects.delete([key])


def is_pinned(objects: Objects) -> bool:
    """Return whether somebody restores or verifies; delete the pins of those who were killed."""
    oldest_ms = now_ms() - PIN_MS
    pins = {found.key: _pinned_at(found.key) for found in objects.list(PINS)}
    old = [key for key, at_ms in pins.items() if at_ms is not None and at_ms < oldest_ms]
    objects.delete(old)
    return any(at_ms is not None and at_ms >= oldest_ms for at_ms in pins.values())


def _pinned_at(key: str) -> int | None:
    """Return when a pin was set, in Unix ms; None for the key of something else."""
    with suppress(ValueError):
        return int(key[len(PINS) :].partition("-")[0], 16)
    return None
