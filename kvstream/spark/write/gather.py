"""What a task does with its rows: shares them out by store, and carries or spills each share.

Few rows travel inside the task's message to the commit, which is the fast way for a micro-batch;
more are spilled page by page. It knows neither Arrow nor how a commit is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol

from kvstream.bulkload.parts import Part, RowsFile
from kvstream.spark.write.stage import StagedFile, StagedRows, pack_page, store_of
from kvstream.types.options import MEGABYTE

CARRIED_MAX = 1 * MEGABYTE
"""Bytes of rows of one store that a task's message takes: a thousand tasks' fit the driver."""
PAGE_MAX = 8 * MEGABYTE
"""Bytes of rows that are held in memory before they are spilled."""
_ROW_BYTES = 48
"""What a row takes beside its value."""
_VALUE = itemgetter(0)


class Spill(Protocol):
    """Where the rows of one store go that are too many to be carried."""

    def write(self, streams: list[StagedRows]) -> None: ...

    def close(self) -> "Spilled": ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Spilled:
    """What a task did not keep until its end."""

    files: tuple[StagedFile, ...] = ()
    pages: tuple[bytes, ...] = ()
    parts: tuple[Part, ...] = ()
    """Parts that the commit ingests."""
    sent: tuple[RowsFile, ...] = ()
    """Files that the server has."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a task has for one store."""

    rows: int
    spilled: Spilled
    page: bytes
    """Rows that are carried; they follow those that were spilled."""
    partition: int = 0


@dataclass(slots=True)
class _Gathered:
    streams: dict[bytes, StagedRows] = field(default_factory=dict)
    size: int = 0
    rows: int = 0
    spill: Spill | None = None


class Gathering:
    """The rows of one task."""

    def __init__(self, stores: int, spills: Callable[[int], Spill]) -> None:
        self._shares = [_Gathered() for _ in range(stores)]
        self._spills = spills

    def add(self, part: StagedRows) -> None:
        """Take rows of one stream."""
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
        """Return the shares by the position of their stores; those without rows are left out."""
        for at, share in enumerate(self._shares):
            if share.size > CARRIED_MAX or (share.spill is not None and share.streams):
                self._flush(at)
        return {
            at: _finished(share, partition) for at, share in enumerate(self._shares) if share.rows
        }

    def abort(self) -> None:
        """Take back what was spilled."""
        for share in self._shares:
            if share.spill is not None:
                share.spill.abort()


def _finished(share: _Gathered, partition: int) -> Share:
    spilled = Spilled() if share.spill is None else share.spill.close()
    page = pack_page(share.streams.values()) if share.streams else b""
    return Share(share.rows, spilled, page, partition)


def rows_of(shares: Sequence[Share]) -> int:
    return sum(share.rows for share in shares)
