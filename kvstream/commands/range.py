"""XRANGE, XREVRANGE, XLEN and KVSTREAM.COUNT."""

from itertools import islice

from kvstream.commands.args import (
    COUNT,
    SHORT_COUNTS,
    Args,
    Argv,
    integer,
    range_end,
    range_start,
    syntax_error,
)
from kvstream.commands.command import (
    FAST_READ,
    FIRST,
    OURS,
    READ,
    Answer,
    Family,
    Session,
    Unread,
)
from kvstream.commands.incremental import begin_steps
from kvstream.commands.replies import Reply
from kvstream.meta.txn import Txn
from kvstream.operations.plans import ALWAYS_HOLDS, Planning
from kvstream.operations.reads import counts
from kvstream.operations.reads.range import Range

COMMANDS = Family("stream")


@COMMANDS.command("xlen", "key", FAST_READ, FIRST, since="5.0.0", uses="RO")
def xlen(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the number of entries; 0 if the key does not exist."""
    return counts.length(txn, session.prefix + argv[1])


@COMMANDS.command("kvstream.count", "key start end", READ, FIRST, since=OURS)
def count(txn: Txn, session: Session, argv: Argv) -> "Answer | Unread":
    """Return the number of entries between two IDs, which are as those of XRANGE.

    It is exact, and 0 if the key does not exist. The cost is that of nodes, not of entries.
    """
    parts = counts.count_in_steps(
        txn, session.prefix + argv[1], range_start(argv[2]), range_end(argv[3])
    )
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
def xrange(txn: Txn, session: Session, argv: Argv) -> Range:
    """Return the entries between two IDs, oldest first."""
    start, end = range_start(argv[2]), range_end(argv[3])
    return Range(session.prefix + argv[1], start, end, _count(argv))


@COMMANDS.command("xrevrange", "key end start [COUNT count]", READ, FIRST, since="5.0.0")
def xrevrange(txn: Txn, session: Session, argv: Argv) -> Range:
    """Return the entries between two IDs, newest first; the greater ID is given first."""
    start = range_start(argv[3])  # its error comes first, though it is written last
    return Range(session.prefix + argv[1], start, range_end(argv[2]), _count(argv), True)


def _count(argv: Argv) -> int | None:
    if len(argv) == 6 and argv[4] in COUNT:
        return SHORT_COUNTS.get(argv[5]) or integer(argv[5])
    count = None
    args = Args(argv, 4)
    while args:
        if args.option() != b"COUNT":
            raise syntax_error()
        count = args.integer()
    return count
