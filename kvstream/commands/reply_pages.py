"""Long replies, written page by page to sessions that accept it.

A short reply is built at once. A long one is read while its client takes it, from the store as it
is when the transaction has no uncommitted changes; until then the command returns LATER. A read in
EXEC cannot wait: it sees the committed rows, and in memory the changes of its transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kvstream.commands.command import LATER, Answer, Later, Session
from kvstream.commands.replies import (
    Alike,
    Bulk,
    Entries,
    Gradual,
    Map,
    Paged,
    Pair,
    Reply,
    Rows,
    Streams,
    Verbatim,
    Written,
)
from kvstream.layout.keys import key_of
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations import entries, pages, read, strings
from kvstream.operations.delete import Outcome
from kvstream.operations.read import Reply as Found
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

OBJECT_BYTES = 48
"""Memory of a small value beside its bytes."""
SAMPLES = 100
"""Items of a long array from which its memory is estimated."""


def may_be_long(txn: Txn, session: Session, names: Sequence[bytes], count: int | None) -> bool:
    """Tell whether a read of ``count`` entries of each stream may have a long reply."""
    if not session.pages or count is None or count * len(names) > pages.LOOK_ROWS:
        return session.pages
    found = [txn.catalog.streams.get(name) for name in names]
    return any(count > entries.first_page(stream) for stream in found if stream is not None)


def is_put_off(txn: Txn, session: Session) -> bool:
    """Tell whether a long read must wait for a transaction without changes."""
    return txn.dirty and not session.in_exec


def is_long(session: Session, items: int) -> bool:
    """Tell whether a reply of so many items is written in pages."""
    return session.pages and items > pages.SHORT_ROWS


def of_outcomes(session: Session, outcomes: Sequence[Outcome]) -> Reply:
    """Return the outcome of each ID."""
    return paged(session, [int(outcome) for outcome in outcomes], len(outcomes))


def paged(session: Session, reply: Reply, items: int) -> Reply:
    """Return a reply of so many items; a long one is written in pages."""
    return Paged(reply) if is_long(session, items) else reply


def memory_of(reply: Any) -> int:
    """Estimate the memory of a reply until it has been written, in bytes."""
    measure = _MEMORY.get(type(reply))
    if measure is not None:
        return measure(reply)
    if isinstance(reply, bytes):
        return OBJECT_BYTES + len(reply)
    if isinstance(reply, Sequence):
        step = len(reply) // SAMPLES + 1
        return OBJECT_BYTES + sum([memory_of(part) for part in reply[::step]]) * step
    return OBJECT_BYTES


def _memory_of_steps(steps: Iterable[Any]) -> int:
    """Estimate the memory of a list of steps, or of an iterator that makes them."""
    return memory_of(steps) if isinstance(steps, list) else pages.ITERATOR_BYTES


def _memory_of_streams(streams: Sequence[Pair] | Gradual) -> int:
    if isinstance(streams, Gradual):
        return memory_of(streams)
    return sum([_memory_of_pair(found) for _, found in streams])


def _memory_of_pair(found: Sequence[AnyEntry] | Gradual) -> int:
    return memory_of(found) if isinstance(found, Gradual) else entries.memory_of_entries(found)


_MEMORY: dict[type, Callable[[Any], int]] = {
    Alike: lambda reply: len(reply.ids) * OBJECT_BYTES,
    Bulk: lambda reply: _memory_of_steps(reply.pieces),
    Entries: lambda reply: entries.memory_of_entries(reply.entries),
    Gradual: lambda reply: _memory_of_steps(reply.steps),
    Map: lambda reply: sum([memory_of(part) for pair in reply.pairs for part in pair]),
    Paged: lambda reply: reply.memory or memory_of(reply.reply),
    Rows: entries.memory_of_entries,
    Streams: lambda reply: _memory_of_streams(reply.streams),
    Verbatim: lambda reply: OBJECT_BYTES + len(reply.text),
    Written: entries.memory_of_entries,
}


def given_up(replies: list[Reply], memory: int) -> Paged:
    """Return an array of replies that frees each one once it is written.

    ``memory``: the bytes of all of them.
    """

    def steps() -> Iterator[int | list[Reply]]:
        yield len(replies)
        replies.reverse()
        while replies:
            yield [replies.pop()]

    return Paged(Gradual(steps()), memory)


def of_string(txn: Txn, session: Session, name: bytes) -> Answer:
    """Return a string, a large one piece by piece."""
    string = strings.find(txn, name)
    if string is None or string.length <= pages.short_bytes(txn):
        return None if string is None else string.read(txn.batch)
    if is_put_off(txn, session):
        return LATER
    return Paged(of_large(txn, string))


def of_large(txn: Txn, string: StringMeta) -> Bulk:
    """Return a string as it is now, read piece by piece."""
    return Bulk(string.length, string.steps(txn.batch))


def of_range(
    txn: Txn,
    session: Session,
    name: bytes,
    start: StreamID,
    end: StreamID,
    count: int | None,
    reverse: bool,
) -> Answer:
    """Return the entries between two IDs."""
    stream = txn.stream(name)
    if stream is None:
        return []
    found = pages.few(txn, stream, start, end, count, reverse)
    if found is not None:
        return Entries(found)
    if is_put_off(txn, session):
        return LATER
    return Paged(Gradual(pages.entry_steps(txn, stream, start, end, count, reverse)))


def of_streams(
    txn: Txn, session: Session, wanted: Sequence[tuple[bytes, StreamID]], count: int | None
) -> Streams | Paged | Later | None:
    """Return the entries after an ID of each of several streams; None if there are none."""
    parts = read.parts(txn, wanted)
    if not parts:
        return None
    if len(parts) > 1:
        seeks, short = read.begin(txn), pages.short_bytes(txn)
        if len(parts) <= pages.SHORT_STREAMS:
            few = read.few(seeks, parts, count, pages.SHORT_ROWS, short)
            if few is not None:
                return Streams(few) if few else None
        if len(parts) > pages.FEW_STREAMS:
            if is_put_off(txn, session):
                return LATER
            return _many_streams(read.steps(read.begin_still(txn), parts, count))
    found = pages.read(txn, wanted, count)
    if not any(rows is None for _, _, rows in found):
        return Streams([(key_of(name), rows or []) for name, _, rows in found]) if found else None
    if is_put_off(txn, session):
        return LATER
    streams: list[tuple[bytes, Rows | Gradual]] = []
    for name, after, rows in found:
        made = Gradual(pages.steps_after(txn, name, after, count)) if rows is None else rows
        streams.append((key_of(name), made))
    return Paged(Streams(streams))


def _many_streams(steps: read.Steps | None) -> Paged | None:
    return None if steps is None else Paged(Streams(Gradual(map(_wrapped, steps))))


def _wrapped(step: int | read.Items | None) -> int | list[Pair] | None:
    if not isinstance(step, list):
        return step
    return [(key, found if isinstance(found, Rows) else Gradual(found)) for key, found in step]


def of_found(session: Session, found: Found) -> Streams | Paged | None:
    """Return the entries that a read found; None if there are none."""
    if not found:
        return None
    reply = Streams([(key_of(name), entries) for name, entries in found])
    if is_long(session, sum(len(entries) for _, entries in found)):
        return Paged(reply)
    return reply
