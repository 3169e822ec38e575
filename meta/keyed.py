"""Rows of the entries that a group delivers in order by key (``order_by`` of its policy).

An entry with a key is *busy* from its first delivery until it is acknowledged, also while it waits
for another attempt, or *held*: it is pending with no owner at the time HELD_MS, since as many
entries of its key as may be are busy already. The rows are those of one tree of the group::

    entry row := keyed tree(u64) "I" id          -> state(u8: 0 busy, 1 held) key
    key row   := keyed tree(u64) "K" key         -> busy(u32) held(u32) from(id) [turn(id)]
    held row  := keyed tree(u64) "H" key id      -> key id

A ``key`` is the 16 bytes of a hash of the field's value: two values of one hash wait for each
other, which does no harm. No held entry of a key is below its ``from``, so a scan from there steps
over no deleted rows.

In a group whose keys take turns (``fair``) an entry is busy or held from the time at which it is
sorted, before its first delivery. ``turn`` is the last entry of a key that was made ready and was
not delivered since; while a key has one, no other entry of it becomes ready. So the ready entries,
in the order of their ranks, are the ring of the keys that have something to deliver.

The rule itself is in meta/pel.py (``free_keys``) and operations/delivery/ordering.py.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Protocol

import xxhash

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES
from kvstream.meta.trees import Tree
from kvstream.storage.batch import Batch
from kvstream.types.ids import MAX_ID, StreamID
from kvstream.types.images import PackedID
from kvstream.types.thresholds import Thresholds

Key = bytes
KEY_BYTES = 16
ENTRY, KEY, HELD = b"I", b"K", b"H"
"""The first byte of a row."""
_COUNTS = Struct(">II16s")
_NOWHERE = MAX_ID.packed
IS_BUSY, IS_HELD = b"\0", b"\1"

key_of_value = xxhash.xxh3_128_digest
"""Return the key of a value of the ``order_by`` field."""


class Messages(Protocol):
    """The fields of a stream that its keys need."""

    name: bytes
    prefix: bytes
    first: StreamID
    length: int


class Counts:
    """How many entries of one key are busy and held, where the held ones begin, and its turn."""

    __slots__ = ("busy", "first", "held", "turn")

    def __init__(
        self, busy: int = 0, held: int = 0, first: PackedID = _NOWHERE, turn: PackedID = b""
    ) -> None:
        self.busy, self.held, self.first, self.turn = busy, held, first, turn

    def encode(self) -> bytes:
        """Return the value of the row; raise Corruption if an entry was not counted before."""
        try:
            return _COUNTS.pack(self.busy, self.held, self.first) + self.turn
        except StructError as error:
            counts = f"{self.busy} busy, {self.held} held"
            raise Corruption(f"the counts of a key contradict its entries: {counts}") from error

    @classmethod
    def decode(cls, value: bytes) -> "Counts":
        if len(value) not in (_COUNTS.size, _COUNTS.size + ID_BYTES):
            raise Corruption(f"the counts of a key are damaged: {value.hex()}")
        busy, held, first = _COUNTS.unpack_from(value)
        return cls(busy, held, first, value[_COUNTS.size :])


class Keyed:
    """The rows of one group."""

    __slots__ = ("stream", "tree")

    def __init__(
        self, stream: Messages, tree_id: int, sizes: Thresholds, new: bool = False
    ) -> None:
        self.stream = stream
        self.tree: Tree[bytes] = Tree(tree_id, _value_of, bytes, sizes, new)

    def keys(self, batch: Batch) -> Iterator[tuple[Key, Counts]]:
        """Yield all keys, with their counts; they may change meanwhile."""
        start = KEY
        while True:
            page = self.tree.page(batch, start, _PAGE)
            keys = [(suffix, value) for suffix, value in page if suffix[:1] == KEY]
            for suffix, value in keys:
                yield suffix[1:], Counts.decode(value)
            if len(keys) < _PAGE:
                return
            start = keys[-1][0] + b"\0"


class Edit:
    """One change of the rows of a group; ``apply`` writes it. The caller changes the runs.

    An entry is looked up, and changed, once.
    """

    __slots__ = ("_batch", "_counts", "_rows", "_tree")

    def __init__(self, keyed: Keyed, batch: Batch) -> None:
        self._tree, self._batch = keyed.tree, batch
        self._counts: dict[Key, Counts] = {}
        self._rows: dict[bytes, bytes | None] = {}

    def entry(self, eid: PackedID) -> tuple[bool, Key] | None:
        """Return whether an entry is held, and its key; None if it has no key."""
        value = self._tree.get(self._batch, ENTRY + eid)
        if value is None:
            return None
        if len(value) != 1 + KEY_BYTES:
            raise Corruption(f"the key of the pending entry {eid.hex()} is damaged")
        return value[:1] == IS_HELD, value[1:]

    def counts(self, key: Key) -> Counts:
        """Return the counts of a key, for the caller to change."""
        counts = self._counts.get(key)
        if counts is None:
            value = self._tree.get(self._batch, KEY + key)
            counts = self._counts[key] = Counts() if value is None else Counts.decode(value)
        return counts

    def make_busy(self, key: Key, eid: PackedID) -> None:
        """Make an entry one of the busy ones of its key."""
        self.counts(key).busy += 1
        self._rows[ENTRY + eid] = IS_BUSY + key

    def take_turn(self, key: Key, eid: PackedID, most: int) -> bool:
        """Give a new entry the turn of its key, or hold it; return whether it has the turn."""
        counts = self.counts(key)
        if counts.turn or counts.held or counts.busy >= most:
            self.hold(key, eid)
            return False
        self.make_busy(key, eid)
        counts.turn = eid
        return True

    def hold(self, key: Key, eid: PackedID) -> None:
        """Make an entry one of the held ones of its key."""
        counts = self.counts(key)
        counts.first = min(counts.first, eid) if counts.held else eid
        counts.held += 1
        self._rows[ENTRY + eid] = IS_HELD + key
        self._rows[HELD + key + eid] = key + eid

    def end_hold(self, key: Key, eid: PackedID) -> None:
        """Remove an entry from the held ones of its key; the caller changes its entry row."""
        self.counts(key).held -= 1
        self._rows[HELD + key + eid] = None

    def forget(self, eid: PackedID) -> None:
        """Delete the entry row of an entry."""
        self._rows[ENTRY + eid] = None

    def first_held(self, key: Key, start: PackedID) -> PackedID:
        """Return the first held entry of a key at or above ``start``; Corruption if none is."""
        suffix = HELD + key + start
        while True:
            value = self._tree.first(self._batch, suffix)
            if value is None or len(value) != KEY_BYTES + ID_BYTES or value[:KEY_BYTES] != key:
                raise Corruption(f"no held entry of the key {key.hex()} is found")
            if HELD + value < suffix:
                raise Corruption(f"a held entry of the key {key.hex()} is out of order")
            suffix = HELD + value
            if suffix not in self._rows:
                return value[KEY_BYTES:]
            suffix += b"\0"

    def apply(self) -> None:
        """Write the rows, those of the keys included; keys without entries have none."""
        rows, tree, batch = self._rows, self._tree, self._batch
        for key, counts in self._counts.items():
            rows[KEY + key] = counts.encode() if counts.busy or counts.held else None
        if len(rows) > _FEW:
            gone = [suffix for suffix, value in rows.items() if value is None]
            tree.replace(
                batch, gone, {suffix: value for suffix, value in rows.items() if value is not None}
            )
            return
        for suffix, value in rows.items():
            if value is None:
                tree.delete(batch, suffix)
            else:
                tree.put(batch, suffix, value)


_PAGE = 1000
_FEW = 8
"""Up to this number, rows are written one by one."""


def _value_of(suffix: bytes, value: bytes) -> bytes:
    return value
