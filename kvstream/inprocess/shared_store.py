"""The stores of this process that have clients: each is opened once, however many clients it has.

Each client has a handle. The store of a directory is opened for the first handle and closed with
the last. A Store that the program has opened stays open.
"""

import atexit
import contextlib
import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvstream.engine.coerce import path_of, store_options
from kvstream.engine.lock import CallLock
from kvstream.errors import InvalidArgument, KVStreamError, ReentrantCall, StoreClosed
from kvstream.inprocess.host import CLOSED, Host
from kvstream.storage import directory
from kvstream.storage.contexts import contextmanager
from kvstream.store import Store
from kvstream.types.urls import AnyPath

CLOSE_WAIT_S = 10
"""Seconds that an opening waits for a thread that is closing the store."""
COLLECTIONS_MAX = 10
"""Objects that a collection frees, such as tasks, may hold others until the next one."""


class SharedStore:
    """A store with clients in this process."""

    def __init__(self, name: str, store: Store | None) -> None:
        """``store`` was opened by the program; None: ``name`` is a directory to open."""
        self.name = name
        self._borrowed = store
        self._owned: Store | None = None
        self._options: dict[str, Any] = {}
        self._host: Host | None = None
        self._handles: set[Handle] = set()
        self._released: deque[Handle] = deque()
        # Reentrant: the garbage collector may close a client at any point.
        self._lock = CallLock()

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Set the options to open with; InvalidArgument if the store is open with other ones."""
        with self._hold_lock():
            if self._borrowed is not None and options:
                raise InvalidArgument(
                    f"the store is open already, its options are set: {', '.join(sorted(options))}"
                )
            if self._host is None:
                self._options = dict(options)
                return
            for name, value in options.items():
                if name not in self._options or self._options[name] != value:
                    raise InvalidArgument(
                        f"{self.name!r} is open in this process without {name}={value!r}"
                    )

    def acquire(self, handle: "Handle") -> Host:
        """Add a client's handle; open the store if it is closed.

        Raises ReentrantCall while this thread opens or closes the store.
        """
        if self._lock.is_held_here():
            raise ReentrantCall
        with self._hold_lock():
            try:
                self._handles.add(handle)
                if self._host is None or self._host.ended:
                    self._host = self._open(self._host)
            except BaseException:
                self._handles.discard(handle)
                raise
            return self._host

    def _open(self, ended: Host | None) -> Host:
        """Return a new host; ``ended`` is the one before it, if that ended by itself."""
        if self._borrowed is not None:
            if ended is not None:
                raise StoreClosed(ended.ended)
            self._borrowed.size()  # raises if it is closed
            return Host(self._borrowed.engine, self._release_queued)
        if ended is not None and ended.ended != directory.FORKED:  # a forked one is the parent's
            self._close()
        store = self._owned = Store.open(self.name, **self._options)
        try:
            return Host(store.engine, self._release_queued)
        except BaseException:  # an interrupt: no client would close it
            self._owned = None
            store.close()
            raise

    def release(self, handle: "Handle", waits: bool = True) -> None:
        """Remove a client's handle, and close the store with the last one.

        The garbage collector and signal handlers call this, too, at any point. Inside a turn
        nothing can be closed: the host's thread does it soon after. A thread that holds a lock
        which others wait for may not wait here: the holder of the store's lock does it then.
        """
        self._released.append(handle)
        self._release_queued(waits)

    def _release_queued(self, waits: bool = False) -> None:
        while self._released:
            host = self._host
            is_busy = host is not None and host.is_busy_here()
            if host is not None and is_busy and self._borrowed is None:
                host.wake()
                return
            if not self._lock.acquire(blocking=waits and not is_busy):
                return
            try:
                while self._released:
                    with contextlib.suppress(IndexError):  # a release within this one took it
                        self._discard(self._released.popleft())
            finally:
                self._lock.release()

    def _discard(self, handle: "Handle") -> None:
        if handle in self._handles:
            self._handles.discard(handle)
            if not self._handles:
                self._close()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._release_queued()

    def close_if_unreachable(self) -> None:
        """Close the store if none of its clients can be reached any more."""
        host = self._host
        if host is not None:
            host.between_turns(_collect)
        if self._lock.acquire(timeout=CLOSE_WAIT_S):  # another thread may be closing it
            self._lock.release()
        self._release_queued(waits=True)

    def close(self) -> None:
        """Close at the end of the program. Blocked threads end with it, without an error."""
        with self._lock:
            self._handles.clear()
            self._close(quietly=True)

    def _close(self, quietly: bool = False) -> None:
        host, store = self._host, self._owned
        if host is None or host.ended == directory.FORKED:
            return
        self._host = self._owned = None
        if host.is_busy_here():  # in a transaction of a Store that the program has opened
            host.enqueue(host.end)
            return
        host.end(CLOSED, quietly)
        host.join()
        if store is not None:
            store.close()

    def renew_lock(self) -> None:
        """Replace, in a forked child, the lock that a thread of the parent may hold."""
        self._lock = CallLock()


class Handle:
    """One client's reference to a shared store; a connection after a release opens it again."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared
        self._host: Host | None = None

    def __repr__(self) -> str:
        return repr(self.name)

    @property
    def name(self) -> str:
        return self._shared.name

    @property
    def host(self) -> Host | None:
        """The host, if the store is open for this client."""
        host = self._host
        return None if host is None or host.ended else host

    def acquire(self) -> Host:
        """Return the host; open the store if needed, which raises what ``Store.open`` raises."""
        host = self.host
        if host is None:
            host = self._host = self._shared.acquire(self)
        return host

    def release(self) -> None:
        """Release the store; a second call does nothing. The last release closes it."""
        self._host = None
        self._shared.release(self)

    def abandon(self) -> None:
        """Release without waiting: called by the garbage collector."""
        self._host = None
        self._shared.release(self, waits=False)


# --- the shared stores of this process -----------------------------------------------------------

_lock = threading.RLock()
_stores: "weakref.WeakValueDictionary[str | int, SharedStore]" = weakref.WeakValueDictionary()
"""By directory, or by the identity of the engine of a Store."""


def shared_store_of(store: Store | AnyPath, options: Mapping[str, Any]) -> SharedStore:
    """Return the one shared store of a directory or of an open Store."""
    if not isinstance(store, Store):
        store_options({name: value for name, value in options.items() if name != "clock"})
    with _lock:
        key = id(store.engine) if isinstance(store, Store) else os.path.realpath(path_of(store))
        shared = _stores.get(key)
        if shared is None:
            if isinstance(store, Store):
                shared = SharedStore(str(store.engine.database.directory), store)
            else:
                shared = SharedStore(str(key), None)
            _stores[key] = shared
    shared.set_options(options)
    return shared


def _collect() -> None:
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


def _close_unreachable(path: Path) -> None:
    shared = _stores.get(os.path.realpath(path))
    if shared is not None:
        shared.close_if_unreachable()


directory.last_resorts.append(_close_unreachable)


@atexit.register
def _close_all() -> None:
    """Close the stores that the program has left open, as programs that use Redis do."""
    for shared in list(_stores.values()):
        with contextlib.suppress(KVStreamError):
            shared.close()


def _renew_locks() -> None:
    global _lock
    _lock = threading.RLock()
    for shared in list(_stores.values()):
        shared.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
