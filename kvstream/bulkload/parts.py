"""Parts of a bulk load: entries that other processes have made into tables, for one commit.

Whoever writes a part has no store open, only a ticket that the store's owner has given out: it says
under which prefix the rows of each stream are to stand. Entries of a stream that is there, and that
the ticket does not name, are written once more by the owner. A part is a table, and beside it a
file of pieces, msgpack::

    pieces := (piece)*
    piece  := [key, record, (first(id), node)*]

A piece is one stream's entries in the table, with the nodes that they fall into: ``record`` is that
of a stream that has no others, with its last node open (meta/records.py), ``node`` a node's row.

Tickets and parts as bytes: on their way between a server and those who make parts for it.

::

    ticket := [db, stored_db, shared, base_ms, node_max_entries, node_max_bytes, prefixes, fresh,
               load]
    part   := name table_digest pieces_digest rows size ("GIVEN" | "ALLOTTED")

The ticket is a msgpack array, a part six words of a request. A part's files are ``name.sst`` and
``name.pieces``; which folder they are in the server alone knows.

Parts of a bulk load that strangers have made: whether they are what they are said to be.

A table is taken in by its rows, and rows under another stream's prefix would be that stream's. So
each is held against its pieces, whose nodes say how many rows of which IDs there are, and against
the ticket, which says where they stand. Bytes and names of nodes are believed: they tell where
``XTRIM ~`` may cut the stream itself.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import lt
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from uuid import uuid4

import msgpack
import xxhash

from kvstream.errors import Corruption, InvalidArgument, WrongType
from kvstream.layout.keys import ID_BYTES, U64, message_prefix, qualified, tree_prefix
from kvstream.meta.bulk_fill import append_page
from kvstream.meta.catalog import Catalog
from kvstream.meta.nodes import open_node
from kvstream.meta.records import Node, StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family, Pages, Row, Seeks
from kvstream.storage.sst import TableWriter, session_of
from kvstream.storage.sst_proof import Streams, is_proved
from kvstream.types.ids import StreamID
from kvstream.types.images import PackedID
from kvstream.types.options import KEY_BYTES_MAX, MEGABYTE, StoreOptions

PART_BYTES = 64 * MEGABYTE
"""Bytes of entries that are gathered, and then written as one part."""
_PAGE_ROWS = 4096
_ANY_TREE = 1
"""The tree of a piece's nodes until it is joined to a stream."""
_READ_BYTES = 1 * MEGABYTE


@dataclass(frozen=True)
class BulkTicket:
    """What makers of parts must know of the store; to be pickled."""

    db: int
    stored_db: int
    """The number that rows of the database bear."""
    shared: int
    """A number for the prefixes of keys that are not named, and new."""
    base_ms: int
    """Unix milliseconds from which IDs may be allotted."""
    node_max_entries: int
    node_max_bytes: int
    prefixes: dict[bytes, bytes] = field(default_factory=dict)
    """Of the keys that were named."""
    fresh: frozenset[bytes] = frozenset()
    """Those of them for which there was no stream."""
    load: str = ""
    """What no other load is called, where the owner must tell its tables from all others."""

    def prefix_of(self, key: bytes) -> bytes:
        """Return what opens the rows of a key's entries."""
        return self.prefixes.get(key) or message_prefix(qualified(self.stored_db, key), self.shared)

    def session_of(self, name: str) -> bytes:
        """Return the name of a part's table for RocksDB, which no other has; none: any will do."""
        return session_of(f"{self.load}/{name}".encode()) if self.load else b""


class Part(NamedTuple):
    """A part that is complete: what the commit takes, and small."""

    table: str
    pieces: str
    table_digest: str
    pieces_digest: str
    rows: int
    size: int
    """Bytes of the entries before compression."""
    given: bool
    """The entries came with their IDs; otherwise others may be allotted."""


@dataclass(slots=True)
class Piece:
    """One stream's entries of one table."""

    key: bytes
    stream: StreamMeta
    nodes: list[tuple[PackedID, bytes]]
    """First ID and row of each node but the last."""

    @property
    def first(self) -> StreamID:
        return self.stream.first

    @property
    def last(self) -> StreamID:
        return self.stream.last


class PieceMaker:
    """Makes pieces: rows go to a table, a page at a time, and nodes are gathered."""

    def __init__(self, node_max_entries: int, node_max_bytes: int) -> None:
        options = StoreOptions(
            stream_node_max_entries=node_max_entries, stream_node_max_bytes=node_max_bytes
        )
        self._txn = Txn(_NoRows(), Catalog(options), 0)

    def make(
        self,
        key: bytes,
        prefix: bytes,
        pages: Iterable[tuple[list[PackedID], list[bytes]]],
        table: TableWriter,
    ) -> Piece:
        """Write entries, ascending by ID, under a prefix; return the piece that they make."""
        stream = StreamMeta(qualified(0, key), 1)
        stream.prefix, stream.nodes_tree = prefix, _ANY_TREE
        batch = self._txn.batch
        for ids, values in pages:
            append_page(self._txn, stream, ids, values, table)
        cut = len(tree_prefix(stream.nodes_tree))
        nodes = [(row[cut:], value or b"") for row, value in batch.puts[Family.TREES].items()]
        batch.clear()
        return Piece(key, stream, nodes)


