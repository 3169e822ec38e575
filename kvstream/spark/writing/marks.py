"""The mark that makes a commit happen once: the last transaction of a writer, beside its data.

A streaming query is a writer whose transactions are its batches; a batch write may name its own.
The mark is a plain string in the database that is written to, put in the same commit as the rows,
so it tells in every failure whether they are there. One row a writer: the last number alone.
"""

from typing import NamedTuple

from kvstream.errors import Corruption

MARK_PREFIX = b"kvstream:spark:"
"""Opens the names of marks."""


class Transaction(NamedTuple):
    """What must not happen twice."""

    writer: str
    """The ID of a query, or what a batch write calls itself."""
    number: int
    """It rises; what is not above the mark has been done."""

    @property
    def key(self) -> bytes:
        return MARK_PREFIX + self.writer.encode()

    @property
    def value(self) -> bytes:
        return b"%d" % self.number

    def is_done(self, mark: bytes | None) -> bool:
        """Tell whether a store with such a mark has this transaction."""
        if mark is None:
            return False
        try:
            return int(mark) >= self.number
        except ValueError:
            raise Corruption(f"{self.key!r} holds no number, but {mark[:60]!r}") from None
