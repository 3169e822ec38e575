"""XGROUP: create, move and delete groups and consumers, and find them for other commands.

``entries_read`` and ``lag`` follow the rules of Redis 7.0 with later corrections, and are sometimes
unknown; ``nodes.live_after`` counts exactly. Very many groups or consumers are loaded in steps
before a command that lists them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstream.errors import BusyGroup, InvalidArgument, NoGroup, RequestError, quote
from kvstream.layout.keys import U64, key_of, successor, tree_prefix
from kvstream.meta import nodes, pel
from kvstream.meta.compiled import plain
from kvstream.meta.events.keys import (
    XGROUP_CREATE,
    XGROUP_CREATECONSUMER,
    XGROUP_DELCONSUMER,
    XGROUP_DESTROY,
    XGROUP_SETID,
)
from kvstream.meta.pel_index import pending_in
from kvstream.meta.records import UNKNOWN, ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import unique
from kvstream.operations.plans import ALWAYS_HOLDS, Plan, Planning
from kvstream.operations.reads.limits import UNLIMITED, Budget
from kvstream.storage.batch import Family
from kvstream.types.ids import MIN_ID, U64_MAX, StreamID
from kvstream.types.options import KEY_BYTES_MAX


def _tombstone_ahead(stream: StreamMeta, after: StreamID) -> bool:
    """Return whether an entry at or above ``after`` may have been deleted."""
    if stream.length == 0 or stream.max_deleted == MIN_ID:
        return False
    return after <= stream.max_deleted


def position(stream: StreamMeta, eid: StreamID) -> int:
    """Return how many entries were ever added up to ``eid``; UNKNOWN if it cannot be derived."""
    added = stream.entries_added
    if added == 0:
        return 0
    if stream.length == 0 and eid <= stream.last:
        return added
    if eid != MIN_ID and eid < stream.max_deleted:
        return UNKNOWN
    if eid == stream.last:
        return added
    if eid > stream.last:
        return UNKNOWN
    if stream.max_deleted == MIN_ID or stream.max_deleted < stream.first:
        if eid < stream.first:
            return added - stream.length
        if eid == stream.first:
            return added - stream.length + 1
    return UNKNOWN


def lag(stream: StreamMeta, group: GroupMeta) -> int | None:
    """Return how many entries the group has not delivered, None if unknown."""
    if stream.entries_added == 0 or stream.length == 0:
        return 0
    last = group.last_delivered
    if last < stream.first and stream.max_deleted < stream.first:
        return stream.length
    if group.entries_read != UNKNOWN and not _tombstone_ahead(stream, last):
        return stream.entries_added - group.entries_read
    estimate = position(stream, last)
    return None if estimate == UNKNOWN else stream.entries_added - estimate


def advance_over(stream: StreamMeta, group: GroupMeta, ids: Sequence[bytes]) -> None:
    """Count the delivery of packed ``ids``, ascending and above the group's last one.

    Once an entry is counted with no tombstone ahead, each further entry adds one.
    """
    for at, packed in enumerate(ids):
        if (
            group.entries_read != UNKNOWN
            and group.last_delivered >= stream.first
            and not _tombstone_ahead(stream, group.last_delivered)
        ):
            group.entries_read += len(ids) - at
            group.last_delivered = StreamID.unpack(ids[-1])
            return
        group.last_delivered = StreamID.unpack(packed)
        group.entries_read = position(stream, group.last_delivered)


def give(
    txn: Txn,
    stream: StreamMeta,
    group: GroupMeta,
    consumer: ConsumerMeta,
    ids: list[bytes],
    noack: bool,
) -> None:
    """Record that the group's next entries were delivered to a consumer."""
    if not noack and plain is not None and plain.give(Run, txn, stream, group, consumer, ids):
        return
    advance_over(stream, group, ids)
    if not noack:
        pel.deliver(txn, group, ids, consumer.name, txn.now_ms)
        txn.catalog.note_activity(txn, group, consumer)  # which marks the group as changed
    else:
        txn.member_changed(group)
        txn.member_changed(consumer)


_KEY_REQUIRED = (
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)

Delivered = StreamID | None
"""The ID after which a group starts; None for the stream's last one (``$``)."""


def _check_name(name: bytes) -> None:
    if len(name) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a name is longer than {KEY_BYTES_MAX} bytes")


