r"""Search entries by the values of their fields: newest first, up to a bounded number.

The conditions are those of ``kvstream find``, as words of a shell::

    condition := FIELD=PATTERN | FIELD!=PATTERN | FIELD
    PATTERN   := as in KEYS: * any text, ? any character, [ab] one of these, \ before a sign

There are no expressions and no regular expressions, so no condition can run code or take long.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvstream.console.reading import read_slice
from kvstream.console.values import raw_of
from kvstream.errors import InvalidArgument
from kvstream.types.clock import monotonic
from kvstream.types.glob import matcher

if TYPE_CHECKING:
    from kvstream.console.view import View
    from kvstream.stream import Stream
    from kvstream.types.ids import StreamID
    from kvstream.types.records import Entry

LOOKED_MAX, SLICE = 5000, 500
"""Entries that one page searches, and entries that it reads at a time."""
LOOKED_S = 10.0
"""Seconds that one page searches."""
CONDITIONS_MAX = 10
PATTERN_MAX, VALUE_MAX = 200, 64_000
"""Bytes of a condition, and of a value that are compared: the time is at most their product, which
is 5 s of the processor."""


class Condition(NamedTuple):
    """What a field must be like."""

    name: bytes
    is_negated: bool
    matches: Callable[[bytes], bool]

    def holds(self, pairs: Sequence[tuple[bytes, bytes]]) -> bool:
        return self.is_negated != any(
            name == self.name and self.matches(value[:VALUE_MAX]) for name, value in pairs
        )


def conditions_of(text: str) -> list[Condition]:
    """Return the conditions in a text; InvalidArgument for a wrong one."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(f"the conditions are words of a shell: {error}") from None
    if len(words) > CONDITIONS_MAX:
        raise InvalidArgument(f"at most {CONDITIONS_MAX} conditions, not {len(words)}")
    return [_condition(raw_of(word)) for word in words]


def _condition(word: bytes) -> Condition:
    if len(word) > PATTERN_MAX:
        raise InvalidArgument(f"a condition has at most {PATTERN_MAX} bytes, not {len(word)}")
    name, sign, pattern = word.partition(b"=")
    is_negated = bool(sign) and name.endswith(b"!")
    name = name.removesuffix(b"!") if is_negated else name
    if not name:
        raise InvalidArgument("a condition is FIELD=PATTERN, FIELD!=PATTERN or FIELD")
    return Condition(name, is_negated, matcher(pattern if sign else b"*"))


class Found(NamedTuple):
    """The result of a search, and where it has stopped."""

    entries: list[Entry]
    looked: int
    """Entries that were looked at."""
    last: StreamID | None
    """The last of them; None if there was none."""
    has_more: bool
    """Whether there are entries behind it."""


def find(view: View, stream: Stream, at: str, conditions: Sequence[Condition], most: int) -> Found:
    """Look for at most ``most`` entries from an ID or a time on, newest first.

    Values are compared as the user may see them, so that no search tells a value that is hidden.
    """
    until, bound = monotonic() + LOOKED_S, at
    entries: list[Entry] = []
    looked, last, has_more = 0, None, True
    while has_more and looked < LOOKED_MAX and monotonic() < until:
        part, has_more = read_slice(stream, bound, min(SLICE, LOOKED_MAX - looked))
        for number, each in enumerate(part):
            looked, last = looked + 1, each.id
            if _holds(view, each, conditions):
                entries.append(each)
            if len(entries) == most or monotonic() >= until:
                return Found(entries, looked, last, has_more or number + 1 < len(part))
        bound = f"({last}"
    return Found(entries, looked, last, has_more)


def _holds(view: View, entry: Entry, conditions: Sequence[Condition]) -> bool:
    asked = {each.name for each in conditions}
    pairs = [(name, view.value(name, value)) for name, value in entry.pairs if name in asked]
    return all(each.holds(pairs) for each in conditions)
