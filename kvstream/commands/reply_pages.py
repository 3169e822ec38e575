"""Long replies, written page by page to sessions that accept it.

A short reply is built at once. A long one is read while its client takes it, from a snapshot that
is made in a transaction without changes; in any other the command returns LATER, and runs again. A
read in EXEC cannot wait: it sees the committed rows, and in memory the changes of its transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kvstream.commands.command import (
    LATER,
    Answer,
    LongReply,
    Session,
    Stepwise,
    Unread,
)
from kvstream.commands.incremental import run_before
from kvstream.commands.replies import (
    NULL_ARRAY,
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
    StoredEntry,
    Streams,
    Verbatim,
)
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn
from kvstream.operations.reads import seeks
from kvstream.operations.reads.limits import memory_of_entries
from kvstream.operations.reads.pages import ITERATOR_BYTES
from kvstream.operations.reads.range import LongRead, Range, read_range
from kvstream.operations.reads.read import Reply as Found
from kvstream.operations.reads.read import StreamsRead, plan_loading_streams, read_streams
from kvstream.types.records import AnyEntry, Outcome

OBJECT_BYTES = 48
"""Memory of a small value beside its bytes."""
SAMPLES = 100
"""Items of a long array from which its memory is estimated."""


def _begin_pages(
    txn: Txn, session: Session, begin: "Callable[[], Reply | Iterator[Any]]"
) -> Answer:
    """Begin a reply in pages; put it off if it must wait for a transaction without changes."""
    if txn.dirty and not session.in_exec:
        return LATER
    reply = begin()
    return None if reply is None else page(reply)


def _begin_streams(read: LongRead[seeks.Items | seeks.Steps | None]) -> Streams | None:
    found = read.begin()
    if found is None or isinstance(found, list):
        return None if found is None else Streams(_pairs(found))
    return Streams(Gradual(_pairs(step) if isinstance(step, list) else step for step in found))


def _pairs(found: seeks.Items) -> list[Pair]:
    """Return keys and entries; those that come in steps are written step by step."""
    return [
        (key, Gradual(entries) if isinstance(entries, Iterator) else entries)
        for key, entries in found
    ]


def _read_range(txn: Txn, session: Session, asked: Range) -> Answer:
    found = read_range(txn, asked, session.pages)
    if type(found) is LongRead:
        return _begin_pages(txn, session, found.begin)
    return NULL_ARRAY if found is None else found  # type: ignore[return-value]


def _read_streams(txn: Txn, session: Session, asked: StreamsRead) -> Answer:
    found: Any = read_streams(txn, asked, session.pages)
    if type(found) is LongRead:
        answer = _begin_pages(txn, session, partial(_begin_streams, found))
        if answer is not None:
            return answer
    elif found:
        return Streams(found)
    return NULL_ARRAY if asked.block is None else asked.block()


def _begin_reply(txn: Txn, session: Session, reply: LongReply) -> Answer:
    return _begin_pages(txn, session, reply.begin)


READERS: Final[Mapping[type, Callable[[Txn, Session, Any], Answer]]] = {
    Range: _read_range,
    StreamsRead: _read_streams,
    LongReply: _begin_reply,
}
"""How the ``Unread`` that a handler returned is read: at once, in pages, or later."""


def load_first(
    txn: Txn, session: Session, names: Sequence[bytes], answer: Callable[[Txn, Session], Unread]
) -> Stepwise[bool] | Unread:
    """Answer once the streams are in memory; they are loaded in steps if they are many."""
    if session.steps and len(names) > txn.thresholds.long_loading:
        plan = plan_loading_streams(txn, names)
        if plan is not None:
            return run_before(plan, answer)
    return answer(txn, session)


def is_long(txn: Txn, session: Session, items: int) -> bool:
    """Return whether a reply of so many items is written in pages."""
    return session.pages and items > txn.thresholds.short_rows


def of_outcomes(txn: Txn, session: Session, outcomes: Sequence[Outcome]) -> Reply:
    """Return the outcome of each ID."""
    return page_if_long(txn, session, [int(outcome) for outcome in outcomes], len(outcomes))


def page_if_long(txn: Txn, session: Session, reply: Reply, items: int) -> Reply:
    """Return a reply of so many items; a long one is written in pages."""
    return page(reply) if is_long(txn, session, items) else reply


def array_of(steps: Iterable[Any]) -> Reply:
    """Return an array that is encoded part by part: its number of items, then the parts."""
    return Gradual(steps)


def page(reply: "Reply | Iterator[Any]") -> Reply:
    """Return a reply that is written in pages to a session that takes them; steps: an array."""
    return Paged(array_of(reply) if isinstance(reply, Iterator) else reply)


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
    return memory_of(steps) if isinstance(steps, list) else ITERATOR_BYTES


def _memory_of_streams(streams: Sequence[Pair] | Gradual) -> int:
    if isinstance(streams, Gradual):
        return memory_of(streams)
    return sum([_memory_of_pair(entries) for _, entries in streams])


def _memory_of_pair(found: Sequence[AnyEntry] | Gradual) -> int:
    return memory_of(found) if isinstance(found, Gradual) else memory_of_entries(found)


_MEMORY: dict[type, Callable[[Any], int]] = {
    Alike: lambda reply: len(reply.ids) * OBJECT_BYTES,
    Bulk: lambda reply: _memory_of_steps(reply.pieces),
    Entries: lambda reply: memory_of_entries(reply.entries),
    Gradual: lambda reply: _memory_of_steps(reply.steps),
    Map: lambda reply: sum([memory_of(part) for pair in reply.pairs for part in pair]),
    Paged: lambda reply: reply.memory or memory_of(reply.reply),
    Rows: memory_of_entries,
    Shared: lambda reply: memory_of(reply.reply),
    StoredEntry: lambda reply: memory_of_entries(reply.rows),
    Streams: lambda reply: _memory_of_streams(reply.streams),
    Verbatim: lambda reply: OBJECT_BYTES + len(reply.text),
    EncodedEntries: memory_of_entries,
}


def free_when_written(replies: list[Reply], memory: int) -> Paged:
    """Return an array of replies that frees each one once it is written.

    ``memory``: the bytes of all of them.
    """

    def steps() -> Iterator[int | list[Reply]]:
        yield len(replies)
        replies.reverse()
        while replies:
            yield [replies.pop()]

    return Paged(Gradual(steps()), memory)


def streams_of(found: Sequence[tuple[bytes, Any]]) -> Streams | None:
    """Return the entries that a read found at once; None if there are none."""
    return Streams([(key_of(name), entries) for name, entries in found]) if found else None


def reply_of_delivery(txn: Txn, session: Session, found: Found) -> Reply:
    """Return the entries that XREADGROUP has delivered; None if there are none."""
    if not found:
        return None
    items = sum(len(entries) for _, entries in found)
    return page_if_long(txn, session, streams_of(found), items)
