"""Batches of rows into a stream, each with the note of how far the import is, in one commit.

How far imports have come: kept in the store itself, in the commit that adds the rows.

::

    key     kvstream:import:<32 hex digits>     of the target stream and the source's identity
    entry   stream source offset line added digest last_id entries_added finished

One entry, the latest, is kept. So a killed import and the rows it has added always agree. The note
of a finished import expires after ``FINISHED_DAYS``.

Rows into the changes of one commit: added, there already, or bad.

A server answers only when all are in, so that what it would answer is found out before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from functools import partial

import xxhash

from kvstream.cli.contracts import AnyStore, Changes
from kvstream.cli.importing.ids import Placing, StreamEnd, Unplaceable
from kvstream.cli.output import Meter
from kvstream.cli.rows import Pairs, Position, Row, Rows, Source
from kvstream.cli.session import IMPORT_PREFIX
from kvstream.errors import RequestError
from kvstream.types.ids import MIN_ID, AddID, StreamID
from kvstream.types.records import Fields

FINISHED_DAYS = 30
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Note:
    """What a run has left for the next one."""

    stream: bytes
    source: bytes
    offset: int
    line: int
    added: int
    """Entries added by all runs together."""
    digest: bytes
    """Of all bytes before ``offset``."""
    last_id: bytes
    entries_added: int
    finished: int


def _note_of(fields: Fields) -> Note:
    return Note(
        stream=fields[b"stream"],
        source=fields[b"source"],
        offset=int(fields[b"offset"]),
        line=int(fields[b"line"]),
        added=int(fields[b"added"]),
        digest=bytes.fromhex(fields[b"digest"].decode()),
        last_id=fields[b"last_id"],
        entries_added=int(fields[b"entries_added"]),
        finished=int(fields[b"finished"]),
    )


class Notebook:
    """The note of one source and one target stream."""

    def __init__(self, store: AnyStore, target: bytes, source: bytes) -> None:
        self._store = store
        self._target = target
        self._source = source
        digest = xxhash.xxh3_128(len(target).to_bytes(4, "big") + target + source).hexdigest()
        self.key = IMPORT_PREFIX + digest.encode()

    def load(self) -> Note | None:
        """Return the note of an earlier run; None where there is none that still holds."""
        latest = self._store.stream(self.key).revrange(count=1)
        if not latest or not latest[0].fields:
            return None
        try:
            note = _note_of(latest[0].fields)
        except (KeyError, ValueError):
            raise RequestError(
                f"{self.key.decode()} is no note of an import: --again imports from the first line"
            ) from None
        return note if self._holds(note) else None

    def _holds(self, note: Note) -> bool:
        """Tell whether the target is still the stream that was imported into, not a later one."""
        if not self._store.exists(self._target):
            return note.added == 0
        info = self._store.stream(self._target).info()
        return (
            info.last_generated_id >= StreamID.parse(note.last_id)
            and info.entries_added >= note.entries_added
        )

    def save(
        self, changes: Changes, end: StreamEnd, position: Position, added: int, finished: bool
    ) -> None:
        """Note how far the import is, among the changes that add the rows up to there."""
        note = Note(
            stream=self._target,
            source=self._source,
            offset=position.offset,
            line=position.line,
            added=added,
            digest=position.digest,
            last_id=bytes(end.last_id),
            entries_added=end.entries_added,
            finished=int(finished),
        )
        fields = {**asdict(note), "digest": note.digest.hex()}
        changes.add(self.key, fields, maxlen=1)
        if finished:
            changes.expire(self.key, FINISHED_DAYS * _DAY_S)
        else:
            changes.persist(self.key)


_LOOKED_UP = 100
"""Entries that are read together where a row is there already: in a file the next ones follow."""


class Bad(RequestError):
    """A row that cannot be added."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(f"line {row.line}: {reason}")


class Undecided(Exception):
    """Whether a row can be added is known once those before it are in the stream."""


class Taken(Enum):
    """What became of a row."""

    ADDED = auto()
    PRESENT = auto()
    """With its ID and the same fields."""
    BLANK = auto()


class Taking:
    """Takes the rows of one commit, one by one."""

    def __init__(
        self,
        store: AnyStore,
        target: bytes,
        end: StreamEnd,
        placing: Placing,
        changes: Changes,
    ) -> None:
        self._stream = store.stream(target)
        self._target = target
        self._end = end
        self._placing = placing
        self._changes = changes
        self._known: dict[StreamID, Pairs] = {}
        """Entries that are there, or will be."""

    def take(self, row: Row) -> Taken:
        """Add one row, unless it is there; raises Bad and Undecided."""
        if row.pairs is None:
            raise Bad(row, row.error)
        if not row.pairs:
            return Taken.BLANK
        try:
            return self._add(*self._placing(row))
        except (Unplaceable, RequestError) as error:
            raise Bad(row, str(error)) from None

    def _add(self, text: str, asked: AddID, pairs: Pairs) -> Taken:
        if asked is not None and not self._end.is_exact:
            raise Undecided
        eid = self._end.following(asked)
        if eid is None:
            self._see_present(text, asked, pairs)
            return Taken.PRESENT
        self._changes.add(self._target, pairs, text)
        self._end.count(eid, exact=asked is not None)
        self._known[eid] = pairs
        return Taken.ADDED

    def _see_present(self, text: str, eid: AddID, pairs: Pairs) -> None:
        """Raise RequestError unless an entry with that ID and these fields is there."""
        there = self._found(eid) if isinstance(eid, StreamID) else None
        if there == pairs:
            return
        if there is not None:
            raise RequestError(f"the stream has {text} with other fields")
        if eid == MIN_ID:
            raise RequestError(f"{MIN_ID} is no ID of an entry")
        last = self._end.last_id
        raise RequestError(f"{text} does not lie above {last}, the last ID of the stream")

    def _found(self, eid: StreamID) -> Pairs | None:
        if eid not in self._known:
            for entry in self._stream.range(eid, "+", _LOOKED_UP):
                self._known[entry.id] = list(entry.pairs)
        return self._known.get(eid)


