"""The operations of the library as commands of RESP.

Each function is named after its command. It takes the arguments of an operation and returns a
``Call``: the words to send, and the function that reads the replies. ``remote/operations.py`` maps
operations to these functions. A name of the library is qualified: the number of its database and
the key.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstream.engine.blocking_reads import GroupRead
from kvstream.errors import InvalidArgument
from kvstream.layout.columns import Columns, of_replies
from kvstream.layout.keys import database_of, key_of, qualified
from kvstream.layout.values import Names, decode_fields
from kvstream.meta.idempotency import Request
from kvstream.operations import append, claim, groups
from kvstream.operations.ack import Nack
from kvstream.operations.append import Idempotency
from kvstream.operations.groups import Delivered
from kvstream.operations.reads import read
from kvstream.operations.reads.limits import Budget
from kvstream.operations.reads.range import Range
from kvstream.operations.reads.read import Position
from kvstream.operations.trim import Strategy, Trim
from kvstream.remote import replies
from kvstream.remote.call import (
    Call,
    Effect,
    Words,
    answer,
    count_option,
    count_word,
    flag,
    nothing,
    option,
    plain,
    say,
)
from kvstream.types.ids import MAX_ID, MIN_ID, AddID, StreamID
from kvstream.types.options import RefPolicy
from kvstream.types.records import Entry, GroupInfo, Outcome, StreamDetail, StreamInfo, flat_of


def _ids(ids: Sequence[StreamID]) -> Words:
    return tuple(map(str, ids))


def _id_block(ids: Sequence[StreamID]) -> Words:
    return ("IDS", len(ids), *_ids(ids))


# --- entries --------------------------------------------------------------------------------------


def _trim_words(trim: Trim | None) -> Words:
    if trim is None:
        return ()
    by_length = trim.strategy is Strategy.MAXLEN
    return (
        *flag(str(trim.policy), trim.policy is not RefPolicy.KEEPREF),
        str(trim.strategy),
        "~" if trim.approximate else "=",
        count_word(trim.maxlen) if by_length else str(trim.minid),
        *count_option("LIMIT", trim.limit),
    )


def _add_words(
    key: bytes, value: bytes, options: Words = (), eid: AddID = None, command: str = "XADD"
) -> Words:
    """Return the words of XADD for an entry as the store would write it."""
    return (command, key, *options, _id_word(eid), *flat_of(decode_fields(value)))


def _id_word(eid: AddID) -> str:
    return "*" if eid is None else f"{eid}-*" if isinstance(eid, int) else str(eid)


def xadd(
    name: bytes,
    value: bytes,
    names: Names,
    eid: AddID = None,
    trim: Trim | None = None,
    nomkstream: bool = False,
    once: Idempotency | Request | None = None,
) -> Call:
    options: Words = (*flag("NOMKSTREAM", nomkstream), *_trim_words(trim))
    command = "XADD"
    if isinstance(once, Request):
        command, options = "KVSTREAM.ADDONCE", (once.client, once.number, *options)
    elif once is not None:
        append.refuse_explicit_id(eid)
        options = ("IDMP", once.pid, once.iid, *options)
    words = _add_words(key_of(name), value, options, eid, command)
    effect = None if once is None else Effect.SAME_RESULT
    return say(name, *words, result=replies.id_or_none, effect=effect)


def xadd_all(name: bytes, entries: list[tuple[bytes, Names]], trim: Trim | None = None) -> Call:
    return xadd_under(name, [None] * len(entries), entries, trim)


def xadd_under(
    name: bytes,
    ids: Sequence[AddID],
    entries: list[tuple[bytes, Names]],
    trim: Trim | None = None,
) -> Call:
    key = key_of(name)
    *first, (last, _) = entries
    commands = [
        _add_words(key, value, eid=eid) for eid, (value, _) in zip(ids[:-1], first, strict=True)
    ]
    commands.append(_add_words(key, last, _trim_words(trim), ids[-1]))
    return Call(
        database_of(name),
        (key,),
        commands,
        lambda added: list(map(replies.id_of, added)),
        part=lambda at: f"entry {at + 1}" + ("" if ids[at] is None else f" ({_id_word(ids[at])})"),
    )


def xtrim(name: bytes, trimming: Trim) -> Call:
    return say(name, "XTRIM", key_of(name), *_trim_words(trimming))


def xdel(name: bytes, ids: Sequence[StreamID]) -> Call:
    return say(name, "XDEL", key_of(name), *_ids(ids)) if ids else answer(0)


def _outcomes(reply: list[int]) -> list[Outcome]:
    return list(map(Outcome, reply))


def xdelex(name: bytes, ids: Sequence[StreamID], policy: RefPolicy) -> Call:
    if not ids:
        return answer([])
    words = ("XDELEX", key_of(name), str(policy), *_id_block(ids))
    return say(name, *words, result=_outcomes)


def xsetid(
    name: bytes,
    last: StreamID,
    entries_added: int | None = None,
    max_deleted: StreamID | None = None,
) -> Call:
    deleted = None if max_deleted is None else str(max_deleted)
    options = (*option("ENTRIESADDED", entries_added), *option("MAXDELETEDID", deleted))
    return say(name, "XSETID", key_of(name), str(last), *options, result=nothing)


def xcfgset(name: bytes, duration_s: int | None, maxsize: int | None) -> Call:
    options = (*option("IDMP-DURATION", duration_s), *option("IDMP-MAXSIZE", maxsize))
    return say(name, "XCFGSET", key_of(name), *options, result=nothing)


class _Page:
    """Entries of a reply, with the methods of the rows that a store reads."""

    __slots__ = ("_raw",)

    def __init__(self, raw: list[Any] | None) -> None:
        self._raw = raw or []

    def __len__(self) -> int:
        return len(self._raw)

    def entries(self) -> list[Entry]:
        return replies.entries_of(self._raw)

    def columns(self) -> Columns:
        return of_replies(self._raw)


def xrange(asked: Range) -> Call:
    name, bounds = asked.name, [str(asked.start), str(asked.end)]
    command = "XREVRANGE" if asked.reverse else "XRANGE"
    words = (command, key_of(name), *(reversed(bounds) if asked.reverse else bounds))
    return say(name, *words, *count_option("COUNT", asked.count), result=_Page)


xinfo_stream = plain("XINFO", "STREAM", result=replies.stream_info_of)


def xinfo_stream_full(name: bytes, count: int) -> Call:
    key = key_of(name)

    def detail(reply: list[Any]) -> StreamDetail:
        values = replies.members(reply[1])
        return StreamDetail(
            replies.stream_info_of(reply[0]),
            replies.entries_of(values["entries"]),
            [replies.group_detail_of(group) for group in values["groups"]],
        )

    commands: list[Words] = [
        ("XINFO", "STREAM", key),
        ("XINFO", "STREAM", key, "FULL", "COUNT", count),
    ]
    return Call(database_of(name), (key,), commands, detail)


# --- reading --------------------------------------------------------------------------------------


def resolve(name: bytes, after: StreamID | Position) -> Call:
    """Return the call of the position of a read, which stays while the read blocks."""
    if isinstance(after, StreamID):
        return answer(after)

    def position(found: StreamInfo) -> StreamID:
        newest = found.last_entry if after is Position.NEWEST else None
        return found.last_generated_id if newest is None else newest.id.previous()

    return replace(
        xinfo_stream(name),
        result=lambda reply: position(replies.stream_info_of(reply[0])),
        missing=MIN_ID,
    )


def _limits(budget: Budget | None) -> Words:
    if budget is None:
        return ()
    count, size = budget.limits
    return (*count_option("MAXCOUNT", count), *count_option("MAXSIZE", size))


def _reply_of(db: int, reply: list[Any] | None) -> read.Reply:
    lists = replies.streams_of(reply)
    return [(qualified(db, key), entries) for key, entries in lists.items()]


_LAST = MAX_ID.previous()
"""A server takes the greatest ID in place of ``>``; no entry comes after it."""


def xread(
    wanted: Sequence[tuple[bytes, StreamID]],
    count: int | None,
    budget: Budget | None,
    block: Words,
) -> Call:
    """Return the call of an XREAD from resolved positions."""
    db, keys = database_of(wanted[0][0]), tuple(key_of(name) for name, _ in wanted)
    ids = [str(after) for _, after in wanted]
    words = (
        "XREAD",
        *count_option("COUNT", count),
        *_limits(budget),
        *block,
        "STREAMS",
        *keys,
        *ids,
    )
    return Call(db, keys, (words,), lambda reply: _reply_of(db, reply[0]))


def xreadgroup(attempt: GroupRead, block: Words = (), claim_ms: int | None = None) -> Call:
    """Return the call of an XREADGROUP; ``claim_ms``: with CLAIM although the read has none."""
    claim_ms = attempt.claim_ms if claim_ms is None else claim_ms
    db = database_of(attempt.wanted[0][0])
    keys = tuple([key_of(name) for name, _ in attempt.wanted])
    words: Words = (
        *("XREADGROUP", "GROUP", attempt.group, attempt.consumer),
        *count_option("COUNT", attempt.count),
        *_limits(attempt.budget()),
        *block,
        *option("CLAIM", claim_ms),
        *flag("NOACK", attempt.noack),
        "STREAMS",
        *keys,
        *[">" if after is None else str(min(after, _LAST)) for _, after in attempt.wanted],
    )
    return Call(db, keys, (words,), lambda reply: _reply_of(db, reply[0]))


# --- groups ---------------------------------------------------------------------------------------


def _position(after: Delivered) -> str:
    return "$" if after is None else str(after)


def xgroup_create(
    name: bytes,
    group: bytes,
    after: Delivered,
    mkstream: bool = False,
    entries_read: int | None = None,
) -> Call:
    options = (*flag("MKSTREAM", mkstream), *option("ENTRIESREAD", entries_read))
    words = ("XGROUP", "CREATE", key_of(name), group, _position(after), *options)
    return say(name, *words, result=nothing)


def xgroup_setid(
    name: bytes, group: bytes, after: Delivered, entries_read: int | None = None
) -> Call:
    words = ("XGROUP", "SETID", key_of(name), group, _position(after))
    return say(name, *words, *option("ENTRIESREAD", entries_read), result=nothing)


xinfo_consumers = plain("XINFO", "CONSUMERS", result=replies.consumer_infos_of)
xinfo_groups = plain("XINFO", "GROUPS", result=replies.group_infos_of)


def xinfo_group(name: bytes, group: bytes) -> Call:
    def choose(reply: list[list[Any]]) -> GroupInfo:
        infos = {each.name: each for each in replies.group_infos_of(reply[0])}
        if group not in infos:
            raise groups.no_such_group(name, group)
        return infos[group]

    return replace(xinfo_groups(name), result=choose)


def xack(name: bytes, group: bytes, ids: Sequence[StreamID]) -> Call:
    return say(name, "XACK", key_of(name), group, *_ids(ids)) if ids else answer(0)


def xackdel(name: bytes, group: bytes, ids: Sequence[StreamID], policy: RefPolicy) -> Call:
    if not ids:
        return answer([])
    words = ("XACKDEL", key_of(name), group, str(policy), *_id_block(ids))
    return say(name, *words, result=_outcomes)


def xnack(name: bytes, group: bytes, ids: Sequence[StreamID], nack: Nack) -> Call:
    """Return the call of an XNACK."""
    if not ids:
        return answer(0)
    options = (*option("RETRYCOUNT", nack.retrycount), *flag("FORCE", nack.force))
    words = ("XNACK", key_of(name), group, str(nack.mode), *_id_block(ids), *options)
    return say(name, *words)


def xclaim(
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    ids: Sequence[StreamID],
    *,
    time_ms: int | None = None,
    retrycount: int | None = None,
    force: bool = False,
    justid: bool = False,
    last_id: StreamID | None = None,
) -> Call:
    claim.refuse_retrycount(retrycount)  # a server takes a negative one for none
    if not ids:
        return answer([])
    options = (
        *option("TIME", time_ms),
        *option("RETRYCOUNT", retrycount),
        *flag("FORCE", force),
        *flag("JUSTID", justid),
        *option("LASTID", None if last_id is None else str(last_id)),
    )
    return say(
        name,
        *("XCLAIM", key_of(name), group, consumer, min_idle_ms, *_ids(ids), *options),
        result=lambda reply: replies.claimed_of(reply, justid),
    )


def xautoclaim(
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    start: StreamID,
    count: int,
    justid: bool,
) -> Call:
    words = (key_of(name), group, consumer, min_idle_ms, str(start), "COUNT", count)
    return say(
        name,
        *("XAUTOCLAIM", *words, *flag("JUSTID", justid)),
        result=lambda reply: replies.autoclaimed_of(reply, justid),
    )


def xpending_range(
    name: bytes,
    group: bytes,
    start: StreamID = MIN_ID,
    end: StreamID = MAX_ID,
    count: int = 0,
    consumer: bytes | None = None,
    min_idle_ms: int = 0,
) -> Call:
    words: Words = ("XPENDING", key_of(name), group, *option("IDLE", min_idle_ms or None))
    bounds: Words = (str(start), str(end), count_word(count))
    bounds += () if consumer is None else (consumer,)
    return say(name, *words, *bounds, result=replies.pending_entries_of)


# --- keys -----------------------------------------------------------------------------------------


def unlink(db: int, keys: Sequence[bytes]) -> Call:
    if not keys:
        return answer(0)
    return Call(db, tuple(keys), (("UNLINK", *keys),), lambda reply: reply[0])


def exists(db: int, keys: Sequence[bytes]) -> Call:
    return Call(db, tuple(keys), (("EXISTS", *keys),), lambda reply: reply[0])


def rename(source: bytes, target: bytes, replace: bool = True) -> Call:
    keys = (key_of(source), key_of(target))
    words: Words = ("RENAME" if replace else "RENAMENX", *keys)
    return Call(database_of(source), keys, (words,), lambda reply: reply[0] != 0)


def copy(source: bytes, target: bytes, replace: bool = False) -> Call:
    keys = (key_of(source), key_of(target))
    words: Words = ("COPY", *keys, *flag("REPLACE", replace))
    return Call(database_of(source), keys, (words,), lambda reply: reply[0] != 0)


def set_(name: bytes, value: bytes, expire_at: int | None = 0) -> Call:
    expiry: Words = ("KEEPTTL",) if expire_at is None else ()
    if expire_at:
        expiry = ("PXAT", expire_at)
    return say(name, "SET", key_of(name), value, *expiry, result=nothing)


def set_new(name: bytes, value: bytes, expire_at: int = 0) -> Call:
    words = ("SET", key_of(name), value, "NX", *option("PXAT", expire_at or None))
    return say(name, *words, result=bool)


def dbsize(db: int) -> Call:
    return Call(db, (), (("DBSIZE",),), lambda reply: reply[0])


def scan(db: int, cursor: int, count: int) -> Call:
    def page(reply: list[Any]) -> tuple[int, list[bytes]]:
        following, keys = reply[0]
        return int(following), keys

    return Call(db, (), (("SCAN", cursor, "COUNT", count),), page)


def flushdb(db: int) -> Call:
    commands = (("DBSIZE",), ("FLUSHDB",))
    return Call(db, (), commands, lambda reply: reply[0])


def flushall(databases: int) -> Call:
    def count(reply: list[bytes]) -> int:
        sizes = replies.sections_of(reply[0]).get("keyspace", {})
        return sum(int(text.partition("keys=")[2].partition(",")[0]) for text in sizes.values())

    commands = (("INFO", "keyspace"), ("FLUSHALL",))
    return Call(None, (), commands, count)


def dump(name: bytes, target: str | None = None) -> Call:
    if target is not None:
        raise InvalidArgument("target is for a store in a directory: a server chooses its format")
    return say(name, "DUMP", key_of(name))


def restore(name: bytes, payload: bytes, replace: bool = False, expire_at_ms: int = 0) -> Call:
    words = ("RESTORE", key_of(name), expire_at_ms, payload, *flag("REPLACE", replace), "ABSTTL")
    return say(name, *words, result=lambda reply: [])
