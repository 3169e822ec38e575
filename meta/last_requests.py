"""Keep the last request of each client that repeats a request whose reply was lost.

::

    request row := "O" client -> stamp_ms(u64) number(u64) [id]

The row is written in the commit of the request itself, so a repeated one finds either the result or
nothing done. A client numbers its requests upwards and has one under way at a time: then one row
tells everything, whatever it adds to which stream. (RIFL keeps such a record for each request under
way: Lee et al., "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015.) Without
``id`` the request added nothing. The rows belong to no key: DEL, FLUSHALL and COPY leave them.

Clients come and go with their processes. So a new client deletes rows that are older than KEPT_MS,
of up to SWEPT others.
"""

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import COUNTED_MAX, ID_BYTES, REQUEST_TAG, U64, request_row, successor
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID

_METADATA = Family.METADATA
_HEAD = Struct(">QQ")
_SIZES = _HEAD.size, _HEAD.size + ID_BYTES
CLIENT_BYTES_MAX = 64
"""Room for a UUID and a word before it: the rows are small, and many in one block."""
KEPT_MS = 3_600_000
"""A client gives up a request long before: in seconds."""
SWEPT = 4
"""Other clients whose rows a new one looks at: more than one, so that they become no more."""


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
    if len(value) in _SIZES and len(row) > len(REQUEST_TAG):
        number = U64.unpack_from(value, U64.size)[0]
        if 0 < number < COUNTED_MAX:
            return Done(number, value[_HEAD.size :])
    raise Corruption(f"the last request of the client {row[1:41]!r} is damaged")


def last_of(txn: Txn, client: bytes) -> Done | None:
    """Return the last request of a client; None for a new client."""
    row = request_row(client)
    value = txn.batch.get(_METADATA, row)
    return None if value is None else decode_request(row, value)


def record(txn: Txn, request: Request, eid: StreamID | None, last: Done | None) -> None:
    """Write the row of a request, in place of that of the client's ``last`` one."""
    if last is None:
        _sweep(txn, request.client)
    head = _HEAD.pack(txn.now_ms, request.number)
    packed = b"" if eid is None else eid.packed
    txn.batch.put(_METADATA, request_row(request.client), head + packed)


def _sweep(txn: Txn, client: bytes) -> None:
    """Delete old rows of the clients that follow a new one, in the order of their names."""
    bound = U64.pack(max(txn.now_ms - KEPT_MS, 0))
    for row, value in list(islice(_others(txn, client), SWEPT)):
        if value < bound:
            txn.batch.delete(_METADATA, row)


def _others(txn: Txn, client: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows behind a client's, then those before it."""
    own = request_row(client)
    yield from txn.batch.scan(_METADATA, own + b"\0", successor(REQUEST_TAG))
    yield from txn.batch.scan(_METADATA, REQUEST_TAG, own)
