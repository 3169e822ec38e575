"""KVSTREAM.ACK, EXTEND and NACK: settle deliveries by their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvstream.commands.args import Args, Argv, Option, stream_id, switch
from kvstream.commands.command import FAST_WRITE, FIRST, OURS, Family, Session
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations.queues import leases
from kvstream.operations.queues.leases import Token

COMMANDS = Family("stream")
_TOKENS = "key group consumer id deliveries [id deliveries ...]"
_COUNT = "the number of deliveries must be a positive integer"


@COMMANDS.command("kvstream.ack", _TOKENS, FAST_WRITE, FIRST, since=OURS)
def ack(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Acknowledge deliveries; return for each 1 done, 0 not pending, -1 lease lost.

    A delivery is an ID with the number of deliveries that its reader has seen: one more than
    XREADGROUP CLAIM returns, and the last column of XPENDING. The lease is lost if the entry is no
    longer pending with the consumer under that number.
    """
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    return _outcomes(leases.ack(txn, name, group, consumer, _tokens(argv[4:])))


@COMMANDS.command("kvstream.extend", _TOKENS, FAST_WRITE, FIRST, since=OURS)
def extend(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Begin leases anew; return for each 1 done, 0 not pending, -1 lease lost."""
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    return _outcomes(leases.extend(txn, name, group, consumer, _tokens(argv[4:])))


@dataclass(slots=True)
class _Nack:
    delay_ms: int | None = None
    fatal: bool = False
    error: bytes = b""
    traceback: bytes = b""


def _delay(args: Args, nack: _Nack) -> None:
    nack.delay_ms = args.at_least(0, "DELAY must not be negative", "DELAY must be an integer")


def _error(args: Args, nack: _Nack) -> None:
    nack.error = args.next()


def _traceback(args: Args, nack: _Nack) -> None:
    nack.traceback = args.next()


_OPTIONS: dict[bytes, Option[_Nack]] = {
    b"DELAY": (1, _delay),
    b"FATAL": switch("fatal"),
    b"ERROR": (1, _error),
    b"TRACEBACK": (1, _traceback),
}


@COMMANDS.command(
    "kvstream.nack",
    "key group consumer [DELAY ms] [FATAL] [ERROR text] [TRACEBACK text] "
    "id deliveries [id deliveries ...]",
    *(FAST_WRITE, FIRST),
    since=OURS,
)
def nack(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Give deliveries back to the group; return for each 1 done, 0 not pending, -1 lease lost.

    DELAY: They are delivered again after so many milliseconds, not after the policy's backoff.
    FATAL: They are not to be repeated, and move to the dead letters.
    ERROR: What went wrong, for the dead letters.
    TRACEBACK: Where it went wrong, for the dead letters.

    Entries that were delivered as often as the policy allows move to the dead letters as well. A
    waiting entry has no owner in XPENDING. DUMP and COPY show it as one that is ready.
    """
    options, args = _Nack(), Args(argv, 4)
    while args and args.take_option(_OPTIONS, options):
        pass
    tokens = _tokens(args.take(len(args)))
    name, group, consumer = session.prefix + argv[1], argv[2], argv[3]
    return _outcomes(
        leases.nack(
            *(txn, name, group, consumer, tokens, options.delay_ms, options.fatal),
            *(options.error, options.traceback),
        )
    )


def _tokens(words: Sequence[bytes]) -> list[Token]:
    """Return the pairs of an ID and a number of deliveries."""
    if not words or len(words) % 2:
        raise InvalidArgument("each ID needs the number of its deliveries after it")
    args, tokens = Args(list(words), 0), []
    while args:
        eid = stream_id(args.next())
        tokens.append((eid, args.at_least(0, _COUNT, _COUNT)))
    return tokens


def _outcomes(outcomes: list[int]) -> Reply:
    return [*map(int, outcomes)]
