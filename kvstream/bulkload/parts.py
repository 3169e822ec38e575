"""Parts of a bulk load: entries that other processes have written as SST files, for one commit.

A process that writes a part has no store open, only a ticket of the store's owner, which says under
which prefix the rows of each stream stand. A part is an SST file and beside it a file of pieces,
msgpack::

    pieces := (piece)*
    piece  := [key, record, (first(id), node)*]

A piece is the entries of one stream in the SST file, with their nodes: ``record`` is that of a
stream that has no other entries, with its last node open (meta/records.py), ``node`` a node's row.

A client of a server sends files of rows instead, from which the server writes the parts: so it
ingests no file that it did not write itself::

    rows   := ([key, ids, values])*     msgpack; ids of 16 bytes, joined; at most 4096 entries each

Streams stand in the order of their prefixes, and the IDs of each ascend.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from hashlib import file_digest
from itertools import groupby, pairwise
from operator import itemgetter, lt
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import msgpack
import xxhash

from kvstream.errors import Corruption, InvalidArgument, quote
from kvstream.layout.keys import ID_BYTES, U64, message_prefix, qualified, tree_prefix
from kvstream.meta.bulk_fill import append_page
from kvstream.meta.catalog import Catalog
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.storage import batch
from kvstream.storage.batch import Family, Row, Seeks
from kvstream.storage.sst import TableWriter
from kvstream.types.ids import StreamID
from kvstream.types.images import PackedID
from kvstream.types.options import ENTRY_BYTES_MAX, KEY_BYTES_MAX, MEGABYTE, StoreOptions

Pages: TypeAlias = Iterator[tuple[list[PackedID], list[bytes]]]
"""IDs and values of entries, in order."""

Guard = Callable[[list[bytes]], None]
"""Raises if the keys must not be written."""

PART_BYTES = 64 * MEGABYTE
"""Bytes of entries that are gathered and then written as one part."""
_PAGE_ROWS = 4096
_PAGE_BYTES = 4 * MEGABYTE
"""A page of a file of rows has no more, unless a single entry has."""
_PAGE_BYTES_MAX = ENTRY_BYTES_MAX + 2 * MEGABYTE
_ANY_TREE = 1
"""The tree of a piece's nodes until the piece is joined to a stream."""


@dataclass(frozen=True)
class BulkTicket:
    """What a writer of parts must know of the store; can be pickled."""

    db: int
    """The number of the database, as users see it."""
    stored_db: int
    """The number of the database in rows."""
    shared: int
    """The generation in the prefixes of new keys that were not named."""
    base_ms: int
    """Unix milliseconds from which IDs may be allotted."""
    node_max_entries: int
    """The most entries of a node."""
    node_max_bytes: int
    """The most bytes of a node."""
    prefixes: dict[bytes, bytes] = field(default_factory=dict)
    """By key, of those that were named."""
    fresh: frozenset[bytes] = frozenset()
    """The named keys that had no stream."""

    def prefix_of(self, key: bytes) -> bytes:
        """Return the prefix of the rows of a key's entries."""
        return self.prefixes.get(key) or message_prefix(qualified(self.stored_db, key), self.shared)


def pack_ticket(ticket: BulkTicket) -> bytes:
    """Return a ticket as bytes."""
    *values, fresh = astuple(ticket)
    packed: bytes = msgpack.packb((*values, sorted(fresh)))
    return packed


def unpack_ticket(packed: bytes) -> BulkTicket:
    """Return the ticket that bytes hold; raise Corruption if they hold none."""
    try:
        *numbers, prefixes, fresh = msgpack.unpackb(packed, use_list=False, strict_map_key=False)
        db, stored_db, shared, base_ms, entries, size = map(int, numbers)
        return BulkTicket(
            db, stored_db, shared, base_ms, entries, size, dict(prefixes), frozenset(fresh)
        )
    except (ValueError, TypeError) as error:
        raise Corruption(f"the ticket is damaged: {error!r}") from error


class Part(NamedTuple):
    """The files of a complete part."""

    table: str
    """The name of the file with the rows of entries."""
    pieces: str
    """The name of the file with what the part has of each stream."""
    table_digest: str
    """The digest of the first file."""
    pieces_digest: str
    """The digest of the second file."""
    given: bool
    """The entries came with their IDs; else the commit may allot others."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return Path(self.table), Path(self.pieces)


class RowsFile(NamedTuple):
    """A complete file of rows, from which a server writes a part."""

    path: str
    digest: str
    given: bool
    """The entries came with their IDs, as in ``Part``."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return (Path(self.path),)


