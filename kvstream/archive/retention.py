"""What an archive deletes, and what it keeps."""

import time

from kvstream.archive.format import LOG, PINS, Snapshot, number_of, snapshot_key, table_key
from kvstream.archive.objects import Objects

PIN_MS = 24 * 3600 * 1000
"""How long a restore that was killed keeps the archive from deleting."""


def prune(objects: Objects, snapshots: list[Snapshot], keep_s: float) -> int:
    """Delete snapshots that no moment of the last ``keep_s`` seconds needs; return their number.

    With them go the tables that no other snapshot names, and the pieces that none leads to. Nothing
    is deleted while somebody restores. ``snapshots`` are all of them, the oldest first; those that
    are deleted are removed from the list.
    """
    count = count_old(snapshots, keep_s)
    if not count or is_pinned(objects):
        return 0
    gone, kept = snapshots[:count], snapshots[count:]
    named = {digest for snapshot in kept for digest, _ in snapshot.tables.values()}
    objects.delete([snapshot_key(snapshot.sequence) for snapshot in gone])
    tables = {digest for snapshot in gone for digest, _ in snapshot.tables.values()} - named
    objects.delete([table_key(digest) for digest in sorted(tables)])
    first = min(snapshot.first_piece for snapshot in kept)
    objects.delete([found.key for found in objects.list(LOG) if number_of(found.key) < first])
    del snapshots[:count]
    return count


def count_old(snapshots: list[Snapshot], keep_s: float) -> int:
    """Return how many snapshots no moment of the last ``keep_s`` seconds needs."""
    oldest_ms = time.time_ns() // 1_000_000 - int(keep_s * 1000)
    return max(sum(snapshot.written_ms <= oldest_ms for snapshot in snapshots) - 1, 0)


def is_pinned(objects: Objects) -> bool:
    """Return whether somebody restores or verifies; delete the pins of those who were killed."""
    now_ms = time.time_ns() // 1_000_000
    keys = [found.key for found in objects.list(PINS)]
    old = [key for key in keys if int(key[len(PINS) :].partition("-")[0], 16) < now_ms - PIN_MS]
    objects.delete(old)
    return len(old) < len(keys)
