"""The engine of a store on a server: kvstream's, or Redis from 7.0 on.

It offers what ``kvstream.engine.interface`` asks for, so the library's Store, Stream, Group and
Consumer work on it as they do on a directory. An operation is one command where that is possible,
else several in one MULTI, else several round trips: ``remote/operations.py`` has a record for each.

A read whose connection is lost is sent once more. So is a write that may be repeated, such as an
add with an idempotent ID. Any other write whose connection is lost raises UnknownOutcome, as does
every write that a silent server may have got. A blocked read waits in parts that are shorter than
the timeout of the socket.

A transaction is MULTI and EXEC. Its writes are sent when the block ends, and their results are
known then (``Queued``). Its reads are sent at once, and their keys are watched: if another client
changes one before the end, nothing is done and Conflict is raised.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from kvstream.engine.blocking_reads import GroupRead, PlainRead, rest_of
from kvstream.engine.coerce import warn_of_block
from kvstream.engine.lease_renewal import every_in_thread
from kvstream.engine.lock import ENDS_ELSEWHERE
from kvstream.errors import (
    Conflict,
    IDTooSmall,
    InvalidArgument,
    KVStreamError,
    NoSuchKey,
    ReentrantCall,
    RequestError,
    ServerLoading,
    ServerTooOld,
    ServerUnavailable,
    StoreClosed,
    StoreError,
    UnknownOutcome,
    WrongType,
    naming_stream,
    quote,
    with_more,
)
from kvstream.layout.keys import database_of, qualified
from kvstream.meta.txn import Txn
from kvstream.operations import info
from kvstream.operations.reads import read
from kvstream.operations.reads.read import Reply
from kvstream.remote.call import REQUIRED, Call, Effect, Words
from kvstream.remote.connection import (
    CONNECT_S,
    PAGE_MIN,
    REPLY_S,
    Connection,
    Link,
    ReplicaAcks,
    connect,
    next_page,
    raise_first_error,
)
from kvstream.remote.given_back import GivenBack
from kvstream.remote.operations import OPERATIONS, call_of, needs_of
from kvstream.remote.replies import (
    group_info_of,
    is_key_refusal,
    sections_of,
    stream_info_of,
    unix_ms,
)
from kvstream.remote.server_errors import (
    ConnectionLost,
    NotPrimary,
    NotSent,
    ReplyLost,
    is_late,
    translate_errors,
)
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import Clock, SystemClock, monotonic
from kvstream.types.options import DATABASES_MAX, StoreOptions
from kvstream.types.records import Entry, KeyInfo
from kvstream.version import VERSION

P = ParamSpec("P")
T = TypeVar("T")

_JOB_PAUSE_S = 0.1
"""Seconds between two questions about a background job of the server."""
REFUSED_S = 600.0
"""How long a key that was refused is not asked again."""


class _Local(threading.local):
    transaction: "Transaction | None" = None
    """The transaction that this thread has open."""


class RemoteEngine:
    """A server, as the library sees it. Every method may be called from any thread."""

    connection_type = Connection
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    _new_local: Callable[[], Any] = _Local

    def __init__(
        self,
        url: str,
        db: int | None = None,
        connect_s: float = CONNECT_S,
        reply_s: float = REPLY_S,
        replicas: int = 0,
    ) -> None:
        self.url, self._connect_s, self._reply_s = url, connect_s, reply_s
        self._replicas = replicas
        self._check_link: Callable[[Link], None] | None = None
        first = self._connect(db)
        self.db = first.db
        """The database that ``db`` or the URL names."""
        self._connections = {first.db: first}
        self._lock = threading.RLock()  # a signal handler may make a call within this one
        self._local = self._new_local()
        self._has: dict[str, bool] = {}
        """Whether the server has a command, once that was asked."""
        self._closed = False
        self._refused = RefusedKeys()
        self.given_back = GivenBack(self.run, self.call)
        self.clock: Clock = ServerClock(first)
        self.local_clock: Clock = SystemClock()
        self.options = StoreOptions(databases=DATABASES_MAX)  # the server knows how many it has
        self.place = first.place

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be pickled: open its URL in the other process, too")

    @classmethod
    def open(
        cls,
        url: str,
        db: int | None = None,
        connect_s: float = CONNECT_S,
        reply_s: float = REPLY_S,
        greet_s: float | None = None,
        replicas: int = 0,
    ) -> Self:
        """Return the engine of the server at a URL; ``db`` None: the database that it names.

        ``greet_s``: the seconds to wait for its first connection and reply, by default
        ``connect_s``. ``replicas``: how many must have a write before its call returns. Raises
        InvalidArgument for a wrong URL, ServerUnavailable, AccessDenied, and ClientMissing if
        redis-py is not installed.
        """
        greet_s = connect_s if greet_s is None else greet_s
        # The first connection has the shorter timeout: a port that accepts and then stays silent,
        # as a TLS port does to a client without TLS, is no server.
        first = cls.connection_type(connect(url, greet_s, greet_s), db)
        try:
            first.greet()
        finally:
            first.close()
        return cls(url, db, connect_s, reply_s, replicas)

    def _connect(self, db: int | None) -> Connection:
        made = self.connection_type(connect(self.url, self._connect_s, self._reply_s), db)
        made.check_link = self._check_link
        if self._replicas:
            made.acks = ReplicaAcks(self._replicas, made.block_s_max)
        return made

    def check_links(self, check: Callable[[Link], None]) -> None:
        """Call ``check`` with each connection before it is used."""
        self._check_link = check
        for connection in self._connections.values():
            connection.check_link = check

    def connection(self, db: int | None = None) -> Connection:
        """Return the connections to a database; None: the one that was opened."""
        if self._closed:
            raise StoreClosed
        number = self.db if db is None else db
        connection = self._connections.get(number)
        if connection is None:
            with self._lock:
                connection = self._connections.setdefault(number, self._connect(number))
            if self._closed:  # by another thread, or a signal handler
                connection.close()
                raise StoreClosed
        return connection

    def has(self, command: str) -> bool:
        """Return whether the server has a command, and lets this user ask."""
        known = self._has.get(command)
        if known is None:
            try:
                known = self.connection().ask("COMMAND", "INFO", command) != [None]
            except RequestError:  # not every user may send COMMAND
                known = False
            self._has[command] = known
        return known

    def close(self, discard: bool = False) -> None:
        self._closed = True
        for connection in list(self._connections.values()):  # another thread may add one
            connection.close()

    # --- operations -----------------------------------------------------------------------------

    def run(
        self, operation: Callable[Concatenate[Txn, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation; raise InvalidArgument if it needs the files of a store."""
        record = OPERATIONS.get(operation)
        if record is not None:
            if record.steps is not None:
                return record.steps(self, *args, **kwargs)  # type: ignore[no-any-return]
            return self.call(record.call_of(*args, **kwargs))  # type: ignore[no-any-return]
        if isinstance(operation, PlainRead | GroupRead):
            return self._read(operation, 0)  # type: ignore[return-value]
        name = getattr(operation, "__name__", "this")
        raise InvalidArgument(f"{name} works on the files of a store, not on a server")

    def is_open_here(self) -> bool:
        """Return whether this thread is inside a transaction."""
        return self._transaction is not None

    @property
    def _transaction(self) -> "Transaction | None":
        """The open transaction of this thread."""
        transaction: Transaction | None = self._local.transaction
        return None if transaction is None or transaction.ended else transaction

    def call(self, call: Call) -> Any:
        """Return the result of a call, or a ``Queued`` until the end of a transaction."""
        connection = self.connection(call.db)
        transaction = self._transaction
        try:
            if transaction is not None and call.commands:
                return transaction.take(call)
            return call.result(_send_call(connection, call))
        except (NoSuchKey, WrongType) as error:
            if isinstance(error, NoSuchKey) and call.missing is not REQUIRED:
                return call.missing
            raise error.with_detail(error.detail or ", ".join(map(quote, call.keys))) from None
        except RequestError as error:
            raise self._explain(error, call.commands) from None

    def _explain(self, error: RequestError, commands: Iterable[Words]) -> RequestError:
        """Return the error to raise: ServerTooOld if the server lacks what the commands use."""
        cause = self._cause(error, commands)
        return cause if cause is error or not error.detail else with_more(cause, error.detail)

    def _cause(self, error: RequestError, commands: Iterable[Words]) -> RequestError:
        """Return ServerTooOld in place of an error that it explains, else the error."""
        needs = needs_of(commands)
        if not needs or isinstance(error, Conflict):
            return error
        try:
            about = self.connection().info("server")
        except KVStreamError:  # not every user may send INFO
            return error
        own = " and ".join(need for need, since in needs.items() if not since)
        if "kvstream_version" in about:
            is_older = _version(about["kvstream_version"]) < _version(VERSION)
            kinds = ("unknown command", *(("syntax error",) if is_older else ()))
            if not own or not str(error).startswith(kinds):
                return error
            return ServerTooOld(f"{own} needs a later kvstream than that at {self.place}")
        name = "Valkey" if "valkey_version" in about else "Redis"
        version = about.get("valkey_version") or about.get("redis_version")
        if own:
            return ServerTooOld(
                f"{own} is a command of kvstream: the server at {self.place} is "
                f"{name} {version}; open a directory, or run `kvstream serve`"
            )
        needed = max(needs.values(), key=_version)
        if name == "Redis" and _version(version) >= _version(needed):
            return error
        return ServerTooOld(
            f"{' and '.join(needs)} needs Redis {needed} or kvstream: the server at "
            f"{self.place} is {name} {version}"
        )

    # --- blocking -------------------------------------------------------------------------------

    def wait_for(
        self,
        names: list[bytes],
        attempt: Callable[[Txn], T | None],
        timeout_s: float | None,
        retry_at: Callable[[Txn], int | None] | None = None,
    ) -> T | None:
        """Send a read until it replies; return None after ``timeout_s`` (None: never).

        Raises StoreClosed if the store is closed meanwhile.
        """
        assert isinstance(attempt, PlainRead | GroupRead)
        try:
            reply = self._read(attempt, timeout_s)
        except (ServerUnavailable, UnknownOutcome):
            if self._closed:
                raise StoreClosed from None
            raise
        if reply is None and self._transaction is not None:
            warn_of_block()
        return reply  # type: ignore[return-value]

    def _read(self, attempt: PlainRead | GroupRead, timeout_s: float | None) -> Reply | None:
        """Send a read until it finds entries; with a timeout of 0, once."""
        if not attempt.wanted:
            return None
        if isinstance(attempt, GroupRead) and attempt.given_back:
            return self._read_next(attempt, timeout_s)
        call_of, rest_s = self._call_of(attempt), rest_of(timeout_s)
        connection = self.connection(database_of(attempt.wanted[0][0]))
        interrupt = attempt.interrupt
        if interrupt is not None:
            interrupt.on_set(connection.make_unblock())
        while interrupt is None or not interrupt.is_set():
            rest = rest_s()
            waits = self._transaction is None and (rest is None or rest > 0)
            reply: Reply = self.call(call_of(connection.block_words(rest) if waits else ()))
            if reply or not waits or (rest is not None and rest <= connection.block_s_max):
                return reply or None
        return None

    def _read_next(self, attempt: GroupRead, timeout_s: float | None) -> Reply | None:
        """Send a read that returns entries which were given back, too; see ``GivenBack``."""
        connection = self.connection(database_of(attempt.wanted[0][0]))
        rest_s, looked = rest_of(timeout_s), False
        while True:
            rest = rest_s()
            waits = rest is None or rest > 0
            due_s = self.given_back.due_in(attempt)
            if looked and not waits:
                return None
            if due_s > 0:
                block = connection.block_words(due_s if rest is None else min(due_s, rest))
                reply: Reply = self.call(call_of(GroupRead, attempt, block if waits else ()))
                if reply:
                    return reply
                if waits:
                    continue
            given_back = self.given_back.look(attempt, connection, rest, waits)
            if given_back:
                return given_back
            looked = given_back is not None

    def _call_of(self, attempt: PlainRead | GroupRead) -> Callable[[Words], Call]:
        """Return the function that makes the call of a read from its words of BLOCK."""
        if isinstance(attempt, GroupRead):
            return partial(call_of, GroupRead, attempt)
        wanted = [(name, self.run(read.resolve, name, after)) for name, after in attempt.wanted]
        return partial(call_of, PlainRead, wanted, attempt.count, attempt.budget())

    every = staticmethod(every_in_thread)

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send the writes of this thread as one MULTI when the block ends; see the module."""
        if self._transaction is not None:
            raise InvalidArgument("a transaction is open in this thread already")
        transaction = self._local.transaction = Transaction(self)
        try:
            try:
                yield
                if self._transaction is not transaction:
                    raise InvalidArgument(ENDS_ELSEWHERE)
            finally:
                transaction.ended = True
            try:
                transaction.commit()
            except RequestError as error:
                raise self._explain(error, transaction.commands) from None
        finally:
            transaction.end()

    def brief_transaction(self) -> AbstractContextManager[Any]:
        """Run a short block of kvstream's own code as a transaction."""
        return self.transaction()

    own_engine = None
    """Another process has the store."""

    # --- looking --------------------------------------------------------------------------------

    def keys(self, db: int, pattern: bytes | None) -> Iterator[bytes]:
        """Yield the keys of a database, each once, by pages of SCAN."""
        for page in self._key_pages(db, pattern):
            yield from page

    def _key_pages(self, db: int, pattern: bytes | None) -> Iterator[list[bytes]]:
        if self._transaction is not None:
            self._transaction.refuse_stale(())
        options = () if pattern is None else ("MATCH", pattern)
        return self.connection(db).key_pages(*options)

    def key_infos(self, db: int, pattern: bytes | None, usage: bool) -> Iterator[KeyInfo]:
        """Yield the keys with type, counters and expiry, in two or three round trips a page.

        Keys which the server refuses to this user are left out, though SCAN names them.
        """
        connection = self.connection(db)
        for page in self._key_pages(db, pattern):
            infos = list(_key_infos(connection, page, self._refused))
            yield from _with_usage(connection, infos) if usage else infos

    def page_size(self, last: Sequence[Entry], most: int) -> int:
        """Return how many entries fit a reply of a few megabytes, by the sizes of the last page."""
        size = next_page([entry.flat for entry in last]) if last else PAGE_MIN
        return min(size, most)

    def statistics(self) -> dict[str, Any]:
        """Return the sections of INFO."""
        return sections_of(self.connection().ask("INFO"))

    # --- upkeep ---------------------------------------------------------------------------------

    def save(self) -> None:
        """Run BGSAVE, and wait for its end."""
        self.connection().do("BGSAVE")
        self._await_job("rdb_bgsave_in_progress", "rdb_last_bgsave_status", "save")

    def compact(self) -> None:
        """Run BGREWRITEAOF, and wait for its end."""
        if not self.connection().info("persistence").get("aof_enabled"):
            raise RequestError(
                "the server has no append-only file (appendonly no): there is nothing to compact"
            )
        self.connection().do("BGREWRITEAOF")
        self._await_job("aof_rewrite_in_progress", "aof_last_bgrewrite_status", "compaction")

    def _await_job(self, running: str, status: str, job: str) -> None:
        """Wait for the end of a job of the server that has begun."""
        try:
            while (about := self.connection().info("persistence")).get(running):
                self.sleep(_JOB_PAUSE_S)
        except ServerUnavailable as error:
            kind = ReplyLost if isinstance(error, ConnectionLost) else UnknownOutcome
            raise kind(f"the {job} has begun, and may or may not have ended: {error}") from None
        if about.get(status, "ok") != "ok":
            raise RequestError(f"the {job} has failed: see the log of the server")


