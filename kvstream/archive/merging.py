"""Merge the pieces of an archive, so that who reads it needs few objects, and no long listings.

Every 256 pieces become one object, later every 4096: one piece a second makes that an hour and
eight minutes. Their bytes stay as they are. The numbers decide which pieces go together, not a
clock: so all who merge make the same objects, and a former owner that still does changes nothing.
Objects are at most 8 MB; above that the pieces of a block are merged by halves, quarters and so on.

A merged object is created first. What it replaces is deleted at least an hour later, and not while
somebody restores. Fences stay, and the pieces before them: a former owner that was stopped must
find its next number taken, and so must one whose last piece was put while its answer was lost.
Nothing is listed, but for once after an opening.
"""

from collections.abc import Callable, Iterator

from kvstream.archive import format as formats
from kvstream.archive.format import FENCES, encode_merged, piece_key
from kvstream.archive.objects import Objects
from kvstream.archive.pieces import (
    Fetched,
    Source,
    decode_piece,
    fetch,
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
DELAY_S = 3600.0
"""How long what is merged is kept at least: for who reads, and may not set a pin."""


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
        self._replaced: list[Source] = []
        self._replaced_before: list[Source] = []
        """What is to be deleted next."""
        self._delete_at = monotonic() + DELAY_S

    def add(self, number: int, size: int) -> None:
        """Note a piece that was put."""
        self._sizes[number] = size
        self._next = number + 1

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        is_new = self._reached is None or self._next_block() is not None
        return is_new or monotonic() >= self._delete_at

    def work(self) -> None:
        """Merge what is complete, and delete what was merged an hour ago."""
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
        self._replaced = [each for each in replaced if not {each.first, each.last + 1} & fences]
        self._replaced_before = []
        for source, size in singles.items():
            self._sizes[source.first] = size
        for source in find_largest(self._merged):
            self._sizes |= dict.fromkeys(range(source.first, source.last + 1), 0)
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
            self._replaced += [part for part in parts if part.first not in kept]
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
        for source, found in fetch(self._read_source, parts):
            if found is None:
                for number in range(source.first, source.last + 1):
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
        """Delete what was merged before the last call that did so, unless somebody reads."""
        if monotonic() < self._delete_at:
            return
        if self._replaced_before and count_readers(self._objects):
            self._delete_at = monotonic() + DELAY_S / 12
            return
        self._objects.delete(each.key for each in self._replaced_before)
        self._replaced, self._replaced_before = [], self._replaced
        self._delete_at = monotonic() + DELAY_S
