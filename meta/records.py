"""Encode and decode the records of streams, nodes, groups and consumers.

::

    stream   := kind(u8=1) version(u8=1|2) length(u64) entries_added(u64)
                last(id) first(id) head(id) swept(id)
                unswept(u32) nodes(u32)
                open_first(id) open_last(id) open_appended(u32) open_live(u32)
                open_bytes(u32) measured(id)                    hot: moves with each XADD
                generation(u64) max_deleted(id) groups_tree(u64) groups(u32)
                nodes_tree(u64) expire_at(u64)
                idmp_tree(u64) idmp_duration(u32) idmp_maxsize(u32)
                pids(u64) iids(u64) iids_added(u64) iids_duplicates(u64)
                prefix_length(u32) prefix [queue_tree(u64) due_at(u64)]        in version 2 alone
                names(msgpack array)                                           cold: kept as bytes
    node     := last(id) appended(u32) live(u32) bytes(u32) names(msgpack array)
    group    := version(u8=2|3) last_delivered(id) entries_read(i64, -1 unknown)
                indexed(u8) pending(u64) nacked(u64) nack_rank(u64) consumers(u32)
                consumers_tree(u64) runs_tree(u64) times_tree(u64)
                [policy_length(u32) policy rated(u8) (at_ms(u64) count(u64))*] in version 3 alone
                activity
    activity := number(u64) at_ms(i64, -1 none) length(u32) name
    consumer := version(u8=2) tree(u64) seen_ms(i64) active_ms(i64, -1 never) pending(u64)
                activity(u64)

Version 2 of a stream has a tree of timers and other rows of queues (meta/timers.py), version 3 of a
group a policy (meta/policy.py): most have neither.

An ``id`` is 16 bytes. Numbers are big-endian. A tree ID of 0 means no tree; an expiry of 0 means
never. ``first`` is the first live entry, ``head`` the first ID ever put into the first live node,
``swept`` the bound below which trimmed rows have left the disk, ``open_*`` the node that XADD fills
(none if ``open_live`` is 0), ``measured`` the last entry counted into ``open_bytes``.

A stream's record may lag behind its rows: an entry that only joins the open node is written alone,
up to UNRECORDED_MAX times, and found again above ``last`` when the stream is loaded.

The counts ``pending`` and ``nacked`` are used by ``indexed`` groups; in others they are 0 and
follow from the runs (meta/pel_index.py).

A delivery writes the group's record in any case, so that record also holds the times of the
consumer that was active last. The consumer's own record is written only when another consumer takes
that place. Each activity has a number. If a consumer's number is behind that of the group, and the
group names this consumer, then the group's times are the consumer's.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

import msgpack

from kvstream.errors import Corruption, WrongType
from kvstream.layout.keys import COUNTED_MAX, U64, key_of, message_prefix, stream_row
from kvstream.layout.values import Names
from kvstream.meta.compiled import plain
from kvstream.meta.keyed import Keyed
from kvstream.meta.policy import GroupPolicy, Progress
from kvstream.meta.reply_cache import Readahead
from kvstream.meta.runs import Run, RunIndex, RunWatches, run_tree
from kvstream.meta.trees import Tree, key_tree
from kvstream.storage.batch import Batch, Family, Row
from kvstream.types.ids import MIN_ID, StreamID, new_id
from kvstream.types.images import PackedID
from kvstream.types.thresholds import DEFAULT, Thresholds

_HEAD = Struct(">QqI")
_NOBODY = -1


@dataclass(slots=True)
class Activity:
    """The last activity of a group's consumers."""

    number: int = 0
    at_ms: int = _NOBODY
    name: bytes = b""

    @property
    def is_known(self) -> bool:
        """Return whether a consumer was active and has not been deleted."""
        return self.at_ms != _NOBODY

    def encode(self) -> bytes:
        return _HEAD.pack(self.number, self.at_ms, len(self.name)) + self.name

    @classmethod
    def decode(cls, packed: bytes) -> "Activity":
        """Decode an activity; raise ValueError or struct.error if it is damaged."""
        number, at_ms, length = _HEAD.unpack_from(packed)
        name = packed[_HEAD.size :]
        if len(name) != length:
            raise ValueError(f"a name of {len(name)} bytes, not {length}")
        return cls(number, at_ms, name)

    def clear(self) -> None:
        self.at_ms, self.name = _NOBODY, b""


