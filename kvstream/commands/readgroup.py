"""XREADGROUP, which may block."""

from dataclasses import dataclass
from functools import partial

from kvstream.commands.args import (
    COUNT,
    SHORT_COUNTS,
    Args,
    Argv,
    Option,
    stream_id,
    switch,
    text,
    timeout,
)
from kvstream.commands.command import (
    ALL_KEYS,
    Answer,
    Attempt,
    Blocked,
    Family,
    Session,
    StreamsKeys,
    flags,
)
from kvstream.commands.incremental import run_in_steps
from kvstream.commands.read import (
    LIMITS_SYNTAX,
    POSITIONS,
    READ_OPTIONS,
    STREAMS,
    ReadOptions,
    count_and_block,
    take_options,
    take_streams,
)
from kvstream.commands.replies import NULL_ARRAY, NullArray, Reply, Streams
from kvstream.commands.reply_pages import reply_of_delivery
from kvstream.errors import InvalidArgument
from kvstream.layout.rows import Rows
from kvstream.meta.compiled import plain
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.operations import readgroup
from kvstream.operations.groups import group_of_key
from kvstream.operations.reads.limits import refuse_count_above
from kvstream.types.ids import MAX_ID, StreamID

COMMANDS = Family("stream")
if plain is not None:
    plain.bind_replies(Rows, Streams)
_GROUP, _NOACK = (b"GROUP", b"group"), (b"NOACK", b"noack")
"""The words as clients write them."""


@dataclass(slots=True)
class _Options(ReadOptions):
    group: bytes | None = None
    consumer: bytes = b""
    noack: bool = False
    claim_min_idle_ms: int | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether COUNT, BLOCK and NOACK are the only options."""
        return self.claim_min_idle_ms is None and self.maxcount is None and self.maxsize is None


@COMMANDS.command(
    "xreadgroup",
    f"GROUP group consumer {LIMITS_SYNTAX} [CLAIM min-idle-time] [NOACK] "
    "STREAMS key [key ...] id|> [id|> ...]",
    *(flags("write blocking movablekeys"), StreamsKeys(search_from=4)),
    since="5.0.0",
    uses="RO access",
    counted_keys=ALL_KEYS,
)
def xreadgroup(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Deliver new entries of a group to a consumer, or return its pending ones again.

    GROUP: The group, and the consumer that reads.
    CLAIM: First claim entries that have been pending for so many milliseconds; each entry is then
        returned with its idle time and delivery count. Only with `>`.
    NOACK: Count delivered entries as acknowledged.
    STREAMS: The keys, then for each of them `>` for new entries, or the ID after which to return
        the consumer's pending entries.

    A blocked XREADGROUP whose key or group is deleted returns `NOGROUP ...` or `WRONGTYPE ...`;
    Redis 7.0 returns `UNBLOCKED ...`. CLAIM orders entries of the same delivery time by ID, Redis
    by which was delivered first; Redis 8.6 ignores it for streams behind one that is read by an ID.
    A server delivers thousands of entries in steps.

    In a group with a policy (KVSTREAM.POLICY SET), `>` returns entries that are to be repeated
    first: those given back, then those whose lease has run out. CLAIM then shows deliveries; its
    time counts only if the policy has no lease. A server returns at most 10,000 entries at once.
    """
    if argv[-1] == b">":
        if plain is not None:
            found: Streams | None = plain.read_words(Run, txn, session.prefix, argv)
            if found is not None:
                return found
        reply = _read_short(txn, session, argv)
        if reply is not None:
            return reply
    options = _Options()
    args = take_options(argv, _OPTIONS, options)
    names, ids = take_streams(session, args, "an ID or '>'", "xreadgroup")
    group = options.group
    if group is None:
        raise InvalidArgument("Missing GROUP option for XREADGROUP")
    refuse_count_above(options.maxcount, options.count)
    wanted = list(zip(names, _positions(txn, names, ids, group), strict=True))
    attempt = partial(_attempt, session, group, wanted, options)

    def nothing() -> Answer:
        return _block(names, group, options, attempt) if options.blocks else NULL_ARRAY

    may_be_long = session.steps and options.is_plain and wanted == [(names[0], readgroup.NEW)]
    if may_be_long and readgroup.delivers_many(txn, names[0], group, options.count):
        asked = names[0], group, options.consumer, options.count, options.noack
        plan = readgroup.plan_delivery(*asked)
        return run_in_steps(plan, lambda found: reply_of_delivery(txn, session, found) or nothing())
    return attempt(txn) or nothing()


