"""An import: rows are added in batches, and each commit also writes the progress of the import.

Progress is one entry in a stream of the same database, so it always agrees with the rows. The
stream of a finished import expires after ``FINISHED_DAYS``::

    key     kvstream:import:<32 hex digits>     hash of the target stream and the source's identity
    entry   stream source offset line added digest last_id entries_added finished

The IDs of rows are given in the row, in a column, by a time, or new. A server replies only after
all rows of a commit were sent, so ``StreamEnd`` works out beforehand whether a row can have its ID.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import Enum, auto
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import xxhash

from kvstream.cli.file_formats import Position, Row, Rows, Source
from kvstream.cli.json_values import Pairs
from kvstream.cli.output import Progress
from kvstream.cli.session import IMPORT_PREFIX, atomically
from kvstream.errors import InvalidArgument, RequestError
from kvstream.types.ids import MIN_ID, U64_MAX, AddID, StreamID, parse_add_id, time_ms
from kvstream.types.records import Fields

if TYPE_CHECKING:
    from kvstream.layout.values import FieldsLike
    from kvstream.store import Store

UNIX_UNITS = {
    "s": Decimal(1000),
    "ms": Decimal(1),
    "us": Decimal("0.001"),
    "ns": Decimal("0.000001"),
}
TIME_FORMATS = ("iso", *UNIX_UNITS)

TimeParser = Callable[[str], int | None]


def _iso_ms(text: str) -> int | None:
    """Parse a time; words such as ``yesterday`` are refused: they change from run to run."""
    try:
        return time_ms(datetime.fromisoformat(text))
    except ValueError:
        return None


class BadID(ValueError):
    """A row has no valid ID or time."""


@dataclass(frozen=True, slots=True)
class RowIDs:
    """Chooses the ID of each row."""

    id_column: bytes | None = None
    time_column: bytes | None = None
    parse_time: TimeParser = _iso_ms
    new_ids: bool = False

    def depend_on_stream(self, rows: Sequence[Row]) -> bool:
        """Return whether a row asks for an ID, which the stream may have or refuse."""
        in_column = self.id_column is not None or self.time_column is not None
        return not self.new_ids and (in_column or any(row.eid is not None for row in rows))

    def __call__(self, row: Row) -> tuple[str, AddID, Pairs]:
        """Return the ID to ask for, as text and decoded, and the fields to add; raises BadID.

        The column with the ID does not become a field; the column with the time does.
        """
        pairs = row.pairs or []
        eid = row.eid
        if self.id_column is not None:
            eid, pairs = _without_id(pairs, self.id_column)
        elif self.time_column is not None:
            eid = self._of_time(pairs, self.time_column)
        if eid is None or self.new_ids:
            return "*", None, pairs
        try:
            return eid, parse_add_id(eid), pairs
        except InvalidArgument:
            raise BadID(f"{eid!r} is not an ID (ms-seq)") from None

    def _of_time(self, pairs: Pairs, column: bytes) -> str:
        value = _value(pairs, column)
        ms = self.parse_time(value)
        if ms is None or not 0 <= ms <= U64_MAX:
            raise BadID(f"{value!r} is not a time in the chosen --time-format")
        return f"{ms}-*"


@dataclass(slots=True)
class StreamEnd:
    """The end of a stream, including the rows of this commit so far."""

    last_id: StreamID
    entries_added: int
    is_exact: bool = True
    """False after a row whose ID the store chooses: that ID is ``last_id`` or above."""

    @classmethod
    def of(cls, store: Store, target: bytes) -> StreamEnd:
        if not store.exists(target):
            return cls(MIN_ID, 0)
        info = store.stream(target).info()
        return cls(info.last_generated_id, info.entries_added)

    def following(self, eid: StreamID | int) -> StreamID | None:
        """Return the ID of an entry that asks for ``eid``; None if it is too small."""
        if isinstance(eid, StreamID):
            return eid if eid > self.last_id else None
        if eid == self.last_id.ms:
            following = self.last_id.next()
            return following if eid == following.ms else None
        return StreamID(eid, 0) if eid > self.last_id.ms else None

    def count(self, eid: StreamID) -> None:
        """Count an added entry whose ID is known."""
        self.last_id = eid
        self.entries_added += 1

    def count_new(self) -> None:
        """Count an added entry whose ID the store chooses."""
        if self.is_exact:
            self.last_id = self.last_id.next()
            self.is_exact = False
        self.entries_added += 1


def _value(pairs: Pairs, column: bytes) -> str:
    for name, value in pairs:
        if name == column:
            return value.decode("utf-8", "replace").strip()
    raise BadID(f"the row has no field {column.decode('utf-8', 'replace')!r}")


def _without_id(pairs: Pairs, column: bytes) -> tuple[str, Pairs]:
    value = _value(pairs, column)
    rest = [pair for pair in pairs if pair[0] != column]
    if not rest:
        raise BadID("the row has no fields beside the ID")
    return value, rest


def time_parser(text: str) -> TimeParser:
    """Return the parser of a format: one of ``TIME_FORMATS``, or a pattern of strptime."""
    if text in UNIX_UNITS:
        return partial(_unix_ms, UNIX_UNITS[text])
    return _iso_ms if text == "iso" else partial(_pattern_ms, text)


def _unix_ms(unit: Decimal, text: str) -> int | None:
    try:
        return int(Decimal(text) * unit)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _pattern_ms(pattern: str, text: str) -> int | None:
    try:
        return time_ms(datetime.strptime(text, pattern))
    except ValueError:
        return None


FINISHED_DAYS = 30
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """How far an import has come."""

    stream: bytes
    source: bytes
    offset: int
    line: int
    added: int
    """Entries that all runs have added."""
    digest: bytes
    """Hash of all bytes before ``offset``."""
    last_id: bytes
    entries_added: int
    finished: int


def _decode_progress(fields: Fields) -> SavedProgress:
    return SavedProgress(
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


class ProgressStream:
    """The stream with the progress of one source and one target."""

    def __init__(self, store: Store, target: bytes, source: bytes) -> None:
        self._store = store
        self._target = target
        self._source = source
        digest = xxhash.xxh3_128(len(target).to_bytes(4, "big") + target + source).hexdigest()
        self.key = IMPORT_PREFIX + digest.encode()

    def load(self) -> SavedProgress | None:
        """Return the progress of an earlier run; None if there is none, or it is out of date."""
        latest = self._store.stream(self.key).revrange(count=1)
        if not latest or not latest[0].fields:
            return None
        try:
            saved = _decode_progress(latest[0].fields)
        except (KeyError, ValueError):
            raise RequestError(
                f"{self.key.decode()} has no valid progress: --again starts at the first line"
            ) from None
        return saved if self._is_current(saved) else None

    def _is_current(self, saved: SavedProgress) -> bool:
        """Return whether the target is the stream of that import, and not a later one."""
        last_id = StreamID.parse(saved.last_id)
        if not self._store.exists(self._target):
            return last_id == MIN_ID  # there was none then either
        info = self._store.stream(self._target).info()
        return info.last_generated_id >= last_id and info.entries_added >= saved.entries_added

    def save(self, end: StreamEnd, position: Position, added: int, finished: bool) -> None:
        """Write the progress, in the commit that adds the rows up to ``position``."""
        saved = SavedProgress(
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
        fields = {**asdict(saved), "digest": saved.digest.hex()}
        self._store.stream(self.key).add(fields, maxlen=1)
        if finished:
            self._store.expire(self.key, FINISHED_DAYS * _DAY_S)
        else:
            self._store.persist(self.key)


_LOOKUP_ENTRIES = 100
"""Entries that one lookup of an existing ID reads: the next rows usually follow them."""


class BadRow(RequestError):
    """A row that cannot be added."""

    def __init__(self, row: Row, reason: str) -> None:
        super().__init__(f"line {row.line}: {reason}")


class CommitFirst(Exception):
    """The rows before this one must be committed before it can be added."""


class Outcome(Enum):
    """What happened to a row."""

    ADDED = auto()
    PRESENT = auto()
    """The stream has an entry with this ID and these fields."""
    BLANK = auto()


class RowAdder:
    """Adds rows in one commit. A server reads nothing after the first write, so that comes last."""

    def __init__(self, store: Store, target: bytes, end: StreamEnd, row_ids: RowIDs) -> None:
        self._stream = store.stream(target)
        self._end = end
        self._row_ids = row_ids
        self._adds: list[tuple[StreamID | str, Pairs]] = []
        self._known: dict[StreamID, Pairs] = {}
        """Entries that the stream has, or that this commit adds."""

    def add(self, row: Row) -> Outcome:
        """Add a row unless the stream has it; raises BadRow and CommitFirst."""
        if row.pairs is None:
            raise BadRow(row, row.error)
        if not row.pairs:
            return Outcome.BLANK
        try:
            return self._add(*self._row_ids(row))
        except (BadID, RequestError) as error:
            raise BadRow(row, str(error)) from None

    def _add(self, text: str, asked: AddID, pairs: Pairs) -> Outcome:
        if asked is None:
            self._end.count_new()
        elif not self._end.is_exact:
            raise CommitFirst
        elif (eid := self._end.following(asked)) is None:
            self._check_present(text, asked, pairs)
            return Outcome.PRESENT
        else:
            self._end.count(eid)
            self._known[eid] = pairs
        self._adds.append((asked if isinstance(asked, StreamID) else text, pairs))
        return Outcome.ADDED

    def write(self) -> None:
        """Write the rows."""
        if self._adds:
            ids, fields = zip(*self._adds, strict=True)
            wanted = None if ids.count("*") == len(ids) else ids
            self._stream.add_many(map(_without_repeats, fields), ids=wanted)

    def _check_present(self, text: str, eid: AddID, pairs: Pairs) -> None:
        """Raise RequestError unless the stream has an entry with this ID and these fields."""
        present = self._lookup(eid) if isinstance(eid, StreamID) else None
        if present == pairs:
            return
        if present is not None:
            raise RequestError(f"the stream has an entry {text} with other fields")
        if eid == MIN_ID:
            raise RequestError(f"{MIN_ID} cannot be the ID of an entry")
        last = self._end.last_id
        raise RequestError(
            f"{text} is not greater than {last}, the last ID of the stream: sort the rows by ID or "
            "time, or assign new IDs with --new-ids"
        )

    def _lookup(self, eid: StreamID) -> Pairs | None:
        if eid not in self._known:
            for entry in self._stream.range(eid, "+", _LOOKUP_ENTRIES):
                self._known[entry.id] = list(entry.pairs)
        return self._known.get(eid)


def _without_repeats(pairs: Pairs) -> FieldsLike:
    """Return pairs as a dict, which is encoded faster, unless a field repeats."""
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else pairs


BATCH_ROWS = 1000
BATCH_BYTES = 8 << 20
"""Limits of one commit, so that memory is bounded and the progress bar moves."""


@dataclass(slots=True)
class Totals:
    """Rows of a run, by outcome."""

    added: int = 0
    present: int = 0
    """The stream had an entry with the same ID and fields."""
    skipped: int = 0
    """Bad rows."""

    @property
    def rows(self) -> int:
        return self.added + self.present + self.skipped

    def count(self, more: Totals) -> None:
        """Add the rows of one commit."""
        self.added += more.added
        self.present += more.present
        self.skipped += more.skipped


class SourceChanged(RequestError):
    """The source has changed in the part that was imported."""


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C after the block; a second Ctrl-C raises it at once."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # such as under nohup
        yield
        return
    interrupted = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


@dataclass(slots=True)
class _Commit:
    """The result of one commit."""

    position: Position
    end: StreamEnd
    rows: int = 0
    totals: Totals = field(default_factory=Totals)
    bad: list[BadRow] = field(default_factory=list)


class Import:
    """One run of an import, from one source into one stream."""

    def __init__(
        self,
        store: Store,
        target: bytes,
        source: Source,
        rows: Rows,
        row_ids: RowIDs,
        on_bad_row: Callable[[BadRow], None] | None = None,
    ) -> None:
        """``on_bad_row`` gets bad rows, which are skipped; None: the first one stops the run."""
        self.totals = Totals()
        self.in_doubt = False
        """Whether a commit has ended without a result; ``totals`` and ``line`` do not count it."""
        self.resumed: SavedProgress | None = None
        """The progress of an earlier run, if ``resume`` found one."""
        self._store = store
        self._target = target
        self._source = source
        self._rows = rows
        self._row_ids = row_ids
        self._on_bad_row = on_bad_row
        self._position = Position()
        self._position.advance(rows.header.raw, rows.header.lines)
        identity = source.identity
        self._progress = None if identity is None else ProgressStream(store, target, identity)
        self._progress_keys = [] if self._progress is None else [self._progress.key]

    def resume(self) -> None:
        """Skip the rows of an earlier run; SourceChanged if they are not there."""
        saved = self.resumed = self._progress.load() if self._progress else None
        if saved is None:
            return
        self._position.skip(self._source, saved.offset, saved.line)
        if (self._position.offset, self._position.digest) != (saved.offset, saved.digest):
            raise SourceChanged(
                f"{self._source.label} has changed in its first {saved.line:,} lines, which were "
                "imported before: --again starts at the first line"
            )
        self._rows.resume(saved.line)

    @property
    def line(self) -> int:
        """The last line that was committed."""
        return self._position.line

    def run(self, advance: Progress) -> None:
        """Add all rows, batch by batch; raises BadRow if a bad row stops the run."""
        advance(self._position.offset, 0)
        for batch in self._batches():
            bad = self._commit(batch)
            advance(self._position.offset, self.totals.rows)
            if bad is not None:
                raise bad
        if self._progress is not None:
            end = StreamEnd.of(self._store, self._target)
            atomically(self._store, partial(self._save, _Commit(self._position, end), True))

    def _batches(self) -> Iterator[list[Row]]:
        """Yield batches of rows; a batch also ends when a pipe has no more data for now."""
        batch: list[Row] = []
        size = 0
        is_pipe, must_wait = self._source.is_pipe, self._source.must_wait
        for row in self._rows:
            batch.append(row)
            size += len(row.raw)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES or (is_pipe and must_wait()):
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _commit(self, batch: Sequence[Row]) -> BadRow | None:
        """Add a batch, usually in one commit; return the row that stops the import."""
        while batch:
            # What is read in the transaction must not change until its end.
            depends = self._row_ids.depend_on_stream(batch)
            end = None if depends else StreamEnd.of(self._store, self._target)
            with defer_interrupt():
                self.in_doubt = True
                done = atomically(self._store, partial(self._add, batch, end))
                self._position = done.position
                self.totals.count(done.totals)
                self.in_doubt = False
            for bad in done.bad:
                if self._on_bad_row is None:
                    return bad
                self._on_bad_row(bad)
            batch = batch[done.rows :]
        return None

    def _add(self, rows: Sequence[Row], end: StreamEnd | None) -> _Commit:
        """Add rows and the progress, up to a bad row that stops the import.

        If a row with its own ID follows a row that gets a new ID, it waits for the next commit: the
        new ID is not known before.
        """
        end = replace(end) if end else StreamEnd.of(self._store, self._target)
        done = _Commit(self._position.copy(), end)
        adder = RowAdder(self._store, self._target, done.end, self._row_ids)
        for row in rows:
            try:
                outcome = adder.add(row)
            except CommitFirst:
                break
            except BadRow as bad:
                done.bad.append(bad)
                if self._on_bad_row is None:
                    break
                done.totals.skipped += 1
            else:
                done.totals.added += outcome is Outcome.ADDED
                done.totals.present += outcome is Outcome.PRESENT
            done.rows += 1
        taken = rows[: done.rows]
        done.position.advance(b"".join([row.raw for row in taken]), sum(row.lines for row in taken))
        saves = done.rows or any(map(self._store.exists, self._progress_keys))
        adder.write()
        if saves:
            self._save(done, finished=False)
        return done

    def _save(self, done: _Commit, finished: bool) -> None:
        if self._progress is not None:
            before = self.resumed.added if self.resumed else 0
            added = before + self.totals.added + done.totals.added
            self._progress.save(done.end, done.position, added, finished)