_NODE = Struct(">QQ III")
_LIVE = Struct(">20x I")
_pack_names = msgpack.Packer(use_bin_type=False).pack
_KEPT_MAX = 4096
_names_before: tuple[tuple[bytes, ...] | None, bytes] = None, b""


@contextmanager
def name_damage(kind: str, name: object) -> Iterator[None]:
    """Raise Corruption, with the name of the record, for whatever decoding it raises."""
    try:
        yield
    except (StructError, ValueError) as error:
        raise damage_error(kind, name, error) from error


def damage_error(kind: str, name: object, error: Exception) -> Corruption:
    """Return the error for a record that cannot be decoded."""
    return Corruption(f"the record of {kind} {name!r} is damaged: {error!r}")


@lru_cache(maxsize=64)  # most nodes of a stream have the names of the one before
def decode_names(packed: bytes) -> tuple[bytes, ...]:
    """Return the field names of a record; raise ValueError if they are damaged."""
    names = msgpack.unpackb(packed, raw=True, use_list=False)
    if type(names) is not tuple or not all(type(name) is bytes for name in names):
        raise ValueError("the field names are none")
    return names


@dataclass(slots=True)
class Node:
    """One node of a stream: ``first`` is its key; the open one stands in the stream's record.

    ``first`` and ``last`` are the first and last ID ever appended; ``appended`` counts them all,
    ``live`` those not deleted.
    """

    first: StreamID
    last: StreamID
    appended: int
    live: int
    size: int
    names: tuple[bytes, ...]
    is_open: bool
    ids: bytearray | None = field(default=None, compare=False)
    """The live IDs, packed, in order; None if they were not looked up."""
    reads: int = field(default=0, compare=False)
    """Deletions that read a row, since the node is in memory without its IDs."""
    is_changed: bool = field(default=False, compare=False)
    """The row is to be put before rows of TREES are read or written."""
    following: "Node | None" = field(default=None, repr=False, compare=False)
    """The node that followed it when both were read; None if not known. While that one is in memory
    no other node can have come between them."""

    @classmethod
    def decode(cls, first: StreamID, value: bytes) -> "Node":
        try:  # a trim decodes thousands: no context manager
            ms, seq, appended, live, size = _NODE.unpack_from(value)
            names = decode_names(value[_NODE.size :])
        except (StructError, ValueError) as error:
            raise damage_error("node", first, error) from error
        return cls(first, StreamID(ms, seq), appended, live, size, names, is_open=False)

    def encode(self) -> bytes:
        return encode_node(self.last, self.appended, self.live, self.size, self.names)


def encode_node(
    last: StreamID, appended: int, live: int, size: int, names: tuple[bytes, ...]
) -> bytes:
    """Return the bytes of a node's row."""
    return _NODE.pack(*last, appended, live, size) + _encode_names(names)


def _encode_names(names: tuple[bytes, ...]) -> bytes:
    """Return field names in msgpack; most are those of the call before, as the very same object."""
    global _names_before
    before, packed = _names_before
    if before is not names:
        packed = _pack_names(names)
        if len(packed) <= _KEPT_MAX:
            _names_before = names, packed
    return packed


def lives_in(values: list[bytes]) -> list[int]:
    """Return the live entries in each of many nodes' rows, without decoding the rest."""
    try:
        return [live for (live,) in map(_LIVE.unpack_from, values)]
    except StructError as error:
        raise Corruption(f"the record of a node is damaged: {error!r}") from error


STREAM_KIND = 1
RECORD_VERSION, QUEUE_VERSION = 1, 2
MEMBER_VERSION, POLICY_VERSION = 2, 3
UNKNOWN = -1
"""entries_read if it cannot be known; active time if there was none."""

ENTRIES_ADDED_MAX = (1 << 63) - 1
"""The greatest number that XSETID accepts, as in Redis; entries are still counted above it."""

ENTRIES_READ_MAX = (1 << 63) - 1
"""The greatest entries_read that is written; XSETID lets entries_added grow beyond it."""

