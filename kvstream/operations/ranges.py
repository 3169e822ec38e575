"""XLEN, XRANGE and XREVRANGE."""

from kvstream.ids import StreamID
from kvstream.layout.rows import Rows
from kvstream.meta.txn import Txn
from kvstream.operations import entries


def length(txn: Txn, name: bytes) -> int:
    """Return the number of entries, 0 for a missing key."""
    stream = txn.stream(name)
    return 0 if stream is None else stream.length


def scan(
    txn: Txn,
    name: bytes,
    start: StreamID,
    end: StreamID,
    count: int | None = None,
    reverse: bool = False,
) -> Rows | None:
    """Return the entries of ``start <= id <= end``, last first when ``reverse``.

    None, Redis's null reply, where ``count`` is not positive and the key exists.
    """
    stream = txn.stream(name)
    if stream is None:
        return Rows([], 0)
    if count is not None and count <= 0:
        return None
    read = entries.between_reversed if reverse else entries.between_for_reply
    return read(txn, stream, start, end, count)
