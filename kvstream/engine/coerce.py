"""Arguments of the library's methods, checked and converted to those of operations."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from math import ceil
from operator import index
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from kvstream.errors import InvalidArgument, advise, nearest, show
from kvstream.layout.keys import qualified
from kvstream.layout.values import FieldPart, FieldsLike, flat_bytes, to_bytes
from kvstream.operations import append
from kvstream.operations.append import Idempotency
from kvstream.operations.reads.limits import Budget
from kvstream.operations.trim import Strategy, Trim, limit_without_strategy, two_strategies
from kvstream.storage.options import Tuning
from kvstream.types.clock import Clock
from kvstream.types.ids import (
    MIN_ID,
    AddID,
    BoundLike,
    IDLike,
    NowMs,
    StreamID,
    id_or_time,
    parse_add_id,
)
from kvstream.types.options import KEY_BYTES_MAX, Durability, NackMode, RefPolicy, StoreOptions
from kvstream.types.records import BareEntry, Entry, PendingEntry
from kvstream.types.urls import AnyPath, refuse_url, sentinels_of, server_url

Name = bytes | str
Seconds = float
Policy = RefPolicy | Literal["KEEPREF", "DELREF", "ACKED"]
Mode = NackMode | Literal["SILENT", "FAIL", "FATAL"]
Level = Durability | Literal["archive", "always", "everysec", "no"]
REPLICA = "replica"
"""The durability of writes to a server that its replicas must have before the call returns."""
HasID = Entry[Any] | BareEntry | PendingEntry[Any]
IDs = IDLike | HasID | Iterable[IDLike | HasID]
_HAS_ID = (Entry, BareEntry, PendingEntry)


class _Settings(TypedDict, total=False):
    """The options of ``open`` that are alike for all places: those of StoreOptions, and a clock."""

    read_only: bool
    following: bool
    create: bool
    accept_loss: bool
    trust_group: bool
    databases: int
    block_cache_bytes: int
    write_buffer_bytes: int
    tree_write_buffer_bytes: int
    wal_bytes_max: int
    free_space_reserve: int
    rocksdb: Mapping[str, object]
    stall_seconds_max: float
    stream_node_max_entries: int
    stream_node_max_bytes: int
    stream_idmp_duration_s: int
    stream_idmp_maxsize: int
    dump_target: str
    archive: str
    archive_key: str
    archive_key_command: str
    archive_interval_s: float
    archive_keep_s: float
    take_over: bool
    clock: Clock | None


class StoreSettings(_Settings, total=False):
    """The options of ``Store.open``, for type checkers."""

    durability: Level
    db: int


class PlaceSettings(_Settings, total=False):
    """The options of ``kvstream.open`` and ``kvstream.aio.open``: None leaves one to the place."""

    durability: Level | Literal["replica"] | None
    db: int | None
    shared: bool
    wait_s: float | None
    replicas: int | None


NUMBER_MAX = (1 << 63) - 1
"""The greatest integer that Redis takes, and the greatest count."""

SECONDS_MAX = 1 << 53
"""Three hundred million years: a longer time has no exact milliseconds as a float."""

_BLOCK_TOO_LONG_S = range(3601, 10**9)
"""Waits that are milliseconds by mistake; longer ones are meant to be for ever."""
_BLOCK_FORMS = "; give seconds, 0 to wait for ever, or None not to wait"


def name_bytes(name: Name, what: str = "a name") -> bytes:
    """Return the bytes of a key, group or consumer name; ``what`` names it in an error."""
    if name is None:
        raise InvalidArgument(f"{what} is None: give its name as str or bytes")
    encoded = name if type(name) is bytes else to_bytes(name, what)
    if len(encoded) > KEY_BYTES_MAX:
        raise InvalidArgument(f"{what} is longer than {KEY_BYTES_MAX} bytes")
    return encoded


def id_list(parts: Iterable[IDs]) -> list[StreamID]:
    """Return the IDs in ``parts``: IDs, entries, pending entries, and iterables of them."""
    ids: list[StreamID] = []
    for part in parts:
        if type(part) is StreamID:
            ids.append(part)
        elif type(part) is list:
            ids += id_list(part)
        elif isinstance(part, _HAS_ID):
            ids.append(part.id)
        elif isinstance(part, Iterable) and not isinstance(part, str | bytes | tuple):
            ids += id_list(part)
        else:
            ids.append(StreamID.parse(part))
    return ids


def whole(number: int, what: str) -> int:
    """Return a 64-bit integer; raise InvalidArgument for a bool, a float, text or None.

    Callers on a hot path check ``type(number) is int`` first.
    """
    try:
        plain = index(number)
    except TypeError:
        plain = None
    if plain is None or type(number) is bool:
        raise InvalidArgument(f"{what} must be a whole number, not {show(number)}")
    if not -NUMBER_MAX <= plain <= NUMBER_MAX:
        raise InvalidArgument(f"{what} is out of range")
    return plain


def at_least_1(number: int, what: str) -> int:
    """Return a whole number; raise InvalidArgument if it is below 1."""
    number = whole(number, what)
    if number < 1:
        raise InvalidArgument(f"{what} must be at least 1, not {number}")
    return number


def mark_of(mark: tuple[Name, int] | None, db: int) -> tuple[bytes, int] | None:
    """Return the qualified key and the number of a mark."""
    return None if mark is None else (qualified(db, name_bytes(mark[0])), whole(mark[1], "mark"))


def optional(number: int | None, what: str) -> int | None:
    """Return a 64-bit integer, or None for None."""
    return None if number is None else whole(number, what)


def milliseconds(seconds: Seconds, what: str) -> int:
    """Return a duration in milliseconds.

    Raises InvalidArgument if it is negative, infinite or not a number.
    """
    try:
        if 0 <= seconds < SECONDS_MAX and type(seconds) is not bool:
            return round(seconds * 1000)
    except (TypeError, ArithmeticError):  # not a number, or a Decimal NaN
        pass
    raise _no_duration(seconds, what)


def wait_of(block: Seconds, what: str) -> float | None:
    """Return the seconds that a call waits: None (for ever) for 0, as in Redis."""
    try:
        if block >= 0 and type(block) is not bool:
            return float(min(block, SECONDS_MAX)) or None
    except (TypeError, ArithmeticError):
        pass
    raise _no_duration(block, what)


def block_of(block: Seconds) -> float | None:
    """Return what ``wait_of`` does for a read's ``block``; warn about more than an hour."""
    wait = wait_of(block, "block")
    if wait is not None and ceil(wait) in _BLOCK_TOO_LONG_S:
        advise(
            f"block={block} waits for {wait / 60:,.0f} minutes: it is in seconds, while redis-py's "
            "is in milliseconds; block=0 waits for ever"
        )
    return wait


