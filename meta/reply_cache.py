"""The encoded-reply cache: entries read lately, as RESP bytes, for the next reader.

A *stretch* holds all entries of a stream with ``lower <= ID < until``. Entries are appended above
the last ID and never change, so a stretch is valid until one of its entries is deleted or trimmed,
or the last ID is set back; those operations call this module. If a transaction fails, the catalog
clears the cache, since it may hold what the transaction has read of its own writes.

Stretches of one stream do not overlap. If memory is short the least recently read is dropped.

``XRANGE COUNT 100`` and ``XREAD COUNT 100`` take 2.3 times the processor time without this cache.

``Readahead`` is that of a consumer group; reads one by one take 1.2 times the time without it.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from operator import attrgetter

from kvstream.layout.keys import ID_BYTES, ID_LAST
from kvstream.layout.rows import Text, Write, below
from kvstream.storage.batch import Row
from kvstream.types.ids import MIN_ID

ENTRIES_MAX = 64
BYTES_MAX = 1 << 16
"""The limits of one readahead."""


class Readahead:
    """The readahead of a group: rows behind the last delivered one, in memory only."""

    __slots__ = ("after", "pace", "rows", "shrinks")

    def __init__(self, shrinks: int, pace: int) -> None:
        self.shrinks = shrinks
        """The stream's count of deletions when they were read."""
        self.pace = pace
        """How many to read next time."""
        self.after = MIN_ID
        """The last entry taken: they follow it."""
        self.rows: deque[Row] = deque()

    def next_pace(self, found: list[Row]) -> int:
        """Return twice the pace, or 1 if the last rows were large."""
        size = sum([len(value) for _, value in found])
        return 1 if size > BYTES_MAX else min(2 * self.pace, ENTRIES_MAX)


STRETCH_BYTES_MAX = 1 << 18
STRETCH_MEMORY = 500
"""Memory that a stretch takes beside its bytes."""
_BEYOND_ALL = ID_LAST + b"\x00"


def following(eid: bytes) -> bytes:
    """Return the next packed ID; after the greatest a key above every ID."""
    if eid == ID_LAST:
        return _BEYOND_ALL
    return (int.from_bytes(eid) + 1).to_bytes(ID_BYTES)


class Stretch:
    """The entries with ``lower <= ID < until``, IDs packed; at least one entry."""

    __slots__ = ("lower", "prefix", "size", "text", "until")

    def __init__(self, prefix: bytes, lower: bytes, until: bytes, text: Text) -> None:
        self.prefix = prefix
        self.lower = lower
        self.until = until
        self.text = text
        self.size = len(text.data) + len(text.ids) + text.ends.nbytes + STRETCH_MEMORY


_lower, _until = attrgetter("lower"), attrgetter("until")


class CachedPart:
    """The part of a range that stretches hold, from its start on."""

    __slots__ = ("count", "ids", "parts", "start")

    def __init__(self, start: bytes) -> None:
        self.parts: list[bytes] = []
        self.ids: list[bytes] = []
        self.count = 0
        """The entries in the parts."""
        self.start = start
        """Where the rest of the range begins."""


class ReplyCache:
    """The stretches of all streams, by row prefix."""

    rows_min = 8
    """The fewest rows of a stretch."""

    def __init__(self, memory_max: int = 0, write: Write = lambda page, prefix, most: None) -> None:
        self.memory_max = memory_max
        """Bytes; 0: the cache is off."""
        self.write = write
        self.memory = 0
        self.hits = self.misses = 0
        """Reads that needed no rows, and those that did."""
        self._streams: dict[bytes, list[Stretch]] = {}
        self._by_use: OrderedDict[Stretch, None] = OrderedDict()

    def find(self, prefix: bytes, start: bytes, end: bytes, count: int) -> CachedPart:
        """Return the first entries of ``start <= id <= end``, ``count`` at most, up to a gap."""
        cached = CachedPart(start)
        stretches = self._streams.get(prefix)
        if stretches is None:
            return cached
        for at in range(bisect_right(stretches, start, key=_until), len(stretches)):
            stretch = stretches[at]
            if stretch.lower > cached.start:
                break
            self._by_use.move_to_end(stretch)
            text = stretch.text
            first = below(text.ids, cached.start) if cached.start > stretch.lower else 0
            last = min(first + count - cached.count, text.length)
            if end < stretch.until:
                last = min(last, below(text.ids, following(end)))
            if last > first:
                cached.parts.append(text.part(first, last))
                cached.ids.append(text.ids[ID_BYTES * first : ID_BYTES * last])
                cached.count += last - first
            cached.start = stretch.until
            if cached.count == count or end < stretch.until:
                break
        return cached

    def keep(self, prefix: bytes, start: bytes, page: list[Row]) -> Text | None:
        """Encode the first rows from ``start`` on, and cache the text if it is large enough.

        No stretch may hold the ID ``start``. Returns None if the rows cannot be encoded here.
        """
        text = self.write(page, len(prefix), min(STRETCH_BYTES_MAX, self.memory_max))
        if text is None or text.length < self.rows_min:
            return text
        until = following(text.ids[-ID_BYTES:])
        stretches = self._streams.setdefault(prefix, [])
        at = bisect_right(stretches, start, key=_lower)
        kept = text
        if at < len(stretches) and stretches[at].lower < until:  # must not overlap the next
            until = stretches[at].lower
            kept = _cut(text, below(text.ids, until))
        if kept.length:
            stretch = Stretch(prefix, start, until, kept)
            stretches.insert(at, stretch)
            self._by_use[stretch] = None
            self.memory += stretch.size
            self._make_room()
        else:
            stretches[at].lower = start
        return text

    def drop_between(self, prefix: bytes, first: bytes, last: bytes) -> None:
        """Drop the stretches with any ID from ``first`` to ``last``."""
        stretches = self._streams.get(prefix)
        if stretches is None:
            return
        start = bisect_right(stretches, first, key=_until)
        stop = bisect_right(stretches, last, key=_lower)
        self._drop(stretches[start:stop])

    def drop_before(self, prefix: bytes, first: bytes) -> None:
        """Drop the stretches before the stream's first entry."""
        stretches = self._streams.get(prefix)
        if stretches is not None:
            self._drop(stretches[: bisect_right(stretches, first, key=_until)])

    def forget(self, prefix: bytes) -> None:
        """Drop the stretches of a stream."""
        self._drop(self._streams.get(prefix, ()))

    def clear(self) -> None:
        """Drop all stretches."""
        self._streams.clear()
        self._by_use.clear()
        self.memory = 0

    def bound(self, memory_max: int) -> None:
        """Set the limit of memory."""
        self.memory_max = memory_max
        self._make_room()

    def of(self, prefix: bytes) -> list[Stretch]:
        """Return the stretches of a stream, in order."""
        return list(self._streams.get(prefix, ()))

    def _make_room(self) -> None:
        while self.memory > self.memory_max:
            self._drop([next(iter(self._by_use))])

    def _drop(self, dropped: "list[Stretch] | tuple[()]") -> None:
        for stretch in list(dropped):
            stretches = self._streams[stretch.prefix]
            stretches.remove(stretch)
            if not stretches:
                del self._streams[stretch.prefix]
            del self._by_use[stretch]
            self.memory -= stretch.size


def _cut(text: Text, count: int) -> Text:
    """Return the first ``count`` entries of a text."""
    return Text(text.ids[: count * ID_BYTES], text.ends[:count], text.part(0, count))
