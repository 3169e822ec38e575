"""How far imports have come: kept in the store itself, in the commit that adds the rows.

::

    key     kvstream:import:<32 hex digits>     of the target stream and the source's identity
    entry   stream source offset line added digest last_id entries_added finished

One entry, the latest, is kept. So a killed import and the rows it has added always agree. The note
of a finished import expires after ``FINISHED_DAYS``.
"""

from dataclasses import asdict, dataclass

import xxhash

from kvstream.cli.contracts import AnyStore, Changes
from kvstream.cli.placing import StreamEnd
from kvstream.cli.session import IMPORT_PREFIX
from kvstream.cli.sources import Position
from kvstream.errors import RequestError
from kvstream.ids import StreamID
from kvstream.records import Fields

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
