"""XREADGROUP and XAUTOCLAIM of very many entries, in steps between which others go on.

Rows are read step by step, and nothing is changed. The last step holds what was seen against what
is there by then, and then does all at once: so the command happens in its last step, whole. What
others have taken, trimmed or moved meanwhile is left to them.
"""

from bisect import bisect_left
from operator import itemgetter
from typing import NamedTuple

from kvstream.ids import MAX_ID, MIN_ID, StreamID
from kvstream.layout.rows import Rows
from kvstream.meta.pending import ids_between, runs_from
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import PackedID, Run
from kvstream.meta.txn import Txn
from kvstream.operations import claims, deliver, entries
from kvstream.operations.claims import Taken
from kvstream.operations.groups import consumer_of, group_of_key
from kvstream.operations.hauls import Haul
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
        room = txn.catalog.limits.reply_max
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


class LongAutoclaim:
    """XAUTOCLAIM of many entries."""

    def __init__(
        self,
        name: bytes,
        group: bytes,
        consumer: bytes,
        min_idle_ms: int,
        start: StreamID,
        count: int,
        justid: bool,
    ) -> None:
        self._name, self._group, self._consumer = name, group, consumer
        self._min_idle_ms, self._start, self._count = min_idle_ms, start, count
        self._justid = justid
        self._seen: Witness | None = None
        self._tries = 0
        self._pieces: list[_Piece] = []
        self._bound = 0
        self._next: PackedID | None = b""
        """Where the next step begins; None: all pending entries were looked at."""
        self._found = self._attempts = 0

    def step(self, txn: Txn) -> Taken | None:
        """Look on; return what was taken over once that is done, None before."""
        stream, group = group_of_key(txn, self._name, self._group)
        if self._seen is None or not self._seen.holds(stream):
            self._begin(txn, stream)
        if self._tries <= TRIES and self._look(txn, stream, group):
            return None
        if self._tries <= TRIES and self._look_anew(txn, stream, group):
            self._seen = None
            return None
        if self._tries > TRIES:
            return claims.autoclaim(
                txn,
                self._name,
                self._group,
                self._consumer,
                self._min_idle_ms,
                self._start,
                self._count,
                self._justid,
            )
        haul = self._haul(stream)
        for *_, each in self._pieces:
            haul.rows += each.rows
            haul.moves += each.moves
            haul.gone += each.gone
        cursor = MIN_ID if self._next is None else StreamID.unpack(self._next)
        member = consumer_of(txn, group, self._consumer)
        return claims.taken_over(txn, group, member, haul, cursor)

    def _begin(self, txn: Txn, stream: StreamMeta) -> None:
        self._seen = Witness.of(stream)
        self._tries += 1
        self._pieces, self._next, self._found = [], self._start.packed, 0
        self._attempts = self._count * claims.ATTEMPTS_PER_COUNT
        self._bound = claims.idle_bound(txn, self._min_idle_ms)

    def _haul(self, stream: StreamMeta) -> Haul:
        return Haul(stream, self._bound, None, self._justid)

    def _look(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> bool:
        """Look at what comes next; return whether there may be more to be looked at."""
        start = self._next
        if start is None or not (self._left and self._attempts):
            return False
        looked = 0
        for run in runs_from(txn, group, start):
            ids = ids_between(run, start, _LAST)
            at = 0
            while at < len(ids):
                self._next = ids[at]
                if not (self._left and self._attempts):
                    return False
                if looked >= STEP_ROWS:
                    return True
                haul = self._haul(stream)
                some = haul.look(txn, run, ids[at : at + self._attempts], self._left)
                self._pieces.append(_Piece(run, ids[at], ids[at + some - 1], haul))
                at, looked = at + some, looked + some
                self._attempts -= some
                self._found += len(haul.rows) + len(haul.gone)
        self._next = None
        return False

    @property
    def _left(self) -> int:
        return self._count - self._found

    def _look_anew(self, txn: Txn, stream: StreamMeta, group: GroupMeta) -> bool:
        """Look again at runs that others have changed; return whether those are too many."""
        runs, batch, first = group.runs, txn.batch, stream.first.packed
        changed = {
            at for at, (run, *_) in enumerate(self._pieces) if runs.get(batch, run.anchor) != run
        }
        if len(changed) > _ANEW_MAX:
            return True
        for at, piece in enumerate(self._pieces):
            if at not in changed and stream.length and piece.first >= first:
                continue
            haul = self._haul(stream)
            seen = frozenset(ids_between(piece.run, piece.first, piece.last))
            for run in runs_from(txn, group, piece.first):  # a claim may have split it
                if run.anchor > piece.last:
                    break
                ids = [eid for eid in ids_between(run, piece.first, piece.last) if eid in seen]
                if ids:
                    haul.look(txn, run, ids)
            self._pieces[at] = piece._replace(haul=haul)
        return False


class _Piece(NamedTuple):
    """What was found in a run, as that was then, between two IDs."""

    run: Run
    first: PackedID
    last: PackedID
    haul: Haul
