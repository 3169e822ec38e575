"""The commands that write entries: XADD, XTRIM, XDEL and their kind."""

from dataclasses import dataclass

from tests.model.arguments import (
    POLICIES,
    SYNTAX,
    Args,
    at_least,
    fail,
    ids_block,
    integer,
    options,
    parse_id,
    text,
    u64,
)
from tests.model.database import Redis
from tests.model.replies import Reply, id_text
from tests.model.stream import MAX64, TOP, ZERO, Id, Trim, after, idmpauto


@dataclass
class AddOptions:
    end: int = 2  # where they end and the ID stands
    trim: Trim | None = None
    limit: int | None = None
    policy: bytes = b""
    nomkstream: bool = False
    pid: bytes | None = None
    iid: bytes | None = None  # None under IDMPAUTO


def xadd(db: Redis, argv: Args) -> Reply:
    how = add_options(db, argv, xadd=True)
    raw, flat = argv[how.end] if how.end < len(argv) else b"*", list(argv[how.end + 1 :])
    if not flat or len(flat) % 2:
        raise fail("wrong number of arguments for 'xadd' command")
    if not raw.endswith(b"*") and parse_id(raw) == ZERO:
        raise fail("The ID specified in XADD must be greater than 0-0")
    s = db.stream(argv[1])
    if s is None and how.nomkstream:
        return None
    s, now = s or db.new_stream(argv[1]), db.now()
    if how.pid is not None:
        iid = idmpauto(flat) if how.iid is None else how.iid
        if known := s.find_iid(how.pid, iid, now):
            s.iids_duplicates += 1
            return id_text(known)
    if s.last == TOP:
        raise fail("The stream has exhausted the last possible ID, unable to add more items")
    id = new_id(s.last, raw, now)
    s.append(id, flat, db.config[b"stream-node-max-entries"], db.config[b"stream-node-max-bytes"])
    if how.pid is not None:
        s.remember_iid(how.pid, iid, id, now)
    if how.trim is not None:
        s.trim(how.trim, db.old)
    return id_text(id)


def new_id(last: Id, raw: bytes, now: int) -> Id:
    if raw == b"*":
        return (now, 0) if now > last[0] else after(last)
    if raw.endswith(b"-*"):
        ms = u64(raw[:-2])
        id = (ms, 0) if ms != last[0] else (ms, min(last[1] + 1, MAX64))
    else:
        id = parse_id(raw)
    if id <= last:
        smaller = "is equal or smaller than the target stream top item"
        raise fail(f"The ID specified in XADD {smaller}")
    return id


def add_options(db: Redis, argv: Args, xadd: bool) -> AddOptions:
    """Read the options of XADD or XTRIM."""
    found, i = AddOptions(), 2
    while i < len(argv) and not (xadd and argv[i] == b"*"):
        word, more = argv[i].upper(), len(argv) - i - 1
        if word in (b"MAXLEN", b"MINID") and more:
            i = read_strategy(db, argv, i, found)
        elif word == b"LIMIT" and more:
            found.limit = at_least(0, argv[i + 1], "The LIMIT argument must be >= 0.")
            i += 2
        elif word in POLICIES and not found.policy and not db.old:
            found.policy = word
            i += 1
        elif xadd and word == b"NOMKSTREAM":
            found.nomkstream = True
            i += 1
        elif xadd and not db.old and word in (b"IDMP", b"IDMPAUTO") and more > (word == b"IDMP"):
            i = read_producer(argv, i, found)
        elif xadd:
            u64(argv[i][:-2]) if argv[i].endswith(b"-*") else parse_id(argv[i])
            if found.pid is not None:
                auto = "can be used only with auto-generated IDs"
                raise fail(f"syntax error, IDMP/IDMPAUTO {auto}")
            break
        else:
            raise fail(SYNTAX)
    found.end = i
    check_limit(found, xadd)
    return found


def read_strategy(db: Redis, argv: Args, i: int, found: AddOptions) -> int:
    if found.trim is not None:
        both = "MAXLEN and MINID options at the same time are not compatible"
        raise fail(f"syntax error, {both}")
    word = argv[i].upper()
    sign = argv[i + 1] if i + 2 < len(argv) and argv[i + 1] in (b"~", b"=") else b""
    value = argv[i + 2 if sign else i + 1]
    default = min(100 * db.config[b"stream-node-max-entries"] or 10_000, 1_000_000)
    found.trim = Trim(None, None, sign == b"~", default if sign == b"~" else 0)
    if word == b"MINID":
        found.trim.minid = parse_id(value)
    else:
        found.trim.maxlen = at_least(0, value, "The MAXLEN argument must be >= 0.")
    return i + 3 if sign else i + 2


