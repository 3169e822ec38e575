"""The engine of an open store: one lock, one clock, and the only code that commits.

``Engine.run`` runs an operation in a transaction under the lock, writes its changes as one batch,
and then serves the blocked readers of the changed keys, first come first served. With durability
``always`` the caller and these readers get their results after the fsync that covers the batch.

Signal handlers, finalizers and log handlers of the program may run in the middle of a call, in its
thread. A call that they make must not see the half-done work: it raises ReentrantCall. Only between
the calls of a ``transaction`` block does the thread's next call become a part of it.
"""

import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeAlias, TypeVar

from kvstream.engine.archiving import Archiving
from kvstream.engine.coerce import warn_of_block
from kvstream.engine.disk_watch import DiskWatch
from kvstream.engine.expiry import Expiry
from kvstream.engine.following import Following, Source
from kvstream.engine.lease_renewal import every_in_thread
from kvstream.engine.lock import ENDS_ELSEWHERE, CallLock, EngineLock
from kvstream.engine.reader_snapshots import LOG_BYTES_MAX
from kvstream.engine.timer_thread import TimerThread
from kvstream.engine.unclosed import Unclosed, weakly
from kvstream.engine.upkeep import Upkeep
from kvstream.engine.waiters import Interrupt, Outcome, Signal, Waiter, Waiters, retry_pause_s
from kvstream.errors import (
    InvalidArgument,
    ReentrantCall,
    RequestError,
    StoreClosed,
    StoreError,
    StoreReadOnly,
)
from kvstream.logs import deferred, emit_deferred
from kvstream.meta.catalog import Catalog
from kvstream.meta.events.keys import Event
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations import info, keyspace
from kvstream.operations.images import staged_loads
from kvstream.storage import directory as directories
from kvstream.storage.batch import Batch
from kvstream.storage.contexts import contextmanager
from kvstream.storage.database import Database
from kvstream.storage.durability import WAITING, Committer
from kvstream.types.clock import Clock, SystemClock, monotonic, perf_counter
from kvstream.types.glob import matcher
from kvstream.types.options import Durability, StoreOptions
from kvstream.types.records import Entry, KeyInfo
from kvstream.types.thresholds import DEFAULT, Thresholds

P = ParamSpec("P")
T = TypeVar("T")
Publish: TypeAlias = Callable[[list[tuple[Event, bytes]]], None]

_KEYS_PAGE = 1000


