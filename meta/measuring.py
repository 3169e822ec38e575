"""The bytes of a stream's open node, as Redis's listpack would take them.

Appending keeps an upper bound from the length of each value; ``measure`` makes it exact, from the
entries noted since, or from their rows where the store was opened anew.
"""

from itertools import chain

from kvstream.ids import StreamID
from kvstream.layout.compiled import twins
from kvstream.layout.listpack import (
    SMALL_INTEGER_BYTES,
    SMALL_INTEGER_MAX,
    elements_size,
    entry_size,
    foreign_entry_size,
    integer_size,
)
from kvstream.layout.values import Names, decode_checked, decode_page
from kvstream.meta.records import StreamMeta
from kvstream.records import Fields, RepeatedFields
from kvstream.storage.batch import Batch, Family

_NEAR_VALUE = 128
"""Values below this take at most one byte more in a listpack than in msgpack."""
_FEW = 16
"""Below this many fields msgpack's map takes one byte to open."""
_HEAD_NEAR = 10
"""Most bytes of an entry's flags, near deltas and counter, when it has the node's few fields."""
_WHOLE_NODE = 1 << 30
"""Rows of a page that takes what a node holds, however many that is."""


def set_names(stream: StreamMeta, plain: tuple[bytes, ...], given: Names) -> None:
    """Note the field names of the open node, and how tightly its entries can be bounded.

    An entry with the node's own names does not repeat them, and each of its values, while none is
    of 128 bytes, takes at most one byte more as a listpack element than in msgpack. So its length,
    less the names and the two bytes that open it, plus one for each value and its own head, is an
    upper bound of its bytes; and a close one, so that entries are seldom measured.
    """
    if plain != stream.names:
        stream.names = plain
        stream.cool()
    stream.names_seen, stream.empty_bytes = given, 0
    count = len(plain)
    overhead = sum(map(len, plain)) + count
    stream.near = _NEAR_VALUE + overhead if count < _FEW else 0
    stream.width = _HEAD_NEAR + count - overhead - 2


def measure(batch: Batch, stream: StreamMeta) -> None:
    """Count the open node's unmeasured entries into its bytes, exactly."""
    entries = stream.unmeasured
    if entries is None:
        entries = _read_back(batch, stream)
    if entries:
        stream.open_bytes += _entries_size(stream, entries)
    stream.measured = stream.open_last
    stream.unmeasured, stream.slack = [], 0


def data_size(value: bytes) -> int:
    """Return the bytes of an entry's fields and values themselves."""
    if twins is not None:
        size = twins.data_size(value)
        if size is not None:
            return size
    return sum(map(len, _flat(decode_page([value])[0])))


def _read_back(batch: Batch, stream: StreamMeta) -> list[tuple[StreamID, bytes]]:
    lower = max(stream.open_first, stream.measured.next())
    upper = stream.prefix + stream.open_last.packed + b"\x00"
    rows = batch.page(Family.MESSAGES, stream.prefix + lower.packed, upper, _WHOLE_NODE)
    decode_checked([value for _, value in rows])
    return [(StreamID.unpack(key[-16:]), value) for key, value in rows]


def _flat(fields: Fields) -> list[bytes]:
    if type(fields) is RepeatedFields:
        return list(fields.flat)
    return [part for pair in fields.items() for part in pair]


def _entries_size(stream: StreamMeta, entries: list[tuple[StreamID, bytes]]) -> int:
    """Return the listpack bytes of ``entries`` in the open node."""
    if twins is not None:
        size = twins.entries_size(entries, stream.names, *stream.open_first)
        if size is not None:
            return size
    return size_in_python(entries, stream.names, stream.open_first)


def size_in_python(
    entries: list[tuple[StreamID, bytes]], names: tuple[bytes, ...], first: StreamID
) -> int:
    """Return the listpack bytes of ``entries`` in a node of such names and first ID."""
    count = len(names)
    fields = decode_page([value for _, value in entries])
    heads = _deltas_size(first, entries)
    if list(map(tuple, fields)).count(names) == len(fields) and list(map(type, fields)).count(
        dict
    ) == len(fields):
        own = list(chain.from_iterable(map(dict.values, fields)))
        return heads + len(fields) * entry_size(count) + elements_size(own)[0]
    return heads + sum(_one_size(names, _flat(each)) for each in fields)


def _deltas_size(first: StreamID, entries: list[tuple[StreamID, bytes]]) -> int:
    master_ms, master_seq = first
    size = 0
    for (ms, seq), _ in entries:
        ms -= master_ms
        seq -= master_seq
        size += SMALL_INTEGER_BYTES if ms <= SMALL_INTEGER_MAX else integer_size(ms)
        size += SMALL_INTEGER_BYTES if 0 <= seq <= SMALL_INTEGER_MAX else integer_size(seq)
    return size


def _one_size(names: tuple[bytes, ...], flat: list[bytes]) -> int:
    count = len(flat) // 2
    if tuple(flat[::2]) == names:
        return entry_size(count) + elements_size(flat[1::2])[0]
    return foreign_entry_size(count) + elements_size(flat)[0]
