"""The engine of a store that many processes share: the owner's, or a client's of the owner.

The first process to come opens the store and serves it on a socket (``kvstream.shared.owner``), the
others send their calls there. When the owner ends, each client tries to become the owner, and
connects to the one that did. A call that was under way is repeated if that is safe:

- a call that did not reach the owner, and a read;
- an add: it is a numbered request of a client that has one under way at a time;
- an acknowledgement, a deletion, and the setting of a string: a second call leaves the same state,
  but the number returned does not count what the first call has done;
- an acknowledgement of leases: one that is not pending any more counts as done;
- a read of new entries for a group: entries that the lost call delivered to the consumer are
  returned by the repeated one.

Any other write raises UnknownOutcome, as does one whose repetition fails. A transaction raises
Conflict unless its end was sent. A call that an owner has not answered in time is not repeated: its
process is stopped, or overloaded.

Transactions of all processes, the owner's too, go through the socket: they follow the same rules
everywhere, and none keeps the others out while its block runs.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from kvstream.engine.blocking_reads import GroupRead, PlainRead, rest_of
from kvstream.engine.coerce import path_of, store_options, wait_of
from kvstream.engine.engine import Engine
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import every_in_thread
from kvstream.engine.unclosed import Unclosed
from kvstream.errors import (
    Conflict,
    InvalidArgument,
    KVStreamError,
    ReentrantCall,
    ServerUnavailable,
    StoreClosed,
    StoreError,
    StoreLocked,
    UnknownOutcome,
)
from kvstream.layout.values import Names
from kvstream.meta.idempotency import Request
from kvstream.meta.pel import COUNT_MAX
from kvstream.meta.txn import Txn
from kvstream.operations import append, readgroup
from kvstream.operations.append import Idempotency
from kvstream.operations.queues import leases
from kvstream.operations.reads import read
from kvstream.operations.reads.range import Range, scan
from kvstream.operations.reads.read import Reply
from kvstream.operations.trim import Trim
from kvstream.remote.call import Effect
from kvstream.remote.connection import ConnectionLost, ReplyLost, require_client
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.operations import OPERATIONS
from kvstream.remote.procedures import pending_rows
from kvstream.shared.owner import GRACE_S, SOCKET, Owner, OwnerBusy, OwnerProcess, Place
from kvstream.storage import directory as directories
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import Clock, SystemClock, monotonic
from kvstream.types.ids import AddID, StreamID
from kvstream.types.options import StoreOptions
from kvstream.types.records import Entry, KeyInfo, LeaseOutcome, PendingEntry
from kvstream.types.urls import AnyPath

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S = 15.0
"""Seconds to wait for an owner: opening a store after a crash reads its log again."""
PAUSE_S, PAUSE_MAX_S = 0.002, 0.05
"""The first and the longest pause between two tries."""
REPLY_S_MIN = 1.0
"""An owner has at least this time for a reply: an fsync may take as long."""
PIECE_S = 5.0
"""Longest single wait of a client's group read: if it is lost, its deliveries are looked for."""


class _Local(threading.local):
    server: RemoteEngine | None = None
    """The server of the transaction that this thread has open."""


class _Adder:
    """A client that has one add under way at a time."""

    def __init__(self) -> None:
        self._name = os.urandom(8).hex().encode()
        self._numbers = count(1)

    def next(self) -> Request:
        return Request(self._name, next(self._numbers))


_changing: set[tuple[object, str]] = set()
"""The threads, or tasks, that are opening or closing a store, with its directory."""
_open: "weakref.WeakSet[SharedEngine]" = weakref.WeakSet()
"""Engines that are not closed."""


def _report(
    shown: Callable[[threading.ExceptHookArgs], object], args: threading.ExceptHookArgs
) -> None:
    """Report an error that ends a thread, except that of a store closed at the program's end."""
    if not issubclass(args.exc_type, StoreClosed):
        shown(args)


