"""COPY and MOVE.

A stream is copied with its groups and producers. The time grows with the number of entries; that of
the last step (``operations/plans.py``) grows with the groups and pending entries alone.
"""

from kvstream.errors import InvalidArgument
from kvstream.layout.keys import successor, tree_prefix
from kvstream.meta import pel, unfinished_loads
from kvstream.meta.events.keys import COPY_TO, MOVE_FROM, MOVE_TO
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.meta.wakeups import Wake
from kvstream.operations.delete import StreamVersion
from kvstream.operations.images import staged_loads
from kvstream.operations.images.load import new_stream
from kvstream.operations.keyspace import delete, exists, make_room
from kvstream.operations.plans import Plan, Planning, run_at_once
from kvstream.operations.queues import image as queue_image
from kvstream.storage.batch import Family
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

_REDRIVE = b"x"


def copy(txn: Txn, source: bytes, target: bytes, replace: bool = False) -> bool:
    """Copy a key, over an existing one only with ``replace``; return whether it was done."""
    return run_at_once(txn, plan_copy(source, target, replace))


def move(txn: Txn, source: bytes, target: bytes) -> bool:
    """Move a key to a free name; return whether it was done."""
    return run_at_once(txn, plan_copy(source, target, is_move=True))


def plan_copy(
    source: bytes, target: bytes, replace: bool = False, is_move: bool = False
) -> Plan[bool]:
    """Plan the copy of a key; its result is whether it was done.

    Entries and nodes of a stream are copied in steps, one commit each, to a place that no reader
    sees. The last step makes the key, and deletes the source of a move.
    """
    if source == target:
        raise InvalidArgument("source and destination objects are the same")

    def is_free(txn: Txn) -> bool:
        return replace or not exists(txn, target)

    def plan(txn: Txn) -> Planning[bool]:
        key = txn.key(source)
        if key is None or not is_free(txn):
            return False
        if isinstance(key, StreamMeta):
            version, begun_at, copied = StreamVersion.of(key), _ends(key), dict[Family, bytes]()
            load = StagedLoad(new_stream(txn, target), txn.now_ms)
            progress = staged_loads.progress_of(
                load, target, lambda txn: version.is_current(txn.key(source)) and is_free(txn)
            )
            while key.length and _copy_page(txn, key, load.stream, copied):
                unfinished_loads.put(txn, load)
                txn = yield progress
            replaced = make_room(txn, target)
            if _ends(key) != begun_at:
                _trim(txn, key, load.stream)
            _copy_rest(txn, key, _copy_record(txn, key, target, load.stream), is_move)
            if load.moved_ms:  # it took more than one step
                unfinished_loads.remove(txn, load)
        else:
            replaced = make_room(txn, target)
            _copy_string(txn, key, target)
        txn.signal(target, Wake.REPLACED)
        if is_move:
            txn.notify(MOVE_FROM, source)
            txn.notify(MOVE_TO, target)
            delete(txn, source, None)
        else:
            txn.notify(COPY_TO, target)
            txn.notify_overwritten(target, replaced, type(key))
        return True

    return plan


def _copy_string(txn: Txn, string: StringMeta, target: bytes) -> None:
    made = txn.catalog.create_string(txn, target, string.read(txn.batch), string.expire_at)
    made.in_parts = string.in_parts
    txn.catalog.write(txn, made)


def _ends(stream: StreamMeta) -> tuple[StreamID, StreamID]:
    """Return the first entry and the first node of a stream, MAX_ID if it is empty."""
    return (stream.first, stream.head) if stream.length else (MAX_ID, MAX_ID)


def _copy_page(
    txn: Txn, stream: StreamMeta, place: StreamMeta, copied: dict[Family, bytes]
) -> bool:
    """Copy the next rows of entries and nodes; return whether there may be more.

    ``copied`` has the last row of each family that was copied, without its prefix.
    """
    first, head = _ends(stream)
    for family, prefix, least, target in (
        (Family.MESSAGES, stream.prefix, first, place.prefix),
        (Family.TREES, tree_prefix(stream.nodes_tree), head, tree_prefix(place.nodes_tree)),
    ):
        lower = prefix + max(least.packed, copied.get(family, b"") + b"\0")
        page = txn.batch.page(family, lower, successor(prefix), txn.thresholds.step_rows)
        cut = len(prefix)
        txn.batch.puts[family].update((target + key[cut:], value) for key, value in page)
        if page:
            copied[family] = page[-1][0][cut:]
        if len(page) == txn.thresholds.step_rows:
            return True
    return False


def _trim(txn: Txn, stream: StreamMeta, place: StreamMeta) -> None:
    """Delete the rows of a copy that were trimmed from its source since they were copied."""
    first, head = _ends(stream)
    nodes, target = tree_prefix(stream.nodes_tree), tree_prefix(place.nodes_tree)
    txn.batch.delete_range(Family.MESSAGES, place.prefix, place.prefix + first.packed)
    txn.batch.delete_range(Family.TREES, target, target + head.packed)
    row = txn.batch.get(Family.TREES, nodes + head.packed)
    if row is not None:  # it may count fewer entries than when it was copied
        txn.batch.put(Family.TREES, target + head.packed, row)


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
    while page := txn.batch.page(family, lower, upper, txn.thresholds.step_rows):
        copied.update((target + key[cut:], value) for key, value in page)
        lower = page[-1][0] + b"\x00"
    txn.batch.puts[family].update(copied)


def _copy_group(txn: Txn, group: GroupMeta, copy: GroupMeta) -> None:
    for consumer in list(txn.catalog.consumers(txn, group)):
        consumer_copy = txn.catalog.create_consumer(txn, copy, consumer.name)
        consumer_copy.seen_ms, consumer_copy.active_ms = consumer.seen_ms, consumer.active_ms
    for run in pel.runs_from(txn, group, b""):
        time_ms = run.time_ms if run.owned else 0  # ``_copy_rest`` makes entries wait again
        pel.insert(txn, copy, run.ids, run.owner, time_ms, run.deliveries, run.rank)
    copy.last_delivered, copy.entries_read = group.last_delivered, group.entries_read
    copy.nack_rank = group.nack_rank
    txn.member_changed(copy)


def is_long(txn: Txn, source: bytes) -> bool:
    """Return whether a key is a stream of very many entries."""
    key = txn.key(source)
    return isinstance(key, StreamMeta) and key.length > txn.thresholds.long_rows
