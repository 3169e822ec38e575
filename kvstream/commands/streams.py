"""XADD, XLEN, XRANGE, XREVRANGE, XDEL, XDELEX, XTRIM, XREAD, XSETID, XCFGSET and XIDMPRECORD.

Commands about very many IDs: these are packed in the first steps, some in each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kvstream.commands import reply_pages
from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    packed_ids,
    range_end,
    range_start,
    stream_id,
    stream_ids,
    syntax_error,
    text,
)
from kvstream.commands.command import Answer, Session, Stepwise
from kvstream.commands.replies import NULL_ARRAY, OK, Entries, Reply
from kvstream.errors import InvalidArgument, InvalidID, NoSuchKey, RequestError
from kvstream.layout.values import encode_flat
from kvstream.meta.txn import Txn
from kvstream.operations import append, delete
from kvstream.operations import range as ranges
from kvstream.operations import range as showing
from kvstream.operations.append import Idempotency
from kvstream.operations.delete import LONG_ROWS
from kvstream.operations.trim import (
    RefPolicy,
    Strategy,
    Trim,
    limit_without_strategy,
    refuse_limit,
    refuse_maxlen,
    two_strategies,
)
from kvstream.operations.trim import trim as trim_operation
from kvstream.types.ids import MIN_ID, AddID, StreamID

Step: TypeAlias = "Callable[[Txn], Reply | None]"
"""Goes on with a command; None: it is not done."""
Begin: TypeAlias = "Callable[[Txn, list[bytes]], Step]"
"""Returns what is to be done about IDs."""

PACKED_TOGETHER = 5000
"""IDs that one step packs: half a millisecond or so."""


def are_many(session: Session, words: int) -> bool:
    """Tell whether a command with so many words for IDs is to be done in steps."""
    return session.steps and words > LONG_ROWS


def about(words: Argv, begin: Begin, until_other: bool = False) -> Stepwise:
    """Return what packs the IDs that words are, and then does what ``begin`` returns.

    ``until_other``: what is no ID, and all behind it, is something else.
    """
    packing = _Packing(words, begin, until_other)

    def run(txn: Txn, session: Session, argv: Argv) -> Answer:
        reply = packing.step(txn)
        return going_on if reply is None else reply

    going_on = Stepwise(run)
    return going_on


class _Packing:
    def __init__(self, words: Argv, begin: Begin, until_other: bool) -> None:
        self._words, self._begin, self._until_other = words, begin, until_other
        self._ids: list[bytes] = []
        self._work: Step | None = None

    def step(self, txn: Txn) -> "Reply | None":
        if self._work is not None:
            return self._work(txn)
        some = self._words[len(self._ids) : len(self._ids) + PACKED_TOGETHER]
        try:
            self._ids += packed_ids(some)
        except InvalidID:
            if not self._until_other:
                raise
            self._ids += _leading(some)
            self._work = self._begin(txn, self._ids)
        if len(self._ids) == len(self._words):
            self._work = self._begin(txn, self._ids)
        return None


def _leading(words: Argv) -> list[bytes]:
    """Return the IDs that stand before the first word that is none."""
    ids: list[bytes] = []
    for word in words:
        try:
            ids += packed_ids([word])
        except InvalidID:
            break
    return ids


POLICIES = {policy.encode(): policy for policy in RefPolicy}


# --- XADD and XTRIM -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Options:
    """The options of XADD and XTRIM."""

    adding: bool
    strategy: Strategy | None = None
    maxlen: int = 0
    minid: StreamID = MIN_ID
    approximate: bool = False
    limit: int | None = None
    policy: RefPolicy | None = None
    nomkstream: bool = False
    pid: bytes | None = None
    iid: bytes | None = None
    """None under IDMPAUTO."""
    eid: AddID = None

    def trim(self) -> Trim | None:
        """Return how to trim, after Redis's checks of what goes with what."""
        if self.strategy is None:
            if self.limit is None:
                return None
            raise limit_without_strategy(self.limit)
        policy = self.policy or RefPolicy.KEEPREF
        return Trim(self.strategy, self.maxlen, self.minid, self.approximate, self.limit, policy)


