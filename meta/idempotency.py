"""Idempotent writes: the IDs that each producer used lately, and each client's last request.

A producer's idempotent IDs (IDMP) name the entries that they created::

    producer row := tree(u64) "P" pid                        -> oldest(u64) next(u64)
    iid row      := tree(u64) "I" pid_length(u32) pid iid    -> id stamp_ms(u64) order(u64)
    order row    := tree(u64) "O" pid_length(u32) pid order(u64)  -> stamp_ms(u64) iid

Each producer forgets its IDs first in, first out: those above the stream's ``maxsize``, and those
older than its ``duration``. Age is measured by our own clock, so that an entry ID in the future
does not keep one for ever. If the clock steps back, an ID can expire behind a younger one; using it
again leaves a gap in the orders.

A client that has lost a reply repeats its request under the same number (KVSTREAM.ADDONCE)::

    request row := "O" client -> stamp_ms(u64) number(u64) [id]

The row is written in the commit of the request itself, so a repeated one finds either the result or
nothing done. A client numbers its requests upwards and has one under way at a time: then one row
tells everything, whatever it adds to which stream. (RIFL keeps such a record for each request under
way: Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015.) Without
``id`` the request added nothing. The rows belong to no key: DEL, FLUSHALL and COPY leave them.
Clients come and go with their processes. So a new client deletes rows that are older than
REQUEST_KEPT_MS, of up to SWEPT others.
"""

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import (
    COUNTED_MAX,
    ID_BYTES,
    REQUEST_TAG,
    U64,
    request_row,
    successor,
    tree_prefix,
)
from kvstream.meta.changeset import Changeset
from kvstream.meta.records import StreamMeta
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID
from kvstream.types.images import IdempotencyImage
from kvstream.types.options import IDMP_DURATION_MAX_S, IDMP_MAXSIZE_MAX

_METADATA, _TREES = Family.METADATA, Family.TREES
_PRODUCER = Struct(">QQ")
_IID = Struct(">16sQQ")
_LENGTH = Struct(">I")
_MS = 1000
COUNT_MAX = (1 << 63) - 1
"""The greatest count accepted from a source: RESP has no greater integer."""
SWEPT = 4
"""Other producers, or clients, whose old rows a new one deletes: more than one, so that their
number does not grow."""
ORDERS_MAX = 1 << 20
"""More orders than any producer has, gaps included: far above Redis's greatest maxsize."""


def _unpack(layout: Struct, row: bytes, value: bytes) -> Any:
    """Return the numbers of a row; raise Corruption if it is damaged."""
    try:
        return layout.unpack(value)
    except StructError:
        raise Corruption(f"the row {row.hex()} of an idempotent producer is damaged") from None


def duration_ms(txn: Changeset, stream: StreamMeta) -> int:
    return (stream.idmp_duration or txn.catalog.limits.idmp_duration_s) * _MS


def maxsize(txn: Changeset, stream: StreamMeta) -> int:
    return stream.idmp_maxsize or txn.catalog.limits.idmp_maxsize


