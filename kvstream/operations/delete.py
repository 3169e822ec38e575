"""XDEL and XDELEX.

XDEL, XDELEX and XACKDEL of very many IDs, in steps between which others go on.

Steps look which of the entries are there. What others delete meanwhile is told
(meta/catalog.py), what they trim lies before the stream's first entry, and IDs above its last one
are looked at once it has got so far. The last step deletes, in one commit.

Whether what a long command has seen of a stream still holds.

Such a command looks at a stream bit by bit, while others change it. Entries are only ever appended,
taken away at the head, or deleted: what was seen is true but for what lies before the first, unless
something was deleted, or the last ID set back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Self, TypeVar

from kvstream.meta.catalog import ErasureWatch
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.entries import exists, live
from kvstream.operations.trim import RefPolicy, drop_references, referenced, remove_entries
from kvstream.types.ids import StreamID, ascending

LONG_ROWS = 2000
"""Entries, some milliseconds of work, from which on a command is done bit by bit."""
STEP_ROWS = 500
"""Entries that one step is about: half a millisecond or so."""
TRIES = 3
"""So often a command begins anew, and then it is done in one go."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A stream as it was when something began to look at it."""

    stream: StreamMeta
    erased: int

    @classmethod
    def of(cls, stream: StreamMeta) -> Self:
        return cls(stream, stream.erased)

    def holds(self, stream: StreamMeta) -> bool:
        """Tell whether what was seen of the stream is still so."""
        return stream is self.stream and stream.erased == self.erased


Live = Callable[[Txn, StreamMeta, list[StreamID]], list[StreamID]]
"""What tells which of some IDs, ascending and distinct, are live."""


class Outcome(IntEnum):
    """What XDELEX and XACKDEL answer for one ID."""

    MISSING = -1
    """No such entry; for XACKDEL: not pending in the group."""
    DELETED = 1
    KEPT = 2
    """Still referred to by a group, so ACKED left it."""


def delete(txn: Txn, name: bytes, ids: Sequence[StreamID], live: Live = live) -> int:
    """Delete entries and return how many there were; an ID given twice counts once."""
    stream = txn.stream(name)
    if stream is None:
        return 0
    txn.frees = True
    if len(ids) == 1:
        doomed = list(ids) if exists(txn, stream, ids[0]) else []
    else:
        doomed = live(txn, stream, ascending(ids))
    erase(txn, stream, doomed)
    return len(doomed)


def delete_with_policy(
    txn: Txn, name: bytes, ids: Sequence[StreamID], policy: RefPolicy, live: Live = live
) -> list[Outcome]:
    """Delete entries as XDELEX does, and tell for each ID what became of it.

    DELREF clears the groups' references of every ID given, also where the entry is gone already.
    """
    stream = txn.stream(name)
    if stream is None:
        return [Outcome.MISSING] * len(ids)
    txn.frees = True
    distinct = ascending(ids)
    kept = referenced(txn, stream, distinct) if policy is RefPolicy.ACKED else frozenset()
    doomed = delete_but(txn, stream, distinct, kept, live)
    if policy is RefPolicy.DELREF:
        drop_references(txn, stream, distinct)
    if len(doomed) == len(ids):
        return [Outcome.DELETED] * len(ids)
    outcomes = dict.fromkeys(kept, Outcome.KEPT) | dict.fromkeys(doomed, Outcome.DELETED)
    found = [outcomes.get(eid, Outcome.MISSING) for eid in ids]
    if len(distinct) < len(ids):
        _note_repeated(ids, found)
    return found


def delete_but(
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
    kept: Set[StreamID],
    live: Live = live,
) -> list[StreamID]:
    """Delete those of ``ids``, ascending and distinct, that are there and not to be kept."""
    doomed = live(txn, stream, [eid for eid in ids if eid not in kept] if kept else ids)
    erase(txn, stream, doomed)
    return doomed


def _note_repeated(ids: Sequence[StreamID], outcomes: list[Outcome]) -> None:
    """Have an ID that was deleted be missing where it is given again."""
    seen: set[StreamID] = set()
    for at, eid in enumerate(ids):
        if eid in seen and outcomes[at] is Outcome.DELETED:
            outcomes[at] = Outcome.MISSING
        seen.add(eid)


def erase(txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> None:
    """Delete live entries, in ascending order, and remember the greatest of them as deleted."""
    if not ids:
        return
    remove_entries(txn, stream, ids)
    top = ids[-1]
    if top > stream.max_deleted:
        stream.max_deleted = top
        txn.reshaped(stream)


T = TypeVar("T")


class LongErasure(Generic[T]):
    """What deletes some IDs of one stream. It happens in its last step."""

    def __init__(
        self, name: bytes, ids: Sequence[StreamID], operation: Callable[[Txn, Live], T]
    ) -> None:
        """``operation`` does it all, and asks its second argument which entries are there."""
        self._name, self._operation = name, operation
        self._ids = ascending(ids)
        self._watch: ErasureWatch | None = None
        self._tries = 0

    def step(self, txn: Txn) -> T | None:
        """Look on; return what the operation does once all is looked at, None before."""
        stream = txn.stream(self._name)
        if stream is None:
            return self._operation(txn, entries.live)
        if self._watch is None or not self._watch.holds(stream):
            self._begin(txn, stream)
        if self._tries > TRIES:
            return self._operation(txn, entries.live)
        if self._look(txn, stream):
            return None
        return self._operation(txn, self._found_live)

    def _begin(self, txn: Txn, stream: StreamMeta) -> None:
        self._watch = txn.catalog.erasures.watch(stream)
        self._tries += 1
        self._next = 0
        """The first ID that has not been looked at."""
        self._found: list[StreamID] = []

    def _look(self, txn: Txn, stream: StreamMeta) -> bool:
        """Look at the IDs that come next; return whether there are more."""
        end = bisect_right(self._ids, stream.last, self._next)
        some = self._ids[self._next : min(end, self._next + STEP_ROWS)]
        self._found += entries.live(txn, stream, some)
        self._next += len(some)
        return self._next < end

    def _found_live(self, txn: Txn, stream: StreamMeta, ids: list[StreamID]) -> list[StreamID]:
        """Return those of ``ids``, which are some of those looked at, that are live."""
        assert self._watch is not None
        if not stream.length:
            return []
        gone = self._watch.erased()
        found = self._found[bisect_left(self._found, stream.first) :]
        if gone:
            found = [eid for eid in found if eid not in gone]
        if len(ids) == len(self._ids):
            return found
        wanted = set(ids)
        return [eid for eid in found if eid in wanted]
