"""What was under way when the store was last closed or killed: for when it is opened.

Entries that tables have brought and no commit has counted must not count, and leave first; where
even that cannot be written, because the disk is full or the store is only read, they are passed
over. What loads have left that nobody goes on with leaves after them.
"""

from collections.abc import Callable
from contextlib import suppress

from kvstream.errors import Corruption, StoreError
from kvstream.meta import intake
from kvstream.meta.txn import Txn
from kvstream.operations import staging


def recover(commit: Callable[[Callable[[Txn], None]], None], read_only: bool) -> None:
    """Have the store as it was before; ``commit`` runs a step as one commit."""
    commit(hold)
    if not read_only:
        with suppress(StoreError, Corruption):  # a full disk can wait; check tells of damage
            undo(commit)
            commit(staging.sweep)


def hold(txn: Txn) -> None:
    """Have nothing counted that tables have brought and no commit has counted."""
    txn.catalog.held = set()
    with suppress(Corruption):
        txn.catalog.held = {each.prefix for each in intake.pending(txn)}


def undo(commit: Callable[[Callable[[Txn], None]], None]) -> None:
    """Delete what tables have brought and no commit has counted."""
    commit(intake.undo)
    commit(hold)
