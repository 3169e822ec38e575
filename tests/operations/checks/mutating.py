"""One row of each kind in a store, and mutants of its value."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from struct import Struct
from typing import Any

import msgpack

from kvstream import KVStreamError, Store, StreamID
from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    NUMBERS_KEY,
    U64,
    flushed_row,
    key_count_row,
    scan_row,
    stream_row,
    tree_prefix,
)
from kvstream.layout.values import REPEATED, UNIQUE, decode_checked
from kvstream.meta.keyspace import decode_numbers
from kvstream.meta.records import ConsumerMeta, GroupMeta, Node, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.strings import StringMeta
from kvstream.storage.batch import Batch, Family
from tests.operations.checks.seeding import MESSAGES, METADATA, TREES, Rows, fault_texts

FLIPS = 24
"""The bits flipped in each value, one at a time."""
SHARE = 1 if os.environ.get("KVSTREAM_MUTANTS") == "all" else 8
"""One mutant in this many is tried for each kind of row."""
_IID = Struct(">16sQQ")
_OF_OTHER_TYPES: tuple[object, ...] = (
    *(0, -1, 1 << 63, 1.5, None, True, b"", b"x" * 40),
    *([], [1, 2], [b"a", 1], [[b"a"], b"b"], [None] * 4, [b"a"] * 3),
    *({}, {b"a": 1}, {1: b"a"}, {b"a": None}, {b"a": [b"b"]}, {b"a": {b"b": b"c"}}, {b"a": 1.5}),
    *(
        {b"a": True},
        {b"n": b"1", b"note": 7},
        {b"n": msgpack.Timestamp(1)},
        msgpack.ExtType(5, b"x"),
    ),
)
"""Packed values put in place of a map, of an array, or of an array of names."""

LOCK = b"\x00\x00lock"
"""The name of a string with an expiry."""
LARGE = b"\x00\x00large"
"""The name of a string in three pieces."""

Call = Callable[[Store], object]
Decode = Callable[[bytes], Any]
_How = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A row to damage."""

    family: Family
    key: bytes
    decode: Decode = repr
    """Returns an object, or a value that represents the whole row."""
    free: frozenset[str] = frozenset()
    """The fields of that object that no other row determines."""
    may_miss: bool = False
    """Whether a store without the row would be sound as well."""

    def may_be(self, sound: bytes, mutant: bytes | None) -> bool:
        """Return whether a mutant is a sound value too, as far as the store can show."""
        if mutant is None:
            return self.may_miss
        before, after = (_fields(self.decode(value)) for value in (sound, mutant))
        return {name for name in before if before[name] != after[name]} <= self.free


def _in_pieces(record: bytes) -> object:
    """Return what must hold for a large string: no other row stores the time of its write."""
    string = StringMeta.decode(LARGE, record)
    pieces = string.pieces and replace(string.pieces, written=0)
    return string.generation, string.expire_at, pieces, string.value


def _fields(decoded: Any) -> dict[str, Any]:
    names = getattr(decoded, "__slots__", ()) or getattr(decoded, "_fields", ())
    found = {name: getattr(decoded, name) for name in names if not name.startswith("_")}
    for in_memory in ("ahead", "runs", "times", "consumers", "groups"):
        found.pop(in_memory, None)
    return found or {"all": decoded}


