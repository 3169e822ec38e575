"""The archiver of one open store: puts its log and its snapshots into an object store.

It reads the logs of RocksDB from their files while they are written, and puts what is durable here
as numbered pieces. Each is created, never replaced: the number is the fence. Another owner takes
the next number, so the next piece of this one cannot be created: the store then refuses all writes.

With the durability ``archive`` writers wait for the piece that covers them (``make_durable``), as
they wait for the fsync with ``always``. Else a thread puts a piece every ``archive_interval_s``.

A snapshot is put by a thread of its own, since it may take hours: the pieces go on meanwhile. So do
they while another thread merges old ones (merging.py).
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from kvstream.archive import format as formats
from kvstream.archive.format import (
    TABLES,
    Piece,
    Snapshot,
    piece_key,
    snapshot_key,
    table_key,
)
from kvstream.archive.history import History, put_fence, read_history
from kvstream.archive.logs import Chunk, Logs, Position, oldest, reaches
from kvstream.archive.mark import Mark, owner_at
from kvstream.archive.merging import Merger
from kvstream.archive.objects import Objects, refuse_overwriting
from kvstream.archive.retention import SNAPSHOT, Pin, pin, prune, unpin_snapshots
from kvstream.archive.tables import Digests
from kvstream.archive.times import Times
from kvstream.errors import (
    ArchiveTaken,
    ArchiveUnavailable,
    Corruption,
    DataError,
    KVStreamError,
    StoreError,
    UnknownOutcome,
    WrongArchiveKey,
)
from kvstream.logs import DeferredLogger
from kvstream.storage import directory
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.storage.files import remove
from kvstream.types.clock import monotonic, now_ms
from kvstream.types.options import Durability, StoreOptions

_log = DeferredLogger(__name__)

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
_NO_LOG = 1 << 62
"""A number that no log has."""


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
    """The last commit that is in a piece."""
    put_ms: int = 0
    """When it was put: Unix ms."""
    behind_s: float = 0.0
    behind_bytes: int = 0
    snapshot_sequence: int = 0
    snapshot_ms: int = 0
    snapshot_error: str = ""
    """Why the last snapshot failed; it is tried again."""
    puts: int = 0
    put_bytes: int = 0

    @property
    def reached(self) -> int:
        """The last commit that can be restored; those before a history are in a snapshot alone."""
        return max(self.sequence, self.snapshot_sequence)


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
        self._path = database.own_path
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._path = directory.path_through(self._descriptor, database.directory)
        self._shipping, self._snapshotting = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._next, self._before, self._base = 0, b"", 0
        self._bytes = 0
        """The bytes of all pieces before the next one."""
        self._needs_base = True
        self._times = Times()
        self._first_pieces: dict[int, int] = {}
        self._snapshots: list[Snapshot] = []
        self._digests = Digests(self._path)
        self._log_bytes = 0
        """Bytes of logs that a restore of the end replays; after an opening only whether some."""
        self._behind_since: float | None = None
        self._snapshot_at = monotonic()
        self._snapshot_again_at, self._snapshot_failures = 0.0, 0
        self._logs = self._logs_from(Position(0, 0), -1)
        self._is_owner = False
        """Its fence is in the archive: before that it must put nothing."""
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._run, name="kvstream-archiver", daemon=True)
        self._clock_thread = threading.Thread(
            target=self._note_commits, name="kvstream-archiver-clock", daemon=True
        )
        self._snapshot_thread = threading.Thread()
        self._merger = Merger(objects, self._stop.is_set)
        self._merge_thread = threading.Thread()
        self._merge_again_at, self._merge_failures = 0.0, 0
        directory.register(self)

    def _logs_from(self, position: Position, last: int) -> Logs:
        return Logs(self._directory, position, last, self._trim)

    def _trim(self, needed: int) -> None:
        """Remove the kept logs before a number that nobody else needs either."""
        if not self._is_abandoned:
            self._database.trim_logs("archive", needed, self._path)

    # --- the beginning --------------------------------------------------------------------------

    def start(self) -> None:
        """Become the owner of the archive, and begin to follow the store.

        Raises ArchiveTaken if another store continued the archive, ArchiveUnavailable. The first
        snapshot of a small store, or with the durability ``archive``, is made before this returns.
        """
        while not self._begin(read_history(self._objects)):
            pass  # a piece that a former process of this store had sent came late
        waits = self._options.durability is Durability.ARCHIVE
        if self._needs_base and (waits or self._database.size_on_disk("") < AT_ONCE_BYTES):
            self._snapshot()
        self._state.state = "follows"
        _open_archivers.add(self)
        self._thread.start()
        self._clock_thread.start()

    def take(self) -> None:
        """Become the owner in place of whoever is it, and begin the history anew, in a thread.

        It tries until it has succeeded, or is abandoned: until then the archive gets nothing.
        """
        self._thread = threading.Thread(
            target=self._take_and_run, name="kvstream-archiver", daemon=True
        )
        _open_archivers.add(self)
        self._thread.start()

    def _take_and_run(self) -> None:
        failures = 0
        while not self._stop.wait(_backoff_s(failures) if failures else 0.0):
            try:
                with self._committer.refuse_calls():
                    while not self._begin(read_history(self._objects), takes=True):
                        pass
            except Exception as error:  # it is tried again
                failures += 1
                self._note_failure(error, failures)
            else:
                _log.info("this store owns the archive %s now", self._objects.url)
                self._state.state, self._state.error = "follows", ""
                self._clock_thread.start()
                self._run()
                return

    def _begin(self, history: History, takes: bool = False) -> bool:
        """Put the fence of this opening; return whether its number was free.

        If it ``takes`` the archive, that may belong to another store, and begins anew with this.
        """
        head, place = history.head, self._directory()
        if head is None:
            refuse_overwriting(self._objects)
        goes_on = not takes and self._goes_on(history, Mark.read(place))
        archive, epoch = head.archive if head else uuid4().hex, uuid4().hex
        self._times = Times(head.latest_ms if head else 0)
        self._state.archive, self._state.epoch = archive, epoch
        self._next, self._before, self._bytes = history.next, history.sum, history.bytes
        self._snapshots = history.snapshots
        self._base, self._needs_base = self._next, not goes_on
        position, last = Position(oldest(place), 0), -1
        if goes_on and head is not None:
            position, last, self._base = Position(*head.position), head.last, head.base
            self._log_bytes = history.next - history.snapshots[-1].piece
            age_ms = now_ms() - history.snapshots[-1].written_ms
            self._snapshot_at = monotonic() - max(age_ms, 0) / 1000
        self._logs = self._logs_from(position, last)
        if takes:
            self._logs.trim()  # the later ones are kept from now on
        self._state.sequence = max(last, 0)
        Mark(archive, head.epoch if head and not takes else "", epoch).write(place)
        fence = self._piece(position, max(last, 0))
        data = put_fence(self._objects, fence)
        if data is None:
            return False
        self._count(fence, data)
        Mark(archive, epoch).write(place)
        self._is_owner = True
        return True

    def _goes_on(self, history: History, own: "Mark | None") -> bool:
        """Return whether the logs here go on where the archive ends."""
        head, url = history.head, self._objects.url
        if head is None:
            return False
        if own is None or own.archive != head.archive or head.epoch not in own.epochs:
            raise ArchiveTaken(
                f"the archive {url} was continued by {_owner_of(head)}, not by this store: to go "
                "on from its end, open a new directory with take_over (kvstream serve "
                "--take-over); to keep this store, give another URL"
            )
        here = self._database.sequence
        if head.last > here:
            raise ArchiveTaken(
                f"the archive {url} has commits up to {head.last}, this directory only up to "
                f"{here}: it has lost some, or is an old copy. To go on from the end of the "
                "archive, open a new directory with take_over; or give another URL"
            )
        is_whole = self._database.loss is None
        return (
            is_whole and history.is_based and reaches(self._directory(), Position(*head.position))
        )

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
            written_ms=self._times.after(now_ms()),
            bytes_before=self._bytes,
            owner=owner_at(self._database.directory),
        )

    # --- pieces ---------------------------------------------------------------------------------

    def _put_piece(self, piece: Piece, raw: bytes) -> tuple[Piece, bytes]:
        """Create the next piece; raise ArchiveTaken if another owner has its number.

        Returns what is in the archive now: an earlier piece of this owner, if that was put and
        its answer was lost.
        """
        data = formats.encode(piece, raw)
        key = piece_key(piece.number)
        if self._objects.create(key, data):
            return piece, data
        found = self._get_existing(key)
        other: Piece | None = None
        with suppress(KVStreamError):
            other, _ = formats.decode(Piece, key, found)
        if other is None or other.epoch != self._state.epoch:
            raise self._taken(other)
        return other, found

    def _get_existing(self, key: str) -> bytes:
        """Return an object that could not be created; ArchiveTaken if this owner cannot read it."""
        try:
            found = self._objects.get(key)
        except (DataError, WrongArchiveKey):
            raise self._taken(None) from None
        if found is None:
            raise ArchiveUnavailable(f"the archive {self._objects.url}: {key} comes and goes")
        return found

    def _count(self, piece: Piece, data: bytes) -> None:
        """Note a piece that is in the archive."""
        self._next, self._before = piece.number + 1, formats.sum_of(data)
        self._bytes = piece.bytes_before + len(data)
        self._merger.add(piece.number, data)
        self._state.piece, self._state.put_ms = piece.number, piece.written_ms
        self._state.puts += 1
        self._state.put_bytes += len(data)

    def _taken(self, other: Piece | None) -> ArchiveTaken:
        """Refuse all writes from now on; return the error."""
        who = "another owner" if other is None else _owner_of(other)
        error = ArchiveTaken(
            f"{who} has taken over the archive {self._objects.url}: this store refuses all writes, "
            "since they would be lost; its last writes may be missing there"
        )
        if self._is_abandoned:  # the store follows the new owner
            return error
        self._database.write_guard.shut(error)
        if self._state.state != "taken":
            self._state.state, self._state.error = "taken", str(error)
            _log.error("%s", error)
        return error

    def ship(self, until: int | None = None) -> None:
        """Put the commits that are durable here and not in the archive, up to ``until``."""
        if not self._is_owner:
            raise ArchiveUnavailable(f"the archive {self._objects.url} is being taken over")
        begun = monotonic() if until is None else 0.0
        if until is None:
            until = self._make_local()
        with self._shipping:
            self._ship(until)
        since = self._behind_since
        if since is not None:  # what is not in the archive was written after this call began
            self._behind_since = max(since, begun)

    def _ship(self, until: int) -> None:
        while self._logs.last < until:
            chunk = self._logs.read(until)
            if chunk.parts:
                self._put_chunk(chunk)
            elif self._logs.last >= 0:
                raise Corruption(f"the logs lack the commits {chunk.last + 1} to {until}")
            else:
                self._logs.last = until  # all of it is in tables

    def _make_local(self) -> int:
        """Make what is written durable here; return its last sequence number.

        Power loss must not take what is in the archive: the store would be behind it. If the disk
        has failed, what was durable before is all the more needed in the archive.
        """
        committer = self._committer
        with suppress(StoreError):
            if committer.level is not Durability.ARCHIVE:
                committer.sync()
            elif committer.flushed_sequence < self._database.sequence:
                committer.flush_if_free()
        return committer.flushed_sequence

    def _put_chunk(self, chunk: Chunk) -> None:
        fence = self._piece(chunk.position, chunk.last)
        piece = replace(fence, parts=chunk.parts, times=self._times.until(now_ms(), chunk.last))
        piece, data = self._put_piece(piece, chunk.raw)
        if piece.base != self._base:  # put before the history began anew
            self._base = piece.number + 1
            self._count(piece, data)
            return
        logs, position, before = self._logs, Position(*piece.position), formats.sum_of(data)
        number = piece.number + 1
        # No call between: after an interrupt half of it would put commits twice.
        self._next, self._before, logs.position, logs.last = number, before, position, piece.last
        self._count(piece, data)
        self._state.sequence = piece.last
        for part in piece.parts:
            if part.offset == 0:
                self._first_pieces[part.log] = piece.number
            self._log_bytes += part.size
        self._times.drop(piece.last)
        logs.trim()

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
            except (KVStreamError, OSError) as error:
                reason = str(error)
            if monotonic() + pause_s > until or self._stop.is_set():
                raise UnknownOutcome(f"the write is durable here and not in the archive: {reason}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    # --- snapshots ------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """Begin the history anew: the logs that were not read are given up, or damaged."""
        with self._shipping:
            self._base, self._needs_base = self._next, True
            self._first_pieces, self._log_bytes = {}, 0
            self._logs = self._logs_from(Position(oldest(self._directory()), 0), -1)
            self._logs.trim()

    def _put_base(self) -> None:
        """Put the fence with which the history begins anew, unless it is there."""
        with self._shipping:
            while self._needs_base and self._next == self._base:
                fence = self._piece(self._logs.position, self._state.sequence)
                piece, data = self._put_piece(fence, b"")
                if piece.base != self._base:  # put before the history began anew
                    self._base = piece.number + 1
                self._count(piece, data)

    def _snapshot(self) -> None:
        """Put the files of the store as they are now, once the logs up to then are there."""
        with self._snapshotting:
            if self._needs_base:
                self._put_base()
            else:
                self.ship()
                if self._snapshots and self._snapshots[-1].piece == self._next:
                    return  # nothing was written since
            unpin_snapshots(self._objects)  # of former owners
            with pin(self._objects, SNAPSHOT) as pinned:
                self._copy_and_put(pinned)
            if not self._stop.is_set():
                prune(self._objects, self._snapshots, self._options.archive_keep_s)

    def _copy_and_put(self, pinned: Pin) -> None:
        base, stage = self._base, self._database.staging() / f"archive-{uuid4().hex}"
        try:
            # a history that begins anew needs no log: the present one may be damaged
            self._copy_files(stage, 0 if self._needs_base else SNAPSHOT_UNFLUSHED)
            sequence = self._database.sequence
            tables = dict(pinned.hold(self._put_tables(stage)))
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
            if self._base == base:
                self._put_snapshot(sequence, first_log, tables, small)

    def _first_piece(self, log: int) -> int:
        """Return the number of a piece before which there are no bytes of a log."""
        if log > self._logs.position.log:
            return max(self._base, self._next - 1)
        newest = self._snapshots[-1].first_piece if self._snapshots else 0
        return self._first_pieces.get(log, max(self._base, newest))

    def _put_snapshot(
        self,
        sequence: int,
        first_log: int,
        tables: dict[str, tuple[str, int]],
        small: dict[str, bytes],
    ) -> None:
        snapshot = Snapshot(
            archive=self._state.archive,
            epoch=self._state.epoch,
            sequence=sequence,
            written_ms=self._times.after(now_ms()),
            piece=self._next,
            first_piece=self._first_piece(first_log),
            first_log=first_log,
            tables=tables,
            files=small,
            base=self._base,
            bytes_before=self._bytes,
            owner=owner_at(self._database.directory),
        )
        key, data = snapshot_key(snapshot.piece), formats.encode(snapshot)
        if not self._objects.create(key, data):
            snapshot, _ = formats.decode(Snapshot, key, self._get_existing(key))
            if snapshot.epoch != self._state.epoch:
                raise self._taken(None)
        self._snapshots.append(snapshot)
        self._state.snapshot_sequence = snapshot.sequence
        self._state.snapshot_ms = snapshot.written_ms
        self._state.puts += 1
        self._state.put_bytes += len(data)
        self._log_bytes, self._snapshot_at, self._needs_base = 0, monotonic(), False
        self._first_pieces = {
            log: piece for log, piece in self._first_pieces.items() if log >= first_log
        }

    def _put_tables(self, stage: Path) -> Iterator[tuple[str, tuple[str, int]]]:
        """Put the tables that are not there; yield the names of file and object, and the size."""
        there = {found.key for found in self._objects.list(TABLES)}
        for path in sorted(stage.iterdir()):
            if path.suffix not in (".sst", ".blob"):
                continue
            self._refuse_closing()
            name, size = self._objects.table_names(self._digests.of(path))[0], path.stat().st_size
            key = table_key(name)
            if key not in there:
                self._objects.upload(key, self._read_table(path))
                there.add(key)
                self._state.puts += 1
            path.unlink()  # compaction can free the space of what is put
            yield path.name, (name, size)
        self._digests.save(self._path)

    def _read_table(self, path: Path) -> Iterator[bytes]:
        for data in self._digests.read(path):
            self._refuse_closing()
            self._state.put_bytes += len(data)
            yield data

    def _refuse_closing(self) -> None:
        if self._stop.is_set():
            raise ArchiveUnavailable("the store is being closed")

    # --- the threads ----------------------------------------------------------------------------

    def _note_commits(self) -> None:
        """Note commits with their times, also while a piece is on its way."""
        while not self._stop.wait(SAMPLE_S) and self._state.state != "taken":
            with suppress(StoreError):  # it is being closed
                self._sample()

    def _run(self) -> None:
        failures, pause_s = 0, SAMPLE_S
        while not self._stop.wait(pause_s) and self._state.state != "taken":
            try:
                with self._committer.refuse_calls():
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
            pause_s = max(_backoff_s(failures) if failures else interval_s, SAMPLE_S)

    def _sample(self) -> None:
        """Note the last commit with the time, if there are new ones."""
        sequence = self._database.sequence
        if sequence > max(self._times.last, self._state.sequence):
            self._times.note(now_ms(), sequence)
        if sequence <= self._state.reached:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = monotonic()

    def _work(self) -> None:
        """Put what is new; make a snapshot when it is due."""
        try:
            self._refuse_backlog()
            if self._needs_base:
                self._put_base()
            self.ship()
        except Corruption as error:
            _log.warning("the archive %s begins anew: %s", self._objects.url, error)
            self._begin_anew()
        is_old = monotonic() - self._snapshot_at > SNAPSHOT_S and self._log_bytes
        if is_old or self._log_bytes > SNAPSHOT_LOG_BYTES or self._needs_base:
            self._start_snapshot()
        self._start_merging()

    def _refuse_backlog(self) -> None:
        """Raise Corruption if the logs that wait for the archive take too much space."""
        unread = self._logs.unread_bytes()
        if unread > BACKLOG_BYTES_MAX:
            raise Corruption(f"{unread} bytes of logs wait for the archive")
        is_away = self._state.state != "follows"
        if is_away and self._database.needs_space and self._logs.kept_bytes():
            raise Corruption("the disk is full, and finished logs wait for the archive")

    def _start_snapshot(self) -> None:
        """Make a snapshot in a thread of its own, unless one is being made."""
        if self._snapshot_thread.is_alive() or monotonic() < self._snapshot_again_at:
            return
        self._snapshot_thread = threading.Thread(
            target=self._try_snapshot, name="kvstream-archiver-snapshot", daemon=True
        )
        self._snapshot_thread.start()

    def _try_snapshot(self) -> None:
        try:
            with self._committer.refuse_calls():
                self._snapshot()
        except ArchiveTaken:
            return
        except Exception as error:  # it is tried again
            self._snapshot_failures += 1
            if self._snapshot_failures == 1 and not self._stop.is_set():
                _log.warning("no snapshot for the archive; it is tried again: %s", _text_of(error))
            self._state.snapshot_error = _text_of(error)
            self._snapshot_again_at = monotonic() + _backoff_s(self._snapshot_failures)
        else:
            self._snapshot_failures, self._state.snapshot_error = 0, ""

    def _start_merging(self) -> None:
        """Merge pieces in a thread of its own, if there is something to merge."""
        if self._merge_thread.is_alive() or monotonic() < self._merge_again_at:
            return
        if not self._needs_base and self._merger.is_due:
            self._merge_thread = threading.Thread(
                target=self._try_merging, name="kvstream-archiver-merge", daemon=True
            )
            self._merge_thread.start()

    def _try_merging(self) -> None:
        try:
            with self._committer.refuse_calls():
                self._merger.work()
        except Exception as error:  # it is tried again
            self._merge_failures += 1
            if self._merge_failures == 1 and not self._stop.is_set():
                _log.warning("pieces of the archive are not merged yet: %s", _text_of(error))
            self._merge_again_at = monotonic() + _backoff_s(self._merge_failures)
        else:
            self._merge_failures = 0

    def _note_failure(self, error: Exception, failures: int) -> None:
        away = isinstance(error, ArchiveUnavailable)
        self._state.state, self._state.error = ("unreachable" if away else "failed"), str(error)
        if failures == 1 and not self._stop.is_set():
            _log.warning("%s; it is tried again", _text_of(error))

    # --- looking, and the end -------------------------------------------------------------------

    def status(self) -> Status:
        """Return what is in the archive, and how far it is behind."""
        state = self._state
        since = self._behind_since
        state.behind_s = 0.0 if since is None else monotonic() - since
        with suppress(StoreError, OSError):
            state.behind_bytes = self._logs.unread_bytes() if since is not None else 0
        return state

    def abandon(self) -> None:
        """Put nothing more, and return at once: the store follows another one from now on."""
        self._is_abandoned = True
        self._stop.set()
        self._state.state = "closed"
        _open_archivers.discard(self)
        directory.unregister(self)
        with suppress(StoreError):
            self._database.trim_logs("archive", _NO_LOG, self._path)

    def close(self) -> None:
        """Put what is left, and stop; a store that cannot reach its archive closes all the same.

        A thread that waits for the object store ends later: it uses the directory by a descriptor
        of its own, since the path may be another store's by then.
        """
        self._stop.set()
        _open_archivers.discard(self)
        until = monotonic() + _STOP_S
        for thread in (
            *(self._thread, self._clock_thread),
            *(self._snapshot_thread, self._merge_thread),
        ):
            if thread.ident is not None:
                thread.join(max(until - monotonic(), 0))
        if self._is_owner and self._state.state in ("follows", "unreachable", "failed"):
            self._put_rest()
        directory.unregister(self)

    def _put_rest(self) -> None:
        if not self._shipping.acquire(timeout=_STOP_S):
            _log.warning("the archive %s does not answer: the last writes", self._objects.url)
            return
        try:
            self._ship(self._committer.flushed_sequence)
            self._state.state = "closed"
        except KVStreamError as error:
            _log.warning("the last writes are not in the archive yet: %s", error)
        finally:
            self._shipping.release()

    def refuse_after_fork(self) -> None:
        """Do nothing in a forked child, which has neither the threads nor the connections."""
        self._state.state = "closed"
        self._shipping, self._snapshotting = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._stop.set()

    def _directory(self) -> Path:
        return self._path


_open_archivers: "weakref.WeakSet[Archiver]" = weakref.WeakSet()


@atexit.register
def _close_forgotten() -> None:
    """End the threads of stores that were not closed, while there is an interpreter."""
    for archiver in list(_open_archivers):
        with suppress(KVStreamError):
            archiver.close()


def _owner_of(piece: Piece) -> str:
    """Return who has put a piece, in words."""
    return f"another owner ({piece.owner})"


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, KVStreamError) else repr(error)


def _backoff_s(failures: int) -> float:
    return min(2.0 ** min(failures - 1, 10), BACKOFF_MAX_S)


def _small_files(stage: Path) -> Iterator[Path]:
    for path in sorted(stage.iterdir()):
        if path.is_file() and path.suffix not in (".sst", ".blob", ".log"):
            yield path
