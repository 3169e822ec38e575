"""The samples of a store: what they are, how they are kept, and how they are read.

Four streams have them, one for each step of time. They are bounded by their length, about 500
entries together, so the figures of a week are there after a restart, and never more::

    key    := "kvstream:samples:" step            step is one of SPANS, such as "10s"
    entry  := ID series*                          ID is the end of the step: ms-0
    series := kind(1 byte) name -> figures        a field of the entry
    kind   := "s" a stream | "j" the jobs of an application
    figures := NAME "=" number (" " NAME "=" number)*

A figure that is not known is left out. The ID of an entry is a multiple of its step, so two
consoles of one store cannot write the same one twice: the second is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvstream.errors import IDTooSmall, NoSuchKey, RequestError, WrongType
from kvstream.remote.replies import is_key_refusal

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.types.records import Entry

PREFIX = b"kvstream:samples:"
STREAM, JOBS = b"s", b"j"
"""Kinds of series: the first byte of a field."""


class Span(NamedTuple):
    """How long samples of one step are kept."""

    title: str
    step: str
    step_ms: int
    rows: int

    @property
    def key(self) -> bytes:
        return PREFIX + self.step.encode()


SPANS = (
    Span("15m", "10s", 10_000, 90),
    Span("2h", "1m", 60_000, 120),
    Span("1d", "15m", 900_000, 96),
    Span("1w", "1h", 3_600_000, 168),
)
"""A page reads one of them, with one call: so many rows fit its budget beside its tables. An hour
of seconds would take 0.5 s of the processor for each look, and a plot has no room for it."""
FINEST = SPANS[0]

TOTALS = frozenset({"added"})
"""Figures that only grow: a coarser step keeps the last one, and a plot shows differences."""
SUMS = frozenset({"failed", "done"})
"""Counts of one step, which a coarser step adds up. Of all other figures it keeps the maximum."""

DIGITS_MAX = 18

Figures: TypeAlias = "dict[str, int]"
Values: TypeAlias = "dict[bytes, Figures]"
"""The figures of one moment, by the field of their series."""


class Sample(NamedTuple):
    """The figures at the end of a step."""

    at_ms: int
    values: Values


def written_ms(store: Store) -> int:
    """Return the end of the newest step that was written; 0 if there is none."""
    newest = store.stream(FINEST.key).revrange(count=1)
    return newest[0].id.ms if newest else 0


def write(store: Store, at_ms: int, values: Values) -> bool:
    """Write the sample of a step, and the coarser ones that end with it, in one commit.

    ``at_ms`` is a multiple of the finest step. Return False if another console was first.
    """
    newest = written_ms(store)
    if newest >= at_ms:
        return False
    made = {FINEST: Sample(at_ms, values)}
    for finer, span in pairwise(SPANS):
        end_ms = at_ms - at_ms % span.step_ms
        if newest and newest < end_ms:
            found = _between(store, finer, end_ms - span.step_ms + 1, end_ms)
            if finer in made and made[finer].at_ms <= end_ms:
                found.append(made[finer])
            made[span] = Sample(end_ms, merge(found))
    # all is read before: a server writes at the end of the block
    with suppress(IDTooSmall), store.transaction():
        for span, each in made.items():
            _add(store, span, each)
        return True
    return False


def _add(store: Store, span: Span, sample: Sample) -> None:
    fields = {field: _encode(figures) for field, figures in sample.values.items() if figures}
    if fields:
        # one more than a plot has, for the difference to the first
        store.stream(span.key).add(fields, f"{sample.at_ms}-0", maxlen=span.rows + 1)


def read(store: Store, span: Span, now_ms: int) -> list[Sample]:
    """Return the samples of a span up to now, oldest first."""
    return _between(store, span, now_ms - (span.rows + 1) * span.step_ms, now_ms)


def _between(store: Store, span: Span, first_ms: int, last_ms: int) -> list[Sample]:
    try:
        found = store.stream(span.key).range(first_ms, last_ms, span.rows + 1)
    except (NoSuchKey, WrongType):  # another program may have taken the name
        return []
    except RequestError as error:
        if not is_key_refusal(error):  # to a user of a server
            raise
        return []
    return [_decode(each) for each in found]


def merge(samples: Iterable[Sample]) -> Values:
    """Return one sample for a coarser step."""
    merged: Values = {}
    for each in samples:
        for field, figures in each.values.items():
            into = merged.setdefault(field, {})
            for name, value in figures.items():
                before = into.get(name, 0)
                if name in SUMS:
                    into[name] = before + value
                else:
                    into[name] = value if name in TOTALS else max(before, value)
    return merged


def _encode(figures: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in figures.items())


def _decode(entry: Entry[bytes]) -> Sample:
    """Return an entry as a sample; what another program has written there is left out."""
    values: Values = {}
    for field, text in entry.fields.items():
        pairs = (part.partition("=") for part in text.decode("ascii", "replace").split())
        values[field] = {
            name: int(value)
            for name, _, value in pairs
            if name and value.isdecimal() and len(value) <= DIGITS_MAX
        }
    return Sample(entry.id.ms, values)
