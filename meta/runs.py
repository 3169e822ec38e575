"""Runs of a group's pending entries: their bytes, their indexes in memory, and watches of changes.

A run is a piece of a group's pending entries list that one consumer got at one time: IDs in
ascending order that share owner, delivery time and delivery count::

    run   := time_ms(u64) deliveries(u64) rank(u64) owner_length(u32) owner id*
    times := time_ms(u64) rank(u64) anchor(id)                the run's suffix in the times tree

A group with few runs has its indexes by time and owner in memory alone (``RunIndex``), built from
the runs on first use and updated from then on. Their counts take the place of counters on disk. A
``RunWatch`` records what changes while a long command reads the runs in steps.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from weakref import WeakSet

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta.trees import SPARSE, Tree

PackedID = bytes
"""The 16 bytes of a StreamID, which sort as it does."""

_HEAD = Struct(">QQQI")
_TIME = Struct(">QQ")
TIME_BYTES = _TIME.size
HEAD_BYTES = _HEAD.size


class Run(NamedTuple):
    """IDs that share owner, delivery time and count."""

    anchor: PackedID
    """The first ID that the run ever had: its key."""
    ids: Sequence[PackedID]
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int = 0
    """The place in the queue of entries without an owner (XNACK); 0 if it has an owner."""

    @property
    def owned(self) -> bool:
        return self.rank == 0

    def encode(self) -> bytes:
        _, ids, owner, time_ms, deliveries, rank = self
        return _HEAD.pack(time_ms, deliveries, rank, len(owner)) + owner + b"".join(ids)

    @classmethod
    def decode(cls, anchor: PackedID, value: bytes) -> "Run":
        try:
            time_ms, deliveries, rank, length = _HEAD.unpack_from(value)
        except StructError as error:
            raise _damaged(anchor) from error
        start = _HEAD.size + length
        size = len(value) - start
        if size <= 0 or size % ID_BYTES:
            raise _damaged(anchor)
        ids = [value[at : at + ID_BYTES] for at in range(start, len(value), ID_BYTES)]
        return cls(anchor, ids, value[_HEAD.size : start], time_ms, deliveries, rank)

    @property
    def times_suffix(self) -> bytes:
        """The key of the run in the times tree."""
        return _TIME.pack(self[3], self[5]) + self[0]


def run_tree(tree_id: int, new: bool = False) -> Tree[Run]:
    """Return a tree of runs."""
    return Tree(tree_id, Run.decode, Run.encode, new)


new_run = partial(tuple.__new__, Run)
"""Return a Run of its six parts without running Python code."""


def _damaged(anchor: PackedID) -> Corruption:
    return Corruption(f"the run of pending entries at {anchor.hex()} is damaged")


OWNED_FIRST = _TIME.pack(1, 0)
"""Sorts after the suffixes of runs without an owner, and before all others."""


def time_of(times_suffix: bytes) -> int:
    """Return the delivery time with which a key of the times tree begins."""
    return int(_TIME.unpack_from(times_suffix)[0])


Stretch = tuple[PackedID, PackedID]
"""From a run's anchor to its last ID."""


class RunWatch:
    """The ranges in which runs of one group changed since the last call of ``take``."""

    def __init__(self) -> None:
        self._changed: list[Stretch] = []

    def note(self, stretches: list[Stretch]) -> None:
        self._changed += stretches

    def take(self) -> list[Stretch]:
        """Return the ranges and forget them."""
        taken, self._changed = self._changed, []
        return taken


class RunWatches:
    """The watches of one group's runs."""

    def __init__(self) -> None:
        self._watches: WeakSet[RunWatch] = WeakSet()

    def add(self) -> RunWatch:
        """Record changes for as long as the caller keeps the watch."""
        watch = RunWatch()
        self._watches.add(watch)
        return watch

    def note(self, runs: Iterable[Run]) -> bool:
        """Report runs that are written or deleted; return False if no watch exists any more."""
        if not self._watches:
            return False
        stretches = [(run.anchor, run.ids[-1]) for run in runs]
        for watch in self._watches:
            watch.note(stretches)
        return True


Owner = bytes | None
"""A consumer's name; None for runs without an owner (XNACK)."""


def owner_of(run: Run) -> Owner:
    return None if run.rank else run.owner


@dataclass(slots=True)
class Share:
    """The runs of one owner."""

    anchors: list[PackedID] = field(default_factory=list)
    pending: int = 0
    """The number of their IDs."""


