"""Keep what unfinished loads leave in the store: streams loaded in steps, and ingested tables.

::

    load row := "L" generation(u64) -> version(u8=1) begun_ms(u64) moved_ms(u64)
                                       trees(u64) trees_end(u64)
                                       label_length(u32) label name_length(u32) name record
    ingested row := "B" -> (length(u32) prefix last(id))*

A load row stands for a stream that is loaded in steps: its rows exist, but no key does yet.
``record`` is the stream's record so far, ``name`` its stored name. ``trees`` to ``trees_end`` are
the numbers of its trees besides that of its nodes; 0 to 0 before they are allocated. The row is
durable before the first row of the stream is, and goes in the commit that creates the key. So the
rows of an interrupted load can be found and deleted.

Ingested tables are visible and durable at once; the commit that counts their entries comes later.
The ingested row is durable before the first table is. While it exists, no row below ``prefix`` and
above ``last`` counts; opening the store deletes such rows. The records of the streams are written
with it, so that none is behind its rows.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption, KVStreamError
from kvstream.layout.keys import (
    ID_BYTES,
    INGESTED_KEY,
    LOAD_TAG,
    load_row,
    successor,
    tree_prefix,
)
from kvstream.meta.changeset import Changeset
from kvstream.meta.records import StreamMeta
from kvstream.storage.batch import Family
from kvstream.types.ids import MIN_ID, StreamID

_LENGTH = Struct(">I")
_MESSAGES, _METADATA, _TREES = Family.MESSAGES, Family.METADATA, Family.TREES

_VERSION = 1
_HEAD = Struct(">B QQ QQ")


@dataclass(slots=True)
class StagedLoad:
    """One load under way."""

    stream: StreamMeta
    """The stream as far as it is on disk, with its own generation and tree of nodes."""
    begun_ms: int
    label: bytes = b""
    """The name by which the caller resumes the load; empty if it cannot be resumed."""
    moved_ms: int = 0
    """When the load last made progress."""
    trees: range = field(default=range(0))
    """The numbers of its other trees."""

    @property
    def row(self) -> bytes:
        return load_row(self.stream.generation)

    def encode(self) -> bytes:
        ends = self.trees.start, self.trees.stop
        head = _HEAD.pack(_VERSION, self.begun_ms, self.moved_ms, *ends)
        label = _LENGTH.pack(len(self.label)) + self.label
        name = _LENGTH.pack(len(self.stream.name)) + self.stream.name
        return head + label + name + self.stream.encode()

    @classmethod
    def decode(cls, row: bytes, value: bytes) -> "StagedLoad":
        """Decode the row of a load; raise Corruption if it is damaged."""
        try:
            version, begun_ms, moved_ms, *ends = _HEAD.unpack_from(value)
            label, end = _string(value, _HEAD.size)
            name, end = _string(value, end)
            stream = StreamMeta.decode(name, value[end:])
            if version != _VERSION or row != load_row(stream.generation):
                raise Corruption("its version or generation is another")
        except (StructError, KVStreamError) as error:
            raise Corruption(f"the row {row.hex()} of a load is damaged: {error}") from None
        return cls(stream, begun_ms, label, moved_ms, range(*ends))


def _string(value: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(value, at)
    start = at + _LENGTH.size
    return value[start : start + length], start + length


def all_of(txn: Changeset) -> Iterator[StagedLoad]:
    """Yield the loads under way, oldest first; ``check`` reports those that cannot be read."""
    for row, value in txn.batch.scan(_METADATA, LOAD_TAG, successor(LOAD_TAG)):
        with suppress(Corruption):
            yield StagedLoad.decode(row, value)


def put(txn: Changeset, load: StagedLoad) -> None:
    """Write the row with the stream's record so far."""
    load.moved_ms = txn.now_ms
    load.stream.forget_cold_part()
    txn.batch.put(_METADATA, load.row, load.encode())


def remove(txn: Changeset, load: StagedLoad) -> None:
    """Delete the row: the load has ended."""
    txn.batch.delete(_METADATA, load.row)


def discard(txn: Changeset, load: StagedLoad) -> None:
    """Delete all rows of a load."""
    txn.frees = True
    prefix, nodes = load.stream.prefix, tree_prefix(load.stream.nodes_tree)
    txn.batch.delete_range(_MESSAGES, prefix, successor(prefix))
    txn.batch.delete_range(_TREES, nodes, successor(nodes))
    drop_trees(txn, load)
    remove(txn, load)


def drop_trees(txn: Changeset, load: StagedLoad) -> None:
    """Delete the rows of all its trees except the nodes, to be written again."""
    if load.trees:
        bounds = tree_prefix(load.trees.start), tree_prefix(load.trees.stop)
        txn.batch.delete_range(_TREES, *bounds)
    load.trees = range(0)


def cut(txn: Changeset, load: StagedLoad) -> None:
    """Delete entries and nodes beyond the row's record, which is written after them."""
    stream = load.stream
    prefix, nodes = stream.prefix, tree_prefix(stream.nodes_tree)
    first = prefix if stream.last == MIN_ID else prefix + stream.last.packed + b"\0"
    txn.batch.delete_range(_MESSAGES, first, successor(prefix))
    closed = nodes + stream.open_first.packed if stream.open_live else nodes
    txn.batch.delete_range(_TREES, closed, successor(nodes))


# --- ingested tables -----------------------------------------------------------------------------


class Ingested(NamedTuple):
    """One stream that gets entries."""

    prefix: bytes
    last: StreamID
    """Its last entry before the load; MIN_ID for a new stream."""


def put_ingested(txn: Changeset, streams: list[Ingested]) -> None:
    """Write the row of streams that are being ingested."""
    parts = [_LENGTH.pack(len(each.prefix)) + each.prefix + each.last.packed for each in streams]
    txn.batch.put(_METADATA, INGESTED_KEY, b"".join(parts))


def remove_ingested(txn: Changeset) -> None:
    """Delete the row: the entries count, or have been deleted."""
    txn.batch.delete(_METADATA, INGESTED_KEY)


def read_ingested(txn: Changeset) -> list[Ingested]:
    """Return the streams of the ingested row; raise Corruption if it is damaged."""
    value = txn.batch.get(_METADATA, INGESTED_KEY)
    return [] if value is None else list(decode_ingested(value))


def decode_ingested(value: bytes) -> Iterator[Ingested]:
    at = 0
    while at < len(value):
        try:
            (length,) = _LENGTH.unpack_from(value, at)
        except StructError:
            length = len(value)
        at += _LENGTH.size + length + ID_BYTES
        if at > len(value):
            raise Corruption("the row of entries being taken in is damaged")
        prefix, last = value[at - ID_BYTES - length : at - ID_BYTES], value[at - ID_BYTES : at]
        yield Ingested(prefix, StreamID.unpack(last))


def undo_ingested(txn: Changeset) -> None:
    """Delete the entries that do not count, and the row."""
    rows = read_ingested(txn)
    if not rows:
        return
    txn.frees = True
    for prefix, last in rows:
        lower = prefix if last == MIN_ID else prefix + last.packed + b"\0"
        txn.batch.delete_range(_MESSAGES, lower, successor(prefix))
    remove_ingested(txn)
