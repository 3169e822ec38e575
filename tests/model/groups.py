"""The commands of consumer groups and of their pending entries."""

from dataclasses import dataclass

from tests.model.arguments import (
    SYNTAX,
    Args,
    Failure,
    at_least,
    fail,
    high_bound,
    integer,
    loose_id,
    low_bound,
    options,
    parse_id,
    text,
)
from tests.model.database import Redis
from tests.model.replies import Reply, entry, id_text
from tests.model.stream import COUNT_MAX, ZERO, Group, Id, Stream

BAD_SUBCOMMAND = "unknown subcommand or wrong number of arguments for '{}'. Try {} HELP."


def bad_subcommand(argv: Args) -> str:
    return BAD_SUBCOMMAND.format(text(argv[1]), text(argv[0]).upper())


def xgroup_create(db: Redis, argv: Args) -> Reply:
    read, mkstream = group_options(argv, {b"MKSTREAM": 0, b"ENTRIESREAD": 1})
    s = db.stream(argv[2]) if mkstream else db.find_managed(argv[2])
    if len(argv) > 8:
        raise fail(bad_subcommand(argv))
    id = (s.last if s else ZERO) if argv[4] == b"$" else parse_id(argv[4])
    s = s or db.new_stream(argv[2])
    if argv[3] in s.groups:
        raise fail("Consumer Group name already exists", "BUSYGROUP")
    s.groups[argv[3]] = Group(id, clamp(db, read, s))
    return b"OK"


def xgroup_setid(db: Redis, argv: Args) -> Reply:
    read, _ = group_options(argv, {b"ENTRIESREAD": 1})
    s = db.find_managed(argv[2])
    group = db.group_of(s, argv[2], argv[3])
    if len(argv) not in (5, 7):
        raise fail(bad_subcommand(argv))
    group.last = s.last if argv[4] == b"$" else loose_id(argv[4])
    group.read = clamp(db, read, s)
    return b"OK"


def group_options(argv: Args, sizes: dict[bytes, int]) -> tuple[int | None, bool]:
    read, mkstream = -1, False
    for word, values in options(argv, 5, sizes, bad_subcommand(argv)):
        mkstream = mkstream or word == b"MKSTREAM"
        if word == b"ENTRIESREAD":
            read = at_least(-1, values[0], "value for ENTRIESREAD must be positive or -1")
    return (None if read == -1 else read), mkstream


def clamp(db: Redis, read: int | None, s: Stream) -> int | None:
    return read if read is None or db.old else min(read, s.added)


def xgroup_destroy(db: Redis, argv: Args) -> Reply:
    return int(db.find_managed(argv[2]).groups.pop(argv[3], None) is not None)


def xgroup_createconsumer(db: Redis, argv: Args) -> Reply:
    group = db.group_of(db.find_managed(argv[2]), argv[2], argv[3])
    is_new = argv[4] not in group.consumers
    if is_new:
        group.consumer(argv[4], db.now())
    return int(is_new)


def xgroup_delconsumer(db: Redis, argv: Args) -> Reply:
    group = db.group_of(db.find_managed(argv[2]), argv[2], argv[3])
    group.consumers.pop(argv[4], None)
    return sum(group.drop(id) for id in group.ids(argv[4]))


def xack(db: Redis, argv: Args) -> Reply:
    s = db.stream(argv[1])
    if s is None or argv[2] not in s.groups:
        return 0
    ids = list(map(parse_id, argv[3:]))
    return sum(s.groups[argv[2]].drop(id) for id in ids)


def xnack(db: Redis, argv: Args) -> Reply:
    s, group = db.group(argv[1], argv[2])
    if (mode := argv[3].upper()) not in (b"SILENT", b"FAIL", b"FATAL"):
        raise fail("mode must be SILENT, FAIL, or FATAL")
    if argv[4].upper() != b"IDS":
        raise fail("syntax error, expected IDS keyword")
    positive = "numids must be a positive integer"
    end = 6 + at_least(1, argv[5], positive, positive)
    if end > len(argv):
        raise fail("number of IDs doesn't match numids")
    # Decided: the IDs are read before the options behind them.
    ids = list(map(parse_id, argv[6:end]))
    retry, force = None, False
    unknown = "Unrecognized XNACK option '{}'"
    for word, values in options(argv, end, {b"RETRYCOUNT": 1, b"FORCE": 0}, unknown):
        force = force or word == b"FORCE"
        if word == b"RETRYCOUNT":
            retry = at_least(0, values[0], "Invalid RETRYCOUNT value, must be >= 0")
    return sum(give_back(s, group, id, mode, retry, force) for id in ids)


def give_back(s: Stream, group: Group, id: Id, mode: bytes, retry: int | None, force: bool) -> bool:
    pending = group.pel.get(id)
    if pending is None and not (force and id in s.entries):
        return False
    count = pending.count if pending else 0
    by_mode = {b"SILENT": max(0, count - 1), b"FAIL": count, b"FATAL": COUNT_MAX}
    group.nack(id, by_mode[mode] if retry is None else retry)
    return True


