"""XPENDING, XCLAIM and XAUTOCLAIM."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

from kvstream.commands.args import (
    Args,
    Argv,
    integer,
    leading,
    range_end,
    range_start,
    stream_id,
    stream_ids,
    syntax_error,
    text,
)
from kvstream.commands.command import FAST_WRITE, FIRST, READ, Answer, Family, LongReply, Session
from kvstream.commands.incremental import are_many, run_in_steps, run_on_ids
from kvstream.commands.replies import NULL_ARRAY, Alike, Entries, Reply, Rows
from kvstream.commands.reply_pages import array_of, is_long, page, page_if_long
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.meta.txn import Txn
from kvstream.operations import claim
from kvstream.operations.claim import ClaimedParts, ClaimOptions
from kvstream.operations.groups import group_of_key
from kvstream.operations.plans import Plan
from kvstream.types.ids import UNPACKED, StreamID
from kvstream.types.records import AnyEntry

COMMANDS = Family("stream")
_FORM_WORDS_MIN, _FORM_WORDS_MAX = 6, 9
"""Words of XPENDING's extended form."""
_TOGETHER = 1000
"""Deleted IDs in one piece of a reply."""


@COMMANDS.command(
    "xpending",
    "key group [[IDLE min-idle-time] start end count [consumer]]",
    *(READ, FIRST),
    since="5.0.0",
    tips="nondeterministic_output",
)
def xpending(txn: Txn, session: Session, argv: Argv) -> "Answer | LongReply":
    """Return a summary of the pending entries of a group, or a row for each entry.

    IDLE: Only entries that have been pending for so many milliseconds.
    """
    name, group = session.prefix + argv[1], argv[2]
    if len(argv) == 3:
        return _summary(txn, name, group)
    if not _FORM_WORDS_MIN <= len(argv) <= _FORM_WORDS_MAX:
        raise syntax_error()
    min_idle_ms, at = 0, 3
    if argv[3].upper() == b"IDLE":
        min_idle_ms, at = integer(argv[4]), 5
        if len(argv) < at + 3:
            raise syntax_error()
    count = integer(argv[at + 2])
    start, end = range_start(argv[at]), range_end(argv[at + 1])
    asked = start, end, count, argv[at + 3] if at + 3 < len(argv) else None, min_idle_ms
    if is_long(txn, session, count):
        begin = partial(claim.pending_steps, txn, name, group, *asked)
        return LongReply(lambda: map(_rows, begin()))
    pieces = claim.pending_pieces(txn, name, group, *asked)
    return array_of([*map(_rows, claim.count_first(pieces))])


def _rows(step: claim.Piece | int | None) -> Alike | int | None:
    if step is None or isinstance(step, int):
        return step
    return Alike(step.ids, (step.consumer, step.idle_ms, step.deliveries))


def _summary(txn: Txn, name: bytes, group: bytes) -> Reply:
    found = claim.summary_row(txn, name, group)
    if found is None:
        return [0, None, None, NULL_ARRAY]
    count, first, last, by_consumer = found
    consumers: list[Reply] = [[owner, b"%d" % held] for owner, held in by_consumer.items()]
    return [count, b"%d-%d" % UNPACKED(first), b"%d-%d" % UNPACKED(last), consumers]


def _show_claimed(entries: Sequence[AnyEntry], justid: bool) -> Reply:
    if justid:
        return [bytes(entry.id) for entry in entries]
    return entries if type(entries) is Rows else Entries(entries)


