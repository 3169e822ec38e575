"""Batches of rows into a stream, each with the note of how far the import is, in one commit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvstream.cli.contracts import AnyStore, Changes
from kvstream.cli.import_notes import Note, Notebook
from kvstream.cli.import_rows import Bad, Taken, Taking, Undecided
from kvstream.cli.placing import Placing, StreamEnd
from kvstream.cli.progress import Meter
from kvstream.cli.rows import Row, Rows
from kvstream.cli.sources import Position, Source
from kvstream.errors import RequestError

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