class Engine(Unclosed):
    """An open store, as operations see it. Every method may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        options: StoreOptions | None = None,
        clock: Clock | None = None,
        thresholds: Thresholds = DEFAULT,
        keep_logs: bool = False,
        replicaof: Source | None = None,
    ) -> None:
        """With ``keep_logs`` finished logs stay until ``database.trim_logs`` removes them.

        ``replicaof``: the server that it follows, if its role was never set.
        """
        self.options = options or StoreOptions()
        self.clock: Clock = clock or SystemClock()
        self.local_clock = self.clock
        self.thresholds = thresholds
        self.catalog = Catalog(self.options, thresholds)
        self._lock = EngineLock()
        self._compacting, self._flushing, self._closing = CallLock(), CallLock(), CallLock()
        self._open: Txn | None = None
        """The transaction or turn that the holder of the lock has open."""
        self._opener = 0
        """The thread that opened it."""
        self._nested = False
        """That thread had the lock before it opened the transaction."""
        self._running = False
        """The holder of the lock is in the middle of its work: it may begin no other call."""
        self.entered: dict[int, bool] = {}
        """Threads that may begin no call although they do not have the lock: they are in the middle
        of an fsync, or of the work of clients in this process."""
        directories.register(self)
        self.waiters = Waiters(self.catalog.wakeups)
        self.signal: Callable[[], Signal] = Signal  # what a blocked read waits for
        self._always = self.options.durability in WAITING
        self._commit_watchers: list[Callable[[float], None]] = []
        self._publish: Publish | None = None
        self._now_ms = self.clock.now_ms
        self._spare: Txn | None = None
        """A transaction that has ended, while the store is open: the next call uses it again."""
        self._raised: dict[bytes, Wake] = {}
        """Keys that attempts of waiters have changed; their waiters are served next."""
        self._unserved: dict[bytes, Wake] = {}
        """Changed keys whose waiters were not served because of an interrupt. The next commit
        serves them; the expiry thread makes one every tenth of a second."""
        self.archiving = Archiving(self.options, directory)
        keeps = keep_logs or bool(self.options.archive)
        self.database = Database.open(directory, self.options, thresholds, keeps)
        self._write_guard = self.database.write_guard
        try:
            self._start_work(keep_logs, replicaof)
            self.note_opened()
        except BaseException:
            with suppress(StoreError):
                self.close() if hasattr(self, "committer") else self.database.close()
            raise

    def _start_work(self, is_served: bool, replicaof: Source | None) -> None:
        """Start the threads of the store, once loads that a crash has cut off are undone."""
        weak, index = partial(weakly, self), self.catalog.index
        self.timers = TimerThread(weak("run"), self._now_ms, index.next_due, self.thresholds)
        disk = DiskWatch(
            self.database, self.waiters, weak("hold"), weak("reopen"), self.thresholds.recovery_s
        )
        own = self.database, self.catalog, disk, self.timers, self._compacting
        self.expiry = Expiry(weak("run"), Upkeep(weak, *own), self.thresholds)
        # last: ``close`` needs the parts above
        self.committer = Committer(
            self.database, self.options.durability, self.entered, archive=self.archiving.put
        )
        self.following = Following(weakref.proxy(self), replicaof)
        self.following.open_epoch()
        staged_loads.recover(self.run, self.following.source is not None or self.options.read_only)
        if not self.options.read_only:
            index.call_sooner(self.timers.wake)
            parts = self.database, self.committer, weak("copy_files")
            self.archiving.start(*parts, self.following.source is not None, is_served)
            self.expiry.start()
            self.timers.start()

    # --- the lock -------------------------------------------------------------------------------

    def is_open_here(self) -> bool:
        """Return whether this thread is inside a transaction or a turn."""
        return self._open is not None and self._opener == threading.get_ident()

    def is_held_here(self) -> bool:
        """Return whether this thread has the lock."""
        return self._lock.is_held_here()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other threads out through several commits of this thread.

        Raises InvalidArgument inside a transaction.
        """
        with self._lock.hold():
            if self._running:
                self._refuse_within()
            if self._open is not None:
                raise InvalidArgument("a transaction is open in this thread already")
            yield

    def refuse_after_fork(self) -> None:
        """Make every use in a forked child raise StoreClosed.

        If another thread of the parent held the lock, the child gets a new one: nobody would
        release the old one.
        """
        if self._lock.is_free():
            self._lock.busy = False
        else:
            self._lock, self._open = EngineLock(), None
        self._compacting, self._flushing, self._closing = CallLock(), CallLock(), CallLock()
        vars(self)["_begin"] = directories.Gone(directories.FORKED)  # shadows the method

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an open store cannot be pickled: one process at a time has it, and others reach it "
            "through `kvstream serve`, or open it themselves once it is closed"
        )

    # --- one operation --------------------------------------------------------------------------

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``operation`` as one commit, or as part of this thread's open transaction.

        Raises ReentrantCall in the middle of another call of this thread.
        """
        lock, signals = self._lock, self._unserved
        if self.entered and threading.get_ident() in self.entered:
            raise ReentrantCall
        try:
            nested = lock.busy and lock.park()
            with lock:
                if self._running:
                    self._refuse_within()
                if self._open is not None:
                    return self._run_inside(self._open, operation, *args, **kwargs)
                self._running = lock.busy = True
                try:
                    txn = self._begin()
                    if self._unserved:
                        txn.signals, self._unserved = self._unserved, {}
                    signals = txn.signals
                    try:
                        if kwargs:
                            result = operation(txn, *args, **kwargs)
                        else:  # Python would make two dicts for none
                            result = operation(txn, *args)  # type: ignore[call-arg]
                        sequence = self._commit(txn)
                    except BaseException as error:
                        txn.abandon(not isinstance(error, RequestError))
                        raise
                    always = self._always
                    if signals and not always:
                        self._serve(signals)
                    self._spare = txn
                finally:
                    self._running = False
                    if nested or lock.parked:
                        lock.leave(nested)
                    else:
                        lock.busy = False
            if deferred and not nested:
                emit_deferred()
            if always:
                self._wait_durable(sequence, signals)
            if self.database.pause_s:
                self.database.rest()
        except BaseException:  # perhaps after the commit, or with keys of a former one
            self._unserved |= signals
            raise
        return result

    def _run_inside(
        self,
        txn: Txn,
        operation: Callable[Concatenate[Txn, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run ``operation`` in an open transaction, which fails as a whole if it fails half-way."""
        self._running = True
        try:
            return operation(txn, *args, **kwargs)
        except RequestError:  # refused before anything was changed
            raise
        except BaseException:
            txn.failed = True
            raise
        finally:
            self._running = False

    def _refuse_within(self) -> None:
        """Raise ReentrantCall in the middle of another call of this thread, which has the lock.

        If no outer call has the lock, an interrupt has left ``_running`` set: it is cleared.
        """
        self._lock.release()
        try:
            is_within = self._lock.is_held_here()
        finally:
            self._lock.acquire()
        if is_within:
            raise ReentrantCall
        self._running = False

    def _begin(self) -> Txn:
        """Return an empty transaction; reuse the last one if it has ended."""
        txn, now_ms, read_only = self._spare, self._now_ms, self._write_guard.is_shut
        if txn is not None:
            self._spare = None
            txn.reset(now_ms(), read_only)
            return txn
        if self._closed:
            raise StoreClosed
        return Txn(self.database, self.catalog, now_ms(), self.waiters.queues, read_only)

    def _commit(self, txn: Txn) -> int:
        """Write the changes of ``txn``; return the sequence number, 0 if nothing changed.

        Return that of the last write if nothing changed because it was written before.
        """
        batch = txn.finish()
        if batch is None:
            sequence = 0
            if self.catalog.repeats_write:
                self.catalog.repeats_write = False
                sequence = self.database.sequence if self._write_guard.failure is None else 0
        else:
            if txn.read_only:
                self._write_guard.refuse_replica()
            if self._commit_watchers:
                sequence = self._time_write(batch, txn.frees)
            else:
                sequence = self.database.write(batch, txn.frees)
            batch.clear()
        if txn.events and self._publish is not None:
            self._publish(txn.events)
        if self.catalog.over_key_limit:
            if self.catalog.seen:  # no other write stores the seen times
                self._write_seen()
            self.catalog.evict()
        return sequence

    def _time_write(self, batch: Batch, frees: bool) -> int:
        begun = perf_counter()
        sequence = self.database.write(batch, frees)
        for watcher in self._commit_watchers:
            watcher(perf_counter() - begun)
        return sequence

    def watch_commits(self, watcher: Callable[[float], None]) -> None:
        """Call ``watcher`` under the lock with the seconds of each write; it must not raise."""
        self._commit_watchers.append(watcher)

    def publish_events(self, wanted: int, publish: Publish) -> None:
        """Call ``publish`` under the lock with the keyspace events of each commit.

        ``wanted`` are the classes of events that transactions note, as bits. ``publish`` must not
        raise, and replaces the former one.
        """
        self.catalog.wanted_events, self._publish = wanted, publish

    def _wait_durable(self, sequence: int, signals: dict[bytes, Wake]) -> None:
        """Wait until the write, or the rows that were read, are durable; then serve waiters."""
        self.committer.wait(sequence or self.seen_sequence)
        if signals:
            self.serve_signals(signals)

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Txn]:
        """Run everything that this thread does inside as one commit; an exception undoes it.

        Other threads wait until it ends. Blocking reads inside it do not block.
        """
        if self.is_open_here() and not self._running:
            raise InvalidArgument("a transaction is open in this thread already")
        signals, begun = self._unserved, False
        try:
            txn = self.begin_turn(keeps_seen=True)
            signals, begun = txn.signals, True
            self._running = False  # the calls of the block are part of it
            yield txn
            if not self.is_open_here():
                raise InvalidArgument(f"{ENDS_ELSEWHERE}. That thread still has the store")
            sequence = self.commit_turn(txn)
            if deferred:
                emit_deferred()
            if self._always:
                self._wait_durable(sequence, signals)
            elif signals:
                self.serve_signals(signals)
            if self.database.pause_s:
                self.database.rest()
        except BaseException:
            if not (begun and self.abandon_turn()):  # it was not begun, or has ended
                self._unserved |= signals
            raise

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a block that takes no time as a transaction."""
        return self.transaction()

    @property
    def own_engine(self) -> "Engine | None":
        """The engine of the store, since this process owns it."""
        return self

    url = ""

    @property
    def seen_sequence(self) -> int:
        """The sequence number that a read has to wait for with ``always``: that of the last write.

        0 once the log has failed: reads then show what is in memory, and wait for no fsync. With
        ``archive`` they do not wait either, so that they go on while the object store is away.
        """
        if self.committer.level is Durability.ARCHIVE:
            return 0
        return self.database.sequence if self._write_guard.failure is None else 0

    # --- turns ----------------------------------------------------------------------------------

    def begin_turn(self, keeps_seen: bool = False) -> Txn:
        """Take the lock and begin a transaction; ``commit_turn`` or ``undo_turn`` ends it.

        All three run in one thread, which makes no other call meanwhile. With ``keeps_seen`` the
        changed seen times of consumers are written first: an undone turn would lose them.
        """
        lock, begun = self._lock, False
        nested = lock.busy and lock.park()
        try:
            lock.acquire()
            if self._running:
                self._refuse_within()
            if self._open is not None:
                raise InvalidArgument("a transaction is open in this thread already")
            lock.busy, self._nested = True, nested
            if keeps_seen and self.catalog.seen:
                self._write_seen()
            self._running = begun = True
            self._opener = threading.get_ident()  # before _open, which makes it valid
            txn = self._open = self._begin()
            return txn
        except BaseException:
            if begun:
                self._running = False
            with suppress(RuntimeError):  # interrupted before it had the lock
                lock.busy = nested
                lock.release()
            raise

    def commit_turn(self, txn: Txn) -> int:
        """Write the changes of the turn; return the sequence number to wait for.

        That is the number of this write; if nothing changed, with ``always`` that of the last one
        that the turn has seen, else 0. If the write fails, the turn is undone.
        """
        try:
            self._running, self._open = True, None
            if txn.failed:
                raise StoreError("the transaction failed inside and cannot be committed")
            sequence = self._commit(txn)
            self._spare = txn
            return sequence or (self.seen_sequence if self._always else 0)
        except BaseException:
            txn.abandon(changed=True)
            raise
        finally:
            self._running = False
            lock = self._lock
            try:
                if self._nested or lock.parked:
                    lock.leave(self._nested)
                else:
                    lock.busy = False
            finally:
                lock.release()

    def undo_turn(self, txn: Txn) -> None:
        """Undo the changes of the turn."""
        try:
            self._running, self._open = True, None
            txn.abandon(changed=True)
        finally:
            self._running = False
            try:
                self._lock.leave(self._nested)
            finally:
                self._lock.release()

    def abandon_turn(self) -> bool:
        """Undo the turn that this thread has open; return False if there is none."""
        if self._open is None or not self.is_open_here():
            return False
        self.undo_turn(self._open)
        return True

    # --- blocking -------------------------------------------------------------------------------

    def submit(
        self,
        names: list[bytes],
        attempt: Callable[[Txn], T | None],
        deliver: Callable[[Outcome], None],
    ) -> tuple[T | None, Waiter | None]:
        """Try once; if there is no reply yet, queue a waiter and return it.

        ``deliver`` is called later with the outcome, by another thread, and must not block. Inside
        a transaction nothing is queued.
        """
        if self.is_open_here():
            return self.run(attempt), None
        waiter = Waiter.of(names, attempt, deliver)
        try:
            reply = self.run(self._attempt_or_queue, waiter)
        except BaseException:  # the caller will not wait
            self.cancel(waiter)
            raise
        return reply, None if reply is not None else waiter

    def _attempt_or_queue(self, txn: Txn, waiter: Waiter) -> Any:
        reply = waiter.attempt(txn)
        if reply is None:
            self.waiters.add(waiter)
        return reply

    def cancel(self, waiter: Waiter, reason: Wake = Wake.CANCELLED) -> bool:
        """Take a waiter out of the queue; return False if it has been served already."""
        with self._working():
            return self.waiters.cancel(waiter, reason)

    def wait_for(
        self,
        names: list[bytes],
        attempt: Callable[[Txn], T | None],
        timeout_s: float | None,
        retry_at: Callable[[Txn], int | None] | None = None,
    ) -> T | None:
        """Run ``attempt`` until it replies, as ``AnyEngine.wait_for`` says."""
        arrived = self.signal()
        outcomes: list[Outcome] = []

        def deliver(outcome: Outcome) -> None:
            outcomes.append(outcome)
            arrived.set()

        deadline = None if timeout_s is None else monotonic() + timeout_s
        reply, waiter = self.submit(names, attempt, deliver)
        if waiter is None:
            if reply is None:
                warn_of_block()
            return reply
        try:
            interrupt: Interrupt | None = getattr(attempt, "interrupt", None)
            if interrupt is not None:
                interrupt.on_set(arrived.set)
            while not arrived.wait(self._pause_s(deadline, retry_at)):
                if deadline is not None and monotonic() >= deadline:
                    break
                elif retry_at is not None:
                    self.serve(waiter.names)  # in order: earlier waiters may succeed as well
            if not outcomes:
                is_over = deadline is not None and monotonic() >= deadline
                if self.cancel(waiter, Wake.TIMEOUT if is_over else Wake.UNBLOCKED):
                    return None
            while not outcomes:  # an outcome follows its fsync; an interrupt may come before it
                arrived.wait(None)
        except BaseException:  # KeyboardInterrupt among them
            self.cancel(waiter)
            raise
        return outcomes[0].get()  # type: ignore[no-any-return]

    def _pause_s(
        self, deadline: float | None, retry_at: Callable[[Txn], int | None] | None
    ) -> float | None:
        """Return the seconds until the deadline or the next try, whichever comes first."""
        rest = None
        if deadline is not None:
            rest = min(max(0.0, deadline - monotonic()), threading.TIMEOUT_MAX)
        if retry_at is None:
            return rest
        try:
            retry_ms = self.run(retry_at)
        except RequestError:  # the key or group is gone: the waiter gets that error
            retry_ms = None
        retry = retry_pause_s(retry_ms, self.clock.now_ms())
        return retry if rest is None else min(rest, retry)

    def serve_later(self, names: list[bytes]) -> None:
        """Serve the waiters of some keys, whose turn was undone, with the next commit."""
        self._unserved |= dict.fromkeys(names, Wake.AGAIN)

    def serve(self, names: Iterable[bytes], groups: Container[bytes | None] | None = None) -> None:
        """Run the attempts of the waiters of some keys, in order of arrival, since time has passed.

        With ``groups``, only of those that read for one of these groups.
        """
        self.serve_signals(dict.fromkeys(names, Wake.IDLE), groups)

    def serve_signals(
        self, signals: dict[bytes, Wake], groups: Container[bytes | None] | None = None
    ) -> None:
        """Take the lock to run the attempts of waiters."""
        with self._working():
            self._serve(signals, groups)

    def _serve(
        self, signals: dict[bytes, Wake], groups: Container[bytes | None] | None = None
    ) -> None:
        for name, reason in list(signals.items()):
            self.waiters.serve(name, reason, self._attempt, self._take, groups)
        while self._raised:  # an attempt wrote for others, such as readers of dead letters
            raised, self._raised = self._raised, {}
            try:
                for name, reason in raised.items():
                    self.waiters.serve(name, reason, self._attempt, self._take)
            except BaseException:  # KeyboardInterrupt: the next commit serves them
                self._unserved |= raised
                raise

    def _attempt(self, waiter: Waiter) -> Outcome | None:
        """Run the attempt of a waiter as one commit; return None if it goes on waiting."""
        if waiter.found is not None:
            return waiter.found[1]
        txn = self._begin()
        outcome, sequence = Outcome(), 0
        try:
            outcome.reply = waiter.attempt(txn)
            sequence = self._commit(txn)
            if txn.signals:
                self._raised |= txn.signals
        except BaseException as error:
            txn.abandon(not isinstance(error, RequestError))
            if not isinstance(error, Exception):  # KeyboardInterrupt, meant for this thread
                raise
            outcome.error = error
        if outcome.reply is None and outcome.error is None:
            return None
        waiter.found = sequence or self.seen_sequence, outcome
        return outcome

    def _take(self, waiter: Waiter, outcome: Outcome) -> None:
        """Deliver an outcome once it is durable, and end the wait."""
        if waiter.found is None:  # the attempt was that of another waiter
            waiter.found = self.seen_sequence, outcome
        self.committer.after(waiter.found[0], partial(waiter.deliver, outcome), waiter.fail)
        self.waiters.remove(waiter)  # last: after an interrupt it is served once more

    every = staticmethod(every_in_thread)
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    # --- looking --------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """The directory of the store."""
        return str(self.database.directory)

    def keys(self, db: int, pattern: bytes | None) -> Iterator[bytes]:
        """Yield the keys of a database, read in pages; with ``pattern`` those that match it."""
        wanted = None if pattern is None else matcher(pattern)
        cursor = 0
        while True:
            cursor, page = self.run(keyspace.scan, db, cursor, _KEYS_PAGE)
            yield from page if wanted is None else filter(wanted, page)
            if cursor == 0:
                return

    def key_infos(self, db: int, pattern: bytes | None, usage: bool) -> Iterator[KeyInfo]:
        """Yield the keys as ``keys`` does, with type, counters and expiry."""
        wanted = matcher(b"*" if pattern is None else pattern)
        cursor, now_ms = 0, self.clock.now_ms
        while True:
            cursor, page = self.run(info.key_usages, db, cursor, _KEYS_PAGE, wanted, usage)
            for key, lag, size in page:
                ttl = max(key.expire_at - now_ms(), 0) / 1000 if key.expire_at else None
                yield KeyInfo(*key[:-1], ttl, lag, size)
            if cursor == 0:
                return

    def page_size(self, last: Sequence[Entry], most: int) -> int:
        """Return ``most``: on a disk, long pages are as good as short ones."""
        return most

    def statistics(self) -> dict[str, Any]:
        """Return sizes and counters of RocksDB, and the counters of queues."""
        return {**self.database.statistics(), "queues": self.catalog.queue_events.counts()}

    # --- upkeep ---------------------------------------------------------------------------------

    @property
    def durability(self) -> Durability:
        """The durability level of acknowledged writes."""
        return self.committer.level

    def set_durability(self, level: Durability) -> None:
        """Change the durability level, from the next write on.

        Raises InvalidArgument for ``archive`` if the store has none.
        """
        if level is Durability.ARCHIVE and not self.options.archive:
            raise InvalidArgument("the durability archive needs the URL of an archive")
        with self._working():
            self.committer.change(level)
            self._always = level in WAITING

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Keep the lock, and refuse the calls of this thread, for a block."""
        with self._lock.hold():
            before, self._running = self._running, True
            try:
                yield
            finally:
                self._running = before

    def refuse_within(self, *locks: CallLock) -> None:
        """Raise ReentrantCall if this thread is in a call, or has one of ``locks``.

        A thread that has the lock is in a call, unless it runs the block of a transaction.
        """
        is_within = self._lock.is_held_here() and (self._running or self._open is None)
        if is_within or threading.get_ident() in self.entered:
            raise ReentrantCall
        for lock in locks:
            if lock.is_held_here():
                raise ReentrantCall

    def sync(self) -> None:
        """Wait until everything written so far is durable."""
        self.run(Txn.write_seen)
        self.committer.sync()

    def checkpoint(self, target: Path, log_bytes_max: int = LOG_BYTES_MAX) -> None:
        """Write a consistent copy of the store into a new directory; reads and writes go on.

        A log longer than ``log_bytes_max`` is flushed first: each opening of the copy replays it.
        """
        self.refuse_within(self._flushing)
        self.run(Txn.write_seen)
        self.copy_files(target, log_bytes_max)

    def copy_files(self, target: Path, log_bytes_max: int) -> None:
        """Do what ``checkpoint`` does, without the seen times that are in memory only."""
        with self._flushing:
            if self.database.size_on_disk(".log") > log_bytes_max:
                self.database.flush()
            self.database.checkpoint(target, self._lock.hold())

    def flush(self) -> None:
        """Write the memtables into tables; reads and writes go on, ``close`` waits."""
        self.refuse_within(self._flushing)
        with self._flushing:
            self.database.flush()

    def compact(self) -> None:
        """Compact everything; reads and writes go on, ``close`` waits."""
        self.refuse_within(self._compacting)
        with self._compacting:
            self.database.compact()

    def reopen(self, from_log: bool = False) -> None:
        """Forget everything in memory and open the store on disk again; waiters go on waiting.

        The memtables are flushed first; with ``from_log`` they are recovered from the log instead.
        If the store cannot be opened again, it is closed.
        """
        with self.exclusively():
            self._write_seen()
            self.catalog.forget()
            self.database.reopen(from_log)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep every other user of RocksDB out, so that it may be closed and opened."""
        self.refuse_within(self._compacting, self._flushing)
        with self._compacting, self._flushing, self.committer.hold(), self._working():
            if self._open is not None or self._closed:
                raise StoreClosed() if self._closed else InvalidArgument("a transaction is open")
            self._spare = None
            yield

    def close(self, discard: bool = False) -> None:
        """Make everything durable and unlock the directory; a second call does nothing.

        If the first call was interrupted, the second one completes it. With ``discard``, after
        another error, the directory is removed if this opening made it and nothing was written.
        Without it StoreReadOnly is raised, once the store is closed, if its path leads elsewhere
        and the last writes may be missing there.
        """
        self.refuse_within(self._compacting, self._flushing, self._closing)
        with self._closing:
            with self._lock.hold():
                if self._open is not None:
                    raise InvalidArgument("the store cannot be closed inside a transaction")
            self.timers.stop()
            self.expiry.stop()
            with self._working():
                if not self._closed:
                    self._write_seen()
                    self._closed, self._spare = True, None
                self.waiters.end(StoreClosed, Wake.CLOSED)
            try:
                self.committer.close()
            except StoreReadOnly:
                if not discard:  # otherwise the caller raises another error
                    raise
            finally:
                self.archiving.close()
                # RocksDB cannot be closed meanwhile
                with self._compacting, self._flushing, self.committer.hold():
                    self.database.close(discard)
                    directories.unregister(self)
        emit_deferred()

    def _write_seen(self) -> None:
        """Write the changed seen times of consumers, unless the store refuses writes."""
        if self.options.read_only:
            return
        with suppress(StoreError):
            txn = self._begin()
            txn.write_seen()
            self._commit(txn)