@dataclass(slots=True)
class Piece:
    """The entries of one stream in one part."""

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
    """Makes pieces: writes rows into an SST file, page by page, and gathers their nodes."""

    def __init__(self, node_max_entries: int, node_max_bytes: int) -> None:
        options = StoreOptions(
            stream_node_max_entries=node_max_entries, stream_node_max_bytes=node_max_bytes
        )
        self._txn = Txn(_NoRows(), Catalog(options), 0)

    def make(self, key: bytes, prefix: bytes, pages: Pages, table: TableWriter) -> Piece:
        """Write entries, ascending by ID, under a prefix; return their piece."""
        stream = StreamMeta(qualified(0, key), 1)
        stream.prefix, stream.nodes_tree = prefix, _ANY_TREE
        batch = self._txn.batch
        for ids, values in pages:
            append_page(self._txn, stream, ids, values, table)
        batch.put_deferred()
        cut = len(tree_prefix(stream.nodes_tree))
        nodes = [(row[cut:], value or b"") for row, value in batch.puts[Family.TREES].items()]
        batch.clear()
        return Piece(key, stream, nodes)


class _NoRows:
    """The rows of an empty store."""

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

    def pages(self, family: int, lower: bytes, upper: bytes) -> batch.Pages:
        raise NotImplementedError

    def seeks(self, family: int) -> Seeks:
        raise NotImplementedError


# --- writing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Gathered:
    """Entries of one key that wait to be written."""

    ids: list[PackedID] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)


_File = TypeVar("_File", Part, RowsFile)


class _Writer(ABC, Generic[_File]):
    """Gathers the entries of one task, and writes them in order as files in a folder."""

    def __init__(
        self, folder: str | Path, ticket: BulkTicket, *, partition: int = 0, uuid: str = ""
    ) -> None:
        """``uuid`` tells a task's attempts apart; ``partition`` orders what gets IDs allotted."""
        self._folder = Path(folder)
        self._ticket = ticket
        self._partition = partition
        self._name = f"{partition}-{uuid or uuid4().hex}"
        self._gathered: dict[tuple[bytes, bool], _Gathered] = {}
        self._size = 0
        self._allotted: dict[bytes, int] = {}
        self._files: list[_File] = []

    def extend(self, key: bytes, ids: list[PackedID] | None, values: list[bytes]) -> None:
        """Add entries of a key with their IDs, or with None, which allots IDs in this order.

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

    def close(self) -> list[_File]:
        """Write the remaining rows; return the files."""
        self._write()
        return self._files

    def abort(self) -> None:
        """Remove what was written."""
        self._gathered.clear()
        for file in self._files:
            for path in file.paths:
                path.unlink(missing_ok=True)
        self._files = []

    def _write(self) -> None:
        """Write what was gathered; keys that the commit treats differently go apart."""
        gathered, self._gathered, self._size = self._gathered, {}, 0
        kinds: dict[tuple[bool, bool], dict[bytes, _Gathered]] = {}
        for (key, given), entries in gathered.items():
            kinds.setdefault((key in self._ticket.prefixes, given), {})[key] = entries
        for (_, given), chosen in kinds.items():
            base = self._folder / f"{self._name}-{len(self._files)}"
            keys = sorted(chosen, key=self._ticket.prefix_of)
            streams = ((key, _pages(*_sort(key, chosen[key]))) for key in keys)
            self._files.append(self._write_file(base, given, streams))

    @abstractmethod
    def _write_file(
        self, base: Path, given: bool, streams: Iterable[tuple[bytes, Pages]]
    ) -> _File: ...


class PartWriter(_Writer[Part]):
    """Writes the entries of one task as parts, in a folder that the store's owner can read."""

    def _write_file(self, base: Path, given: bool, streams: Iterable[tuple[bytes, Pages]]) -> Part:
        return _write_part(base, self._ticket, given, streams)


class RowsWriter(_Writer[RowsFile]):
    """Writes the entries of one task as files of rows, which are sent to a server."""

    def _write_file(
        self, base: Path, given: bool, streams: Iterable[tuple[bytes, Pages]]
    ) -> RowsFile:
        path = base.with_suffix(".rows")
        try:
            with open(path, "wb") as file:
                for key, pages in streams:
                    for ids, values in _cut_pages(pages):
                        file.write(msgpack.packb((key, b"".join(ids), values)))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return RowsFile(str(path), digest_of(path), given)


def _write_part(
    base: Path, ticket: BulkTicket, given: bool, streams: Iterable[tuple[bytes, Pages]]
) -> Part:
    """Write a part whose keys come in the order of their prefixes; an error leaves no file."""
    maker = PieceMaker(ticket.node_max_entries, ticket.node_max_bytes)
    table, pieces = TableWriter(base.with_suffix(".sst")), base.with_suffix(".pieces")
    try:
        tables = [maker.make(key, ticket.prefix_of(key), pages, table) for key, pages in streams]
        table.finish()
        pieces.write_bytes(_pack(tables))
    except BaseException:
        table.abandon()
        pieces.unlink(missing_ok=True)
        raise
    return Part(str(table.path), str(pieces), digest_of(table.path), digest_of(pieces), given)


