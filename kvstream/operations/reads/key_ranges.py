"""Which rows of RocksDB an operation may read, for stores that have some of their tables alone.

A name leads to a record, the record to the rows of the key: so the ranges of a key can be told only
once those of its record are there.
"""

from collections.abc import Sequence

from kvstream.layout.keys import (
    ALLOCATOR_KEY,
    ID_LAST,
    SCAN_TAG,
    stream_row,
    successor,
    tree_prefix,
)
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, KeyRange
from kvstream.types.ids import StreamID

_ALL = b"\xff" * 64
OF_DATABASES: KeyRange = Family.METADATA, ALLOCATOR_KEY, SCAN_TAG
"""The rows of no key: numbers of databases, deleted keys, unfinished loads. Any read needs them."""
OF_RECORDS: KeyRange = Family.METADATA, b"", _ALL
"""All records, and their order for SCAN."""
OF_TREES: KeyRange = Family.TREES, b"", _ALL
"""The nodes of all streams, their groups, consumers, pending entries, timers and producers."""
OF_ALL: list[KeyRange] = [(family, b"", _ALL) for family in Family]


def of_records(txn: Txn, names: Sequence[bytes]) -> list[KeyRange]:
    """Return the rows of the records of keys."""
    rows = [stream_row(txn.catalog.databases.stored_name(txn, name)) for name in names]
    return [(Family.METADATA, row, row + b"\x00") for row in rows]


def of_entries(txn: Txn, name: bytes, start: StreamID, end: StreamID) -> list[KeyRange]:
    """Return what a read of entries of ``start <= id <= end`` may see of a stream.

    Loading a stream reads its open node too. [] if there is no stream.
    """
    stream = txn.catalog.peek(txn, name)
    if not isinstance(stream, StreamMeta):
        return []
    opened = min(stream.open_first, stream.last) if stream.open_live else stream.last
    spans = [(start.packed, end.packed), (opened.packed, ID_LAST)]
    messages: list[KeyRange] = [
        (Family.MESSAGES, stream.prefix + low, stream.prefix + high + b"\x00")
        for low, high in spans
        if low <= high
    ]
    if stream.nodes_tree:
        nodes = tree_prefix(stream.nodes_tree)
        messages.append((Family.TREES, nodes, successor(nodes)))
    return messages


def of_first(txn: Txn, name: bytes) -> list[KeyRange]:
    """Return what ``of_entries`` returns for the first entry of a stream alone."""
    stream = txn.catalog.peek(txn, name)
    if not isinstance(stream, StreamMeta):
        return []
    return of_entries(txn, name, stream.first, stream.first)


def of_value(txn: Txn, name: bytes) -> list[KeyRange]:
    """Return all entries of a stream, or the pieces of a large string; [] if there is no key."""
    key = txn.catalog.peek(txn, name)
    if key is None or key.prefix is None:
        return []
    return [(Family.MESSAGES, key.prefix, successor(key.prefix))]
