"""``check``: recount everything, and tell what does not hold."""

from kvstream.layout.keys import STREAM_TAG, successor
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.records import Fault
from kvstream.storage.batch import Family


def check(txn: Txn, repair: bool = False) -> list[Fault]:
    """Walk every column family in one transaction; with ``repair`` set wrong counters right."""
    faults: list[Fault] = []
    for row, _ in list(txn.batch.scan(Family.METADATA, STREAM_TAG, successor(STREAM_TAG))):
        stream = txn.stream(row[1:])
        if stream is not None:
            faults += _check_stream(txn, stream, repair)
    return faults


def _check_stream(txn: Txn, stream: StreamMeta, repair: bool) -> list[Fault]:
    lower, upper = stream.prefix + stream.first.packed, successor(stream.prefix)
    rows = sum(1 for _ in txn.batch.scan(Family.MESSAGES, lower, upper)) if stream.length else 0
    if rows == stream.length:
        return []
    fault = Fault(repr(stream.name[2:]), f"length {stream.length}, but {rows} entries", repair)
    if repair:
        stream.length = rows
        txn.changed(stream)
    return [fault]
