"""Entries of a stream for one page: a bounded number of them, and of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstream.stream import Stream
    from kvstream.types.records import Entry

FIRST, BYTES = 5, 4_000_000
"""The entries that are read first, and about how many bytes a page reads."""

FIELDS_MAX = 30
"""Fields of an entry that a list shows."""
SHOWN_BYTES = 900
"""Bytes of an entry that a list shows."""


def read_slice(
    stream: Stream, bound: str, count: int, is_forward: bool = False
) -> tuple[list[Entry], bool]:
    """Return at most ``count`` entries from a bound on, and whether there are more.

    ``bound`` is an ID, a time, or a bound of ``Stream.range``; empty: the end of the stream. The
    first entries tell how large they are, and so how many more are read.
    """

    def read(start: str, most: int) -> list[Entry]:
        if is_forward:
            return stream.range(start or "-", "+", most)
        return stream.revrange(start or "+", "-", most)

    found = read(bound, FIRST)
    if len(found) < FIRST:
        return found, False
    size = sum(len(part) for each in found for part in each.flat)
    if size > BYTES:
        return found, True
    rest = min(count - FIRST, BYTES * FIRST // max(1, size))
    more = read(f"({found[-1].id}", rest + 1)
    return found + more[:rest], len(more) > rest


def shown_of(entry: Entry) -> dict[str, Any]:
    """Return an entry as a list shows it: some fields and bytes, and what is left out."""
    pairs, size = [], 0
    for name, value in entry.pairs[:FIELDS_MAX]:
        if size > SHOWN_BYTES:
            break
        pairs.append((name, value))
        size += min(len(name), 60) + min(len(value), 200)
    left_out = len(entry.flat) // 2 - len(pairs)
    return {"id": entry.id, "pairs": pairs, "fields": dict(pairs), "left_out": left_out}
