"""Read the pieces of an archive, which are objects of their own or lie in merged ones.

Who reads pieces looks at what is there once, and again if an object is gone meanwhile: its pieces
have been merged, and the merged object came first.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from kvstream.archive import format as formats
from kvstream.archive.format import (
    LOG,
    MERGED,
    Piece,
    merged_key,
    merged_numbers,
    number_of,
    piece_key,
)
from kvstream.archive.objects import Objects
from kvstream.errors import Corruption, DataError, WrongArchiveKey
from kvstream.logs import DeferredLogger

_log = DeferredLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

FETCHES = 8
"""Objects that are fetched at a time."""


class Source(NamedTuple):
    """An object with the pieces of some numbers: with one, or with more, which are merged."""

    first: int
    last: int

    @property
    def key(self) -> str:
        """The key of the object."""
        return piece_key(self.first) if self.is_single else merged_key(self.first, self.last)

    @property
    def is_single(self) -> bool:
        """Whether it is a piece by itself."""
        return self.first == self.last

    @property
    def numbers(self) -> range:
        """The numbers of its pieces."""
        return range(self.first, self.last + 1)

    def covers(self, other: "Source") -> bool:
        """Return whether it has all pieces of another one."""
        return self.first <= other.first and other.last <= self.last


class Fetched(NamedTuple):
    """A piece that was read."""

    piece: Piece
    body: bytes
    """Its bytes of logs, compressed."""
    sum: bytes
    """Its SHA-256."""
    size: int
    """Its bytes as an object."""


# --- where they are -------------------------------------------------------------------------------


def list_numbers(objects: Objects, prefix: str, after: str = "") -> list[int]:
    """Return the numbers of the objects below a prefix, in order; other objects are ignored."""
    numbers = []
    for found in objects.list(prefix, after):
        with suppress(ValueError):
            numbers.append(number_of(found.key))
    return numbers


def list_sizes(objects: Objects, after: str = "") -> Iterator[tuple[int, int]]:
    """Yield the numbers and sizes of the pieces that are there by themselves, in order."""
    for found in objects.list(LOG, after):
        with suppress(ValueError):
            yield number_of(found.key), found.size


def list_merged(objects: Objects, first: int = 0) -> dict[Source, int]:
    """Return the merged objects that begin at a number or behind it, and their sizes."""
    merged = {}
    for found in objects.list(MERGED, f"{MERGED}{first:016x}" if first else ""):
        with suppress(ValueError):
            merged[Source(*merged_numbers(found.key))] = found.size
    return merged


def find_sources(objects: Objects, first: int) -> list[Source]:
    """Return the objects with the pieces from a number on, in order, the larger ones alone.

    A number that is nowhere is left out.
    """
    sources: list[Source] = []
    holes: list[range] = []
    number = first
    merged = list_merged(objects)  # first: they are there before the pieces go
    for each in find_largest(merged):
        if each.last < number:
            continue
        if each.first > number:
            holes.append(range(number, each.first))
        sources.append(each)
        number = each.last + 1
    start = holes[0].start if holes else number
    for single in list_numbers(objects, LOG, piece_key(start - 1) if start else ""):
        if single >= number or any(single in hole for hole in holes):
            sources.append(Source(single, single))
    return sorted(sources)


def find_largest(merged: Iterable[Source]) -> list[Source]:
    """Return the merged objects of which no other one has all pieces, in order."""
    largest: list[Source] = []
    for each in sorted(merged, key=lambda source: (source.first, -source.last)):
        if not largest or each.last > largest[-1].last:
            largest.append(each)
    return largest


def find_replaced(
    objects: Objects, merged: Iterable[Source], singles: Iterable[Source]
) -> list[Source]:
    """Return the objects all of whose pieces are in a larger one, which is read for that."""
    largest = find_largest(merged)
    firsts = [each.first for each in largest]
    replaced: dict[Source, list[Source]] = {}
    for each in (*merged, *singles):
        index = bisect_right(firsts, each.first) - 1
        if index >= 0 and largest[index] != each and largest[index].covers(each):
            replaced.setdefault(largest[index], []).append(each)
    return [each for larger in replaced if _is_sound(objects, larger) for each in replaced[larger]]


def _is_sound(objects: Objects, source: Source) -> bool:
    try:
        return read_source(objects, source) is not None
    except (Corruption, WrongArchiveKey) as error:
        _log.warning("%s: the pieces in it that are there by themselves are kept", error)
        return False


# --- their bytes ----------------------------------------------------------------------------------


def read_source(objects: Objects, source: Source) -> list[bytes] | None:
    """Return the pieces of an object, as they were put; None if it is not there.

    Raises Corruption if a merged object is damaged; the pieces themselves are not looked at.
    """
    data = objects.get(source.key)
    if data is None or source.is_single:
        return data if data is None else [data]
    return list(formats.split_merged(source.key, data))


def decode_piece(number: int, data: bytes) -> Fetched:
    """Return a piece; raise Corruption if it is damaged, or has another number."""
    key = piece_key(number)
    piece, body = formats.decode(Piece, key, data)
    if piece.number != number:
        raise formats.damaged(key, f"it is piece {piece.number}")
    return Fetched(piece, body, formats.sum_of(data), len(data))


def find_piece(objects: Objects, number: int) -> bytes | None:
    """Return a piece as it was put; None if it is nowhere."""
    data = objects.get(piece_key(number))
    if data is not None:
        return data
    for source in list_merged(objects):
        if source.first <= number <= source.last:
            pieces = read_source(objects, source)
            return pieces[number - source.first] if pieces else None
    return None


def get_piece(objects: Objects, number: int) -> Fetched:
    """Return a piece; raise Corruption if it is missing or damaged."""
    data = find_piece(objects, number)
    if data is None:
        raise formats.damaged(piece_key(number), "it is missing")
    return decode_piece(number, data)


def read_encoded(objects: Objects, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and bytes of the pieces from a number on, some fetched ahead.

    Raises Corruption if one is missing.
    """
    number, begun = first, -1
    while number > begun:  # else a second look has found no more than the first
        begun, is_whole = number, True
        for source, pieces in fetch(partial(read_source, objects), find_sources(objects, number)):
            is_whole = pieces is not None and source.first <= number
            if not is_whole:
                break
            for data in (pieces or [])[number - source.first :]:
                yield number, data
                number += 1
        if is_whole and number > first:
            return
    raise formats.damaged(piece_key(number), "it is missing")


