"""The archiver of one open store: puts its log and its snapshots into an object store.

It reads the logs of RocksDB from their files while they are written, and puts what is durable here
as numbered pieces. Each is created, never replaced: the number is the fence. Another owner takes
the next number, so the next piece of this one cannot be created: the store then refuses all writes.

With the durability ``archive`` writers wait for the piece that covers them (``make_durable``), as
they wait for the fsync with ``always``. Else a thread puts a piece every ``archive_interval_s``.

::

    ARCHIVE := JSON, in the directory of the store
      archive   the name of the archive
      epoch     the owner's opening that put the last piece; the next one has another
      next      that opening, noted before its fence is put
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from kvstream.archive import format as formats
from kvstream.archive.format import Piece, Snapshot, piece_key, snapshot_key, table_key
from kvstream.archive.history import History, read_history
from kvstream.archive.logs import Chunk, Logs, Position, oldest, reaches
from kvstream.archive.objects import Objects, refuse_overwriting
from kvstream.archive.retention import prune
from kvstream.errors import (
    ArchiveTaken,
    ArchiveUnavailable,
    Corruption,
    KVStreamError,
    StoreError,
    UnknownOutcome,
)
from kvstream.logs import DeferredLogger
from kvstream.storage import directory, files
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.storage.files import remove
from kvstream.types.clock import monotonic
from kvstream.types.options import Durability, StoreOptions

_log = DeferredLogger(__name__)

FILE_NAME = "ARCHIVE"
SAMPLE_S = 0.1
"""How often the last commit is noted with its time: the grain of the moments of a restore."""
BACKOFF_MAX_S = 30.0
TIMEOUT_S = 15.0
"""How long a writer waits for its piece with the durability ``archive``."""
AT_ONCE_BYTES = 64 << 20
"""The size of a store whose first snapshot is put before its opening returns: a second."""
SNAPSHOT_S = 6 * 3600.0
SNAPSHOT_UNFLUSHED = 1 << 20
"""Bytes of logs that a snapshot may need; more are flushed into tables first."""
SNAPSHOT_LOG_BYTES = 1 << 30
"""Bytes of logs after which a snapshot is made: a restore replays 50 MB a second."""
BACKLOG_BYTES_MAX = 4 << 30
"""Bytes of logs that are kept while the object store is away; then the history begins anew."""
_STOP_S = 10.0


@dataclass(slots=True)
class Status:
    """What an archiver has done, and how far it is behind."""

    url: str
    archive: str = ""
    epoch: str = ""
    state: str = "starting"
    """``follows``, ``unreachable``, ``taken``, ``failed`` or ``closed``."""
    error: str = ""
    piece: int = 0
    """The number of the last piece."""
    sequence: int = 0
    """The last commit that is in the archive."""
    put_ms: int = 0
    """When it was put: Unix ms."""
    behind_s: float = 0.0
    behind_bytes: int = 0
    snapshot_sequence: int = 0
    snapshot_ms: int = 0
    puts: int = 0
    put_bytes: int = 0


class Archiver:
    """Keeps an archive of one open store; its thread holds no lock of the engine."""

    def __init__(
        self,
        objects: Objects,
        database: Database,
        options: StoreOptions,
        committer: Committer,
        copy_files: Callable[[Path, int], object],
    ) -> None:
        """``copy_files`` copies the store into a new directory, with logs of at most some bytes."""
        self._objects, self._database, self._options = objects, database, options
        self._committer, self._copy_files = committer, copy_files
        self._state = Status(objects.url)
        self._shipping = threading.Lock()
        self._stop = threading.Event()
        self._next, self._before, self._base = 0, b"", 0
        self._needs_base = True
        self._times: list[tuple[int, int]] = []
        self._first_pieces: dict[int, int] = {}
        self._snapshots: list[Snapshot] = []
        self._log_bytes = 0
        self._behind_since: float | None = None
        self._snapshot_at = monotonic()
        self._logs = Logs(self._directory, Position(0, 0), -1)
        self._thread = threading.Thread(target=self._run, name="kvstream-archiver", daemon=True)
        directory.register(self)

    # --- the beginning --------------------------------------------------------------------------

    def start(self) -> None:
        """Become the owner of the archive, and begin to follow the store.

        Raises ArchiveTaken if another store continued the archive, ArchiveUnavailable. The first
        snapshot of a small store, or with the durability ``archive``, is made before this returns.
        """
        history = read_history(self._objects)
        if history.head is None:
            refuse_overwriting(self._objects)
        own = _Mark.read(self._directory())
        goes_on = self._goes_on(history, own)
        self._state.archive = history.head.archive if history.head else uuid4().hex
        self._next, self._before = history.next, history.sum
        self._snapshots = history.snapshots
        position, last = Position(oldest(self._directory()), 0), -1
        if goes_on and history.head is not None and history.position is not None:
            position, last = history.position, history.head.last
            self._base, self._needs_base = history.head.base, False
            self._state.sequence = last
        else:
            self._base = self._next
        self._logs = Logs(self._directory, position, last)
        self._take(own)
        waits = self._options.durability is Durability.ARCHIVE
        if self._needs_base and (waits or self._database.size_on_disk("") < AT_ONCE_BYTES):
            self._snapshot()
        self._state.state = "follows"
        self._thread.start()

    def _goes_on(self, history: History, own: "_Mark | None") -> bool:
        """Return whether the logs here go on where the archive ends."""
        head, url = history.head, self._objects.url
        if head is None:
            return False
        if own is None or own.archive != head.archive or head.epoch not in own.epochs:
            owner = self._owner_of(head)
            raise ArchiveTaken(
                f"the archive {url} was continued by {owner}, not by this store: to go on from its "
                "end, open a new directory with take_over (kvstream serve --take-over); to keep "
                "this store, give another URL"
            )
        here = self._database.sequence
        if head.last > here:
            raise ArchiveTaken(
                f"the archive {url} has commits up to {head.last}, this directory only up to "
                f"{here}: it has lost some, or is an old copy. To go on from the end of the "
                "archive, open a new directory with take_over; or give another URL"
            )
        return history.is_based and reaches(self._directory(), Position(*head.position))

    def _take(self, own: "_Mark | None") -> None:
        """Put the fence of this opening."""
        epoch, archive = uuid4().hex, self._state.archive
        _Mark(archive, own.epoch if own else "", epoch).write(self._directory())
        self._state.epoch = epoch
        self._put_piece(self._piece(self._logs.position, max(self._logs.last, 0)), b"")
        _Mark(archive, epoch, "").write(self._directory())

    def _piece(self, position: Position, last: int) -> Piece:
        """Return the next piece, so far a fence."""
        return Piece(
            number=self._next,
            archive=self._state.archive,
            epoch=self._state.epoch,
            before=self._before,
            last=last,
            position=position,
            base=self._base,
            written_ms=_now_ms(),
            owner=f"{socket.gethostname()}, process {os.getpid()}, {self._database.directory}",
        )

    def _owner_of(self, piece: Piece) -> str:
        """Return who has put a piece, in words."""
        return f"another owner ({piece.owner})"

    # --- pieces ---------------------------------------------------------------------------------

    def _put_piece(self, piece: Piece, raw: bytes) -> None:
        """Create the next piece; raise ArchiveTaken if another owner has its number."""
        data = formats.encode(piece, raw)
        key = piece_key(piece.number)
        if not self._objects.create(key, data):
            found = self._objects.get(key)
            if found != data:  # equal: it is this one, whose answer was lost
                raise self._taken(key, found or b"")
        self._next, self._before = piece.number + 1, formats.sum_of(data)
        self._state.piece, self._state.put_ms = piece.number, piece.written_ms
        self._state.puts += 1
        self._state.put_bytes += len(data)

    def _taken(self, key: str, data: bytes) -> ArchiveTaken:
        """Refuse all writes from now on; return the error."""
        who = "another owner"
        with suppress(KVStreamError):
            other, _ = formats.decode(Piece, key, data)
            who = self._owner_of(other)
        error = ArchiveTaken(
            f"{who} has taken over the archive {self._objects.url}: this store refuses all writes, "
            "since they would be lost; its last writes may be missing there"
        )
        self._database.write_guard.shut(error)
        self._state.state, self._state.error = "taken", str(error)
        _log.error("%s", error)
        return error

    def ship(self, until: int | None = None) -> None:
        """Put the commits that are durable here and not in the archive, up to ``until``."""
        if until is None:
            until = self._make_local()
        with self._shipping:
            while self._logs.last < until:
                chunk = self._logs.read(until)
                if not chunk.parts:
                    if self._logs.last >= 0:
                        raise Corruption(f"the logs lack the commits {chunk.last + 1} to {until}")
                    self._logs.last = until  # all of it is in tables
                    return
                self._put_chunk(chunk)

    def _make_local(self) -> int:
        """Make what is written durable here; return its last sequence number.

        Power loss must not take what is in the archive: the store would be behind it.
        """
        committer = self._committer
        if committer.level is not Durability.ARCHIVE:
            return committer.sync()
        if committer.flushed_sequence < self._database.sequence:
            return committer.flush_if_free()
        return committer.flushed_sequence

    def _put_chunk(self, chunk: Chunk) -> None:
        times = [each for each in self._times if each[1] <= chunk.last]
        self._times = self._times[len(times) :]
        if not times or times[-1][1] < chunk.last:  # it was not looked at since
            times.append((_now_ms(), chunk.last))
        fence = self._piece(chunk.position, chunk.last)
        piece = replace(fence, parts=chunk.parts, times=times)
        self._put_piece(piece, chunk.raw)
        for part in chunk.parts:
            if part.offset == 0:
                self._first_pieces[part.log] = piece.number
        self._log_bytes += len(chunk.raw)
        self._logs.take(chunk)
        self._state.sequence = chunk.last

    def make_durable(self, sequence: int) -> None:
        """Wait until a commit can be restored; UnknownOutcome if that takes too long."""
        until = monotonic() + TIMEOUT_S
        pause_s = SAMPLE_S
        while True:
            reason = "its first snapshot is being made"
            try:
                self.ship(sequence)
                if not self._needs_base:
                    return
            except ArchiveTaken as error:
                raise UnknownOutcome(str(error)) from None
            except (ArchiveUnavailable, Corruption) as error:
                reason = str(error)
            if monotonic() + pause_s > until or self._stop.wait(pause_s):
                raise UnknownOutcome(f"the write is durable here and not in the archive: {reason}")
            pause_s = min(2 * pause_s, 1.0)

    # --- snapshots ------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Begin the history anew: the logs that were not read are given up, or damaged."""
        with self._shipping:
            self._base, self._needs_base = self._next, True
            self._first_pieces = {}
            self._logs = Logs(self._directory, Position(oldest(self._directory()), 0), -1)
            self._put_piece(self._piece(self._logs.position, max(self._state.sequence, 0)), b"")

    def _snapshot(self) -> None:
        """Put the files of the store as they are now, once the logs up to then are there."""
        stage = self._database.staging() / f"archive-{uuid4().hex}"
        try:
            self._copy_files(stage, SNAPSHOT_UNFLUSHED)
            sequence = self._database.sequence
            tables = dict(self._put_tables(stage))
            small = {path.name: path.read_bytes() for path in _small_files(stage)}
            first_log = oldest(stage)
        finally:
            remove(stage)
        self.ship()
        while self._logs.last < sequence:
            if self._stop.wait(SAMPLE_S):
                return
            self.ship()
        with self._shipping:
            first_piece = self._first_piece(first_log)
            snapshot = Snapshot(
                archive=self._state.archive,
                epoch=self._state.epoch,
                sequence=sequence,
                written_ms=_now_ms(),
                piece=self._next,
                first_piece=first_piece,
                first_log=first_log,
                tables=tables,
                files=small,
            )
        self._put_snapshot(snapshot)
        prune(self._objects, self._snapshots, self._options.archive_keep_s)

    def _first_piece(self, log: int) -> int:
        """Return the number of a piece before which there are no bytes of a log."""
        if log > self._logs.position.log:
            return self._next - 1
        newest = self._snapshots[-1].first_piece if self._snapshots else 0
        return self._first_pieces.get(log, max(self._base, newest))

    def _put_snapshot(self, snapshot: Snapshot) -> None:
        data = formats.encode(snapshot)
        self._objects.create(snapshot_key(snapshot.sequence), data)  # there may be one: as good
        self._snapshots.append(snapshot)
        self._state.snapshot_sequence = snapshot.sequence
        self._state.snapshot_ms = snapshot.written_ms
        self._state.puts += 1
        self._state.put_bytes += len(data)
        self._log_bytes, self._snapshot_at, self._needs_base = 0, monotonic(), False
        self._first_pieces = {
            log: piece for log, piece in self._first_pieces.items() if log >= snapshot.first_log
        }

    def _put_tables(self, stage: Path) -> Iterator[tuple[str, tuple[str, int]]]:
        """Put the tables that no snapshot has; yield name, digest and size of each."""
        known = self._snapshots[-1].tables if self._snapshots else {}
        for path in sorted(stage.iterdir()):
            if path.suffix not in (".sst", ".blob"):
                continue
            size = path.stat().st_size
            found = known.get(path.name)
            if found is None or found[1] != size:
                if self._stop.is_set():
                    raise ArchiveUnavailable("the store is being closed")
                data = path.read_bytes()
                digest = sha256(data).hexdigest()
                self._objects.create(table_key(digest), data)
                self._state.puts += 1
                self._state.put_bytes += size
                found = digest, size
            yield path.name, (found[0], found[1])

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        failures, ship_at = 0, monotonic()
        while not self._stop.wait(SAMPLE_S):
            self._sample()
            if monotonic() < ship_at:
                continue
            try:
                self._work()
            except ArchiveTaken:
                return
            except Exception as error:  # the thread must not end
                failures += 1
                self._note_failure(error, failures)
            else:
                if failures:
                    _log.info("the archive %s is reached again", self._objects.url)
                failures = 0
                self._state.state, self._state.error = "follows", ""
            interval_s = self._options.archive_interval_s
            ship_at = monotonic() + (
                min(2.0 ** (failures - 1), BACKOFF_MAX_S) if failures else interval_s
            )

    def _sample(self) -> None:
        """Note the last commit with the time, if there are new ones."""
        sequence = self._database.sequence
        if sequence > (self._times[-1][1] if self._times else self._state.sequence):
            self._times.append((_now_ms(), sequence))
        self._note_lag(sequence)

    def _note_lag(self, sequence: int) -> None:
        if sequence <= self._state.sequence:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = monotonic()

    def _work(self) -> None:
        """Put what is new; make a snapshot when it is due."""
        try:
            if self._logs.unread_bytes() > BACKLOG_BYTES_MAX:
                raise Corruption(
                    f"more than {BACKLOG_BYTES_MAX} bytes of logs wait for the archive"
                )
            self.ship()
        except Corruption as error:
            _log.warning("the archive %s begins anew: %s", self._objects.url, error)
            self._begin_anew()
        is_old = monotonic() - self._snapshot_at > SNAPSHOT_S and self._log_bytes
        if is_old or self._log_bytes > SNAPSHOT_LOG_BYTES or self._needs_base:
            self._snapshot()

    def _note_failure(self, error: Exception, failures: int) -> None:
        away, known = isinstance(error, ArchiveUnavailable), isinstance(error, KVStreamError)
        self._state.state, self._state.error = ("unreachable" if away else "failed"), str(error)
        if failures == 1:
            _log.warning("%s; it is tried again", repr(error) if not known else error)

    # --- looking, and the end -------------------------------------------------------------------

    def status(self) -> Status:
        """Return what is in the archive, and how far it is behind."""
        state = self._state
        since = self._behind_since
        state.behind_s = 0.0 if since is None else monotonic() - since
        with suppress(StoreError, OSError):
            state.behind_bytes = self._logs.unread_bytes() if since is not None else 0
        return state

    def close(self) -> None:
        """Put what is left, and stop; a store that cannot reach its archive closes all the same."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        if self._state.state in ("follows", "unreachable"):
            try:
                self.ship(self._committer.durable_sequence)
                self._state.state = "closed"
            except KVStreamError as error:
                _log.warning("the last writes are not in the archive yet: %s", error)
        directory.unregister(self)

    def refuse_after_fork(self) -> None:
        """Do nothing in a forked child, which has neither the thread nor the connections."""
        self._state.state = "closed"

    def _directory(self) -> Path:
        return self._database.own_path


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the directory of a store says about its archive."""

    archive: str
    epoch: str
    next: str

    @property
    def epochs(self) -> tuple[str, ...]:
        """The openings that were this store's."""
        return self.epoch, self.next

    @classmethod
    def read(cls, directory: Path) -> "_Mark | None":
        try:
            found: dict[str, Any] = json.loads(files.read(directory / FILE_NAME))
            return cls(found["archive"], found["epoch"], found["next"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"the file {FILE_NAME} of the store is damaged: {error}") from None

    def write(self, directory: Path) -> None:
        names = {"archive": self.archive, "epoch": self.epoch, "next": self.next}
        files.write(directory / FILE_NAME, json.dumps(names).encode())


def note_owner(directory: Path, archive: str, epoch: str) -> None:
    """Note in the directory of a restored store that it continues an archive."""
    _Mark(archive, epoch, "").write(directory)


def _now_ms() -> int:
    """Return the Unix time, by which people choose a moment to restore."""
    return time.time_ns() // 1_000_000


def _small_files(stage: Path) -> Iterator[Path]:
    for path in sorted(stage.iterdir()):
        if path.is_file() and path.suffix not in (".sst", ".blob", ".log"):
            yield path
