"""How much a read may return.

MAXCOUNT and MAXSIZE of XREAD and XREADGROUP (Redis 8.10), the server's limit on replies, and the
memory of rows, which decides whether a reply is short or long.
"""

from collections.abc import Sequence

from kvstream.errors import Corruption, InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.layout.rows import EncodedEntries, Rows
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Row
from kvstream.types.records import AnyEntry, HistoryEntry

WIRE_TIMES = 4
"""An entry takes at most this many times the bytes of its row in a reply."""
FIRST_PAGE = 100
"""Rows of a reply that are read before their memory is measured."""
FIRST_BYTES = 1 << 20
"""Fewer rows are read if the estimate from the newest entries is that they take more bytes."""
ROW_MEMORY = 160
"""Memory of a row besides its bytes: two bytes objects, their pair, and its place in a list."""
_CRLF = 2
_HEAD = 1 + _CRLF
_PAIR = _HEAD + 1
_NULL = {False: len(b"*-1\r\n"), True: len(b"_\r\n")}
"""Bytes of a null array in RESP2, and of a null in RESP3."""


def _bulk_size(length: int) -> int:
    return _HEAD + len(str(length)) + length + _CRLF


def entry_reply_size(entry: HistoryEntry, resp3: bool = False) -> int:
    """Return the bytes of an entry in a RESP reply."""
    size = _PAIR + _bulk_size(len(bytes(entry.id)))
    if entry.fields is None:
        return size + _NULL[resp3]
    flat = entry.flat
    size += _HEAD + len(str(len(flat)))
    if entry.idle_ms is not None:
        size += 2 * _HEAD + len(str(entry.idle_ms)) + len(str(entry.deliveries))
    try:
        return size + sum(_bulk_size(len(part)) for part in flat)
    except TypeError:
        raise Corruption(f"entry {entry.id} has a value that is no bytes") from None


