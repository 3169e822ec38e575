"""Reads of one stream as Arrow: pages of bounded size, batches, and whole tables.

A read ends at the last ID that the stream had when it began. Each page is consistent; entries that
are deleted between two pages are missing.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstream.arrow.batches import Batches, Page
from kvstream.arrow.schema import (
    COLUMNS_MAX,
    found_columns,
    given_columns,
    schema_of,
    too_many_names,
)
from kvstream.engine.interface import AnyEngine
from kvstream.layout.columns import Columns
from kvstream.layout.keys import key_of
from kvstream.operations import range as ranges
from kvstream.operations import read
from kvstream.operations.read import Position
from kvstream.types.ids import StreamID

PAGE_MIN, PAGE_MAX = 64, 8192
"""Entries of the first page of a read, and of the largest page."""
PAGE_BYTES = 4 << 20
"""The approximate size limit of a page, which bounds memory if entries are large."""
PAGE_GROWTH = 8
"""The largest ratio of one page's length to the last: large entries may follow small ones."""


def next_page(entries: int, size: int) -> int:
    """Return the length of the next page, after one of ``entries`` with ``size`` bytes in all."""
    fitting = PAGE_BYTES * entries // max(size, 1)
    return max(1, min(PAGE_MAX, PAGE_GROWTH * entries, fitting))


def stream_pages(
    engine: AnyEngine, name: bytes, start: StreamID, end: StreamID
) -> Iterator[Columns]:
    """Yield the entries of a range by pages."""
    following, count = start, PAGE_MIN
    while following <= end:
        rows = engine.run(ranges.scan, name, following, end, count)
        if not rows:
            return
        page = rows.columns()
        yield page
        if len(page) < count or page.last >= end:
            return
        following, count = page.last.next(), next_page(len(page), page.size)


class StreamRead:
    """A read of a range of one stream."""

    def __init__(
        self,
        engine: AnyEngine,
        name: bytes,
        bounds: tuple[StreamID, StreamID],
        schema: Any,
        prefix: str,
    ) -> None:
        """``schema`` None: a column for each field name; else see ``schema_of``."""
        self._engine = engine
        self._name = name
        self._start = bounds[0]
        self._end = min(bounds[1], engine.run(read.resolve, name, Position.LAST))
        self._prefix = prefix
        self._given = None if schema is None else schema_of(schema)
        if self._given is not None:
            given_columns(self._given, prefix)  # raises its errors before anything is read

    def table(self) -> pa.Table:
        """Return all entries; without a schema they are read once and held as they are stored."""
        pages: Iterable[Columns] = self._pages()
        if self._given is None:
            pages = list(pages)
        batches = self._batches_of(pages)
        return pa.Table.from_batches(list(self._converted(batches, pages)), batches.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches; without a schema the range is read twice."""
        batches = self._batches_of(() if self._given is not None else self._pages())
        yield from self._converted(batches, self._pages())

    def _batches_of(self, pages: Iterable[Columns]) -> Batches:
        """Return what makes batches, with columns for the fields of ``pages`` if none are given."""
        if self._given is not None:
            return Batches(self._given, given_columns(self._given, self._prefix))
        return Batches(*found_columns(*_names(pages), self._prefix))

    def _pages(self) -> Iterator[Columns]:
        return stream_pages(self._engine, self._name, self._start, self._end)

    def _converted(self, batches: Batches, pages: Iterable[Columns]) -> Iterator[pa.RecordBatch]:
        key = key_of(self._name)
        return (batches.batch(page, key) for page in pages)


def _names(pages: Iterable[Columns]) -> tuple[list[bytes], set[bytes]]:
    """Return the field names of pages as they first occur, and those with values not UTF-8."""
    names: dict[bytes, None] = {}
    binary: set[bytes] = set()
    for columns in pages:
        page = Page(columns, b"", "")
        own = pc.unique(page.names).to_pylist()
        names |= dict.fromkeys(own)
        if len(names) > COLUMNS_MAX:
            raise too_many_names()
        if not _is_utf8(page.values):
            binary |= {name for name in own if not _is_utf8(page.field(name))}
    return list(names), binary


def _is_utf8(values: pa.Array) -> bool:
    try:
        pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return False
    return True
