"""Merge the pieces of an archive, so that who reads it needs few objects, and no long listings.

Every 256 pieces become one object, later every 4096: one piece a second makes that an hour and
eight minutes. Their bytes stay as they are. The numbers decide which pieces go together, not a
clock: so all who merge make the same objects, and a former owner that still does changes nothing.
Objects are at most 8 MB; above that the pieces of a block are merged by halves, quarters and so on.

A merged object is created first. What it replaces is deleted at least ten minutes later, and not
while somebody restores. Fences stay, and the pieces before them: a former owner that was stopped
must find its next number taken, and so must one whose last piece was put while its answer was lost.

Writers may wait for pieces, so merging asks little of the object store: small pieces are kept from
when they are put, others are read one by one, and nothing is listed but pins, and once after an
opening.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from kvstream.archive import format as formats
from kvstream.archive.format import FENCES, encode_merged, piece_key
from kvstream.archive.objects import Objects
from kvstream.archive.pieces import (
    Fetched,
    Source,
    decode_piece,
    find_largest,
    find_replaced,
    get_piece,
    list_merged,
    list_numbers,
    list_sizes,
    read_source,
)
from kvstream.archive.retention import count_readers
from kvstream.errors import Corruption, WrongArchiveKey
from kvstream.logs import DeferredLogger
from kvstream.types.clock import monotonic

_log = DeferredLogger(__name__)

LEVELS = 256, 4096
"""Pieces of a merged object, powers of two. With the first level a restore of the end reads at most
255 pieces by themselves; the second makes hundreds of objects of the 600,000 pieces of a week."""
BYTES_MAX = 8 << 20
"""Bytes of a merged object. Larger ones are read no faster, and a restore holds eight."""
RECENT_MAX = 2 * LEVELS[0]
"""Pieces that are kept in memory until they are merged; of at most ``RECENT_BYTES`` each."""
RECENT_BYTES = BYTES_MAX // LEVELS[0]
DELAY_S = 600.0
"""How long what is merged is kept at least: for who reads, and may not set a pin."""


class _Replaced(NamedTuple):
    """Objects whose pieces are in a larger one, and when that was made."""

    at: float
    singles: Sequence[int]
    kept: AbstractSet[int]
    """Numbers of ``singles`` that stay."""
    merged: Sequence[Source]

    def keys(self) -> Iterator[str]:
        """Yield the keys of what is to be deleted."""
        yield from (piece_key(number) for number in self.singles if number not in self.kept)
        yield from (source.key for source in self.merged)


class Merger:
    """Merges the pieces of one owner, in a thread of its caller; ``add`` may be called by others.

    ``work`` may end with any error, or be killed: the next call, or the next owner, goes on.
    """

    def __init__(self, objects: Objects, is_stopped: Callable[[], bool]) -> None:
        self._objects, self._is_stopped = objects, is_stopped
        self._next = 0
        """The number of the next piece; the last one is left as it is."""
        self._sizes: dict[int, int] = {}
        """The bytes of the pieces from the last block on. Those of a merged object, of which only
        the sum is known, are at its first one."""
        self._merged: set[Source] = set()
        """The merged objects from the last block on."""
        self._reached: list[int] | None = None
        """Up to where the pieces are merged, by level; None: it is to be looked up."""
        self._damaged: set[int] = set()
        self._recent: dict[int, bytes] = {}
        self._replaced: deque[_Replaced] = deque()
        self._delete_at = 0.0

    def add(self, number: int, data: bytes) -> None:
        """Note a piece that was put."""
        self._sizes[number] = len(data)
        if len(data) <= RECENT_BYTES and len(self._recent) < RECENT_MAX:
            self._recent[number] = data
        self._next = number + 1

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        is_new = self._reached is None or self._next_block() is not None
        return is_new or bool(self._replaced and monotonic() >= self._delete_at)

    def work(self) -> None:
        """Merge what is complete, and delete what was merged ten minutes ago."""
        if self._reached is None:
            self._reached = self._look_up()
        while block := self._next_block():
            for source in self._split(*block):
                if self._is_stopped():
                    return
                self._merge(source)
            self._reached[LEVELS.index(block[1])] += block[1]
        self._forget(self._reached[-1])
        self._delete()

    def _next_block(self) -> tuple[int, int] | None:
        """Return the first number and the size of the next block to be merged, if it is complete.

        A large one follows its small ones at once: so a look at the last merged piece tells where
        to go on.
        """
        assert self._reached is not None
        (small, large), (small_size, large_size) = self._reached, LEVELS
        if small == large + large_size:
            return large, large_size
        return (small, small_size) if small + small_size < self._next else None

    # --- what there is --------------------------------------------------------------------------

    def _look_up(self) -> list[int]:
        """Look at what former owners have merged; return the block of the last merged piece."""
        merged = list_merged(self._objects)
        last = max((each.last for each in merged), default=0)
        first = last - last % LEVELS[-1]
        self._merged = {each for each in merged if each.last >= first}
        singles = {
            Source(number, number): size
            for number, size in list_sizes(self._objects, piece_key(first - 1) if first else "")
        }
        fences = set(list_numbers(self._objects, FENCES))
        replaced = find_replaced(self._objects, merged, singles)
        numbers = [each.first for each in replaced if each.is_single]
        kept = {each for each in numbers if {each, each + 1} & fences}
        others = [each for each in replaced if not each.is_single]
        self._replaced = deque([_Replaced(monotonic(), numbers, kept, others)] if replaced else [])
        for source, size in singles.items():
            self._sizes[source.first] = size
        for source in find_largest(self._merged):
            self._sizes |= dict.fromkeys(source.numbers, 0)
            self._sizes[source.first] = merged[source]
        for number in self._damaged:
            self._sizes.pop(number, None)
        return [first] * len(LEVELS)

    def _is_replaced(self, source: Source) -> bool:
        """Return whether a merged object has the pieces of another object."""
        return any(each != source and each.covers(source) for each in self._merged)

    def _forget(self, first: int) -> None:
        """Forget all before a piece."""
        for number in list(self._sizes):  # others add to it
            if number < first:
                del self._sizes[number]
                self._recent.pop(number, None)
        self._merged = {each for each in self._merged if each.last >= first}

    # --- merging --------------------------------------------------------------------------------

    def _split(self, first: int, size: int) -> Iterator[Source]:
        """Yield what is to be merged of a block: all of it, or parts that are small enough."""
        sizes = [self._sizes.get(number, BYTES_MAX + 1) for number in range(first, first + size)]
        whole = Source(first, first + size - 1)
        if sum(sizes) <= BYTES_MAX:
            if whole not in self._merged and not self._is_replaced(whole):
                yield whole
        elif size > 2:
            yield from self._split(first, size // 2)
            yield from self._split(first + size // 2, size // 2)

    def _merge(self, source: Source) -> None:
        """Create a merged object of the objects that have its pieces."""
        parts = list(self._parts(source))
        try:
            pieces, kept = self._read(parts)
        except (Corruption, WrongArchiveKey):
            # some of it may have been merged by another owner, and deleted
            self._reached = None
            raise
        key, data = source.key, encode_merged(source.first, pieces)
        self._objects.create(key, data)
        self._merged.add(source)
        if self._objects.get(key) == data:
            merged = [part for part in parts if not part.is_single]
            singles = [part.first for part in parts if part.is_single] if merged else source.numbers
            self._replaced.append(_Replaced(monotonic(), singles, kept, merged))
        else:
            _log.warning("%s", formats.damaged(key, "it has other bytes than the pieces"))

    def _parts(self, source: Source) -> Iterator[Source]:
        begins = {each.first: each for each in sorted(self._merged) if source.covers(each)}
        number = source.first
        while number <= source.last:
            part = begins.get(number, Source(number, number))
            yield part
            number = part.last + 1

    def _read(self, parts: list[Source]) -> tuple[list[bytes], set[int]]:
        """Return the pieces of objects, and the numbers of those that must stay by themselves.

        Raises Corruption if one is missing, damaged, or does not follow the one before it.
        """
        pieces: list[bytes] = []
        kept: set[int] = set()
        before: Fetched | None = None
        for source in parts:
            found = self._read_source(source)
            if found is None:
                for number in source.numbers:
                    self._sizes.pop(number, None)  # until it is found elsewhere
                raise formats.damaged(source.key, "it is missing")
            for number, data in enumerate(found, source.first):
                before = self._decode(number, data, before)
                pieces.append(data)
                if source.is_single and not before.piece.parts:
                    kept |= {number - 1, number}
        if parts[-1].is_single and self._is_fence(number + 1):
            kept.add(number)
        return pieces, kept

    def _read_source(self, source: Source) -> list[bytes] | None:
        recent = self._recent.pop(source.first, None)
        if recent is not None and source.is_single:
            return [recent]
        try:
            return read_source(self._objects, source)
        except (Corruption, WrongArchiveKey):  # an old fence may need a key that is gone
            if source.is_single:
                self._damaged.add(source.first)
            raise

    def _is_fence(self, number: int) -> bool:
        """Return whether a piece has no commits; True for one that cannot be read."""
        try:
            return not get_piece(self._objects, number).piece.parts
        except (Corruption, WrongArchiveKey):
            return True

    def _decode(self, number: int, data: bytes, before: Fetched | None) -> Fetched:
        try:
            fetched = decode_piece(number, data)
        except Corruption:
            self._damaged.add(number)
            raise
        if before is not None and fetched.piece.before != before.sum:
            self._damaged.add(number)
            raise formats.damaged(piece_key(number), "it does not follow the piece before it")
        return fetched

    # --- what was merged ------------------------------------------------------------------------

    def _delete(self) -> None:
        """Delete what was merged long enough ago, unless somebody reads."""
        now = monotonic()
        if not self._replaced or now < self._delete_at:
            return
        self._delete_at = now + DELAY_S
        if count_readers(self._objects):
            return
        while self._replaced and self._replaced[0].at + DELAY_S <= now and not self._is_stopped():
            self._objects.delete(self._replaced[0].keys())
            self._replaced.popleft()
