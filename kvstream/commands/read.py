"""XREAD, and what it shares with XREADGROUP: options, the list of streams, waiting.

The IDs are fixed when the request arrives: ``$`` and ``+`` become IDs then. An attempt reads in the
transaction that it is given, so that a server can repeat it whenever one of the keys changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kvstream.commands.args import (
    COUNT,
    SHORT_COUNTS,
    Args,
    Argv,
    Option,
    plain_ids,
    positive_count,
    stream_id,
    syntax_error,
    timeout,
)
from kvstream.commands.command import (
    Blocked,
    Family,
    Session,
    Stepwise,
    StreamsKeys,
    Unread,
    flags,
)
from kvstream.commands.replies import RESP3, Shared
from kvstream.commands.reply_pages import load_first, streams_of
from kvstream.errors import InvalidArgument
from kvstream.meta.txn import Txn
from kvstream.operations.reads import read
from kvstream.operations.reads.limits import Budget, refuse_count_above, refuse_limit
from kvstream.operations.reads.read import Position, StreamsRead
from kvstream.types.ids import MIN_ID, StreamID

T = TypeVar("T")
COMMANDS = Family("stream")
LIMITS_SYNTAX = "[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds]"
POSITIONS = {position.value.encode(): position for position in Position}
STREAMS = (b"STREAMS", b"streams")
_BLOCK = (b"BLOCK", b"block")
"""The words as clients write them."""
_TIMEOUT_DIGITS = 15
"""A timeout of so many digits is never too long."""


@dataclass(slots=True)
class ReadOptions:
    """The options of XREAD and XREADGROUP."""

    count: int | None = None
    maxcount: int | None = None
    maxsize: int | None = None
    blocks: bool = False
    timeout_ms: int = 0
    """0: no timeout."""

    def budget(self, session: Session) -> Budget | None:
        if self.maxcount is None and self.maxsize is None:
            return None
        return Budget(self.maxcount, self.maxsize, session.protocol == RESP3)


@COMMANDS.command(
    *("xread", f"{LIMITS_SYNTAX} STREAMS key [key ...] id|$|+ [id|$|+ ...]"),
    *(flags("readonly blocking movablekeys"), StreamsKeys()),
    since="5.0.0",
)
def xread(txn: Txn, session: Session, argv: Argv) -> Stepwise[bool] | Unread:
    """Return the entries after an ID of each of several streams; null if there are none.

    STREAMS: The keys, then for each of them the ID after which to read. `$` is the last ID of the
        stream, `+` reads its last entry.

    `+` returns the last entry that exists even if a later one was deleted; Redis 7.4 returns null
    then, 7.0 and 7.2 have no `+`. A missing ID is refused with the text of Redis 7.2 and later.

    A blocked XREAD of several keys returns WRONGTYPE for a key that has become a string when
    another one has new entries; Redis 7.0 does not, and 8.2 does so too when another one is deleted
    and made again without new entries.
    """
    if argv[-3] in STREAMS:
        wanted = _plain_read(session, argv)
        if wanted is not None:
            return wanted
    asked = ReadOptions()
    args = take_options(argv, _OPTIONS, asked)
    names, ids = take_streams(session, args, "an ID, '+', or '$'", "xread")
    refuse_count_above(asked.maxcount, asked.count)
    return load_first(txn, session, names, partial(_read, names, ids, asked))


def _plain_read(session: Session, argv: Argv) -> StreamsRead | None:
    """Parse an XREAD of one stream by position: without options, with COUNT, or COUNT and BLOCK.

    None for others.
    """
    raw = block = None
    if len(argv) == 6 and argv[1] in COUNT:
        raw = argv[2]
    elif len(argv) != 4:
        options = count_and_block(argv[1:-3])
        if options is None:
            return None
        raw, block = options
    ids = plain_ids(argv[-1:])
    if ids is None:
        return None
    count = None if raw is None else SHORT_COUNTS.get(raw) or positive_count(raw)
    wanted = [(session.prefix + argv[-2], ids[0])]
    if block is None:
        return StreamsRead(wanted, count)
    return StreamsRead(wanted, count, None, partial(_block_on_one, session, wanted, count, block))


def _read(
    names: list[bytes], ids: list[bytes], options: ReadOptions, txn: Txn, session: Session
) -> StreamsRead:
    wanted = list(zip(names, _resolve_ids(txn, names, ids), strict=True))
    block = partial(_block, session, wanted, options) if options.blocks else None
    return StreamsRead(wanted, options.count, options.budget(session), block)


def _block_on_one(
    session: Session, wanted: list[tuple[bytes, StreamID]], count: int | None, block: bytes
) -> Blocked:
    return _block(session, wanted, ReadOptions(count, timeout_ms=timeout(block)))


def _block(session: Session, wanted: list[tuple[bytes, StreamID]], options: ReadOptions) -> Blocked:
    def attempt(txn: Txn) -> Shared | None:
        asked = StreamsRead(wanted, options.count, options.budget(session))
        found = streams_of(read.read_again(txn, asked))
        return None if found is None else Shared(found)

    names = [name for name, _ in wanted]
    limits = (options.maxcount, options.maxsize, options.maxsize and session.protocol)
    share_key = (*wanted, options.count, *limits)
    return Blocked(names, attempt, options.timeout_ms or None, share_key=share_key)


# --- arguments ----------------------------------------------------------------------------------


def count_and_block(words: Argv) -> tuple[bytes, bytes] | None:
    """Return the arguments of COUNT and BLOCK if the options are these two, in any order.

    None for any others, and for a timeout that might be refused.
    """
    if len(words) != 4:
        return None
    first, count, second, block = words
    if first in _BLOCK:
        first, count, second, block = second, block, first, count
    if first not in COUNT or second not in _BLOCK:
        return None
    return (count, block) if block.isdigit() and len(block) <= _TIMEOUT_DIGITS else None


def take_options(argv: Argv, table: dict[bytes, Option[T]], options: T) -> Args:
    """Parse the options; return a cursor after STREAMS."""
    args = Args(argv, 1)
    while args:
        if args.take_option(table, options):
            continue
        if args.option() == b"STREAMS" and args:
            return args
        break
    raise syntax_error()


def _take_count(args: Args, options: ReadOptions) -> None:
    options.count = positive_count(args.next())


def _take_block(args: Args, options: ReadOptions) -> None:
    options.timeout_ms = timeout(args.next())
    options.blocks = True


def _take_limit(attribute: str, args: Args, options: ReadOptions) -> None:
    limit = args.integer()
    refuse_limit(attribute.upper(), limit)
    setattr(options, attribute, limit)


def _refuse(option: str, args: Args, options: ReadOptions) -> None:
    raise InvalidArgument(
        f"The {option} option is only supported by XREADGROUP. You called XREAD instead."
    )


READ_OPTIONS: dict[bytes, Option[Any]] = {
    b"COUNT": (1, _take_count),
    b"BLOCK": (1, _take_block),
    b"MAXCOUNT": (1, partial(_take_limit, "maxcount")),
    b"MAXSIZE": (1, partial(_take_limit, "maxsize")),
}
_OPTIONS: dict[bytes, Option[ReadOptions]] = {
    **READ_OPTIONS,
    b"GROUP": (2, partial(_refuse, "GROUP")),
    b"NOACK": (0, partial(_refuse, "NOACK")),
    b"CLAIM": (1, partial(_refuse, "CLAIM")),
}


def take_streams(
    session: Session, args: Args, wanted: str, command: str
) -> tuple[list[bytes], list[bytes]]:
    """Return the names of the keys, and the IDs as they were written."""
    if len(args) % 2:
        raise InvalidArgument(
            f"Unbalanced '{command}' list of streams: for each stream key {wanted} must be "
            "specified."
        )
    half = len(args) // 2
    names = [session.prefix + key for key in args.take(half)]
    return names, list(args.take(half))


def _resolve_ids(txn: Txn, names: list[bytes], ids: list[bytes]) -> Iterator[StreamID]:
    """Yield the ID after which to read each stream.

    Keys and IDs are checked in turn, so that the error is that of the first fault.
    """
    plain = plain_ids(ids)
    if plain is not None:
        yield from plain  # reading checks the types of the keys
        return
    for name, raw in zip(names, ids, strict=True):
        position = POSITIONS.get(raw)
        if position is not None and position is not Position.LAST:
            yield read.resolve(txn, name, position)
            continue
        stream = txn.stream(name)
        if position is not None:
            yield MIN_ID if stream is None else stream.last
            continue
        if raw == b">":
            raise read.new_only()
        yield stream_id(raw)