BATCH_ROWS = 1000
BATCH_BYTES = 8 << 20
"""Rows, and bytes of rows, that one commit takes at most: bounded memory, and a bar that moves."""


@dataclass(slots=True)
class Totals:
    """What a run has done, in rows."""

    added: int = 0
    present: int = 0
    """With an ID that was there already, with the same fields."""
    skipped: int = 0
    """Bad ones."""

    @property
    def rows(self) -> int:
        return self.added + self.present + self.skipped

    def count(self, more: "Totals") -> None:
        """Count what one commit has done."""
        self.added += more.added
        self.present += more.present
        self.skipped += more.skipped


class SourceChanged(RequestError):
    """The source does not begin with what an earlier run has imported."""


@dataclass(slots=True)
class _Done:
    """What one commit does: rows taken, and what became of them."""

    position: Position
    end: StreamEnd
    rows: int = 0
    totals: Totals = field(default_factory=Totals)
    bad: list[Bad] = field(default_factory=list)


class Import:
    """One run over one source into one stream."""

    def __init__(
        self,
        store: AnyStore,
        target: bytes,
        source: Source,
        rows: Rows,
        placing: Placing,
        complain: Callable[[Bad], None] | None = None,
    ) -> None:
        """``complain`` is told of bad rows, which are then skipped; None: the first one stops."""
        self.totals = Totals()
        self.resumed: Note | None = None
        """What an earlier run has left, once ``resume`` has found it."""
        self._store = store
        self._target = target
        self._source = source
        self._rows = rows
        self._placing = placing
        self._complain = complain
        self._position = Position()
        self._position.advance(rows.header.raw, rows.header.lines)
        identity = source.identity
        self._notebook = None if identity is None else Notebook(store, target, identity)
        self._note_keys = [] if self._notebook is None else [self._notebook.key]

    def resume(self) -> None:
        """Skip what an earlier run has worked off; SourceChanged where it is not there."""
        note = self.resumed = self._notebook.load() if self._notebook else None
        if note is None:
            return
        self._position.skip(self._source, note.offset, note.line)
        if (self._position.offset, self._position.digest) != (note.offset, note.digest):
            raise SourceChanged(
                f"{self._source.label} has changed in its first {note.line:,} lines, which are "
                "imported already: --again imports it from the first line"
            )
        self._rows.resume(note.line)

    def run(self, watch: Meter) -> None:
        """Add all rows, batch by batch; raises Bad where the first bad row stops it."""
        watch(self._position.offset, 0)
        for batch in self._batches():
            bad = self._commit(batch)
            watch(self._position.offset, self.totals.rows)
            if bad is not None:
                raise bad
        if self._notebook is not None:
            self._store.atomically(self._note_keys, self._finish)

    def _batches(self) -> Iterator[list[Row]]:
        """Yield what there is, up to the bounds of a batch, and no later than a pipe pauses."""
        batch: list[Row] = []
        size = 0
        for row in self._rows:
            batch.append(row)
            size += len(row.raw)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES or self._source.pauses():
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _commit(self, batch: Sequence[Row]) -> Bad | None:
        """Add a batch, nearly always in one commit; return the row that stops the import."""
        while batch:
            keys = list(self._note_keys)
            if any(map(self._placing.asks, batch)):
                keys.append(self._target)
            done = self._store.atomically(keys, partial(self._add, batch))
            self._position = done.position
            self.totals.count(done.totals)
            for bad in done.bad:
                if self._complain is None:
                    return bad
                self._complain(bad)
            batch = batch[done.rows :]
        return None

    def _add(self, rows: Sequence[Row], changes: Changes) -> _Done:
        """Add rows and note how far it came: up to a bad one that stops the import.

        A row with an ID of its own after one that gets a new ID waits for the next commit: nobody
        knows before which IDs the stream then takes.
        """
        done = _Done(self._position.copy(), StreamEnd.of(self._store, self._target))
        taking = Taking(self._store, self._target, done.end, self._placing, changes)
        for row in rows:
            try:
                taken = taking.take(row)
            except Undecided:
                break
            except Bad as bad:
                done.bad.append(bad)
                if self._complain is None:
                    break
                done.totals.skipped += 1
            else:
                done.totals.added += taken is Taken.ADDED
                done.totals.present += taken is Taken.PRESENT
            done.position.advance(row.raw, row.lines)
            done.rows += 1
        if done.rows or any(map(self._store.exists, self._note_keys)):
            self._save(changes, done, finished=False)
        return done

    def _finish(self, changes: Changes) -> None:
        end = StreamEnd.of(self._store, self._target)
        self._save(changes, _Done(self._position, end), finished=True)

    def _save(self, changes: Changes, done: _Done, finished: bool) -> None:
        if self._notebook is not None:
            before = self.resumed.added if self.resumed else 0
            added = before + self.totals.added + done.totals.added
            self._notebook.save(changes, done.end, done.position, added, finished)