@atexit.register
def _close_all() -> None:
    """Close the stores that the program has left open, so that no client loses a call.

    Daemon threads in a blocked read get a StoreClosed, which nobody needs to see.
    """
    if _open:
        threading.excepthook = partial(_report, threading.excepthook)
    for engine in list(_open):
        with suppress(KVStreamError, RuntimeError):  # the event loop has ended
            engine.close()


class SharedEngine(Unclosed):
    """A shared store, as the library sees it. Every method may be called from any thread."""

    engine_type: type[Engine] = Engine
    server_type: type[RemoteEngine] = RemoteEngine
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    _new_lock: Callable[[], Any] = staticmethod(threading.RLock)
    _opener: Callable[[], object] = staticmethod(threading.get_ident)
    """Returns who opens a store: the thread, or the task."""
    _new_local: Callable[[], Any] = _Local

    def __init__(self, directory: Path, options: StoreOptions, wait_s: float) -> None:
        """Open the store, or connect to its owner; see ``kvstream.open`` for the errors."""
        if options.read_only:
            raise InvalidArgument(
                "a shared store is written: leave out read_only, or pass shared=False"
            )
        self._directory, self._wait_s = Path(directory), wait_s
        self.options = options
        self.clock: Clock = SystemClock()
        self.local_clock: Clock = self.clock
        self.place = str(directory)
        self._closed = False
        self._reset()
        try:
            self._get_engine(None)
            self.note_opened()
        except BaseException:  # a task that is cancelled, too
            self.close()
            raise

    @classmethod
    def open(
        cls,
        place: AnyPath,
        settings: Mapping[str, Any],
        clock: Clock | None = None,
        wait_s: float | None = None,
    ) -> Self:
        """Open the shared store in a directory: as its owner, or as a client of the owner.

        Raises what opening a store does, StoreLocked if the process that has it does not share it,
        and ClientMissing if redis-py is not installed.
        """
        if clock is not None:
            raise InvalidArgument(
                "a shared store uses its owner's clock: leave out clock, or pass shared=False"
            )
        directory, options = path_of(place), store_options(settings)
        wait_s = None if wait_s is None else wait_of(wait_s, "wait_s")
        require_client()  # the owner needs none, but the processes beside it do
        return cls(directory, options, wait_s or WAIT_S)

    def _reset(self) -> None:
        self._place = Place(self._directory, self.options.trust_group)
        self._lock = self._new_lock()
        self._owner: Owner | None = None
        self._current: Engine | RemoteEngine | None = None
        self._to_itself: RemoteEngine | None = None
        """The owner's connections to its own socket."""
        self._started: OwnerProcess | None = None
        self._local: _Local = self._new_local()
        self._adders: list[_Adder] = []
        """Adders without an add under way."""
        self._reads: dict[tuple[bytes, bytes], list[set[tuple[bytes, StreamID]]]] = {}
        """For each group and consumer, the entries that other reads got while a read was under
        way."""
        directories.register(self)
        self._opened_by = os.getpid()
        _open.add(self)

    def refuse_after_fork(self) -> None:
        """Begin as a new client in a forked child: it must use no connection of its parent."""
        if self._closed:
            return
        directories.leak((self._owner, self._current, self._to_itself))
        _changing.clear()
        self._reset()

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the shared store again where it is unpickled, such as in a spawned process."""
        return SharedEngine, (self._directory, self.options, self._wait_s)

    # --- the owner ------------------------------------------------------------------------------

    def _get_engine(self, deadline: float | None) -> Engine | RemoteEngine:
        """Return the present engine; without one, connect to the owner or become it."""
        engine = self._current
        if engine is not None:
            return engine
        with self._lock:
            if self._closed:
                raise StoreClosed
            if self._current is None:
                with self._changing_owner():
                    self._current = self._elect(deadline)
            return self._current

    @contextmanager
    def _changing_owner(self) -> Iterator[None]:
        """Raise ReentrantCall if this thread is in the middle of another call of the same store.

        The inner call would wait for the outer one, which cannot go on meanwhile.
        """
        place = os.path.realpath(self._directory)
        mark = self._opener(), place
        if mark in _changing:
            raise ReentrantCall
        for other in list(_open):
            own = other.own_engine
            if own is not None and os.path.realpath(other._directory) == place:
                own.refuse_within()
        try:  # first: an interrupt must not leave the mark behind
            _changing.add(mark)
            yield
        finally:
            _changing.discard(mark)

    def _elect(self, deadline: float | None) -> Engine | RemoteEngine:
        if self._owner is not None:  # an interrupt came right after it was made
            return self._owner.engine
        begun, pause = monotonic(), PAUSE_S
        until = begun + self._wait_s if deadline is None else deadline
        alone = begun + GRACE_S
        """When a lock without a socket is taken for that of a store that is not shared."""
        while True:
            server = self._connect(until)
            if server is not None:
                self._started = None
                return server
            try:
                if directories.forked_after_opening:
                    self._start_owner()
                    alone = until
                else:
                    self._owner = self._own()
                    return self._owner.engine
            except StoreLocked as error:
                now = monotonic()
                if now >= until:
                    raise StoreLocked(
                        f"no process serves the shared store after {self._wait_s:g} s: {error}"
                    ) from None
                if isinstance(error, OwnerBusy):
                    alone = now + GRACE_S
                elif now >= alone:
                    raise
            if monotonic() >= until:
                raise ServerUnavailable(f"no process owns the shared store in {self.place}")
            self.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _own(self) -> Owner:
        """Open the store, as its owner."""
        return Owner(self._place, self.options, self.engine_type)

    def _disown(self, owner: Owner) -> None:
        """Release the store, so that another process can own it."""
        owner.close()

    def _start_owner(self) -> None:
        """Start a process that owns the store, since this one cannot."""
        if self._started is None or self._started.is_over():
            self._started = OwnerProcess(self._directory, self.options)

    @property
    def clients(self) -> int | None:
        """The number of connections to this owner; None if this process is not the owner."""
        return None if self._owner is None else self._owner.clients

    @property
    def _reply_s(self) -> float:
        """How long an owner may take for a reply."""
        return max(self._wait_s, REPLY_S_MIN)

    def _connect(self, until: float) -> RemoteEngine | None:
        """Return a connection to the owner; None if nobody serves the store.

        Raises ServerUnavailable if the owner does not answer before ``until``.
        """
        if not os.path.exists(self._place.directory / SOCKET):
            return None
        self._place.check()
        greet_s = max(until - monotonic(), PAUSE_MAX_S)
        try:
            server = self.server_type.open(self._place.url, reply_s=self._reply_s, greet_s=greet_s)
            about = server.connection().info("persistence")
        except ConnectionLost:
            return None
        own = {"durability": str(self.options.durability), "archive": self.options.archive}
        for name, value in own.items():
            if (there := about.get(f"kvstream_{name}") or "") != value:
                server.close()
                raise InvalidArgument(
                    f"the shared store is open with {name} {there or None}, not {value or None}: "
                    "open it alike in every process"
                )
        return server

    def _forget(self, engine: AnyEngine) -> None:
        """Forget an engine whose owner has ended."""
        with self._lock:
            if self._current is engine and self._owner is None:
                self._current = None
        if isinstance(engine, RemoteEngine):
            engine.close()

    def _repeat(
        self,
        call: Callable[[Engine | RemoteEngine], T],
        again: bool = False,
        waits: bool = False,
    ) -> T:
        """Call with the present engine until an owner has answered.

        ``again``: the call may be repeated if its outcome is unknown. ``waits``: it may take long,
        so the time to wait for an owner begins when one is lost. Once the call may have been done,
        any failure of the store is raised as UnknownOutcome.
        """
        deadline = None if waits else monotonic() + self._wait_s
        unknown: ReplyLost | None = None
        while True:
            try:
                return self._attempt(call, deadline)
            except ReplyLost as error:
                if not again:
                    raise
                unknown = error
            except ConnectionLost:
                pass
            except StoreError as error:
                if unknown is None or isinstance(error, UnknownOutcome):
                    raise
                raise UnknownOutcome(f"{unknown}, and now: {error}") from None
            now = monotonic()
            deadline = now + self._wait_s if deadline is None else deadline
            if now >= deadline:
                over = (
                    f"no process has kept the shared store in {self.place} for as long as a call "
                    f"takes, in {self._wait_s:g} s"
                )
                raise (
                    ServerUnavailable(over)
                    if unknown is None
                    else UnknownOutcome(f"{unknown}, and {over}")
                )

    def _attempt(self, call: Callable[[Engine | RemoteEngine], T], deadline: float | None) -> T:
        """Call with the present engine; forget it if its owner has ended."""
        engine = self._get_engine(deadline)
        try:
            return call(engine)
        except (ConnectionLost, ReplyLost):
            self._forget(engine)
            raise
        except StoreClosed:  # another thread has noticed the end of the owner
            if self._closed or self._current is engine:
                raise
            raise ConnectionLost("the process that had the store has ended") from None

    def _server(self) -> RemoteEngine:
        """Return the connections to the owner's socket; the owner may be this process."""
        engine = self._get_engine(None)
        if isinstance(engine, RemoteEngine):
            return engine
        engine.refuse_within()
        with self._lock:
            if self._to_itself is None:
                self._to_itself = self.server_type(self._place.url, reply_s=self._reply_s)
            return self._to_itself

    def close(self, discard: bool = False) -> None:
        """Close this engine; the owner completes its requests and releases the store."""
        if not self._closed:
            with self._changing_owner():
                self._close()

    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            owner, current, server = self._owner, self._current, self._to_itself
        for each in (server, current):
            if isinstance(each, RemoteEngine):
                each.close()
        try:
            if owner is not None:
                self._disown(owner)
        finally:
            directories.unregister(self)
            _open.discard(self)
            self._place.close()

    # --- operations -----------------------------------------------------------------------------

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation once, or repeat it where that is safe."""
        server, engine = self._local.server, self._current
        if server is not None:
            return server.run(operation, *args, **kwargs)
        if isinstance(engine, Engine):
            return engine.run(operation, *args, **kwargs)
        if operation is append.add:
            return self._add(*args, **kwargs)  # type: ignore[arg-type,return-value]
        if isinstance(operation, GroupRead):
            return self._read_group(operation, 0)  # type: ignore[return-value]
        if operation is leases.ack:
            return self._ack_leases(*args)  # type: ignore[arg-type,return-value]
        record = OPERATIONS.get(operation)
        if record is not None and record.shares_steps:
            return record.steps(self, *args, **kwargs)  # type: ignore[misc,no-any-return]
        again = record is not None and record.effect is not Effect.WRITE
        return self._repeat(lambda engine: engine.run(operation, *args, **kwargs), again)

    def _add(
        self,
        name: bytes,
        value: bytes,
        names: Names,
        eid: AddID = None,
        trim: Trim | None = None,
        nomkstream: bool = False,
        once: Idempotency | None = None,
    ) -> StreamID | None:
        """Add an entry exactly once: by the caller's idempotent ID, or as a numbered request."""

        def add(request: Idempotency | Request) -> StreamID | None:
            return self._repeat(
                lambda engine: engine.run(
                    append.add, name, value, names, eid, trim, nomkstream, request
                ),
                again=True,
            )

        if once is not None:
            return add(once)
        try:
            adder = self._adders.pop()
        except IndexError:
            adder = _Adder()
        try:
            return add(adder.next())
        finally:
            self._adders.append(adder)

    def _ack_leases(
        self, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[leases.Token]
    ) -> list[int]:
        """Acknowledge leases; after a lost call, leases that are not pending count as done."""
        calls = 0  # those that may have been done

        def once(engine: Engine | RemoteEngine) -> list[int]:
            nonlocal calls
            calls += 1
            try:
                return engine.run(leases.ack, name, group, consumer, tokens)
            except ConnectionLost:
                calls -= 1
                raise

        done = self._repeat(once, again=True)
        return done if calls == 1 else [outcome or int(LeaseOutcome.DONE) for outcome in done]

    # --- blocking -------------------------------------------------------------------------------

    def wait_for(
        self,
        names: list[bytes],
        attempt: Callable[[Txn], T | None],
        timeout_s: float | None,
        retry_at: Callable[[Txn], int | None] | None = None,
    ) -> T | None:
        """Wait for a read's reply, across changes of the owner; None after ``timeout_s``."""
        engine = self._local.server or self._current
        if isinstance(engine, Engine) or self._local.server is not None:
            assert engine is not None
            return engine.wait_for(names, attempt, timeout_s, retry_at)
        if isinstance(attempt, GroupRead):
            return self._read_group(attempt, timeout_s)  # type: ignore[return-value]
        assert isinstance(attempt, PlainRead)
        attempt.wanted = [(name, self.run(read.resolve, name, at)) for name, at in attempt.wanted]
        rest = rest_of(timeout_s)
        return self._repeat(
            lambda engine: engine.wait_for(names, attempt, rest(), retry_at),  # type: ignore[return-value]
            waits=True,
        )

    def _read_group(self, attempt: GroupRead, timeout_s: float | None) -> Reply | None:
        """Read as a consumer until there are entries; with a timeout of 0, once."""
        rest = rest_of(timeout_s)
        while True:
            wait_s = rest()
            if not isinstance(self._current, Engine):
                wait_s = PIECE_S if wait_s is None else min(wait_s, PIECE_S)
            reply = self._read_piece(attempt, wait_s)
            if reply or rest() == 0 or attempt.is_interrupted:
                return reply

    def _read_piece(self, attempt: GroupRead, timeout_s: float | None) -> Reply | None:
        """Wait for a short time; return also the entries that a lost read has delivered."""
        key = (attempt.group, attempt.consumer)
        seen: set[tuple[bytes, StreamID]] = set()
        names = [name for name, _ in attempt.wanted]
        begun, lost = time.time(), False
        rest = rest_of(timeout_s)

        def once(engine: Engine | RemoteEngine) -> Reply | None:
            nonlocal lost
            if lost:
                reply = self._find_deliveries(engine, attempt, begun, seen)
                if reply:
                    return reply
            lost = True
            wait_s = rest()
            if wait_s == 0:
                return engine.run(attempt)
            return engine.wait_for(names, attempt, wait_s, attempt.retries)

        with self._lock:
            self._reads.setdefault(key, []).append(seen)
        try:
            reply = self._repeat(once, again=True, waits=True)
        finally:
            with self._lock:
                others = self._reads[key]
                others[:] = [other for other in others if other is not seen]
                if not others:
                    del self._reads[key]
        self._note(key, reply)
        return reply

    def _note(self, key: tuple[bytes, bytes], reply: Reply | None) -> None:
        """Tell the other reads of a consumer which entries this process has got."""
        with self._lock:
            for other in self._reads.get(key, ()):
                for name, entries in reply or ():
                    other.update((name, entry.id) for entry in entries)

    def _find_deliveries(
        self,
        engine: Engine | RemoteEngine,
        attempt: GroupRead,
        begun: float,
        seen: set[tuple[bytes, StreamID]],
    ) -> Reply:
        """Return entries that were delivered to a consumer since ``begun``, and are not here."""
        if attempt.noack:
            return []
        with self._lock:
            reply: Reply = []
            for name, after in attempt.wanted:
                if after is not readgroup.NEW:
                    continue
                rows = _pending_since(engine, name, attempt, begun)
                fetched = (
                    _fetch(engine, name, row, attempt.claim_ms is not None)
                    for row in rows
                    if (name, row.id) not in seen
                )
                entries = list(chain.from_iterable(fetched))
                if entries:
                    reply.append((name, entries))
            self._note((attempt.group, attempt.consumer), reply)
            return reply

    every = staticmethod(every_in_thread)

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send the writes of this thread as one MULTI when the block ends."""
        if self._local.server is not None:
            raise InvalidArgument("a transaction is open in this thread already")
        self._repeat(lambda engine: engine.clock.now_ms())  # the owner is there
        server = self._local.server = self._server()
        try:
            with server.transaction():
                yield
        except (ConnectionLost, StoreClosed):
            if self._closed:
                raise
            self._forget(server)
            raise Conflict(
                "the process that had the store has ended: nothing of the transaction was done, "
                "run it again"
            ) from None
        finally:
            self._local.server = None

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a short block as a transaction; an owner runs it directly, and serves nobody then."""
        own = self.own_engine if self._local.server is None else None
        return self.transaction() if own is None else own.transaction()

    @property
    def own_engine(self) -> Engine | None:
        """The engine of the store if this process owns it."""
        engine = self._current
        return engine if isinstance(engine, Engine) else None

    @property
    def url(self) -> str:
        """Where the owner serves the store."""
        return self._place.url

    # --- looking --------------------------------------------------------------------------------

    def keys(self, db: int, pattern: bytes | None) -> Iterator[bytes]:
        """Yield the keys of a database, each once."""
        return self._each(lambda engine: engine.keys(db, pattern), lambda key: key)

    def key_infos(self, db: int, pattern: bytes | None, usage: bool) -> Iterator[KeyInfo]:
        """Yield the keys as ``keys`` does, with type, counters and expiry."""
        return self._each(
            lambda engine: engine.key_infos(db, pattern, usage), lambda info: info.key
        )

    def _each(
        self, look: Callable[[AnyEngine], Iterator[T]], key_of: Callable[[T], bytes]
    ) -> Iterator[T]:
        """Yield the items of an engine; after a change of the owner, the remaining ones."""
        seen: set[bytes] = set()
        while True:
            engine = self._local.server or self._get_engine(None)
            try:
                for each in look(engine):
                    if key_of(each) not in seen:
                        seen.add(key_of(each))
                        yield each
                return
            except (ConnectionLost, StoreClosed):
                if self._closed or self._local.server is not None:
                    raise
                self._forget(engine)

    def page_size(self, last: Sequence[Entry], most: int) -> int:
        return self._get_engine(None).page_size(last, most)

    def statistics(self) -> dict[str, Any]:
        """Return the sections of INFO, as of a server."""
        return self._repeat(lambda engine: self._server().statistics())

    def compact(self) -> None:
        self._repeat(lambda engine: engine.compact(), again=True)


def _fetch(
    engine: Engine | RemoteEngine, name: bytes, row: PendingEntry, claims: bool
) -> list[Entry]:
    """Return a pending entry, or none if it is deleted.

    ``claims``: it has the number of its earlier deliveries, as in a read with CLAIM.
    """
    page = engine.run(scan, Range(name, row.id, row.id))
    entries = page.entries() if page else []
    if not claims:
        return entries
    return [each._replace(idle_ms=0, deliveries=row.deliveries - 1) for each in entries]


def _pending_since(
    engine: Engine | RemoteEngine, name: bytes, attempt: GroupRead, begun: float
) -> list[PendingEntry]:
    """Return the entries that were delivered to a consumer since a Unix time."""
    return [
        row
        for row in pending_rows(engine, name, attempt.group, attempt.consumer)
        if row.idle_ms is not None
        and row.idle_ms <= (time.time() - begun) * 1000 + 1
        and row.deliveries != COUNT_MAX
    ]
