"""The indexes of a group's runs, by time and by owner, in memory alone; nothing of them is stored.

A group with few runs has its indexes here, built from the runs when something asks for the first
time, and kept up from then on. What they count takes the place of counters on disk.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from kvstream.meta.runs import PackedID, Run

Owner = bytes | None
"""A consumer's name; None for the runs that were given back and belong to nobody."""


def owner_of(run: Run) -> Owner:
    return None if run.rank else run.owner


@dataclass(slots=True)
class Share:
    """The runs of one owner."""

    anchors: list[PackedID] = field(default_factory=list)
    pending: int = 0
    """How many IDs they have."""


@dataclass(slots=True)
class RunIndex:
    """The runs of a group by delivery time and by owner."""

    times: list[bytes]
    """The ``times_suffix`` of every run, sorted."""
    shares: dict[Owner, Share]
    pending: int

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "RunIndex":
        """Return the index of runs that come in the order of their anchors."""
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
        """Note that the owner of a run has so many more IDs in it."""
        self.shares[owner_of(run)].pending += change
        self.pending += change

    def add(self, run: Run) -> None:
        insort(self.times, run.times_suffix)
        insort(self.share(run).anchors, run.anchor)
        self.count(run, len(run.ids))

    def add_all(self, runs: list[Run]) -> None:
        """Do the same for many."""
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
        """Do the same for many."""
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
        """Take runs out, and others in."""
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
        """Yield the suffixes from ``start`` on, oldest first; what was yielded may change."""
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
