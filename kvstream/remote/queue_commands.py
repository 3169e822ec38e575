"""The operations of queues as commands of kvstream's own, which a Redis does not have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from kvstream.layout.keys import database_of, key_of
from kvstream.layout.values import Names, decode_fields
from kvstream.meta.policy import GroupPolicy, Retention
from kvstream.operations import delayed
from kvstream.operations.queues import redrive
from kvstream.operations.queues.leases import Token
from kvstream.operations.queues.schedules import Misfire
from kvstream.operations.unique import Unique
from kvstream.remote import replies
from kvstream.remote.call import Call, Effect, Words, answer, flag, nothing, option, plain, say
from kvstream.remote.connection import Word
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.records import flat_of


def queue_info(name: bytes, first: bytes = b"", count: int | None = None) -> Call:
    words = [*option("FROM", first or None), *option("COUNT", count)]
    return say(name, "KVSTREAM.INFO", key_of(name), *words, result=replies.queue_info_of)


# --- policies -------------------------------------------------------------------------------------

POLICY = "KVSTREAM.POLICY"
_NUMBERS = {
    "lease_ms": "LEASE",
    "max_deliveries": "DELIVERIES",
    "dead_letter": "DEAD",
    "max_in_flight": "INFLIGHT",
    "reap_idle_ms": "REAP",
}


def policy_set(name: bytes, group: bytes, changes: Mapping[str, Any]) -> Call:
    words: list[Word]
    if changes.get("paused"):
        words = ["PAUSE", key_of(name), group]  # its result is not needed at once
        return say(name, POLICY, *words, result=nothing, effect=Effect.SAME_RESULT)
    words = []
    for rule, value in changes.items():
        if rule in _NUMBERS:
            words += [_NUMBERS[rule], value]
    if "backoff_ms" in changes:
        words += _backoff(changes)
    if "order_by" in changes:
        words += ["ORDERBY", changes["order_by"], *option("PERKEY", changes.get("max_per_key"))]
    if "fair" in changes:
        words += ["FAIR", int(changes["fair"])]
    if "rate_count" in changes:
        words += ["RATE", changes["rate_count"], changes["rate_ms"]]
    if not words:
        return replace(
            policy_get(name, group),
            result=lambda found: replies.policy_of(found[0]) or GroupPolicy(),
            effect=Effect.READ,
        )
    words[:0] = ["SET", key_of(name), group]
    return say(name, POLICY, *words, result=replies.policy_of)


def _backoff(changes: Mapping[str, Any]) -> Words:
    delays, cap = changes["backoff_ms"], changes["backoff_cap_ms"]
    jitter = option("JITTER", changes["jitter_percent"] or None)
    if cap:
        return ("BACKOFF", "EXP", delays[0], cap, *jitter)
    return ("BACKOFF", ",".join(map(str, delays)), *jitter)


policy_get = plain(POLICY, "GET", result=replies.policy_of)


# --- leases ---------------------------------------------------------------------------------------


def _tokens(tokens: Sequence[Token]) -> Words:
    return tuple(word for eid, deliveries in tokens for word in (str(eid), deliveries))


def settle(command: str, *options: Word) -> Callable[..., Call]:
    def call(name: bytes, group: bytes, consumer: bytes, tokens: Sequence[Token]) -> Call:
        if not tokens:
            return answer([])
        return say(name, command, key_of(name), group, consumer, *options, *_tokens(tokens))

    return call


def nack(
    name: bytes,
    group: bytes,
    consumer: bytes,
    tokens: Sequence[Token],
    delay_ms: int | None = None,
    fatal: bool = False,
    error: bytes = b"",
    traceback: bytes = b"",
    max_deliveries: int = 0,
    untried: bool = False,
) -> Call:
    if not tokens:
        return answer([])
    options = (
        *option("DELAY", delay_ms),
        *flag("FATAL", fatal),
        *option("ERROR", error or None),
        *option("TRACEBACK", traceback or None),
        *option("DELIVERIES", max_deliveries or None),
        *flag("UNTRIED", untried),
    )
    words = (key_of(name), group, consumer, *options, *_tokens(tokens))
    return say(name, "KVSTREAM.NACK", *words)


# --- delayed messages -----------------------------------------------------------------------------

DELAYED = "KVSTREAM.DELAYED"


def id_or_ticket(raw: bytes | None) -> StreamID | Ticket | None:
    if raw is None:
        return None
    return Ticket.parse(raw) if raw[:1] == b"@" else replies.id_of(raw)


def _add_words(
    key: bytes, value: bytes, at_ms: int | None, ttl_ms: int, unique: Unique | None = None
) -> Words:
    rule: Words = ()
    if unique is not None:
        most = option("MOST", unique.most if unique.most > 1 else None)
        most = (*most, *option("MAXWAIT", unique.max_wait_ms or None))
        rule = ("UNIQUE", unique.id, "WINDOW", unique.window_ms, *most, str(unique.conflict))
    fields = flat_of(decode_fields(value))
    options = (*option("AT", at_ms), *option("TTL", ttl_ms or None), *rule)
    return ("KVSTREAM.ADD", key, *options, "*", *fields)


def add(
    name: bytes,
    value: bytes,
    names: Names,
    at_ms: int | None = None,
    ttl_ms: int = 0,
    unique: Unique | None = None,
) -> Call:
    words = _add_words(key_of(name), value, at_ms, ttl_ms, unique)
    return say(name, *words, result=id_or_ticket)


def add_many(
    name: bytes,
    messages: Sequence[tuple[bytes, Names]],
    at_ms: int | None = None,
    ttl_ms: int = 0,
) -> Call:
    key = key_of(name)
    return Call(
        database_of(name),
        (key,),
        [_add_words(key, value, at_ms, ttl_ms) for value, _ in messages],
        lambda raws: list(map(id_or_ticket, raws)),
    )


def delayed_list(name: bytes, start: Ticket | None = None, limit: int = delayed.LIST_COUNT) -> Call:
    if limit <= 0:
        return answer([])
    first = () if start is None else (str(start),)

    def messages(reply: list[list[Any]]) -> list[delayed.Delayed]:
        return [
            delayed.Delayed(Ticket.parse(ticket), replies.entry_of([b"0-0", flat]).fields, 0, b"")
            for ticket, flat in reply
        ]

    return say(name, DELAYED, "LIST", key_of(name), *first, "COUNT", limit, result=messages)


def delayed_cancel(name: bytes, tickets: Sequence[Ticket]) -> Call:
    if not tickets:
        return answer(0)
    return say(name, DELAYED, "CANCEL", key_of(name), *map(str, tickets))


# --- schedules and retention ----------------------------------------------------------------------

SCHEDULE, RETENTION = "KVSTREAM.SCHEDULE", "KVSTREAM.RETENTION"


def schedule_set(
    name: bytes,
    schedule: bytes,
    expression: str,
    flat: Sequence[bytes],
    zone: str = "",
    misfire: Misfire = Misfire.ONCE,
    most: int = 1,
) -> Call:
    rule = ("MISFIRE", str(misfire), *((most,) if misfire is Misfire.ALL else ()))
    words = (key_of(name), schedule, expression, *option("TZ", zone or None), *rule)
    return say(name, SCHEDULE, "SET", *words, "FIELDS", *flat, result=nothing)


def retention_set(name: bytes, rules: Retention) -> Call:
    words = _retention_words(rules)
    return say(name, RETENTION, "SET", key_of(name), *words, result=nothing)


def retention_begin(name: bytes, rules: Retention, group: bytes = b"") -> Call:
    words = (*_retention_words(rules), "NX", *option("GROUP", group or None))
    return say(name, RETENTION, "SET", key_of(name), *words, result=bool)


def _retention_words(rules: Retention) -> tuple[Word, ...]:
    return (
        *option("MAXAGE", rules.max_age_ms or None),
        *option("MAXLEN", rules.max_length or None),
        *option("MAXBYTES", rules.max_bytes or None),
        *flag("ACKED", rules.acked),
        *option("LATEST", rules.latest or None),
        *flag("FORCE", rules.force),
    )


# --- dead letters ---------------------------------------------------------------------------------

REDRIVE = "KVSTREAM.REDRIVE"


def redrive_start(name: bytes, dry_run: bool = False, **asked: Unpack[redrive.Asked]) -> Call:
    words: list[Word] = ["START", key_of(name), *option("TO", asked.get("to") or None)]
    ids, where, rate = asked.get("ids"), asked.get("where"), asked.get("rate")
    words += [] if ids is None else ["IDS", len(ids), *map(str, ids)]
    words += [] if where is None else ["WHERE", *where]
    words += [] if rate is None else ["RATE", *rate]
    words += [*option("COUNT", asked.get("count")), *flag("DRYRUN", dry_run)]
    return say(name, REDRIVE, *words, result=replies.redrive_of)


def redrive_move(
    name: bytes,
    ids: Sequence[StreamID] | None,
    where: tuple[bytes, bytes] | None = None,
    rate: tuple[int, int] | None = None,
) -> Call:
    return redrive_start(name, ids=ids, where=where, rate=rate)
