"""Failures: dead letters grouped by their error, so that a thousand of one kind are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.reading import read_slice
from kvstream.engine.decoding import dead_letter_of
from kvstream.types.records import DeadLetter, Entry

if TYPE_CHECKING:
    from kvstream.store import Store

LETTERS = 200
"""The newest letters of a stream that are grouped."""
TASK = b"task"
"""The field of a message that names its task."""
_CHANGING = re.compile(rb"0x[0-9a-fA-F]+|\d+")
"""Parts that differ between errors of one kind: numbers and addresses."""
_LINE = 300


class Failure(NamedTuple):
    """Dead letters of one queue and task with one kind of error."""

    stream: bytes
    origin: bytes
    task: bytes | None
    error: bytes
    """The first line of the newest one's error."""
    reason: str
    letters: int
    last: DeadLetter
    kind: bytes
    """What they have in common, for the filter of the page."""


def first_line(error: bytes) -> bytes:
    """Return the first line of an error that is not empty."""
    return (error.strip().splitlines() or [b""])[0][:_LINE]


def kind_of(letter: DeadLetter) -> bytes:
    """Return what letters of one kind have in common."""
    error = _CHANGING.sub(b"#", first_line(letter.error))
    task = letter.fields.get(TASK, b"")
    return b"|".join((letter.origin, task[:100], letter.reason.encode(), error[:120]))


def newest(store: Store, stream: bytes, count: int = LETTERS, upto: str = "") -> list[DeadLetter]:
    """Return the newest dead letters of a stream, newest first; ``upto`` is where they begin.

    Of large ones fewer are read.
    """
    found, _ = read_slice(store.stream(stream), upto, count)
    return letters_of(found)


def letters_of(entries: Iterable[Entry]) -> list[DeadLetter]:
    return [letter for each in entries if (letter := dead_letter_of(each)) is not None]


def grouped(stream: bytes, letters: Iterable[DeadLetter]) -> list[Failure]:
    """Group letters, newest first, by their kind; the most frequent kind comes first."""
    by_kind: dict[bytes, list[DeadLetter]] = {}
    for letter in letters:
        by_kind.setdefault(kind_of(letter), []).append(letter)
    made = [
        Failure(
            *(stream, same[0].origin, same[0].fields.get(TASK), first_line(same[0].error)),
            reason=same[0].reason,
            letters=len(same),
            last=same[0],
            kind=kind,
        )
        for kind, same in by_kind.items()
    ]
    return sorted(made, key=lambda each: (-each.letters, -each.last.id.ms))
