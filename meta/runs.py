"""Runs of a group's pending entries: their bytes, their indexes in memory, and watches of changes.

A run is a piece of a group's pending entries list that one consumer got at one time: IDs in
ascending order that share owner, delivery time and delivery count::

    run   := time_ms(u64) deliveries(u64) rank(u64) owner_length(u32) owner id*
    times := time_ms(u64) rank(u64) anchor(id)                the run's suffix in the times tree

A group with few runs has its indexes by time and owner in memory alone (``RunIndex``), built from
the runs on first use and updated from then on. Their counts take the place of counters on disk; the
order of the runs is built when a command first needs it. A ``RunWatch`` records what changes while
a long command reads the runs in steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from weakref import WeakSet

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta.trees import SortedKeys, Tree
from kvstream.types.images import PackedID
from kvstream.types.thresholds import Thresholds

_HEAD = Struct(">QQQI")
_TIME = Struct(">QQ")
TIME_BYTES = _TIME.size
HELD_MS = (1 << 63) - 1
"""The time of entries that wait for another of their key, not for a time."""
HEAD_BYTES = _HEAD.size


class Run(NamedTuple):
    """IDs that share owner, delivery time and count."""

    anchor: PackedID
    """The first ID that the run ever had: its key."""
    packed: bytes
    """The IDs in ascending order, ID_BYTES each."""
    owner: bytes
    time_ms: int
    deliveries: int
    rank: int = 0
    """The place in the queue of entries without an owner (XNACK); 0 if it has an owner."""

    @classmethod
    def of(cls, ids: Sequence[PackedID], shared: "Shared") -> "Run":
        """Return a run of IDs in ascending order, whose key is the first of them."""
        return new_run((ids[0], b"".join(ids), *shared))

    @property
    def ids(self) -> list[PackedID]:
        """The IDs, in a new list."""
        packed = self.packed
        return [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]

    @property
    def length(self) -> int:
        """The number of IDs."""
        return len(self.packed) // ID_BYTES

    @property
    def last(self) -> PackedID:
        """The greatest ID."""
        return self.packed[-ID_BYTES:]

    @property
    def shared(self) -> "Shared":
        return self[2:]

    def has(self, eid: PackedID) -> bool:
        return offset_of(self.packed, eid) >= 0

    @property
    def owned(self) -> bool:
        return self.rank == 0

    @property
    def waits(self) -> bool:
        """Whether it was given back and is not ready yet; ``time_ms`` is when it will be."""
        return self.rank > 0 and self.time_ms > 0

    def encode(self) -> bytes:
        _, packed, owner, time_ms, deliveries, rank = self
        return _HEAD.pack(time_ms, deliveries, rank, len(owner)) + owner + packed

    @classmethod
    def decode(cls, anchor: PackedID, value: bytes) -> "Run":
        try:
            time_ms, deliveries, rank, length = _HEAD.unpack_from(value)
        except StructError as error:
            raise _damage_error(anchor) from error
        start = HEAD_BYTES + length
        packed = value[start:]
        if not packed or len(packed) % ID_BYTES:
            raise _damage_error(anchor)
        return new_run((anchor, packed, value[HEAD_BYTES:start], time_ms, deliveries, rank))

    @property
    def times_suffix(self) -> bytes:
        """The key of the run in the times tree."""
        return _TIME.pack(self[3], self[5]) + self[0]


def offset_of(packed: bytes, eid: PackedID) -> int:
    """Return where an ID begins among packed ones; -1 if it is not there."""
    at = packed.find(eid)
    while at > 0 and at % ID_BYTES:  # the end of one ID and the beginning of the next
        at = packed.find(eid, at + 1)
    return at


def run_tree(tree_id: int, sizes: Thresholds, new: bool = False) -> Tree[Run]:
    """Return a tree of runs."""
    return Tree(tree_id, Run.decode, Run.encode, sizes, new)


Shared = tuple[bytes, int, int, int]
"""What all IDs of a run share: owner, time, deliveries and rank."""

new_run = partial(tuple.__new__, Run)
"""Return a Run of its six parts without running Python code."""


def _damage_error(anchor: PackedID) -> Corruption:
    return Corruption(f"the run of pending entries at {anchor.hex()} is damaged")


OWNED_FIRST = _TIME.pack(1, 0)
"""Sorts after the suffixes of runs without an owner, and before all others."""


def time_of(times_suffix: bytes) -> int:
    """Return the delivery time with which a key of the times tree begins."""
    return int(_TIME.unpack_from(times_suffix)[0])


def time_and_rank(times_suffix: bytes) -> tuple[int, int]:
    """Return the time and rank with which a key of the times tree begins."""
    return _TIME.unpack_from(times_suffix)


def first_waiting(time_ms: int) -> bytes:
    """Return what sorts before the keys of runs that wait for a time, and after earlier ones."""
    return _TIME.pack(time_ms, 1)


Stretch = tuple[PackedID, PackedID]
"""From a run's anchor to its last ID."""


