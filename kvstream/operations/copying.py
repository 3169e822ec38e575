"""COPY: a key once more under another name, in one commit.

A stream is copied with all that belongs to it. That takes time in proportion to its entries and
pending entries, and the rows are in memory until they are written.
"""

from kvstream.errors import InvalidArgument
from kvstream.ids import MIN_ID
from kvstream.layout.keys import message_prefix, successor, tree_prefix
from kvstream.meta import pending
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.strings import StringMeta
from kvstream.meta.txn import Txn
from kvstream.operations.keyspace import exists, make_room
from kvstream.storage.batch import Family

PAGE_ROWS = 1000
"""Rows that are read at once."""

_COPIED_OF_GROUP = ("last_delivered", "entries_read", "nack_rank")


def copy(txn: Txn, source: bytes, target: bytes, replace: bool = False) -> bool:
    """Copy a key, over an existing one only with ``replace``; tell whether it was done."""
    if source == target:
        raise InvalidArgument("source and destination objects are the same")
    key = txn.key(source)
    if key is None or (not replace and exists(txn, target)):
        return False
    make_room(txn, target)
    if isinstance(key, StringMeta):
        txn.catalog.create_string(txn, target, key.value, key.expire_at)
    else:
        _copy_stream(txn, key, target)
    txn.signal(target)
    return True


def _copy_stream(txn: Txn, stream: StreamMeta, name: bytes) -> None:
    made = _twin(txn, stream, name)
    if stream.length:
        first = stream.prefix + stream.first.packed
        _copy_rows(txn, Family.MESSAGES, stream.prefix, first, made.prefix)
        nodes = tree_prefix(stream.nodes_tree)
        head, target = nodes + stream.head.packed, tree_prefix(made.nodes_tree)
        _copy_rows(txn, Family.TREES, nodes, head, target)
    if stream.idmp_tree:
        producers = tree_prefix(stream.idmp_tree)
        _copy_rows(txn, Family.TREES, producers, producers, tree_prefix(made.idmp_tree))
    for group in list(txn.catalog.groups(txn, stream)):
        _copy_group(txn, group, txn.catalog.create_group(txn, made, group.name))


def _twin(txn: Txn, stream: StreamMeta, name: bytes) -> StreamMeta:
    """Make a stream with the record of another, but rows and trees of its own, without groups."""
    stored = txn.catalog.databases.stored_name(txn, name)
    twin = StreamMeta.decode(stored, stream.encode())
    twin.generation = txn.catalog.allocate(txn)
    twin.prefix = message_prefix(stored, twin.generation)
    twin.nodes_tree = txn.catalog.allocate(txn)
    twin.idmp_tree = txn.catalog.allocate(txn) if stream.idmp_tree else 0
    twin.groups_tree = twin.groups_count = 0
    twin.swept, twin.unswept = MIN_ID, 0
    txn.catalog.add_stream(txn, name, twin)
    return twin


def _copy_rows(txn: Txn, family: Family, prefix: bytes, lower: bytes, target: bytes) -> None:
    """Copy the rows of a prefix, from ``lower`` on, to another prefix."""
    copied: dict[bytes, bytes | None] = {}
    upper, cut = successor(prefix), len(prefix)
    while page := txn.batch.page(family, lower, upper, PAGE_ROWS):
        copied.update((target + key[cut:], value) for key, value in page)
        lower = page[-1][0] + b"\x00"
    txn.batch.puts[family].update(copied)


def _copy_group(txn: Txn, group: GroupMeta, made: GroupMeta) -> None:
    for consumer in list(txn.catalog.consumers(txn, group)):
        twin = txn.catalog.create_consumer(txn, made, consumer.name)
        twin.seen_ms, twin.active_ms = consumer.seen_ms, consumer.active_ms
    for run in pending.runs_from(txn, group, b""):
        pending.place(txn, made, run.ids, run.owner, run.time_ms, run.deliveries, run.rank)
    for field in _COPIED_OF_GROUP:
        setattr(made, field, getattr(group, field))
    txn.member_changed(made)
