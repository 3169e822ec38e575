"""XADD, XSETID, XCFGSET and XIDMPRECORD, and bulk appends to many streams.

``next_id`` and ``next_ids`` decide which ID a new entry gets. A bulk append adds entries, or tables
of them, to many streams in one commit, and does so once: a mark, a plain string that holds the
number of a batch, is set in the same commit. A batch with a number up to the mark's is skipped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from operator import lt
from struct import Struct

import xxhash

from kvstream.errors import IDsExhausted, IDTooSmall, InvalidArgument, InvalidID, quote
from kvstream.layout.keys import U64, is_shared, key_of
from kvstream.layout.listpack import canonical_integer
from kvstream.layout.rows import ids_from
from kvstream.layout.values import Names
from kvstream.meta import filling, idempotency, nodes, unfinished_loads
from kvstream.meta.bulk_fill import append_page, join
from kvstream.meta.compiled import plain
from kvstream.meta.events.keys import EXPIRE, XADD, XSETID
from kvstream.meta.idempotency import Producer, Request
from kvstream.meta.records import ENTRIES_ADDED_MAX, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import Ingested
from kvstream.meta.wakeups import Wake
from kvstream.operations import strings, turns
from kvstream.operations.reads.rows import exists, last_entry
from kvstream.operations.trim import Trim, may_trim_once, sweep_emptied, trim_stream
from kvstream.types.ids import MAX_ID, MIN_ID, PACKED, U64_MAX, AddID, StreamID, new_id
from kvstream.types.images import PackedID
from kvstream.types.options import IDMP_DURATION_MAX_S, IDMP_MAXSIZE_MAX

_NATIVE_LENGTH = Struct("<Q")

_TOO_SMALL = "The ID specified in XADD is equal or smaller than the target stream top item"
_EXHAUSTED = "The stream has exhausted the last possible ID, unable to add more items"


@dataclass(frozen=True, slots=True)
class Idempotency:
    """IDMP pid iid, or IDMPAUTO pid where ``iid`` is derived from the fields."""

    pid: bytes
    iid: bytes


def refuse_empty_pid(pid: bytes, option: str) -> None:
    """Raise InvalidArgument if the producer of IDMP or IDMPAUTO has no name."""
    if not pid:
        raise InvalidArgument(f"syntax error, {option} requires a non-empty producer ID")


def refuse_empty_iid(iid: bytes) -> None:
    """Raise InvalidArgument if the idempotent ID of IDMP is empty."""
    if not iid:
        raise InvalidArgument("syntax error, IDMP requires a non-empty idempotent ID")


def two_producers() -> InvalidArgument:
    """Return the error of an XADD with more than one IDMP or IDMPAUTO."""
    return InvalidArgument("syntax error, IDMP/IDMPAUTO specified multiple times")


def refuse_explicit_id(eid: AddID) -> None:
    """Raise InvalidArgument if an entry with an idempotent ID has an ID of its own."""
    if eid is not None:
        raise InvalidArgument(
            "syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
        )


def add(
    txn: Txn,
    name: bytes,
    value: bytes,
    names: Names,
    eid: AddID = None,
    trim: Trim | None = None,
    nomkstream: bool = False,
    once: Idempotency | Request | None = None,
) -> StreamID | None:
    """Append one encoded entry as XADD does; return None if ``nomkstream`` finds no stream.

    With ``once``, an idempotent ID that the producer has used before, or a repeated request of a
    client, returns the ID of that entry; nothing is added or trimmed then.
    """
    if once is not None:
        adding = partial(add, txn, name, value, names, eid, trim, nomkstream)
        if isinstance(once, Request):
            return _carry_out(txn, once, adding)
        refuse_explicit_id(eid)
        return _add_once(txn, name, once, adding)
    if eid is None and plain is not None:
        added = plain.append(txn, name, value, names)
        if added is not None:
            if txn.catalog.with_turns:
                _sort(txn, name, 1)
            if trim is not None and (stream := txn.stream(name)) is not None:
                trim_stream(txn, stream, trim)
            return added
    stream = txn.stream(name)
    if stream is None:
        if nomkstream:
            return None
        last = MIN_ID
        new = next_id(last, eid, txn.now_ms)
        stream = txn.catalog.create_stream(txn, name)
    else:
        last = stream.last
        new = next_id(last, eid, txn.now_ms)
    filling.append(txn, stream, new, value, names)
    if txn.catalog.with_turns:
        _sort(txn, name, 1)
    if txn.wanted_events or txn.awaited:
        _announce(txn, name, stream, last, 1)
    if trim is not None:
        trim_stream(txn, stream, trim)
    return new


def add_expiring(txn: Txn, name: bytes, value: bytes, names: Names, expire_at: int) -> StreamID:
    """Append one encoded entry, and set the expiry of its key to a time that has not passed."""
    stream = txn.stream(name)
    if stream is None:
        stream = txn.catalog.create_stream(txn, name, expire_at)
    else:
        txn.catalog.set_expiry(txn, stream, expire_at)
    last = stream.last
    new = next_id(last, None, txn.now_ms)
    filling.append(txn, stream, new, value, names)
    if txn.wanted_events:
        txn.notify(XADD, name)
        txn.notify(EXPIRE, name)
    txn.signal_added(name, stream, last)
    return new


def _add_once(
    txn: Txn, name: bytes, once: Idempotency, add: Callable[[], StreamID | None]
) -> StreamID | None:
    """Add an entry, or return the ID of the one that its idempotent ID has created before."""
    producer, stream = None, txn.stream(name)
    if stream is not None:
        producer = Producer(txn, stream, once.pid)
        known = producer.lookup(once.iid)
        if known is not None:
            stream.iids_duplicates += 1
            txn.record_changed(stream)
            return known
    new = add()
    stream = stream or txn.stream(name)
    if new is not None and stream is not None:
        (producer or Producer(txn, stream, once.pid)).remember(once.iid, new)
    return new


def _carry_out(txn: Txn, request: Request, add: Callable[[], StreamID | None]) -> StreamID | None:
    """Add the entry of a request, or return the ID of the entry that it has added before."""
    last = idempotency.last_request(txn, request.client)
    if last is not None and request.number <= last.number:
        if request.number == last.number:
            txn.catalog.repeats_write = True
            return last.eid
        raise InvalidArgument(
            f"request {request.number} is over: the client has made request {last.number} since"
        )
    new = add()
    idempotency.record_request(txn, request, new, last)
    return new


def refuse_request(client: bytes, number: int) -> None:
    """Raise InvalidArgument for a request without a client's name, or a positive number."""
    if not 1 <= len(client) <= idempotency.CLIENT_BYTES_MAX:
        raise InvalidArgument(
            f"the client of a request must have a name of 1 to {idempotency.CLIENT_BYTES_MAX} bytes"
        )
    if number < 1:
        raise InvalidArgument("the number of a request must be positive")


