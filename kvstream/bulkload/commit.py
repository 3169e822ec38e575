"""The owner's side of bulk loads: a ticket first, and one commit that ingests the parts.

A part whose rows have their final keys is ingested as it is, in a time that does not
depend on its size. A part whose stream existed and was not named, or has changed since, is merged
with the others and rewritten. Then all SST files are ingested, and one commit counts what they
brought: nothing is visible before it, and what a crash leaves is deleted at the next opening.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kvstream.bulkload.parts import BulkTicket, Pages, Part, Piece, PieceMaker, pieces_of
from kvstream.engine.engine import Engine
from kvstream.errors import Corruption, WrongType, quote
from kvstream.layout.keys import (
    ID_BYTES,
    SHARED,
    U16,
    U64,
    is_shared,
    message_prefix,
    qualified,
    scan_row,
    successor,
)
from kvstream.meta.records import StreamMeta
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.append import BulkResult, Mark, TableAppend, next_packed, too_small
from kvstream.operations.images import staged_loads
from kvstream.storage.batch import Family
from kvstream.storage.sst import Merged, TableWriter, link_into
from kvstream.types.ids import MIN_ID, U64_MAX, StreamID

_PAGE_ROWS = 4096
TRIES = 4
"""How often a load is prepared; the last time, other writers wait."""

BASE_MS_MAX = U64_MAX - (1 << 32)
"""Each partition adds its number to this. If a stream's last ID is above, its entries get new IDs
at the commit."""


def ticket(txn: Txn, db: int, keys: Iterable[bytes]) -> BulkTicket:
    """Return the ticket of one load into some streams; raise WrongType if a key is a string.

    It reserves numbers for new streams and changes nothing else.
    """
    catalog, limits = txn.catalog, txn.catalog.limits
    streams = {key: _stream(txn, db, key) for key in keys}
    fresh = [key for key, stream in streams.items() if stream is None]
    numbers = iter(catalog.numbers.take(txn, 1 + len(fresh)))
    shared = next(numbers) | SHARED
    prefixes = {key: stream.prefix for key, stream in streams.items() if stream is not None}
    for key in fresh:
        stored = catalog.databases.stored_name(txn, qualified(db, key))
        prefixes[key] = message_prefix(stored, next(numbers))
    last_ms = max((stream.last.ms for stream in streams.values() if stream), default=0)
    return BulkTicket(
        db=db,
        stored_db=catalog.databases.stored_number(txn, db),
        shared=shared,
        base_ms=min(max(txn.now_ms, last_ms + 1), BASE_MS_MAX),
        node_max_entries=limits.node_max_entries,
        node_max_bytes=limits.node_max_bytes,
        prefixes=prefixes,
        fresh=frozenset(fresh),
    )


def _stream(txn: Txn, db: int, key: bytes) -> StreamMeta | None:
    """Return the stream of a key, or None; the WrongType of a string names the key."""
    try:
        return txn.stream(qualified(db, key))
    except WrongType:
        raise WrongType(f"{quote(key)} is a string, not a stream") from None


def load(
    engine: Engine, ticket: BulkTicket, parts: Iterable[Part], mark: Mark | None = None
) -> BulkResult:
    """Append the entries of parts, all or none, with the mark of their batch; remove the files.

    A batch whose mark is there already changes nothing. Raises Corruption if a file is not as it
    was written, IDTooSmall if IDs are not above a stream's last or come twice, WrongType if a key
    is a string: nothing is changed then, and the files stay.
    """
    all_parts = list(parts)
    if engine.run(append.is_done, mark):  # the files may be removed already
        result = BulkResult(applied=False)
    else:
        result = _Load(engine, ticket, all_parts).run(mark)
    for part in all_parts:
        for path in part.paths:
            path.unlink(missing_ok=True)
    return result


class _Place(NamedTuple):
    """Where rewritten entries of a key go."""

    prefix: bytes
    key: bytes
    last: StreamID
    """The last ID before them."""
    now_ms: int
    """The time for IDs that are allotted."""
    stream: StreamMeta | None
    """None: the stream is new."""


@dataclass(slots=True)
class _Prepared:
    """What is ready for the commit."""

    rewritten: set[int]
    """The parts that could not be ingested as they are."""
    joined: list[TableAppend]
    tables: list[Path] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    """Where the rewritten parts went."""

    def discard(self) -> None:
        for path in self.tables:
            path.unlink(missing_ok=True)


class _Load:
    """One load: prepared while others write, committed while they wait."""

    def __init__(self, engine: Engine, ticket: BulkTicket, parts: list[Part]) -> None:
        self._engine = engine
        self._ticket = ticket
        self._parts = parts
        self._pieces = [pieces_of(part) for part in parts]
        self._folder = engine.database.staging()
        self._by_key: dict[bytes, list[tuple[int, Piece]]] = {}
        for at, found in enumerate(self._pieces):
            for piece in found:
                self._by_key.setdefault(piece.key, []).append((at, piece))
        for of_key in self._by_key.values():
            of_key.sort(key=lambda found: found[1].first)

    def run(self, mark: Mark | None) -> BulkResult:
        result = None
        for tries_left in reversed(range(TRIES)):
            if self._engine.run(append.is_done, mark):
                return BulkResult(applied=False)
            prepared = self._prepare() if tries_left else None
            with self._engine.hold():
                result = self._try_commit(prepared or self._prepare(), mark)
            if result is not None:
                break
        assert result is not None
        return result

    def _prepare(self) -> _Prepared:
        """Link the SST files that can be ingested as they are, and rewrite the others."""
        misplaced = self._engine.run(self._find_misplaced)
        joined = [
            TableAppend(
                self._name(key),
                self._ticket.prefix_of(key),
                [(p.stream, p.nodes) for _, p in found],
            )
            for key, found in self._by_key.items()
            if found[0][0] not in misplaced
        ]
        prepared = _Prepared(misplaced, joined)
        try:
            for at, part in enumerate(self._parts):
                if at not in misplaced:
                    prepared.tables.append(link_into(self._folder, Path(part.table)))
            self._rewrite(prepared)
        except BaseException:
            prepared.discard()
            raise
        return prepared

    def _try_commit(self, prepared: _Prepared, mark: Mark | None) -> BulkResult | None:
        """Commit the prepared load; return None if its streams have changed since."""
        try:
            if self._engine.run(append.is_done, mark):
                return BulkResult(applied=False)
            if not self._engine.run(self._holds, prepared):
                return None
            return self._commit(prepared.tables, prepared.joined, mark)
        finally:
            prepared.discard()

    def _holds(self, txn: Txn, prepared: _Prepared) -> bool:
        """Return whether all streams are still as they were when this was prepared."""
        unchanged = [self._is_unchanged(txn, place) for place in prepared.places]
        return all(unchanged) and self._find_misplaced(txn) == prepared.rewritten

    def _is_unchanged(self, txn: Txn, place: _Place) -> bool:
        stream = _stream(txn, self._ticket.db, place.key)
        if stream is not place.stream:
            return False
        if stream is not None:
            return stream.last == place.last
        stored = txn.catalog.databases.stored_number(txn, self._ticket.db)
        return place.prefix[: U16.size] == U16.pack(stored)

    def _name(self, key: bytes) -> bytes:
        return qualified(self._ticket.db, key)

    # --- as they are ----------------------------------------------------------------------------

    def _find_misplaced(self, txn: Txn) -> set[int]:
        """Return the parts that cannot be ingested as they are."""
        misplaced: set[int] = set()
        fits = {key: self._fits(txn, key, found) for key, found in self._by_key.items()}
        while True:  # a misplaced part makes all parts of its keys misplaced
            more = set(misplaced)
            for key, found in self._by_key.items():
                of_key = {at for at, _ in found}
                if not fits[key] or of_key & misplaced:
                    more |= of_key
            if more == misplaced:
                return misplaced
            misplaced = more

    def _fits(self, txn: Txn, key: bytes, found: list[tuple[int, Piece]]) -> bool:
        """Return whether a key's pieces follow its stream and each other, under its prefix."""
        stream = _stream(txn, self._ticket.db, key)
        prefix = self._ticket.prefix_of(key)
        if stream is not None:
            last, right = stream.last, stream.prefix == prefix
        else:
            last, right = MIN_ID, self._is_free(txn, key, prefix)
        for _, piece in found:
            right = right and last < piece.first
            last = piece.last
        return right

    def _is_free(self, txn: Txn, key: bytes, prefix: bytes) -> bool:
        """Return whether a new stream may still have the prefix of its rows."""
        stored = txn.catalog.databases.stored_number(txn, self._ticket.db)
        if prefix[: U16.size] != U16.pack(stored):
            return False
        if is_shared(prefix):
            return not txn.batch.page(Family.MESSAGES, prefix, successor(prefix), 1)
        generation = U64.unpack(prefix[-U64.size :])[0]
        return (
            key in self._ticket.fresh
            and txn.batch.get(Family.METADATA, scan_row(stored, generation)) is None
        )

    # --- rewritten ------------------------------------------------------------------------------

    def _rewrite(self, prepared: _Prepared) -> None:
        """Write the entries of misplaced parts under their final keys, into new SST files."""
        if not prepared.rewritten:
            return
        misplaced = sorted(prepared.rewritten)
        keys = {piece.key for at in misplaced for piece in self._pieces[at]}
        merged: dict[bool, Merged] = {}
        with ExitStack() as opened:
            for given in (True, False):
                tables = [
                    Path(self._parts[at].table)
                    for at in misplaced
                    if self._parts[at].given is given
                ]
                if tables:
                    merged[given] = Merged(self._folder / uuid4().hex, tables)
                    opened.callback(merged[given].close)
            prepared.places = self._engine.run(self._places, keys)
            prepared.joined += self._write(prepared.places, merged, prepared.tables)

    def _places(self, txn: Txn, keys: set[bytes]) -> list[_Place]:
        """Return where the entries of each key go, by prefix."""
        places = []
        for key in keys:
            stream = _stream(txn, self._ticket.db, key)
            if stream is not None:
                places.append(_Place(stream.prefix, key, stream.last, txn.now_ms, stream))
            else:
                stored = txn.catalog.databases.stored_name(txn, self._name(key))
                prefix = message_prefix(stored, txn.allocate())
                places.append(_Place(prefix, key, MIN_ID, txn.now_ms, None))
        return sorted(places, key=lambda place: place.prefix)

    def _write(
        self,
        places: list[_Place],
        merged: dict[bool, Merged],
        tables: list[Path],
    ) -> list[TableAppend]:
        limits = self._ticket
        maker = PieceMaker(limits.node_max_entries, limits.node_max_bytes)
        table = TableWriter(self._folder / f"{uuid4().hex}.sst")
        tables.append(table.path)
        try:
            joined = [self._write_key(place, merged, maker, table) for place in places]
            table.finish()
        except BaseException:
            table.abandon()
            raise
        return joined

    def _write_key(
        self,
        place: _Place,
        merged: dict[bool, Merged],
        maker: PieceMaker,
        table: TableWriter,
    ) -> TableAppend:
        prefix, key, last, now_ms, _ = place
        pieces = []
        for given, rows in merged.items():
            expected = self._count_expected(key, given)
            if not expected:
                continue
            pages = self._pages(rows, key)
            if not given:
                pages = _allot_ids(pages, last, now_ms)
            piece = maker.make(key, prefix, _check_above(pages, last, self._name(key)), table)
            if piece.stream.length > expected:
                raise Corruption(f"stream {quote(key)} has more entries than its parts say")
            if piece.stream.length < expected:  # the same ID twice
                raise too_small(self._name(key))
            last = piece.last
            pieces.append((piece.stream, piece.nodes))
        return TableAppend(self._name(key), prefix, pieces)

    def _count_expected(self, key: bytes, given: bool) -> int:
        """Return how many entries of a key the parts with, or without, given IDs have."""
        found = self._by_key[key]
        return sum(p.stream.length for at, p in found if self._parts[at].given is given)

    def _pages(self, rows: Merged, key: bytes) -> Pages:
        prefix = self._ticket.prefix_of(key)
        lower, upper, width = prefix, successor(prefix), len(prefix) + ID_BYTES
        while page := rows.page(lower, upper, _PAGE_ROWS):
            if any(len(row) != width for row, _ in page):
                raise Corruption(f"stream {quote(key)} has rows without an ID")
            lower = page[-1][0] + b"\0"
            yield [row[-ID_BYTES:] for row, _ in page], [value for _, value in page]

    # --- the commit -----------------------------------------------------------------------------

    def _commit(
        self, tables: list[Path], joined: list[TableAppend], mark: Mark | None
    ) -> BulkResult:
        engine, database = self._engine, self._engine.database
        if not joined:
            return engine.run(append.publish, joined, mark)
        try:
            engine.run(append.prepare, joined)
            database.flush_wal()
            database.ingest(Family.MESSAGES, tables)
            result = engine.run(append.publish, joined, mark)
        except BaseException:
            staged_loads.undo_uncounted(engine.run)
            raise
        engine.run(staged_loads.ignore_uncounted)
        return result


def _allot_ids(pages: Pages, last: StreamID, now_ms: int) -> Pages:
    """Give entries automatic IDs."""
    for _, values in pages:
        ids = next_packed(last, len(values), now_ms)
        last = StreamID.unpack(ids[-1])
        yield ids, values


def _check_above(pages: Pages, last: StreamID, name: bytes) -> Pages:
    """Check that entries are above the last one of their stream."""
    for ids, values in pages:
        if ids[0] <= last.packed:
            raise too_small(name, ids[0])
        yield ids, values