class Producer:
    """The idempotent IDs of one producer of a stream, for one call."""

    __slots__ = ("_found", "_head", "_iids", "_orders", "_pid", "_row", "_stream", "_txn")

    def __init__(self, txn: Changeset, stream: StreamMeta, pid: bytes) -> None:
        self._txn, self._stream, self._pid = txn, stream, pid
        self._found: bytes | None = None
        """The row of the ID that was looked up."""
        self._head: bytes | None = None
        """The row of the oldest order, if it was read."""
        self._locate()

    def _locate(self) -> None:
        """Set the row of the producer, and the prefixes of its other rows."""
        tree, named = tree_prefix(self._stream.idmp_tree), _LENGTH.pack(len(self._pid)) + self._pid
        self._row = tree + b"P" + self._pid
        self._iids, self._orders = tree + b"I" + named, tree + b"O" + named

    def lookup(self, iid: bytes) -> StreamID | None:
        """Return the entry created with an idempotent ID, if it is still remembered."""
        if not self._stream.idmp_tree:
            return None
        row = self._iids + iid
        self._found = value = self._txn.batch.get(_TREES, row)
        if value is None:
            return None
        eid, stamp_ms, _ = _unpack(_IID, row, value)
        if stamp_ms <= self._txn.now_ms - duration_ms(self._txn, self._stream):
            return None
        return StreamID.unpack(eid)

    def remember(self, iid: bytes, eid: StreamID) -> None:
        """Record the entry created with an idempotent ID, for which ``lookup`` has found none."""
        txn, stream, batch = self._txn, self._stream, self._txn.batch
        if not stream.idmp_tree:
            stream.idmp_tree = txn.allocate()
            self._locate()
        oldest, following = self.expire()
        if self._found is not None:  # it expired, perhaps behind a younger one
            order = _unpack(_IID, self._iids + iid, self._found)[2]
            if order >= oldest:
                batch.delete(_TREES, self._orders + U64.pack(order))
                stream.iids -= 1
        if following == oldest:
            oldest = following = 0
            stream.pids += 1
            self._expire_others()
        self._put(iid, eid, txn.now_ms, following)
        following += 1
        stream.iids += 1
        stream.iids_added += 1
        most = maxsize(txn, stream)
        while following - oldest > most:
            self._drop(oldest)
            oldest += 1
        batch.put(_TREES, self._row, _PRODUCER.pack(oldest, following))
        txn.record_changed(stream)

    def _bounds(self) -> tuple[int, int]:
        value = self._txn.batch.get(_TREES, self._row)
        if value is None:
            return 0, 0
        oldest, following = _unpack(_PRODUCER, self._row, value)
        if not 0 < following - oldest <= ORDERS_MAX or following >= COUNTED_MAX:
            raise Corruption(
                f"the row {self._row.hex()} of an idempotent producer has impossible bounds"
            )
        return oldest, following

    def expire(self) -> tuple[int, int]:
        """Forget the IDs that are older than the stream's duration.

        Return the orders of the oldest ID that is left and of the next new one.
        """
        txn, stream, row = self._txn, self._stream, self._row
        first, following = self._bounds()
        bound = txn.now_ms - duration_ms(txn, stream)
        oldest = first
        while oldest < following:
            order = self._orders + U64.pack(oldest)
            self._head = value = txn.batch.get(_TREES, order)
            if value is not None and _unpack(U64, order, value[: U64.size])[0] > bound:
                break
            self._drop(oldest)
            oldest += 1
        if oldest > first:
            if oldest == following:
                stream.pids -= 1
                txn.batch.delete(_TREES, row)
            else:
                txn.batch.put(_TREES, row, _PRODUCER.pack(oldest, following))
            txn.record_changed(stream)
        return oldest, following

    def _expire_others(self) -> None:
        """Forget old IDs of the producers that follow this one, which is new.

        Producers that ended never come back. A new one looks at SWEPT others, so their number does
        not grow.
        """
        txn, stream = self._txn, self._stream
        prefix = self._row[: -len(self._pid)]
        start = self._row + b"\0"
        after = islice(txn.batch.scan(_TREES, start, successor(prefix)), SWEPT)
        others = [key[len(prefix) :] for key, _ in after]
        if len(others) < SWEPT:  # go on at the first one
            first = islice(txn.batch.scan(_TREES, prefix, start), SWEPT - len(others))
            others += [key[len(prefix) :] for key, _ in first]
        for other in others:
            if other != self._pid:
                Producer(txn, stream, other).expire()

    def _drop(self, order: int) -> None:
        """Forget the oldest ID."""
        batch, row = self._txn.batch, self._orders + U64.pack(order)
        value, self._head = self._head or batch.get(_TREES, row), None
        if value is not None:
            batch.delete(_TREES, row)
            batch.delete(_TREES, self._iids + value[U64.size :])
            self._stream.iids -= 1

    def iids(self) -> Iterator[tuple[bytes, StreamID, int]]:
        """Yield (iid, entry, stamp in ms) of each ID, oldest first."""
        batch = self._txn.batch
        for _, order in batch.scan(_TREES, self._orders, successor(self._orders)):
            iid = order[U64.size :]
            row = self._iids + iid
            value = batch.get(_TREES, row)
            if value is not None:
                eid, stamp_ms, _ = _unpack(_IID, row, value)
                yield iid, StreamID.unpack(eid), stamp_ms

    def restore(self, iids: list[tuple[bytes, StreamID]]) -> None:
        """Record IDs, oldest first, unless it has some: an image may name a producer twice."""
        txn, stream = self._txn, self._stream
        if txn.batch.get(_TREES, self._row) is not None:
            return
        for order, (iid, eid) in enumerate(iids):
            self._put(iid, eid, min(eid.ms, txn.now_ms), order)
        txn.batch.put(_TREES, self._row, _PRODUCER.pack(0, len(iids)))
        stream.pids += 1
        stream.iids += len(iids)

    def _put(self, iid: bytes, eid: StreamID, stamp: int, order: int) -> None:
        """Write the two rows of an idempotent ID."""
        batch = self._txn.batch
        batch.put(_TREES, self._iids + iid, _IID.pack(eid.packed, stamp, order))
        batch.put(_TREES, self._orders + U64.pack(order), U64.pack(stamp) + iid)


