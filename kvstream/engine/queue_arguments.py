"""Arguments of queues, checked and converted to those of operations: times, policies, tokens.

A duration is seconds or a ``timedelta``. A moment is a ``datetime`` (UTC without a time zone) or
Unix seconds.
"""

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from kvstream.engine.coerce import Name, Seconds, milliseconds, name_bytes, optional, whole
from kvstream.errors import InvalidArgument, describe, format_trace, nearest, show, stored_text
from kvstream.layout.values import FieldPart, to_bytes
from kvstream.meta.policy import Retention
from kvstream.operations.unique import Conflict, Unique
from kvstream.types.clock import Clock
from kvstream.types.ids import StreamID
from kvstream.types.options import CONFLICTS, OnConflict

Duration = Seconds | timedelta
Moment = Seconds | datetime
Rate = tuple[int, Duration]

PLAIN = "normal"
"""The priority whose stream has the plain name of the queue."""
_MILLISECONDS_FROM = 10**11
"""Unix seconds of the year 5138: a greater number is milliseconds by mistake."""


class Backoff(NamedTuple):
    """Delays that double after each failure, from ``first`` seconds up to ``cap`` seconds.

    ``jitter`` (0 to 1) is the share of each delay that is left out at random.
    """

    first: Duration
    """The delay after the first failure."""
    cap: Duration
    """The longest delay."""
    jitter: float = 0.0
    """From 0 to 1."""


Delays = Backoff | Duration | Iterable[Duration]
"""A backoff: one delay for every failure, the delays after each (the last repeats), or Backoff."""


class QueueOptions(TypedDict, total=False):
    """The options of a queue, for type checkers."""

    group: Name
    consumer: Name | None
    lease: Duration | None
    max_deliveries: int | None
    backoff: Delays | None
    dead_letter: Name | None
    order_by: Name | None
    max_per_key: int | None
    fair: bool | None
    max_in_flight: int | None
    rate: Rate | None
    priorities: Sequence[str]
    keep: bool | None


