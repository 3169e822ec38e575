"""The operations of queues as commands of kvstream's own, which a Redis does not have."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from kvstream.layout.keys import database_of, key_of
from kvstream.layout.values import Names, decode_fields
from kvstream.meta.policy import GroupPolicy, Retention
from kvstream.operations import append, delayed, groups, keyspace, watch
from kvstream.operations.queues import consumers, leases, policy, redrive, retention, schedules
from kvstream.operations.queues import info as queue_info
from kvstream.operations.queues.leases import Token
from kvstream.operations.queues.schedules import Misfire
from kvstream.operations.unique import Unique
from kvstream.remote import replies
from kvstream.remote.call import Call, Words, ask, do, flag, known, nothing, option, same
from kvstream.remote.connection import Word
from kvstream.types.ids import StreamID, Ticket
from kvstream.types.records import flat_of


def _ask(name: bytes, command: str, *words: Word, **options: Any) -> Call:
    return ask(name, command, *words, needs=(command,), **options)


def _do(name: bytes, command: str, *words: Word, **options: Any) -> Call:
    return do(name, command, *words, needs=(command,), **options)


def _plain(
    make: Callable[..., Call], *command: str, result: Callable[[Any], Any] = same
) -> Callable[..., Call]:
    """Return the function for a command that takes the key and the arguments of its operation."""

    def call(name: bytes, *words: Word) -> Call:
        return make(name, *command, key_of(name), *words, result=result)

    return call


# --- policies -------------------------------------------------------------------------------------

_POLICY = "KVSTREAM.POLICY"
_NUMBERS = {
    "lease_ms": "LEASE",
    "max_deliveries": "DELIVERIES",
    "dead_letter": "DEAD",
    "max_in_flight": "INFLIGHT",
    "reap_idle_ms": "REAP",
}


def _set_policy(name: bytes, group: bytes, changes: Mapping[str, Any]) -> Call:
    if changes.get("paused"):
        return _do(name, _POLICY, "PAUSE", key_of(name), group, result=nothing, repeatable=True)
    words: list[Word] = []
    for rule, value in changes.items():
        if rule in _NUMBERS:
            words += [_NUMBERS[rule], value]
    if "backoff_ms" in changes:
        words += _backoff(changes)
    if "order_by" in changes:
        words += ["ORDERBY", changes["order_by"], *option("PERKEY", changes.get("max_per_key"))]
    if "rate_count" in changes:
        words += ["RATE", changes["rate_count"], changes["rate_ms"]]
    if not words:
        return replace(
            _policy(name, group), result=lambda found: replies.policy_of(found[0]) or GroupPolicy()
        )
    words[:0] = ["SET", key_of(name), group]
    return _do(name, _POLICY, *words, result=replies.policy_of, immediate=True, repeatable=True)


def _backoff(changes: Mapping[str, Any]) -> Words:
    delays, cap = changes["backoff_ms"], changes["backoff_cap_ms"]
    jitter = option("JITTER", changes["jitter_percent"] or None)
    if cap:
        return ("BACKOFF", "EXP", delays[0], cap, *jitter)
    return ("BACKOFF", ",".join(map(str, delays)), *jitter)


_policy = _plain(_ask, _POLICY, "GET", result=replies.policy_of)


# --- leases ---------------------------------------------------------------------------------------


def _tokens(tokens: Sequence[Token]) -> Words:
    return tuple(word for eid, deliveries in tokens for word in (str(eid), deliveries))


def _settle(command: str, *options: Word) -> Callable[..., Call]:
    def call(name: bytes, group: bytes, consumer: bytes, tokens: Sequence[Token]) -> Call:
        if not tokens:
            return known([])
        return _do(name, command, key_of(name), group, consumer, *options, *_tokens(tokens))

    return call


def _nack(
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
        return known([])
    options = (
        *option("DELAY", delay_ms),
        *flag("FATAL", fatal),
        *option("ERROR", error or None),
        *option("TRACEBACK", traceback or None),
        *option("DELIVERIES", max_deliveries or None),
        *flag("UNTRIED", untried),
    )
    words = (key_of(name), group, consumer, *options, *_tokens(tokens))
    return _do(name, "KVSTREAM.NACK", *words)


def finish(
    engine: Any,
    name: bytes,
    group: bytes,
    consumer: bytes,
    tokens: Sequence[Token],
    results: Sequence[leases.Result] = (),
) -> None:
    """Acknowledge deliveries and add their results in one MULTI, guarded by the leases."""
    with nullcontext() if engine.has_transaction() else engine.transaction():
        for token in tokens:
            engine.run(watch.guard, name, group, consumer, *token)
        now_ms = engine.clock.now_ms() if results else 0
        for result in results:
            engine.run(append.add, result.name, result.value, result.names)
            engine.run(keyspace.expire_at, result.name, now_ms + result.ttl_ms)
        engine.run(leases.ack_delete, name, group, consumer, tokens)


def _guard(name: bytes, group: bytes, consumer: bytes, eid: StreamID, deliveries: int) -> Call:
    words = (key_of(name), group, consumer, str(eid), deliveries)
    return replace(_ask(name, "KVSTREAM.GUARD", *words, result=nothing), guards=True)


# --- delayed messages -----------------------------------------------------------------------------

_DELAYED = "KVSTREAM.DELAYED"


def _added(raw: bytes | None) -> StreamID | Ticket | None:
    if raw is None:
        return None
    return Ticket.parse(raw) if raw[:1] == b"@" else replies.id_of(raw)


def _add_words(
    key: bytes, value: bytes, at_ms: int | None, ttl_ms: int, unique: Unique | None = None
) -> Words:
    rule: Words = ()
    if unique is not None:
        rule = ("UNIQUE", unique.id, "WINDOW", unique.window_ms, str(unique.conflict))
    fields = flat_of(decode_fields(value))
    options = (*option("AT", at_ms), *option("TTL", ttl_ms or None), *rule)
    return ("KVSTREAM.ADD", key, *options, "*", *fields)


def _add(
    name: bytes,
    value: bytes,
    names: Names,
    at_ms: int | None = None,
    ttl_ms: int = 0,
    unique: Unique | None = None,
) -> Call:
    words = _add_words(key_of(name), value, at_ms, ttl_ms, unique)
    return do(name, *words, needs=("KVSTREAM.ADD",), result=_added)


def _add_many(
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
        lambda added: list(map(_added, added)),
        writes=True,
        needs=("KVSTREAM.ADD",),
    )


def _listed(name: bytes, start: Ticket | None = None, limit: int = delayed.LIST_COUNT) -> Call:
    if limit <= 0:
        return known([])
    first = () if start is None else (str(start),)

    def messages(reply: list[list[Any]]) -> list[delayed.Delayed]:
        return [
            delayed.Delayed(Ticket.parse(ticket), replies.entry_of([b"0-0", flat]).fields, 0, b"")
            for ticket, flat in reply
        ]

    return _ask(name, _DELAYED, "LIST", key_of(name), *first, "COUNT", limit, result=messages)


def _cancel(name: bytes, tickets: Sequence[Ticket]) -> Call:
    if not tickets:
        return known(0)
    return _do(name, _DELAYED, "CANCEL", key_of(name), *map(str, tickets))


def _move(name: bytes, ticket: Ticket, at_ms: int) -> Call:
    return _do(name, _DELAYED, "MOVE", key_of(name), str(ticket), at_ms, result=_added)


# --- schedules and retention ----------------------------------------------------------------------

_SCHEDULE, _RETENTION = "KVSTREAM.SCHEDULE", "KVSTREAM.RETENTION"


def _set_schedule(
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
    return _do(name, _SCHEDULE, "SET", *words, "FIELDS", *flat, result=nothing, repeatable=True)


def _set_retention(name: bytes, rules: Retention) -> Call:
    words = _retention_words(rules)
    return _do(name, _RETENTION, "SET", key_of(name), *words, result=nothing, repeatable=True)


def _begin_with(name: bytes, rules: Retention, group: bytes = b"") -> Call:
    words = (*_retention_words(rules), "NX", *option("GROUP", group or None))
    return _do(name, _RETENTION, "SET", key_of(name), *words, result=bool)


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

_REDRIVE = "KVSTREAM.REDRIVE"


def _redrive(name: bytes, dry_run: bool = False, **asked: Unpack[redrive.Asked]) -> Call:
    words: list[Word] = ["START", key_of(name), *option("TO", asked.get("to") or None)]
    ids, where, rate = asked.get("ids"), asked.get("where"), asked.get("rate")
    words += [] if ids is None else ["IDS", len(ids), *map(str, ids)]
    words += [] if where is None else ["WHERE", *where]
    words += [] if rate is None else ["RATE", *rate]
    words += [*option("COUNT", asked.get("count")), *flag("DRYRUN", dry_run)]
    if dry_run:
        return _ask(name, _REDRIVE, *words, result=replies.redrive_of)
    return _do(name, _REDRIVE, *words, result=replies.redrive_of, immediate=True)


CALLS: Mapping[Callable[..., Any], Callable[..., Call]] = {
    delayed.add: _add,
    delayed.add_many: _add_many,
    delayed.cancel: _cancel,
    delayed.length: _plain(_ask, _DELAYED, "LEN"),
    delayed.listed: _listed,
    delayed.move: _move,
    leases.ack: _settle("KVSTREAM.ACK"),
    leases.ack_delete: _settle("KVSTREAM.ACK", "DELETE"),
    leases.extend: _settle("KVSTREAM.EXTEND"),
    leases.nack: _nack,
    policy.drop_policy: _plain(_do, _POLICY, "DEL", result=bool),
    policy.policy_of: _policy,
    policy.resume: _plain(_do, _POLICY, "RESUME", result=bool),
    policy.set_policy: _set_policy,
    queue_info.queue_info: _plain(_ask, "KVSTREAM.INFO", result=replies.queue_info_of),
    redrive.cancel: _plain(_do, _REDRIVE, "CANCEL", result=bool),
    redrive.dry_run: partial(_redrive, dry_run=True),
    redrive.start: _redrive,
    redrive.status: _plain(_ask, _REDRIVE, "STATUS", result=replies.redrive_of),
    consumers.pass_on: _plain(_do, _POLICY, "REMOVE"),
    groups.seek: _plain(_do, _POLICY, "SEEK", result=replies.id_of),
    retention.drop_rules: _plain(_do, _RETENTION, "DEL", result=bool),
    retention.rules_of: _plain(_ask, _RETENTION, "GET", result=replies.retention_of),
    retention.set_rules: _set_retention,
    retention.begin_with: _begin_with,
    schedules.delete_schedule: _plain(_do, _SCHEDULE, "DEL", result=bool),
    schedules.run_schedule: _plain(_do, _SCHEDULE, "RUN", result=replies.id_of),
    schedules.schedules: _plain(_ask, _SCHEDULE, "LIST", result=replies.schedules_of),
    schedules.set_schedule: _set_schedule,
    watch.guard: _guard,
}