def warn_of_block() -> None:
    """Warn that a read in a transaction did not wait."""
    advise("block does not wait inside transaction(), where nothing can arrive: read before it")


def count_of(count: int | None) -> int | None:
    """Return the ``count`` of a read; warn if it is below 1, and return 0."""
    if count is None or (type(count) is int and 0 < count <= NUMBER_MAX):
        return count
    count = whole(count, "count")
    if count < 1:
        advise(f"count={count} reads nothing: leave count out to read without a limit")
    return max(0, count)


def _no_duration(seconds: Seconds, what: str) -> InvalidArgument:
    try:
        if seconds < 0:
            hint = _BLOCK_FORMS if what == "block" else ""
            return InvalidArgument(f"{what} is negative: {show(seconds)}{hint}")
        if seconds >= SECONDS_MAX:
            return InvalidArgument(f"{what} is too long: {show(seconds)}")
    except (TypeError, ArithmeticError):
        pass
    return InvalidArgument(f"{what} is not a number of seconds: {show(seconds)}")


def expiry_ms(seconds: Seconds) -> int:
    """Return the milliseconds of an expiry, which may be negative."""
    try:
        if -SECONDS_MAX < seconds < SECONDS_MAX and type(seconds) is not bool:
            return round(seconds * 1000)
    except (TypeError, ArithmeticError):
        pass
    raise InvalidArgument(f"invalid expire time: {show(seconds)}")


def unix_ms(at_ms: int, what: str) -> int:
    """Return a Unix time in milliseconds; raise InvalidArgument unless it is an int from 0 on."""
    at_ms = whole(at_ms, what)
    if at_ms < 0:
        raise InvalidArgument(f"{what} is negative: {at_ms}")
    return at_ms


