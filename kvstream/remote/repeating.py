"""An engine whose calls go to the server that has the store at present, and outlast its end.

``SharedEngine`` finds the process that owns a directory, ``FailoverEngine`` the primary that the
Sentinels name; each says how. Here stands what a call does when its server ends under it. It is
repeated with the next one where that is safe:

- a call that did not reach the server, and a read;
- an add: it is a numbered request of a client that has one under way at a time;
- an acknowledgement, a deletion, and the setting of a string: a second call leaves the same state,
  but the number returned does not count what the first call has done;
- an acknowledgement of leases: one that is not pending any more counts as done;
- a read of new entries for a group: entries that the lost call delivered to the consumer are
  returned by the repeated one.

Any other write raises UnknownOutcome, as does one whose repetition fails. A transaction raises
Conflict unless its end was sent.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from kvstream.engine.blocking_reads import GroupRead, PlainRead, rest_of
from kvstream.engine.interface import AnyEngine
from kvstream.engine.lease_renewal import every_in_thread
from kvstream.errors import (
    Conflict,
    InvalidArgument,
    ServerUnavailable,
    StoreClosed,
    StoreError,
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
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.operations import OPERATIONS
from kvstream.remote.procedures import pending_rows
from kvstream.remote.server_errors import ConnectionLost, NotConfirmed, ReplyLost
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import Clock, monotonic
from kvstream.types.ids import AddID, StreamID
from kvstream.types.options import StoreOptions
from kvstream.types.records import Entry, KeyInfo, LeaseOutcome, PendingEntry

if TYPE_CHECKING:
    from kvstream.engine.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")

PIECE_S = 5.0
"""Longest single wait of a group read: if it is lost, its deliveries are looked for."""
CONSUMERS_MAX = 1000
"""Consumers without a read under way that are remembered."""

Delivery = tuple[bytes, StreamID]
Ends = Callable[[], bool]


def never() -> bool:
    """Return False: a call is not ended from outside."""
    return False


class _Local(threading.local):
    server: RemoteEngine | None = None
    """The server of the transaction that this thread has open."""


class _Adder:
    """A client that has one add under way at a time."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._name = os.urandom(8).hex().encode()
        self._numbers = count(1)

    def next(self) -> Request:
        if self._pid != os.getpid():  # a forked child: its parent goes on with the same numbers
            self._begin()
        return Request(self._name, next(self._numbers))


