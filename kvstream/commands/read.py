"""XREAD and XREADGROUP, which may block.

What follows the streams is fixed when the request comes in: ``$`` and ``+`` become IDs then. An
attempt reads in the transaction that it is given, so that a server may try it again whenever one of
the keys has news.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kvstream.commands import reply_pages
from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    integer,
    plain_ids,
    stream_id,
    syntax_error,
    text,
)
from kvstream.commands.command import Answer, Blocked, Later, Session
from kvstream.commands.replies import NULL_ARRAY, NullArray, Paged, Streams
from kvstream.errors import InvalidArgument
from kvstream.layout.keys import key_of
from kvstream.meta.txn import Txn
from kvstream.operations import entries, readgroup
from kvstream.operations import range as showing
from kvstream.operations import read as abreast
from kvstream.operations import read as reads
from kvstream.operations.groups import group_of_key
from kvstream.operations.read import Position
from kvstream.operations.readgroup import LongDelivery
from kvstream.operations.reply_limits import (
    Budget,
    limit_error,
    refuse_count_above,
    refuse_limit,
)
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

_POSITIONS = {position.value.encode(): position for position in Position}
_COUNT, _STREAMS = (b"COUNT", b"count"), (b"STREAMS", b"streams")
"""As clients write them."""


@dataclass(slots=True)
class _Options:
    """The options of both commands."""

    count: int | None = None
    maxcount: int | None = None
    maxsize: int | None = None
    blocks: bool = False
    timeout_ms: int = 0
    """0: for ever."""
    group: bytes | None = None
    consumer: bytes = b""
    noack: bool = False
    claim_min_idle_ms: int | None = None

    @property
    def is_plain(self) -> bool:
        """Tell whether nothing but COUNT, BLOCK and NOACK says what is to be given."""
        return self.claim_min_idle_ms is None and self.maxcount is None and self.maxsize is None

    def budget(self) -> Budget | None:
        if self.maxcount is None and self.maxsize is None:
            return None
        return Budget(self.maxcount, self.maxsize)


def xread(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer what lies after an ID in each of several streams; a null for nothing."""
    if len(argv) == 6 and argv[1] in _COUNT and argv[3] in _STREAMS:
        count = integer(argv[2])
        if showing.is_kept(txn, count) and argv[5] not in _POSITIONS:
            found = _read_one(txn, session.prefix, argv[4], argv[5], count)
            if found is not None:
                return found
    options, args = _parse(argv, _XREAD_OPTIONS)
    names, ids = _streams(session, args, "an ID, '+', or '$'", "xread")
    refuse_count_above(options.maxcount, options.count)
    read = partial(_xread, names, ids, options)
    if session.steps and len(names) > abreast.LONG_LOADING:
        loading = abreast.Loading(txn, names)
        if loading.is_long:
            return reply_pages.behind_steps(loading.step, read)
    return read(txn, session)


def _xread(
    names: list[bytes], ids: list[bytes], options: _Options, txn: Txn, session: Session
) -> Answer:
    wanted = list(zip(names, _fixed(txn, names, ids), strict=True))

    def attempt(txn: Txn) -> Streams | None:
        return _reply(reads.read_on(txn, wanted, options.count, options.budget(), shown=True))

    reply: Streams | Paged | Later | None
    budget = options.budget()
    if budget is None and reply_pages.may_be_long(txn, session, names, options.count):
        reply = reply_pages.of_streams(txn, session, wanted, options.count)
    else:
        reply = _reply(reads.read(txn, wanted, options.count, budget, shown=True))
    return reply or _later(Blocked(names, attempt, options.timeout_ms or None), options)


def _read_one(
    txn: Txn, prefix: bytes, key: bytes, raw: bytes, count: int
) -> Streams | NullArray | None:
    """Answer ``COUNT count STREAMS key id``, as most who do not wait ask; None: it may be long."""
    name = prefix + key
    [after] = _fixed(txn, [name], [raw])
    stream = txn.stream(name)
    if stream is None or not entries.has_after(stream, after):
        return NULL_ARRAY
    if showing.is_large(stream, count):
        return None
    found = showing.between(txn, stream, after.next(), MAX_ID, count)
    return Streams([(key, found)]) if found else NULL_ARRAY


