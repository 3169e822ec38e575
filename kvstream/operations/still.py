"""A stream's groups as they are in one moment, to be looked at one by one while others go on.

They are read from the rows of that moment, and decoded into objects that nobody else has: in time
for each that what it has takes, and none for all of them together. Of those that have so many runs
in memory that reading them anew would take long, these are copied.
"""

from collections.abc import Iterator
from copy import copy

from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta import presence
from kvstream.meta.records import ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.run_index import RunIndex, Share
from kvstream.meta.runs import Run
from kvstream.meta.trees import SortedRows
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Row
from kvstream.storage.still import Still

MANY_GROUPS = 100
"""Groups from which on they are looked at one by one."""
COPIED_RUNS = 256
"""A group that has more runs in memory is copied."""
_TREES = Family.TREES


class StillGroups:
    """The groups of a stream as they are when this is made, in a transaction of no change."""

    def __init__(self, txn: Txn, stream: StreamMeta) -> None:
        self.stream = copy(stream)
        self.stream.groups = {}
        rows = Still(txn.batch.committed, (_TREES,))
        self.txn = Txn(rows, txn.catalog, txn.now_ms, read_only=True)
        """What they are to be looked at in; its catalog is for what belongs to them alone."""
        self._seen = {row: consumer.seen_ms for row, consumer in txn.catalog.seen.items()}
        """What consumers have been seen at is not written at once."""
        self._copies = {
            name: _copied(group)
            for name, group in stream.groups.items()
            if group.runs.memory is not None and len(group.runs.memory.keys) > COPIED_RUNS
        }

    def __len__(self) -> int:
        return self.stream.groups_count

    def __iter__(self) -> Iterator[GroupMeta]:
        for row, record in self._rows(self.stream.groups_tree):
            name = row[8:]
            group = GroupMeta.decode(name, row, record)
            found = self._copies.pop(name, None)
            if found is not None:
                group.runs.memory, group.index = found
            for row, record in self._rows(group.consumers_tree):
                consumer = ConsumerMeta.decode(row[8:], row, record)
                presence.recall(group, consumer)
                consumer.seen_ms = self._seen.get(row, consumer.seen_ms)
                group.consumers[consumer.name] = consumer
            yield group

    def _rows(self, tree: int) -> Iterator[Row]:
        prefix = tree_prefix(tree)
        return self.txn.batch.scan(_TREES, prefix, successor(prefix)) if tree else iter(())


def _copied(group: GroupMeta) -> tuple[SortedRows[Run], RunIndex | None]:
    """Return the runs of a group that are in memory, and their index where it was made."""
    index = group.index
    if index is not None:
        shares = index.shares.items()
        copies = {owner: Share(share.anchors.copy(), share.pending) for owner, share in shares}
        index = RunIndex(index.times.copy(), copies, index.pending)
    memory = group.runs.memory
    assert memory is not None
    return SortedRows({key: memory.items[key] for key in memory.keys}), index