class _Read(set[Delivery]):
    """A read that is under way: the entries that others have got meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = monotonic()


class _Consumer:
    """What the reads of one consumer in this process have got."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        """Held while lost deliveries are looked for, so that one read alone finds each."""
        self.reads: list[_Read] = []
        self.recent: deque[tuple[float, list[Delivery]]] = deque()
        """The entries of the last replies, and when they came."""

    def note(self, reply: Reply | None, kept_s: float) -> None:
        """Note the entries of a reply; forget those of ``kept_s`` before any read under way began.

        A read that is lost looks for what was delivered since it began, however long ago that is.
        """
        self.add([(name, entry.id) for name, entries in reply or () for entry in entries], kept_s)

    def add(self, found: list[Delivery], kept_s: float) -> None:
        """Note entries that this process has."""
        now = oldest = monotonic()
        for each in list(self.reads):
            each.update(found)
            oldest = min(oldest, each.begun)
        while self.recent and self.recent[0][0] < oldest - kept_s:
            self.recent.popleft()
        if found:
            self.recent.append((now, found))

    def seen(self, others: set[Delivery]) -> set[Delivery]:
        """Return the entries that this process has got already."""
        return others.union(*(found for _, found in self.recent)) if self.recent else others


class RepeatingEngine:
    """The engine of a store that one server after another has. Methods are for any thread."""

    sleep: Callable[[float], None] = staticmethod(time.sleep)
    _new_lock: Callable[[], Any] = staticmethod(threading.RLock)
    _new_local: Callable[[], Any] = _Local
    every = staticmethod(every_in_thread)

    clock: Clock
    local_clock: Clock
    options: StoreOptions
    place: str

    not_done: tuple[type[StoreError], ...] = (ConnectionLost,)
    """Errors after which another server is looked for: the call was not done, or changes
    nothing."""
    in_doubt: tuple[type[StoreError], ...] = (ReplyLost,)
    """The same for a write that may have been done."""
    recalls_s: float
    """How long deliveries are remembered after they came. A lost read does not return them again,
    although the answer about what is pending takes time, and clocks of servers differ: both by
    less, or else a lost delivery comes again once its lease has ended."""
    pause_s = 0.0
    """The pause before a call is repeated; where it is 0, looking for a server pauses."""
    ended = "the server of the store has ended"

    _closed: bool
    _wait_s: float
    _current: AnyEngine | None
    """The engine of the present server; None while none is known."""

    def _reset_calls(self) -> None:
        """Begin without any call under way."""
        self._local: _Local = self._new_local()
        self._adders: list[_Adder] = []
        """Adders without an add under way."""
        self._consumers: dict[tuple[bytes, bytes], _Consumer] = {}
        self._consumers_lock = self._new_lock()
        """Held for a moment, never while a server is asked or looked for."""

    # --- the present server ---------------------------------------------------------------------

    def _get_engine(self, deadline: float | None, ends: Ends = never) -> AnyEngine:
        """Return the present engine; without one, look for a server until ``deadline``.

        It may give up earlier, once ``ends`` returns True.
        """
        raise NotImplementedError

    def _forget(self, engine: AnyEngine) -> None:
        """Forget an engine whose server has ended."""
        raise NotImplementedError

    def _server(self) -> RemoteEngine:
        """Return connections to the present server."""
        raise NotImplementedError

    def _confirm(self, engine: Any) -> None:
        """Return once replicas confirm a write of a server, and so all before; else raise."""
        raise NotImplementedError

    def _late(self, last: StoreError) -> str:
        """Return what to say of a call that no server has done in time, and its ``last`` error."""
        raise NotImplementedError

    def _once(self, engine: Any, request: Request, eid: AddID) -> Idempotency | Request | None:
        """Return what makes an add repeatable on a server; None if nothing does."""
        return request

    def _name(self, error: StoreError) -> StoreError:
        """Return an error in the class that says whether the call is repeated."""
        return error

    @property
    def own_engine(self) -> "Engine | None":
        """The engine in this process, if it has the store; else None."""
        return None

    def _repeat(
        self,
        call: Callable[[Any], T],
        again: bool = False,
        waits: bool = False,
        ends: Ends = never,
        reads: bool = False,
    ) -> T:
        """Call with the present engine until a server has answered, or ``ends`` returns True.

        ``again``: the call may be repeated if its outcome is unknown. ``reads``: it changes
        nothing, so its outcome is never unknown, also if it has seen what is not confirmed.
        ``waits``: it may take long, so the time to wait for a server begins when one is lost. Once
        the call may have been done, any failure of the store is raised as UnknownOutcome.
        """
        deadline = None if waits else monotonic() + self._wait_s
        unknown: StoreError | None = None
        alone: str | None = None
        """The server that has done a write which its replicas do not confirm."""
        pause = self.pause_s
        while True:
            engine = None
            try:
                engine = self._get_engine(deadline, ends)
                if engine.place == alone:
                    self._attempt(self._confirm, engine)
                    alone = None
                return self._attempt(call, engine)
            except self.in_doubt as error:
                if not (again or reads):
                    raise
                last = error
                if not reads:
                    unknown = error
                    alone = engine.place if isinstance(error, NotConfirmed) and engine else alone
            except self.not_done as error:
                last = error
            except StoreError as error:
                if unknown is None or isinstance(error, UnknownOutcome):
                    raise
                raise UnknownOutcome(f"{unknown}, and now: {error}") from None
            now = monotonic()
            deadline = now + self._wait_s if deadline is None else deadline
            if now >= deadline or ends():
                over = self._late(last)
                raise (
                    ServerUnavailable(over)
                    if unknown is None
                    else UnknownOutcome(f"{unknown}, and {over}")
                )
            if pause:
                self.sleep(min(pause, deadline - now))
                pause = min(2 * pause, 10 * self.pause_s)

    def _attempt(self, call: Callable[[Any], T], engine: AnyEngine) -> T:
        """Call with an engine; forget it if its server has ended."""
        try:
            return call(engine)
        except StoreClosed:  # another thread has noticed the end of the server
            if self._closed or self._current is engine:
                raise
            raise ConnectionLost(self.ended) from None
        except StoreError as error:
            known = self._name(error)
            if isinstance(known, (*self.not_done, *self.in_doubt)):
                self._forget(engine)
            if known is error:
                raise
            raise known from None

    # --- operations -----------------------------------------------------------------------------

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation once, or repeat it where that is safe."""
        server, own = self._local.server, self.own_engine
        if server is not None:
            return server.run(operation, *args, **kwargs)
        if self._consumers and operation is leases.extend:
            self._note_extended(*args)  # type: ignore[arg-type]
        if own is not None:
            return own.run(operation, *args, **kwargs)
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
        reads = record is not None and record.effect is Effect.READ
        done: T = self._repeat(
            lambda engine: engine.run(operation, *args, **kwargs), again, reads=reads
        )
        return done

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

        def add(request: Request | None) -> StreamID | None:
            def on(engine: AnyEngine) -> StreamID | None:
                same = once if request is None else self._once(engine, request, eid)
                try:
                    return engine.run(append.add, name, value, names, eid, trim, nomkstream, same)
                except StoreError as error:
                    if same is not None or not isinstance(self._name(error), self.in_doubt):
                        raise
                    self._forget(engine)
                    raise UnknownOutcome(str(error)) from None

            return self._repeat(on, again=True)

        if once is not None:
            return add(None)
        with self._request() as request:
            return add(request)

    @contextmanager
    def _request(self) -> Iterator[Request]:
        """Number a request of a client that has no other under way."""
        try:
            adder = self._adders.pop()
        except IndexError:
            adder = _Adder()
        try:
            yield adder.next()
        finally:
            self._adders.append(adder)

    def _ack_leases(
        self, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[leases.Token]
    ) -> list[int]:
        """Acknowledge leases; after a lost call, leases that are not pending count as done."""
        calls = 0  # those that may have been done

        def once(engine: AnyEngine) -> list[int]:
            nonlocal calls
            calls += 1
            try:
                return engine.run(leases.ack, name, group, consumer, tokens)
            except StoreError as error:
                calls -= isinstance(self._name(error), self.not_done)
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
        """Wait for a read's reply, across changes of the server; None after ``timeout_s``."""
        engine = self._local.server or self.own_engine
        if engine is not None:
            return engine.wait_for(names, attempt, timeout_s, retry_at)
        if isinstance(attempt, GroupRead):
            return self._read_group(attempt, timeout_s)  # type: ignore[return-value]
        assert isinstance(attempt, PlainRead)
        attempt.wanted = [(name, self.run(read.resolve, name, at)) for name, at in attempt.wanted]
        rest, interrupt = rest_of(timeout_s), attempt.interrupt
        reply: T | None = self._repeat(
            lambda engine: engine.wait_for(names, attempt, rest(), retry_at),
            waits=True,
            reads=True,
            ends=never if interrupt is None else interrupt.is_set,
        )
        return reply

    def _read_group(self, attempt: GroupRead, timeout_s: float | None) -> Reply | None:
        """Read as a consumer until there are entries; with a timeout of 0, once."""
        rest = rest_of(timeout_s)
        while True:
            wait_s = rest()
            if self.own_engine is None:
                wait_s = PIECE_S if wait_s is None else min(wait_s, PIECE_S)
            reply = self._read_piece(attempt, wait_s)
            if reply or rest() == 0 or attempt.is_interrupted:
                return reply

    def _read_piece(self, attempt: GroupRead, timeout_s: float | None) -> Reply | None:
        """Wait for a short time; return also the entries that a lost read has delivered."""
        names = [name for name, _ in attempt.wanted]
        begun, lost = time.time(), False
        rest = rest_of(timeout_s)

        def once(engine: AnyEngine) -> Reply | None:
            nonlocal lost
            if lost:
                reply = self._find_deliveries(engine, attempt, begun, consumer, seen)
                if reply:
                    return reply
            lost = True
            wait_s = rest()
            if wait_s == 0:
                return engine.run(attempt)
            return engine.wait_for(names, attempt, wait_s, attempt.retries)

        def is_to_end() -> bool:
            return attempt.is_interrupted

        with self._reading(attempt) as (consumer, seen):
            try:
                reply = self._repeat(once, again=True, waits=True, ends=is_to_end)
            except (ServerUnavailable, UnknownOutcome):
                if not attempt.is_interrupted:
                    raise
                return None  # what it may have delivered stays pending
            with consumer.lock:
                consumer.note(reply, self.recalls_s)
        return reply

    @contextmanager
    def _reading(self, attempt: GroupRead) -> Iterator[tuple[_Consumer, set[Delivery]]]:
        """Note that a read of a consumer is under way; the set gets what other reads get."""
        key, seen = (attempt.group, attempt.consumer), _Read()
        with self._consumers_lock:
            consumer = self._consumers.get(key)
            if consumer is None:
                consumer = self._consumers[key] = _Consumer(self._new_lock())
            consumer.reads.append(seen)
        try:
            yield consumer, seen
        finally:
            with self._consumers_lock:
                consumer.reads[:] = [other for other in consumer.reads if other is not seen]
                if self.own_engine is not None and not consumer.reads:
                    self._consumers.pop(key, None)  # a forked child has none
                elif len(self._consumers) > CONSUMERS_MAX:
                    self._consumers = {k: c for k, c in self._consumers.items() if c.reads}

    def _note_extended(
        self, name: bytes, group: bytes, consumer: bytes, tokens: Sequence[leases.Token]
    ) -> None:
        """Note entries of which the leases begin anew: they look as if delivered just now."""
        with self._consumers_lock:
            known = self._consumers.get((group, consumer))
        if known is not None:
            with known.lock:
                known.add([(name, eid) for eid, _ in tokens], self.recalls_s)

    def _find_deliveries(
        self,
        engine: AnyEngine,
        attempt: GroupRead,
        begun: float,
        consumer: _Consumer,
        seen: set[Delivery],
    ) -> Reply:
        """Return entries that were delivered to a consumer since ``begun``, and are not here."""
        if attempt.noack:
            return []
        with consumer.lock:
            known = consumer.seen(seen)
            reply: Reply = []
            for name, after in attempt.wanted:
                if after is not readgroup.NEW:
                    continue
                rows = _pending_since(engine, name, attempt, begun, self.recalls_s)
                fetched = (
                    _fetch(engine, name, row, attempt.claim_ms is not None)
                    for row in rows
                    if (name, row.id) not in known
                )
                entries = list(chain.from_iterable(fetched))
                if entries:
                    reply.append((name, entries))
            consumer.note(reply, self.recalls_s)
            return reply

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send the writes of this thread as one MULTI when the block ends."""
        if self._local.server is not None:
            raise InvalidArgument("a transaction is open in this thread already")
        self._repeat(lambda engine: engine.clock.now_ms(), again=True)  # the server is there
        server = self._local.server = self._server()
        try:
            with server.transaction():
                yield
        except StoreError as error:
            known = self._name(error)
            if isinstance(known, self.in_doubt) and self.own_engine is None:
                self._forget(server)
            if self._closed or not isinstance(known, (*self.not_done, StoreClosed)):
                raise
            self._forget(server)
            if self.pause_s and not isinstance(known, ConnectionLost | StoreClosed):
                self.sleep(10 * self.pause_s)  # it refuses: to run it at once again would not help
            raise Conflict(
                f"{self.ended}: nothing of the transaction was done, run it again"
            ) from None
        finally:
            self._local.server = None

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a short block as a transaction; an owner runs it directly, and serves nobody then."""
        own = self.own_engine if self._local.server is None else None
        return self.transaction() if own is None else own.transaction()

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
        """Yield the items of an engine; after a change of the server, the remaining ones."""
        seen: set[bytes] = set()
        server = self._local.server
        if server is not None:
            yield from look(server)
            return
        items: Iterator[T] = iter(())
        source: AnyEngine | None = None

        def following(engine: AnyEngine) -> T | None:
            nonlocal items, source
            if engine is not source:  # another server: from the beginning
                items, source = look(engine), engine
            try:
                return next((each for each in items if key_of(each) not in seen), None)
            except StoreError:
                source = None
                raise

        while (found := self._repeat(following, again=True)) is not None:
            seen.add(key_of(found))
            yield found

    def page_size(self, last: Sequence[Entry], most: int) -> int:
        return self._get_engine(None).page_size(last, most)

    def statistics(self) -> dict[str, Any]:
        """Return the sections of INFO, as of a server."""
        return self._repeat(lambda engine: self._server().statistics(), again=True)

    def compact(self) -> None:
        self._repeat(lambda engine: engine.compact(), again=True)


def _fetch(engine: AnyEngine, name: bytes, row: PendingEntry, claims: bool) -> list[Entry]:
    """Return a pending entry, or none if it is deleted.

    ``claims``: it has the number of its earlier deliveries, as in a read with CLAIM.
    """
    page = engine.run(scan, Range(name, row.id, row.id))
    entries: list[Entry] = page.entries() if page else []
    if not claims:
        return entries
    return [each._replace(idle_ms=0, deliveries=row.deliveries - 1) for each in entries]


def _pending_since(
    engine: AnyEngine, name: bytes, attempt: GroupRead, begun: float, late_s: float
) -> list[PendingEntry]:
    """Return the entries that were delivered to a consumer since a Unix time.

    Some of those delivered up to ``late_s`` before may be among them: an answer takes time.
    """
    latest = time.time() + late_s
    return [
        row
        for row in pending_rows(engine, name, attempt.group, attempt.consumer)
        if row.idle_ms is not None
        and row.idle_ms <= (min(time.time(), latest) - begun) * 1000 + 1
        and row.deliveries != COUNT_MAX
    ]