def span_ms(duration: Duration, what: str) -> int:
    """Return a duration in milliseconds; InvalidArgument if it is negative or no duration."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return milliseconds(seconds, what)


def moment_ms(moment: Moment, what: str) -> int:
    """Return a moment in Unix milliseconds."""
    if isinstance(moment, date):
        return StreamID.parse(moment).ms
    if isinstance(moment, timedelta):
        raise InvalidArgument(f"{what} is a moment, not a time span: give delay={show(moment)}")
    if isinstance(moment, str | bytes):
        raise InvalidArgument(f"{what} is a datetime or Unix seconds, not the text {show(moment)}")
    if isinstance(moment, int | float) and moment >= _MILLISECONDS_FROM:
        raise InvalidArgument(
            f"{what} is in Unix seconds: {show(moment)} is most likely milliseconds"
        )
    return milliseconds(moment, what)


def due_ms(delay: Duration | None, at: Moment | None, clock: Clock) -> int | None:
    """Return the Unix milliseconds at which a message is due; None: now."""
    if delay is not None and at is not None:
        raise InvalidArgument("give delay or at, not both")
    if at is not None:
        return moment_ms(at, "at")
    return None if delay is None else clock.now_ms() + span_ms(delay, "delay")


def unique_of(
    unique: FieldPart | None,
    window: Duration | Rate | None,
    on_conflict: OnConflict,
    max_wait: Duration | None = None,
) -> Unique | None:
    """Return the unique ID of a message, and what becomes of it while another one holds that."""
    if unique is None:
        if (window, on_conflict, max_wait) != (None, "skip", None):
            raise InvalidArgument(
                "window, max_wait and on_conflict go with unique: the ID of the message"
            )
        return None
    if isinstance(window, tuple) and len(window) != 2:
        raise InvalidArgument(
            f"window is a time, or a pair: (10, 60) for ten in 60 seconds, not {show(window)}"
        )
    most, window = window if isinstance(window, tuple) else (1, window)
    window_ms = 0 if window is None else span_ms(window, "window")
    conflict = Conflict(one_of(on_conflict, CONFLICTS, "on_conflict").upper())
    wait_ms = 0 if max_wait is None else span_ms(max_wait, "max_wait")
    name = to_bytes(unique, "unique")
    return Unique(name, window_ms, conflict, whole(most, "the count of a window"), wait_ms)


def refuse_beside_delay(**given: object) -> None:
    """Raise InvalidArgument for an option, not None, that such a message cannot have."""
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(f"{name} does not go with delay, at, ttl and unique")


def one_of(word: str, known: tuple[str, ...], what: str) -> str:
    """Return a word that is known; InvalidArgument names the nearest one."""
    if word not in known:
        near = nearest(str(word), known) or f": it is one of {', '.join(known)}"
        raise InvalidArgument(f"{what} cannot be {show(word)}{near}")
    return word


# --- policies -------------------------------------------------------------------------------------


def rules_of(
    *,
    lease: Duration | None = None,
    max_deliveries: int | None = None,
    backoff: Delays | None = None,
    dead_letter: Name | None = None,
    order_by: Name | None = None,
    max_per_key: int | None = None,
    fair: bool | None = None,
    max_in_flight: int | None = None,
    rate: Rate | None = None,
    reap: Duration | None = None,
) -> dict[str, Any]:
    """Return the rules of a policy that are given; None leaves a rule as it is."""
    if max_per_key is not None and order_by is None:
        raise InvalidArgument("max_per_key goes with order_by, which names the field of the key")
    if fair and order_by is not None and not order_by:
        raise InvalidArgument("fair goes with order_by, which names the field of the key")
    rules: dict[str, Any] = {}
    if lease is not None:
        rules["lease_ms"] = span_ms(lease, "lease")
    if backoff is not None:
        rules.update(_backoff(backoff))
    if dead_letter is not None:
        rules["dead_letter"] = name_bytes(dead_letter, "dead_letter")
    if order_by is not None:
        rules["order_by"] = to_bytes(order_by, "order_by")
    if fair is not None:
        rules["fair"] = bool(fair)
    numbers: Mapping[str, int | None] = {
        "max_deliveries": max_deliveries,
        "max_per_key": max_per_key,
        "max_in_flight": max_in_flight,
    }
    rules.update(
        (name, _count(number, name)) for name, number in numbers.items() if number is not None
    )
    if rate is not None:
        rules["rate_count"], rules["rate_ms"] = rate_of(rate)
    if reap is not None:
        rules["reap_idle_ms"] = span_ms(reap, "reap")
    return rules


def _count(number: int, what: str) -> int:
    number = whole(number, what)
    if number < 0:
        raise InvalidArgument(f"{what} must not be negative: {number}; 0 is without a limit")
    return number


def rate_of(rate: Rate) -> tuple[int, int]:
    """Return the number and the milliseconds of a rate."""
    if not isinstance(rate, tuple | list) or len(rate) != 2:
        raise InvalidArgument(
            f"rate is a pair, (100, 60) for 100 messages in 60 seconds, not {show(rate)}"
        )
    return _count(rate[0], "the number of a rate"), span_ms(rate[1], "the time of a rate")


def _backoff(backoff: Delays) -> dict[str, Any]:
    if isinstance(backoff, Backoff):
        first, cap = span_ms(backoff.first, "first"), span_ms(backoff.cap, "cap")
        if not 0 <= backoff.jitter <= 1:
            raise InvalidArgument(f"jitter is a share from 0 to 1, not {show(backoff.jitter)}")
        if not 0 < first <= cap:
            raise InvalidArgument(
                f"a backoff doubles from first up to cap: {show(backoff)} does not"
            )
        return {
            "backoff_ms": (first,),
            "backoff_cap_ms": cap,
            "jitter_percent": round(backoff.jitter * 100),
        }
    if isinstance(backoff, str | bytes):
        raise InvalidArgument(
            f"backoff is seconds, a list of them or Backoff(1, 60), not {show(backoff)}"
        )
    delays = backoff if isinstance(backoff, Iterable) else (backoff,)
    listed = tuple(span_ms(delay, "a delay of backoff") for delay in delays)
    return {"backoff_ms": listed, "backoff_cap_ms": 0, "jitter_percent": 0}


def retention_of(
    max_age: Duration | None,
    max_length: int | None,
    max_bytes: int | None,
    acked: bool,
    latest: Name | None,
    force: bool,
) -> Retention:
    """Return the rules of retention; raise InvalidArgument if none is given, or one is below 1."""
    numbers = {
        "max_age": None if max_age is None else span_ms(max_age, "max_age"),
        "max_length": optional(max_length, "max_length"),
        "max_bytes": optional(max_bytes, "max_bytes"),
    }
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InvalidArgument(f"{name} must be above 0: drop_retention() removes rules")
    rules = Retention(
        max_age_ms=numbers["max_age"] or 0,
        max_length=numbers["max_length"] or 0,
        max_bytes=numbers["max_bytes"] or 0,
        acked=bool(acked),
        latest=b"" if latest is None else to_bytes(latest, "latest"),
        force=bool(force),
    )
    if rules.is_empty:
        raise InvalidArgument("give one of max_age, max_length, max_bytes, acked and latest")
    return rules


def field_and_value(where: Any) -> tuple[bytes, bytes]:
    """Return the field and the value by which dead letters are chosen."""
    if not isinstance(where, tuple | list) or len(where) != 2:
        raise InvalidArgument(
            f'where is a field and its value, ("dead:reason", "fatal"), not {show(where)}'
        )
    return to_bytes(where[0], "the field of where"), to_bytes(where[1], "the value of where")


def failure_of(
    delay: Duration | None, fatal: bool, error: BaseException | str | None, traceback: str | None
) -> dict[str, Any]:
    """Return the arguments of ``leases.nack``."""
    if isinstance(error, BaseException):
        if traceback is None and error.__traceback__ is not None:
            traceback = format_trace(error)
        error = describe(error)
    for name, text in {"error": error, "traceback": traceback}.items():
        if text is not None and not isinstance(text, str):
            raise InvalidArgument(f"{name} is an exception or its text, not {show(text)}")
    return {
        "delay_ms": None if delay is None else span_ms(delay, "delay"),
        "fatal": bool(fatal),
        "error": stored_text(error or ""),
        "traceback": stored_text(traceback or "", keep_end=True),
    }


# --- names ----------------------------------------------------------------------------------------


def unique_consumer() -> str:
    """Return a name that no other consumer has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def check_priorities(priorities: Sequence[str]) -> tuple[str, ...]:
    """Return the names of priorities; InvalidArgument if they cannot be."""
    if isinstance(priorities, str | bytes) or not all(isinstance(name, str) for name in priorities):
        raise InvalidArgument(
            f'priorities are names, the most urgent first, as ("high", "{PLAIN}", "low"), not '
            f"{show(priorities)}"
        )
    names = tuple(priorities) or (PLAIN,)
    if len(set(names)) < len(names) or not all(names):
        raise InvalidArgument(f"priorities are different names: {show(priorities)} are not")
    if PLAIN not in names:
        raise InvalidArgument(
            f'one of the priorities is "{PLAIN}", that of messages put without one: '
            f"{show(priorities)} lack it"
        )
    return names


def key_of_priority(key: bytes, priority: str) -> bytes:
    """Return the key of the stream of a priority."""
    return key if priority == PLAIN else key + b":" + priority.encode()
