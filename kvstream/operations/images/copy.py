"""COPY and MOVE.

``copy`` copies a stream with its groups and producers in one commit. Its time and memory grow with
the number of entries. ``LongCopy`` first copies entries and nodes in steps, one commit each, to a
place that no reader sees, and makes the key in its last step.
"""

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta import pel, unfinished_loads
from kvstream.meta.key_events import COPY_TO, MOVE_FROM, MOVE_TO
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.strings import Key, StringMeta
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.delete import StreamVersion
from kvstream.operations.images import load, staged_loads
from kvstream.operations.images.staged_loads import LongLoad
from kvstream.operations.keyspace import delete, exists, make_room
from kvstream.operations.queues import image as queue_image
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

PAGE_ROWS = 1000
"""Rows that are read at once."""

_REDRIVE = b"x"


def copy(
    txn: Txn,
    source: bytes,
    target: bytes,
    replace: bool = False,
    is_move: bool = False,
) -> bool:
    """Copy a key, over an existing one only with ``replace``; return whether it was done."""
    if source == target:
        raise InvalidArgument("source and destination objects are the same")
    key = txn.key(source)
    if key is None or (not replace and exists(txn, target)):
        return False
    replaced = make_room(txn, target)
    if isinstance(key, StringMeta):
        string = txn.catalog.create_string(txn, target, key.read(txn.batch), key.expire_at)
        string.in_parts = key.in_parts
        txn.catalog.write(txn, string)
    else:
        _copy_stream(txn, key, target, is_move)
    if not is_move:
        txn.notify(COPY_TO, target)
        txn.notify_overwritten(target, replaced, type(key))
    txn.signal(target, Wake.REPLACED)
    return True


def move(txn: Txn, source: bytes, target: bytes) -> bool:
    """Move a key to a free name; return whether it was done."""
    return copy(txn, source, target, is_move=True) and _leave(txn, source, target)


def _leave(txn: Txn, source: bytes, target: bytes) -> bool:
    """Delete the source of a move, after it was copied."""
    txn.notify(MOVE_FROM, source)
    txn.notify(MOVE_TO, target)
    return delete(txn, source, None)


def _copy_stream(txn: Txn, stream: StreamMeta, name: bytes, is_move: bool) -> None:
    copied = _copy_record(txn, stream, name, load.new_stream(txn, name))
    if stream.length:
        first = stream.prefix + stream.first.packed
        _copy_rows(txn, Family.MESSAGES, stream.prefix, first, copied.prefix)
        nodes = tree_prefix(stream.nodes_tree)
        head, target = nodes + stream.head.packed, tree_prefix(copied.nodes_tree)
        _copy_rows(txn, Family.TREES, nodes, head, target)
    _copy_rest(txn, stream, copied, is_move)


def _copy_rest(txn: Txn, stream: StreamMeta, copy: StreamMeta, is_move: bool) -> None:
    """Copy everything of a stream except entries and nodes; a redrive goes on at one place."""
    if stream.idmp_tree:
        producers = tree_prefix(stream.idmp_tree)
        _copy_rows(txn, Family.TREES, producers, producers, tree_prefix(copy.idmp_tree))
    for group in list(txn.catalog.groups(txn, stream)):
        _copy_group(txn, group, txn.catalog.create_group(txn, copy, group.name))
    name = txn.catalog.databases.shown_name(txn, copy.name)
    rows = [row for row in queue_image.rows(txn, stream) if is_move or row[0] != _REDRIVE]
    queue_image.restore(txn, name, rows)


def _copy_record(txn: Txn, stream: StreamMeta, name: bytes, place: StreamMeta) -> StreamMeta:
    """Make a key with the record of ``stream`` and the rows of ``place``, without groups."""
    copy = StreamMeta.decode(place.name, stream.encode())
    copy.generation, copy.prefix = place.generation, place.prefix
    copy.nodes_tree = place.nodes_tree
    copy.idmp_tree = txn.allocate() if stream.idmp_tree else 0
    copy.groups_tree = copy.groups_count = 0
    copy.queue_tree = copy.due_at = 0
    copy.swept, copy.unswept = MIN_ID, 0
    txn.catalog.add_stream(txn, name, copy)
    return copy


def _copy_rows(txn: Txn, family: Family, prefix: bytes, lower: bytes, target: bytes) -> None:
    """Copy the rows of a prefix, from ``lower`` on, to another prefix."""
    copied: dict[bytes, bytes | None] = {}
    upper, cut = successor(prefix), len(prefix)
    while page := txn.batch.page(family, lower, upper, PAGE_ROWS):
        copied.update((target + key[cut:], value) for key, value in page)
        lower = page[-1][0] + b"\x00"
    txn.batch.puts[family].update(copied)


