"""When a write counts as durable, and who is told.

The promise of each level is in docs/durability.md. At ``always`` all that wait share an fsync: the
first of them does it, for everything written before it began, while later ones gather for the
next. So a lone writer pays for no other thread, and fifty pay for one fsync. At ``everysec`` a
thread does it, and at ``no`` nobody. The committer knows sequence numbers, not rows.
"""

import atexit
import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from time import perf_counter
from typing import NamedTuple

from kvstream.errors import StoreClosed, StoreError, UnknownOutcome
from kvstream.storage import directory
from kvstream.storage.database import Database
from kvstream.types.options import Durability

FLUSH_INTERVAL_S = 1.0
"""Redis's ``appendfsync everysec``."""
RETRY_INTERVAL_S = 0.25
"""How often callbacks that wait out a full disk look whether it has recovered."""
_RELEASE = methodcaller("release")

_open_committers: "weakref.WeakSet[Committer]" = weakref.WeakSet()


class _Queued:
    """One that waits while another flushes, for a lock that nobody else waits for."""

    __slots__ = ("sequence", "turn")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.turn = threading.Lock()
        self.turn.acquire()


class _Awaited(NamedTuple):
    sequence: int
    durable: Callable[[], None]
    failed: Callable[[UnknownOutcome], None] | None