class ServerClock:
    """The clock of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def now_ms(self) -> int:
        return unix_ms(self._connection.ask("TIME"))


def _version(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split(".") if part.isdigit())


_ENDED = (ConnectionLost, StoreClosed, NotPrimary, ServerLoading)
"""Errors of a server that is not the one any more: the next one may tell what was done."""


def _send_call(connection: Connection, call: Call) -> list[Any]:
    """Send the commands of a call; return their replies.

    A read whose connection was lost is sent once more, as is a write that may be repeated.
    """
    send = _sender(connection, call)
    if call.effect in (Effect.WRITE, Effect.SAME_STATE):
        return send()
    unknown: ReplyLost | None = None
    try:
        return send()
    except ReplyLost as error:
        unknown = error
    except ConnectionLost:
        pass
    try:
        return send()
    except StoreError as error:
        if unknown is None or isinstance(error, UnknownOutcome):
            raise
        lost = isinstance(error, _ENDED) or is_late(error)
        raise (ReplyLost if lost else UnknownOutcome)(f"{unknown}, and now: {error}") from None


def _sender(connection: Connection, call: Call) -> Callable[[], list[Any]]:
    """Return the function that sends the commands of a call once."""
    commands = call.commands
    writes = call.effect not in (Effect.READ, Effect.GUARD)
    if call.effect is Effect.GUARD:
        return lambda: raise_first_error(connection.ask_all([*commands, ("UNWATCH",)]))
    if not commands:
        return list
    if len(commands) > 1 and writes:
        noun = "writes" if call.part is None else "entries"
        return lambda: _check_replies(connection.try_all(commands), noun, call.part)
    if len(commands) > 1:
        return partial(connection.ask_at_once, commands)
    return lambda: [(connection.do if writes else connection.ask)(*commands[0])]


_NAMED_MAX = 5
"""Refused writes that an error names, at most."""


def _check_replies(replies: list[Any], noun: str, part: Callable[[int], str] | None) -> list[Any]:
    """Return the replies of a MULTI; raise its first error, with a note on the writes that stay.

    ``noun`` is what the commands add or write, and ``part`` names one of them.
    """
    wrong = [at for at, reply in enumerate(replies) if isinstance(reply, Exception)]
    if not wrong:
        return replies
    error = replies[wrong[0]]
    done = len(replies) - len(wrong)
    if done and isinstance(error, KVStreamError):
        verb = "were added" if noun == "entries" else "were done"
        text = f"a server undoes nothing: {done} of {len(replies)} {noun} {verb} and stay"
        if part is not None:
            more = f" and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
            text += f"; refused: {', '.join(map(part, wrong[:_NAMED_MAX]))}{more}"
        with_more(error, text)
    raise error


class Queued:
    """The result of a write in a transaction on a server.

    It behaves as the result once the block has ended; any use before raises InvalidArgument.
    """

    __slots__ = ("_known", "_value")

    def __init__(self) -> None:
        self._known = False
        self._value: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._value) if self._known else Queued

    def __getattr__(self, name: str) -> Any:
        return getattr(_use(self), name)

    def __repr__(self) -> str:
        return repr(self._value) if self._known else "<known when the transaction ends>"


def _use(queued: Queued) -> Any:
    """Return the result; raise InvalidArgument before the transaction has ended."""
    if not queued._known:
        raise InvalidArgument(
            "on a server the result of a write in a transaction is known when its block has ended: "
            "use it after the block, or do the write before"
        )
    return queued._value


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Queued, *args: Any) -> Any:
        plain = [_use(each) if type(each) is Queued else each for each in args]
        return getattr(_use(self), name)(*plain)

    return method


for _name in (
    *("bool", "bytes", "eq", "format", "ge", "getitem", "gt", "hash", "index", "int"),
    *("iter", "le", "len", "lt", "ne", "str", "add", "radd"),
):
    setattr(Queued, f"__{_name}__", _forward(f"__{_name}__"))


class Transaction:
    """The reads and writes of one ``transaction()`` block, all in one database."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._link: Link | None = None
        self._failed = False
        self._watched: set[bytes] = set()
        self._guards: list[Call] = []
        self._written: set[bytes] = set()
        self._writes_all = False
        """A queued write concerns all keys."""
        self._queue: list[tuple[Call, Queued]] = []
        self._taking = False
        self.ended = False
        """Its block has ended, perhaps in another thread."""

    @property
    def commands(self) -> list[Words]:
        """The commands of all queued calls."""
        return [words for call, _ in self._queue for words in call.commands]

    def take(self, call: Call) -> Any:
        """Queue a write, or send a read at once; raise ReentrantCall in the middle of another."""
        if self._taking:
            raise ReentrantCall
        self._taking = True
        try:
            return self._take(call)
        finally:
            self._taking = False

    def _take(self, call: Call) -> Any:
        connection = self._engine.connection(call.db)
        if self._connection not in (None, connection):
            raise InvalidArgument("a transaction on a server works on one database")
        self._connection = connection
        if call.effect is Effect.GUARD:
            replies = self._ask_all(connection, call.commands)
            raise_first_error(replies)
            self._guards.append(call)
            return None
        if call.effect is Effect.READ:
            return call.result(self._read(connection, call))
        if call.immediate:
            raise InvalidArgument(
                f"{call.commands[0][0]!s} cannot be part of a transaction on a server, which gives "
                "its result too late: do it before the block"
            )
        queued = Queued()
        self._queue.append((call, queued))
        self._written.update(call.keys)
        self._writes_all = self._writes_all or not call.keys
        return queued

    def refuse_stale(self, keys: Sequence[bytes]) -> None:
        """Raise InvalidArgument if a read of keys (none: all) would miss a queued write."""
        if self._writes_all or (self._written and not (keys and self._written.isdisjoint(keys))):
            raise InvalidArgument(
                "a transaction on a server writes when its block ends: read a stream before you "
                "write to it"
            )

    def _read(self, connection: Connection, call: Call) -> list[Any]:
        """Watch the keys of a read, and send it."""
        self.refuse_stale(call.keys)
        unwatched = [key for key in call.keys if key not in self._watched]
        watch: list[Words] = [("WATCH", *unwatched)] if unwatched else []
        replies = self._ask_all(connection, [*watch, *call.commands])
        self._watched.update(unwatched)
        return raise_first_error(replies)[len(watch) :]

    def _send(
        self, connection: Connection, send: Callable[[Link], list[Any]], writing: bool = False
    ) -> list[Any]:
        """Send commands over the one connection that has the watches of the transaction."""
        if self._failed:
            raise StoreError("the transaction failed inside and cannot be committed")
        self._failed = True
        with translate_errors(writing=writing):
            if self._link is None:
                self._link = connection.take()
            elif not self._link.is_open():
                raise NotSent("the connection of the transaction has ended")
            try:
                replies = send(self._link)
            except RequestError:  # an error reply: nothing was done
                self._failed = False
                raise
        self._failed = False
        return replies

    def commit(self) -> None:
        """Send the queued writes; raise Conflict if a watched key has changed."""
        words = self.commands
        if self._connection is None or not words:
            return
        try:
            replies = self._send(
                self._connection, partial(self._connection.transact, commands=words), writing=True
            )
        except Conflict:
            self._refuse_lost_leases(self._connection)
            raise
        self._watched.clear()
        self._guards.clear()
        at = 0
        for call, queued in self._queue:
            some = replies[at : at + len(call.commands)]
            at += len(some)
            if not any(isinstance(reply, Exception) for reply in some):
                queued._value, queued._known = call.result(some), True
        calls = [call for call, _ in self._queue for _ in call.commands]
        try:
            _check_replies(
                replies,
                "writes of the transaction",
                lambda at: " ".join([str(words[at][0]), *map(quote, calls[at].keys)]),
            )
        except IDTooSmall as error:
            self._name_last_id(error, calls[replies.index(error)])
            raise

    def _ask_all(self, connection: Connection, commands: Sequence[Words]) -> list[Any]:
        """Return the replies to commands, error replies among them."""
        return self._send(connection, lambda link: link.ask_all(commands))

    def _name_last_id(self, error: IDTooSmall, call: Call) -> None:
        """Add the stream of a call and its last ID to an error, if the server tells it."""
        (key,) = call.keys
        with suppress(KVStreamError):
            name = qualified(call.db or 0, key)
            naming_stream(error, key, self._engine.run(read.resolve, name, read.Position.LAST))

    def _refuse_lost_leases(self, connection: Connection) -> None:
        """Raise LeaseLost if that is why EXEC has done nothing."""
        guards, self._guards = self._guards, []
        for call in guards:
            raise_first_error(self._ask_all(connection, call.commands))

    def end(self) -> None:
        """Give the connection back, without watches."""
        if self._link is None or self._connection is None:
            return
        try:
            if (self._watched or self._guards) and not self._failed:
                with suppress(KVStreamError):
                    self._ask_all(self._connection, [("UNWATCH",)])
        finally:
            if self._failed:
                self._link.close()
            else:
                self._connection.give_back(self._link)