class RunWatch:
    """The ranges in which runs of one group changed since the last call of ``take``."""

    def __init__(self) -> None:
        self._changed: list[Stretch] = []

    def record(self, stretches: list[Stretch]) -> None:
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

    def report(self, runs: Iterable[Run]) -> bool:
        """Report runs that are written or deleted; return False if no watch exists any more."""
        if not self._watches:
            return False
        stretches = [(run.anchor, run.last) for run in runs]
        for watch in self._watches:
            watch.record(stretches)
        return True


Owner = bytes | None
"""A consumer's name; None for runs without an owner (XNACK)."""


def owner_of(run: Run) -> Owner:
    return None if run.rank else run.owner


@dataclass(slots=True)
class Share:
    """The runs of one owner."""

    anchors: SortedKeys
    pending: int = 0
    """The number of their IDs."""


@dataclass(slots=True)
class RunIndex:
    """The runs of a group by delivery time and by owner."""

    times: SortedKeys
    """The ``times_suffix`` of every run."""
    shares: dict[Owner, Share]
    pending: int
    sizes: Thresholds
    is_ordered: bool = False
    """Whether ``times`` and the anchors of the owners are kept, and not the counts alone."""

    @classmethod
    def of(cls, sizes: Thresholds, runs: Iterable[Run], ordered: bool = False) -> "RunIndex":
        """Return the index of runs."""
        index = cls(SortedKeys(sizes), {}, 0, sizes, ordered)
        index.add_all(list(runs))
        return index

    def count(self, run: Run, change: int) -> None:
        """Add to the number of IDs that the owner of a run has."""
        self.shares[owner_of(run)].pending += change
        self.pending += change

    def add(self, run: Run) -> None:
        owner = owner_of(run)
        share = self.shares.get(owner)
        if share is None:
            share = self.shares[owner] = Share(SortedKeys(self.sizes))
        count = run.length
        share.pending += count
        self.pending += count
        if self.is_ordered:
            share.anchors.add(run.anchor)
            self.times.add(run.times_suffix)

    def add_all(self, runs: list[Run]) -> None:
        """Add many runs."""
        if self.is_ordered:
            self.times.add_all([run.times_suffix for run in runs])
        for owner, anchors, count in _by_owner(runs):
            share = self.shares.get(owner)
            if share is None:
                share = self.shares[owner] = Share(SortedKeys(self.sizes))
            if self.is_ordered:
                share.anchors.add_all(anchors)
            share.pending += count
            self.pending += count

    def remove(self, run: Run) -> None:
        owner, count = owner_of(run), run.length
        share = self.shares[owner]
        share.pending -= count
        self.pending -= count
        if self.is_ordered:
            share.anchors.remove(run.anchor)
            self.times.remove(run.times_suffix)
        if not share.pending:
            del self.shares[owner]

    def remove_all(self, runs: list[Run]) -> None:
        """Remove many runs."""
        if self.is_ordered:
            self.times.remove_all([run.times_suffix for run in runs])
        for owner, anchors, count in _by_owner(runs):
            share = self.shares[owner]
            if self.is_ordered:
                share.anchors.remove_all(anchors)
            share.pending -= count
            self.pending -= count
            if not share.pending:
                del self.shares[owner]

    def pending_with(self, owner: Owner) -> int:
        share = self.shares.get(owner)
        return 0 if share is None else share.pending

    def by_time(self, start: bytes) -> Iterator[bytes]:
        """Yield the suffixes from ``start`` on, oldest first; those already yielded may change."""
        return self.times.scan(start)

    def anchors_of(self, owner: Owner, start: PackedID) -> Iterator[PackedID]:
        """Yield the anchors of an owner's runs from the last one at or below ``start`` on."""
        share = self.shares.get(owner)
        if share is None:
            return iter(())
        return share.anchors.scan(share.anchors.floor(start) or start)


def _by_owner(runs: list[Run]) -> Iterator[tuple[Owner, list[PackedID], int]]:
    """Yield each owner, the anchors of its runs, and the number of their IDs."""
    runs_of_owner: defaultdict[Owner, list[Run]] = defaultdict(list)
    for run in runs:
        runs_of_owner[None if run[5] else run[2]].append(run)
    for owner, owned in runs_of_owner.items():
        yield owner, [run[0] for run in owned], sum([run.length for run in owned])
