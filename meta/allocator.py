"""The numbers of generations and trees: from one persisted counter, and never given out twice.

::

    allocator row := "A" -> u64        the next number
"""

from kvstream.layout.keys import ALLOCATOR_KEY, U64, decode_number
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_METADATA = Family.METADATA


class Allocator:
    """Gives out numbers; what a transaction that failed was given is lost."""

    def __init__(self) -> None:
        self._next = 0
        """The next number to give out; 0: still to be read."""
        self._first_free = 1
        """Above every number that was given out since the store was opened, used or not."""

    def take(self, txn: Txn, count: int = 1) -> range:
        """Return so many numbers, one after the other."""
        if not self._next:
            value = txn.batch.get(_METADATA, ALLOCATOR_KEY)
            self._next = max(self._first_free, decode_number(ALLOCATOR_KEY, value, missing=1))
        first = self._next
        self._next = self._first_free = first + count
        txn.batch.put(_METADATA, ALLOCATOR_KEY, U64.pack(self._next))
        return range(first, first + count)

    def forget(self) -> None:
        """Have the row read again."""
        self._next = 0
