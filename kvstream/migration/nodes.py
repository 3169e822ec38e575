"""Pages of entries as nodes, where a source does not show the nodes that it keeps.

They end about where those of a Redis with its usual settings would: their sizes are estimated, as
whoever keeps nodes measures them. It knows no source.
"""

from collections.abc import Iterable, Iterator

from kvstream.ids import PACKED
from kvstream.images import NodeImage, PackedID
from kvstream.layout.values import encode_flat
from kvstream.options import STREAM_NODE_MAX_BYTES, STREAM_NODE_MAX_ENTRIES

_ENTRY_OVERHEAD = 9
"""Bytes of an entry's flags, deltas and counts in a listpack, in most streams."""

RawEntry = tuple[bytes, list[bytes]]
"""An entry as a server replies it: its ID as text, and field, value, field, value ..."""


def packed_id(text: bytes) -> PackedID:
    """Return the 16 bytes of an ID in its text form."""
    ms, _, seq = text.partition(b"-")
    return PACKED(int(ms), int(seq))


def nodes_of(entries: Iterable[RawEntry]) -> Iterator[NodeImage]:
    """Yield entries as nodes; ``size`` is 0, since the node that the source has is not known."""
    ids: list[PackedID] = []
    values: list[bytes] = []
    first_names: list[bytes] = []
    size = shared = 0
    for text, flat in entries:
        value = encode_flat(flat)[0]
        names = flat[::2]
        # A field takes a byte or two beside its bytes, in msgpack as in a listpack.
        length = len(value) + _ENTRY_OVERHEAD - (shared if names == first_names else 0)
        if ids and (size + length > STREAM_NODE_MAX_BYTES or len(ids) == STREAM_NODE_MAX_ENTRIES):
            yield _image(first_names, ids, values)
            ids, values = [], []
        if not ids:
            first_names, shared = names, sum(map(len, names)) + len(names)
            size, length = 0, len(value) + _ENTRY_OVERHEAD
        size += length
        ids.append(packed_id(text))
        values.append(value)
    if ids:
        yield _image(first_names, ids, values)


def _image(names: list[bytes], ids: list[PackedID], values: list[bytes]) -> NodeImage:
    return NodeImage(ids[0], tuple(names), ids, values, len(ids), 0)
