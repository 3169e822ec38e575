"""Group commit: when a write counts as durable, and how its waiters learn of it.

The promise of each level is in docs/durability.md. At ``always`` waiting threads share an fsync:
the first of them does it, for everything written before it began, while later ones wait for the
next. At ``everysec`` a background thread does it, at ``no`` no thread. The committer knows sequence
numbers, not rows.
"""

import atexit
import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import NamedTuple

from kvstream.errors import StoreClosed, StoreError, UnknownOutcome
from kvstream.storage import directory
from kvstream.storage.contexts import contextmanager
from kvstream.storage.database import Database
from kvstream.types.clock import perf_counter
from kvstream.types.options import Durability

FLUSH_INTERVAL_S = 1.0
"""Redis's ``appendfsync everysec``."""
RETRY_INTERVAL_S = 0.25
"""How often callbacks that wait for a full disk check whether it has recovered."""
WAITING = frozenset({Durability.ALWAYS, Durability.ARCHIVE})
"""The levels at which a writer waits."""
_RELEASE = methodcaller("release")

_open_committers: "weakref.WeakSet[Committer]" = weakref.WeakSet()


class _Queued:
    """A thread that waits while another flushes, by a lock of its own."""

    __slots__ = ("failure", "sequence", "turn")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.failure: UnknownOutcome | None = None
        """Why the wait ends without the write being in the archive."""
        self.turn = threading.Lock()
        self.turn.acquire()


class _Awaited(NamedTuple):
    sequence: int
    durable: Callable[[], None]
    failed: Callable[[UnknownOutcome], None] | None


