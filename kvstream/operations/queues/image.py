"""The queue state of a stream, as rows that another store can restore.

The format of DUMP is Redis's and has no place for it, so an image has these rows besides the rest
of the state. COPY and migration between stores of kvstream copy them; servers exchange them by
KVSTREAM.QUEUE. Rows do not depend on each other: they may come in several parts, and repeatedly::

    "a" group                              -> policy, without its tree          (meta/policy.py)
    "b" group                              -> id of the entry it began behind   (unique.py)
    "c" group                              -> (time_ms(u64) count(u64))*        of the rule RATE
    "d" at_ms(u64) number(u64)             -> delayed message, by its ticket    (delayed.py)
    "e" length(u32) group id               -> time_ms(u64) key(16 bytes, or none)
    "l" at_ms(u64) id                      -> empty: the end of a time to live  (delayed.py)
    "r"                                    -> rules of retention                (meta/policy.py)
    "s" name                               -> schedule                          (schedules.py)
    "u" id                                 -> unique row                        (unique.py)
    "x"                                    -> msgpack [redrive job, its IDs]    (redrive.py)

An "e" row is a pending entry that waits (``time_ms``: until when, HELD_MS if it is held; 0 if it
does not wait) or has a key of the group's order. Timers, counts and the other rows of keys are
created from these rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from struct import Struct

import msgpack

from kvstream.errors import Corruption, InvalidArgument, quote
from kvstream.layout.keys import ID_BYTES, U64, key_of
from kvstream.meta import pel, timers
from kvstream.meta.keyed import KEY_BYTES, Edit, Key
from kvstream.meta.policy import RULES_ROW, GroupPolicy, Retention
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.timers import TIME_MAX, Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import delayed, unique
from kvstream.operations.groups import require_stream
from kvstream.operations.queues import policy, redrive, retention, schedules
from kvstream.operations.turns import HELD_RANK, get_or_create_keyed
from kvstream.types.ids import StreamID
from kvstream.types.images import PackedID, QueueRow

PAGE_ROWS, PAGE_BYTES = 100_000, 32 << 20
"""Rows of one page, and about their bytes: a page is one reply."""
_LENGTH, _PAIR = Struct(">I"), Struct(">QQ")
_RATED_MAX = 255

Apply = Callable[[Txn, StreamMeta], bool]
"""Stores a checked row in a stream; returns whether the group that it belongs to exists."""
Place = tuple[bytes, PackedID]
"""A group and a pending entry of it."""


def page(
    txn: Txn, name: bytes, behind: bytes = b"", count: int = PAGE_ROWS
) -> tuple[list[QueueRow], bytes]:
    """Return up to ``count`` rows of a stream after a key, and the last key if more follow.

    There are fewer if they reach PAGE_BYTES.
    """
    stream = txn.stream(name)
    queue_rows: list[QueueRow] = []
    size = 0
    for row in () if stream is None else rows(txn, stream, behind):
        if len(queue_rows) == count or size >= PAGE_BYTES:
            return queue_rows, queue_rows[-1][0]
        queue_rows.append(row)
        size += len(row[0]) + len(row[1])
    return queue_rows, b""


def rows(txn: Txn, stream: StreamMeta, behind: bytes = b"") -> Iterator[QueueRow]:
    """Yield the rows of a stream after a key, ascending."""
    if not (stream.queue_tree or stream.groups_count):
        return
    for tag, read in _READERS.items():
        if tag >= behind[:1]:
            start = behind[1:] + b"\0" if tag == behind[:1] else b""
            for rest, value in read(txn, stream, start):
                yield tag + rest, value


def restore(txn: Txn, name: bytes, queue_rows: Iterable[QueueRow]) -> int:
    """Add rows to a stream, without those of no group or pending entry; return how many these are.

    If a row is damaged, raise InvalidArgument and change nothing.
    """
    stream = require_stream(txn, name)
    places: dict[Place, tuple[int, Key]] = {}
    checked: list[Apply] = []
    for key, value in queue_rows:
        try:
            if key[:1] == b"e":
                places.update([_place(key[1:], value)])
            else:
                checked.append(_CHECKS[key[:1]](name, key[1:], value))
        except InvalidArgument:
            raise
        except Exception as error:  # decoders raise errors of many classes
            raise InvalidArgument(
                f"the row {quote(key[:40])} of a queue is damaged: {error!r}"
            ) from error
    left_out = sum([not apply(txn, stream) for apply in checked])
    for name_of_group, entries in _group_places(places).items():
        group = txn.catalog.group(txn, stream, name_of_group)
        left_out += len(entries) if group is None else _put_places(txn, stream, group, entries)
    txn.signal(name, Wake.POLICY)
    return left_out


def essence(row: QueueRow) -> bytes:
    """Return the value of a row without the parts that change as time passes."""
    key, value = row
    if key[:1] == b"c":
        return b""
    if key[:1] == b"u":
        return unique.decode(key[1:], value)._replace(check_ms=0).encode()
    if key[:1] == b"s":
        return schedules.decode(key[1:], value)._replace(next_ms=0, last_ms=0).encode()
    return value


# --- reading ------------------------------------------------------------------------------------


def _policies(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
    for group in txn.catalog.groups(txn, stream):
        if group.policy is not None and group.name >= start:
            yield group.name, group.policy.with_rules({"keyed_tree": 0}).encoded


def _rates(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
    for group in txn.catalog.groups(txn, stream):
        if group.rated and group.name >= start:
            yield group.name, b"".join([_PAIR.pack(*rated) for rated in group.rated])


def _timers_of(kind: Kind) -> Callable[[Txn, StreamMeta, bytes], Iterator[QueueRow]]:
    def read(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
        at_ms = U64.unpack_from(start)[0] if start else 0
        for timer in timers.scan(txn, stream, kind, at_ms, start[U64.size :]):
            yield U64.pack(timer.at_ms) + timer.rest, timer.value

    return read


def _rows_of(tag: bytes) -> Callable[[Txn, StreamMeta, bytes], Iterator[QueueRow]]:
    def read(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
        for suffix, value in timers.scan_rows(txn, stream, tag, tag + start):
            yield suffix[len(tag) :], value

    return read


def _places_of(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
    """Yield the entries that wait or have a key; only streams with timers or order have some."""
    groups = txn.catalog.groups(txn, stream)
    with_places = [group for group in groups if stream.queue_tree or group.keyed]
    for group in sorted(with_places, key=lambda group: (len(group.name), group.name)):
        head = _LENGTH.pack(len(group.name)) + group.name
        edit = None if group.keyed is None else Edit(group.keyed, txn.batch)
        if head < start[: len(head)]:
            continue
        for run in pel.runs_from(txn, group, b""):
            if edit is None and not run.waits:
                continue
            time_ms = run.time_ms if run.waits else 0
            for eid in run.ids:
                known = None if edit is None or head + eid < start else edit.entry(eid)
                if head + eid >= start and (known or time_ms):
                    yield head + eid, U64.pack(time_ms) + (known[1] if known else b"")


def _retention(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
    rules = timers.get_row(txn, stream, RULES_ROW)
    if rules is not None and not start:
        yield b"", rules


def _redrive(txn: Txn, stream: StreamMeta, start: bytes) -> Iterator[QueueRow]:
    job = timers.get_row(txn, stream, redrive.JOB)
    if job is not None and not start:
        ids = timers.get_row(txn, stream, redrive.IDS) or b""
        yield b"", msgpack.packb([job, ids], use_bin_type=True)


_READERS: Mapping[bytes, Callable[[Txn, StreamMeta, bytes], Iterator[QueueRow]]] = {
    b"a": _policies,
    b"b": _rows_of(unique.START_TAG),
    b"c": _rates,
    b"d": _timers_of(Kind.DELAYED),
    b"e": _places_of,
    b"l": _timers_of(Kind.EXPIRED),
    b"r": _retention,
    b"s": _rows_of(schedules.ROW_TAG),
    b"u": _rows_of(unique.ROW_TAG),
    b"x": _redrive,
}
"""By tag: each yields the rows of the tag from a key on; neither key includes the tag."""


# --- checking -----------------------------------------------------------------------------------


def _check_policy(name: bytes, rest: bytes, value: bytes) -> Apply:
    found = GroupPolicy.decode(value)
    rules = {rule: getattr(found, rule) for rule in policy.SHOWN}
    if found.dead_letter == key_of(name):  # it was copied there
        rules["dead_letter"] = b""
    policy.refuse_wrong(rules, key_of(name))

    def change(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        policy.set_policy(txn, name, rest, rules)

    return _change_group(rest, change)


def _check_rated(name: bytes, rest: bytes, value: bytes) -> Apply:
    rated = list(_PAIR.iter_unpack(value))
    if len(rated) > _RATED_MAX:
        raise ValueError("too many deliveries")

    def change(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        group.rated = rated
        txn.member_changed(group)

    return _change_group(rest, change)


def _check_start(name: bytes, rest: bytes, value: bytes) -> Apply:
    at = StreamID.unpack(value)

    def change(txn: Txn, stream: StreamMeta, group: GroupMeta) -> None:
        timers.put_row(txn, stream, unique.START_TAG + rest, at.packed)

    return _change_group(rest, change)


def _check_delayed(name: bytes, rest: bytes, value: bytes) -> Apply:
    at_ms, _ = _PAIR.unpack(rest)
    ticket, message, _ = delayed.decode_timer(Timer(_time(at_ms), 0, rest[U64.size :], value))

    def apply(txn: Txn, stream: StreamMeta) -> bool:
        if timers.get(txn, stream, at_ms, Kind.DELAYED, rest[U64.size :]) is None:
            delayed.put(txn, stream, at_ms, message, ticket.number)
        return True

    return apply


def _check_lifetime(name: bytes, rest: bytes, value: bytes) -> Apply:
    at_ms = _time(*U64.unpack_from(rest))
    return _put(delayed.set_ttl, StreamID.unpack(rest[U64.size :]), at_ms)


def _check_retention(name: bytes, rest: bytes, value: bytes) -> Apply:
    rules = Retention.decode(value)
    retention.refuse_wrong(rules)

    return _put(lambda txn, stream: retention.set_rules(txn, name, rules))


def _check_schedule(name: bytes, rest: bytes, value: bytes) -> Apply:
    schedule = schedules.decode(rest, value)
    _time(schedule.next_ms)
    return _put(schedules.restore, schedule)


def _check_unique(name: bytes, rest: bytes, value: bytes) -> Apply:
    row = unique.decode(rest, value)
    unique.Unique(rest).refuse_wrong(is_delayed=True)
    _time(row.check_ms)
    return _put(unique.restore, rest, row)


def _check_redrive(name: bytes, rest: bytes, value: bytes) -> Apply:
    job, ids = msgpack.unpackb(value)
    if len(ids) % ID_BYTES:
        raise ValueError("IDs of a wrong length")
    decoded = redrive.Job.decode(job)
    _time(decoded.next_ms)
    return _put(redrive.restore, decoded, ids)


def _place(rest: bytes, value: bytes) -> tuple[Place, tuple[int, Key]]:
    (length,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + length
    time_ms, key = _time(*U64.unpack_from(value)), value[U64.size :]
    if len(rest) != end + ID_BYTES or len(key) not in (0, KEY_BYTES):
        raise ValueError("parts of a wrong length")
    if time_ms == HELD_MS and not key:
        raise ValueError("held without a key")
    return (rest[_LENGTH.size : end], rest[end:]), (time_ms, key)


def _time(at_ms: int) -> int:
    if not 0 <= at_ms <= TIME_MAX:
        raise ValueError(f"the time {at_ms}")
    return at_ms


def _put(restore_one: Callable[..., None], *row: object) -> Apply:
    """Return a function that calls ``restore_one(txn, stream, *row)``."""

    def apply(txn: Txn, stream: StreamMeta) -> bool:
        restore_one(txn, stream, *row)
        return True

    return apply


def _change_group(name: bytes, change: Callable[[Txn, StreamMeta, GroupMeta], None]) -> Apply:
    """Return a function that changes a group if it exists."""

    def apply(txn: Txn, stream: StreamMeta) -> bool:
        group = txn.catalog.group(txn, stream, name)
        if group is not None:
            change(txn, stream, group)
        return group is not None

    return apply


_CHECKS: Mapping[bytes, Callable[[bytes, bytes, bytes], Apply]] = {
    b"a": _check_policy,
    b"b": _check_start,
    b"c": _check_rated,
    b"d": _check_delayed,
    b"l": _check_lifetime,
    b"r": _check_retention,
    b"s": _check_schedule,
    b"u": _check_unique,
    b"x": _check_redrive,
}
"""By tag: each checks a row of the stream of a name, given by the rest of its key and its value."""


# --- pending entries ----------------------------------------------------------------------------


def _group_places(
    places: Mapping[Place, tuple[int, Key]],
) -> dict[bytes, dict[PackedID, tuple[int, Key]]]:
    groups: dict[bytes, dict[PackedID, tuple[int, Key]]] = {}
    for (group, eid), place in sorted(places.items()):
        groups.setdefault(group, {})[eid] = place
    return groups


def _put_places(
    txn: Txn, stream: StreamMeta, group: GroupMeta, places: dict[PackedID, tuple[int, Key]]
) -> int:
    """Make pending entries wait, and set their keys; return how many are not pending."""
    ids = list(places)
    pending = pel.pending_among(txn, group, ids)
    has_order = group.policy is not None and bool(group.policy.order_by)
    decide = partial(_make_wait, places, has_order)
    pel.plan(txn, group, pel.stretches(txn, group, pending), decide).apply(txn, group)
    for time_ms in {places[eid][0] for eid in pending} - {0, HELD_MS}:
        timers.put(txn, stream, time_ms, Kind.RETRY, group.name)
    group.nack_rank = max(group.nack_rank, HELD_RANK)
    group.owned_since, group.looked_rank = 0, -1
    txn.member_changed(group)
    if has_order:
        _put_keys(txn, stream, group, {eid: places[eid][1] for eid in pending if places[eid][1]})
    return len(ids) - len(pending)


def _make_wait(
    places: Mapping[PackedID, tuple[int, Key]],
    has_order: bool,
    run: Run | None,
    ids: Sequence[PackedID],
) -> pel.Targets:
    """Return the new states of entries of a run; those that have an owner do not wait."""
    if run is None or run.owned:
        return {}
    times = {eid: places[eid][0] for eid in ids if has_order or places[eid][0] != HELD_MS}
    ranks = {time_ms: HELD_RANK if time_ms == HELD_MS else run.rank for time_ms in times.values()}
    return {
        eid: (b"", time_ms, run.deliveries, ranks[time_ms])
        for eid, time_ms in times.items()
        if time_ms
    }


def _put_keys(txn: Txn, stream: StreamMeta, group: GroupMeta, keys: Mapping[PackedID, Key]) -> None:
    """Give pending entries their keys; the runs tell which of them are held."""
    edit = Edit(get_or_create_keyed(txn, stream, group), txn.batch)
    fair = group.policy is not None and group.policy.fair
    for eid, key in keys.items():
        if edit.entry(eid) is not None:
            continue
        run = pel.run_at(txn, group, eid)
        if run is None:
            raise Corruption(f"the pending entry {eid.hex()} has no run")
        if run.time_ms == HELD_MS:
            edit.hold(key, eid)
        else:
            edit.make_busy(key, eid)
            if fair and pel.is_ready(run) and not run.deliveries:
                edit.counts(key).turn = eid
    edit.apply()
    pel.make_ready(txn, group, dict.fromkeys(keys.values()))
