"""XDEL, XDELEX and XACKDEL of very many IDs, in steps between which others go on.

Steps look which of the entries are there. What others delete meanwhile is told
(meta/erasures.py), what they trim lies before the stream's first entry, and IDs above its last one
are looked at once it has got so far. The last step deletes, in one commit.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kvstream.ids import StreamID, ascending
from kvstream.meta.erasures import ErasureWatch
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.operations.delete import Live
from kvstream.operations.witness import STEP_ROWS, TRIES

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
