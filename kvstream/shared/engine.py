"""The engine of a store that many processes share: the owner's, or a client's of the owner.

The first process to come opens the store and serves it on a socket (``kvstream.shared.owner``), the
others send their calls there. When the owner ends, each client tries to become the owner, and
connects to the one that did. A call that was under way is repeated if that is safe:
``kvstream.remote.repeating`` says which are. A call that an owner has not answered in time is not
repeated: its process is stopped, or overloaded.

Transactions of all processes, the owner's too, go through the socket: they follow the same rules
everywhere, and none keeps the others out while its block runs.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

from kvstream.engine.coerce import path_of, store_options, wait_of
from kvstream.engine.engine import Engine
from kvstream.engine.interface import AnyEngine
from kvstream.engine.unclosed import Unclosed
from kvstream.errors import (
    InvalidArgument,
    KVStreamError,
    ReentrantCall,
    ServerUnavailable,
    StoreClosed,
    StoreError,
    StoreLocked,
)
from kvstream.remote.connection import require_client
from kvstream.remote.engine import RemoteEngine
from kvstream.remote.repeating import Ends, RepeatingEngine, never
from kvstream.remote.server_errors import ConnectionLost
from kvstream.shared.owner import GRACE_S, SOCKET, Owner, OwnerBusy, OwnerProcess, Place
from kvstream.storage import directory as directories
from kvstream.storage.contexts import contextmanager
from kvstream.types.clock import Clock, SystemClock, monotonic
from kvstream.types.options import StoreOptions
from kvstream.types.urls import AnyPath
from kvstream.version import VERSION

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S = 15.0
"""Seconds to wait for an owner: opening a store after a crash reads its log again."""
PAUSE_S, PAUSE_MAX_S = 0.002, 0.05
"""The first and the longest pause between two tries."""
RECALLS_S = 2.0
"""An owner answers a short question within this time, mostly."""
REPLY_S_MIN = 1.0
"""An owner has at least this time for a reply: an fsync may take as long."""

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


def _release_of(version: str) -> list[str]:
    """Return the part of a version that processes must have in common: 0.1 of 0.1.2, 1 of 1.2.0.

    Before 1.0 a minor version may change the requests that processes send to the owner.
    """
    numbers = version.split(".")
    return numbers[: 2 if numbers[0] == "0" else 1]


class SharedEngine(Unclosed, RepeatingEngine):
    """A shared store, as the library sees it. Every method may be called from any thread."""

    engine_type: type[Engine] = Engine
    server_type: type[RemoteEngine] = RemoteEngine
    _opener: Callable[[], object] = staticmethod(threading.get_ident)
    """Returns who opens a store: the thread, or the task."""
    recalls_s = RECALLS_S
    ended = "the process that had the store has ended"

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
        self._reset_calls()
        self._place = Place(self._directory, self.options.trust_group)
        self._lock = self._new_lock()
        self._owner: Owner | None = None
        self._current: Engine | RemoteEngine | None = None
        self._to_itself: RemoteEngine | None = None
        """The owner's connections to its own socket."""
        self._started: OwnerProcess | None = None
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

    def _get_engine(self, deadline: float | None, ends: Ends = never) -> Engine | RemoteEngine:
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
            infos = server.connection().infos("server", "persistence")
        except ConnectionLost:
            return None
        version = infos.get("server", {}).get("kvstream_version", "of no version")
        about = infos.get("persistence", {})
        if _release_of(version) != _release_of(VERSION):
            server.close()
            raise InvalidArgument(
                f"kvstream {version} owns the shared store in {self.place}, and this is kvstream "
                f"{VERSION}: processes that share a directory need one version; end those of one "
                "before you start those of the other"
            )
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

    def _late(self, last: StoreError) -> str:
        return (
            f"no process has kept the shared store in {self.place} for as long as a call takes, in "
            f"{self._wait_s:g} s"
        )

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

    # --- what others look at --------------------------------------------------------------------

    def is_open_here(self) -> bool:
        """Return whether this thread is inside a transaction."""
        own = self.own_engine
        return self._local.server is not None or (own is not None and own.is_open_here())

    @property
    def own_engine(self) -> Engine | None:
        """The engine of the store if this process owns it."""
        engine = self._current
        return engine if isinstance(engine, Engine) else None

    @property
    def url(self) -> str:
        """Where the owner serves the store."""
        return self._place.url