def producers(txn: Changeset, stream: StreamMeta) -> list[bytes]:
    """Return the producers that have idempotent IDs."""
    if not stream.idmp_tree:
        return []
    prefix = tree_prefix(stream.idmp_tree) + b"P"
    rows = txn.batch.scan(_TREES, prefix, successor(prefix))
    return [key[len(prefix) :] for key, _ in rows]


def restore(txn: Changeset, stream: StreamMeta, image: IdempotencyImage) -> list[str]:
    """Load the idempotent IDs of an image into a stream that has none; return the notes made.

    The image has no stamps: an ID is taken to be as old as its entry's ID.
    """
    notes: list[str] = []
    stream.idmp_duration = min(image.duration_s, IDMP_DURATION_MAX_S)
    stream.idmp_maxsize = min(image.maxsize, IDMP_MAXSIZE_MAX)
    if (stream.idmp_duration, stream.idmp_maxsize) != (image.duration_s, image.maxsize):
        notes.append(f"idempotent IDs: {image.duration_s} s and {image.maxsize} are out of range")
    stream.iids_added = min(image.iids_added, COUNT_MAX)
    stream.iids_duplicates = min(image.iids_duplicates, COUNT_MAX)
    for pid, iids in image.producers:
        latest: dict[bytes, StreamID] = {}
        for iid, eid in reversed(iids):
            latest.setdefault(iid, eid)
        newest = list(latest.items())[: maxsize(txn, stream)][::-1]
        if len(newest) != len(iids):
            notes.append(f"producer {pid!r} had {len(iids)} idempotent IDs, of which some are kept")
        if newest:
            Producer(txn, stream, pid).restore(newest)
    return notes


def forget_all(txn: Changeset, stream: StreamMeta) -> None:
    """Forget every producer of the stream."""
    if stream.idmp_tree:
        prefix = tree_prefix(stream.idmp_tree)
        txn.batch.delete_range(_TREES, prefix, successor(prefix))
    stream.pids = stream.iids = 0
    txn.record_changed(stream)


# --- the last requests of clients ----------------------------------------------------------------

_REQUEST = Struct(">QQ")
_REQUEST_SIZES = _REQUEST.size, _REQUEST.size + ID_BYTES
CLIENT_BYTES_MAX = 64
"""Room for a UUID and a word before it: the rows are small, and many in one block."""
REQUEST_KEPT_MS = 3_600_000
"""A client gives up a request long before: in seconds."""


class Request(NamedTuple):
    """A request of a client, by its number; the same client and number are the same request."""

    client: bytes
    number: int


class Done(NamedTuple):
    """The last request that a client has made."""

    number: int
    packed: bytes
    """The ID of the entry that it added; empty if it added none."""

    @property
    def eid(self) -> StreamID | None:
        return StreamID.unpack(self.packed) if self.packed else None


def decode_request(row: bytes, value: bytes) -> Done:
    """Return what a row says; raise Corruption for a damaged one."""
    if len(value) in _REQUEST_SIZES and len(row) > len(REQUEST_TAG):
        number = U64.unpack_from(value, U64.size)[0]
        if 0 < number < COUNTED_MAX:
            return Done(number, value[_REQUEST.size :])
    raise Corruption(f"the last request of the client {row[1:41]!r} is damaged")


def last_request(txn: Changeset, client: bytes) -> Done | None:
    """Return the last request of a client; None for a new client."""
    row = request_row(client)
    value = txn.batch.get(_METADATA, row)
    return None if value is None else decode_request(row, value)


def record_request(
    txn: Changeset, request: Request, eid: StreamID | None, last: Done | None
) -> None:
    """Write the row of a request, in place of that of the client's ``last`` one."""
    if last is None:
        _delete_old_requests(txn, request.client)
    head = _REQUEST.pack(txn.now_ms, request.number)
    packed = b"" if eid is None else eid.packed
    txn.batch.put(_METADATA, request_row(request.client), head + packed)


def _delete_old_requests(txn: Changeset, client: bytes) -> None:
    """Delete old rows of the clients that follow a new one, in the order of their names."""
    bound = U64.pack(max(txn.now_ms - REQUEST_KEPT_MS, 0))
    for row, value in list(islice(_other_requests(txn, client), SWEPT)):
        if value < bound:
            txn.batch.delete(_METADATA, row)


def _other_requests(txn: Changeset, client: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows behind a client's, then those before it."""
    own = request_row(client)
    yield from txn.batch.scan(_METADATA, own + b"\0", successor(REQUEST_TAG))
    yield from txn.batch.scan(_METADATA, REQUEST_TAG, own)
