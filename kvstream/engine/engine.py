"""The engine: one lock, one clock, and the one door through which anything is committed.

An operation runs in a transaction under the lock, its changes go out as one write batch, then the
waiters that it has news for are served, first come first served. With durability ``always`` the
caller, and every waiter, hears of a write only once it is on disk.

A turn: operations of many clients as one commit, and the waiters that they wake.

A server's loop hands all requests that have arrived to one turn. Each operation sees what those
before it wrote; a waiter that has news is tried right after the operation that made them, as Redis
does. Nobody may be told of anything before ``commit`` has returned the number of its write, and
with durability ``always`` not before that one is durable.

An operation that fails half-way, or a commit that fails, undoes the whole turn: ``TurnFailed``.
The caller then runs its operations again, each in a turn of its own, so that the failure meets only
the one that causes it.
"""

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from kvstream.engine.expiry import Expiry
from kvstream.engine.ownership import Owned
from kvstream.engine.reader_snapshots import LOG_MOST, Copying
from kvstream.engine.waiters import Outcome, Waiter, Waiters
from kvstream.errors import (
    InvalidArgument,
    KVStreamError,
    RequestError,
    StoreClosed,
    StoreError,
    UnknownOutcome,
)
from kvstream.meta.catalog import Catalog
from kvstream.meta.txn import Txn
from kvstream.operations import unfinished_loads
from kvstream.storage import directory as fork
from kvstream.storage.batch import Batch
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.types.clock import Clock, SystemClock
from kvstream.types.options import Durability, StoreOptions

P = ParamSpec("P")
T = TypeVar("T")


