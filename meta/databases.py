"""Which number the rows of each database bear: SWAPDB exchanges two numbers, and moves no row.

::

    swapped row := "D" -> (db(u16) stored(u16))*

The row names the databases that bear another number than their own, in order, and goes when there
is none. A *name*, as callers have it, opens with the number that clients select; a *stored* name,
that of rows and metadata objects, with the number that the database bears.
"""

from struct import Struct
from struct import error as StructError

from kvstream.errors import Corruption
from kvstream.layout.keys import SWAPPED_KEY, database_of, key_of, qualified
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

_PAIR = Struct(">HH")
_METADATA = Family.METADATA


def decode_swapped(value: bytes | None) -> dict[int, int]:
    """Return the stored number of each database that bears another than its own."""
    try:
        pairs = list(_PAIR.iter_unpack(value or b""))
    except StructError:
        pairs = [(0, 0)]
    numbers: dict[int, int] = dict(pairs)
    ordered = [db for db, _ in pairs] == sorted(numbers)
    if not ordered or value == b"" or sorted(numbers.values()) != sorted(numbers):
        raise Corruption("the row of swapped databases is damaged")
    if any(db == stored for db, stored in pairs):
        raise Corruption("the row of swapped databases names one that is not swapped")
    return numbers


def encode_swapped(numbers: dict[int, int]) -> bytes:
    return b"".join(_PAIR.pack(*pair) for pair in sorted(numbers.items()))


class Databases:
    """The numbers that databases bear."""

    def __init__(self) -> None:
        self._stored: dict[int, int] | None = None
        """Of those that bear another than their own; None: to be read."""
        self._shown: dict[int, int] = {}
        """The reverse of it."""

    def _load(self, txn: Txn) -> dict[int, int]:
        self._note(decode_swapped(txn.batch.get(_METADATA, SWAPPED_KEY)))
        return self._stored or {}

    def _note(self, numbers: dict[int, int]) -> None:
        self._stored = numbers
        self._shown = {stored: db for db, stored in numbers.items()}

    def stored(self, txn: Txn, db: int) -> int:
        """Return the number that a database bears."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return numbers.get(db, db)

    def shown(self, txn: Txn, stored: int) -> int:
        """Return the database that bears a number."""
        if self._stored is None:
            self._load(txn)
        return self._shown.get(stored, stored)

    def stored_name(self, txn: Txn, name: bytes) -> bytes:
        """Return the stored form of a name."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return qualified(self.stored(txn, database_of(name)), key_of(name)) if numbers else name

    def shown_name(self, txn: Txn, name: bytes) -> bytes:
        """Return what callers call a stored name."""
        numbers = self._load(txn) if self._stored is None else self._stored
        return qualified(self.shown(txn, database_of(name)), key_of(name)) if numbers else name

    def swap(self, txn: Txn, one: int, other: int) -> None:
        """Let two databases bear each other's numbers."""
        numbers = dict(self._load(txn) if self._stored is None else self._stored)
        numbers[one], numbers[other] = numbers.get(other, other), numbers.get(one, one)
        numbers = {db: stored for db, stored in numbers.items() if db != stored}
        self._note(numbers)
        if numbers:
            txn.batch.put(_METADATA, SWAPPED_KEY, encode_swapped(numbers))
        else:
            txn.batch.delete(_METADATA, SWAPPED_KEY)

    def forget(self) -> None:
        """Have the row read again."""
        self._stored, self._shown = None, {}