def _copy_group(txn: Txn, group: GroupMeta, copy: GroupMeta) -> None:
    for consumer in list(txn.catalog.consumers(txn, group)):
        consumer_copy = txn.catalog.create_consumer(txn, copy, consumer.name)
        consumer_copy.seen_ms, consumer_copy.active_ms = consumer.seen_ms, consumer.active_ms
    for run in pel.runs_from(txn, group, b""):
        time_ms = run.time_ms if run.owned else 0  # those that wait get their timers later
        pel.insert(txn, copy, run.ids, run.owner, time_ms, run.deliveries, run.rank)
    copy.last_delivered, copy.entries_read = group.last_delivered, group.entries_read
    copy.nack_rank = group.nack_rank
    txn.member_changed(copy)


class LongCopy(LongLoad):
    """COPY of a long stream, in steps. It happens in its last step; no key changes before."""

    _is_move = False

    def __init__(self, source: bytes, target: bytes, replace: bool) -> None:
        super().__init__(target)
        self._source, self._replace = source, replace
        self._seen: StreamVersion | None = None
        self._first = MIN_ID
        self._copied: dict[Family, bytes] = {}
        """The last row of each family that was copied, without its prefix."""

    def step(self, txn: Txn) -> bool | None:
        """Copy more rows; return in the last step whether the key was copied, None before."""
        stream = txn.key(self._source)
        if stream is None or (not self._replace and exists(txn, self._target)):
            self.undo(txn)
            return False
        if self._seen is None or not self._holds(txn, stream):
            self.undo(txn)
            self._tries += 1
            if self._tries > txn.thresholds.tries or not isinstance(stream, StreamMeta):
                return copy(txn, self._source, self._target, self._replace, self._is_move)
            self._begin(txn, stream)
        assert self._load is not None
        assert isinstance(stream, StreamMeta)
        place = self._load.stream
        if self._copy_page(txn, Family.MESSAGES, stream.prefix, stream.first, place.prefix):
            return None
        nodes, target = tree_prefix(stream.nodes_tree), tree_prefix(place.nodes_tree)
        if self._copy_page(txn, Family.TREES, nodes, stream.head, target):
            return None
        self._finish(txn, stream, place)
        return True

    def _holds(self, txn: Txn, key: Key) -> bool:
        """Return whether the rows copied so far are still those of the key."""
        assert self._seen is not None
        assert self._load is not None
        return (
            isinstance(key, StreamMeta)
            and self._seen.is_current(key)
            and self._is_kept(txn, self._load)
        )

    def _begin(self, txn: Txn, stream: StreamMeta) -> None:
        self._seen, self._copied, self._first = StreamVersion.of(stream), {}, stream.first
        self._load = staged_loads.begin(txn, self._target, replace=True)

    def _copy_page(
        self, txn: Txn, family: Family, prefix: bytes, first: StreamID, target: bytes
    ) -> bool:
        """Copy the next rows from an ID on; return whether there may be more."""
        lower = prefix + max(first.packed, self._copied.get(family, b"") + b"\0")
        page = txn.batch.page(family, lower, successor(prefix), txn.thresholds.step_rows)
        cut = len(prefix)
        txn.batch.puts[family].update((target + key[cut:], value) for key, value in page)
        if page:
            self._copied[family] = page[-1][0][cut:]
        return len(page) == txn.thresholds.step_rows

    def _finish(self, txn: Txn, stream: StreamMeta, place: StreamMeta) -> None:
        """Make the key, which differs from its source only in what was trimmed meanwhile."""
        assert self._load is not None
        replaced = make_room(txn, self._target)
        copied = _copy_record(txn, stream, self._target, place)
        nodes, target = tree_prefix(stream.nodes_tree), tree_prefix(place.nodes_tree)
        first, head = (stream.first, stream.head) if stream.length else (MAX_ID, MAX_ID)
        if first != self._first:
            txn.batch.delete_range(Family.MESSAGES, place.prefix, place.prefix + first.packed)
            txn.batch.delete_range(Family.TREES, target, target + head.packed)
        row = txn.batch.get(Family.TREES, nodes + head.packed)
        if row is not None:  # it may count fewer entries than when it was copied
            txn.batch.put(Family.TREES, target + head.packed, row)
        _copy_rest(txn, stream, copied, self._is_move)
        unfinished_loads.remove(txn, self._load)
        if not self._is_move:
            txn.notify(COPY_TO, self._target)
            txn.notify_overwritten(self._target, replaced, StreamMeta)
        txn.signal(self._target, Wake.REPLACED)


class LongMove(LongCopy):
    """MOVE of a long stream, in steps. The last step deletes the source."""

    _is_move = True

    def __init__(self, source: bytes, target: bytes) -> None:
        super().__init__(source, target, replace=False)

    def step(self, txn: Txn) -> bool | None:
        """Copy more rows; return in the last step whether the key was moved, None before."""
        done = super().step(txn)
        return _leave(txn, self._source, self._target) if done else done


def is_long(txn: Txn, source: bytes) -> bool:
    """Return whether a key is a stream of very many entries."""
    key = txn.key(source)
    return isinstance(key, StreamMeta) and key.length > txn.thresholds.long_rows
