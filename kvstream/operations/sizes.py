"""MEMORY USAGE: how many bytes the rows of a key take, estimated from a few of each kind.

What is counted is the keys and values of rows before RocksDB compresses them, not memory: of that a
stream takes next to none.
"""

from collections.abc import Sequence
from itertools import islice

from kvstream.layout.keys import (
    database_of,
    expiry_row,
    key_of,
    scan_row,
    successor,
    tree_prefix,
)
from kvstream.meta import pending
from kvstream.meta.indexes import pending_in
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.strings import Key
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family

SAMPLES = 5
"""Rows of each kind that are looked at unless told otherwise, as in Redis."""


def usage(txn: Txn, name: bytes, samples: int | None = SAMPLES) -> int | None:
    """Return the bytes of a key's rows, None where there is no key.

    Of entries, nodes, groups, consumers, runs and producers ``samples`` each are looked at, and
    stand for all; None: all of them, in time that all their rows take.
    """
    key = txn.key(name)
    if key is None:
        return None
    total = _listing_size(key)
    if isinstance(key, StreamMeta):
        total += _stream_size(txn, key, samples)
    elif key.pieces is not None:
        total += key.length + key.pieces.count * len(key.pieces.row(0))
    return total


def _listing_size(key: Key) -> int:
    """Return the bytes of the record and of what every key has besides."""
    listed = len(scan_row(database_of(key.name), key.generation)) + len(key_of(key.name))
    expiring = len(expiry_row(key.expire_at, key.name)) if key.expire_at else 0
    return len(key.row) + len(key.encode()) + listed + expiring


def _stream_size(txn: Txn, stream: StreamMeta, samples: int | None) -> int:
    groups = [
        _group_size(txn, group, samples)
        for group in islice(txn.catalog.groups(txn, stream), samples)
    ]
    nodes, closed = tree_prefix(stream.nodes_tree), stream.nodes - bool(stream.open_live)
    producers = tree_prefix(stream.idmp_tree)
    counted = (
        (Family.MESSAGES, stream.prefix, stream.first.packed, stream.length),
        (Family.TREES, nodes, stream.head.packed, closed),
        (Family.TREES, producers + b"P", b"", stream.pids),
        (Family.TREES, producers + b"I", b"", stream.iids),
        (Family.TREES, producers + b"O", b"", stream.iids),
    )
    rows = sum(_rows_size(txn, *each, samples) for each in counted)
    return rows + _scaled(groups, stream.groups_count)


def _rows_size(
    txn: Txn, family: Family, prefix: bytes, start: bytes, count: int, samples: int | None
) -> int:
    """Return the bytes of the ``count`` rows under a prefix from ``start`` on."""
    if not count:
        return 0
    rows = islice(txn.batch.scan(family, prefix + start, successor(prefix)), samples)
    return _scaled([len(key) + len(value) for key, value in rows], count)


def _scaled(sizes: Sequence[int], count: int) -> int:
    """Return the size of ``count`` of which these are some."""
    return sum(sizes) * count // len(sizes) if sizes else 0


def _group_size(txn: Txn, group: GroupMeta, samples: int | None) -> int:
    consumers = [
        len(consumer.row) + len(consumer.encode())
        for consumer in islice(txn.catalog.consumers(txn, group), samples)
    ]
    own = len(group.row) + len(group.encode())
    return own + _scaled(consumers, group.consumers_count) + _pending_size(txn, group, samples)


def _pending_size(txn: Txn, group: GroupMeta, samples: int | None) -> int:
    """Return the bytes of runs, and of a row by time and by consumer each in an indexed group."""
    size = ids = 0
    for run in islice(pending.runs_from(txn, group, b""), samples):
        suffixes = [run.anchor]
        if group.indexed:
            suffixes += [run.times_suffix, *([run.anchor] if run.owned else [])]
        size += len(run.encode()) + sum(len(tree_prefix(0)) + len(each) for each in suffixes)
        ids += len(run.ids)
    return size * pending_in(txn, group) // ids if ids else 0