@dataclass(slots=True)
class RunIndex:
    """The runs of a group by delivery time and by owner."""

    times: list[bytes]
    """The ``times_suffix`` of every run, sorted."""
    shares: dict[Owner, Share]
    pending: int

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "RunIndex":
        """Return the index of runs in the order of their anchors."""
        index = cls([], {}, 0)
        for run in runs:
            index.times.append(run.times_suffix)
            index.share(run).anchors.append(run.anchor)
            index.count(run, len(run.ids))
        index.times.sort()
        return index

    def share(self, run: Run) -> Share:
        return self.shares.setdefault(owner_of(run), Share())

    def count(self, run: Run, change: int) -> None:
        """Add to the number of IDs that the owner of a run has."""
        self.shares[owner_of(run)].pending += change
        self.pending += change

    def add(self, run: Run) -> None:
        insort(self.times, run.times_suffix)
        insort(self.share(run).anchors, run.anchor)
        self.count(run, len(run.ids))

    def add_all(self, runs: list[Run]) -> None:
        """Add many runs."""
        if len(runs) * SPARSE < len(self.times):
            for run in runs:
                self.add(run)
            return
        self.times += [run.times_suffix for run in runs]
        self.times.sort()
        touched = {owner_of(run): self.share(run) for run in runs}
        for run in runs:
            touched[owner_of(run)].anchors.append(run.anchor)
            self.count(run, len(run.ids))
        for share in touched.values():
            share.anchors.sort()

    def remove(self, run: Run) -> None:
        self.count(run, -len(run.ids))
        owner = owner_of(run)
        anchors = self.shares[owner].anchors
        del anchors[bisect_left(anchors, run.anchor)]
        del self.times[bisect_left(self.times, run.times_suffix)]
        if not anchors:
            del self.shares[owner]

    def remove_all(self, runs: list[Run]) -> None:
        """Remove many runs."""
        if len(runs) * SPARSE < len(self.times):
            for run in runs:
                self.remove(run)
            return
        gone: dict[Owner, set[PackedID]] = {}
        for run in runs:
            self.count(run, -len(run.ids))
            gone.setdefault(owner_of(run), set()).add(run.anchor)
        times = {run.times_suffix for run in runs}
        self.times[:] = [suffix for suffix in self.times if suffix not in times]
        for owner, anchors in gone.items():
            share = self.shares[owner]
            share.anchors[:] = [anchor for anchor in share.anchors if anchor not in anchors]
            if not share.anchors:
                del self.shares[owner]

    def replace(self, old: list[Run], new: list[Run]) -> None:
        """Replace runs by others."""
        if (len(old) + len(new)) * SPARSE < len(self.times):
            self.remove_all(old)
            self.add_all(new)
            return
        gone = set(map(_suffix, old))
        times = [suffix for suffix in self.times if suffix not in gone]
        times += map(_suffix, new)
        times.sort()
        self.times[:] = times
        olds, news = _by_owner(old), _by_owner(new)
        for owner in olds.keys() | news.keys():
            mine, others = news.get(owner, []), {run.anchor for run in olds.get(owner, ())}
            share = self.shares.setdefault(owner, Share())
            anchors = [anchor for anchor in share.anchors if anchor not in others]
            anchors += [run.anchor for run in mine]
            anchors.sort()
            share.anchors[:] = anchors
            change = sum([len(run.ids) for run in mine])
            change -= sum([len(run.ids) for run in olds.get(owner, ())])
            share.pending += change
            self.pending += change
            if not anchors:
                del self.shares[owner]

    def pending_with(self, owner: Owner) -> int:
        share = self.shares.get(owner)
        return 0 if share is None else share.pending

    def by_time(self, start: bytes = b"") -> Iterator[bytes]:
        """Yield the suffixes from ``start`` on, oldest first; those already yielded may change."""
        return _following(self.times, start)

    def anchors_of(self, owner: Owner, start: PackedID) -> Iterator[PackedID]:
        """Yield the anchors of an owner's runs from the last one at or below ``start`` on."""
        share = self.shares.get(owner)
        if share is None:
            return iter(())
        at = bisect_right(share.anchors, start)
        return _following(share.anchors, share.anchors[at - 1] if at else start)


_suffix = attrgetter("times_suffix")


def _by_owner(runs: list[Run]) -> dict[Owner, list[Run]]:
    found: dict[Owner, list[Run]] = {}
    for run in runs:
        found.setdefault(owner_of(run), []).append(run)
    return found


def _following(keys: list[bytes], start: bytes) -> Iterator[bytes]:
    while (at := bisect_left(keys, start)) < len(keys):
        key = keys[at]
        yield key
        start = key + b"\x00"
