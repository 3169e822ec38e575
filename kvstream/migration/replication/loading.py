"""A snapshot of a source into the target that follows it: the route of every RDB file.

Expiry is set behind each key, as the source would set it: a key whose time has come by our clock
may be one that the source, whose clock is the one that counts, has given more time since.
"""

from collections.abc import Iterator
from pathlib import Path

from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.carrying import Manner
from kvstream.migration.items import Item, Selection, Target
from kvstream.migration.rdb_place import RdbSource
from kvstream.migration.replication.applying import NOTHING_EXPIRES
from kvstream.migration.running import run
from kvstream.migration.store_place import StoreTarget
from kvstream.operations import keyspace
from kvstream.store import Store


class SnapshotLoader:
    """Loads the followed keys of RDB files into a target that has none of them."""

    def __init__(self, target: Store | Target, selection: Selection) -> None:
        self._target = target
        self._selection = selection

    def __call__(self, snapshot: Path) -> int:
        """Load a file; return the database that the stream behind it begins in."""
        target = self._target
        if isinstance(target, Store):
            source: RdbSource = _Snapshot(snapshot, target)
            run(source, StoreTarget(target), self._selection, Manner())
        else:
            run(RdbSource(snapshot), target, self._selection, Manner(replace=True))
        return 0  # behind a snapshot a source says SELECT before its first command


class _Snapshot(RdbSource):
    """An RDB file whose keys do not expire before they are there."""

    def __init__(self, path: Path, store: Store) -> None:
        super().__init__(path)
        self._store = store

    def items(self, selection: Selection) -> Iterator[Item]:
        for item in super().items(selection):
            expire_at_ms, item.expire_at_ms = item.expire_at_ms, 0
            yield item
            if expire_at_ms:
                name = qualified(item.db, item.key)
                self._store.engine.run(set_expiry, name, expire_at_ms)


def set_expiry(txn: Txn, name: bytes, at_ms: int) -> None:
    """Let a key expire at a Unix time in milliseconds; one that is past deletes nothing."""
    txn.expiry_ms = NOTHING_EXPIRES
    if at_ms:
        keyspace.expire_at(txn, name, at_ms)
    else:
        keyspace.persist(txn, name)