def add_many(
    txn: Txn,
    name: bytes,
    entries: list[tuple[bytes, Names]],
    trim: Trim | None = None,
) -> list[StreamID]:
    """Append encoded entries with automatic IDs, and trim once after the last."""
    stream = txn.stream(name) or txn.catalog.create_stream(txn, name)
    if not entries:
        return []
    last = stream.last
    ids = next_ids(last, len(entries), txn.now_ms)
    filling.extend(txn, stream, ids, entries)
    if txn.catalog.with_turns:
        _sort(txn, name, len(ids))
    if txn.wanted_events or txn.awaited:
        _announce(txn, name, stream, last, len(ids))
    if trim is not None:
        trim_stream(txn, stream, trim)
    return ids


def _sort(txn: Txn, name: bytes, count: int) -> None:
    """Sort entries that were added, if the stream has a group whose keys take turns."""
    if name in txn.catalog.with_turns:
        turns.sort_added(txn, name, count)


def _announce(txn: Txn, name: bytes, stream: StreamMeta, last: StreamID, count: int) -> None:
    """Tell subscribers and blocked readers of entries after ``last``."""
    if txn.wanted_events & XADD.bit:
        txn.events += [(XADD, name)] * count
    txn.signal_added(name, stream, last)


def add_each(
    txn: Txn, name: bytes, entries: list[tuple[bytes, Names]], trims: Sequence[Trim | None]
) -> list[StreamID]:
    """Append encoded entries like a sequence of XADDs, each with its own trim.

    It notes no keyspace events of these entries.
    """
    stream = txn.stream(name) or txn.catalog.create_stream(txn, name)
    last = stream.last
    ids = next_ids(last, len(entries), txn.now_ms)
    start = 0
    for trimming, alike in groupby(trims):
        stop = start + len(list(alike))
        _extend_trimmed(txn, stream, ids[start:stop], entries[start:stop], trimming)
        start = stop
    if txn.catalog.with_turns:
        _sort(txn, name, len(ids))
    if txn.awaited:
        txn.signal_added(name, stream, last)
    return ids


