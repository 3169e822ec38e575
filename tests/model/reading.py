"""The commands that read entries: XRANGE, XREVRANGE, XREAD and XREADGROUP.

Blocking is left out: BLOCK is parsed, and a read that would wait answers None.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.arguments import (
    SYNTAX,
    Args,
    at_least,
    fail,
    high_bound,
    integer,
    low_bound,
    options,
    parse_id,
    text,
)
from tests.model.database import Redis
from tests.model.replies import Reply, entry, resp_size
from tests.model.stream import TOP, ZERO, Group, Id, Stream, after, before

MEANINGLESS = (
    "The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of this "
    "consumer by specifying a proper ID, or use the > ID to get new messages. The {0} ID would "
    "just return an empty result set."
)
UNBALANCED = "Unbalanced '{}' list of streams: for each stream key an {} must be specified."


def xlen(db: Redis, argv: Args) -> Reply:
    s = db.stream(argv[1])
    return len(s.entries) if s else 0


def xrange(db: Redis, argv: Args) -> Reply:
    return in_range(db, argv, low_bound(argv[2]), high_bound(argv[3]), False)


def xrevrange(db: Redis, argv: Args) -> Reply:
    low = low_bound(argv[3])  # read first, also when both are faulty
    return in_range(db, argv, low, high_bound(argv[2]), True)


def in_range(db: Redis, argv: Args, low: Id, high: Id, reverse: bool) -> Reply:
    count = None
    for _, (value,) in options(argv, 4, {b"COUNT": 1}):
        count = max(0, integer(value))
    s = db.stream(argv[1])
    if s is None:
        return []
    if count == 0:
        return None
    ids = list(s.between(low, high))
    return [entry(id, s.entries[id]) for id in (ids[::-1] if reverse else ids)[:count]]


@dataclass
class Reader:
    """What XREAD and XREADGROUP were asked for, and how much of the reply stands already."""

    command: str
    streams: int = 0  # where the keys begin
    group: bytes | None = None
    consumer: bytes = b""
    count: int = 0
    maxcount: int = 0
    maxsize: int = 0
    claim: int | None = None
    noack: bool = False
    emitted: int = 0
    size: int = 0
    cut: bool = False  # the open stream has entries for which MAXSIZE has no room

    def spent(self) -> bool:
        # Decided: as in the Redis source, the bytes that lie in the reply are compared before
        # each entry but the first. The length of an array is added when the array ends.
        return self.full() or bool(self.maxcount and self.emitted >= self.maxcount)

    def full(self) -> bool:
        return bool(self.maxsize and self.emitted and self.size >= self.maxsize)

    def may_take(self, taken: int) -> bool:
        self.cut = self.full()
        return not self.spent() and not (self.count and taken >= self.count)

    def take(self, item: Reply) -> Reply:
        self.emitted += 1
        self.size += resp_size(item)
        return item


def xread(db: Redis, argv: Args) -> Reply:
    reader = read_options(db, argv)
    names = argv[reader.streams :]
    half = len(names) // 2
    starts = [start_of(db, *pair, reader) for pair in zip(names[:half], names[half:], strict=True)]
    reply: list[Reply] = []
    for key, start in zip(names[:half], starts, strict=True):
        s = db.stream(key)
        # Decided: once MAXCOUNT or MAXSIZE is reached, later streams are not touched at all: no
        # consumer is made in their groups, and no empty history is listed.
        if s is None or reader.spent():
            continue
        before_it, reader.cut = reader.size, False
        reader.size += len(b"*2\r\n") + resp_size(key)
        items = read_stream(db, s, start, reader)
        if items is None and reader.cut:
            items = []  # the stream was begun
        if items is None:
            reader.size = before_it
        else:
            reader.size += len(b"*%d\r\n" % len(items))
            reply.append([key, items])
    return reply or None


def read_options(db: Redis, argv: Args) -> Reader:
    reader = Reader(text(argv[0]).lower())
    grouped, i = reader.command == "xreadgroup", 1
    while i < len(argv):
        word, more = text(argv[i]).upper(), len(argv) - i - 1
        if word == "STREAMS" and more:
            break
        known = {"GROUP": 2, "NOACK": 0, "COUNT": 1, "BLOCK": 1}
        known |= {} if db.old else {"CLAIM": 1, "MAXCOUNT": 1, "MAXSIZE": 1}
        if more < known.get(word, more + 1):
            raise fail(SYNTAX)
        if word in ("GROUP", "NOACK", "CLAIM") and not grouped:
            only = "is only supported by XREADGROUP. You called XREAD instead."
            raise fail(f"The {word} option {only}")
        read_option(reader, word, argv[i + 1 : i + 1 + known[word]])
        i += 1 + known[word]
    check_streams(reader, argv[i + 1 :], i < len(argv))
    reader.streams = i + 1
    return reader


def read_option(reader: Reader, word: str, values: Args) -> None:
    if word == "GROUP":
        reader.group, reader.consumer = values
    elif word == "NOACK":
        reader.noack = True
    elif word == "COUNT":
        reader.count = max(0, integer(values[0]))
    elif word == "BLOCK":
        unreadable = "timeout is not an integer or out of range"
        at_least(0, values[0], "timeout is negative", unreadable)
    elif word == "CLAIM":
        unreadable = "min-idle-time is not an integer or out of range"
        positive = "min-idle-time must be a positive integer"
        reader.claim = at_least(0, values[0], positive, unreadable)
    else:
        positive = f"{word} must be a positive integer"
        unreadable = "value is not an integer or out of range"
        setattr(reader, word.lower(), at_least(1, values[0], positive, unreadable))


def check_streams(reader: Reader, names: Args, given: bool) -> None:
    if not given:
        raise fail(SYNTAX)
    grouped = reader.command == "xreadgroup"
    if len(names) % 2:
        wanted = "ID or '>'" if grouped else "ID, '+', or '$'"
        raise fail(UNBALANCED.format(reader.command, wanted))
    if grouped and reader.group is None:
        raise fail("Missing GROUP option for XREADGROUP")
    if reader.maxcount and reader.count > reader.maxcount:
        raise fail("MAXCOUNT must be greater than or equal to COUNT")


def start_of(db: Redis, key: bytes, raw: bytes, reader: Reader) -> Id | None:
    """Return the ID that a read starts after; None for what is new to a group."""
    s = db.stream(key)
    if reader.group is not None:
        db.group(key, reader.group, " in XREADGROUP with GROUP option")
        if raw == b">":
            return None
        if raw in (b"$", b"+") and not (db.old and raw == b"+"):
            raise fail(MEANINGLESS.format(text(raw)))
    elif raw == b">":
        only = "can be specified only when calling XREADGROUP using the GROUP <group>"
        raise fail(f"The > ID {only} <consumer> option.")
    elif raw == b"$":
        return s.last if s else ZERO
    elif raw == b"+" and not db.old:
        # Decided: `+` is the last entry that lives, also when a later one was deleted.
        return before(s.top()) if s and s.entries else ZERO
    return parse_id(raw)


def read_stream(db: Redis, s: Stream, start: Id | None, reader: Reader) -> list[Reply] | None:
    """Return the entries of one stream, or None when it has no place in the reply."""
    if reader.group is None:
        assert start is not None
        return [reader.take(entry(id, s.entries[id])) for id in ahead(s, start, reader)] or None
    group = s.groups[reader.group]
    if db.old and start is None and s.top() <= group.last:
        return None
    group.consumer(reader.consumer, db.now())
    if start is not None:
        return history(db, s, group, start, reader)
    claimed = claim_idle(db, s, group, reader)
    return claimed + deliver(db, s, group, reader, len(claimed)) or None


def ahead(s: Stream, start: Id, reader: Reader, taken: int = 0) -> Iterator[Id]:
    for id in s.between(after(start), TOP) if start < TOP else ():
        if not reader.may_take(taken):
            return
        taken += 1
        yield id


def history(db: Redis, s: Stream, group: Group, start: Id, reader: Reader) -> list[Reply]:
    items: list[Reply] = []
    for id in group.ids(reader.consumer):
        if id > start and reader.may_take(len(items)):
            items.append(reader.take(entry(id, s.entries.get(id))))
            if id in s.entries:
                group.own(id, reader.consumer, db.now(), group.pel[id].count + 1)
    return items


def claim_idle(db: Redis, s: Stream, group: Group, reader: Reader) -> list[Reply]:
    items: list[Reply] = []
    now = db.now()
    for id in [] if reader.claim is None else group.idle(now, reader.claim):
        # Decided: pending entries that were deleted are passed over and use up no COUNT.
        if id in s.entries and reader.may_take(len(items)):
            was = group.pel[id]
            items.append(reader.take([*entry(id, s.entries[id]), now - was.time, was.count]))
            group.own(id, reader.consumer, now, was.count + 1)
            group.consumers[reader.consumer].active = now
    return items


def deliver(db: Redis, s: Stream, group: Group, reader: Reader, taken: int) -> list[Reply]:
    items: list[Reply] = []
    never_delivered = [] if reader.claim is None else [0, 0]
    for id in ahead(s, group.last, reader, taken):
        items.append(reader.take([*entry(id, s.entries[id]), *never_delivered]))
        s.advance(group, id, db.old)
        if not reader.noack:
            group.own(id, reader.consumer, db.now(), 1)
            # Decided: NOACK leaves active-time alone, as the Redis source does.
            group.consumers[reader.consumer].active = db.now()
    return items