UNRECORDED_MAX = 128
"""The most entries by which a record lags behind its rows, which loading the stream reads."""

UNREAD = 1 << 62
"""The slack of a stream whose unmeasured entries must be read back first."""

_HOT = Struct(">BB QQ QQ QQ QQ QQ II QQ QQ II I QQ")
_pack_hot = _HOT.pack
_COLD = Struct(">Q QQ QI Q Q QII QQQQ I")
_QUEUE = Struct(">QQ")
_POLICY, _RATED, _COUNT = Struct(">I"), Struct(">QQ"), Struct(">B")
_GROUP = Struct(">B QQ q B QQQ I QQQ")
_CONSUMER = Struct(">B Q qq QQ")


def _check_version(version: int, *known: int) -> None:
    if version not in known:
        raise ValueError(f"unknown version {version}")


def _check_numbers(*needed: int, others: tuple[int, ...] = ()) -> None:
    """Check that generations and tree IDs are possible; ``others`` may be 0, which means none."""
    if min(needed) == 0 or max(needed + others) >= COUNTED_MAX:
        raise ValueError(f"impossible numbers {needed + others}")


NO_IDS: Final[deque[StreamID]] = deque(maxlen=0)
"""What every stream begins with: an empty deque takes 760 bytes, a third of a stream."""