def first_page(stream: StreamMeta) -> int:
    """Return how many rows of a stream may be read before their memory is measured."""
    size = stream.open_bytes
    if size * FIRST_PAGE <= FIRST_BYTES * stream.open_appended or not stream.open_appended:
        return FIRST_PAGE
    return max(FIRST_BYTES * stream.open_appended // size, 1)


def short_bytes(txn: Txn) -> int:
    """Return the bytes above which a reply is long; all replies of an EXEC share them."""
    short, least = txn.thresholds.short_bytes, txn.thresholds.recipe_bytes
    return max(short - txn.catalog.limits.reply_held, min(least, short))


def memory_of(page: list[Row]) -> int:
    """Return the memory that rows take, in bytes."""
    return sum(len(key) + len(value) for key, value in page) + len(page) * ROW_MEMORY


def memory_of_entries(found: Sequence[AnyEntry]) -> int:
    """Estimate the memory that entries take, decoded or not, in bytes."""
    if isinstance(found, Rows):
        return memory_of(found.page)
    if isinstance(found, EncodedEntries):
        return sum(map(len, found.parts))
    flat = [part for entry in found for part in entry.flat]
    return sum(map(len, flat)) + (len(flat) + len(found)) * ROW_MEMORY // 2


class Room:
    """The memory that is left for the entries of one reply, if the server limits replies.

    Entries that do not fit are left for the next read. In a read of up to FIRST_PAGE streams, up to
    FIRST_PAGE entries of a stream are not counted: that would take longer than reading them.
    """

    __slots__ = ("_few", "left")

    def __init__(self, streams: int, reply_max: int) -> None:
        self.left = reply_max // WIRE_TIMES
        """Bytes; 0: no limit."""
        self._few = FIRST_PAGE if streams <= FIRST_PAGE else 0

    @property
    def ignores_few(self) -> bool:
        """Return whether few entries of a stream are not counted."""
        return self._few > 0

    def take(self, entries: Sequence[HistoryEntry]) -> bool:
        """Count the entries of a stream; return whether there is room for another stream's."""
        if not self.left or len(entries) <= self._few:
            return True
        if isinstance(entries, Rows):
            size = sum(len(value) for _, value in entries.page)
        else:
            size = sum(map(entry_reply_size, entries))
        if size >= self.left:
            return False
        self.left -= size
        return True


def refuse_limit(option: str, limit: int) -> None:
    """Raise InvalidArgument if a MAXCOUNT or MAXSIZE is not positive."""
    if limit <= 0:
        raise InvalidArgument(f"{option} must be a positive integer")


def refuse_count_above(maxcount: int | None, count: int | None) -> None:
    """Raise InvalidArgument if COUNT is greater than MAXCOUNT."""
    if maxcount is not None and (count or 0) > maxcount:
        raise InvalidArgument("MAXCOUNT must be greater than or equal to COUNT")


class Budget:
    """What is left of MAXCOUNT and MAXSIZE while streams are read in the order of the request.

    MAXSIZE is soft: the first entry always passes, and another one if the reply before it leaves
    room. The size is that of the reply without the length of the outer array or map, which Redis
    writes last. If no room is left, a stream is not read. If its key takes all that is left, it is
    in the reply without entries.
    """

    __slots__ = ("_count", "_opening", "_resp3", "_size", "_taken", "is_cut")

    def __init__(
        self, maxcount: int | None = None, maxsize: int | None = None, resp3: bool = False
    ) -> None:
        if maxcount is not None:
            refuse_limit("MAXCOUNT", maxcount)
        if maxsize is not None:
            refuse_limit("MAXSIZE", maxsize)
        self._count = maxcount
        self._size = maxsize
        self._resp3 = resp3
        self._taken = self._opening = 0
        self.is_cut = False
        """Whether MAXSIZE has kept out entries of the open stream."""

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """Return what is left of MAXCOUNT and MAXSIZE."""
        return self._count, self._size

    @property
    def limited(self) -> bool:
        return self._count is not None or self._size is not None

    @property
    def exhausted(self) -> bool:
        """Return whether no more entries may be delivered."""
        if self._count is not None and self._count <= 0:
            return True
        return self._size is not None and self._size <= 0 and self._taken > 0

    def refuses(self) -> bool:
        """Return whether the next entry may not be delivered; note if MAXSIZE is the reason."""
        if not self.exhausted:
            return False
        self.is_cut = self._count is None or self._count > 0
        return True

    def most(self, count: int | None) -> int | None:
        """Return how many entries a stream may return if ``count`` limits each stream."""
        if self._count is None or (count is not None and count < self._count):
            return count
        return self._count

    def open(self, name: bytes) -> None:
        """Count the bytes before the entries of a stream."""
        self.is_cut = False
        if self._size is not None:
            self._opening = _bulk_size(len(key_of(name))) + (0 if self._resp3 else _PAIR)
            self._size -= self._opening

    def close(self, shown: int | None) -> None:
        """Count the bytes of the number of a stream's entries; None: it is not in the reply."""
        if self._size is not None:
            self._size -= -self._opening if shown is None else _HEAD + len(str(shown))

    def take(self, entries: Sequence[HistoryEntry]) -> int:
        """Count entries; return how many of them, from the first, may be delivered."""
        if self._size is None:
            taken = len(entries) if self._count is None else min(len(entries), self._count)
        else:
            taken = self._take_by_size(entries)
        self._taken += taken
        if self._count is not None:
            self._count -= taken
        return taken

    def _take_by_size(self, entries: Sequence[HistoryEntry]) -> int:
        assert self._size is not None
        for at, entry in enumerate(entries):
            if self._count is not None and at >= self._count:
                return at
            if self._size <= 0 and self._taken + at > 0:
                self.is_cut = True
                return at
            self._size -= entry_reply_size(entry, self._resp3)
        return len(entries)


UNLIMITED = Budget()
"""The budget of all reads without MAXCOUNT and MAXSIZE."""