def check_entries_read(entries_read: int | None) -> int:
    """Return ENTRIESREAD, or UNKNOWN if it is None; raise InvalidArgument if it is out of range."""
    if entries_read is None:
        return UNKNOWN
    if entries_read < UNKNOWN:
        raise InvalidArgument("value for ENTRIESREAD must be positive or -1")
    return entries_read


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def no_such_group(name: bytes, group_name: bytes) -> NoGroup:
    """Return the error of an XGROUP or XINFO subcommand for a group that does not exist."""
    return NoGroup(
        f"No such consumer group '{text(group_name)}' for key name '{text(key_of(name))}'"
    )


def require_stream(txn: Txn, name: bytes) -> StreamMeta:
    """Return the stream of an XGROUP subcommand, or raise an error that tells how to create it."""
    stream = txn.stream(name)
    if stream is None:
        raise RequestError(_KEY_REQUIRED).with_detail(f"there is no stream {quote(key_of(name))}")
    return stream


def existing_group(txn: Txn, name: bytes, group_name: bytes) -> tuple[StreamMeta, GroupMeta]:
    """Return the stream and group of an XGROUP or XINFO subcommand."""
    stream = require_stream(txn, name)
    group = txn.catalog.group(txn, stream, group_name)
    if group is None:
        raise no_such_group(name, group_name)
    return stream, group


def group_of_key(
    txn: Txn, name: bytes, group_name: bytes, where: str = ""
) -> tuple[StreamMeta, GroupMeta]:
    """Return the stream and group of a command that reads or claims."""
    stream = txn.stream(name)
    group = None
    if stream is not None:
        group = stream.groups.get(group_name) or txn.catalog.group(txn, stream, group_name)
    if stream is None or group is None:
        raise NoGroup(
            f"No such key '{text(key_of(name))}' or consumer group '{text(group_name)}'{where}"
        )
    return stream, group


def consumer_of(txn: Txn, name: bytes, group: GroupMeta, consumer_name: bytes) -> ConsumerMeta:
    """Return a consumer, created if missing, and update its seen time; ``name`` is the stream's."""
    consumer = group.consumers.get(consumer_name) or txn.catalog.consumer(txn, group, consumer_name)
    if consumer is None:
        _check_name(consumer_name)
        txn.notify(XGROUP_CREATECONSUMER, name)
        return txn.catalog.create_consumer(txn, group, consumer_name)
    consumer.seen_ms = txn.now_ms
    if not txn.read_only:
        txn.catalog.seen[consumer.row] = consumer  # the next commit of any kind writes it
    return consumer


@dataclass(slots=True)
class Reader:
    """A consumer that reads one stream for its group, and the limits of its read."""

    name: bytes
    """The name of the stream."""
    stream: StreamMeta
    group: GroupMeta
    consumer: ConsumerMeta
    noack: bool = False
    """Whether its entries do not become pending."""
    idle_ms: int | None = None
    """Pending entries that are idle for this long come first, with their idle times; None: none."""
    marks_new: bool = False
    """Whether new entries have an idle time and a delivery count, both 0."""
    budget: Budget = UNLIMITED
    room: int = 0
    """About the memory that entries may take, in bytes; 0: no limit."""


def create_group(
    txn: Txn,
    name: bytes,
    group_name: bytes,
    after: Delivered,
    mkstream: bool = False,
    entries_read: int | None = None,
) -> None:
    """Create a group that starts after the ID ``after``; raise BusyGroup if it exists."""
    read = check_entries_read(entries_read)
    _check_name(group_name)
    stream = txn.stream(name) if mkstream else require_stream(txn, name)
    if stream is None:
        stream = txn.catalog.create_stream(txn, name)
    if txn.catalog.group(txn, stream, group_name) is not None:
        raise BusyGroup
    group = txn.catalog.create_group(txn, stream, group_name)
    _set_delivered(stream, group, after, read)
    unique.note_position(txn, stream, group, is_new=True)
    txn.notify(XGROUP_CREATE, name)
    txn.signal(name, Wake.GROUP_CHANGED)


def set_group_id(
    txn: Txn, name: bytes, group_name: bytes, after: Delivered, entries_read: int | None
) -> None:
    """Move a group's last delivered ID; its pending entries stay."""
    read = check_entries_read(entries_read)
    stream, group = existing_group(txn, name, group_name)
    _set_delivered(stream, group, after, read)
    unique.note_position(txn, stream, group, is_new=False)
    txn.member_changed(group)
    txn.notify(XGROUP_SETID, name)
    txn.signal(name, Wake.GROUP_CHANGED)