class StreamMeta:
    """One stream: its counters, the bounds of its rows, its open node, and its loaded groups."""

    __slots__ = (
        "_cold",
        "cached_nodes",
        "changed_nodes",
        "deleted_to",
        "deletions",
        "due_at",
        "empty_bytes",
        "entries_added",
        "expire_at",
        "first",
        "first_ids",
        "generation",
        "groups",
        "groups_count",
        "groups_tree",
        "head",
        "idmp_duration",
        "idmp_maxsize",
        "idmp_tree",
        "iids",
        "iids_added",
        "iids_duplicates",
        "last",
        "length",
        "max_deleted",
        "measured",
        "name",
        "names",
        "names_seen",
        "near",
        "nodes",
        "nodes_tree",
        "open_appended",
        "open_bytes",
        "open_first",
        "open_ids",
        "open_last",
        "open_live",
        "pids",
        "prefix",
        "queue_tree",
        "retained",
        "row",
        "shrinks",
        "slack",
        "swept",
        "unmeasured",
        "unrecorded_entries",
        "unswept",
        "width",
    )

    def __init__(self, name: bytes, generation: int) -> None:
        self.name = name
        self.row = stream_row(name)
        self.generation = generation
        self.prefix = message_prefix(name, generation)
        self.length = self.entries_added = 0
        self.last = self.first = self.head = self.swept = self.max_deleted = MIN_ID
        self.unswept = self.nodes = 0
        self.open_first = self.open_last = self.measured = MIN_ID
        self.open_appended = self.open_live = self.open_bytes = 0
        self.groups_tree = self.groups_count = self.nodes_tree = self.idmp_tree = 0
        self.expire_at = self.idmp_duration = self.idmp_maxsize = 0
        self.queue_tree = self.due_at = 0
        self.pids = self.iids = self.iids_added = self.iids_duplicates = 0
        self.names: tuple[bytes, ...] = ()
        """Field names of the open node's first entry."""
        self._start()

    @property
    def closed_nodes(self) -> int:
        """The number of nodes that have rows of their own: all but the open one."""
        return self.nodes - bool(self.open_live)

    @property
    def has_closed_nodes(self) -> bool:
        """Return whether it may have rows of closed nodes."""
        return bool(self.unswept) or self.closed_nodes > 0

    @property
    def has_trees(self) -> bool:
        """Return whether it may have rows in the family of trees."""
        trees = self.groups_tree or self.idmp_tree or self.queue_tree
        return bool(trees) or self.has_closed_nodes

    def _start(self) -> None:
        """Set the fields that are kept in memory only."""
        self.names_seen: Names = self.names
        """The node's names as a caller last gave them: text or bytes."""
        self.near = self.width = self.empty_bytes = 0
        """What bounds the bytes of a value in the node; 0 if not known yet.

        A value shorter than ``near`` takes its length plus ``width`` bytes; the node takes
        ``empty_bytes`` without entries.
        """
        self.unmeasured: list[Row] | None = [] if self.measured == self.open_last else None
        """The rows of the open node's entries above ``measured``, not in open_bytes; None if to be
        read back. All of them are live, and no live entry is missing behind the first."""
        self.slack = 0 if self.unmeasured == [] else UNREAD
        """An upper bound of the bytes of the unmeasured entries."""
        self.groups: dict[bytes, GroupMeta] = {}
        self.unrecorded_entries = 0
        """Entries appended since the record was written; only their rows show them."""
        self.shrinks = 0
        """How often entries were deleted or trimmed since the stream was loaded."""
        self.deleted_to = MIN_ID
        """The greatest ID that was deleted since, and the last one if all were trimmed."""
        self.deletions = 0
        """How often entries were deleted, wherever they stood; trims are not counted."""
        self.first_ids = NO_IDS
        """The live IDs from ``first`` on, as far as trims have looked them up."""
        self.retained: Progress | None = None
        """What retention knows of the stream, once it was looked up."""
        self.cached_nodes: list[Node] = []
        """The closed nodes that trims and deletions have looked up, in order."""
        self.changed_nodes: list[Node] = []
        """Closed nodes that have changed since the last ``put_nodes``."""
        self.open_ids: bytearray | None = None
        """The live IDs of the open node up to ``measured``, packed, in order; None if they were not
        looked up."""
        self._cold: bytes | None = None

    @property
    def head_node(self) -> Node | None:
        """The first node, if it is closed and in memory."""
        cached = self.cached_nodes
        return cached[0] if cached and cached[0].first == self.head else None

    def keeps(self, readahead: Readahead) -> bool:
        """Return whether no entry of a group's readahead was deleted or trimmed."""
        if readahead.shrinks != self.shrinks:
            rows = readahead.rows
            if self.deleted_to > readahead.after or (
                rows and rows[0][0] < self.prefix + self.first.packed
            ):
                return False
            readahead.shrinks = self.shrinks
        return True

    def encode(self) -> bytes:
        """Return the record's bytes."""
        last_ms, last_seq = self.last
        first_ms, first_seq = self.first
        head_ms, head_seq = self.head
        swept_ms, swept_seq = self.swept
        open_first_ms, open_first_seq = self.open_first
        open_last_ms, open_last_seq = self.open_last
        measured_ms, measured_seq = self.measured
        hot = _pack_hot(
            STREAM_KIND,
            QUEUE_VERSION if self.queue_tree else RECORD_VERSION,
            self.length,
            self.entries_added,
            last_ms,
            last_seq,
            first_ms,
            first_seq,
            head_ms,
            head_seq,
            swept_ms,
            swept_seq,
            self.unswept,
            self.nodes,
            open_first_ms,
            open_first_seq,
            open_last_ms,
            open_last_seq,
            self.open_appended,
            self.open_live,
            self.open_bytes,
            measured_ms,
            measured_seq,
        )
        if self._cold is None:
            self._cold = self._encode_cold()
        return hot + self._cold

    def put_nodes(self, batch: Batch) -> None:
        """Put the rows of changed nodes: each once a commit, if no row of TREES is read before."""
        puts, tree = batch.puts[Family.TREES], U64.pack(self.nodes_tree)
        for node in self.changed_nodes:
            if node.is_changed:  # otherwise it was deleted
                node.is_changed = False
                try:
                    puts[tree + node.first.packed] = node.encode()
                except StructError as error:
                    what = f"stream {key_of(self.name)!r} has a node, {node.first}"
                    raise Corruption(f"{what}, of impossible counts") from error
        self.changed_nodes.clear()

    def forget_cold_part(self) -> None:
        """Encode the cold part again in the next record, since one of its fields has changed."""
        self._cold = None

    def _encode_cold(self) -> bytes:
        fixed = _COLD.pack(
            self.generation,
            *self.max_deleted,
            self.groups_tree,
            self.groups_count,
            self.nodes_tree,
            self.expire_at,
            self.idmp_tree,
            self.idmp_duration,
            self.idmp_maxsize,
            self.pids,
            self.iids,
            self.iids_added,
            self.iids_duplicates,
            len(self.prefix),
        )
        queue = _QUEUE.pack(self.queue_tree, self.due_at) if self.queue_tree else b""
        return fixed + self.prefix + queue + _encode_names(self.names)

    @classmethod
    def decode(cls, name: bytes, record: bytes) -> "StreamMeta":
        """Decode the record of a stream; raise WrongType if the key has another type."""
        if record[:1] != bytes([STREAM_KIND]):
            raise WrongType
        self = cls.__new__(cls)
        self.name = name
        self.row = stream_row(name)
        try:
            hot = _HOT.unpack_from(record)
            self._decode_hot(hot)
            self._decode_cold(record[_HOT.size :], has_queue=hot[1] == QUEUE_VERSION)
        except (StructError, ValueError) as error:
            raise damage_error("stream", key_of(name), error) from error
        self._start()
        return self

    def _decode_hot(self, parts: tuple[int, ...]) -> None:
        _check_version(parts[1], RECORD_VERSION, QUEUE_VERSION)
        self.length, self.entries_added = parts[2:4]
        # Most of the IDs are the same few: objects that are shared take less of the collector.
        last, first = parts[4:6], parts[6:8]
        known = {(0, 0): MIN_ID, last: new_id(last), first: new_id(first)}
        self.last, self.first = known[last], known[first]
        self.head, self.swept, self.open_first, self.open_last, self.measured = (
            known.get(pair) or new_id(pair)
            for pair in (parts[8:10], parts[10:12], parts[14:16], parts[16:18], parts[21:23])
        )
        self.unswept, self.nodes = parts[12:14]
        self.open_appended, self.open_live, self.open_bytes = parts[18:21]

    def _decode_cold(self, record: bytes, has_queue: bool) -> None:
        parts = _COLD.unpack_from(record)
        self.generation, self.max_deleted = parts[0], new_id(parts[1:3])
        self.groups_tree, self.groups_count, self.nodes_tree, self.expire_at = parts[3:7]
        self.idmp_tree, self.idmp_duration, self.idmp_maxsize = parts[7:10]
        self.pids, self.iids, self.iids_added, self.iids_duplicates = parts[10:14]
        _check_numbers(self.generation, self.nodes_tree, others=(self.groups_tree, self.idmp_tree))
        end = _COLD.size + parts[14]
        self.prefix = record[_COLD.size : end]
        self.queue_tree = self.due_at = 0
        if has_queue:
            self.queue_tree, self.due_at = _QUEUE.unpack_from(record, end)
            _check_numbers(self.queue_tree)
            end += _QUEUE.size
        self.names = decode_names(record[end:])


