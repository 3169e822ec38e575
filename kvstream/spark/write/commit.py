"""The input of a commit: the staged rows of all tasks for one store.

It defines the order of a stream's rows: first those with IDs, by ID, then those without, by
partition and position.
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
    """Whether the transaction writes a mark, and is skipped if its mark exists."""
    shares: Sequence[Share]
    """The shares of the tasks, by partition."""
    skip_existing: bool = False
    """Skip rows whose IDs are not above the stream's last ID, instead of refusing the commit."""
    ticket: BulkTicket | None = None
    """The ticket with which the tasks made parts."""
    folder: str = ""
    """The folder in which the commit itself may make parts."""
    upload: Upload | None = None
    """The upload to which the tasks sent files of rows, instead of a ticket."""

    @property
    def rows(self) -> int:
        return rows_of(self.shares)

    @property
    def parts(self) -> list[Part]:
        """The parts made by tasks."""
        return [part for share in self.shares for part in share.spilled.parts]

    @property
    def sent(self) -> list[RowsFile]:
        """The files that tasks have sent."""
        return [file for share in self.shares for file in share.spilled.sent]

    @property
    def mark(self) -> tuple[bytes, int] | None:
        """The key and number of the mark, which makes the commit happen once."""
        return (self.transaction.key, self.transaction.number) if self.marked else None

    def loose(self) -> list[tuple[int, list[StagedRows]]]:
        """Return the rows that are not in parts, by partition."""
        pages = [
            (share.partition, self._replace(shares=[share]).streams()) for share in self.shares
        ]
        return [(partition, streams) for partition, streams in pages if streams]

    def streams(self) -> list[StagedRows]:
        """Return the rows of all shares by stream, in order."""
        merged: dict[bytes, StagedRows] = {}
        for staged in chain.from_iterable(map(unpack_page, _pages(self.shares))):
            merged.setdefault(staged.key, StagedRows(staged.key)).extend(staged.ids, staged.rows)
        for staged in merged.values():
            _sort(staged)
        return list(merged.values())


class Committed(NamedTuple):
    """The result of a commit."""

    done: bool
    """False if the store had this transaction already."""
    rows: int
    skipped: int = 0
    """Rows left out by ``skip_existing``."""


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
