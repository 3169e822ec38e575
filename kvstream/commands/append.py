"""XADD, and the commands that set a stream's counters and idempotent IDs."""

from dataclasses import dataclass
from functools import partial

from kvstream.commands.args import (
    Args,
    Argv,
    Option,
    integer,
    stream_id,
    switch,
    syntax_error,
    text,
)
from kvstream.commands.command import FAST_GROW, FAST_WRITE, FIRST, OURS, Family, Session, flags
from kvstream.commands.replies import OK, Reply
from kvstream.commands.trim import POLICY_SYNTAX, TRIM_OPTIONS, TRIM_SYNTAX, TrimOptions
from kvstream.errors import InvalidArgument, RequestError
from kvstream.layout.values import encode_flat
from kvstream.meta.idempotency import Request
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.append import Idempotency
from kvstream.operations.trim import Trim
from kvstream.types.ids import AddID, StreamID

COMMANDS = Family("stream")
_IDMP_SYNTAX = "[IDMPAUTO pid|IDMP pid iid]"
_ENTRY_SYNTAX = "*|ms-*|id field value [field value ...]"


@dataclass(slots=True)
class _Options(TrimOptions):
    nomkstream: bool = False
    pid: bytes | None = None
    iid: bytes | None = None
    """None under IDMPAUTO."""
    eid: AddID = None


