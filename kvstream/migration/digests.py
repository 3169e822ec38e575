"""Digests of a stream's entries, by ranges, so that a difference is found without keeping them.

A range ends where the hash of an ID says so, one in ``RANGE_ENTRIES`` on average: where ranges end
depends on the IDs alone, and not on where a stream is kept or in which pages it is read. So two
places are digested apart from each other, and an entry that one of them lacks changes one range.

::

    digest of a range := XXH3-128 of (XXH3-128 of packed IDs, XXH3-128 of stored values)

Values are msgpack, which says itself where it ends; equal entries have equal bytes. The hash finds
accidents; it is none against those who choose the bytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128

from kvstream.images import ID_BYTES, PackedID
from kvstream.migration.items import Page

RANGE_ENTRIES = 1024
"""Entries of a range on average: what is read again where it differs."""
_MASK = RANGE_ENTRIES - 1
_ZERO, _GREATEST = bytes(ID_BYTES), b"\xff" * ID_BYTES


class Range(NamedTuple):
    """A range of entries, up to its last."""

    last: PackedID
    entries: int
    digest: bytes


class Window(NamedTuple):
    """IDs between which two streams differ, both included."""

    first: PackedID
    last: PackedID


@dataclass(slots=True)
class StreamDigest:
    """The entries of a stream, as the digests of its ranges."""

    entries: int = 0
    ranges: list[Range] = field(default_factory=list)

    @property
    def hex(self) -> str:
        """One digest of all of them."""
        whole = xxh3_128()
        for each in self.ranges:
            whole.update(each.last + each.digest)
        return whole.hexdigest()


class Digester:
    """Takes the entries of a stream, in their order, and makes its digest."""

    def __init__(self) -> None:
        self._made = StreamDigest()
        self._begin()

    def _begin(self) -> None:
        self._ids, self._values = xxh3_128(), xxh3_128()
        self._count = 0

    def update(self, ids: list[PackedID], values: list[bytes]) -> None:
        """Take the next entries."""
        start = 0
        for end in _ends(ids):
            self._take(ids[start:end], values[start:end])
            self._close(ids[end - 1])
            start = end
        if start < len(ids):
            self._take(ids[start:], values[start:])
            self._last = ids[-1]

    def _take(self, ids: list[PackedID], values: list[bytes]) -> None:
        self._ids.update(b"".join(ids))
        self._values.update(b"".join(values))
        self._count += len(ids)

    def _close(self, last: PackedID) -> None:
        digest = xxh3_128(self._ids.digest() + self._values.digest()).digest()
        self._made.ranges.append(Range(last, self._count, digest))
        self._made.entries += self._count
        self._begin()

    def finish(self) -> StreamDigest:
        """Return the digest; nothing can be taken afterwards."""
        if self._count:
            self._close(self._last)
        return self._made


def _ends(ids: list[PackedID]) -> Iterator[int]:
    """Yield the positions behind the IDs with which a range ends."""
    for at, eid in enumerate(ids, 1):
        if not xxh3_64_intdigest(eid) & _MASK:
            yield at


def digest_of(pages: Iterable[Page]) -> StreamDigest:
    """Return the digest of entries that come page by page."""
    digester = Digester()
    for ids, values in pages:
        digester.update(ids, values)
    return digester.finish()


def windows(one: StreamDigest, other: StreamDigest) -> Iterator[Window]:
    """Yield the windows in which two streams differ, ascending, those that touch as one.

    Ranges that both have are passed over: what is left lies between two IDs at which both end a
    range, or at the ends of the streams.
    """
    bound = _ZERO
    """What lies up to it has been compared."""
    begun: PackedID | None = None
    for last, same in _steps(one.ranges, other.ranges):
        if same and begun is not None:
            yield Window(begun, bound)
            begun = None
        if not same and begun is None:
            begun = _above(bound) if bound != _ZERO else _ZERO
        bound = last
    if begun is not None:
        yield Window(begun, _GREATEST)


def _steps(one: list[Range], other: list[Range]) -> Iterator[tuple[PackedID, bool]]:
    """Yield the bounds at which both end a range, and whether what came before was the same.

    What is left behind the last such bound comes last, as different.
    """
    at_one = at_other = 0
    same = True
    while at_one < len(one) and at_other < len(other):
        mine, theirs = one[at_one], other[at_other]
        if mine.last == theirs.last:
            yield mine.last, same and mine == theirs
            same = True
            at_one, at_other = at_one + 1, at_other + 1
            continue
        same = False
        if mine.last < theirs.last:
            at_one += 1
        else:
            at_other += 1
    if not same or at_one < len(one) or at_other < len(other):
        yield _GREATEST, False


def _above(eid: PackedID) -> PackedID:
    return (int.from_bytes(eid, "big") + 1).to_bytes(ID_BYTES, "big")