def trim_of(
    maxlen: int | None,
    minid: BoundLike | None,
    approximate: bool,
    limit: int | None,
    ref_policy: Policy | None,
    now_ms: NowMs,
) -> Trim | None:
    """Return the trim that the arguments describe, or None if they describe none."""
    policy = RefPolicy(ref_policy) if ref_policy else RefPolicy.KEEPREF
    if limit is not None and type(limit) is not int:
        limit = whole(limit, "limit")
    if maxlen is not None and minid is not None:
        raise two_strategies().with_detail("give maxlen or minid, not both")
    if maxlen is not None:
        if type(maxlen) is not int:
            maxlen = whole(maxlen, "maxlen")
        return _trim(Strategy.MAXLEN, maxlen, MIN_ID, bool(approximate), limit, policy)
    if minid is not None:
        bound = id_or_time(minid, now_ms=now_ms)
        return _trim(Strategy.MINID, 0, bound, bool(approximate), limit, policy)
    if limit is not None:
        raise limit_without_strategy(limit).with_detail("limit goes with maxlen or minid")
    return None


_trim = lru_cache(maxsize=64)(Trim)
"""Cached, since most adds have the same trim as the one before."""


def add_ids(ids: Iterable[IDLike], count: int) -> list[AddID]:
    """Return the IDs to add entries under; InvalidArgument unless there are ``count``."""
    wanted = [None if eid == "*" else parse_add_id(eid) for eid in ids]
    if len(wanted) != count:
        raise InvalidArgument(f"ids must have an ID for each entry: {len(wanted)}, not {count}")
    return wanted


def idempotency_of(
    fields: FieldsLike,
    idmp: tuple[FieldPart, FieldPart] | None,
    idmpauto: FieldPart | None,
) -> Idempotency:
    """Return the producer and the idempotent ID of an entry; give one of the two arguments."""
    if idmp is not None and idmpauto is not None:
        raise append.two_producers()
    if idmpauto is not None:
        pid = to_bytes(idmpauto)
        append.refuse_empty_pid(pid, "IDMPAUTO")
        return Idempotency(pid, append.automatic_iid(flat_bytes(fields)))
    if not isinstance(idmp, tuple | list) or len(idmp) != 2:
        raise InvalidArgument(f"idmp is a pair, (producer, idempotent ID), not {show(idmp)}")
    pid, iid = to_bytes(idmp[0]), to_bytes(idmp[1])
    append.refuse_empty_pid(pid, "IDMP")
    append.refuse_empty_iid(iid)
    return Idempotency(pid, iid)


def budget_of(max_count: int | None, max_size: int | None) -> Budget | None:
    """Return new limits for one reply, or None if there are none."""
    if max_count is None and max_size is None:
        return None
    return Budget(optional(max_count, "max_count"), optional(max_size, "max_size"))


class Asked(NamedTuple):
    """What the arguments of ``kvstream.open`` ask for."""

    url: str | None
    """The URL of a server; None for a directory."""
    db: int | None
    shared: bool
    wait_s: float | None
    clock: Clock | None
    replicas: int
    """How many replicas must have a write of a server before its call returns; 0: none."""
    settings: dict[str, Any]
    """The options of the store in a directory."""


def opening_of(
    place: AnyPath,
    *,
    db: int | None = None,
    durability: Level | Literal["replica"] | None = None,
    read_only: bool = False,
    create: bool = True,
    clock: Clock | None = None,
    shared: bool = False,
    wait_s: float | None = None,
    replicas: int | None = None,
    **options: Any,
) -> Asked:
    """Return what the arguments of ``open`` ask for; InvalidArgument if they contradict the place.

    For a server only ``db``, the durability ``replica`` and its ``replicas`` may be given, and
    ``wait_s`` for Sentinels; ``create`` is ignored.
    """
    refuse_unknown_options(options)
    url, db = server_url(place), optional(db, "db")
    asks_sentinels = sentinels_of(place) is not None
    awaited = _replicas_of(url, durability, replicas)
    if durability == REPLICA:
        durability = None
    own: dict[str, Any] = {"durability": durability, "clock": clock}
    own |= {"read_only": read_only or None}
    own |= {"shared": shared or None, "wait_s": None if asks_sentinels else wait_s, **options}
    for name, value in own.items():
        if url is not None and value is not None:
            raise InvalidArgument(f"{name} is for a store in a directory: a server has its own")
    if type(shared) is not bool:
        raise InvalidArgument(f"shared is True or False, not {show(shared)}")
    if asks_sentinels:
        wait_s = None if wait_s is None else milliseconds(wait_s, "wait_s") / 1000
    elif wait_s is not None and not shared:
        raise InvalidArgument(
            "wait_s is for shared=True, the seconds to wait for an owner, and for Sentinels, those "
            "to wait for a primary"
        )
    level = Durability.EVERYSEC if durability is None else durability
    settings = {"durability": level, "read_only": read_only, "create": create, **options}
    return Asked(url, db, shared, wait_s, clock_of(clock), awaited, settings)


