"""The staged rows of all tasks, divided by store, and the order in which a commit appends them.

A task keeps few rows in memory and spills others page by page. Few rows travel to the commit inside
the task's message, so a micro-batch needs no files. A stream gets first the rows with IDs, by ID,
then those without, by partition and position.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import itemgetter
from typing import NamedTuple, Protocol

from kvstream.bulkload.parts import BulkTicket, Part, RowsFile
from kvstream.errors import IDTooSmall, quote
from kvstream.operations.append import next_id
from kvstream.spark.write.stage import (
    StagedFile,
    StagedID,
    StagedRows,
    Transaction,
    add_id,
    is_plain,
    order_of,
    pack_page,
    pages_of,
    show_id,
    store_of,
    unpack_page,
)
from kvstream.types.ids import StreamID
from kvstream.types.options import MEGABYTE

MESSAGE_ROWS_MAX = 1 * MEGABYTE
"""Bytes of rows for one store in a task's message: those of a thousand tasks fit the driver."""
PAGE_MAX = 8 * MEGABYTE
"""Bytes of rows held in memory before they are spilled."""
SKIP_HINT = "the option skipExisting skips rows whose IDs are not above the stream's last ID"
_ROW_BYTES = 48
"""The memory of a row beside its value."""
_VALUE = itemgetter(0)


class Upload(NamedTuple):
    """A load that a server has begun; to be pickled."""

    load: bytes
    ticket: BulkTicket


class Spill(Protocol):
    """The destination of the rows for one store that are too many for a message."""

    def write(self, streams: list[StagedRows]) -> None: ...

    def close(self) -> "Spilled": ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Spilled:
    """The rows that a task spilled."""

    files: tuple[StagedFile, ...] = ()
    pages: tuple[bytes, ...] = ()
    parts: tuple[Part, ...] = ()
    """SST files that the commit ingests."""
    sent: tuple[RowsFile, ...] = ()
    """Files of rows that were sent to the server."""


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of one task for one store."""

    rows: int
    spilled: Spilled
    page: bytes
    """The rows after the spilled ones."""
    partition: int = 0


@dataclass(slots=True)
class _Gathered:
    streams: dict[bytes, StagedRows] = field(default_factory=dict)
    size: int = 0
    rows: int = 0
    spill: Spill | None = None


class Gathering:
    """Collects the rows of one task."""

    def __init__(self, stores: int, spills: Callable[[int], Spill]) -> None:
        """``spills`` opens the spill of a store, given its position."""
        self._shares = [_Gathered() for _ in range(stores)]
        self._spills = spills

    def add(self, part: StagedRows) -> None:
        """Add rows of one stream."""
        at = store_of(part.key, len(self._shares))
        share = self._shares[at]
        staged = share.streams.get(part.key)
        if staged is None:
            share.streams[part.key] = part
        else:
            staged.extend(part.ids, part.rows)
        share.rows += len(part.rows)
        share.size += sum(map(len, map(_VALUE, part.rows))) + _ROW_BYTES * len(part.rows)
        if share.size > PAGE_MAX:
            self._flush(at)

    def _flush(self, at: int) -> None:
        share = self._shares[at]
        if share.spill is None:
            share.spill = self._spills(at)
        share.spill.write(list(share.streams.values()))
        share.streams.clear()
        share.size = 0

    def finish(self, partition: int = 0) -> dict[int, Share]:
        """Return the shares that have rows, by the positions of their stores."""
        for at, share in enumerate(self._shares):
            if share.size > MESSAGE_ROWS_MAX or (share.spill is not None and share.streams):
                self._flush(at)
        return {
            at: _finish(share, partition) for at, share in enumerate(self._shares) if share.rows
        }

    def abort(self) -> None:
        """Remove the spilled rows."""
        for share in self._shares:
            if share.spill is not None:
                share.spill.abort()


def _finish(share: _Gathered, partition: int) -> Share:
    spilled = Spilled() if share.spill is None else share.spill.close()
    page = pack_page(share.streams.values()) if share.streams else b""
    return Share(share.rows, spilled, page, partition)


def rows_of(shares: Sequence[Share]) -> int:
    return sum(share.rows for share in shares)


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

    def loose(self) -> list[tuple[int, list[StagedRows]]] | None:
        """Return the rows that are not in parts, by partition.

        None if rows have IDs such as ``ms-*``, which only a plain commit can allot.
        """
        pages = [
            (share.partition, self._replace(shares=[share]).streams()) for share in self.shares
        ]
        if not all(is_plain(staged) for _, streams in pages for staged in streams):
            return None
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


def rising(staged: StagedRows, last: StreamID, skip_existing: bool) -> list[int]:
    """Return the positions of the rows with IDs to add to a stream that ends at ``last``.

    ``skip_existing`` leaves out rows whose IDs are not above ``last``. Raises IDTooSmall for an ID
    that is not above the one before it.
    """
    kept, before = [], last
    for at, eid in enumerate(staged.ids):
        if skip_existing and _is_existing(eid, last):
            continue
        try:
            before = next_id(before, add_id(eid), before.ms)
        except IDTooSmall as error:
            hint = "" if skip_existing else f": {SKIP_HINT}"
            raise IDTooSmall(f"stream {quote(staged.key)}: {show_id(eid)}: {error}{hint}") from None
        kept.append(at)
    return kept


def _is_existing(staged: StagedID, last: StreamID) -> bool:
    eid = add_id(staged)
    if eid is None:
        return False
    return eid <= last if isinstance(eid, StreamID) else eid < last.ms


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
