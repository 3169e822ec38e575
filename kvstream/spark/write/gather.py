"""The rows of a task, divided by store: kept in memory if few, else spilled page by page.

Few rows travel to the commit inside the task's message, so a micro-batch needs no files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from kvstream.bulkload.parts import Part, RowsFile
from kvstream.spark.write.stage import StagedFile, StagedRows, pack_page, store_of
from kvstream.types.options import MEGABYTE

MESSAGE_ROWS_MAX = 1 * MEGABYTE
"""Bytes of rows for one store in a task's message: those of a thousand tasks fit the driver."""
PAGE_MAX = 8 * MEGABYTE
"""Bytes of rows held in memory before they are spilled."""
_ROW_BYTES = 48
"""The memory of a row beside its value."""
_VALUE = itemgetter(0)


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
            at: _finished(share, partition) for at, share in enumerate(self._shares) if share.rows
        }

    def abort(self) -> None:
        """Remove the spilled rows."""
        for share in self._shares:
            if share.spill is not None:
                share.spill.abort()


def _finished(share: _Gathered, partition: int) -> Share:
    spilled = Spilled() if share.spill is None else share.spill.close()
    page = pack_page(share.streams.values()) if share.streams else b""
    return Share(share.rows, spilled, page, partition)


def rows_of(shares: Sequence[Share]) -> int:
    return sum(share.rows for share in shares)
