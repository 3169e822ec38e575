"""What a commit takes: the rows that all tasks have made ready for one store, put together.

Owns the order of rows: those with IDs by ID, then those without, by partition and place in it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from kvstream.bulkload.parts import BulkTicket, Part, RowsFile
from kvstream.spark.write.gather import Share, rows_of
from kvstream.spark.write.stage import StagedRows, Transaction, order_of, pages_of, unpack_page
from kvstream.spark.write.upload import Upload


class Commit(NamedTuple):
    """One transaction into one store."""

    transaction: Transaction
    marked: bool
    """Whether the transaction leaves a mark, and is passed over where there is one already."""
    shares: Sequence[Share]
    """By partition."""
    skip_existing: bool = False
    """Leave out the rows whose IDs are not above the stream's last one, instead of refusing all."""
    ticket: BulkTicket | None = None
    """What parts were made by."""
    folder: str = ""
    """Where parts may be made by the commit itself."""
    upload: Upload | None = None
    """The load that tasks have sent files to, in place of a ticket."""

    @property
    def rows(self) -> int:
        return rows_of(self.shares)

    @property
    def parts(self) -> list[Part]:
        """The parts that tasks have made."""
        return [part for share in self.shares for part in share.spilled.parts]

    @property
    def sent(self) -> list[RowsFile]:
        """The files that tasks have sent."""
        return [file for share in self.shares for file in share.spilled.sent]

    @property
    def mark(self) -> tuple[bytes, int] | None:
        """What the commit leaves, and makes it happen once."""
        return (self.transaction.key, self.transaction.number) if self.marked else None

    def loose(self) -> list[tuple[int, list[StagedRows]]]:
        """Return the rows that tasks have not made parts of, by partition."""
        pages = [
            (share.partition, self._replace(shares=[share]).streams()) for share in self.shares
        ]
        return [(partition, streams) for partition, streams in pages if streams]

    def streams(self) -> list[StagedRows]:
        """Return the rows of all shares by stream, in their order."""
        merged: dict[bytes, StagedRows] = {}
        for staged in chain.from_iterable(map(unpack_page, _pages(self.shares))):
            merged.setdefault(staged.key, StagedRows(staged.key)).extend(staged.ids, staged.rows)
        for staged in merged.values():
            _sort(staged)
        return list(merged.values())


class Committed(NamedTuple):
    """What a commit has done."""

    done: bool
    """False: the store had this transaction already."""
    rows: int
    skipped: int = 0
    """Rows that ``skip_existing`` left out."""


def _pages(shares: Iterable[Share]) -> Iterator[bytes]:
    for share in shares:
        for file in share.spilled.files:
            yield from pages_of(file)
        yield from share.spilled.pages
        if share.page:
            yield share.page


def _sort(staged: StagedRows) -> None:
    if not staged.ids:
        return
    keys = list(map(order_of, staged.ids))
    if all(one <= other for one, other in pairwise(keys)):
        return
    order = sorted(range(len(keys)), key=keys.__getitem__)
    staged.ids = [staged.ids[at] for at in order]
    staged.rows = [staged.rows[at] for at in order]
