"""What an archive deletes, and what it keeps.

::

    PIN := MS "-" WHAT "-" NAME    WHAT: restore, verify or snapshot; MS as 16 hexadecimal digits
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar
from uuid import uuid4

from kvstream.archive.format import (
    FENCES,
    LOG,
    PINS,
    SNAPSHOTS,
    TABLES,
    Snapshot,
    snapshot_key,
    table_key,
)
from kvstream.archive.history import read_snapshots
from kvstream.archive.objects import Objects
from kvstream.archive.pieces import Source, find_replaced, list_merged, list_numbers
from kvstream.errors import Corruption, StoreError
from kvstream.types.clock import now_ms

T = TypeVar("T")

PIN_MS = 24 * 3600 * 1000
"""How long a restore that was killed keeps the archive from deleting."""
RENEW_MS = 3600 * 1000
UNNAMED_MS = 24 * 3600 * 1000
"""How long tables stay that no snapshot names: one that is being made may name them."""
SNAPSHOT = "snapshot"


class Pruned(NamedTuple):
    """What was deleted."""

    snapshots: int
    tables: int
    pieces: int
    """Objects with pieces: single or merged ones."""


def prune(objects: Objects, snapshots: list[Snapshot], keep_s: float) -> Pruned | None:
    """Delete what no moment of the last ``keep_s`` seconds needs; return how much.

    These are old snapshots, the tables that no other snapshot names, the pieces that none leads to,
    but for fences, and pieces that are in merged objects too. ``snapshots`` are all of them, the
    oldest first; those that are deleted are removed from the list.

    Returns None, having deleted nothing but perhaps old snapshots, while somebody restores: who
    does sets a pin before it looks for a snapshot, so a pin that is not there once the snapshots
    are gone belongs to nobody who needs them. The next call deletes what this one has left.
    """
    if is_pinned(objects):
        return None
    count = count_old(snapshots, keep_s)
    gone, kept = snapshots[:count], snapshots[count:]
    if not kept:
        return Pruned(0, 0, 0)
    if gone:
        numbers = list_numbers(objects, SNAPSHOTS)  # some may be damaged, and not in the list
        objects.delete([snapshot_key(each) for each in numbers if each < kept[0].piece])
    unneeded = _unneeded_pieces(objects, min(snapshot.first_piece for snapshot in kept))
    tables = _unneeded_tables(objects, gone, kept)
    if is_pinned(objects):
        return None
    objects.delete(tables)
    objects.delete(source.key for source in unneeded)
    del snapshots[:count]
    return Pruned(count, len(tables), len(unneeded))


def _unneeded_tables(objects: Objects, gone: list[Snapshot], kept: list[Snapshot]) -> list[str]:
    """Return the keys of the tables that no kept snapshot names.

    Those of other snapshots than ``gone`` only if they are older than a day: a snapshot that was
    killed has left them, or a call of ``prune`` that a pin has ended.
    """
    oldest_ms = now_ms() - UNNAMED_MS
    old = {table_key(digest) for each in gone for digest, _ in each.tables.values()}
    there = list(objects.list(TABLES))
    named = {
        table_key(digest)
        for each in (*kept, *_snapshots_behind(objects, kept[-1]))
        for digest, _ in each.tables.values()
    }
    return [
        found.key
        for found in there
        if found.key not in named and (found.key in old or found.modified_ms < oldest_ms)
    ]


def _snapshots_behind(objects: Objects, snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield the snapshots that were made meanwhile; raise Corruption if one is damaged."""
    for _, found in read_snapshots(objects, snapshot_key(snapshot.piece)):
        if isinstance(found, Corruption):
            raise found
        yield found


def _unneeded_pieces(objects: Objects, first: int) -> list[Source]:
    """Return the objects whose pieces all come before a number, or are in a larger object too.

    A former owner that was stopped must find its next number taken, also if its last piece was put
    while its answer was lost: so fences stay, and the pieces before them.
    """
    merged = list_merged(objects)
    fences = set(list_numbers(objects, FENCES))
    singles = [
        Source(number, number)
        for number in list_numbers(objects, LOG)
        if not {number, number + 1} & fences
    ]
    old = [each for each in (*merged, *singles) if each.last < first]
    return old + find_replaced(
        objects,
        [each for each in merged if each.last >= first],
        [each for each in singles if each.first >= first],
    )


def count_old(snapshots: list[Snapshot], keep_s: float) -> int:
    """Return how many snapshots no moment of the last ``keep_s`` seconds needs."""
    oldest_ms = now_ms() - int(keep_s * 1000)
    return max(sum(snapshot.written_ms <= oldest_ms for snapshot in snapshots) - 1, 0)


class Pin:
    """Keeps the archive from deleting what is being read, or put for a snapshot."""

    def __init__(self, objects: Objects, what: str) -> None:
        self._objects, self._what = objects, what
        self._key, self._set_ms = "", 0
        self.renew()

    def renew(self) -> None:
        """Set it again if it is an hour old: after a day it counts no more."""
        at_ms = now_ms()
        if at_ms - self._set_ms >= RENEW_MS:
            former, self._set_ms = self._key, at_ms
            self._key = f"{PINS}{at_ms:016x}-{self._what}-{uuid4().hex}"
            with suppress(StoreError):  # the credentials may be for reading only
                self._objects.create(self._key, b"")
                self._objects.delete([former] if former else [])

    def hold(self, steps: Iterable[T]) -> Iterator[T]:
        """Yield the steps of long work, and renew the pin meanwhile."""
        for step in steps:
            self.renew()
            yield step

    def remove(self) -> None:
        """Delete the pin: the archive may delete objects again."""
        with suppress(StoreError):
            self._objects.delete([self._key])


@contextmanager
def pin(objects: Objects, what: str = "restore") -> Iterator[Pin]:
    """Keep the archive from deleting what is being read."""
    pinned = Pin(objects, what)
    try:
        yield pinned
    finally:
        pinned.remove()


def is_pinned(objects: Objects) -> bool:
    """Return whether somebody restores, verifies or makes a snapshot; delete old pins."""
    return any(_list_pins(objects))


def count_readers(objects: Objects) -> int:
    """Return how many restore or verify; delete old pins."""
    return sum(what != SNAPSHOT for what in _list_pins(objects).values())


def unpin_snapshots(objects: Objects) -> None:
    """Delete the pins of snapshots, which former owners have left."""
    for key, what in _list_pins(objects).items():
        if what == SNAPSHOT:
            objects.delete([key])


def _list_pins(objects: Objects) -> dict[str, str]:
    """Return the pins and what they are for; delete old ones, whose process was killed."""
    oldest_ms = now_ms() - PIN_MS
    pins: dict[str, str] = {}
    old: list[str] = []
    for found in objects.list(PINS):
        at, _, name = found.key[len(PINS) :].partition("-")
        with suppress(ValueError):  # something else
            if int(at, 16) < oldest_ms:
                old.append(found.key)
            else:
                pins[found.key] = name.partition("-")[0]
    objects.delete(old)
    return pins
