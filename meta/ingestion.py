"""Keep a record of tables that are being ingested before the streams count their entries.

::

    intake row := "B" -> (length(u32) prefix last(id))*

Ingested tables are visible and durable at once; the commit that counts their entries comes later.
The row is durable before the first table is. While it exists, no row below ``prefix`` and above
``last`` counts; opening the store deletes such rows. The records of the streams are written with
it, so that none is behind its rows.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kvstream.errors import Corruption
from kvstream.layout.keys import ID_BYTES, INTAKE_KEY, successor
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.types.ids import MIN_ID, StreamID

_LENGTH = Struct(">I")
_MESSAGES, _METADATA = Family.MESSAGES, Family.METADATA


class Intake(NamedTuple):
    """One stream that gets entries."""

    prefix: bytes
    last: StreamID
    """Its last entry before the load; MIN_ID for a new stream."""


def put(txn: Txn, intakes: list[Intake]) -> None:
    """Write the row."""
    parts = [_LENGTH.pack(len(each.prefix)) + each.prefix + each.last.packed for each in intakes]
    txn.batch.put(_METADATA, INTAKE_KEY, b"".join(parts))


def remove(txn: Txn) -> None:
    """Delete the row: the entries count, or have been deleted."""
    txn.batch.delete(_METADATA, INTAKE_KEY)


def pending(txn: Txn) -> list[Intake]:
    """Return what was being ingested; raise Corruption if the row is damaged."""
    value = txn.batch.get(_METADATA, INTAKE_KEY)
    return [] if value is None else list(decode(value))


def decode(value: bytes) -> Iterator[Intake]:
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
        yield Intake(prefix, StreamID.unpack(last))


def undo(txn: Txn) -> None:
    """Delete the entries that do not count, and the row."""
    found = pending(txn)
    if not found:
        return
    txn.frees = True
    for prefix, last in found:
        lower = prefix if last == MIN_ID else prefix + last.packed + b"\0"
        txn.batch.delete_range(_MESSAGES, lower, successor(prefix))
    remove(txn)