def _attempt(
    session: Session,
    group: bytes,
    wanted: list[tuple[bytes, StreamID | None]],
    options: _Options,
    txn: Txn,
) -> Reply:
    found = readgroup.read_group(
        *(txn, group, options.consumer, wanted, options.count, options.noack),
        *(options.claim_min_idle_ms, options.budget(session)),
        encoded=True,
    )
    return reply_of_delivery(txn, session, found)


def _block(names: list[bytes], group: bytes, options: _Options, attempt: Attempt) -> Blocked:
    idle_ms, retry_at = options.claim_min_idle_ms, None
    if idle_ms is not None and idle_ms < readgroup.GIVEN_BACK_MS:
        retry_at = partial(_claimable_at, names, group, idle_ms)
    share_key = readgroup.share_key(group, idle_ms)
    timeout_ms = options.timeout_ms or None
    return Blocked(names, attempt, timeout_ms, retry_at, share_key=share_key, group=group)


def _read_short(txn: Txn, session: Session, argv: Argv) -> Streams | NullArray | Blocked | None:
    """Deliver a few new entries of one stream; None for a request that asks for more.

    Parsed by position, the row "XREADGROUP COUNT 1, -P 16" of docs/benchmarks.md takes half of the
    time.
    """
    if argv[-3] not in STREAMS or argv[1] not in _GROUP:
        return None
    if len(argv) == 9 and argv[4] in COUNT:
        raw, block, noack = argv[5], None, False
    elif (options := _short_options(argv[4:-3])) is not None:
        raw, block, noack = options
    else:
        return None
    count = SHORT_COUNTS.get(raw)
    if count is None or count > readgroup.SMALL_READ:
        return None
    name, group, consumer = session.prefix + argv[-2], argv[2], argv[3]
    timeout_ms = None if block is None else timeout(block)
    rows = readgroup.read_short(txn, name, group, consumer, count, noack)
    if rows:
        return Streams([(argv[-2], rows)])
    if rows is None or block is None:
        return None if rows is None else NULL_ARRAY

    def attempt(txn: Txn) -> Reply:
        rows = readgroup.read_short(txn, name, group, consumer, count, noack)
        if rows is not None:
            return Streams([(argv[-2], rows)]) if rows else None
        new = [(name, readgroup.NEW)]
        found = readgroup.read_group(txn, group, consumer, new, count, noack, encoded=True)
        return reply_of_delivery(txn, session, found)

    key = readgroup.share_key(group, None)
    return Blocked([name], attempt, timeout_ms or None, share_key=key, group=group)


def _short_options(words: Argv) -> tuple[bytes, bytes | None, bool] | None:
    """Return the arguments of COUNT and BLOCK, and whether NOACK is given; None for others."""
    noack = len(words) > 2 and words[-1] in _NOACK
    if noack:
        words = words[:-1]
    if len(words) == 2 and words[0] in COUNT:
        return words[1], None, noack
    options = count_and_block(words)
    return None if options is None else (*options, noack)


def _claimable_at(names: list[bytes], group: bytes, min_idle_ms: int, txn: Txn) -> int | None:
    """Return when the first pending entry of any stream will have been idle long enough."""
    times = [readgroup.claimable_at(txn, name, group, min_idle_ms) for name in names]
    return min((time for time in times if time is not None), default=None)


def _take_group(args: Args, options: _Options) -> None:
    options.group, options.consumer = args.take(2)


def _take_claim(args: Args, options: _Options) -> None:
    idle_ms = args.integer("min-idle-time is not an integer or out of range")
    readgroup.refuse_min_idle(idle_ms)
    options.claim_min_idle_ms = idle_ms


_OPTIONS: dict[bytes, Option[_Options]] = {
    **READ_OPTIONS,
    b"GROUP": (2, _take_group),
    b"NOACK": switch("noack"),
    b"CLAIM": (1, _take_claim),
}


def _positions(
    txn: Txn, names: list[bytes], ids: list[bytes], group: bytes
) -> list[StreamID | None]:
    """Return NEW, or the ID after which to return pending entries, of each stream."""
    if all(raw == b">" for raw in ids):
        return [readgroup.NEW] * len(ids)  # the operation checks the groups
    positions = []
    for name, raw in zip(names, ids, strict=True):
        group_of_key(txn, name, group, readgroup.WHERE)
        positions.append(readgroup.NEW if raw == b">" else _history_id(raw))
    return positions


def _history_id(raw: bytes) -> StreamID | None:
    if raw not in POSITIONS:
        after = stream_id(raw)
        return readgroup.NEW if after == MAX_ID else after  # Redis keeps ">" as this ID
    raise readgroup.no_history_from(text(raw))
