"""Long reads in pages, from the state of the store at one moment.

A long reply is read through iterators that see the store as it was when they were opened, so other
commands may write meanwhile. The steps are those of ``Gradual`` replies: None until the number of
items is known, then this number, then the items.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeAlias, TypeVar

from kvstream.errors import Corruption
from kvstream.layout.rows import Rows
from kvstream.meta.nodes import live_between
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations.reads.rows import bound_reverse
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import StreamID

T = TypeVar("T")

Steps: TypeAlias = Iterator[int | T | None]

ITERATOR_BYTES = 16 << 10
"""The memory of a RocksDB iterator besides its share of the cache."""


def read_pages(
    txn: Txn,
    stream: StreamMeta,
    start: StreamID,
    end: StreamID,
    count: int | None,
    reverse: bool = False,
) -> Steps[Rows]:
    """Return the steps of the first ``count`` entries of ``start <= id <= end``."""
    prefix = stream.prefix
    lower = prefix + max(start, stream.first).packed
    upper = prefix + min(end, stream.last).packed + b"\x00"
    head: list[Row] = []
    if reverse:
        lower, head = bound_reverse(txn, stream, start, min(end, stream.last), count)
    pages = txn.batch.snapshot(Family.MESSAGES, lower, upper, reverse)
    if head:
        pages = chain(pages, [head])
    return _count_and_read(live_between(txn, stream, start, end), pages, len(prefix), count)


def _count_and_read(
    counted: Iterator[int], pages: Iterator[list[Row]], prefix: int, most: int | None
) -> Steps[Rows]:
    total, cut = 0, False
    for live in counted:
        total += live
        if most is not None and total >= most:
            total, cut = most, True
            break
        yield None
    yield total
    left = total
    for page in pages:
        if len(page) > left and not cut:
            raise Corruption("a stream has more entries than it counts")
        yield Rows(page[:left], prefix)
        left -= len(page)
        if cut and left <= 0:
            return
    if left:
        raise Corruption("a stream has fewer entries than it counts")


def filter_pages(
    step: int, pages: Iterator[list[T]], keeps: Callable[[T], bool] | None
) -> Steps[list[T]]:
    """Return steps of up to ``step`` items of pages: those that ``keeps`` accepts; None: all."""
    found: list[T] = []
    for page in pages:
        found += page if keeps is None else filter(keeps, page)
        yield None
    yield len(found)
    for at in range(0, len(found), step):
        yield found[at : at + step]
