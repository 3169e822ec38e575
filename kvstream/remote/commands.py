"""The operations of the library as commands of RESP.

``CALLS`` has a function for each operation: from the operation's arguments it makes a ``Call``, the
words to send and the function that reads the replies. A name of the library is qualified: the
number of its database and the key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvstream.engine.blocking_reads import GroupRead
from kvstream.errors import InvalidArgument
from kvstream.layout.columns import Columns, of_replies
from kvstream.layout.keys import database_of, key_of, qualified
from kvstream.layout.values import Names, decode_fields
from kvstream.meta.idempotency import Request
from kvstream.operations import (
    ack,
    append,
    claim,
    delete,
    groups,
    info,
    keyspace,
    read,
    strings,
    trim,
)
from kvstream.operations import range as ranges
from kvstream.operations.ack import Nack
from kvstream.operations.append import Idempotency
from kvstream.operations.groups import Delivered
from kvstream.operations.images import copy, dump
from kvstream.operations.read import Position
from kvstream.operations.reply_limits import Budget
from kvstream.operations.trim import Strategy, Trim
from kvstream.remote import replies
from kvstream.remote.call import (
    Call,
    Words,
    ask,
    count_option,
    count_word,
    do,
    flag,
    known,
    nothing,
    option,
)
from kvstream.remote.queue_commands import CALLS as QUEUE_CALLS
from kvstream.types.ids import MAX_ID, MIN_ID, AddID, StreamID
from kvstream.types.options import RefPolicy
from kvstream.types.records import Entry, GroupInfo, Outcome, StreamDetail, StreamInfo, flat_of

SINCE = {
    "XREADGROUP CLAIM": "8.4",
    "DELREF or ACKED": "8.2",
    "IDMP": "8.6",
    "MAXCOUNT or MAXSIZE": "8.10",
    "XACKDEL": "8.2",
    "XCFGSET": "8.6",
    "XDELEX": "8.2",
    "XNACK": "8.8",
}
"""Commands and options that a Redis 7.0 lacks, and the version that has them."""
OURS = "KVSTREAM."
"""How the names of commands begin that no Redis has."""


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


def _trim_needs(trim: Trim | None) -> tuple[str, ...]:
    return () if trim is None or trim.policy is RefPolicy.KEEPREF else ("DELREF or ACKED",)


def _add_words(
    key: bytes, value: bytes, options: Words = (), eid: AddID = None, command: str = "XADD"
) -> Words:
    """Return the words of XADD for an entry as the store would write it."""
    return (command, key, *options, _id_word(eid), *flat_of(decode_fields(value)))


def _id_word(eid: AddID) -> str:
    return "*" if eid is None else f"{eid}-*" if isinstance(eid, int) else str(eid)


def _add(
    name: bytes,
    value: bytes,
    names: Names,
    eid: AddID = None,
    trim: Trim | None = None,
    nomkstream: bool = False,
    once: Idempotency | Request | None = None,
) -> Call:
    options: Words = (*flag("NOMKSTREAM", nomkstream), *_trim_words(trim))
    needs = _trim_needs(trim)
    command = "XADD"
    if isinstance(once, Request):
        command, options = "KVSTREAM.ADDONCE", (once.client, once.number, *options)
        needs = (command, *needs)
    elif once is not None:
        append.refuse_explicit_id(eid)
        options, needs = ("IDMP", once.pid, once.iid, *options), ("IDMP", *needs)
    words = _add_words(key_of(name), value, options, eid, command)
    repeatable = once is not None
    return do(name, *words, result=replies.id_or_none, needs=needs, repeatable=repeatable)


def _add_many(name: bytes, entries: list[tuple[bytes, Names]], trim: Trim | None = None) -> Call:
    return _add_under(name, [None] * len(entries), entries, trim)


def _add_under(
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
        writes=True,
        part=lambda at: f"entry {at + 1}" + ("" if ids[at] is None else f" ({_id_word(ids[at])})"),
    )


def _trim(name: bytes, trimming: Trim) -> Call:
    return do(name, "XTRIM", key_of(name), *_trim_words(trimming), needs=_trim_needs(trimming))


def _delete(name: bytes, ids: Sequence[StreamID]) -> Call:
    return do(name, "XDEL", key_of(name), *_ids(ids)) if ids else known(0)


def _outcomes(reply: list[int]) -> list[Outcome]:
    return list(map(Outcome, reply))


def _delete_with_policy(name: bytes, ids: Sequence[StreamID], policy: RefPolicy) -> Call:
    if not ids:
        return known([])
    words = ("XDELEX", key_of(name), str(policy), *_id_block(ids))
    return do(name, *words, result=_outcomes, needs=("XDELEX",))


def _set_id(
    name: bytes,
    last: StreamID,
    entries_added: int | None = None,
    max_deleted: StreamID | None = None,
) -> Call:
    deleted = None if max_deleted is None else str(max_deleted)
    options = (*option("ENTRIESADDED", entries_added), *option("MAXDELETEDID", deleted))
    return do(name, "XSETID", key_of(name), str(last), *options, result=nothing)


def _configure(name: bytes, duration_s: int | None, maxsize: int | None) -> Call:
    options = (*option("IDMP-DURATION", duration_s), *option("IDMP-MAXSIZE", maxsize))
    return do(name, "XCFGSET", key_of(name), *options, result=nothing, needs=("XCFGSET",))


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


def _scan(
    name: bytes, start: StreamID, end: StreamID, count: int | None = None, reverse: bool = False
) -> Call:
    first, last = (end, start) if reverse else (start, end)
    words = ("XREVRANGE" if reverse else "XRANGE", key_of(name), str(first), str(last))
    return ask(name, *words, *count_option("COUNT", count), result=_Page)


def _stream_info(name: bytes) -> Call:
    return ask(name, "XINFO", "STREAM", key_of(name), result=replies.stream_info_of)


def _stream_detail(name: bytes, count: int) -> Call:
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


def _resolve(name: bytes, after: StreamID | Position) -> Call:
    """Return the call of the position of a read, which stays while the read blocks."""
    if isinstance(after, StreamID):
        return known(after)

    def position(found: StreamInfo) -> StreamID:
        newest = found.last_entry if after is Position.NEWEST else None
        return found.last_generated_id if newest is None else newest.id.previous()

    return replace(
        _stream_info(name),
        result=lambda reply: position(replies.stream_info_of(reply[0])),
        missing=MIN_ID,
    )


def _limits(budget: Budget | None) -> tuple[Words, tuple[str, ...]]:
    """Return the words of MAXCOUNT and MAXSIZE, and what they need."""
    if budget is None:
        return (), ()
    count, size = budget.limits
    return (*option("MAXCOUNT", count), *option("MAXSIZE", size)), ("MAXCOUNT or MAXSIZE",)


def _reply_of(db: int, reply: list[Any] | None) -> read.Reply:
    lists = replies.streams_of(reply)
    return [(qualified(db, key), entries) for key, entries in lists.items()]


def plain_read(
    wanted: Sequence[tuple[bytes, StreamID]],
    count: int | None,
    budget: Budget | None,
    block: Words,
) -> Call:
    """Return the call of an XREAD from resolved positions."""
    db, keys = database_of(wanted[0][0]), tuple(key_of(name) for name, _ in wanted)
    limits, needs = _limits(budget)
    ids = [str(after) for _, after in wanted]
    words = ("XREAD", *option("COUNT", count), *limits, *block, "STREAMS", *keys, *ids)
    return Call(db, keys, (words,), lambda reply: _reply_of(db, reply[0]), needs=needs)


def group_read(attempt: GroupRead, block: Words = (), claim_ms: int | None = None) -> Call:
    """Return the call of an XREADGROUP; ``claim_ms``: with CLAIM although the read has none."""
    claim_ms = attempt.claim_ms if claim_ms is None else claim_ms
    db = database_of(attempt.wanted[0][0])
    keys = tuple([key_of(name) for name, _ in attempt.wanted])
    limits, needs = _limits(attempt.budget())
    if claim_ms is not None:
        needs = ("XREADGROUP CLAIM", *needs)
    words: Words = (
        *("XREADGROUP", "GROUP", attempt.group, attempt.consumer),
        *option("COUNT", attempt.count),
        *limits,
        *block,
        *option("CLAIM", claim_ms),
        *flag("NOACK", attempt.noack),
        "STREAMS",
        *keys,
        *[">" if after is None else str(after) for _, after in attempt.wanted],
    )
    return Call(
        db,
        keys,
        (words,),
        lambda reply: _reply_of(db, reply[0]),
        writes=True,
        immediate=True,
        needs=needs,
    )


# --- groups ---------------------------------------------------------------------------------------


def _position(after: Delivered) -> str:
    return "$" if after is None else str(after)


def _create_group(
    name: bytes,
    group: bytes,
    after: Delivered,
    mkstream: bool = False,
    entries_read: int | None = None,
) -> Call:
    options = (*flag("MKSTREAM", mkstream), *option("ENTRIESREAD", entries_read))
    words = ("XGROUP", "CREATE", key_of(name), group, _position(after), *options)
    return do(name, *words, result=nothing)


def _set_group_id(
    name: bytes, group: bytes, after: Delivered, entries_read: int | None = None
) -> Call:
    words = ("XGROUP", "SETID", key_of(name), group, _position(after))
    return do(name, *words, *option("ENTRIESREAD", entries_read), result=nothing)


def _of_group(subcommand: str, result: Callable[[Any], Any]) -> Callable[..., Call]:
    """Return the function for an XGROUP subcommand that takes names alone."""

    def call(name: bytes, *names: bytes) -> Call:
        return do(name, "XGROUP", subcommand, key_of(name), *names, result=result)

    return call


def _group_infos(name: bytes) -> Call:
    def sort(reply: list[Any]) -> list[GroupInfo]:
        return sorted(map(replies.group_info_of, reply), key=lambda each: each.name)

    return ask(name, "XINFO", "GROUPS", key_of(name), result=sort)


def _group_info(name: bytes, group: bytes) -> Call:
    def choose(reply: list[list[Any]]) -> GroupInfo:
        for found in map(replies.group_info_of, reply[0]):
            if found.name == group:
                return found
        raise groups.no_such_group(name, group)

    return replace(_group_infos(name), result=choose)


def _consumer_infos(name: bytes, group: bytes) -> Call:
    return ask(
        name,
        *("XINFO", "CONSUMERS", key_of(name), group),
        result=lambda reply: sorted(
            map(replies.consumer_info_of, reply), key=lambda each: each.name
        ),
    )


def _acknowledge(name: bytes, group: bytes, ids: Sequence[StreamID]) -> Call:
    return do(name, "XACK", key_of(name), group, *_ids(ids)) if ids else known(0)


def _acknowledge_and_delete(
    name: bytes, group: bytes, ids: Sequence[StreamID], policy: RefPolicy
) -> Call:
    if not ids:
        return known([])
    words = ("XACKDEL", key_of(name), group, str(policy), *_id_block(ids))
    return do(name, *words, result=_outcomes, needs=("XACKDEL",))


def negative_acknowledge(name: bytes, group: bytes, ids: Sequence[StreamID], nack: Nack) -> Call:
    """Return the call of an XNACK."""
    if not ids:
        return known(0)
    options = (*option("RETRYCOUNT", nack.retrycount), *flag("FORCE", nack.force))
    words = ("XNACK", key_of(name), group, str(nack.mode), *_id_block(ids), *options)
    return do(name, *words, needs=("XNACK",))


def _claim(
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
        return known([])
    options = (
        *option("TIME", time_ms),
        *option("RETRYCOUNT", retrycount),
        *flag("FORCE", force),
        *flag("JUSTID", justid),
        *option("LASTID", None if last_id is None else str(last_id)),
    )
    return do(
        name,
        *("XCLAIM", key_of(name), group, consumer, min_idle_ms, *_ids(ids), *options),
        result=lambda reply: replies.claimed_of(reply, justid),
        immediate=True,
    )


def _autoclaim(
    name: bytes,
    group: bytes,
    consumer: bytes,
    min_idle_ms: int,
    start: StreamID,
    count: int,
    justid: bool,
) -> Call:
    words = (key_of(name), group, consumer, min_idle_ms, str(start), "COUNT", count)
    return do(
        name,
        *("XAUTOCLAIM", *words, *flag("JUSTID", justid)),
        result=lambda reply: replies.autoclaimed_of(reply, justid),
        immediate=True,
    )


def _pending_summary(name: bytes, group: bytes) -> Call:
    return ask(name, "XPENDING", key_of(name), group, result=replies.pending_of)


def _pending_range(
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
    return ask(name, *words, *bounds, result=replies.pending_entries_of)


# --- keys -----------------------------------------------------------------------------------------


def _delete_all(db: int, keys: Sequence[bytes]) -> Call:
    if not keys:
        return known(0)
    return Call(db, tuple(keys), (("UNLINK", *keys),), lambda reply: reply[0], writes=True)


def _rename(source: bytes, target: bytes, replace: bool = True) -> Call:
    keys = (key_of(source), key_of(target))
    words: Words = ("RENAME" if replace else "RENAMENX", *keys)
    return Call(database_of(source), keys, (words,), lambda reply: reply[0] != 0, writes=True)


def _copy(source: bytes, target: bytes, replace: bool = False) -> Call:
    keys = (key_of(source), key_of(target))
    words: Words = ("COPY", *keys, *flag("REPLACE", replace))
    return Call(database_of(source), keys, (words,), lambda reply: reply[0] != 0, writes=True)


def _put(name: bytes, value: bytes, expire_at: int | None = 0) -> Call:
    expiry: Words = ("KEEPTTL",) if expire_at is None else ()
    if expire_at:
        expiry = ("PXAT", expire_at)
    return do(name, "SET", key_of(name), value, *expiry, result=nothing, repeatable=True)


def _put_new(name: bytes, value: bytes, expire_at: int = 0) -> Call:
    words = ("SET", key_of(name), value, "NX", *option("PXAT", expire_at or None))
    return do(name, *words, result=bool)


def _expire_at(name: bytes, at_ms: int) -> Call:
    return do(name, "PEXPIREAT", key_of(name), at_ms, result=bool)


def _expiry(name: bytes) -> Call:
    """Return the call of PEXPIRETIME: -1 is 0 here, -2 (no key) None."""
    return ask(name, "PEXPIRETIME", key_of(name), result=lambda ms: {-1: 0, -2: None}.get(ms, ms))


def _flush(db: int) -> Call:
    commands = (("DBSIZE",), ("FLUSHDB",))
    return Call(db, (), commands, lambda reply: reply[0], writes=True)


def _flush_all(databases: int) -> Call:
    def count(reply: list[bytes]) -> int:
        sizes = replies.sections_of(reply[0]).get("keyspace", {})
        return sum(int(text.partition("keys=")[2].partition(",")[0]) for text in sizes.values())

    commands = (("INFO", "keyspace"), ("FLUSHALL",))
    return Call(None, (), commands, count, writes=True)


def _dump(name: bytes, target: str | None = None) -> Call:
    if target is not None:
        raise InvalidArgument("target is for a store in a directory: a server chooses its format")
    return ask(name, "DUMP", key_of(name))


def _restore(name: bytes, payload: bytes, replace: bool = False, expire_at_ms: int = 0) -> Call:
    words = ("RESTORE", key_of(name), expire_at_ms, payload, *flag("REPLACE", replace), "ABSTTL")
    return do(name, *words, result=lambda reply: [])


CALLS: Mapping[Callable[..., Any], Callable[..., Call]] = {
    ack.acknowledge: _acknowledge,
    ack.acknowledge_and_delete: _acknowledge_and_delete,
    append.add: _add,
    append.add_many: _add_many,
    append.add_under: _add_under,
    append.configure: _configure,
    append.set_id: _set_id,
    claim.autoclaim: _autoclaim,
    claim.claim: _claim,
    claim.pending_range: _pending_range,
    claim.pending_summary: _pending_summary,
    delete.delete: _delete,
    delete.delete_with_policy: _delete_with_policy,
    dump.dump: _dump,
    dump.restore: _restore,
    groups.create_consumer: _of_group("CREATECONSUMER", bool),
    groups.create_group: _create_group,
    groups.delete_consumer: _of_group("DELCONSUMER", int),
    groups.destroy_group: _of_group("DESTROY", bool),
    groups.set_group_id: _set_group_id,
    info.consumer_infos: _consumer_infos,
    info.group_info: _group_info,
    info.group_infos: _group_infos,
    info.stream_detail: _stream_detail,
    info.stream_info: _stream_info,
    keyspace.delete_all: _delete_all,
    keyspace.exists: lambda name: ask(name, "EXISTS", key_of(name), result=bool),
    keyspace.expire_at: _expire_at,
    keyspace.expiry: _expiry,
    keyspace.flush: _flush,
    keyspace.flush_all: _flush_all,
    keyspace.kind: lambda name: ask(name, "TYPE", key_of(name), result=bytes.decode),
    keyspace.persist: lambda name: do(name, "PERSIST", key_of(name), result=bool),
    keyspace.rename: _rename,
    copy.copy: _copy,
    keyspace.size: lambda db: Call(db, (), (("DBSIZE",),), lambda reply: reply[0]),
    ranges.length: lambda name: ask(name, "XLEN", key_of(name)),
    ranges.scan: _scan,
    read.resolve: _resolve,
    strings.add: lambda name, number: do(name, "INCRBY", key_of(name), number),
    strings.get: lambda name: ask(name, "GET", key_of(name)),
    strings.put: _put,
    strings.put_new: _put_new,
    strings.take: lambda name: do(name, "GETDEL", key_of(name)),
    trim.trim: _trim,
    **QUEUE_CALLS,
}
"""The call of each operation, except those that take several round trips."""
