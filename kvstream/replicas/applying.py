"""Apply the log of a primary to a replica: bytes of log files in, commits out.

Records are joined to larger commits: a replica that is behind makes one of what a primary has made
many. A commit ends behind a whole record, and has the history row with that position. Records that
are there already may be applied again: rows are whole values.

The primary's own history row is no row of the replica's: it begins an epoch here, too. In the log
of a primary that was a replica before, each commit of that time has one, with its position.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvstream.errors import Corruption, LostWrites
from kvstream.layout.history import History, Place
from kvstream.layout.keys import HISTORY_KEY
from kvstream.storage.batch import Batch, Family, Rows
from kvstream.storage.log import DELETE_RANGE, LogReader, Record

JOINED_BYTES = 64 << 10
"""Bytes of records that are one commit: readers wait for its millisecond at most."""

Write = Callable[[Batch, History], None]


@dataclass(slots=True)
class Applied:
    """What a replica has done since its link began."""

    records: int = 0
    commits: int = 0
    bytes: int = 0


class Applier:
    """Takes the log over from one position on."""

    def __init__(
        self,
        rows: Rows,
        history: History,
        place: Place,
        sequence: int,
        families: dict[int, Family],
        write: Write,
    ) -> None:
        """``place`` is the last row that is there, with the number ``sequence`` in the log.

        ``history`` is the replica's own. ``write`` commits a batch, with its position.
        """
        self.history = history.at(place.lsn)
        self._rows, self._families, self._write = rows, families, write
        self._sequence, self._distance = sequence, place.lsn - sequence
        self._log, self._at = -1, 0
        self._reader = LogReader()
        self._batch = Batch(rows)
        self._size = 0
        self.applied = Applied()

    @property
    def lsn(self) -> int:
        """The position of the last commit."""
        return self.history.lsn

    def feed(self, log: int, offset: int, data: bytes) -> None:
        """Take bytes of a log, and commit what is whole.

        Raises LostWrites if they do not follow those before, Corruption if they are damaged; then
        it takes no more.
        """
        if log != self._log:  # what was left unread of the former one is a torn end
            self._log, self._at, self._reader = log, offset, LogReader(offset)
        if offset != self._at:
            raise LostWrites(f"{log:06}.log goes on at {offset}, not at {self._at}")
        self._at += len(data)
        self.applied.bytes += len(data)
        for record in self._reader.feed(data):
            self._take(record)
            if self._size >= JOINED_BYTES:
                self._commit()
        self._commit()

    def _take(self, record: Record) -> None:
        """Add the rows of a record to the commit."""
        if record.sequence != self._sequence + 1:
            raise LostWrites(
                f"the log of the primary goes on with row {record.sequence}, where "
                f"{self._sequence + 1} is next"
            )
        puts, families = self._batch.puts, self._families
        begins: bytes | None = None
        try:
            for number, kind, key, value in record.rows():
                family = families[number]
                if kind == DELETE_RANGE:
                    self._batch.delete_range(family, key, value or b"")
                elif family == Family.METADATA and key == HISTORY_KEY:
                    begins = value
                else:
                    puts[family][key] = value
        except KeyError:
            raise Corruption(f"record {record.sequence} has rows of an unknown family") from None
        self._sequence = record.last
        self._size += len(record.data)
        self.applied.records += 1
        if begins is not None:  # of a primary its first row, of a former replica each commit
            self.history = History.decode(begins)
            self._distance = self.history.lsn - record.last
        self.history = self.history.at(record.last + self._distance)

    def _commit(self) -> None:
        """Write what was taken."""
        if not self._size:
            return
        self._batch.puts[Family.METADATA][HISTORY_KEY] = self.history.encode()
        batch, self._batch, self._size = self._batch, Batch(self._rows), 0
        self._write(batch, self.history)
        self.applied.commits += 1