def read_producer(argv: Args, i: int, found: AddOptions) -> int:
    word = text(argv[i]).upper()
    if found.pid is not None:
        raise fail("syntax error, IDMP/IDMPAUTO specified multiple times")
    if not argv[i + 1]:
        raise fail(f"syntax error, {word} requires a non-empty producer ID")
    if word == "IDMP" and not argv[i + 2]:
        raise fail("syntax error, IDMP requires a non-empty idempotent ID")
    found.pid, found.iid = argv[i + 1], argv[i + 2] if word == "IDMP" else None
    return i + 3 if word == "IDMP" else i + 2


def check_limit(found: AddOptions, xadd: bool) -> None:
    cannot = "syntax error, LIMIT cannot be used without"
    if found.limit and found.trim is None:
        raise fail(f"{cannot} specifying a trimming strategy")
    if found.trim is None and not xadd:
        raise fail("syntax error, XTRIM must be called with a trimming strategy")
    if found.limit is not None and not (found.trim and found.trim.approx):
        raise fail(f"{cannot} the special ~ option")
    if found.trim is not None:
        found.trim.policy = found.policy or b"KEEPREF"
        found.trim.limit = found.trim.limit if found.limit is None else found.limit


def xtrim(db: Redis, argv: Args) -> Reply:
    how = add_options(db, argv, xadd=False).trim
    s = db.stream(argv[1])
    return 0 if s is None or how is None else s.trim(how, db.old)


def xdel(db: Redis, argv: Args) -> Reply:
    s = db.stream(argv[1])
    ids = list(map(parse_id, argv[2:])) if s else []
    return sum(s.delete(id) for id in ids) if s else 0


def xdelex(db: Redis, argv: Args) -> Reply:
    s = db.stream(argv[1])
    policy, raw = ids_block(argv, 2)
    if s is None:
        return [-1] * len(raw)
    ids = list(map(parse_id, raw))
    return [s.delete_by(policy, id) for id in ids]


def xackdel(db: Redis, argv: Args) -> Reply:
    s = db.stream(argv[1])
    policy, raw = ids_block(argv, 3)
    if s is None or argv[2] not in s.groups:
        return [-1] * len(raw)
    group, ids = s.groups[argv[2]], list(map(parse_id, raw))
    # A pending entry whose message is gone counts as deleted: 1, not -1.
    return [abs(s.delete_by(policy, id)) if group.drop(id) else -1 for id in ids]


def xsetid(db: Redis, argv: Args) -> Reply:
    id, added, deleted = parse_id(argv[2]), None, ZERO
    smaller = "The ID specified in XSETID is smaller than"
    for word, (value,) in options(argv, 3, {b"ENTRIESADDED": 1, b"MAXDELETEDID": 1}):
        if word == b"ENTRIESADDED":
            added = at_least(0, value, "entries_added must be positive")
        elif id < (deleted := parse_id(value)):
            raise fail(f"{smaller} the provided max_deleted_entry_id")
    s = db.existing(argv[1])
    if id < s.max_deleted and not db.old:
        raise fail(f"{smaller} current max_deleted_entry_id")
    if s.entries and id < s.top():
        raise fail(f"{smaller} the target stream top item")
    if s.entries and added is not None and added < len(s.entries):
        shorter = "is smaller than the target stream length"
        raise fail(f"The entries_added specified in XSETID {shorter}")
    s.last = id
    s.added = s.added if added is None else added
    s.max_deleted = s.max_deleted if deleted == ZERO else deleted
    return b"OK"


def xcfgset(db: Redis, argv: Args) -> Reply:
    db.existing(argv[1])
    values: dict[bytes, int] = {}
    bounds = {b"IDMP-DURATION": (86400, "seconds"), b"IDMP-MAXSIZE": (10000, "entries")}
    for word, (value,) in options(argv, 2, dict.fromkeys(bounds, 1)):
        if word in values:
            raise fail(f"{text(word)} specified multiple times")
        high, unit = bounds[word]
        values[word] = integer(value)
        if not 1 <= values[word] <= high:
            raise fail(f"{text(word)} must be between 1 and {high} {unit}")
    if not values:
        raise fail("At least one parameter must be specified")
    s = db.existing(argv[1])
    was = s.idmp_duration, s.idmp_maxsize
    s.idmp_duration = values.get(b"IDMP-DURATION", s.idmp_duration)
    s.idmp_maxsize = values.get(b"IDMP-MAXSIZE", s.idmp_maxsize)
    if was != (s.idmp_duration, s.idmp_maxsize):
        s.producers.clear()
    return b"OK"


def xidmprecord(db: Redis, argv: Args) -> Reply:
    _, key, pid, iid, raw = argv
    # Decided: the two names are looked at first, then the ID, the key, and what is recorded; what
    # is recorded already is well also when its entry has gone since.
    if not pid or not iid:
        raise fail(f"{'idempotent' if pid else 'producer'} ID must be non-empty")
    id, s = parse_id(raw), db.existing(key)
    known = s.find_iid(pid, iid, db.now())
    if known and known != id:
        raise fail("IID already exists for this producer with a different stream ID")
    if not known:
        if id not in s.entries:
            raise fail("No such message in stream")
        s.remember_iid(pid, iid, id, db.now())
    return b"OK"