def _extend_trimmed(
    txn: Txn,
    stream: StreamMeta,
    ids: list[StreamID],
    entries: list[tuple[bytes, Names]],
    trimming: Trim | None,
) -> None:
    """Append entries and trim after each, or only after the last if the result is the same."""
    limits, at, last = txn.catalog.limits, 0, len(ids) - 1
    while (
        at < last
        and trimming is not None
        and not may_trim_once(limits, stream, trimming, last - at + 1)
    ):
        filling.append(txn, stream, ids[at], *entries[at])
        trim_stream(txn, stream, trimming)
        at += 1
    if at == last:
        filling.append(txn, stream, ids[at], *entries[at])
    else:
        filling.extend(txn, stream, ids[at:], entries[at:])
    if trimming is not None:
        trim_stream(txn, stream, trimming)


def add_under(
    txn: Txn,
    name: bytes,
    ids: Sequence[AddID],
    entries: list[tuple[bytes, Names]],
    trim: Trim | None = None,
) -> list[StreamID]:
    """Append encoded entries under ascending IDs, which may be ``ms-*`` or ``*``; then trim once.

    If an ID is not above the one before it, raise IDTooSmall and add nothing.
    """
    stream = txn.stream(name)
    before = last = MIN_ID if stream is None else stream.last
    new = []
    for eid in ids:
        last = next_id(last, eid, txn.now_ms)
        new.append(last)
    if not new:
        return []
    stream = stream or txn.catalog.create_stream(txn, name)
    filling.extend(txn, stream, new, entries)
    if txn.catalog.with_turns:
        _sort(txn, name, len(new))
    if txn.wanted_events or txn.awaited:
        _announce(txn, name, stream, before, len(new))
    if trim is not None:
        trim_stream(txn, stream, trim)
    return new


def next_ids(last: StreamID, count: int, now_ms: int) -> list[StreamID]:
    """Return the IDs that ``count`` XADDs in a row would get after ``last``."""
    ids = [next_id(last, None, now_ms)]
    if ids[0].seq + count <= U64_MAX:
        return ids_from(ids[0], count)
    while len(ids) < count:
        ids.append(next_id(ids[-1], None, now_ms))
    return ids


def next_id(last: StreamID, eid: AddID, now_ms: int) -> StreamID:
    """Return the ID of a new entry. It is above ``last``, whatever the clock says."""
    if eid is None:
        ms, seq = last
        if now_ms > ms:
            return new_id((now_ms, 0))
        if seq < U64_MAX:
            return new_id((ms, seq + 1))
        if last == MAX_ID:
            raise IDsExhausted(_EXHAUSTED)
        return last.next()
    if isinstance(eid, StreamID):
        refuse_zero_id(eid)
        if eid <= last:
            raise _refusal(last)
        return eid
    return _next_of_ms(last, eid)


def refuse_zero_id(eid: AddID) -> None:
    """Raise IDTooSmall if an entry is to have the ID 0-0."""
    if eid == MIN_ID:
        raise IDTooSmall("The ID specified in XADD must be greater than 0-0")


def _next_of_ms(last: StreamID, ms: int) -> StreamID:
    if ms > last.ms:
        return StreamID(ms, 0)
    if ms < last.ms or last.seq == U64_MAX:
        raise _refusal(last)
    return StreamID(ms, last.seq + 1)


def _refusal(last: StreamID) -> IDTooSmall | IDsExhausted:
    return IDsExhausted(_EXHAUSTED) if last == MAX_ID else IDTooSmall(_TOO_SMALL)


def automatic_iid(flat: Sequence[bytes]) -> bytes:
    """Return the 16 bytes that IDMPAUTO derives from an entry, whatever the field order."""
    low_sum = high_sum = low_xor = high_xor = 0
    for at in range(0, len(flat), 2):
        field = flat[at]
        digest = xxhash.xxh3_128_intdigest(field + _NATIVE_LENGTH.pack(len(field)) + flat[at + 1])
        low, high = digest & U64_MAX, digest >> 64
        low_sum = (low_sum + low) & U64_MAX
        high_sum = (high_sum + high) & U64_MAX
        low_xor ^= low
        high_xor ^= high
    low = low_sum ^ _rotate_left(high_xor)
    high = high_sum ^ _rotate_left(low_xor)
    return _NATIVE_LENGTH.pack(low) + _NATIVE_LENGTH.pack(high)


def _rotate_left(number: int) -> int:
    return ((number << 1) | (number >> 63)) & U64_MAX


