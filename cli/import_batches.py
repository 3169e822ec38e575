"""Batches of rows into a stream, each with the note of how far the import is, in one commit."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvstream.cli.import_notes import Note, Notebook
from kvstream.cli.json_values import Pairs
from kvstream.cli.placing import Placing, Unplaceable
from kvstream.cli.progress import Meter
from kvstream.cli.rows import Row, Rows
from kvstream.cli.sources import Position, Source
from kvstream.errors import IDTooSmall, InvalidID, RequestError
from kvstream.ids import StreamID
from kvstream.store import Store
from kvstream.stream import Stream

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


class Bad(RequestError):
    """A row that cannot be added."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(f"line {row.line}: {reason}")


class SourceChanged(RequestError):
    """The source does not begin with what an earlier run has imported."""


class Import:
    """One run over one source into one stream."""

    def __init__(
        self,
        store: Store,
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
        self._stream = store.stream(target)
        self._source = source
        self._rows = rows
        self._placing = placing
        self._complain = complain
        self._position = Position()
        self._position.advance(rows.header.raw, rows.header.lines)
        identity = source.identity
        self._notebook = None if identity is None else Notebook(store, target, identity)

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
            with self._store.transaction():
                self._save(finished=True)

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

    def _commit(self, batch: Iterable[Row]) -> Bad | None:
        """Add a batch and note how far it came, all in one commit; return the row that stops it."""
        stop = None
        with self._store.transaction():
            for row in batch:
                bad = self._take(row)
                if bad is not None and self._complain is None:
                    stop = bad
                    break
                if bad is not None and self._complain is not None:
                    self._complain(bad)
                    self.totals.skipped += 1
                self._position.advance(row.raw, row.lines)
            self._save()
        return stop

    def _save(self, finished: bool = False) -> None:
        if self._notebook is not None:
            before = self.resumed.added if self.resumed else 0
            self._notebook.save(self._position, before + self.totals.added, finished)

    def _take(self, row: Row) -> Bad | None:
        """Add one row; return why it cannot be added, None where it is there now."""
        if row.pairs is None:
            return Bad(row, row.error)
        if not row.pairs:
            return None
        try:
            eid, pairs = self._placing(row)
            added = _add(self._stream, eid, pairs)
        except (Unplaceable, RequestError) as error:
            return Bad(row, str(error))
        self.totals.added += added
        self.totals.present += not added
        return None


def _add(stream: Stream, eid: str, pairs: Pairs) -> bool:
    """Add an entry; False where it is there already, with the same ID and fields."""
    try:
        stream.add(pairs, eid)
    except IDTooSmall:
        try:
            existing = stream.get(eid)
        except InvalidID:  # ms-*
            existing = None
        if existing is not None and list(existing.pairs) == pairs:
            return False
        raise RequestError(_refusal(stream, eid, existing is not None)) from None
    return True


def _refusal(stream: Stream, eid: str, exists: bool) -> str:
    if exists:
        return f"the stream has {eid} with other fields"
    last = stream.info().last_generated_id
    if eid == str(StreamID(0, 0)):
        return "0-0 is no ID of an entry"
    return f"{eid} does not lie above {last}, the last ID of the stream"