def targets(store: Store) -> dict[str, Target]:
    """Return one row of each kind that ``seeding.fill`` writes, of strings, and of a flush."""
    rows = Rows(store)
    orders, group, ann = rows.orders, rows.group, rows.consumer(b"ann")
    plain = rows.group_of(rows.stream(b"brief"), b"plain")
    messages = [key for key, _ in rows.live()]
    brief = [key for key, _ in rows.under(MESSAGES, rows.stream(b"brief").prefix)]
    anchors = [suffix for suffix, _ in rows.tree(group.runs.id)]
    expiring = next(key for key, _ in rows.under(METADATA, b"X"))
    number: _How = {"decode": U64.unpack, "free": {"all"}}
    entry: _How = {"decode": lambda value: decode_checked([value]), "free": {"all"}}
    iid: _How = {"decode": lambda value: _IID.unpack(value)[1:]}

    def within(tree: int, suffix: bytes, **how: Any) -> Target:
        (found,) = [key for key, _ in rows.tree(tree) if key.startswith(suffix)][:1]
        return target_of(TREES, tree_prefix(tree) + found, **how)

    def node(first: StreamID) -> Target:
        return within(
            orders.nodes_tree,
            first.packed,
            decode=lambda value: Node.decode(first, value),
            free={"last", "appended", "size", "names"},  # if the first entry is deleted
        )

    def a_group(group: GroupMeta) -> Target:
        return target_of(
            TREES,
            group.row,
            decode=lambda value: GroupMeta.decode(group.name, group.row, value),
            free={"last_delivered", "entries_read", "nack_rank", "activity"},
        )

    def a_consumer(consumer: ConsumerMeta) -> Target:
        return target_of(
            TREES,
            consumer.row,
            decode=lambda value: ConsumerMeta.decode(consumer.name, consumer.row, value),
            free={"seen_ms", "active_ms", "activity"},
        )

    def run(group: GroupMeta, anchor: bytes, *free: str) -> Target:
        ids = {"deliveries", "packed", *free}  # pending entries may have been deleted
        return within(group.runs.id, anchor, decode=lambda v: Run.decode(anchor, v), free=ids)

    return {
        "the first entry": target_of(MESSAGES, messages[0], **entry),
        "an entry": target_of(MESSAGES, messages[-9], **entry),
        "the last entry": target_of(MESSAGES, messages[-1], **entry),
        "an entry with repeated names": target_of(MESSAGES, brief[1], **entry),
        "a stream": target_of(
            METADATA,
            orders.row,
            decode=lambda value: StreamMeta.decode(orders.name, value),
            free={
                *("last", "max_deleted", "entries_added", "unswept", "swept", "open_appended"),
                *("measured", "unmeasured", "slack", "idmp_duration", "idmp_maxsize"),
                *("iids_added", "iids_duplicates"),
            },
        ),
        "a string": target_of(
            METADATA,
            stream_row(LOCK),
            decode=lambda value: StringMeta.decode(LOCK, value),
            free={"value"},
        ),
        "a large string": target_of(METADATA, stream_row(LARGE), decode=_in_pieces),
        "a piece": target_of(MESSAGES, rows.pieces_of(LARGE)[1], decode=len),
        "the allocator": target_of(METADATA, ALLOCATOR_KEY, **number),
        "a number of keys": target_of(METADATA, key_count_row(0)),
        "a listed key": target_of(METADATA, scan_row(0, orders.generation)),
        "an expiring key": target_of(METADATA, expiring),
        "a flushed database": target_of(METADATA, flushed_row(2)),
        "numbers of databases": Target(METADATA, NUMBERS_KEY, decode_numbers, may_miss=True),
        "the first node": node(rows.nodes[0].first),
        "the last closed node": node(rows.nodes[-1].first),
        "a group": a_group(group),
        "a consumer": a_consumer(ann),
        "a run": run(group, anchors[0]),
        "a run given back": run(group, anchors[1]),
        "a run by time": within(group.times.id, b""),
        "a run of a consumer": within(ann.runs.id, b""),
        "a group that is not indexed": a_group(plain),
        "a consumer of it": a_consumer(rows.consumer(b"cid", plain)),
        "a run of it": replace(
            run(plain, rows.tree(plain.runs.id)[0][0], "time_ms"), may_miss=True
        ),
        "a producer": within(orders.idmp_tree, b"P"),
        "an idempotent ID": within(orders.idmp_tree, b"I", **iid),
        "the order of an idempotent ID": within(orders.idmp_tree, b"O"),
    }


def target_of(
    family: Family, key: bytes, decode: Decode = repr, free: set[str] | None = None
) -> Target:
    return Target(family, key, decode, frozenset(free or ()))


class _Undo(Exception):
    """Ends a transaction without a commit."""