class GroupMeta:
    """One consumer group, with the trees of its pending entries and its loaded consumers."""

    __slots__ = (
        "activity",
        "consumers",
        "consumers_count",
        "consumers_tree",
        "entries_read",
        "grown",
        "index",
        "indexed",
        "keyed",
        "last_delivered",
        "looked_rank",
        "nack_rank",
        "nacked",
        "name",
        "near",
        "owned_since",
        "pending",
        "policy",
        "rated",
        "readahead",
        "row",
        "runs",
        "times",
        "watches",
    )

    def __init__(
        self,
        name: bytes,
        row: bytes,
        consumers_tree: int,
        runs: Tree[Run],
        times: Tree[bytes],
    ) -> None:
        self.name = name
        self.row = row
        self.last_delivered = MIN_ID
        self.entries_read = UNKNOWN
        self.indexed = False
        """Whether the indexes of the runs are rows, and the counts are kept here."""
        self.pending = self.nacked = self.nack_rank = self.consumers_count = 0
        self.consumers_tree = consumers_tree
        self.runs = runs
        """Runs of pending entries by the first ID of each."""
        self.times = times
        """The same runs by delivery time, if the group is indexed."""
        self.index: RunIndex | None = None
        """The index in memory, once it was used, if the group is not indexed."""
        self.near: Run | None = None
        """The run that was looked up last, as it is now, if the group is indexed."""
        self.grown = 0
        """IDs that the runs have got since they were last counted, plus those that they had; if
        the group is indexed, how many there were when it was last tried to keep them in memory."""
        self.consumers: dict[bytes, ConsumerMeta] = {}
        self.activity = Activity()
        self.readahead: Readahead | None = None
        self.watches: RunWatches | None = None
        """Watches of the runs."""
        self.policy: GroupPolicy | None = None
        self.keyed: Keyed | None = None
        """The entries by their keys, if the group delivers in order by key."""
        self.rated: list[tuple[int, int]] = []
        """When entries were delivered lately, and how many, if the policy has a rate."""
        self.owned_since = 0
        """No entry was delivered to its owner before; 0: not known. Used if there are leases."""
        self.looked_rank = -1
        """No entry given back under this rank or before is ready; -1: not known."""

    @property
    def known_entries_read(self) -> int | None:
        """How many entries the group has read; None if that cannot be known."""
        return None if self.entries_read == UNKNOWN else self.entries_read

    def encode(self) -> bytes:
        if plain is not None and (record := plain.encode_group(self)) is not None:
            return record
        policy = None if self.policy is None else self.policy.encoded
        head = _GROUP.pack(
            MEMBER_VERSION if policy is None else POLICY_VERSION,
            *self.last_delivered,
            min(self.entries_read, ENTRIES_READ_MAX),
            self.indexed,
            self.pending,
            self.nacked,
            self.nack_rank,
            self.consumers_count,
            self.consumers_tree,
            self.runs.id,
            self.times.id,
        )
        if policy is not None:
            head += _POLICY.pack(len(policy)) + policy + _COUNT.pack(len(self.rated))
            head += b"".join([_RATED.pack(*each) for each in self.rated])
        return head + self.activity.encode()

    @classmethod
    def decode(
        cls, name: bytes, row: bytes, record: bytes, sizes: Thresholds = DEFAULT
    ) -> "GroupMeta":
        with name_damage("group", name):
            parts = _GROUP.unpack_from(record)
            _check_version(parts[0], MEMBER_VERSION, POLICY_VERSION)
            end, policy, rated = _GROUP.size, None, []
            if parts[0] == POLICY_VERSION:
                begin = end + _POLICY.size
                end = begin + _POLICY.unpack_from(record, end)[0]
                policy = GroupPolicy.decode(record[begin:end])
                begin = end + _COUNT.size
                end = begin + _COUNT.unpack_from(record, end)[0] * _RATED.size
                rated = [*_RATED.iter_unpack(record[begin:end])]
            activity = Activity.decode(record[end:])
            _check_numbers(*parts[9:])
            if parts[4] > 1:
                raise ValueError(f"a flag is {parts[4]}")
        self = cls(name, row, parts[9], run_tree(parts[10], sizes), key_tree(parts[11], sizes))
        self.last_delivered, self.indexed = new_id(parts[1:3]), bool(parts[4])
        self.runs.room = 0 if self.indexed else sizes.store_rows
        self.entries_read, self.pending, self.nacked, self.nack_rank = parts[3], *parts[5:8]
        self.consumers_count, self.activity, self.policy = parts[8], activity, policy
        self.rated = rated
        return self