def set_id(
    txn: Txn,
    name: bytes,
    last: StreamID,
    entries_added: int | None = None,
    max_deleted: StreamID | None = None,
) -> None:
    """Set a stream's last ID, and its counters if given, as XSETID does."""
    refuse_counters(last, entries_added, max_deleted)
    stream = txn.existing_stream(name)
    if last < stream.max_deleted:
        raise InvalidArgument(
            "The ID specified in XSETID is smaller than current max_deleted_entry_id"
        )
    if stream.length:
        top = last_entry(txn, stream)
        if top is None:
            raise nodes.damage_error(stream, "has fewer entries than it counts")
        if last < top.id:
            raise InvalidArgument(
                "The ID specified in XSETID is smaller than the target stream top item"
            )
        if entries_added is not None and entries_added < stream.length:
            raise InvalidArgument(
                "The entries_added specified in XSETID is smaller than the target stream length"
            )
    elif last < stream.last:  # trimmed rows above the new last ID would be read again
        sweep_emptied(txn, stream)
    if last < stream.last:  # IDs that were used before may be used again
        txn.catalog.reply_cache.forget(stream.prefix)
        stream.deletions += 1
    stream.last = last
    if entries_added is not None:
        stream.entries_added = entries_added
    if max_deleted is not None and max_deleted != MIN_ID:
        stream.max_deleted = max_deleted
    txn.record_changed(stream)
    txn.notify(XSETID, name)


def refuse_counters(
    last: StreamID, entries_added: int | None, max_deleted: StreamID | None
) -> None:
    """Raise InvalidArgument if the counters given to XSETID contradict each other."""
    if max_deleted is not None and last < max_deleted:
        raise InvalidArgument(
            "The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
        )
    if entries_added is not None and entries_added < 0:
        raise InvalidArgument("entries_added must be positive")
    if entries_added is not None and entries_added > ENTRIES_ADDED_MAX:
        raise InvalidArgument("entries_added is out of range")


def configure(
    txn: Txn, name: bytes, duration_s: int | None = None, maxsize: int | None = None
) -> None:
    """Set how long and how many idempotent IDs a stream remembers, as XCFGSET does."""
    if duration_s is None and maxsize is None:
        raise InvalidArgument("At least one parameter must be specified")
    refuse_idmp_bounds(duration_s, maxsize)
    stream = txn.existing_stream(name)
    before = idempotency.duration_ms(txn, stream), idempotency.maxsize(txn, stream)
    stream.idmp_duration = duration_s or stream.idmp_duration
    stream.idmp_maxsize = maxsize or stream.idmp_maxsize
    if before != (idempotency.duration_ms(txn, stream), idempotency.maxsize(txn, stream)):
        idempotency.forget_all(txn, stream)
    txn.record_changed(stream)


def refuse_idmp_bounds(duration_s: int | None, maxsize: int | None) -> None:
    """Raise InvalidArgument if a setting of XCFGSET is out of range."""
    if duration_s is not None and not 1 <= duration_s <= IDMP_DURATION_MAX_S:
        raise InvalidArgument(f"IDMP-DURATION must be between 1 and {IDMP_DURATION_MAX_S} seconds")
    if maxsize is not None and not 1 <= maxsize <= IDMP_MAXSIZE_MAX:
        raise InvalidArgument(f"IDMP-MAXSIZE must be between 1 and {IDMP_MAXSIZE_MAX} entries")


def record_idempotency(txn: Txn, name: bytes, pid: bytes, iid: bytes, eid: StreamID) -> None:
    """Record the idempotent ID under which a producer made an entry, as XIDMPRECORD does."""
    refuse_empty_ids(pid, iid)
    stream = txn.existing_stream(name)
    producer = Producer(txn, stream, pid)
    known = producer.lookup(iid)
    if known is not None:
        if known != eid:
            raise InvalidArgument("IID already exists for this producer with a different stream ID")
        return
    if not exists(txn, stream, eid):
        raise InvalidID("No such message in stream")
    producer.remember(iid, eid)


def refuse_empty_ids(pid: bytes, iid: bytes) -> None:
    """Raise InvalidArgument if XIDMPRECORD is given an empty producer or idempotent ID."""
    if not pid:
        raise InvalidArgument("producer ID must be non-empty")
    if not iid:
        raise InvalidArgument("idempotent ID must be non-empty")


Mark = tuple[bytes, int]
"""The name of a string key, and the number of a batch."""
Entries = tuple[list[PackedID] | None, list[bytes]]
"""IDs, or None for automatic ones, and stored values."""


@dataclass(slots=True)
class BulkResult:
    """The result of a bulk append."""

    applied: bool = True
    """False if the batch was applied before."""
    entries: int = 0
    """The number of entries that were added."""
    ranges: dict[bytes, tuple[StreamID, StreamID]] = field(default_factory=dict)
    """The first and last ID that each key got."""

    def add_range(self, name: bytes, first: StreamID, last: StreamID, count: int) -> None:
        self.entries += count
        key = key_of(name)
        self.ranges[key] = (self.ranges.get(key, (first, last))[0], last)