class Committer:
    """Makes the writes of one database as durable as its level promises."""

    def __init__(self, database: Database, level: Durability) -> None:
        self.level = level
        self.durable_sequence = database.sequence
        """Writes up to this one survive power loss."""
        self.on_fsync: Callable[[float], None] | None = None
        """Told the seconds of every fsync of the log, in the thread that did it; must not raise."""
        self._database = database
        self._writes_nothing = database.failure is not None
        """The store was opened read-only."""
        self._waits = level is Durability.ALWAYS
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
        except BaseException:  # nobody else could end the thread
            self.close()
            raise

    def wait(self, sequence: int) -> None:
        """Return when the write of that sequence number is as durable as the level promises.

        Raises UnknownOutcome when the log cannot be made durable.
        """
        if self._waits and sequence > self.durable_sequence:
            self._make_durable(sequence)

    def delays(self, sequence: int) -> bool:
        """Tell whether ``after`` would not call back at once."""
        return self._waits and sequence > self.durable_sequence

    def after(
        self,
        sequence: int,
        durable: Callable[[], None],
        failed: Callable[[UnknownOutcome], None] | None = None,
    ) -> None:
        """Call ``durable`` when the write is as durable as the level promises.

        That is now, in this thread, or later in the committer's, where it must be quick and not
        raise. ``failed`` is called instead when the log cannot be made durable; without it a
        callback waits on, for the disk may only be full for a while.
        """
        if self._waits and sequence > self.durable_sequence:
            with self._lock:  # an interrupt may leave one locked that is entered by its condition
                self._refuse_stopped()
                if self._waits:
                    self._awaited.append(_Awaited(sequence, durable, failed))
                    self._changed.notify_all()
                    return
        durable()

    def sync(self) -> int:
        """Make every write so far durable, at any level; return the durable sequence number.

        Raises UnknownOutcome when the log cannot be made durable.
        """
        sequence = self._database.sequence
        if sequence > self.durable_sequence:
            self._make_durable(sequence)
        return self.durable_sequence

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have nobody flush the log meanwhile; those who want to wait until the end."""
        queued = _Queued(sys.maxsize)
        try:
            while not self._take_turn(queued):
                pass
            yield
            self._leave(queued)
        except BaseException:  # perhaps an interrupt as it was about to leave
            self._leave(queued)
            raise

    def change(self, level: Durability) -> None:
        """Promise as much as ``level`` says from here on; who waits by the old one still does."""
        with self._lock:
            self._refuse_stopped()
            if level is self.level:
                return
            self.level = level
            self._waits = level is Durability.ALWAYS
            self._changed.notify_all()
            self._start_thread()

    def close(self) -> None:
        """Make all writes durable and end the thread; idempotent.

        Raises UnknownOutcome when it was this last fsync that failed. A call that was interrupted
        is gone on with by the next one.
        """
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        directory.unregister(self)
        for thread in self._threads:
            thread.join()
        if self._database.failure is None:
            self.sync()

    def refuse_after_fork(self) -> None:
        """Forget, in a forked child, the locks and the thread of its parent."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queueing, self._flusher = threading.Lock(), None
        self._queue.clear()
        self._stopping = True
        self._threads = []
        self._awaited = []

    def _start_thread(self) -> None:
        """Start the thread of the level, beside those of former ones that are about to end."""
        work = {
            Durability.ALWAYS: self._serve_callbacks,
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
        """Flush the log, or wait for the one who does, until it covers ``sequence``."""
        while self.durable_sequence < sequence:
            queued = _Queued(sequence)
            try:
                if self._take_turn(queued):
                    if sequence > self.durable_sequence:
                        self._flush()
                    else:  # another was quicker: the store may be closed by now
                        self._leave(queued)
            except BaseException:  # KeyboardInterrupt: what it was to do is for those who wait
                self._leave(queued)
                raise

    def _take_turn(self, queued: _Queued) -> bool:
        """Become the one who flushes; where another does, return False once woken by it."""
        with self._queueing:
            if self._flusher is None:
                self._flusher = queued
                return True
            self._queue.append(queued)
        queued.turn.acquire()
        return False

    def _leave(self, queued: _Queued) -> None:
        """Wait and flush no more, and have others do what it may have been woken for."""
        with self._queueing:
            if queued in self._queue:
                self._queue.remove(queued)
            if queued is self._flusher:
                self._flusher = None
        self._pass_turn()

    def _flush(self) -> None:
        """Make the log durable for all whose writes it covers, and pass the turn on."""
        begun = perf_counter()
        try:
            self.durable_sequence = self._database.flush_wal()
            if self.on_fsync is not None:
                self.on_fsync(perf_counter() - begun)
        except StoreError as error:
            raise UnknownOutcome(f"the log cannot be made durable: {error}") from None
        finally:
            self._flusher = None
            self._pass_turn()

    def _pass_turn(self) -> None:
        """Wake those whose writes are durable, and one of the others to flush."""
        with self._queueing:
            durable = self.durable_sequence
            woken = [queued.turn for queued in self._queue if queued.sequence <= durable]
            rest = [queued for queued in self._queue if queued.sequence > durable]
            if rest and self._flusher is None:  # it flushes, or finds that the store has failed
                woken.append(rest.pop(0).turn)
            releases = map(_RELEASE, woken)
            self._queue = rest
            deque(releases, maxlen=0)  # one call, which no interrupt can come into

    def _flush_every_second(self) -> None:
        while not self._ended_within(FLUSH_INTERVAL_S, Durability.EVERYSEC):
            if self._database.failure is None:
                # Who writes next learns of a failure from the database.
                with contextlib.suppress(UnknownOutcome):
                    self.sync()

    def _serve_callbacks(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._awaited or self._ended(Durability.ALWAYS))
                if not self._awaited:
                    return
                oldest = min(awaited.sequence for awaited in self._awaited)
            try:
                self._make_durable(oldest)
            except UnknownOutcome as error:
                self._tell_failed(error)
                if self._ended_within(RETRY_INTERVAL_S, None):
                    return
            else:
                self._tell_durable()

    def _ended_within(self, seconds: float, level: Durability | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ended(level), seconds)

    def _ended(self, level: Durability | None) -> bool:
        """Say whether a thread is to end: the committer has, or another level than its own holds.

        The thread of ``always`` goes on while somebody waits for it.
        """
        return self._stopping or (level is not None and self.level is not level)

    def _tell_durable(self) -> None:
        durable = self.durable_sequence
        for awaited in self._taken(lambda awaited: awaited.sequence <= durable):
            _call(awaited.durable)

    def _tell_failed(self, error: UnknownOutcome) -> None:
        for awaited in self._taken(lambda awaited: awaited.failed is not None):
            if awaited.failed is not None:
                _call(partial(awaited.failed, error))

    def _taken(self, chosen: Callable[[_Awaited], bool]) -> list[_Awaited]:
        with self._changed:
            taken = [awaited for awaited in self._awaited if chosen(awaited)]
            self._awaited = [awaited for awaited in self._awaited if not chosen(awaited)]
        return taken


def _call(callback: Callable[[], None]) -> None:
    """Call back; one that raises is reported as for a thread, and the others are served."""
    try:
        callback()
    except Exception:
        report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        threading.excepthook(report)


@atexit.register
def _close_forgotten() -> None:
    """End the threads of stores that were not closed, while there is an interpreter to end in."""
    for committer in list(_open_committers):
        with contextlib.suppress(StoreError):
            committer.close()
