"""KVSTREAM.ACK, EXTEND and NACK: settle deliveries by their tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvstream.commands.args import Args, Argv, Option, stream_id, switch, value
from kvstream.commands.command import FAST_WRITE, FIRST, OURS, Answer, Family, Session
from kvstream.commands.incremental import are_many, settle_in_parts
from kvstream.commands.replies import Reply
from kvstream.commands.reply_pages import page_if_long
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations.queues import leases
from kvstream.operations.queues.leases import Token

COMMANDS = Family("stream")
_TOKENS = "key group consumer id deliveries [id deliveries ...]"
_COUNT = "the number of deliveries must be a positive integer"


@COMMANDS.command(
    "kvstream.ack",
    "key group consumer [DELETE] id deliveries [id deliveries ...]",
    *(FAST_WRITE, FIRST),
    since=OURS,
)
def ack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Acknowledge deliveries; return for each 1 done, 0 not pending, -1 lease lost.

    DELETE: Delete those that are done from the stream.

    A delivery is an ID with the number of deliveries that its reader has seen: one more than
    XREADGROUP CLAIM returns, and the last column of XPENDING. The lease is lost if the entry is no
    longer pending with the consumer under that number.

    A server settles very many deliveries in parts, which other clients see one by one.
    """
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    deletes = argv[4].upper() == b"DELETE"
    settled = leases.ack_delete if deletes else leases.ack

    def settle(txn: Txn, tokens: list[Token]) -> list[int]:
        return settled(txn, name, group, consumer, tokens)

    return _settle(txn, session, argv[5 if deletes else 4 :], settle)


@COMMANDS.command("kvstream.extend", _TOKENS, FAST_WRITE, FIRST, since=OURS)
def extend(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Begin leases anew; return for each 1 done, 0 not pending, -1 lease lost."""
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]

    def settle(txn: Txn, tokens: list[Token]) -> list[int]:
        return leases.extend(txn, name, group, consumer, tokens)

    return _settle(txn, session, argv[4:], settle)


@dataclass(slots=True)
class _Nack:
    delay_ms: int | None = None
    fatal: bool = False
    error: bytes = b""
    traceback: bytes = b""
    max_deliveries: int = 0
    untried: bool = False


def _delay(args: Args, nack: _Nack) -> None:
    nack.delay_ms = args.at_least(0, "DELAY must not be negative", "DELAY must be an integer")


def _deliveries(args: Args, nack: _Nack) -> None:
    nack.max_deliveries = args.at_least(1, _COUNT, _COUNT)


_OPTIONS: dict[bytes, Option[_Nack]] = {
    b"DELAY": (1, _delay),
    b"FATAL": switch("fatal"),
    b"ERROR": value("error"),
    b"TRACEBACK": value("traceback"),
    b"DELIVERIES": (1, _deliveries),
    b"UNTRIED": switch("untried"),
}


@COMMANDS.command(
    "kvstream.nack",
    "key group consumer [DELAY ms] [FATAL] [ERROR text] [TRACEBACK text] [DELIVERIES n] "
    "[UNTRIED] id deliveries [id deliveries ...]",
    *(FAST_WRITE, FIRST),
    since=OURS,
)
def nack(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Give deliveries back to the group; return for each 1 done, 0 not pending, -1 lease lost.

    DELAY: They are delivered again after so many milliseconds, not after the policy's backoff.
    FATAL: They are not to be repeated, and move to the dead letters.
    ERROR: What went wrong, for the dead letters.
    TRACEBACK: Where it went wrong, for the dead letters.
    DELIVERIES: Those delivered so often move to the dead letters, whatever the policy allows.
    UNTRIED: The delivery does not count, as with XNACK SILENT, and DELAY may make it wait.

    Entries that were delivered as often as the policy allows move to the dead letters as well. A
    waiting entry has no owner in XPENDING. DUMP has it as one that is ready.
    """
    options, args = _Nack(), Args(argv, 4)
    args.take_leading_options(_OPTIONS, options)
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]

    def settle(txn: Txn, tokens: list[Token]) -> list[int]:
        return leases.nack(
            *(txn, name, group, consumer, tokens, options.delay_ms, options.fatal),
            *(options.error, options.traceback, options.max_deliveries, options.untried),
        )

    return _settle(txn, session, args.rest(), settle)


def _settle(
    txn: Txn, session: Session, words: Argv, settle: Callable[[Txn, list[Token]], list[int]]
) -> Answer:
    """Parse tokens and settle them, in parts if they are very many."""
    if not words or len(words) % 2:
        raise InvalidArgument("each ID needs the number of its deliveries after it")
    if are_many(txn, session, len(words) // 2):
        return settle_in_parts(words, 2, _tokens, settle, partial(_outcomes, txn, session))
    return [*map(int, settle(txn, _tokens(words)))]


def _outcomes(txn: Txn, session: Session, outcomes: list[int]) -> Reply:
    return page_if_long(txn, session, [*map(int, outcomes)], len(outcomes))


def _tokens(words: Argv) -> list[Token]:
    """Return the pairs of an ID and a number of deliveries."""
    args, tokens = Args(words, 0), []
    while args:
        eid = stream_id(args.next())
        tokens.append((eid, args.at_least(0, _COUNT, _COUNT)))
    return tokens