def xreadgroup(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Give entries of a group to a consumer, or show it again those that it has pending."""
    options, args = _parse(argv, _XREADGROUP_OPTIONS)
    names, ids = _streams(session, args, "an ID or '>'", "xreadgroup")
    group = options.group
    if group is None:
        raise InvalidArgument("Missing GROUP option for XREADGROUP")
    refuse_count_above(options.maxcount, options.count)
    wanted = list(zip(names, _places(txn, names, ids, group), strict=True))

    def attempt(txn: Txn) -> Streams | Paged | None:
        return reply_pages.of_found(
            session,
            readgroup.read_group(
                txn,
                group,
                options.consumer,
                wanted,
                options.count,
                options.noack,
                options.claim_min_idle_ms,
                options.budget(),
                shown=True,
            ),
        )

    idle = options.claim_min_idle_ms
    retry_at = None if idle is None else partial(_claimable_at, names, group, idle)
    shares = group if idle is None else None  # each CLAIM may find something else idle enough
    timeout_ms = options.timeout_ms or None
    wait = Blocked(names, attempt, timeout_ms, retry_at, shares=shares, group=group)
    if session.steps and options.is_plain and wanted == [(names[0], readgroup.NEW)]:
        work = _long_delivery(txn, names[0], group, options)
        if work is not None:
            return reply_pages.in_steps(
                work.step,
                lambda found: reply_pages.of_found(session, found) or _later(wait, options),
            )
    return attempt(txn) or _later(wait, options)


def _long_delivery(txn: Txn, name: bytes, group: bytes, options: _Options) -> LongDelivery | None:
    """Return what gives very many entries, where there may be so many to be given."""
    if not readgroup.delivers_many(txn, name, group, options.count):
        return None
    return LongDelivery(name, group, options.consumer, options.count, options.noack)


def _later(wait: Blocked, options: _Options) -> Answer:
    """Return what to wait for where nothing is there yet, or a null for a call that does not."""
    return wait if options.blocks else NULL_ARRAY


def _reply(found: reads.Reply) -> Streams | None:
    return Streams([(key_of(name), entries) for name, entries in found]) if found else None


def _claimable_at(names: list[bytes], group: bytes, min_idle_ms: int, txn: Txn) -> int | None:
    """Return when the first entry pending in any of the streams will have been idle enough."""
    times = [readgroup.claimable_at(txn, name, group, min_idle_ms) for name in names]
    return min((time for time in times if time is not None), default=None)


# --- arguments ----------------------------------------------------------------------------------


def _parse(argv: Argv, table: dict[bytes, Option[_Options]]) -> tuple[_Options, Args]:
    """Return the options, and a cursor that stands behind STREAMS."""
    options = _Options()
    args = Args(argv, 1)
    while args:
        if args.take_option(table, options):
            continue
        if args.option() == b"STREAMS" and args:
            return options, args
        break
    raise syntax_error()


def _take_count(args: Args, options: _Options) -> None:
    count = args.integer()
    options.count = count if count > 0 else None


def _take_block(args: Args, options: _Options) -> None:
    unreadable = "timeout is not an integer or out of range"
    options.timeout_ms = args.at_least(0, "timeout is negative", unreadable)
    options.blocks = True


def _take_maxcount(args: Args, options: _Options) -> None:
    options.maxcount = _limit(args, "MAXCOUNT")


def _take_maxsize(args: Args, options: _Options) -> None:
    options.maxsize = _limit(args, "MAXSIZE")


def _limit(args: Args, option: str) -> int:
    limit = args.integer(limit_error(option))
    refuse_limit(option, limit)
    return limit


def _take_group(args: Args, options: _Options) -> None:
    options.group, options.consumer = args.take(2)


def _take_noack(args: Args, options: _Options) -> None:
    options.noack = True


def _take_claim(args: Args, options: _Options) -> None:
    idle_ms = args.integer("min-idle-time is not an integer or out of range")
    readgroup.refuse_min_idle(idle_ms)
    options.claim_min_idle_ms = idle_ms


def _refuse(option: str, args: Args, options: _Options) -> None:
    raise InvalidArgument(
        f"The {option} option is only supported by XREADGROUP. You called XREAD instead."
    )


_BOTH_OPTIONS: dict[bytes, Option[_Options]] = {
    b"COUNT": (1, _take_count),
    b"BLOCK": (1, _take_block),
    b"MAXCOUNT": (1, _take_maxcount),
    b"MAXSIZE": (1, _take_maxsize),
}
_XREAD_OPTIONS: dict[bytes, Option[_Options]] = {
    **_BOTH_OPTIONS,
    b"GROUP": (2, partial(_refuse, "GROUP")),
    b"NOACK": (0, partial(_refuse, "NOACK")),
    b"CLAIM": (1, partial(_refuse, "CLAIM")),
}
_XREADGROUP_OPTIONS: dict[bytes, Option[_Options]] = {
    **_BOTH_OPTIONS,
    b"GROUP": (2, _take_group),
    b"NOACK": (0, _take_noack),
    b"CLAIM": (1, _take_claim),
}


def _streams(
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

    Keys and IDs are looked at in turn, so that of two faults the one written first is told.
    """
    plain = plain_ids(ids)
    if plain is not None:
        yield from plain  # of keys of another kind those complain who read them
        return
    for name, raw in zip(names, ids, strict=True):
        position = _POSITIONS.get(raw)
        if position is not None and position is not Position.LAST:
            yield reads.resolve(txn, name, position)
            continue
        stream = txn.stream(name)
        if position is not None:
            yield MIN_ID if stream is None else stream.last
            continue
        if raw == b">":
            raise reads.new_only()
        yield stream_id(raw)


def _places(txn: Txn, names: list[bytes], ids: list[bytes], group: bytes) -> list[StreamID | None]:
    """Return NEW, or the ID after which to show what is pending, of each stream."""
    if all(raw == b">" for raw in ids):
        return [readgroup.NEW] * len(ids)  # the operation looks for the groups itself
    places = []
    for name, raw in zip(names, ids, strict=True):
        group_of_key(txn, name, group, readgroup.WHERE)
        places.append(readgroup.NEW if raw == b">" else _history_id(raw))
    return places


def _history_id(raw: bytes) -> StreamID:
    if raw not in _POSITIONS:
        return stream_id(raw)
    raise readgroup.no_history_from(text(raw))
