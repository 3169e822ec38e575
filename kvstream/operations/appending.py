"""Appending to many streams in one commit, once: entries at hand, or parts that lie in tables.

A mark, a plain string with the number of a batch, is put in the same commit; a batch whose number
is no higher than the mark is one that was done before, and changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import lt
from typing import TypeAlias

from kvstream.errors import IDTooSmall, InvalidArgument
from kvstream.ids import MIN_ID, StreamID
from kvstream.images import PackedID
from kvstream.layout.keys import U64, is_shared, key_of
from kvstream.layout.rows import ids_from
from kvstream.meta import intake
from kvstream.meta.building import append_page, join
from kvstream.meta.intake import Intake
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import strings
from kvstream.operations.append import next_id

Mark = tuple[bytes, int]
"""The name of a string, and the number of a batch."""
Entries = tuple[list[PackedID] | None, list[bytes]]
"""IDs, or None where they are to be allotted, and stored values."""


@dataclass(slots=True)
class BulkResult:
    """What one commit has appended."""

    applied: bool = True
    """False: the batch was there already."""
    entries: int = 0
    ranges: dict[bytes, tuple[StreamID, StreamID]] = field(default_factory=dict)
    """The first and the last ID that each key got."""

    def note(self, name: bytes, first: StreamID, last: StreamID, count: int) -> None:
        self.entries += count
        key = key_of(name)
        self.ranges[key] = (self.ranges.get(key, (first, last))[0], last)


def is_done(txn: Txn, mark: Mark | None) -> bool:
    """Tell whether a batch was there already; InvalidArgument where the mark is no number."""
    value = None if mark is None else strings.get(txn, mark[0])
    if value is None or mark is None:
        return False
    if not strings.is_integer(value):
        raise InvalidArgument(f"the mark {key_of(mark[0])!r} holds no number of a batch")
    return int(value) >= mark[1]


def put_mark(txn: Txn, mark: Mark | None) -> None:
    if mark is not None:
        strings.put(txn, mark[0], b"%d" % mark[1])


def append_many(txn: Txn, streams: Mapping[bytes, Entries], mark: Mark | None = None) -> BulkResult:
    """Append entries to streams, made where they are not; IDTooSmall changes nothing."""
    if is_done(txn, mark):
        return BulkResult(applied=False)
    planned = [
        (name, _ids(txn, name, ids, values), values)
        for name, (ids, values) in streams.items()
        if values
    ]
    result = BulkResult()
    for name, ids, values in planned:
        stream = txn.stream(name) or txn.catalog.create_stream(txn, name)
        append_page(txn, stream, ids, values)
        txn.changed(stream)
        txn.signal(name)
        result.note(name, StreamID.unpack(ids[0]), stream.last, len(ids))
    put_mark(txn, mark)
    return result


def _ids(txn: Txn, name: bytes, ids: list[PackedID] | None, values: list[bytes]) -> list[PackedID]:
    """Return the IDs of entries that may be appended."""
    last = last_of(txn, name)
    if ids is None:
        return allotted(last, len(values), txn.now_ms)
    if len(ids) != len(values):
        raise InvalidArgument("there must be an ID for each value")
    if ids[0] <= last.packed or not all(map(lt, ids, ids[1:])):
        raise too_small(name)
    return ids


def last_of(txn: Txn, name: bytes) -> StreamID:
    """Return the last ID of a stream, MIN_ID where there is none; WrongType for a string."""
    stream = txn.stream(name)
    return MIN_ID if stream is None else stream.last


def allotted(last: StreamID, count: int, now_ms: int) -> list[PackedID]:
    """Return IDs for new entries, as XADD would allot them."""
    first = next_id(last, None, now_ms)
    if first.seq + count < 1 << 64:
        return [eid.packed for eid in ids_from(first, count)]
    ids = [first]
    while len(ids) < count:
        ids.append(ids[-1].next())
    return [eid.packed for eid in ids]


def too_small(name: bytes) -> IDTooSmall:
    """Return the error of IDs that are not all above the last one of their stream."""
    return IDTooSmall(
        f"stream {key_of(name)!r}: an ID is equal or smaller than the stream's top item, or is "
        "given twice"
    )


# --- tables -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Joined:
    """What is to be joined to one stream: pieces in order, whose rows stand under its prefix."""

    name: bytes
    prefix: bytes
    pieces: list[tuple[StreamMeta, list[tuple[PackedID, bytes]]]]


def prepare(txn: Txn, joined: Iterable[Joined]) -> None:
    """Note what tables are about to bring; no record is behind its rows then."""
    noted = []
    for each in joined:
        stream = txn.stream(each.name)
        if stream is not None:
            txn.changed(stream)
        noted.append(Intake(each.prefix, MIN_ID if stream is None else stream.last))
    intake.put(txn, noted)
    txn.catalog.held = {each.prefix for each in noted}


def publish(txn: Txn, joined: Iterable[Joined], mark: Mark | None) -> BulkResult:
    """Have what the tables have brought counted."""
    result = BulkResult()
    for each in joined:
        stream = txn.stream(each.name) or _made(txn, each)
        for piece, closed in each.pieces:
            join(txn, stream, piece, closed)
            result.note(each.name, piece.first, piece.last, piece.length)
        txn.catalog.index.note(stream)
        txn.signal(each.name)
    put_mark(txn, mark)
    intake.remove(txn)
    return result


def _made(txn: Txn, each: Joined) -> StreamMeta:
    """Return a new stream whose rows are there under a prefix that was given out for it."""
    catalog, prefix = txn.catalog, each.prefix
    stored = catalog.databases.stored_name(txn, each.name)
    number = txn.allocate() if is_shared(prefix) else U64.unpack(prefix[-U64.size :])[0]
    stream = StreamMeta(stored, number)
    stream.prefix, stream.nodes_tree = prefix, txn.allocate()
    catalog.add_stream(txn, each.name, stream)
    return stream


Pages: TypeAlias = Iterator[tuple[list[PackedID], list[bytes]]]
"""IDs and values of entries, in order."""


def with_ids(pages: Pages, last: StreamID, now_ms: int) -> Pages:
    """Give the entries IDs as XADD would allot them."""
    for _, values in pages:
        ids = allotted(last, len(values), now_ms)
        last = StreamID.unpack(ids[-1])
        yield ids, values


def above(pages: Pages, last: StreamID, name: bytes) -> Pages:
    """Refuse entries that are not above the last of their stream."""
    for ids, values in pages:
        if ids[0] <= last.packed:
            raise too_small(name)
        yield ids, values
