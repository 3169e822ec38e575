"""KVSTREAM.ADD and KVSTREAM.DELAYED: messages that enter their stream at a later time."""

from dataclasses import dataclass

from kvstream.commands.args import Args, Argv, Option, syntax_error, text
from kvstream.commands.command import (
    FAST_GROW,
    FAST_READ,
    FAST_WRITE,
    FIRST,
    OURS,
    READ,
    SECOND,
    Answer,
    Family,
    Session,
    flags,
)
from kvstream.commands.incremental import are_many, settle_in_parts
from kvstream.commands.replies import Reply
from kvstream.errors import InvalidArgument
from kvstream.layout.values import encode_flat
from kvstream.meta.txn import Txn
from kvstream.operations import delayed
from kvstream.operations.unique import Conflict, Unique
from kvstream.types.ids import Ticket
from kvstream.types.records import flat_of

COMMANDS = Family("stream")
COMMANDS.add_help("kvstream.delayed", since=OURS)


@dataclass(slots=True)
class _AddOptions:
    delay_ms: int | None = None
    at_ms: int | None = None
    ttl_ms: int = 0
    unique: Unique | None = None


def _delay(args: Args, options: _AddOptions) -> None:
    options.delay_ms = args.integer()
    delayed.refuse_delay(options.delay_ms)


def _at(args: Args, options: _AddOptions) -> None:
    options.at_ms = args.integer()


def _ttl(args: Args, options: _AddOptions) -> None:
    options.ttl_ms = args.at_least(1, "TTL must be a positive number of milliseconds")


def _unique(args: Args, options: _AddOptions) -> None:
    unique_id = args.next()
    if args.option() != b"WINDOW":
        raise syntax_error()
    window_ms = args.integer()
    most, max_wait_ms, rule = 1, 0, args.option()
    if rule == b"MOST":
        most, rule = args.integer(), args.option()
    if rule == b"MAXWAIT":
        max_wait_ms, rule = args.integer(), args.option()
    options.unique = Unique(unique_id, window_ms, Conflict(text(rule)), most, max_wait_ms)


_ADD_OPTIONS: dict[bytes, Option[_AddOptions]] = {
    b"DELAY": (1, _delay),
    b"AT": (1, _at),
    b"TTL": (1, _ttl),
    b"UNIQUE": (4, _unique),
}