@COMMANDS.command(
    "xadd",
    f"key [NOMKSTREAM] {POLICY_SYNTAX} {_IDMP_SYNTAX} [{TRIM_SYNTAX}] {_ENTRY_SYNTAX}",
    *(FAST_GROW | flags("shows_change invalidates"), FIRST),
    since="5.0.0",
    tips="nondeterministic_output",
)
def xadd(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Append an entry and return its ID; with NOMKSTREAM null if the stream does not exist.

    NOMKSTREAM: Do not create the stream.
    IDMPAUTO: As IDMP, with an ID computed from the fields and values in any order.
    IDMP: Append once for each idempotent ID of a producer: a repeated one returns the ID of the
        first entry. Only with `*`.

    An XADD with IDMP that is refused leaves nothing. In Redis 8.6 to 8.10 it leaves a producer
    without IDs, which `pids-tracked` counts for ever. The age of an idempotent ID is measured by
    the clock of the store; Redis 8.6 measures it by the entry's ID, so one in the future never
    ages.

    `ms-*` without a free sequence number is refused with the text of Redis 7.2 and later.
    """
    if argv[2] != b"*":
        return _add(txn, session, argv, 2)
    value, names = encode_flat(argv[3:], txn.catalog.limits.entry_max_bytes)
    return b"%d-%d" % append.add(txn, session.prefix + argv[1], value, names)  # type: ignore[str-format]


@COMMANDS.command(
    "kvstream.addonce",
    f"key client number [NOMKSTREAM] {POLICY_SYNTAX} [{TRIM_SYNTAX}] {_ENTRY_SYNTAX}",
    *(FAST_GROW | flags("invalidates"), FIRST),
    since=OURS,
    tips="nondeterministic_output",
)
def addonce(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Append an entry as XADD does, once for each number of a client; return its ID.

    NOMKSTREAM: Do not create the stream.

    A client that has lost the reply to its last request repeats it: the entry is not added again,
    and its ID, or null, is the reply. `number` grows from request to request, whatever the stream,
    and a client has one request under way at a time. A number below that of its last request is
    refused. It costs one small row for a client, where IDMP of XADD keeps rows for each entry, and
    leaves nothing in the stream. A client has a name of up to 64 bytes, and may be forgotten if it
    is silent for an hour.
    """
    client, number = argv[2], integer(argv[3])
    append.refuse_request(client, number)
    return _add(txn, session, argv, 4, Request(client, number))


def _add(txn: Txn, session: Session, argv: Argv, at: int, request: Request | None = None) -> Reply:
    """Append the entry whose options begin at an argument."""
    name, word = session.prefix + argv[1], argv[at]
    if word == b"*" or word[:1].isdigit():  # no options: nearly every request
        eid = None if word == b"*" else _add_id(word)
        value, names = encode_flat(argv[at + 1 :], txn.catalog.limits.entry_max_bytes)
        append.refuse_zero_id(eid)
        added = append.add(txn, name, value, names, eid, once=request)
    else:
        added = _add_with_options(txn, name, Args(argv, at), request)
    return None if added is None else bytes(added)


def add_plain(txn: Txn, session: Session, argvs: list[Argv]) -> list[bytes]:
    """Run XADDs to one key whose only option is the ID ``*``, and return the IDs.

    RequestError, and nothing is added, if one of them would be refused.
    """
    most = txn.catalog.limits.entry_max_bytes
    entries = [encode_flat(argv[3:], most) for argv in argvs]
    return list(map(bytes, append.add_many(txn, session.prefix + argvs[0][1], entries)))


def _add_with_options(
    txn: Txn, name: bytes, args: Args, request: Request | None
) -> StreamID | None:
    options = _add_options(args)
    how = options.trim()
    flat = args.rest()[1:]  # after the ID
    value, names = encode_flat(flat, txn.catalog.limits.entry_max_bytes)
    append.refuse_zero_id(options.eid)
    once: Idempotency | Request | None = request
    if options.pid is not None:
        if request is not None:
            raise syntax_error()
        iid = append.automatic_iid(flat) if options.iid is None else options.iid
        once = Idempotency(options.pid, iid)
    return append.add(txn, name, value, names, options.eid, how, options.nomkstream, once)


def _add_options(args: Args) -> _Options:
    """Take the options up to the ID, which is parsed but not taken."""
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
    """Return how an XADD trims whose options are ``words`` and whose ID is ``*``.

    None if they are invalid, or do more than trim by length or ID.
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


def _take_idmp(args: Args, options: _Options) -> None:
    _take_producer("IDMP", args, options)
    options.iid = args.next()
    append.refuse_empty_iid(options.iid)


def _take_producer(word: str, args: Args, options: _Options) -> None:
    if options.pid is not None:
        raise append.two_producers()
    options.pid = args.next()
    append.refuse_empty_pid(options.pid, word)


_ADD_OPTIONS: dict[bytes, Option[_Options]] = {
    **TRIM_OPTIONS,
    b"NOMKSTREAM": switch("nomkstream"),
    b"IDMP": (2, _take_idmp),
    b"IDMPAUTO": (1, partial(_take_producer, "IDMPAUTO")),
}


# --- counters and settings ----------------------------------------------------------------------


@COMMANDS.command(
    "xsetid",
    "key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]",
    *(FAST_GROW | flags("invalidates"), FIRST),
    since="5.0.0",
)
def xsetid(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set the last ID of a stream, and its counters if given.

    ENTRIESADDED: The number of entries ever added to the stream.
    MAXDELETEDID: The greatest ID that was ever deleted.

    An ID below the greatest deleted one is refused; Redis 7.0 accepts it. The command is a change
    for clients that WATCH the key; Redis does not notify them.
    """
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


@COMMANDS.command(
    "xcfgset",
    "key [IDMP-DURATION seconds] [IDMP-MAXSIZE entries]",
    *(FAST_WRITE, FIRST),
    since="8.6.0",
)
def xcfgset(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Set how many idempotent IDs a stream remembers, and for how long.

    IDMP-DURATION: Seconds for which an idempotent ID is remembered, 1 to 86400.
    IDMP-MAXSIZE: Idempotent IDs remembered for each producer, 1 to 10000.

    The values that are already set change nothing, as in the server; Redis's documentation says
    that producers are forgotten.
    """
    name = session.prefix + argv[1]
    txn.existing_stream(name)  # checked before the options
    values: dict[bytes, int] = {}
    asked: tuple[int | None, int | None] = None, None
    args = Args(argv, 2)
    while args:
        word = args.option()
        if word not in (b"IDMP-DURATION", b"IDMP-MAXSIZE") or not args:
            raise syntax_error()
        if word in values:
            raise InvalidArgument(f"{text(word)} specified multiple times")
        values[word] = args.integer()
        asked = values.get(b"IDMP-DURATION"), values.get(b"IDMP-MAXSIZE")
        append.refuse_idmp_bounds(*asked)
    append.configure(txn, name, *asked)
    return OK


@COMMANDS.command(
    *("xidmprecord", "key pid iid id", FAST_GROW | flags("invalidates"), FIRST), since="8.6.2"
)
def xidmprecord(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Store the idempotent ID under which a producer added an entry."""
    _, key, pid, iid, raw = argv
    append.refuse_empty_ids(pid, iid)  # before the entry's ID is parsed
    append.record_idempotency(txn, session.prefix + key, pid, iid, stream_id(raw))
    return OK
