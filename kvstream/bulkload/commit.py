"""The owner's side of bulk loads: a ticket before, and one commit that takes the parts in.

Parts whose rows stand where they belong are taken in as they are, in a time that does not depend on
how many rows that are. Others, because a stream was there and not named or has moved on, or because
a stranger's table cannot be proved to be sound, are merged and written once more. Then all tables
come in, and one commit counts what they brought: before it nobody sees anything, and what a crash
leaves before it is deleted at the next opening.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kvstream.bulkload import parts as proving
from kvstream.bulkload.parts import BulkTicket, Part, Piece, PieceMaker, pieces_of
from kvstream.engine.engine import Engine
from kvstream.errors import Corruption
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
from kvstream.operations import append, unfinished_loads
from kvstream.operations.append import BulkResult, Joined, Mark, above, too_small, with_ids
from kvstream.storage.batch import Family
from kvstream.storage.sst import Merged, TableWriter, brought
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import PackedID

_PAGE_ROWS = 4096
TRIES = 4
"""So often a load is made ready: the last time nobody else may write."""


def ticket(txn: Txn, db: int, keys: Iterable[bytes]) -> BulkTicket:
    """Return what makers of parts must know, for one load; WrongType where a key is a string.

    Numbers are given out for the streams that are new: nothing else is changed.
    """
    catalog, limits = txn.catalog, txn.catalog.limits
    found = {key: txn.stream(qualified(db, key)) for key in keys}
    fresh = [key for key, stream in found.items() if stream is None]
    numbers = iter(catalog.numbers.take(txn, 1 + len(fresh)))
    shared = next(numbers) | SHARED
    prefixes = {key: stream.prefix for key, stream in found.items() if stream is not None}
    for key in fresh:
        stored = catalog.databases.stored_name(txn, qualified(db, key))
        prefixes[key] = message_prefix(stored, next(numbers))
    last_ms = max((stream.last.ms for stream in found.values() if stream), default=0)
    return BulkTicket(
        db=db,
        stored_db=catalog.databases.stored(txn, db),
        shared=shared,
        base_ms=max(txn.now_ms, last_ms + 1),
        node_max_entries=limits.node_max_entries,
        node_max_bytes=limits.node_max_bytes,
        prefixes=prefixes,
        fresh=frozenset(fresh),
    )


Guard = Callable[[list[bytes]], None]
"""Raises where the keys that it is shown are not to be written."""


def load(
    engine: Engine,
    given: BulkTicket,
    parts: Iterable[Part],
    mark: Mark | None = None,
    guard: Guard | None = None,
) -> BulkResult:
    """Take parts in, all or none, with the mark of their batch; the files go when it is done.

    A batch that was there already changes nothing. Raises Corruption where a file is not as it was
    written, IDTooSmall where IDs are not above a stream's last, or come twice, WrongType where a
    key is a string: nothing is changed then, and the files stay. With a guard the parts are those
    of strangers: it is shown their keys, and Corruption is raised too where a table has rows that
    belong elsewhere, before anybody is held up.
    """
    every = list(parts)
    pieces = [pieces_of(part) for part in every]
    doubted: set[int] = set()
    if guard is not None:
        guard([piece.key for found in pieces for piece in found])
        doubted = {
            at
            for at, (part, found) in enumerate(zip(every, pieces, strict=True))
            if not proving.stands(part, found, given)
        }
    result = _Load(engine, given, every, pieces, doubted).run(mark)
    for part in every:
        for path in (part.table, part.pieces):
            Path(path).unlink(missing_ok=True)
    return result


class _Place(NamedTuple):
    """Where entries of a key are to be written."""

    prefix: bytes
    key: bytes
    last: StreamID
    """What they are to follow."""
    now_ms: int
    """The time of allotting IDs."""
    stream: StreamMeta | None
    """None: it is new."""


@dataclass(slots=True)
class _Made:
    """What is ready to be taken in."""

    loose: set[int]
    """The parts that had to be written once more."""
    joined: list[Joined]
    tables: list[Path] = field(default_factory=list)
    places: list[_Place] = field(default_factory=list)
    """Where they were written to."""

    def discard(self) -> None:
        for path in self.tables:
            path.unlink(missing_ok=True)


class _Load:
    """One load: made ready while others write, and taken in while nobody does."""

    def __init__(
        self,
        engine: Engine,
        given: BulkTicket,
        parts: list[Part],
        pieces: list[list[Piece]],
        doubted: set[int],
    ) -> None:
        self._engine = engine
        self._ticket = given
        self._parts = parts
        self._pieces = pieces
        self._doubted = doubted
        """Parts that are to be written once more, whatever they seem to be."""
        self._folder = engine.database.staging()
        self._by_key: dict[bytes, list[tuple[int, Piece]]] = {}
        for at, found in enumerate(pieces):
            for piece in found:
                self._by_key.setdefault(piece.key, []).append((at, piece))
        for each in self._by_key.values():
            each.sort(key=lambda found: found[1].first)

    def run(self, mark: Mark | None) -> BulkResult:
        result = None
        for left in reversed(range(TRIES)):
            if self._engine.run(append.is_done, mark):
                return BulkResult(applied=False)
            made = self._ready() if left else None
            with self._engine.held():
                result = self._taken_in(made or self._ready(), mark)
            if result is not None:
                break
        assert result is not None
        return result

    def _ready(self) -> _Made:
        """Bring the tables that can be taken in as they are, and write the others once more."""
        loose = self._engine.run(self._loose)
        joined = [
            Joined(
                self._name(key),
                self._ticket.prefix_of(key),
                [(p.stream, p.nodes) for _, p in found],
            )
            for key, found in self._by_key.items()
            if found[0][0] not in loose
        ]
        made = _Made(loose, joined)
        try:
            for at, part in enumerate(self._parts):
                if at not in loose:
                    made.tables.append(brought(Path(part.table), self._folder))
            self._rewrite(made)
        except BaseException:
            made.discard()
            raise
        return made

    def _taken_in(self, made: _Made, mark: Mark | None) -> BulkResult | None:
        """Take in what is ready; None where it has to be made anew, for its streams moved on."""
        try:
            if self._engine.run(append.is_done, mark):
                return BulkResult(applied=False)
            if not self._engine.run(self._holds, made):
                return None
            return self._take_in(made.tables, made.joined, mark)
        finally:
            made.discard()

    def _holds(self, txn: Txn, made: _Made) -> bool:
        """Tell whether all streams are still as they were when the parts were made ready."""
        there = [self._is_there(txn, place) for place in made.places]
        return all(there) and self._loose(txn) == made.loose

    def _is_there(self, txn: Txn, place: _Place) -> bool:
        stream = txn.stream(self._name(place.key))
        if stream is not place.stream:
            return False
        if stream is not None:
            return stream.last == place.last
        stored = txn.catalog.databases.stored(txn, self._ticket.db)
        generation = U64.unpack(place.prefix[-U64.size :])[0]
        return place.prefix[: U16.size] == U16.pack(stored) and not txn.catalog.is_before_flush(
            txn, stored, generation
        )

    def _name(self, key: bytes) -> bytes:
        return qualified(self._ticket.db, key)

    # --- as they are ----------------------------------------------------------------------------

    def _loose(self, txn: Txn) -> set[int]:
        """Return the parts that cannot be taken in as they are."""
        loose = set(self._doubted)
        fits = {key: self._fits(txn, key, found) for key, found in self._by_key.items()}
        while True:  # a part that is loose makes all parts of each of its keys so
            more = set(loose)
            for key, found in self._by_key.items():
                of_key = {at for at, _ in found}
                if not fits[key] or of_key & loose:
                    more |= of_key
            if more == loose:
                return loose
            loose = more

    def _fits(self, txn: Txn, key: bytes, found: list[tuple[int, Piece]]) -> bool:
        """Tell whether a key's pieces follow its stream, and each other, where they stand."""
        stream = txn.stream(self._name(key))
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
        """Tell whether a new stream may still have the prefix that its rows have."""
        stored = txn.catalog.databases.stored(txn, self._ticket.db)
        if prefix[: U16.size] != U16.pack(stored):
            return False
        if is_shared(prefix):
            return not txn.batch.page(Family.MESSAGES, prefix, successor(prefix), 1)
        generation = U64.unpack(prefix[-U64.size :])[0]
        return (
            key in self._ticket.fresh
            and not txn.catalog.is_before_flush(txn, stored, generation)
            and txn.batch.get(Family.METADATA, scan_row(stored, generation)) is None
        )

    # --- written once more ----------------------------------------------------------------------

    def _rewrite(self, made: _Made) -> None:
        """Write the entries of loose parts where they belong, as tables."""
        if not made.loose:
            return
        loose = sorted(made.loose)
        merged = {
            given: self._merged([at for at in loose if self._parts[at].given is given])
            for given in (True, False)
        }
        keys = {piece.key for at in loose for piece in self._pieces[at]}
        try:
            made.places = self._engine.run(self._places, keys)
            made.joined += self._write(made.places, merged, made.tables)
        finally:
            for each in merged.values():
                if each is not None:
                    each.close()

    def _merged(self, parts: list[int]) -> Merged | None:
        if not parts:
            return None
        folder = self._folder / uuid4().hex
        rows = Merged(folder, [Path(self._parts[at].table) for at in parts])
        keys = {piece.key for at in parts for piece in self._pieces[at]}
        if not rows.only({self._ticket.prefix_of(key) for key in keys}):
            rows.close()
            raise Corruption("a table has rows of streams that it is not said to have")
        return rows

    def _places(self, txn: Txn, keys: set[bytes]) -> list[_Place]:
        """Return where the entries of each key are to be written, by prefix."""
        places = []
        for key in keys:
            stream = txn.stream(self._name(key))
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
        merged: dict[bool, Merged | None],
        tables: list[Path],
    ) -> list[Joined]:
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
        merged: dict[bool, Merged | None],
        maker: PieceMaker,
        table: TableWriter,
    ) -> Joined:
        prefix, key, last, now_ms, _ = place
        made = []
        for given, rows in merged.items():
            expected = self._expected(key, given)
            if rows is None or not expected:
                continue
            pages = self._pages(rows, key)
            if not given:
                pages = with_ids(pages, last, now_ms)
            piece = maker.make(key, prefix, above(pages, last, self._name(key)), table)
            if piece.stream.length > expected:
                raise Corruption(f"stream {key!r} has more entries than its parts say")
            if piece.stream.length < expected:  # the same ID twice
                raise too_small(self._name(key))
            last = piece.last
            made.append((piece.stream, piece.nodes))
        return Joined(self._name(key), prefix, made)

    def _expected(self, key: bytes, given: bool) -> int:
        """Return how many entries of a key the parts of one kind have."""
        found = self._by_key[key]
        return sum(p.stream.length for at, p in found if self._parts[at].given is given)

    def _pages(self, rows: Merged, key: bytes) -> Iterator[tuple[list[PackedID], list[bytes]]]:
        prefix = self._ticket.prefix_of(key)
        lower, upper, width = prefix, successor(prefix), len(prefix) + ID_BYTES
        while page := rows.page(lower, upper, _PAGE_ROWS):
            if any(len(row) != width for row, _ in page):
                raise Corruption(f"stream {key!r} has rows without an ID")
            lower = page[-1][0] + b"\0"
            yield [row[-ID_BYTES:] for row, _ in page], [value for _, value in page]

    # --- the commit -----------------------------------------------------------------------------

    def _take_in(self, tables: list[Path], joined: list[Joined], mark: Mark | None) -> BulkResult:
        engine, database = self._engine, self._engine.database
        if not joined:
            return engine.run(append.publish, joined, mark)
        try:
            engine.run(append.prepare, joined)
            database.flush_wal()
            database.ingest(Family.MESSAGES, tables)
            result = engine.run(append.publish, joined, mark)
        except BaseException:
            unfinished_loads.undo(engine.run)
            raise
        engine.run(unfinished_loads.hold)
        return result
