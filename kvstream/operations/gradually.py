"""XREADGROUP of very many entries, in steps between which others go on.

Rows are read step by step, and nothing is changed. The last step holds what was seen against what
is there by then, and then does all at once: so the command happens in its last step, whole. What
others have taken, trimmed or moved meanwhile is left to them.
"""

from bisect import bisect_left
from operator import itemgetter

from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.layout.rows import Rows
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID
from kvstream.meta.txn import Txn
from kvstream.operations import deliver, entries
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.operations.lag import lag
from kvstream.operations.reads import Reply
from kvstream.operations.witness import LONG_ROWS, STEP_ROWS, TRIES, Witness
from kvstream.storage.batch import Row

_LAST = MAX_ID.packed
_ANEW_MAX = 16
"""Runs that are looked at once more in the last step, because they have changed."""


class LongDelivery:
    """XREADGROUP of new entries of one stream."""

    def __init__(
        self, name: bytes, group: bytes, consumer: bytes, count: int | None, noack: bool
    ) -> None:
        self._name, self._group, self._consumer = name, group, consumer
        self._count, self._noack = count, noack
        self._seen: Witness | None = None
        self._after = MIN_ID
        """What the group had been given when it was last looked at."""
        self._rows: list[Row] = []
        self._ids: list[PackedID] = []
        self._size = 0
        self._tries = 0

    def step(self, txn: Txn) -> Reply | None:
        """Read on; return what was delivered once that is done, None before."""
        stream, group = group_of_key(txn, self._name, self._group, deliver.WHERE)
        if self._seen is None or not self._holds(stream, group):
            self._begin(stream)
        if self._tries > TRIES:
            wanted = [(self._name, deliver.NEW)]
            return deliver.read_group(
                txn, self._group, self._consumer, wanted, self._count, self._noack
            )
        self._after = group.last_delivered
        self._cut(stream)
        room = txn.catalog.limits.reply_left
        if self._read(txn, stream, room):
            return None
        while room and self._size > room and len(self._rows) > 1:
            self._size -= entries.memory_of([self._rows.pop()])
            self._ids.pop()
        member = consumer_of(txn, group, self._consumer)
        found = Rows(self._rows, len(stream.prefix))
        if found:
            deliver.give(txn, stream, group, member, self._ids, self._noack)
        return [(self._name, found)] if found else []

    def _holds(self, stream: StreamMeta, group: GroupMeta) -> bool:
        """Tell whether nothing was deleted, and the group not moved back."""
        assert self._seen is not None
        return self._seen.holds(stream) and group.last_delivered >= self._after

    def _begin(self, stream: StreamMeta) -> None:
        self._seen = Witness.of(stream)
        self._rows, self._ids, self._size = [], [], 0
        self._tries += 1

    def _cut(self, stream: StreamMeta) -> None:
        """Forget what others were given meanwhile, and what was trimmed."""
        if not stream.length:
            self._rows, self._ids, self._size = [], [], 0
        bound = stream.prefix + max(self._after.next(), stream.first).packed
        if self._rows and self._rows[0][0] < bound:
            gone = bisect_left(self._rows, bound, key=itemgetter(0))
            self._size -= entries.memory_of(self._rows[:gone])
            del self._rows[:gone], self._ids[:gone]

    def _read(self, txn: Txn, stream: StreamMeta, room: int) -> bool:
        """Read what comes next; return whether there may be more to be read."""
        left = STEP_ROWS if self._count is None else self._count - len(self._rows)
        if left <= 0 or (room and self._size > room):
            return False
        after = StreamID.unpack(self._ids[-1]) if self._ids else self._after
        if after >= stream.last:
            return False
        page = entries.rows(txn, stream, after.next(), MAX_ID, min(left, STEP_ROWS))
        self._ids += Rows(page, len(stream.prefix)).packed_ids()  # refuses what is damaged
        self._rows += page
        self._size += entries.memory_of(page)
        return len(page) == STEP_ROWS


def delivers_many(txn: Txn, name: bytes, group: bytes, count: int | None) -> bool:
    """Tell whether XREADGROUP may have very many new entries to give."""
    if count is not None and count <= LONG_ROWS:
        return False
    stream, found = group_of_key(txn, name, group, deliver.WHERE)
    if stream.length <= LONG_ROWS or found.last_delivered >= stream.last:
        return False
    behind = lag(stream, found)
    return behind is None or behind > LONG_ROWS