class RefusedKeys:
    """Keys that a server has refused to its user: they are not asked again for some minutes.

    Each refusal is a line in the ACL LOG of the server, which keeps few of them.
    """

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._since = monotonic()

    def others(self, page: Iterable[bytes]) -> list[bytes]:
        """Return the keys that may be asked."""
        if monotonic() - self._since >= REFUSED_S:
            self._keys, self._since = set(), monotonic()
        return [key for key in page if key not in self._keys]

    def are_in(self, key: bytes, reply: object) -> bool:
        """Return whether a reply is the refusal of a key, and remember it."""
        is_refusal = isinstance(reply, RequestError) and is_key_refusal(reply)
        if is_refusal:
            self._keys.add(key)
        return is_refusal


def _key_infos(
    connection: Connection, page: Iterable[bytes], refused: RefusedKeys
) -> Iterator[KeyInfo]:
    """Yield the keys that exist and are not refused, in two round trips."""
    asked = refused.others(page)
    about = connection.ask_all((word, key) for word in ("TYPE", "PTTL") for key in asked)
    replied = zip(asked, about, strict=False)
    kinds = {key: kind for key, kind in replied if not refused.are_in(key, kind)}
    ttls = dict(zip(asked, about[len(asked) :], strict=True))
    raise_first_error([each for key in kinds for each in (kinds[key], ttls[key])])
    streams = [key for key, kind in kinds.items() if kind == b"stream"]
    replies = connection.ask_all([("XINFO", "STREAM", key) for key in streams])
    infos = dict(zip(streams, replies, strict=True))
    for key, kind in kinds.items():
        expires = None if ttls[key] < 0 else ttls[key] / 1000
        info = infos.get(key)
        if info is None and kind != b"none":
            yield KeyInfo(key, kind.decode(), None, None, None, expires)
        elif not isinstance(info, NoSuchKey | WrongType | None) and not refused.are_in(key, info):
            raise_first_error([info])
            stream = stream_info_of(info)
            last = stream.last_generated_id
            yield KeyInfo(key, "stream", stream.length, stream.groups, last, expires)


def _with_usage(connection: Connection, infos: Sequence[KeyInfo]) -> Iterator[KeyInfo]:
    """Yield the keys with lag and size, in one round trip; None if the server refuses."""
    grouped = [each.key for each in infos if each.groups]
    replies = connection.ask_all(
        [("MEMORY", "USAGE", each.key) for each in infos]
        + [("XINFO", "GROUPS", key) for key in grouped]
    )
    groups = dict(zip(grouped, replies[len(infos) :], strict=True))
    for each, size in zip(infos, replies, strict=False):
        rows = groups.get(each.key, [])
        lags = [] if isinstance(rows, Exception) else [group_info_of(row).lag for row in rows]
        yield each._replace(
            lag=info.largest_lag(lags), size=size if isinstance(size, int) else None
        )
