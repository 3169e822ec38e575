"""XREAD, and what it shares with XREADGROUP: options, the list of streams, waiting.

The IDs are fixed when the request arrives: ``$`` and ``+`` become IDs then. An attempt reads in the
transaction that it is given, so that a server can repeat it whenever one of the keys changes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kvstream.commands.args import (
    COUNT,
    FEW_COUNTS,
    Args,
    Argv,
    Option,
    integer,
    plain_ids,
    stream_id,
    syntax_error,
    timeout,
)
from kvstream.commands.command import (
    LATER,
    Answer,
    Blocked,
    Family,
    Later,
    Session,
    StreamsKeys,
    flags,
)
from kvstream.commands.incremental import behind_steps
from kvstream.commands.replies import (
    NULL_ARRAY,
    RESP3,
    Gradual,
    NullArray,
    Paged,
    Pair,
    Rows,
    Shared,
    Streams,
)
from kvstream.commands.reply_pages import is_put_off, may_be_long
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn
from kvstream.operations import entries, pages, read
from kvstream.operations import range as ranges
from kvstream.operations.read import Position
from kvstream.operations.reply_limits import Budget, refuse_count_above, refuse_limit
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

T = TypeVar("T")
COMMANDS = Family("stream")
LIMITS_SYNTAX = "[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds]"
POSITIONS = {position.value.encode(): position for position in Position}
STREAMS = (b"STREAMS", b"streams")
_BLOCK = (b"BLOCK", b"block")
"""As clients write them."""
_TIMEOUT_DIGITS = 15
"""Fewer than those of the longest timeout."""


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
def xread(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Return the entries after an ID of each of several streams; null if there are none.

    STREAMS: The keys, then for each of them the ID after which to read. `$` is the last ID of the
        stream, `+` reads its last entry.

    `+` returns the last entry that exists even if a later one was deleted; Redis 7.4 returns null
    then, 7.0 and 7.2 have no `+`. A missing ID is refused with the text of Redis 7.2 and later.

    A blocked XREAD of several keys returns WRONGTYPE for a key that has become a string when
    another one has new entries; Redis 7.0 does not, and 8.2 does so too when another one is deleted
    and made again without new entries.
    """
    if len(argv) == 6 and argv[1] in COUNT and argv[3] in STREAMS:
        reply = _read_one(txn, session.prefix + argv[4], argv, argv[2])
        if reply is not None:
            return reply
    elif argv[-3] in STREAMS and (options := count_and_block(argv[1:-3])) is not None:
        reply = _read_one(txn, session.prefix + argv[-2], argv, options[0])
        if isinstance(reply, Streams):  # otherwise it waits
            return reply
    asked = ReadOptions()
    args = take_options(argv, _OPTIONS, asked)
    names, ids = take_streams(session, args, "an ID, '+', or '$'", "xread")
    refuse_count_above(asked.maxcount, asked.count)
    answer = partial(_read, names, ids, asked)
    if session.steps and len(names) > txn.thresholds.long_loading:
        plan = read.plan_loading_streams(txn, names)
        if plan is not None:
            return behind_steps(plan, answer)
    return answer(txn, session)


def _read(
    names: list[bytes], ids: list[bytes], options: ReadOptions, txn: Txn, session: Session
) -> Answer:
    wanted = list(zip(names, _fixed(txn, names, ids), strict=True))
    reply: Streams | Paged | Later | None
    budget = options.budget(session)
    if budget is None and may_be_long(txn, session, names, options.count):
        reply = _paged_streams(txn, session, wanted, options.count)
    else:
        reply = _reply(read.read(txn, wanted, options.count, budget, encoded=True))
    if reply is not None:
        return reply
    return _blocked(session, names, wanted, options) if options.blocks else NULL_ARRAY


def _blocked(
    session: Session, names: list[bytes], wanted: list[tuple[bytes, StreamID]], options: ReadOptions
) -> Blocked:
    def attempt(txn: Txn) -> Shared | None:
        found = _reply(read.read_on(txn, wanted, options.count, options.budget(session)))
        return None if found is None else Shared(found)

    limits = (options.maxcount, options.maxsize, options.maxsize and session.protocol)
    share_key = (*wanted, options.count, *limits)
    return Blocked(names, attempt, options.timeout_ms or None, share_key=share_key)


def _reply(found: read.Reply) -> Streams | None:
    return Streams([(key_of(name), entries) for name, entries in found]) if found else None


def _read_one(txn: Txn, name: bytes, argv: Argv, raw: bytes) -> Streams | NullArray | None:
    """Read ``raw`` entries of the one stream of an XREAD; None if the reply may be long."""
    ids, few = plain_ids(argv[-1:]), FEW_COUNTS.get(raw)
    count = few or integer(raw)
    if ids is None or not (few or ranges.is_cached(txn, count)):
        return None
    stream = txn.stream(name)
    if stream is None or not entries.has_after(stream, ids[0]):
        return NULL_ARRAY
    if ranges.is_large(stream, count):
        return None
    found = ranges.between(txn, stream, ids[0].next(), MAX_ID, count)
    return Streams([(argv[-2], found)]) if found else NULL_ARRAY


def _paged_streams(
    txn: Txn, session: Session, wanted: Sequence[tuple[bytes, StreamID]], count: int | None
) -> Streams | Paged | Later | None:
    """Return the entries after an ID of each stream, in pages if they are many; None: none."""
    parts = read.parts(txn, wanted)
    if not parts:
        return None
    if len(parts) > 1:
        seeks, short = read.begin(txn), pages.short_bytes(txn)
        if len(parts) <= txn.thresholds.short_streams:
            few = read.few(seeks, parts, count, txn.thresholds.short_rows, short)
            if few is not None:
                return Streams(few) if few else None
        if len(parts) > txn.thresholds.few_streams:
            if is_put_off(txn, session):
                return LATER
            return _in_steps(read.steps(read.begin_snapshot(txn), parts, count))
    found = pages.read(txn, wanted, count)
    if not any(rows is None for _, _, rows in found):
        return Streams([(key_of(name), rows or []) for name, _, rows in found]) if found else None
    if is_put_off(txn, session):
        return LATER
    streams: list[tuple[bytes, Rows | Gradual]] = []
    for name, after, rows in found:
        entries = Gradual(pages.steps_after(txn, name, after, count)) if rows is None else rows
        streams.append((key_of(name), entries))
    return Paged(Streams(streams))


def _in_steps(steps: read.Steps | None) -> Paged | None:
    return None if steps is None else Paged(Streams(Gradual(map(_wrapped, steps))))


def _wrapped(step: int | read.Items | None) -> int | list[Pair] | None:
    if not isinstance(step, list):
        return step
    return [(key, found if isinstance(found, Rows) else Gradual(found)) for key, found in step]


# --- arguments ----------------------------------------------------------------------------------


def count_and_block(words: Argv) -> tuple[bytes, bytes] | None:
    """Return the arguments of COUNT and BLOCK if the options are these two, in any order.

    None for any others, and for a timeout that might be refused.
    """
    if len(words) != 4:
        return None
    if words[0] in _BLOCK:
        words = *words[2:], *words[:2]
    if words[0] not in COUNT or words[2] not in _BLOCK:
        return None
    count, block = words[1], words[3]
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
    count = args.integer()
    options.count = count if count > 0 else None


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


def _fixed(txn: Txn, names: list[bytes], ids: list[bytes]) -> Iterator[StreamID]:
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