class Engine(Owned):
    """An open store, as operations see it. Every method may be called from any thread."""

    def __init__(
        self, directory: Path, options: StoreOptions | None = None, clock: Clock | None = None
    ) -> None:
        self.options = options or StoreOptions()
        self.clock: Clock = clock or SystemClock()
        self.catalog = Catalog(self.options)
        super().__init__()
        self.waiters = Waiters()
        self._always = self.options.durability is Durability.ALWAYS
        self.on_commit: Callable[[float], None] | None = None
        """Told the seconds of every write to RocksDB, under the lock; must be quick, not raise."""
        self._now_ms = self.clock.now_ms
        self._spare: Txn | None = None
        self._last_sequence = 0
        self._news: dict[bytes, None] = {}
        """Names that may have news of which no waiter was told, since an interrupt came between:
        whoever commits next, a tenth of a second later at the most, lets their waiters try."""
        self._closed = False
        self.database = Database.open(directory, self.options)
        self._gate = self.database.gate
        try:
            copying = Copying(self.database.directory, lambda target: self.checkpoint(target, 0))
            self.expiry = Expiry(self.run, copying.look)
            self.committer = Committer(self.database, self.options.durability)
            unfinished_loads.recover(self.run, self.options.read_only)
            if not self.options.read_only:
                self.expiry.start()
        except BaseException:
            with suppress(StoreError):
                self.close() if hasattr(self, "committer") else self.database.close()
            raise

    # --- one operation --------------------------------------------------------------------------

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``operation`` as one commit, or as a part of the transaction that this thread has."""
        signals = self._news
        try:
            with self._lock:
                if self._open is not None:
                    return self._join(self._open, operation, *args, **kwargs)
                txn = self._begin()
                if self._news:
                    txn.signals, self._news = self._news, {}
                signals = txn.signals
                try:
                    result = operation(txn, *args, **kwargs)
                    sequence = self._commit(txn)
                except BaseException as error:
                    txn.abandon(not isinstance(error, RequestError))
                    raise
                always = self._always
                if signals and not always:
                    self._serve(signals)
                self._spare = txn
            if always:
                self._settle(sequence, signals)
            if self.database.pause_s:
                self.database.rest()
        except KVStreamError:
            raise
        except BaseException:  # an interrupt, perhaps of a call that was as good as done
            self._news |= signals
            raise
        return result

    def _begin(self) -> Txn:
        """Return an empty transaction: the last one that has ended, where there is one."""
        if self._closed:
            raise StoreClosed
        txn, read_only = self._spare, self._gate.is_shut
        if txn is None:
            return Txn(self.database, self.catalog, self._now_ms(), self.waiters, read_only)
        self._spare = None
        txn.reset(self._now_ms(), read_only)
        return txn

    def _commit(self, txn: Txn) -> int:
        """Write what ``txn`` changed; return its sequence number, 0 where it changed nothing."""
        batch, sequence = txn.finish(), 0
        if batch is not None:
            write = self.database.write if self.on_commit is None else self._timed_write
            sequence = self._last_sequence = write(batch, txn.frees)
            batch.clear()
        if self.catalog.crowded:
            if self.catalog.seen:  # nobody writes: they go out by themselves
                self._write_seen()
            self.catalog.evict()
        return sequence

    def _timed_write(self, batch: Batch, frees: bool) -> int:
        begun = perf_counter()
        sequence = self.database.write(batch, frees)
        if self.on_commit is not None:
            self.on_commit(perf_counter() - begun)
        return sequence

    def _settle(self, sequence: int, signals: dict[bytes, None]) -> None:
        """With ``always``: wait until what was written, or read, is on disk; then wake waiters."""
        self.committer.wait(sequence or self.seen_sequence)
        if signals:
            with self._lock:
                self._serve(signals)

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Txn]:
        """Make everything that this thread does inside one commit; an exception undoes it all.

        Other threads wait meanwhile, and blocking reads do not block.
        """
        txn: Txn | None = None
        signals = self._news
        try:
            with self._lock:
                if self._open is None and self.catalog.seen:
                    self._write_seen()  # a rollback would lose them
                txn = self.begin_turn()
                signals = txn.signals
                yield txn
                sequence = self.commit_turn(txn)
                if signals and not self._always:
                    self._serve(signals)
            if self._always:
                self._settle(sequence, signals)
            if self.database.pause_s:
                self.database.rest()
        except BaseException as error:
            if self.is_open_here() and self._open is txn:  # perhaps an interrupt came first
                self.abandon_turn()
            elif not isinstance(error, KVStreamError):
                self._news |= signals
            raise

    @property
    def seen_sequence(self) -> int:
        """The number of the last write that a read may have seen, and has to wait for.

        0 once the log has failed: the fsync may never come, and what is in memory can be read.
        """
        return self._last_sequence if self.database.failure is None else 0

    # --- turns ----------------------------------------------------------------------------------

    def begin_turn(self) -> Txn:
        """Take the lock and begin what ``commit_turn`` or ``undo_turn`` ends, in this thread.

        For ``Turn``. Operations that this thread runs meanwhile become a part of it.
        """
        try:
            self._lock.acquire()
            if self._open is not None:
                raise InvalidArgument("a transaction is open in this thread already")
            self._opener = threading.get_ident()  # before what makes it count
            txn = self._open = self._begin()
            return txn
        except BaseException:
            with suppress(RuntimeError):  # interrupted before it had the lock
                self._lock.release()
            raise

    def commit_turn(self, txn: Txn) -> int:
        """Write what the turn changed; return the number of the write to be waited for.

        That is its own one, or else ``seen_sequence``. Where the write fails the turn is undone.
        """
        try:
            self._open = None
            if txn.failed:
                raise StoreError("the transaction failed inside and cannot be committed")
            sequence = self._commit(txn)
            self._spare = txn
            return sequence or self.seen_sequence
        except BaseException:
            txn.abandon(changed=True)
            raise
        finally:
            self._lock.release()

    def undo_turn(self, txn: Txn) -> None:
        """Forget what the turn changed."""
        try:
            self._open = None
            txn.abandon(changed=True)
        finally:
            self._lock.release()

    def abandon_turn(self) -> bool:
        """Undo the turn that this thread has open; False where it has none."""
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
        """Try once; where there is nothing yet, queue a waiter that ``deliver`` will be called for.

        Inside a transaction nothing waits. ``deliver`` must not block: other threads run it.
        """
        waiter = Waiter(names, attempt, deliver)
        try:
            with self._lock:
                if self._open is not None:
                    return self._join(self._open, attempt), None
                if not self._always:
                    reply = self.run(attempt)
                    if reply is None:
                        self.waiters.add(waiter)
                        return None, waiter
                    return reply, None
            return self._submit_durably(waiter)
        except BaseException:  # nobody will wait for the waiter
            self.cancel(waiter)
            raise

    def _submit_durably(self, waiter: Waiter) -> tuple[Any, Waiter | None]:
        """``submit`` with ``always``: no fsync is waited for under the lock."""
        with self._lock:
            txn = self._begin()
            try:
                reply = waiter.attempt(txn)
                sequence = self._commit(txn)
            except BaseException as error:
                txn.abandon(not isinstance(error, RequestError))
                raise
            if reply is None:
                self.waiters.add(waiter)
        self._settle(sequence, txn.signals)
        return reply, None if reply is not None else waiter

    def cancel(self, waiter: Waiter) -> bool:
        """Take a waiter out of the queue; False when it has been served already."""
        with self._lock:
            if waiter.done or waiter.found is not None:
                return False
            self.waiters.remove(waiter)
            return True

    def remind(self, names: list[bytes]) -> None:
        """Let the waiters of some keys try again with the next commit of any kind."""
        self._news |= dict.fromkeys(names)

    def serve(self, names: Iterable[bytes], groups: Container[bytes | None] | None = None) -> None:
        """Let the waiters of some keys try again, in the order in which they came.

        ``groups``: those alone that read for one of them.
        """
        with self._lock:
            self._serve(dict.fromkeys(names), groups)

    def _serve(
        self, signals: dict[bytes, None], groups: Container[bytes | None] | None = None
    ) -> None:
        """Let the waiters of each key try, in the order in which they came."""
        for name in list(signals):
            self.waiters.serve(name, self._serve_one, groups)

    def _serve_one(self, waiter: Waiter) -> bool:
        if waiter.found is None:
            txn = self._begin()
            outcome, sequence = Outcome(), 0
            try:
                outcome.reply = waiter.attempt(txn)
                sequence = self._commit(txn)
            except BaseException as error:
                txn.abandon(not isinstance(error, RequestError))
                if not isinstance(error, Exception):  # KeyboardInterrupt, meant for this thread
                    raise
                outcome.error = error
            if outcome.reply is None and outcome.error is None:
                return False
            waiter.found = sequence or self.seen_sequence, outcome
        sequence, outcome = waiter.found
        self.committer.after(
            sequence,
            lambda: waiter.deliver(outcome),
            lambda failure: waiter.deliver(Outcome(error=failure)),
        )
        self.waiters.remove(waiter)  # last: where this is interrupted it is told once more
        return True

    # --- upkeep ---------------------------------------------------------------------------------

    @property
    def durability(self) -> Durability:
        """What a write has survived once it is acknowledged."""
        return self.committer.level

    def set_durability(self, level: Durability) -> None:
        """Promise another level from the next write on."""
        with self._lock:
            self.committer.change(level)
            self._always = level is Durability.ALWAYS

    def sync(self) -> None:
        """Wait until everything written so far is on disk."""
        self.run(Txn.write_seen)
        self.committer.sync()

    def checkpoint(self, target: Path, log_most: int = LOG_MOST) -> None:
        """Write a consistent copy of the store into a new directory; reads and writes go on."""
        self.run(Txn.write_seen)
        with self._flushing:
            if self.database.size_on_disk(".log") > log_most:  # who opens it goes through that
                self.database.flush()
            self.database.checkpoint(target, self._lock)

    def flush(self) -> None:
        """Write what is in memory into tables; the others go on, ``close`` waits."""
        with self._flushing:
            self.database.flush()

    def compact(self) -> None:
        """Compact everything; reads and writes go on, ``close`` waits."""
        with self._compacting:
            self.database.compact()

    def reopen(self, from_log: bool = False) -> None:
        """Forget all that is in memory and open the store on disk anew.

        The log goes into tables before; ``from_log``: it stays, to be recovered from. Waiters go on
        waiting. Where the store cannot be opened any more it is closed.
        """
        with self._compacting, self._flushing, self.committer.held(), self._lock:
            if self._open is not None or self._closed:
                raise StoreClosed() if self._closed else InvalidArgument("a transaction is open")
            self._write_seen()
            self._spare = None
            self.catalog.forget()
            self.database.reopen(from_log)

    def close(self, discard: bool = False) -> None:
        """Make everything durable and let go of the directory; a second call does nothing.

        Where the first was interrupted the second goes on with it. ``discard``: remove the
        directory if this opening made it and nothing was ever written.
        """
        with self._lock:
            if self._open is not None:
                raise InvalidArgument("the store cannot be closed inside a transaction")
        self.expiry.stop()
        with self._lock:
            if not self._closed:
                self._write_seen()
                self._closed = True
            self.waiters.end(StoreClosed)
        try:
            self.committer.close()
        finally:
            # RocksDB cannot be closed meanwhile
            with self._compacting, self._flushing, self.committer.held():
                self.database.close(discard)
                fork.unregister(self)

    def _write_seen(self) -> None:
        """Write the moved seen times; a store that refuses writes keeps those that it has."""
        if self.options.read_only:
            return
        with suppress(StoreError):
            txn = self._begin()
            txn.write_seen()
            self._commit(txn)


class TurnFailed(Exception):
    """The turn was undone; ``__cause__`` says why."""


class Served(NamedTuple):
    """A waiter that the turn has found something for."""

    waiter: Waiter
    outcome: Outcome


class Turn:
    """One turn of one thread, from the first operation to ``commit`` or ``undo``."""

    __slots__ = ("_engine", "_sequence", "_waiters", "grows", "queued", "served", "txn")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = engine.waiters
        self.txn: Txn = engine.begin_turn()
        self._sequence: int | None = None
        self.served: list[Served] = []
        """Waiters taken out of their queues, to be told once the turn is committed."""
        self.queued: list[Waiter] = []
        """Waiters that the turn has put into queues."""
        self.grows = False
        """Something may have made the store larger: no use of the reserve of free space."""

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run one operation; RequestError where it was refused before it changed anything."""
        try:
            return operation(self.txn, *args, **kwargs)
        except RequestError:
            raise
        except BaseException as error:
            self.undo()
            if not isinstance(error, Exception):
                raise  # KeyboardInterrupt, meant for this thread: nothing is to be run again
            raise TurnFailed from error

    def queue(self, waiter: Waiter) -> None:
        """Let a waiter wait for its keys."""
        self._waiters.add(waiter)
        self.queued.append(waiter)

    def serve(self) -> None:
        """Let the waiters of every key that has news try, first come first served."""
        while self.txn.signals:
            names = list(self.txn.signals)
            self.txn.signals.clear()
            for name in names:
                self._waiters.serve(name, self._try)

    def _try(self, waiter: Waiter) -> bool:
        outcome = Outcome()
        try:
            outcome.reply = self.run(waiter.attempt)
        except RequestError as error:
            outcome.error = error
        if outcome.reply is None and outcome.error is None:
            return False
        self._waiters.remove(waiter)
        self.served.append(Served(waiter, outcome))
        return True

    def commit(self) -> int:
        """Write all that the turn has changed; return the sequence number to be waited for."""
        if self.grows:
            self.txn.frees = False
        try:
            self._sequence = sequence = self._engine.commit_turn(self.txn)
        except BaseException as error:
            self._restore()
            if not isinstance(error, Exception):
                raise
            raise TurnFailed from error
        database = self._engine.database
        if database.pause_s:
            database.rest()
        return sequence

    def tell(self, sequence: int) -> None:
        """Tell the waiters that were served, now that the commit of that number is written."""
        for waiter, outcome in self.served:
            if waiter.keeps:
                waiter.deliver(outcome)
            else:
                told, failed = partial(waiter.deliver, outcome), partial(_tell_failed, waiter)
                self._engine.committer.after(sequence, told, failed)

    def undo(self) -> None:
        """Forget all that the turn has changed."""
        self._engine.undo_turn(self.txn)
        self._restore()

    def abandon(self) -> None:
        """Undo the turn where it is still open: something outside its operations has failed.

        Where it is committed already, those whom it has served are to hear of it.
        """
        if self._engine.abandon_turn():
            self._restore()
        elif self._sequence is not None:
            self.tell(self._sequence)

    def _restore(self) -> None:
        """Let waiters be as they were before the turn."""
        for waiter in self.queued:
            if not waiter.done:
                self._waiters.remove(waiter)
        for each in self.served:
            self._engine.remind(each.waiter.names)
        queued = set(self.queued)
        self._waiters.put_back([each.waiter for each in self.served if each.waiter not in queued])
        self.queued, self.served = [], []


def _tell_failed(waiter: Waiter, error: UnknownOutcome) -> None:
    waiter.deliver(Outcome(error=error))