def xpending(db: Redis, argv: Args) -> Reply:
    if len(argv) == 3:
        return pending_summary(db.group(argv[1], argv[2])[1])
    if not 6 <= len(argv) <= 9:
        raise fail(SYNTAX)
    min_idle, i = 0, 3
    if argv[3].upper() == b"IDLE":
        min_idle, i = integer(argv[4]), 5
        if len(argv) < 8:
            raise fail(SYNTAX)
    count = max(0, integer(argv[i + 2]))
    low, high = low_bound(argv[i]), high_bound(argv[i + 1])
    _, group = db.group(argv[1], argv[2])
    owner = argv[i + 3] if i + 3 < len(argv) else None
    if owner is not None and owner not in group.consumers:
        return []
    ids = [id for id in group.ids(owner) if low <= id <= high]
    rows = [pending_row(group, id, db.now(), min_idle) for id in ids]
    return [row for row in rows if row is not None][:count]


def pending_row(group: Group, id: Id, now: int, min_idle: int) -> list[Reply] | None:
    pending = group.pel[id]
    if pending.owner is None:
        return [id_text(id), b"", -1, pending.count]
    idle = now - pending.time
    if min_idle and idle < min_idle:
        return None
    return [id_text(id), pending.owner, max(0, idle), pending.count]


def pending_summary(group: Group) -> Reply:
    ids = group.ids()
    if not ids:
        return [0, None, None, None]
    counts = [(name, len(group.ids(name))) for name in sorted(group.consumers)]
    owners = [[name, b"%d" % count] for name, count in counts if count]
    return [len(ids), id_text(ids[0]), id_text(ids[-1]), owners]


@dataclass
class Claim:
    """How XCLAIM or XAUTOCLAIM takes an entry over."""

    now: int
    min_idle: int
    time: int
    retry: int = -1
    force: bool = False
    justid: bool = False

    def take(self, s: Stream, group: Group, id: Id, name: bytes) -> bool:
        pending = group.pel.get(id)
        if id not in s.entries:
            group.drop(id)
            return False
        if pending is None and not self.force:
            return False
        owned = pending is not None and pending.owner is not None
        if pending and owned and self.min_idle and self.now - pending.time < self.min_idle:
            return False
        # What FORCE makes starts at one delivery, as if it had been delivered before.
        count = self.retry if self.retry >= 0 else (pending.count if pending else 1)
        group.own(id, name, self.time, count + (self.retry < 0 and not self.justid))
        group.consumer(name, self.now).active = self.now
        return True

    def reply(self, s: Stream, id: Id) -> Reply:
        return id_text(id) if self.justid else entry(id, s.entries[id])


def xclaim(db: Redis, argv: Args) -> Reply:
    s, group = db.group(argv[1], argv[2])
    min_idle = max(0, integer(argv[4], "Invalid min-idle-time argument for XCLAIM"))
    ids: list[Id] = []
    for raw in argv[5:]:
        try:
            ids.append(parse_id(raw))
        except Failure:
            break  # an option, or nothing that is known
    claim, last = claim_options(argv, 5 + len(ids), Claim(db.now(), min_idle, db.now()))
    group.last = max(group.last, last)
    if not db.old:
        group.consumer(argv[3], db.now())
    return [claim.reply(s, id) for id in ids if claim.take(s, group, id, argv[3])]


def claim_options(argv: Args, i: int, claim: Claim) -> tuple[Claim, Id]:
    sizes = {b"FORCE": 0, b"JUSTID": 0, b"IDLE": 1, b"TIME": 1, b"RETRYCOUNT": 1, b"LASTID": 1}
    last, time = ZERO, -1
    for word, values in options(argv, i, sizes, "Unrecognized XCLAIM option '{}'"):
        if not values:
            setattr(claim, text(word).lower(), True)
        elif word == b"LASTID":
            last = parse_id(values[0])
        else:
            value = integer(values[0], f"Invalid {text(word)} option argument for XCLAIM")
            if word == b"RETRYCOUNT":
                claim.retry = value
            else:
                time = claim.now - value if word == b"IDLE" else value
    if 0 <= time <= claim.now:
        claim.time = time
    return claim, last


def xautoclaim(db: Redis, argv: Args) -> Reply:
    min_idle = max(0, integer(argv[4], "Invalid min-idle-time argument for XAUTOCLAIM"))
    start, count, claim = low_bound(argv[5]), 100, Claim(db.now(), min_idle, db.now())
    for word, values in options(argv, 6, {b"COUNT": 1, b"JUSTID": 0}):
        claim.justid = claim.justid or word == b"JUSTID"
        if word == b"COUNT":
            positive = "COUNT must be > 0"
            if (count := at_least(1, values[0], positive, positive)) >= (1 << 63) // 16:
                raise fail(positive)
    s, group = db.group(argv[1], argv[2])
    if not db.old:
        group.consumer(argv[3], db.now())
    queue = [id for id in group.ids() if id >= start]
    taken: list[Reply] = []
    deleted: list[Reply] = []
    attempts = 10 * count
    while queue and attempts and len(taken) + len(deleted) < count:
        id, attempts = queue.pop(0), attempts - 1
        if id not in s.entries:
            deleted.append(id_text(id))
        if claim.take(s, group, id, argv[3]):
            taken.append(claim.reply(s, id))
    return [id_text(queue[0] if queue else ZERO), taken, deleted]
