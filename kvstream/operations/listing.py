"""Groups of a stream, or consumers of a group, that are very many: taken into memory in steps.

Nothing is changed by that. Once all are there whoever tells of them needs no row of the store.
"""

from collections.abc import Callable

from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta.indexes import pending_in
from kvstream.meta.txn import Txn
from kvstream.operations.groups import existing_group
from kvstream.storage.batch import Family

LONG_LIST = 500
"""Groups or consumers from which on that is worth it."""
STEP_MEMBERS = 100
"""Those that one step looks at: some milliseconds of work."""


class Loading:
    """Takes what the rows of a tree tell of into memory."""

    def __init__(self, tree: int, load: Callable[[Txn, bytes], object]) -> None:
        self._load = load
        self._from = tree_prefix(tree)
        self._upper = successor(self._from)

    def step(self, txn: Txn) -> bool:
        """Load on; tell whether all are loaded."""
        page = txn.batch.page(Family.TREES, self._from, self._upper, STEP_MEMBERS)
        for row, _ in page:
            self._load(txn, row[8:])
        if page:
            self._from = page[-1][0] + b"\0"
        return len(page) < STEP_MEMBERS


def groups(txn: Txn, name: bytes) -> Loading | None:
    """Return what loads the groups of a stream; None where that takes no steps."""
    stream = txn.stream(name)
    if stream is None or stream.groups_count < LONG_LIST:
        return None
    ready = [group for group in stream.groups.values() if group.indexed or group.index is not None]
    if stream.groups_count - len(ready) < LONG_LIST:
        return None

    def load(txn: Txn, name: bytes) -> None:
        group = txn.catalog.group(txn, stream, name)
        if group is not None:
            pending_in(txn, group)

    return Loading(stream.groups_tree, load)


def consumers(txn: Txn, name: bytes, group: bytes) -> Loading | None:
    """Return what loads the consumers of a group; None where that takes no steps."""
    if txn.stream(name) is None:
        return None
    _, found = existing_group(txn, name, group)
    if found.consumers_count - len(found.consumers) < LONG_LIST:
        return None

    def load(txn: Txn, name: bytes) -> None:
        txn.catalog.consumer(txn, found, name)

    return Loading(found.consumers_tree, load)