class Damaged:
    """A store with every kind of row, which damages one row at a time and restores it."""

    def __init__(self, store: Store, found: dict[str, "Target"]) -> None:
        self.store = store
        self.targets = found
        self._sound = self._rows()

    def sound(self, family: Family, key: bytes) -> bytes:
        return self._sound[family, key]

    def put(self, family: Family, key: bytes, value: bytes | None) -> None:
        self._write({(family, key): value})

    def restore(self) -> None:
        """Restore every changed row."""
        now = self._rows()
        gone = dict.fromkeys(now.keys() - self._sound.keys())
        lost = {place: row for place, row in self._sound.items() if now.get(place) != row}
        self._write({**gone, **lost})

    def outcome(self, call: Call) -> Exception | None:
        """Run a call up to its commit and undo it; return the exception that it raised."""
        try:
            with suppress(_Undo), self.store.transaction() as _:
                call(self.store)
                self.store.engine.run(lambda txn: txn.finish())
                raise _Undo
        except Exception as error:
            return error
        return None

    def foreign_errors(self, title: str, calls: Mapping[str, Call]) -> list[object]:
        """Damage a row in all ways; return the calls that raised an error that is not ours."""
        target = self.targets[title]
        foreign: list[object] = []
        for mutant in mutants(title, target, self.sound(target.family, target.key)):
            self.put(target.family, target.key, mutant)
            for name, call in calls.items():
                error = self.outcome(call)
                if error is not None and not isinstance(error, KVStreamError):
                    foreign.append((name, mutant, error))
        self.restore()
        return foreign

    def unseen_and_unmended(self, title: str) -> tuple[list[object], list[object]]:
        """Damage a row in all ways; return what a check does not see, and a repair leaves.

        Mutants that other rows allow as sound values are exempt.
        """
        target = self.targets[title]
        sound = self.sound(target.family, target.key)
        unseen: list[object] = []
        unmended: list[object] = []
        for mutant in mutants(title, target, sound):
            self.put(target.family, target.key, mutant)
            found = self.store.check(repair=True)
            if not found and not target.may_be(sound, mutant):
                unseen.append(mutant)
            left = self.store.check()
            kept = [fault for fault in found if not fault.repaired]
            if sorted(fault_texts(left)) != sorted(fault_texts(kept)):
                unmended.append((mutant, found, left))
            self.restore()
        return unseen, unmended

    def _rows(self) -> dict[tuple[Family, bytes], bytes]:
        database = self.store.engine.database
        return {
            (family, key): value
            for family in Family
            for key, value in database.scan(family, b"", b"\xff" * 64)
        }

    def _write(self, rows: dict[tuple[Family, bytes], bytes | None]) -> None:
        batch = Batch(self.store.engine.database)
        for (family, key), value in rows.items():
            batch.puts[family][key] = value
        self.store.engine.database.write(batch)
        self.store.engine.catalog.forget()


def mutants(title: str, target: Target, value: bytes) -> list[bytes | None]:
    """Return wrong values for ``value``, or a fixed share of them; None means no row."""
    found = dict.fromkeys(_mutants(target.family, value))
    found.pop(value, None)
    return list(islice(found, len(title) % SHARE, None, SHARE))


def _mutants(family: Family, value: bytes) -> Iterator[bytes | None]:
    yield None
    yield from (b"", value[:1], value[: len(value) // 2], value[:-1])
    yield from (value + b"\x00", value + value, b"\x00" * len(value), b"\xff" * (len(value) or 1))
    chance = random.Random(value)
    bits = range(len(value) * 8)
    for bit in bits if len(bits) <= FLIPS else chance.sample(bits, FLIPS):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for number in (0, 1, 1 << 63, (1 << 64) - 1):
        for at in range(0, len(value) - 7, 8):
            yield value[:at] + U64.pack(number) + value[at + 8 :]
    yield from _of_wrong_types(family, value)


def _of_wrong_types(family: Family, value: bytes) -> Iterator[bytes]:
    names = value.rfind(b"\x92\xa1n\xa4note")  # where nodes and streams store their names
    for wrong in _OF_OTHER_TYPES:
        packed = msgpack.packb(wrong, use_bin_type=False)
        if family == MESSAGES:
            yield from (UNIQUE + packed, REPEATED + packed)
        else:
            yield packed
        if names > 0:
            yield value[:names] + packed