def is_done(txn: Txn, mark: Mark | None) -> bool:
    """Return whether a batch was applied before; raise InvalidArgument if its mark is no number."""
    value = None if mark is None else strings.get(txn, mark[0])
    if value is None or mark is None:
        return False
    number = canonical_integer(value)
    if number is None:
        raise InvalidArgument(f"the mark {quote(key_of(mark[0]))} holds no number of a batch")
    return number >= mark[1]


def put_mark(txn: Txn, mark: Mark | None) -> None:
    if mark is not None:
        strings.put(txn, mark[0], b"%d" % mark[1])


def append_many(txn: Txn, streams: Mapping[bytes, Entries], mark: Mark | None = None) -> BulkResult:
    """Append entries to streams, which are created if missing; after IDTooSmall nothing changed.

    Each stream gets one keyspace event, however many entries it gets.
    """
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
        txn.counters_changed(stream)
        txn.notify(XADD, name)
        txn.signal(name, Wake.ADDED)
        result.add_range(name, StreamID.unpack(ids[0]), stream.last, len(ids))
    put_mark(txn, mark)
    return result


def _ids(txn: Txn, name: bytes, ids: list[PackedID] | None, values: list[bytes]) -> list[PackedID]:
    """Return the IDs for entries; raise IDTooSmall unless given ones ascend above the last ID."""
    stream = txn.stream(name)
    last = MIN_ID if stream is None else stream.last
    if ids is None:
        return next_packed(last, len(values), txn.now_ms)
    if len(ids) != len(values):
        raise InvalidArgument("there must be an ID for each value")
    if ids[0] <= last.packed or not all(map(lt, ids, ids[1:])):
        pairs = pairwise([last.packed, *ids])
        raise too_small(name, next(eid for before, eid in pairs if eid <= before))
    return ids


def next_packed(last: StreamID, count: int, now_ms: int) -> list[PackedID]:
    """Return the IDs of ``next_ids``, packed."""
    return [PACKED(*eid) for eid in next_ids(last, count, now_ms)]


def too_small(name: bytes, eid: PackedID | None = None) -> IDTooSmall:
    """Return the error of IDs that are not ascending above the last one of their stream."""
    which = "an ID" if eid is None else f"the ID {StreamID.unpack(eid)}"
    return IDTooSmall(
        f"{which} for stream {quote(key_of(name))} is equal or smaller than the stream's top "
        "item, or is given twice"
    )


# --- tables -------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableAppend:
    """Entries of tables to add to one stream: pieces in order, whose rows have its prefix."""

    name: bytes
    prefix: bytes
    pieces: list[tuple[StreamMeta, list[tuple[PackedID, bytes]]]]


def prepare(txn: Txn, joined: Iterable[TableAppend]) -> None:
    """Record to which streams tables are about to be added, so that a crash can be undone."""
    noted = []
    for addition in joined:
        stream = txn.stream(addition.name)
        if stream is not None:
            txn.counters_changed(stream)
        noted.append(Ingested(addition.prefix, MIN_ID if stream is None else stream.last))
    unfinished_loads.put_ingested(txn, noted)
    txn.catalog.uncounted = {ingested.prefix for ingested in noted}


def publish(txn: Txn, joined: Iterable[TableAppend], mark: Mark | None) -> BulkResult:
    """Add the entries of tables to their streams; their rows are in the store already."""
    result = BulkResult()
    for addition in joined:
        name = addition.name
        stream = txn.stream(name) or _create_ingested(txn, addition)
        for piece, closed in addition.pieces:
            join(txn, stream, piece, closed)
            result.add_range(name, piece.first, piece.last, piece.length)
        txn.catalog.index.report_change(stream)
        txn.notify(XADD, name)
        txn.signal(name, Wake.ADDED)
    put_mark(txn, mark)
    unfinished_loads.remove_ingested(txn)
    return result


def _create_ingested(txn: Txn, addition: TableAppend) -> StreamMeta:
    """Return a new stream for rows that are in the store under a reserved prefix."""
    catalog, prefix = txn.catalog, addition.prefix
    stored = catalog.databases.stored_name(txn, addition.name)
    number = txn.allocate() if is_shared(prefix) else U64.unpack(prefix[-U64.size :])[0]
    stream = StreamMeta(stored, number)
    stream.prefix, stream.nodes_tree = prefix, txn.allocate()
    catalog.add_stream(txn, addition.name, stream)
    return stream
