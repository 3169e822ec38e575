"""XGROUP: making, moving and removing groups and consumers; and finding them."""

from kvstream.errors import BusyGroup, InvalidArgument, NoGroup, RequestError
from kvstream.ids import StreamID
from kvstream.meta import indexes
from kvstream.meta.records import UNKNOWN, ConsumerMeta, GroupMeta, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.options import KEY_BYTES_MAX

_KEY_REQUIRED = (
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)

Delivered = StreamID | None
"""Where a group starts: after this ID, or None for the stream's last one (``$``)."""


def _check_name(name: bytes) -> None:
    if len(name) > KEY_BYTES_MAX:
        raise InvalidArgument(f"a name is longer than {KEY_BYTES_MAX} bytes")


def _check_entries_read(entries_read: int | None) -> int:
    if entries_read is None:
        return UNKNOWN
    if entries_read < UNKNOWN:
        raise InvalidArgument("value for ENTRIESREAD must be positive or -1")
    return entries_read


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _no_such_group(name: bytes, group: bytes) -> NoGroup:
    return NoGroup(f"No such consumer group '{text(group)}' for key name '{text(name[2:])}'")


def existing_stream(txn: Txn, name: bytes) -> StreamMeta:
    stream = txn.stream(name)
    if stream is None:
        raise RequestError(_KEY_REQUIRED)
    return stream


def existing_group(txn: Txn, name: bytes, group: bytes) -> tuple[StreamMeta, GroupMeta]:
    """Return a key and its group for an XGROUP or XINFO subcommand."""
    stream = existing_stream(txn, name)
    found = txn.catalog.group(txn, stream, group)
    if found is None:
        raise _no_such_group(name, group)
    return stream, found


def group_of_key(
    txn: Txn, name: bytes, group: bytes, where: str = ""
) -> tuple[StreamMeta, GroupMeta]:
    """Return a key and its group for a command that reads or claims."""
    stream = txn.stream(name)
    found = None
    if stream is not None:
        found = stream.groups.get(group) or txn.catalog.group(txn, stream, group)
    if stream is None or found is None:
        raise NoGroup(f"No such key '{text(name[2:])}' or consumer group '{text(group)}'{where}")
    return stream, found


def consumer_of(txn: Txn, group: GroupMeta, name: bytes) -> ConsumerMeta:
    """Return a group's consumer, made where there is none, and note that it was seen."""
    consumer = group.consumers.get(name) or txn.catalog.consumer(txn, group, name)
    if consumer is None:
        _check_name(name)
        return txn.catalog.create_consumer(txn, group, name)
    txn.seen(consumer)
    return consumer


def create_group(
    txn: Txn,
    name: bytes,
    group: bytes,
    after: Delivered,
    mkstream: bool = False,
    entries_read: int | None = None,
) -> None:
    """Make a group that has been given everything up to ``after``; BusyGroup if it exists."""
    read = _check_entries_read(entries_read)
    _check_name(group)
    stream = txn.stream(name)
    if stream is None:
        if not mkstream:
            raise RequestError(_KEY_REQUIRED)
        stream = txn.catalog.create_stream(txn, name)
    if txn.catalog.group(txn, stream, group) is not None:
        raise BusyGroup
    made = txn.catalog.create_group(txn, stream, group)
    _set_delivered(stream, made, after, read)
    txn.signal(name)


def set_group_id(
    txn: Txn, name: bytes, group: bytes, after: Delivered, entries_read: int | None = None
) -> None:
    """Move what a group counts as delivered; its pending entries stay."""
    read = _check_entries_read(entries_read)
    stream, found = existing_group(txn, name, group)
    _set_delivered(stream, found, after, read)
    txn.member_changed(found)
    txn.signal(name)


def _set_delivered(stream: StreamMeta, group: GroupMeta, after: Delivered, read: int) -> None:
    group.last_delivered = stream.last if after is None else after
    group.entries_read = min(read, stream.entries_added)  # clamped since Redis 8.2.2


def destroy_group(txn: Txn, name: bytes, group: bytes) -> bool:
    """Remove a group with its consumers and pending entries; tell whether there was one."""
    stream = existing_stream(txn, name)
    found = txn.catalog.group(txn, stream, group)
    if found is None:
        return False
    txn.frees = True
    txn.catalog.drop_group(txn, stream, found)
    txn.signal(name)
    return True


def create_consumer(txn: Txn, name: bytes, group: bytes, consumer: bytes) -> bool:
    """Make a consumer; tell whether it is new."""
    _check_name(consumer)
    _, found = existing_group(txn, name, group)
    if txn.catalog.consumer(txn, found, consumer) is not None:
        return False
    txn.catalog.create_consumer(txn, found, consumer)
    return True


def delete_consumer(txn: Txn, name: bytes, group: bytes, consumer: bytes) -> int:
    """Remove a consumer; return how many pending entries were lost with it."""
    _, found = existing_group(txn, name, group)
    member = txn.catalog.consumer(txn, found, consumer)
    if member is None:
        return 0
    txn.frees = True
    lost = indexes.remove_of(txn, found, member)
    txn.catalog.drop_consumer(txn, found, member)
    return lost