def seek(txn: Txn, name: bytes, group_name: bytes, at_ms: int) -> StreamID:
    """Make a group deliver the entries added at a time and later; return its last delivered ID.

    Pending entries stay as they are. In a group with a policy they are not delivered as new ones.
    """
    if not 0 <= at_ms <= U64_MAX:
        raise InvalidArgument(f"a time of Unix milliseconds cannot be {at_ms}")
    after = StreamID(at_ms - 1, U64_MAX) if at_ms else MIN_ID
    stream, _ = existing_group(txn, name, group_name)
    read = stream.entries_added - nodes.live_after(txn, stream, after)
    set_group_id(txn, name, group_name, after, read)
    return after


def _set_delivered(stream: StreamMeta, group: GroupMeta, after: Delivered, read: int) -> None:
    group.last_delivered = stream.last if after is None else after
    group.entries_read = min(read, stream.entries_added)  # clamped since Redis 8.2.2


def destroy_group(txn: Txn, name: bytes, group_name: bytes) -> bool:
    """Delete a group with its consumers and pending entries; return whether it existed."""
    stream = require_stream(txn, name)
    group = txn.catalog.group(txn, stream, group_name)
    if group is None:
        return False
    txn.frees = True
    unique.forget_position(txn, stream, group)
    txn.catalog.drop_group(txn, stream, group)
    txn.notify(XGROUP_DESTROY, name)
    txn.signal(name, Wake.GROUP_DESTROYED)
    return True


def create_consumer(txn: Txn, name: bytes, group_name: bytes, consumer_name: bytes) -> bool:
    """Create a consumer; return whether it is new."""
    _check_name(consumer_name)
    _, group = existing_group(txn, name, group_name)
    if txn.catalog.consumer(txn, group, consumer_name) is not None:
        return False
    txn.catalog.create_consumer(txn, group, consumer_name)
    txn.notify(XGROUP_CREATECONSUMER, name)
    return True


def delete_consumer(txn: Txn, name: bytes, group_name: bytes, consumer_name: bytes) -> int:
    """Delete a consumer; return how many pending entries were lost with it."""
    _, group = existing_group(txn, name, group_name)
    consumer = txn.catalog.consumer(txn, group, consumer_name)
    if consumer is None:
        return 0
    txn.frees = True
    lost = pel.discard_of(txn, group, consumer)
    txn.catalog.drop_consumer(txn, group, consumer)
    txn.notify(XGROUP_DELCONSUMER, name)
    if lost:
        pel.signal_freed(txn, name, group)
    return lost


def plan_loading_groups(txn: Txn, name: bytes) -> Plan[bool] | None:
    """Plan loading all groups of a stream into memory; None if that needs no steps."""
    stream = txn.stream(name)
    if stream is None or stream.groups_count < txn.thresholds.long_members:
        return None
    ready = [group for group in stream.groups.values() if group.indexed or group.index is not None]
    if stream.groups_count - len(ready) < txn.thresholds.long_members:
        return None

    def load(txn: Txn, name: bytes) -> None:
        group = txn.catalog.group(txn, stream, name)
        if group is not None:
            pending_in(txn, group)

    return _plan_loading(stream.groups_tree, load)


def plan_loading_consumers(txn: Txn, name: bytes, group_name: bytes) -> Plan[bool] | None:
    """Plan loading all consumers of a group into memory; None if that needs no steps."""
    if txn.stream(name) is None:
        return None
    _, group = existing_group(txn, name, group_name)
    if group.consumers_count - len(group.consumers) < txn.thresholds.long_members:
        return None

    def load(txn: Txn, name: bytes) -> None:
        txn.catalog.consumer(txn, group, name)

    return _plan_loading(group.consumers_tree, load)


def _plan_loading(tree: int, load: Callable[[Txn, bytes], object]) -> Plan[bool]:
    """Plan loading the groups or consumers of a tree."""

    def plan(txn: Txn) -> Planning[bool]:
        lower = tree_prefix(tree)
        upper = successor(lower)
        while True:
            page = txn.batch.page(Family.TREES, lower, upper, txn.thresholds.step_members)
            for row, _ in page:
                load(txn, row[U64.size :])
            if len(page) < txn.thresholds.step_members:
                return True
            lower = page[-1][0] + b"\0"
            txn = yield ALWAYS_HOLDS

    return plan