def _sort(key: bytes, entries: _Gathered) -> tuple[list[PackedID], list[bytes]]:
    ids, values = entries.ids, entries.values
    if all(map(lt, ids, ids[1:])):
        return ids, values
    order = sorted(range(len(ids)), key=ids.__getitem__)
    ids, values = [ids[at] for at in order], [values[at] for at in order]
    for one, other in pairwise(ids):
        if one == other:
            raise InvalidArgument(
                f"stream {quote(key)} was given entry {StreamID.unpack(one)} twice"
            )
    return ids, values


def _pages(ids: list[PackedID], values: list[bytes]) -> Pages:
    for at in range(0, len(ids), _PAGE_ROWS):
        yield ids[at : at + _PAGE_ROWS], values[at : at + _PAGE_ROWS]


def _cut_pages(pages: Pages) -> Pages:
    """Cut pages at _PAGE_BYTES."""
    for ids, values in pages:
        start = size = 0
        for at, value in enumerate(values):
            if size and size + len(value) > _PAGE_BYTES:
                yield ids[start:at], values[start:at]
                start, size = at, 0
            size += len(value)
        yield ids[start:], values[start:]


# --- reading ------------------------------------------------------------------------------------


def _pack(pieces: list[Piece]) -> bytes:
    """Return the bytes of a file of pieces."""
    rows = [[each.key, each.stream.encode(), each.nodes] for each in pieces]
    done: bytes = msgpack.packb(rows, use_bin_type=False)
    return done


def pieces_of(part: Part) -> list[Piece]:
    """Return the pieces of a part; Corruption if its files are not as they were written."""
    for path, digest in zip(part.paths, (part.table_digest, part.pieces_digest), strict=True):
        _refuse_changed(path, digest)
    try:
        return [
            Piece(key, StreamMeta.decode(qualified(0, key), record), list(nodes))
            for key, record, nodes in msgpack.unpackb(
                Path(part.pieces).read_bytes(), raw=True, use_list=False
            )
        ]
    except (ValueError, TypeError) as error:
        raise Corruption(f"{Path(part.pieces).name} has no pieces: {error!r}") from error


def _refuse_changed(path: Path, digest: str) -> None:
    if not os.path.lexists(path):
        raise Corruption(
            f"{path} is missing: a load removes its parts once it is done, so it may have happened"
        )
    if path.is_symlink() or not path.is_file() or digest_of(path) != digest:
        raise Corruption(f"{path} is not as it was written")


def digest_of(path: Path) -> str:
    """Return a checksum of a file."""
    with open(path, "rb") as file:
        return file_digest(file, xxhash.xxh3_128).hexdigest()


def part_of_rows(rows: RowsFile, ticket: BulkTicket, folder: Path, guard: Guard) -> Part:
    """Write the part of a file of rows that a client has sent.

    Corruption: the file is not as it was written, or no file of rows. InvalidArgument, StoreError:
    IDs or prefixes do not ascend. No file is left then.
    """
    path = Path(rows.path)
    _refuse_changed(path, rows.digest)
    with open(path, "rb") as file:
        return _write_part(folder / path.stem, ticket, rows.given, _streams(file, guard))


def _streams(file: BinaryIO, guard: Guard) -> Iterator[tuple[bytes, Pages]]:
    for key, pages in groupby(_rows_pages(file), itemgetter(0)):
        guard([key])
        yield key, ((ids, values) for _, ids, values in pages)


def _rows_pages(file: BinaryIO) -> Iterator[tuple[bytes, list[PackedID], list[bytes]]]:
    unpacker = msgpack.Unpacker(
        file, raw=True, max_buffer_size=_PAGE_BYTES_MAX, max_array_len=_PAGE_ROWS
    )
    try:
        yield from map(_page, unpacker)
    except (ValueError, msgpack.UnpackException) as error:
        raise Corruption(f"{Path(file.name).name} is no file of rows: {error!r}") from None


def _page(record: object) -> tuple[bytes, list[PackedID], list[bytes]]:
    match record:
        case [bytes(key), bytes(ids), list(values)] if (
            len(key) <= KEY_BYTES_MAX
            and len(ids) == ID_BYTES * len(values) > 0
            and set(map(type, values)) == {bytes}
        ):
            return key, [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)], values
    raise ValueError("a page is a key, IDs and values")
