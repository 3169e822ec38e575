"""Entries for those to whom they are shown as they are: out of what others were shown lately."""

from kvstream.ids import PACKED, StreamID
from kvstream.layout.rows import Rows
from kvstream.layout.written import Written
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries
from kvstream.storage.batch import Family

_MESSAGES = Family.MESSAGES


def is_kept(txn: Txn, count: int | None) -> bool:
    """Tell whether reads of so many entries look for those that were read lately."""
    return count is not None and 0 < count <= entries.FIRST_PAGE and txn.catalog.hot.memory_max > 0


def is_large(stream: StreamMeta, count: int) -> bool:
    """Tell whether so many entries may take more than may be kept."""
    return count > entries.first_page(stream)


def between(
    txn: Txn, stream: StreamMeta, start: StreamID, end: StreamID, count: int
) -> Rows | Written:
    """Return the entries of ``start <= id <= end``, the first ``count`` of them."""
    first, last = max(start, stream.first), min(end, stream.last)
    if stream.length == 0 or first > last:
        return Rows([], 0)
    prefix, hot = stream.prefix, txn.catalog.hot
    upper = PACKED(*last)
    found = hot.find(prefix, PACKED(*first), upper, count)
    left = count - found.count
    if left == 0 or found.start > upper:
        hot.hits += 1
        return Written(found.count, found.parts, found.ids)
    hot.misses += 1
    page = txn.batch.page(_MESSAGES, prefix + found.start, prefix + upper + b"\x00", left)
    if page:
        text = hot.keep(prefix, found.start, page)
        if text is None:  # too long, or for the careful way
            if found.count:
                page = entries.rows(txn, stream, first, last, count)
            return Rows(page, len(prefix))
        found.parts.append(text.data)
        found.ids.append(text.ids)
    return Written(found.count + len(page), found.parts, found.ids)
