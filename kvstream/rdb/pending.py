"""The pending entries of a group: its own list with times and counts, and its consumers' of IDs.

::

    pending := LEN(n) (RAW-ID MS-TIME(delivered) LEN(deliveries))*n      ascending
    ids     := LEN(n) RAW-ID*n

The lists of consumers say whose an entry is; one in none of them was given back by XNACK, and
stands in the list of those.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from kvstream.errors import BadPayload
from kvstream.ids import StreamID
from kvstream.images import ID_BYTES, GroupImage, PackedID, PendingTable
from kvstream.rdb.compiled import twins
from kvstream.rdb.primitives import Reader, encode_length, encode_time

_ENTRY_BYTES_MIN = ID_BYTES + 8 + 1
_PIECE = 1 << 12
"""Entries that are read or written at once: some hundred kilobytes."""

Columns = tuple[bytes, "array[int]", "array[int]"]
"""IDs, times and counts of deliveries."""


# --- reading --------------------------------------------------------------------------------------


def read(reader: Reader, table: PendingTable) -> None:
    """Read the list of a group into an empty table, where it belongs to nobody yet."""
    left = reader.length()
    while left:
        columns = _take_some(reader, min(left, _PIECE))
        try:
            table.extend_columns(*columns)
        except ValueError as error:
            raise reader.bad(str(error)) from None
        left -= len(columns[1])


def _take_some(reader: Reader, most: int) -> Columns:
    """Take at least one entry, and at most so many."""
    if twins is not None:
        found = twins.decode_pending(*reader.window(most * _ENTRY_BYTES_MIN), most)
        if found is not None:
            ids, times, deliveries, size = found
            reader.skip(size)
            return ids, array("q", times), array("Q", deliveries)
    return take_in_python(reader, most)


def take_in_python(reader: Reader, count: int) -> Columns:
    """Take so many entries, in Python."""
    ids, times, deliveries = bytearray(), array("q"), array("Q")
    for _ in range(count):
        ids += reader.raw_id()
        times.append(reader.time())
        deliveries.append(reader.length())
    return bytes(ids), times, deliveries


def give(reader: Reader, table: PendingTable, owner: bytes) -> None:
    """Read the list of a consumer, and give it what it has."""
    at = reader.offset
    ids = reader.take(ID_BYTES * reader.length(len(table)))
    find = positions_in_python if twins is None else twins.find_ids
    found = find(table.packed_ids, ids)
    if found is None:
        raise reader.bad(f"consumer {owner!r} has what is not pending in its group", at)
    if not table.give_all(array("q", found), owner):
        raise reader.bad(f"consumer {owner!r} has what another one has", at)


def positions_in_python(ids: bytes | bytearray, wanted: bytes) -> bytes | None:
    """Return the places of ascending IDs among ascending IDs, None where one is not there."""
    found, place = array("q"), -1
    places = range(len(ids) // ID_BYTES)
    for at in range(0, len(wanted), ID_BYTES):
        eid = wanted[at : at + ID_BYTES]
        place = bisect_left(places, eid, place + 1, key=lambda n: bytes(ids[16 * n : 16 * (n + 1)]))
        if ids[ID_BYTES * place : ID_BYTES * (place + 1)] != eid:
            return None
        found.append(place)
    return found.tobytes()


def read_ids(reader: Reader, most: int) -> list[PackedID]:
    """Read a list of at most so many IDs."""
    return [reader.raw_id() for _ in range(reader.length(most))]


def check_owners(group: GroupImage) -> None:
    """Refuse entries that belong to nobody, and are not among those given back, or otherwise."""
    ownerless = group.pending.ownerless()
    if ownerless != sorted(group.nacked):
        odd = set(ownerless).symmetric_difference(group.nacked) or set(group.nacked)
        eid = StreamID.unpack(min(odd))
        raise BadPayload(f"entry {eid} is pending for nobody, or was given back oddly")


def skip(reader: Reader) -> None:
    """Pass over the list of a group."""
    left = reader.length()
    while left:
        left -= len(_take_some(reader, min(left, _PIECE))[1])


def skip_ids(reader: Reader) -> None:
    """Pass over a list of IDs."""
    reader.skip(ID_BYTES * reader.length())


# --- writing --------------------------------------------------------------------------------------


def write(table: PendingTable) -> Iterator[bytes]:
    """Yield the list of a group."""
    yield encode_length(len(table))
    encode = encode_in_python if twins is None else twins.encode_pending
    for start in range(0, len(table), _PIECE):
        yield encode(*table.columns(start, start + _PIECE))


def encode_in_python(ids: bytes, times: "array[int]", deliveries: "array[int]") -> bytes:
    """Return entries without their number, made in Python."""
    parts = []
    for at, (time_ms, count) in enumerate(zip(times, deliveries, strict=True)):
        parts.append(ids[ID_BYTES * at : ID_BYTES * (at + 1)])
        parts.append(encode_time(time_ms))
        parts.append(encode_length(count))
    return b"".join(parts)


def write_ids(ids: bytes) -> bytes:
    """Return a list of IDs, given as one string of bytes."""
    return encode_length(len(ids) // ID_BYTES) + ids