@COMMANDS.command(
    "kvstream.add",
    "key [DELAY ms|AT unix-ms] [TTL ms] [UNIQUE id WINDOW ms [MOST count] [MAXWAIT ms] "
    "SKIP|REPLACE|DEBOUNCE|AFTER|THROTTLE] [*] field value [field value ...]",
    *(FAST_GROW | flags("invalidates"), FIRST),
    since=OURS,
    tips="nondeterministic_output",
)
def add(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Append an entry as XADD does, now or at a later time; return its ID, or a ticket.

    DELAY: The entry is appended after so many milliseconds.
    AT: The entry is appended at this Unix time in milliseconds; a time that has passed is now.
    TTL: The entry is deleted so many milliseconds after it is due, acknowledged or not, and from
        pending lists as well. If a group has it pending, and its policy has DEAD or DELIVERIES, it
        becomes a dead letter. A message whose time ends before it could be added is not added.
    UNIQUE: Another message of the stream that holds this ID keeps the new one out; the reply is
        then the ID or ticket of that one.
    WINDOW: The unique ID is held for so many milliseconds; with 0, until the message is done:
        acknowledged in one group, moved to the dead letters, or deleted.
    MOST: With SKIP or THROTTLE: so many messages have the ID in a window, which begins with the
        first of them; 1 unless given.
    MAXWAIT: With DEBOUNCE: so many milliseconds after the first message that others have replaced,
        the last one is due at the latest.
    SKIP: The new message is not added.
    REPLACE: It takes the place of a holder that no group has got; else it is not added.
    DEBOUNCE: It takes the place of a delayed holder, so each message starts the delay anew. It is
        added, too, if the holder is in the stream already.
    AFTER: It is added if a group has got the holder, and holds the ID from then on. So at most one
        waits while another is worked on. It does not wait for that one to be done.
    THROTTLE: It is delayed to the begin of the next window that has room.

    A delayed message is kept outside the stream, so no reader sees it early. It gets its ID when it
    is due. Until then it has a ticket, `@unix-ms-number`. Messages of one millisecond keep the
    order in which they were added. DEL, RENAME, FLUSHDB and the expiry of the key take its delayed
    messages along. COPY and migration to another kvstream carry them, DUMP does not. An empty
    stream may have some.

    `*` ends the options, so that the first field may have the name of one.
    """
    args, options = Args(argv, 2), _AddOptions()
    args.take_leading_options(_ADD_OPTIONS, options)
    flat = args.rest()
    if len(flat) % 2 and flat[0] == b"*":
        flat = flat[1:]
    value, names = encode_flat(flat, txn.catalog.limits.entry_max_bytes)
    name, at_ms = session.prefix + argv[1], options.at_ms
    if options.delay_ms is not None:
        if at_ms is not None:
            raise InvalidArgument("syntax error, DELAY and AT exclude each other")
        at_ms = txn.now_ms + options.delay_ms
    return bytes(delayed.add(txn, name, value, names, at_ms, options.ttl_ms, options.unique))


@COMMANDS.command(
    "kvstream.delayed|list", "key [start-ticket] [COUNT count]", READ, SECOND, since=OURS
)
def delayed_list(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return delayed messages, each as ticket and fields, in the order in which they are due.

    COUNT: At most so many, 100 unless given. A reply that reaches a megabyte, or 5000 messages,
        ends before.

    The list begins at `start-ticket`, or behind it if it is written `(ticket`.
    """
    args, start, count = Args(argv, 3), None, delayed.LIST_COUNT
    if args and args.peek()[:1] in (b"@", b"("):
        start = _start(args.next())
    while args:
        if args.option() != b"COUNT":
            raise syntax_error()
        count = args.at_least(1, "COUNT must be a positive integer")
    messages = delayed.list_messages(txn, session.prefix + argv[2], start, count)
    return [[bytes(each.ticket), [*flat_of(each.fields)]] for each in messages]


def _start(raw: bytes) -> Ticket:
    if raw[:1] != b"(":
        return Ticket.parse(raw)
    at_ms, number = Ticket.parse(raw[1:])
    return Ticket(at_ms, number + 1)


@COMMANDS.command("kvstream.delayed|len", "key", FAST_READ, SECOND, since=OURS)
def delayed_len(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Return the number of delayed messages of a stream."""
    return delayed.length(txn, session.prefix + argv[2])


@COMMANDS.command(
    *("kvstream.delayed|cancel", "key ticket [ticket ...]", FAST_WRITE, SECOND),
    since=OURS,
    uses="RW delete",
)
def delayed_cancel(txn: Txn, session: Session, argv: Argv) -> Answer:
    """Delete delayed messages; return how many there were.

    A server deletes very many of them in parts, which other clients see one by one.
    """
    name, words = session.prefix + argv[2], argv[3:]

    def settle(txn: Txn, tickets: list[Ticket]) -> list[int]:
        return [delayed.cancel(txn, name, tickets)]

    if are_many(txn, session, len(words)):
        return settle_in_parts(words, 1, _tickets, settle, sum)
    return delayed.cancel(txn, name, _tickets(words))


def _tickets(words: Argv) -> list[Ticket]:
    return [Ticket.parse(raw) for raw in words]


@COMMANDS.command(
    *("kvstream.delayed|move", "key ticket unix-ms", FAST_WRITE, SECOND),
    since=OURS,
    uses="RW update",
)
def delayed_move(txn: Txn, session: Session, argv: Argv) -> Reply:
    """Make a delayed message due at another time; return its new ticket, null if there is none.

    A time that has passed makes it due now.
    """
    at_ms = Args(argv, 4).integer()
    moved = delayed.move(txn, session.prefix + argv[2], Ticket.parse(argv[3]), at_ms)
    return None if moved is None else bytes(moved)
