"""Long replies, written page by page to sessions that accept it.

A short reply is built at once. A long one is read while its client takes it, from the store as it
is when the transaction has no uncommitted changes; until then the command returns LATER. A read in
EXEC cannot wait: it sees the committed rows, and in memory the changes of its transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kvstream.commands.command import Session
from kvstream.commands.replies import (
    Alike,
    Bulk,
    EncodedEntries,
    Entries,
    Gradual,
    Map,
    Paged,
    Pair,
    Reply,
    Rows,
    Shared,
    Streams,
    Verbatim,
)
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn
from kvstream.operations import entries, pages
from kvstream.operations.read import Reply as Found
from kvstream.types.records import AnyEntry, Outcome

OBJECT_BYTES = 48
"""Memory of a small value beside its bytes."""
SAMPLES = 100
"""Items of a long array from which its memory is estimated."""


def may_be_long(txn: Txn, session: Session, names: Sequence[bytes], count: int | None) -> bool:
    """Return whether a read of ``count`` entries of each stream may have a long reply."""
    if not session.pages or count is None or count * len(names) > txn.thresholds.look_rows:
        return session.pages
    streams = [txn.catalog.streams.get(name) for name in names]
    return any(count > entries.first_page(stream) for stream in streams if stream is not None)


def is_put_off(txn: Txn, session: Session) -> bool:
    """Return whether a long read must wait for a transaction without changes."""
    return txn.dirty and not session.in_exec


def is_long(txn: Txn, session: Session, items: int) -> bool:
    """Return whether a reply of so many items is written in pages."""
    return session.pages and items > txn.thresholds.short_rows


def of_outcomes(txn: Txn, session: Session, outcomes: Sequence[Outcome]) -> Reply:
    """Return the outcome of each ID."""
    return paged(txn, session, [int(outcome) for outcome in outcomes], len(outcomes))


def paged(txn: Txn, session: Session, reply: Reply, items: int) -> Reply:
    """Return a reply of so many items; a long one is written in pages."""
    return Paged(reply) if is_long(txn, session, items) else reply


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
    return sum([_memory_of_pair(entries) for _, entries in streams])


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
    Shared: lambda reply: memory_of(reply.reply),
    Streams: lambda reply: _memory_of_streams(reply.streams),
    Verbatim: lambda reply: OBJECT_BYTES + len(reply.text),
    EncodedEntries: entries.memory_of_entries,
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


def of_found(txn: Txn, session: Session, found: Found) -> Streams | Paged | None:
    """Return the entries that a read found; None if there are none."""
    if not found:
        return None
    reply = Streams([(key_of(name), entries) for name, entries in found])
    if is_long(txn, session, sum(len(entries) for _, entries in found)):
        return Paged(reply)
    return reply