@COMMANDS.command(
    "xclaim",
    "key group consumer min-idle-time id [id ...] [IDLE milliseconds] "
    "[TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id]",
    *(FAST_WRITE, FIRST),
    since="5.0.0",
    tips="nondeterministic_output",
    counted_keys=1,
)
def xclaim(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Make a consumer the owner of pending entries, and return these.

    IDLE: The idle time to set.
    TIME: The delivery time to set; a time in the future counts as now.
    LASTID: Raise the last delivered ID of the group to this one.

    Entries that wait for their backoff are claimed with FORCE alone, and never by XAUTOCLAIM.
    """
    group_of_key(txn, session.prefix + argv[1], argv[2])
    min_idle_ms = integer(argv[4], "Invalid min-idle-time argument for XCLAIM")
    if len(argv) > txn.thresholds.long_rows and are_many(txn, session, len(argv) - 5):
        begin = partial(_plan, session, argv, min_idle_ms)
        return run_on_ids(argv[5:], begin, lambda claimed: page(_show_entries(claimed)), True)
    ids = _leading_ids(argv[5:])
    asked: ClaimOptions = {}
    if len(argv) > 5 + len(ids):
        asked = _claim_options(txn, Args(argv, 5 + len(ids)))
    return _claim(txn, session, argv, min_idle_ms, ids, asked)


def _claim(
    txn: Txn,
    session: Session,
    argv: Argv,
    min_idle_ms: int,
    ids: Sequence[StreamID],
    asked: ClaimOptions,
) -> Reply:
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    entries = claim.claim(txn, name, group, consumer, min_idle_ms, ids, **asked)
    return page_if_long(txn, session, _show_claimed(entries, "justid" in asked), len(entries))


def _plan(
    session: Session, argv: Argv, min_idle_ms: int, txn: Txn, packed: list[bytes]
) -> Plan[ClaimedParts]:
    """Return the plan that claims IDs."""
    asked = _claim_options(txn, Args(argv, 5 + len(packed)))
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    return claim.plan_claim(name, group, consumer, min_idle_ms, packed, **asked)


def _show_entries(claimed: ClaimedParts) -> Reply:
    total = [sum(map(len, claimed.parts))]
    if claimed.justid:
        ids = ([bytes(each.id) for each in rows] for rows in claimed.parts)
        return array_of(chain(total, ids))
    return array_of(chain(total, claimed.parts))


def _leading_ids(words: Argv) -> list[StreamID]:
    """Parse the IDs before the first word that is not an ID."""
    letters = (at for at, word in enumerate(words) if word[:1].isalpha())  # of options
    try:
        return stream_ids(words[: next(letters, len(words))])
    except InvalidID:
        return leading(words, stream_id)


def _claim_options(txn: Txn, args: Args) -> ClaimOptions:
    options: ClaimOptions = {}
    while args:
        word = args.next()
        option = word.upper()
        if option == b"FORCE":
            options["force"] = True
        elif option == b"JUSTID":
            options["justid"] = True
        elif option == b"LASTID" and args:
            options["last_id"] = args.id()
        elif option in (b"IDLE", b"TIME", b"RETRYCOUNT") and args:
            value = args.integer(f"Invalid {text(option)} option argument for XCLAIM")
            _claim_number(txn, options, option, value)
        else:
            raise InvalidArgument(f"Unrecognized XCLAIM option '{text(word)}'")
    return options


def _claim_number(txn: Txn, options: ClaimOptions, option: bytes, value: int) -> None:
    if option == b"RETRYCOUNT":
        options["retrycount"] = value if value >= 0 else None
        return
    time_ms = txn.now_ms - value if option == b"IDLE" else value
    # The clock of a client may be wrong: an impossible time counts as now.
    options["time_ms"] = time_ms if 0 <= time_ms <= txn.now_ms else None


@COMMANDS.command(
    "xautoclaim",
    "key group consumer min-idle-time start [COUNT count] [JUSTID]",
    *(FAST_WRITE, FIRST),
    since="6.2.0",
    uses="RW delete",
    tips="nondeterministic_output",
    counted_keys=1,
)
def xautoclaim(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Claim entries that have been idle; return the next cursor, the entries, the deleted IDs.

    COUNT: The number of entries to claim or drop at most; 100 by default.

    A server claims thousands of entries in steps. If other clients change the group meanwhile, it
    may claim fewer than COUNT, or miss an entry behind the cursor that becomes idle: the next call
    finds it.
    """
    min_idle_ms = integer(argv[4], "Invalid min-idle-time argument for XAUTOCLAIM")
    start = range_start(argv[5])
    count, justid = claim.AUTOCLAIM_COUNT, False
    args = Args(argv, 6)
    while args:
        word = args.option()
        if word == b"COUNT" and args:
            count = args.integer("COUNT must be > 0")
            claim.refuse_autoclaim_count(count)
        elif word == b"JUSTID":
            justid = True
        else:
            raise syntax_error()
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    asked = name, group, consumer, min_idle_ms, start, count, justid
    if are_many(txn, session, count):
        group_of_key(txn, name, group)
        return run_in_steps(claim.plan_autoclaim(*asked), _show_autoclaimed_parts)
    return _show_autoclaimed(txn, session, justid, claim.autoclaim(txn, *asked))


def _show_autoclaimed(
    txn: Txn, session: Session, justid: bool, done: claim.AutoclaimResult
) -> Reply:
    deleted = [bytes(eid) for eid in done.deleted]
    reply = [bytes(done.cursor), _show_claimed(done.entries, justid), deleted]
    return page_if_long(txn, session, reply, len(done.entries) + len(deleted))


def _show_autoclaimed_parts(done: ClaimedParts) -> Reply:
    gone = done.gone
    parts = (gone[at : at + _TOGETHER] for at in range(0, len(gone), _TOGETHER))
    texts = ([b"%d-%d" % UNPACKED(eid) for eid in part] for part in parts)
    deleted = array_of(chain([len(gone)], texts))
    return page([bytes(done.cursor), _show_entries(done), deleted])
