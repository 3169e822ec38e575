"""XRANGE, XREVRANGE, XLEN and KVSTREAM.COUNT."""

from itertools import islice

from kvstream.commands.args import (
    COUNT,
    FEW_COUNTS,
    Args,
    Argv,
    range_end,
    range_start,
    syntax_error,
)
from kvstream.commands.command import (
    FAST_READ,
    FIRST,
    LATER,
    OURS,
    READ,
    Answer,
    Family,
    Session,
)
from kvstream.commands.incremental import begin_steps
from kvstream.commands.replies import NULL_ARRAY, Entries, Gradual, Paged, Reply
from kvstream.commands.reply_pages import is_put_off, may_be_long
from kvstream.meta.txn import Txn
from kvstream.operations import pages
from kvstream.operations import range as ranges
from kvstream.operations.plans import ALWAYS_HOLDS, Planning
from kvstream.types.ids import StreamID

COMMANDS = Family("stream")


@COMMANDS.command("xlen", "key", FAST_READ, FIRST, since="5.0.0", uses="RO")
def xlen(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the number of entries; 0 if the key does not exist."""
    return ranges.length(txn, session.prefix + argv[1])


@COMMANDS.command("kvstream.count", "key start end", READ, FIRST, since=OURS)
def count(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the number of entries between two IDs, which are as those of XRANGE.

    It is exact, and 0 if the key does not exist. The cost is that of nodes, not of entries.
    """
    parts = ranges.counted(txn, session.prefix + argv[1], range_start(argv[2]), range_end(argv[3]))
    if not session.steps:
        return sum(parts)

    def plan(txn: Txn) -> Planning[int]:
        total = 0
        while some := [*islice(parts, txn.thresholds.node_pages_together)]:
            total += sum(some)
            if len(some) < txn.thresholds.node_pages_together:
                break
            yield ALWAYS_HOLDS
        return total

    return begin_steps(txn, session, plan, int)


@COMMANDS.command("xrange", "key start end [COUNT count]", READ, FIRST, since="5.0.0")
def xrange(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the entries between two IDs, oldest first."""
    return _range(txn, session, argv, range_start(argv[2]), range_end(argv[3]), False)


@COMMANDS.command("xrevrange", "key end start [COUNT count]", READ, FIRST, since="5.0.0")
def xrevrange(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the entries between two IDs, newest first; the greater ID is given first."""
    start = range_start(argv[3])  # its error comes first, though it is written last
    return _range(txn, session, argv, start, range_end(argv[2]), True)


def _range(
    txn: Txn, session: Session, argv: Argv, start: StreamID, end: StreamID, reverse: bool
) -> Answer:
    few = None
    if len(argv) == 6 and argv[4] in COUNT:
        few = FEW_COUNTS.get(argv[5])
    elif len(argv) == 4 and start == end:
        few = 1
    if few is not None:
        rows = ranges.few(txn, session.prefix + argv[1], start, end, few, reverse)
        if rows is not None:
            return rows
    count = None
    args = Args(argv, 4)
    while args:
        if args.option() != b"COUNT":
            raise syntax_error()
        count = args.integer()
    name = session.prefix + argv[1]
    if may_be_long(txn, session, [name], count):
        return _paged_range(txn, session, name, start, end, count, reverse)
    if not reverse and count is not None and ranges.is_cached(txn, count):
        stream = txn.stream(name)
        if stream is None or not ranges.is_large(stream, count):
            return [] if stream is None else ranges.between(txn, stream, start, end, count)
    entries = ranges.scan(txn, name, start, end, count, reverse)
    return NULL_ARRAY if entries is None else Entries(entries)


def _paged_range(
    txn: Txn,
    session: Session,
    name: bytes,
    start: StreamID,
    end: StreamID,
    count: int | None,
    reverse: bool,
) -> Answer:
    """Return the entries between two IDs, in pages if they are many."""
    stream = txn.stream(name)
    if stream is None:
        return []
    rows = pages.few(txn, stream, start, end, count, reverse)
    if rows is not None:
        return Entries(rows)
    if is_put_off(txn, session):
        return LATER
    return Paged(Gradual(pages.entry_steps(txn, stream, start, end, count, reverse)))