def _replicas_of(url: str | None, durability: object, replicas: int | None) -> int:
    """Return how many replicas must have a write; InvalidArgument where none can be awaited."""
    if durability != REPLICA:
        if replicas is not None:
            raise InvalidArgument('replicas is for durability="replica": how many have each write')
        return 0
    if url is None:
        raise InvalidArgument(
            'durability="replica" is for the URL of a server: a directory has no replicas'
        )
    return 1 if replicas is None else at_least_1(replicas, "replicas")


def clock_of(clock: Clock | None) -> Clock | None:
    """Return the clock of a store; raise InvalidArgument if it cannot be one."""
    if clock is not None and not callable(getattr(clock, "now_ms", None)):
        raise InvalidArgument(
            f"clock is an object with now_ms(), such as kvstream.ManualClock(), not {show(clock)}"
        )
    return clock


def path_of(path: AnyPath) -> Path:
    """Return the path of a store; raise InvalidArgument if it cannot be one."""
    try:
        text = os.fsdecode(path)
        refuse_url(path)
        if not text:
            raise InvalidArgument("the path is empty: give '.' for the current directory")
        if "\0" in text:
            raise InvalidArgument(f"a path holds no null character: {show(path)}")
        os.path.realpath(text).encode()
    except TypeError:
        raise InvalidArgument(f"a path is str, bytes or os.PathLike, not {show(path)}") from None
    except UnicodeEncodeError:
        raise InvalidArgument(f"RocksDB takes no path but UTF-8: {show(path)}") from None
    return Path(text)


def store_options(settings: Mapping[str, Any]) -> StoreOptions:
    """Return the options of a store; raise InvalidArgument for an unknown name or a bad value."""
    refuse_unknown_options(settings)
    known = {field.name: field.type for field in fields(StoreOptions)}
    return StoreOptions(**{name: _option(name, known[name], settings[name]) for name in settings})


def refuse_unknown_options(options: Iterable[str]) -> None:
    """Raise InvalidArgument, with the option that is most likely meant, for an unknown one."""
    known = [field.name for field in fields(StoreOptions)]
    unknown = sorted({*options}.difference(known))
    if not unknown:
        return
    others = ["db", "clock", "decode", "errors", "shared", "wait_s", "replicas"]
    hint = (
        _MEANT_OPTIONS.get(unknown[0])
        or nearest(unknown[0], [*known, *others])
        or " (see the fields of StoreOptions)"
    )
    raise InvalidArgument(f"no such option: {', '.join(unknown)}{hint}")


_ADDRESS = ": a server is named by its URL, such as 'redis://user:password@localhost:6379/0'"
_MEANT_OPTIONS = {
    "decode_responses": ": did you mean 'decode'?",
    "shared": ": kvstream.open has it, and opens a directory for many processes",
    "wait_s": ": kvstream.open has it, for shared=True and for Sentinels",
    "replicas": ': kvstream.open has it, for durability="replica" on a server',
    **dict.fromkeys(("host", "port", "username", "password", "ssl"), _ADDRESS),
}
"""What is meant by options of redis-py, and by those that only some calls have."""


def _option(name: str, kind: object, value: Any) -> Any:
    """Return the checked value of an option of a store."""
    if kind is Durability:
        try:
            value = Durability(value)
        except ValueError:
            raise InvalidArgument(
                f"durability must be one of {', '.join(Durability)}, not {show(value)}"
            ) from None
    elif kind is float:
        wait_of(value, name)
    elif kind is int:
        value = whole(value, name)
        if value < 0:
            raise InvalidArgument(f"{name} must not be negative: {value}")
    elif name == "rocksdb":
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidArgument(f"rocksdb must map names of options to values, not {show(value)}")
        Tuning(value)
    return value
