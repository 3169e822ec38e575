"""Long reads in pages, of the store as it is at one moment.

A long reply is read through iterators that see the store as it was when they were opened, so that
others may write meanwhile. Steps are those of a reply's ``Gradual``: None while nothing is known,
then the number of items, then the items.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from kvstream.errors import Corruption
from kvstream.layout.rows import Rows
from kvstream.meta.nodes import live_between
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.storage.batch import Family, Row
from kvstream.types.ids import MAX_ID, StreamID

T = TypeVar("T")

Steps: TypeAlias = Iterator[int | T | None]

ITERATOR_BYTES = 16 << 10
"""What an iterator of RocksDB takes besides its share of the cache."""


def short_bytes(txn: Txn) -> int:
    """Return the bytes above which a reply is long; all replies of an EXEC share them."""
    return max(
        txn.thresholds.short_bytes - txn.catalog.limits.reply_held,
        min(txn.thresholds.recipe_bytes, txn.thresholds.short_bytes),
    )


def few(
    txn: Txn,
    stream: StreamMeta,
    start: StreamID,
    end: StreamID,
    count: int | None,
    reverse: bool = False,
    most: int | None = None,
) -> Rows | None:
    """Return the first ``count`` entries of ``start <= id <= end``; None if they are many."""
    most = txn.thresholds.short_rows if most is None else most
    rows = most + 1 if count is None or count > most else count
    bytes_max = short_bytes(txn)
    page, size = entries.gathered(txn, stream, start, end, rows, bytes_max, reverse)
    return None if size > bytes_max or len(page) > most else Rows(page, len(stream.prefix))


def entry_steps(
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
        lower, head = entries.reverse_bound(txn, stream, start, min(end, stream.last), count)
    pages = txn.batch.snapshot(Family.MESSAGES, lower, upper, reverse)
    if head:
        pages = chain(pages, [head])
    return _entry_steps(live_between(txn, stream, start, end), pages, len(prefix), count)


def _entry_steps(
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


def read(
    txn: Txn, wanted: Sequence[tuple[bytes, StreamID]], count: int | None
) -> list[tuple[bytes, StreamID, Rows | None]]:
    """Return name, ID and entries after it of each stream that has any; None: they are many."""
    for name, _ in wanted:
        txn.stream(name)  # a key of another kind fails the whole command
    found: list[tuple[bytes, StreamID, Rows | None]] = []
    left = txn.thresholds.short_rows
    for name, after in wanted:
        stream = txn.stream(name)
        if stream is None or not entries.has_after(stream, after):
            continue
        rows = few(txn, stream, after.next(), MAX_ID, count, most=left)
        if rows is None or rows:
            found.append((name, after, rows))
            left -= left if rows is None else len(rows)
    return found


def steps_after(txn: Txn, name: bytes, after: StreamID, count: int | None) -> Steps[Rows]:
    """Return the steps of the entries after an ID in an existing stream."""
    stream = txn.stream(name)
    assert stream is not None
    return entry_steps(txn, stream, after.next(), MAX_ID, count)


def filtered(
    step: int, pages: Iterator[list[T]], keeps: Callable[[T], bool] | None
) -> Steps[list[T]]:
    """Return the steps, of ``step`` items, of the items of pages that pass a test; None: all."""
    found: list[T] = []
    for page in pages:
        found += page if keeps is None else filter(keeps, page)
        yield None
    yield len(found)
    for at in range(0, len(found), step):
        yield found[at : at + step]
