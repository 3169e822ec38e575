"""XACK, XACKDEL and XNACK."""

from dataclasses import replace
from functools import partial

from kvstream.commands.args import Args, Argv, packed_ids, stream_ids, text
from kvstream.commands.command import FAST_WRITE, FIRST, Answer, Family, Session, flags
from kvstream.commands.delete import IDS_SYNTAX, policy_and_ids
from kvstream.commands.incremental import are_many, run_erasure, run_on_ids
from kvstream.commands.reply_pages import of_outcomes
from kvstream.commands.trim import POLICY_SYNTAX
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.meta.compiled import plain
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import ack
from kvstream.operations.ack import Nack
from kvstream.operations.delete import Live
from kvstream.operations.groups import group_of_key
from kvstream.types.ids import ascending_packed
from kvstream.types.options import NackMode
from kvstream.types.records import Outcome

COMMANDS = Family("stream")


@COMMANDS.command(
    *("xack", "key group id [id ...]", FAST_WRITE | flags("shows_change"), FIRST),
    since="5.0.0",
    counted_keys=1,
)
def xack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Acknowledge pending entries; return how many were pending."""
    if plain is not None:
        count = plain.acknowledge_words(Run, txn, session.prefix, argv)
        if count >= 0:
            return count
    name, group = session.prefix + argv[1], argv[2]
    if len(argv) > txn.thresholds.long_rows and are_many(txn, session, len(argv) - 3):
        if ack.stream_and_group(txn, name, group) is None:
            return 0
        return run_on_ids(
            argv[3:], lambda txn, ids: ack.plan_ack(name, group, ascending_packed(ids)), int
        )
    try:
        ids = packed_ids(argv[3:])
    except InvalidID:
        if ack.stream_and_group(txn, name, group) is None:  # Redis does not parse the IDs then
            return 0
        raise
    return ack.acknowledge_packed(txn, name, group, ids)


@COMMANDS.command(
    "xackdel",
    f"key group {POLICY_SYNTAX} {IDS_SYNTAX}",
    *(FAST_WRITE | flags("invalidates"), FIRST),
    since="8.2.0",
    uses="RW update delete",
    counted_keys=1,
)
def xackdel(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Acknowledge and delete entries; return for each 1 deleted, 2 referenced, -1 not pending."""
    name, group = session.prefix + argv[1], argv[2]
    missing = ack.stream_and_group(txn, name, group) is None
    policy, raw = policy_and_ids(Args(argv, 3))
    if missing:
        return [-1] * len(raw)
    ids = stream_ids(raw)

    def operation(txn: Txn, live: Live) -> list[Outcome]:
        return ack.acknowledge_and_delete(txn, name, group, ids, policy, live)

    return run_erasure(session, txn, name, ids, operation, partial(of_outcomes, txn, session))


@COMMANDS.command(
    "xnack",
    f"key group SILENT|FAIL|FATAL {IDS_SYNTAX} [RETRYCOUNT count] [FORCE]",
    *(FAST_WRITE, FIRST),
    since="8.8.0",
)
def xnack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return pending entries to their group, with no owner; return how many.

    SILENT: The entry was not processed: its delivery count is lowered by one.
    FAIL: Processing failed: the delivery count stays.
    FATAL: The entry is not to be retried: the delivery count becomes 2^63-1.

    In a group with a policy (KVSTREAM.POLICY SET), FAIL waits for the backoff. FATAL, and FAIL
    after the last delivery, move the entry to the dead letters.
    """
    name, group = session.prefix + argv[1], argv[2]
    group_of_key(txn, name, group)
    mode = NackMode(text(argv[3]).upper())
    args = Args(argv, 4)
    if args.option() != b"IDS":
        raise InvalidArgument("syntax error, expected IDS keyword")
    message = "numids must be a positive integer"
    count = args.at_least(1, message, message)
    if count > len(args):
        raise InvalidArgument("number of IDs doesn't match numids")
    words = args.take(count)

    if are_many(txn, session, count):
        return run_on_ids(
            words, lambda txn, ids: ack.plan_nack(name, group, ids, _nack(mode, args)), int
        )
    ids = stream_ids(words)
    return ack.negative_acknowledge(txn, name, group, ids, _nack(mode, args))


def _nack(mode: NackMode, args: Args) -> Nack:
    """Parse RETRYCOUNT and FORCE."""
    nack = Nack(mode)
    while args:
        word = args.next()
        option = word.upper()
        if option == b"FORCE":
            nack = replace(nack, force=True)
        elif option == b"RETRYCOUNT" and args:
            nack = replace(nack, retrycount=args.integer())
        else:
            raise InvalidArgument(f"Unrecognized XNACK option '{text(word)}'")
    return nack