class _NoRows:
    """Rows of no store."""

    def get(self, family: int, key: bytes) -> bytes | None:
        return None

    def get_many(self, family: int, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def scan(self, family: int, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Row]:
        return iter(())

    def page(
        self, family: int, lower: bytes, upper: bytes, limit: int, reverse: bool = False
    ) -> list[Row]:
        return []

    def snapshot(
        self, family: int, lower: bytes, upper: bytes, reverse: bool = False
    ) -> Iterator[list[Row]]:
        return iter(())

    def pages(self, family: int, lower: bytes, upper: bytes) -> Pages:
        raise NotImplementedError

    def seeks(self, family: int) -> Seeks:
        raise NotImplementedError


@dataclass(slots=True)
class _Gathered:
    """Entries of one key that wait to be written."""

    ids: list[PackedID] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


class PartWriter:
    """Writes the entries of one task as parts, into a folder that the store's owner can read."""

    def __init__(
        self, folder: str | Path, ticket: BulkTicket, *, partition: int = 0, uuid: str = ""
    ) -> None:
        """``uuid`` tells a task's attempts apart; ``partition`` orders what gets IDs allotted."""
        self._folder = Path(folder)
        self._ticket = ticket
        self._partition = partition
        self._name = f"{partition}-{uuid or uuid4().hex}"
        self._maker = PieceMaker(ticket.node_max_entries, ticket.node_max_bytes)
        self._gathered: dict[tuple[bytes, bool], _Gathered] = {}
        self._size = 0
        self._allotted: dict[bytes, int] = {}
        self._parts: list[Part] = []
        self._numbers = 0

    def extend(self, key: bytes, ids: list[PackedID] | None, values: list[bytes]) -> None:
        """Add entries of a key, with their IDs or, None, to be given some in this order.

        IDs may come in any order, but each once. ``values`` are as rows have them.
        """
        if ids is not None and len(ids) != len(values):
            raise InvalidArgument("there must be an ID for each value")
        into = self._gathered.setdefault((key, ids is not None), _Gathered())
        into.ids += self._allot(key, len(values)) if ids is None else ids
        into.values += values
        self._size += sum(map(len, values))
        if self._size >= PART_BYTES:
            self._write()

    def _allot(self, key: bytes, count: int) -> list[PackedID]:
        start = self._allotted.get(key, 0)
        self._allotted[key] = start + count
        ms = U64.pack(self._ticket.base_ms + self._partition)
        return [ms + seq for seq in map(U64.pack, range(start, start + count))]

    def close(self) -> list[Part]:
        """Write what is left, and return the parts."""
        self._write()
        return self._parts

    def abort(self) -> None:
        """Remove what was written."""
        self._gathered.clear()
        for part in self._parts:
            for path in (part.table, part.pieces):
                Path(path).unlink(missing_ok=True)
        self._parts = []

    def _write(self) -> None:
        """Write what was gathered, keys that are treated differently apart."""
        gathered, self._gathered, self._size = self._gathered, {}, 0
        kinds: dict[tuple[bool, bool], dict[bytes, _Gathered]] = {}
        for (key, given), each in gathered.items():
            kinds.setdefault((key in self._ticket.prefixes, given), {})[key] = each
        for (_, given), chosen in kinds.items():
            self._write_part(given, chosen)

    def _write_part(self, given: bool, chosen: dict[bytes, _Gathered]) -> None:
        base = self._folder / f"{self._name}-{self._numbers}"
        self._numbers += 1
        table = TableWriter(base.with_suffix(".sst"), self._ticket.session_of(base.name))
        pieces = []
        try:
            for key in sorted(chosen, key=self._ticket.prefix_of):
                pages = _pages(*_sorted(key, chosen[key]))
                prefix = self._ticket.prefix_of(key)
                pieces.append(self._maker.make(key, prefix, pages, table))
            table.finish()
        except BaseException:
            table.abandon()
            raise
        described = base.with_suffix(".pieces")
        described.write_bytes(packed(pieces))
        self._parts.append(
            Part(
                str(table.path),
                str(described),
                digest_of(table.path),
                digest_of(described),
                table.rows,
                table.size,
                given,
            )
        )


def _sorted(key: bytes, each: _Gathered) -> tuple[list[PackedID], list[bytes]]:
    ids, values = each.ids, each.values
    if all(map(lt, ids, ids[1:])):
        return ids, values
    order = sorted(range(len(ids)), key=ids.__getitem__)
    ids, values = [ids[at] for at in order], [values[at] for at in order]
    for one, other in pairwise(ids):
        if one == other:
            raise InvalidArgument(f"stream {key!r} was given entry {StreamID.unpack(one)} twice")
    return ids, values


def _pages(
    ids: list[PackedID], values: list[bytes]
) -> Iterator[tuple[list[PackedID], list[bytes]]]:
    for at in range(0, len(ids), _PAGE_ROWS):
        yield ids[at : at + _PAGE_ROWS], values[at : at + _PAGE_ROWS]


# --- bytes --------------------------------------------------------------------------------------


def packed(pieces: list[Piece]) -> bytes:
    """Return the bytes of the file beside a table."""
    rows = [[each.key, each.stream.encode(), each.nodes] for each in pieces]
    done: bytes = msgpack.packb(rows, use_bin_type=False)
    return done


def pieces_of(part: Part) -> list[Piece]:
    """Return the pieces of a part; Corruption where its files are not as they were written."""
    for path, digest in ((part.table, part.table_digest), (part.pieces, part.pieces_digest)):
        place = Path(path)
        if place.is_symlink() or not place.is_file() or digest_of(place) != digest:
            raise Corruption(f"{path} is not as it was written")
    try:
        rows = msgpack.unpackb(Path(part.pieces).read_bytes(), raw=True, use_list=False)
        return [_piece(*row) for row in rows]
    except (ValueError, TypeError, WrongType) as error:
        raise Corruption(f"{Path(part.pieces).name} has no pieces: {error!r}") from error


def _piece(key: bytes, record: bytes, nodes: tuple[tuple[bytes, bytes], ...]) -> Piece:
    plain = {type(key), type(record), *(type(each) for node in nodes for each in node)}
    if plain != {bytes} or len(key) > KEY_BYTES_MAX or {*map(len, nodes)} - {2}:
        raise ValueError("a piece is of other things")
    return Piece(key, StreamMeta.decode(qualified(0, key), record), list(nodes))


def digest_of(path: Path) -> str:
    """Return a checksum of a file."""
    summed = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            summed.update(chunk)
    return summed.hexdigest()


PART_WORDS = 6
_NAME = re.compile(rb"[0-9A-Za-z_-]{1,128}")
_DIGEST = re.compile(rb"[0-9a-f]{32}")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_KINDS = {b"GIVEN": True, b"ALLOTTED": False}
_ENDINGS = (b".sst", b".pieces")


def pack_ticket(ticket: BulkTicket) -> bytes:
    """Return a ticket as bytes."""
    packed: bytes = msgpack.packb(
        (
            *(ticket.db, ticket.stored_db, ticket.shared, ticket.base_ms),
            *(ticket.node_max_entries, ticket.node_max_bytes),
            *(ticket.prefixes, sorted(ticket.fresh), ticket.load.encode()),
        )
    )
    return packed


def unpack_ticket(packed: bytes) -> BulkTicket:
    """Return the ticket of some bytes; Corruption where they are none."""
    try:
        *numbers, prefixes, fresh, load = msgpack.unpackb(
            packed, use_list=False, strict_map_key=False
        )
        db, stored_db, shared, base_ms, entries, size = map(int, numbers)
        return BulkTicket(
            db,
            stored_db,
            shared,
            base_ms,
            entries,
            size,
            dict(prefixes),
            frozenset(fresh),
            load.decode(),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise Corruption(f"the ticket is damaged: {error!r}") from error


def name_of(part: Part) -> str:
    """Return what the names of a part's files begin with."""
    return Path(part.table).stem


def words_of(part: Part) -> list[bytes]:
    """Return a part as words of a request."""
    kind = b"GIVEN" if part.given else b"ALLOTTED"
    texts = (name_of(part), part.table_digest, part.pieces_digest, str(part.rows), str(part.size))
    return [*map(str.encode, texts), kind]


def part_of(words: Sequence[bytes], folder: Path) -> Part:
    """Return the part that words tell of, whose files lie in a folder; else InvalidArgument."""
    name, table, pieces, rows, size, kind = words
    given = _KINDS.get(kind.upper())
    told = _NAME.fullmatch(name), _DIGEST.fullmatch(table), _DIGEST.fullmatch(pieces)
    counts = _NUMBER.fullmatch(rows), _NUMBER.fullmatch(size)
    if given is None or not all(told) or not all(counts):
        raise InvalidArgument("a part is: name, digest, digest, rows, bytes, GIVEN or ALLOTTED")
    base = folder / name.decode()
    files = str(base.with_suffix(".sst")), str(base.with_suffix(".pieces"))
    return Part(*files, table.decode(), pieces.decode(), int(rows), int(size), given)


def file_of(name: bytes, folder: Path) -> Path:
    """Return the place of a part's file: in the folder itself, whatever the name says."""
    for ending in _ENDINGS:
        if name.endswith(ending) and _NAME.fullmatch(name[: -len(ending)]):
            return folder / name.decode()
    raise InvalidArgument("a file's name is of letters, digits, - and _, and ends in .sst, .pieces")


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
