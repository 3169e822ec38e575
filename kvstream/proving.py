"""Parts of a bulk load that strangers have made: whether they are what they are said to be.

A table is taken in by its rows, and rows under another stream's prefix would be that stream's. So
each is held against its pieces, whose nodes say how many rows of which IDs there are, and against
the ticket, which says where they stand. Bytes and names of nodes are believed: they tell where
``XTRIM ~`` may cut the stream itself.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from kvstream.errors import Corruption
from kvstream.ids import StreamID
from kvstream.layout.keys import ID_BYTES
from kvstream.meta.node import Node
from kvstream.meta.nodes import open_node
from kvstream.parts import BulkTicket, Part, Piece
from kvstream.storage.table_proof import Streams, is_proved

_LIVE = Struct("<Q")


def stands(part: Part, pieces: list[Piece], ticket: BulkTicket) -> bool:
    """Tell whether a part may be taken in as it is; False: its rows must be written once more.

    Corruption where it is not what its pieces say, or these contradict themselves.
    """
    path = Path(part.table)
    if len({piece.key for piece in pieces}) < len(pieces):
        raise Corruption(f"{path.name}: a stream has two pieces")
    streams: Streams = sorted((ticket.prefix_of(piece.key), _nodes(piece)) for piece in pieces)
    session = ticket.session_of(path.stem)
    return bool(streams and session) and is_proved(path, streams, session)


def _nodes(piece: Piece) -> bytes:
    """Return first ID, last ID and rows of each node of a piece."""
    stream, nodes = piece.stream, list(_decoded(piece))
    told = stream.nodes, stream.length, stream.first, stream.head, stream.last, stream.measured
    first, last = nodes[0].first, nodes[-1].last
    found = len(nodes), sum(node.live for node in nodes), first, first, last, last
    if told != found or any(node.appended != node.live or node.live < 1 for node in nodes):
        raise _contradicted(piece)
    return b"".join(node.first.packed + node.last.packed + _LIVE.pack(node.live) for node in nodes)


def _decoded(piece: Piece) -> Iterator[Node]:
    for first, row in piece.nodes:
        if len(first) != ID_BYTES:
            raise _contradicted(piece)
        yield Node.decode(StreamID.unpack(first), row)
    yield open_node(piece.stream)


def _contradicted(piece: Piece) -> Corruption:
    return Corruption(f"the pieces of stream {piece.key!r} contradict themselves")
