"""What the command stream does not tell, copied at the cut-over from a source that stands still.

That is: when consumers were seen and active, reads of their own pending entries, the order of what
was given back; before Redis 7.2 how many entries a group has read; and whole keys that could not be
followed command by command.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvstream.images import ConsumerImage, GroupImage, PendingImage, PendingTable, StreamState
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.carrying import Manner, Outcome, carry
from kvstream.migration.items import CARRIED, STREAM, Item, Selection, Source
from kvstream.migration.paging import INEXACT_MS, PagedStream
from kvstream.migration.replication.meaning import Name
from kvstream.migration.running import run
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.server_target import ServerTarget
from kvstream.migration.store_place import StoreTarget
from kvstream.operations import keyspace
from kvstream.operations.loading import restate
from kvstream.store import Store

ACTIVE_TIMES_SINCE = (7, 2)
"""The first version of Redis that tells when a consumer was given something."""


@dataclass(slots=True)
class Settled:
    """What was copied."""

    streams: int = 0
    """Streams whose groups, counters and idempotent IDs were copied."""
    keys: int = 0
    """Keys that were copied as a whole."""


class StoreArrival:
    """A store that has followed a source, which nobody writes to any more."""

    def __init__(self, server: Server, store: Store, selection: Selection) -> None:
        self._source = ServerSource(server)
        self._tells_active = server.about.version >= ACTIVE_TIMES_SINCE
        self._store = store
        self._target = StoreTarget(store)
        self._selection = selection
        self.existing: Source = self._target.existing

    def settle(self, again: set[Name]) -> Settled:
        """Copy the state of every stream, and whole the keys of ``again``."""
        settled = Settled()
        left = set(again)
        for item in self._source.items(self._selection):
            name = item.db, item.key
            if name in left and item.kind in CARRIED:
                left.discard(name)
                self._copy(item)
                settled.keys += 1
            elif item.kind == STREAM:
                settled.streams += self._restate(item)
        for db, key in left:
            self._store.engine.run(keyspace.delete, qualified(db, key))
        return settled

    def _copy(self, item: Item) -> None:
        self._store.engine.run(keyspace.delete, qualified(item.db, item.key))
        carry(item, self._target, Manner())

    def _restate(self, item: Item) -> bool:
        ours = self.existing.item(item.db, item.key)
        if ours is None or ours.outline is None:
            return False  # verification tells
        content = item.content()
        if not isinstance(content, PagedStream):  # its state stands behind its entries
            for _ in content.nodes():
                pass
        state, before = content.state(), ours.outline().state
        if state.groups or before.groups or state.idempotency is not None:
            self._merge(state, before)
            self._store.engine.run(_restate, qualified(item.db, item.key), state)
            return True
        return False

    def _merge(self, state: StreamState, ours: StreamState) -> None:
        """Keep what we know better: moments that the source has told when they were."""
        known = {group.name: group for group in ours.groups}
        for group in state.groups:
            before = known.get(group.name)
            if before is not None:
                group.pending = _timed(group.pending, before.pending)
                if not self._tells_active:
                    group.consumers = list(_active(group, before))


class ServerArrival:
    """A server that has followed a source: each key that differs is put there anew."""

    def __init__(self, server: Server, target: Server, selection: Selection) -> None:
        self._source = ServerSource(server)
        self._served = target
        self._target = ServerTarget(target)
        self._selection = selection
        self.existing: Source = ServerSource(target)

    def settle(self, again: set[Name]) -> Settled:
        """Copy the keys that differ; ``again`` are among them, or at the source no more."""
        report = run(self._source, self._target, self._selection, Manner(replace=True))
        for db, key in again:
            if self._source.item(db, key) is None:
                self._served.connection(db).do("DEL", key)
        return Settled(keys=report.outcomes[Outcome.REPLACED] + report.outcomes[Outcome.COPIED])


def _restate(txn: Txn, name: bytes, state: StreamState) -> None:
    restate(txn, name, state)


def _active(group: GroupImage, before: GroupImage) -> Iterator[ConsumerImage]:
    known = {consumer.name: consumer.active_ms for consumer in before.consumers}
    for consumer in group.consumers:
        yield consumer._replace(active_ms=known.get(consumer.name, consumer.active_ms))


def _timed(pending: PendingTable, before: PendingTable) -> PendingTable:
    """Return pending entries, with the times of those before that are all but the same."""
    merged = PendingTable()
    known = iter(before)
    old: PendingImage | None = next(known, None)
    for each in pending:
        while old is not None and old.id < each.id:
            old = next(known, None)
        is_near = (
            old is not None and old.id == each.id and abs(old.time_ms - each.time_ms) <= INEXACT_MS
        )
        time_ms = old.time_ms if is_near and old is not None else each.time_ms
        merged.add(each.id, each.owner, time_ms, each.deliveries)
    return merged