class ConsumerMeta:
    """One consumer of a group."""

    __slots__ = ("active_ms", "activity", "name", "pending", "row", "runs", "seen_ms")

    def __init__(self, name: bytes, row: bytes, runs: Tree[PackedID], seen_ms: int) -> None:
        self.name = name
        self.row = row
        self.runs = runs
        """The first IDs of the consumer's runs, if the group is indexed."""
        self.seen_ms = seen_ms
        self.active_ms = UNKNOWN
        self.pending = 0
        self.activity = 0
        """The number of the group's activity that was this consumer's last."""

    def encode(self) -> bytes:
        times = self.seen_ms, self.active_ms
        return _CONSUMER.pack(MEMBER_VERSION, self.runs.id, *times, self.pending, self.activity)

    @classmethod
    def decode(
        cls, name: bytes, row: bytes, record: bytes, sizes: Thresholds = DEFAULT
    ) -> "ConsumerMeta":
        with name_damage("consumer", name):
            version, tree, seen_ms, active_ms, pending, number = _CONSUMER.unpack(record)
            _check_version(version, MEMBER_VERSION)
            _check_numbers(tree)
        self = cls(name, row, key_tree(tree, sizes), seen_ms)
        self.active_ms, self.pending, self.activity = active_ms, pending, number
        return self
