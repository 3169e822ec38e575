"""Long replies of sessions that take them page by page.

What is short is answered as to anybody. What is long is read from the store as it is when nothing
of the transaction is uncommitted, so that others may go on: until then the answer is LATER. A read
in EXEC cannot be put off. It sees what is committed and, held in memory, what the transaction has
changed of that before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kvstream.commands.args import Argv
from kvstream.commands.command import LATER, Answer, Later, Session, Stepwise
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
from kvstream.operations.delete import LONG_ROWS, Live, LongErasure, Outcome
from kvstream.operations.read import Reply as Found
from kvstream.types.ids import StreamID
from kvstream.types.records import AnyEntry

OBJECT_BYTES = 48
"""What a small value takes beside its bytes."""
SAMPLES = 100
"""Items of a long array by which its memory is estimated."""
T = TypeVar("T")


def in_steps(
    step: Callable[[Txn], T | None],
    answer: Callable[[T], Answer],
    undo: Callable[[Txn], None] | None = None,
) -> Stepwise:
    """Return what has ``step`` called until it returns anything, which ``answer`` makes a reply."""

    def run(txn: Txn, session: Session, argv: Argv) -> Answer:
        done = step(txn)
        return going_on if done is None else answer(done)

    going_on = Stepwise(run, undo)
    return going_on


def behind_steps(
    step: Callable[[Txn], bool],
    answer: Callable[[Txn, Session], Answer],
    undo: Callable[[Txn], None] | None = None,
) -> Stepwise:
    """Return what has ``step`` called until it is done, and then answers at once."""

    def run(txn: Txn, session: Session, argv: Argv) -> Answer:
        return answer(txn, session) if step(txn) else going_on

    going_on = Stepwise(run, undo)
    return going_on


def of_erasure(
    session: Session,
    txn: Txn,
    name: bytes,
    ids: Sequence[StreamID],
    operation: Callable[[Txn, Live], T],
    answer: Callable[[T], Answer],
) -> Answer:
    """Answer what an operation has done that deletes some IDs of a stream."""
    if session.steps and len(ids) > LONG_ROWS:
        return in_steps(LongErasure(name, ids, operation).step, answer)
    return answer(operation(txn, entries.live))


def may_be_long(txn: Txn, session: Session, names: Sequence[bytes], count: int | None) -> bool:
    """Tell whether it is worth looking how much there is, of ``count`` for each stream."""
    if not session.pages or count is None or count * len(names) > pages.LOOK_ROWS:
        return session.pages
    found = [txn.catalog.streams.get(name) for name in names]
    return any(count > entries.first_page(stream) for stream in found if stream is not None)


def is_put_off(txn: Txn, session: Session) -> bool:
    """Tell whether a long read is to wait for a transaction that has changed nothing yet."""
    return txn.dirty and not session.in_exec


def is_long(session: Session, items: int) -> bool:
    """Tell whether a reply of so many items is to be written in pages."""
    return session.pages and items > pages.SHORT_ROWS


def of_outcomes(session: Session, outcomes: Sequence[Outcome]) -> Reply:
    """Answer what became of each of some IDs."""
    return paged(session, [int(outcome) for outcome in outcomes], len(outcomes))


def paged(session: Session, reply: Reply, items: int) -> Reply:
    """Return a reply of so many items, to be written in pages where it is long."""
    return Paged(reply) if is_long(session, items) else reply


def memory_of(reply: Any) -> int:
    """Return about how many bytes of memory a reply takes until it has been written."""
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
    """Return the same of what comes in steps: they are there, or an iterator is."""
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
    """Return an array of replies, to be written page by page; each is let go once it is written.

    They take so much ``memory`` together.
    """

    def steps() -> Iterator[int | list[Reply]]:
        yield len(replies)
        replies.reverse()
        while replies:
            yield [replies.pop()]

    return Paged(Gradual(steps()), memory)


def of_string(txn: Txn, session: Session, name: bytes) -> Answer:
    """Answer a string."""
    string = strings.find(txn, name)
    if string is None or string.length <= pages.short_bytes(txn):
        return None if string is None else string.read(txn.batch)
    if is_put_off(txn, session):
        return LATER
    return Paged(of_large(txn, string))


def of_large(txn: Txn, string: StringMeta) -> Bulk:
    """Return a string as it is now, to be read piece by piece."""
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
    """Answer the entries between two IDs."""
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
    """Answer what lies after an ID in each of several streams; None: nothing."""
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
            return _abreast(read.steps(read.begin_snapshot(txn), parts, count))
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


def _abreast(steps: read.Steps | None) -> Paged | None:
    return None if steps is None else Paged(Streams(Gradual(map(_wrapped, steps))))


def _wrapped(step: int | read.Items | None) -> int | list[Pair] | None:
    if not isinstance(step, list):
        return step
    return [(key, found if isinstance(found, Rows) else Gradual(found)) for key, found in step]


def of_found(session: Session, found: Found) -> Streams | Paged | None:
    """Answer what a read has found; None: nothing."""
    if not found:
        return None
    reply = Streams([(key_of(name), entries) for name, entries in found])
    if is_long(session, sum(len(entries) for _, entries in found)):
        return Paged(reply)
    return reply