def read_pieces(objects: Objects, first: int) -> Iterator[Fetched]:
    """Yield the pieces from a number on, some fetched ahead.

    It ends before a fence at which the history begins anew. Raises Corruption if a piece is
    missing, damaged, or does not follow the one before it.
    """
    before = None
    for number, data in read_encoded(objects, first):
        fetched = decode_piece(number, data)
        if fetched.piece.is_base and number > first:
            return
        if before is not None and fetched.piece.before != before:
            raise formats.damaged(piece_key(number), "it does not follow the piece before it")
        before = fetched.sum
        yield fetched


def caught(get: Callable[[K], T]) -> Callable[[K], T | DataError]:
    """Return a function that returns the damage that another one raises."""

    def call(key: K) -> T | DataError:
        try:
            return get(key)
        except DataError as error:
            return error

    return call


def fetch(get: Callable[[K], T], keys: Iterable[K]) -> Iterator[tuple[K, T]]:
    """Yield each key and its object, some fetched ahead."""
    remaining = iter(keys)
    with ThreadPoolExecutor(FETCHES) as pool:
        ahead = deque((key, pool.submit(get, key)) for key in islice(remaining, FETCHES))
        while ahead:
            key, fetching = ahead.popleft()
            yield key, fetching.result()
            ahead.extend((key, pool.submit(get, key)) for key in islice(remaining, 1))