class Committer:
    """Makes the writes of one database as durable as its level promises."""

    def __init__(
        self,
        database: Database,
        level: Durability,
        entered: dict[int, bool] | None = None,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        archive: Callable[[int], None] | None = None,
    ) -> None:
        """``entered`` has the threads that are in here: one that enters again would deadlock.

        ``archive`` puts writes into the archive, up to a sequence number.
        """
        self.level = level
        self._flush_interval_s = flush_interval_s
        self._entered: dict[int, bool] = {} if entered is None else entered
        self.durable_sequence = database.sequence
        """Writes up to this one are as durable as ``always`` or ``archive`` promises."""
        self.flushed_sequence = self.durable_sequence
        """Writes up to this one survive power loss; with ``archive`` that is not all."""
        self._archive = archive
        self._fsync_watchers: list[Callable[[float], None]] = []
        self._database = database
        self._writes_nothing = database.failure is not None
        """The store was opened read-only."""
        self._waits = level in WAITING
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._stopping = False
        self._queueing = threading.Lock()
        self._flusher: _Queued | None = None
        self._queue: list[_Queued] = []
        self._awaited: list[_Awaited] = []
        self._threads: list[threading.Thread] = []
        try:
            self._start_thread()
            directory.register(self)
            _open_committers.add(self)
        except BaseException:  # no caller has the thread yet, to end it
            self.close()
            raise

    def wait(self, sequence: int) -> None:
        """Wait until the write of a sequence number is as durable as the level promises.

        Raises UnknownOutcome if the log cannot be made durable.
        """
        if self._waits and sequence > self.durable_sequence:
            self._make_durable(sequence)

    def delays(self, sequence: int) -> bool:
        """Return whether ``after`` would call back later."""
        return self._waits and sequence > self.durable_sequence

    def after(
        self,
        sequence: int,
        durable: Callable[[], None],
        failed: Callable[[UnknownOutcome], None] | None = None,
    ) -> None:
        """Call ``durable`` when the write is as durable as the level promises.

        That is now, in this thread, or later in the committer's, where it must be quick and not
        raise. If the log cannot be made durable, ``failed`` is called instead; without it the
        callback keeps waiting, since the disk may be full only for a while.
        """
        if self._waits and sequence > self.durable_sequence:
            entered, thread = self._entered, threading.get_ident()
            is_outer = thread not in entered
            entered[thread] = True
            try:
                with self._lock:  # entering the condition could leave it locked at an interrupt
                    self._refuse_stopped()
                    if self._waits:
                        self._awaited.append(_Awaited(sequence, durable, failed))
                        self._changed.notify_all()
                        return
            finally:
                if is_outer:
                    entered.pop(thread, None)
        durable()

    def sync(self) -> int:
        """Make every write so far durable, at any level; return the durable sequence number.

        Raises UnknownOutcome if the log cannot be made durable.
        """
        sequence = self._database.sequence
        if sequence > self.durable_sequence:
            self._make_durable(sequence)
        return self.durable_sequence

    def flush_if_free(self) -> int:
        """Make the log durable, unless a thread is doing so; return how far it is.

        With ``archive`` the writes are not acknowledged by it.
        """
        queued = _Queued(sys.maxsize)
        with self._queueing:
            if self._flusher is not None:
                return self.flushed_sequence
            self._flusher = queued
        try:
            self.flushed_sequence = self._database.flush_wal()
        finally:
            self._leave(queued)
        return self.flushed_sequence

    @contextmanager
    def refuse_calls(self) -> Iterator[None]:
        """Refuse the calls of this thread for a block: a finalizer's would wait for itself."""
        entered, thread = self._entered, threading.get_ident()
        is_outer = thread not in entered
        entered[thread] = True
        try:
            yield
        finally:
            if is_outer:
                entered.pop(thread, None)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other threads from flushing the log: they wait."""
        queued, entered, thread = _Queued(sys.maxsize), self._entered, threading.get_ident()
        is_outer = thread not in entered
        entered[thread] = True
        try:
            while not self._take_turn(queued):
                pass
            yield
            self._leave(queued)
        except BaseException:  # an interrupt may come just before it leaves
            self._leave(queued)
            raise
        finally:
            if is_outer:
                entered.pop(thread, None)

    def restart(self) -> None:
        """Count from the sequence number of another store, which is durable; under ``hold``."""
        self.durable_sequence = self.flushed_sequence = self._database.sequence

    def change(self, level: Durability) -> None:
        """Change the level for later writes; threads that wait by the old one keep waiting."""
        with self._lock:
            self._refuse_stopped()
            if level is self.level:
                return
            self.level = level
            self._waits = level in WAITING
            self._changed.notify_all()
            self._start_thread()

    def close(self) -> None:
        """Make all writes durable and end the thread; idempotent.

        Raises UnknownOutcome if this last fsync failed, StoreReadOnly if the store's path leads
        elsewhere and writes that were reported as done may be missing there. After an interrupt
        the next call continues.
        """
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        directory.unregister(self)
        for thread in self._threads:
            thread.join()
        database = self._database
        if isinstance(database.failure, StoreClosed):
            return
        if not database.is_displaced():
            if database.failure is None:
                self.sync()
        elif not self._waits and database.sequence > self.durable_sequence:
            raise database.write_guard.error()

    def refuse_after_fork(self) -> None:
        """Forget, in a forked child, the locks and the thread of its parent."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queueing, self._flusher = threading.Lock(), None
        self._queue.clear()
        self._entered.clear()
        self._stopping = True
        self._threads = []
        self._awaited = []

    def _start_thread(self) -> None:
        """Start the thread of the level; those of former levels end by themselves."""
        work: dict[Durability, Callable[[], None]] = {
            Durability.ALWAYS: partial(self._serve_callbacks, Durability.ALWAYS),
            Durability.ARCHIVE: partial(self._serve_callbacks, Durability.ARCHIVE),
            Durability.EVERYSEC: self._flush_every_second,
        }
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self.level not in work or self._writes_nothing:
            return
        thread = threading.Thread(target=work[self.level], name="kvstream-committer", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _refuse_stopped(self) -> None:
        if self._stopping:
            raise StoreClosed("the store is closed")

    def _make_durable(self, sequence: int) -> None:
        """Flush the log, or wait for the thread that does, until it covers ``sequence``."""
        entered, thread = self._entered, threading.get_ident()
        is_outer = thread not in entered
        entered[thread] = True
        try:
            while self.durable_sequence < sequence:
                queued = _Queued(sequence)
                try:
                    if self._take_turn(queued):
                        if sequence > self.durable_sequence:
                            self._flush()
                        else:  # another was quicker: the store may be closed by now
                            self._leave(queued)
                    elif queued.failure is not None and self.durable_sequence < sequence:
                        raise UnknownOutcome(*queued.failure.args)
                except BaseException:  # KeyboardInterrupt: another thread takes over its turn
                    self._leave(queued)
                    raise
        finally:
            if is_outer:
                entered.pop(thread, None)

    def _take_turn(self, queued: _Queued) -> bool:
        """Become the thread that flushes; else wait for that thread, and return False."""
        with self._queueing:
            if self._flusher is None:
                self._flusher = queued
                return True
            self._queue.append(queued)
        queued.turn.acquire()
        return False

    def _leave(self, queued: _Queued) -> None:
        """Stop waiting or flushing, and pass the turn on."""
        with self._queueing:
            if queued in self._queue:
                self._queue.remove(queued)
            if queued is self._flusher:
                self._flusher = None
        self._pass_turn()

    def watch_fsyncs(self, watcher: Callable[[float], None]) -> None:
        """Call ``watcher`` with the seconds of each fsync, in its thread; it must not raise."""
        self._fsync_watchers.append(watcher)

    def _flush(self) -> None:
        """Make the log durable, and pass the turn on."""
        begun = perf_counter()
        try:
            self._fsync()
            for watcher in self._fsync_watchers:
                watcher(perf_counter() - begun)
            if self._archive is not None and self.level is Durability.ARCHIVE:
                self._put_into_archive(self._archive)
            self.durable_sequence = self.flushed_sequence
        finally:
            self._flusher = None
            self._pass_turn()

    def _put_into_archive(self, archive: Callable[[int], None]) -> None:
        """Wait for the archive; if that takes too long, the others in the queue fail too.

        Else they would wait for it one after the other.
        """
        try:
            archive(self.flushed_sequence)
        except UnknownOutcome as error:
            with self._queueing:
                for queued in self._queue:
                    if queued.sequence < sys.maxsize:  # else it waits for its turn, not for a write
                        queued.failure = error
            raise

    def _fsync(self) -> None:
        try:
            self.flushed_sequence = self._database.flush_wal()
        except StoreError as error:
            raise UnknownOutcome(f"the log cannot be made durable: {error}") from None

    def _pass_turn(self) -> None:
        """Wake the threads whose writes are durable, and one of the others to flush."""
        with self._queueing:
            durable = self.durable_sequence
            woken = [each.turn for each in self._queue if each.sequence <= durable or each.failure]
            rest = [each for each in self._queue if each.sequence > durable and not each.failure]
            if rest and self._flusher is None:  # it flushes, or finds that the store has failed
                woken.append(rest.pop(0).turn)
            releases = map(_RELEASE, woken)
            self._queue = rest
            deque(releases, maxlen=0)  # one call, so no interrupt comes between two of them

    def _flush_every_second(self) -> None:
        while not self._ends_within(self._flush_interval_s, Durability.EVERYSEC):
            if self._database.failure is None:
                # The next writer learns of a failure from the database.
                with contextlib.suppress(UnknownOutcome):
                    self.sync()

    def _serve_callbacks(self, level: Durability) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._awaited or self._must_end(level))
                if not self._awaited:
                    return
                oldest = min(awaited.sequence for awaited in self._awaited)
            try:
                self._make_durable(oldest)
            except UnknownOutcome as error:
                self._tell_failed(error)
                if self._ends_within(RETRY_INTERVAL_S, None):
                    return
            else:
                self._tell_durable()

    def _ends_within(self, seconds: float, level: Durability | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._must_end(level), seconds)

    def _must_end(self, level: Durability | None) -> bool:
        """Return whether the thread of a level must end: after ``close`` or a change of level.

        The thread of ``always`` runs on while a callback waits.
        """
        return self._stopping or (level is not None and self.level is not level)

    def _tell_durable(self) -> None:
        durable = self.durable_sequence
        for awaited in self._take(lambda awaited: awaited.sequence <= durable):
            _call(awaited.durable)

    def _tell_failed(self, error: UnknownOutcome) -> None:
        for awaited in self._take(lambda awaited: awaited.failed is not None):
            if awaited.failed is not None:
                _call(partial(awaited.failed, error))

    def _take(self, chosen: Callable[[_Awaited], bool]) -> list[_Awaited]:
        with self._changed:
            taken = [awaited for awaited in self._awaited if chosen(awaited)]
            self._awaited = [awaited for awaited in self._awaited if not chosen(awaited)]
        return taken


def _call(callback: Callable[[], None]) -> None:
    """Call back; report an error as for a thread, and go on."""
    try:
        callback()
    except Exception:
        report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        threading.excepthook(report)


@atexit.register
def _close_forgotten() -> None:
    """End the threads of stores that were not closed, while there is an interpreter."""
    for committer in list(_open_committers):
        with contextlib.suppress(StoreError):
            committer.close()