def xadd(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Append an entry and answer its ID; with NOMKSTREAM a null where there is no stream."""
    name = session.prefix + argv[1]
    if argv[2] == b"*":  # no options: the way of nearly every request
        value, names = encode_flat(argv[3:], txn.catalog.limits.entry_max_bytes)
        added = append.add(txn, name, value, names)
    else:
        added = _add_with_options(txn, name, argv)
    return None if added is None else bytes(added)


def _add_with_options(txn: Txn, name: bytes, argv: Argv) -> StreamID | None:
    args = Args(argv, 2)
    options = _add_options(args)
    how = options.trim()
    flat = args.rest()[1:]  # behind the ID
    value, names = encode_flat(flat, txn.catalog.limits.entry_max_bytes)
    append.refuse_zero_id(options.eid)
    once = None
    if options.pid is not None:
        iid = append.automatic_iid(flat) if options.iid is None else options.iid
        once = Idempotency(options.pid, iid)
    return append.add(txn, name, value, names, options.eid, how, options.nomkstream, once)


def _add_options(args: Args) -> _Options:
    """Take the options up to the ID, which is read and stays."""
    options = _Options(adding=True)
    while args and args.peek() != b"*":
        if args.take_option(_ADD_OPTIONS, options):
            continue
        options.eid = _add_id(args.peek())
        if options.pid is not None:
            append.refuse_explicit_id(options.eid)
        break
    return options


def plain_trim(words: Argv) -> Trim | None:
    """Return how an XADD trims that has these options alone, behind which its ``*`` stands.

    None where they are none, ask for more than a trim by length or ID, or cannot be.
    """
    args = Args([*words, b"*"], 0)
    try:
        options = _add_options(args)
        how = options.trim()
    except RequestError:
        return None
    plain = len(args) == 1 and options.policy is None and options.pid is None
    return how if plain and not options.nomkstream else None


def _add_id(raw: bytes) -> AddID:
    return stream_id(raw[:-1] + b"0").ms if raw.endswith(b"-*") else stream_id(raw)


def _take_maxlen(args: Args, options: _Options) -> None:
    _take_sign(args, options, Strategy.MAXLEN)
    options.maxlen = args.integer()
    refuse_maxlen(options.maxlen)


def _take_minid(args: Args, options: _Options) -> None:
    _take_sign(args, options, Strategy.MINID)
    options.minid = args.id()


def _take_sign(args: Args, options: _Options, strategy: Strategy) -> None:
    if options.strategy is not None:
        raise two_strategies()
    options.strategy = strategy
    if len(args) >= 2 and args.peek() in (b"~", b"="):
        options.approximate = args.next() == b"~"


def _take_limit(args: Args, options: _Options) -> None:
    options.limit = args.integer()
    refuse_limit(options.limit)


def _take_policy(policy: RefPolicy, args: Args, options: _Options) -> None:
    if options.policy is not None:  # XADD takes a second one for the ID
        raise InvalidID if options.adding else syntax_error()
    options.policy = policy


def _take_nomkstream(args: Args, options: _Options) -> None:
    options.nomkstream = True


def _take_idmpauto(args: Args, options: _Options) -> None:
    _take_producer(args, options, "IDMPAUTO")


def _take_idmp(args: Args, options: _Options) -> None:
    _take_producer(args, options, "IDMP")
    options.iid = args.next()
    append.refuse_empty_iid(options.iid)


def _take_producer(args: Args, options: _Options, word: str) -> None:
    if options.pid is not None:
        raise append.two_producers()
    options.pid = args.next()
    append.refuse_empty_pid(options.pid, word)


_TRIM_OPTIONS: dict[bytes, Option[_Options]] = {
    b"MAXLEN": (1, _take_maxlen),
    b"MINID": (1, _take_minid),
    b"LIMIT": (1, _take_limit),
    **{word: (0, partial(_take_policy, policy)) for word, policy in POLICIES.items()},
}
_ADD_OPTIONS: dict[bytes, Option[_Options]] = {
    **_TRIM_OPTIONS,
    b"NOMKSTREAM": (0, _take_nomkstream),
    b"IDMP": (2, _take_idmp),
    b"IDMPAUTO": (1, _take_idmpauto),
}


def xtrim(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Remove the oldest entries and answer how many went."""
    options = _Options(adding=False)
    args = Args(argv, 2)
    while args:
        if not args.take_option(_TRIM_OPTIONS, options):
            raise syntax_error()
    if options.strategy is None and not options.limit:
        raise InvalidArgument("syntax error, XTRIM must be called with a trimming strategy")
    how = options.trim()
    assert how is not None
    return trim_operation(txn, session.prefix + argv[1], how)


# --- reading ------------------------------------------------------------------------------------


def xlen(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Answer the number of entries; 0 for a missing key."""
    return ranges.length(txn, session.prefix + argv[1])


def xrange(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer the entries between two IDs, oldest first."""
    return _range(txn, session, argv, range_start(argv[2]), range_end(argv[3]), False)


def xrevrange(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Answer the entries between two IDs, newest first; the greater ID is written first."""
    start = range_start(argv[3])  # its error comes first, though it is written last
    return _range(txn, session, argv, start, range_end(argv[2]), True)


def _range(
    txn: Txn, session: Session, argv: Argv, start: StreamID, end: StreamID, reverse: bool
) -> Answer:
    count = None
    args = Args(argv, 4)
    while args:
        if args.option() != b"COUNT":
            raise syntax_error()
        count = args.integer()
    name = session.prefix + argv[1]
    if reply_pages.may_be_long(txn, session, [name], count):
        return reply_pages.of_range(txn, session, name, start, end, count, reverse)
    if not reverse and count is not None and showing.is_kept(txn, count):
        stream = txn.stream(name)
        if stream is None or not showing.is_large(stream, count):
            return [] if stream is None else showing.between(txn, stream, start, end, count)
    found = ranges.scan(txn, name, start, end, count, reverse)
    return NULL_ARRAY if found is None else Entries(found)


# --- deleting -----------------------------------------------------------------------------------


def parse_ids(raw: Argv, ignorable: Callable[[], bool]) -> list[StreamID] | None:
    """Return IDs, all of them read before any is used.

    None where one is faulty and ``ignorable``: Redis does not look at the IDs then.
    """
    try:
        return stream_ids(raw)
    except InvalidID:
        if ignorable():
            return None
        raise


def xdel(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete entries and answer how many there were."""
    name = session.prefix + argv[1]
    ids = parse_ids(argv[2:], lambda: txn.stream(name) is None)
    if ids is None:
        return 0

    def operation(txn: Txn, live: delete.Live) -> int:
        return delete.delete(txn, name, ids, live)

    return reply_pages.of_erasure(session, txn, name, ids, operation, int)


def policy_and_ids(args: Args) -> tuple[RefPolicy, Argv]:
    """Take the arguments of XDELEX and XACKDEL: a policy and an IDS block, in any order."""
    policy: RefPolicy | None = None
    ids: Argv | None = None
    message = "Number of IDs must be a positive integer"
    while args:
        word = args.option()
        if word in POLICIES and policy is None:
            policy = POLICIES[word]
        elif word == b"IDS" and args:
            count = args.at_least(1, message, message)
            if count > len(args):
                raise InvalidArgument("The `numids` parameter must match the number of arguments")
            ids = args.take(count)
        else:
            raise syntax_error()
    if ids is None:
        raise InvalidArgument("IDS option is required")
    return policy or RefPolicy.KEEPREF, ids


def xdelex(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete entries by a policy; for each ID 1 deleted, 2 still referred to, -1 not there."""
    name = session.prefix + argv[1]
    stream = txn.stream(name)
    policy, raw = policy_and_ids(Args(argv, 2))
    if stream is None:
        return [-1] * len(raw)
    ids = stream_ids(raw)

    def operation(txn: Txn, live: delete.Live) -> list[delete.Outcome]:
        return delete.delete_with_policy(txn, name, ids, policy, live)

    answer = partial(reply_pages.of_outcomes, session)
    return reply_pages.of_erasure(session, txn, name, ids, operation, answer)


# --- counters and settings ----------------------------------------------------------------------


def xsetid(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set the last ID of a stream, and its counters where given."""
    last = stream_id(argv[2])
    entries_added: int | None = None
    max_deleted: StreamID | None = None
    args = Args(argv, 3)
    while args:
        word = args.option()
        if word == b"ENTRIESADDED" and args:
            entries_added = args.integer()
        elif word == b"MAXDELETEDID" and args:
            max_deleted = args.id()
        else:
            raise syntax_error()
        append.refuse_counters(last, entries_added, max_deleted)
    append.set_id(txn, session.prefix + argv[1], last, entries_added, max_deleted)
    return OK


def xcfgset(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set for how long, and how many, idempotent IDs a stream remembers."""
    name = session.prefix + argv[1]
    if txn.stream(name) is None:  # before the words are looked at
        raise NoSuchKey
    given: dict[bytes, int] = {}
    asked: tuple[int | None, int | None] = None, None
    args = Args(argv, 2)
    while args:
        word = args.option()
        if word not in (b"IDMP-DURATION", b"IDMP-MAXSIZE") or not args:
            raise syntax_error()
        if word in given:
            raise InvalidArgument(f"{text(word)} specified multiple times")
        given[word] = args.integer()
        asked = given.get(b"IDMP-DURATION"), given.get(b"IDMP-MAXSIZE")
        append.refuse_idmp_bounds(*asked)
    append.configure(txn, name, *asked)
    return OK


def xidmprecord(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Note the idempotent ID under which a producer made an entry."""
    _, key, pid, iid, raw = argv
    append.refuse_empty_ids(pid, iid)  # before the entry's ID is read
    append.record_idempotency(txn, session.prefix + key, pid, iid, stream_id(raw))
    return OK
