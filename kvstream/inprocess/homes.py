"""Homes: the stores of this process that have clients, each opened once however many those are.

Every client comes through a door of its own. The home of a directory opens the store for the first
one and closes it behind the last; that of a Store which somebody else has opened leaves it open.
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

from kvstream.engine.coerce import AnyPath, path_of, store_options
from kvstream.errors import InvalidArgument, KVStreamError, StoreClosed
from kvstream.inprocess.host import CLOSED, Host
from kvstream.storage import directory
from kvstream.store import Store

LET_GO_S = 10
"""How long an opening waits for who is just closing the store."""
COLLECTIONS_MAX = 10
"""What ends in a collection, such as a task, may hold others until the next one."""


class Home:
    """A store with clients in this process."""

    def __init__(self, name: str, store: Store | None) -> None:
        """``store`` is lent by who has opened it; None: ``name`` is the directory of one."""
        self.name = name
        self._lent = store
        self._owned: Store | None = None
        self._options: dict[str, Any] = {}
        self._host: Host | None = None
        self._doors: set[Door] = set()
        self._leaving: deque[Door] = deque()
        self._lock = threading.RLock()  # the garbage collector may close a client in between

    def agree(self, options: Mapping[str, Any]) -> None:
        """Take the options to open with; InvalidArgument where it is open with other ones."""
        with self._held():
            if self._lent is not None and options:
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

    def enter(self, door: "Door") -> Host:
        """Let a client in, opening the store where it is not."""
        with self._held():
            self._doors.add(door)
            try:
                if self._host is None or self._host.ended:
                    self._host = self._open(self._host)
            except BaseException:
                self._doors.discard(door)
                raise
            return self._host

    def _open(self, ended: Host | None) -> Host:
        """Return a new host; ``ended`` is the one before, which has not ended by our will."""
        if self._lent is not None:
            if ended is not None:
                raise StoreClosed(ended.ended)
            self._lent.size()  # raises where it is closed
            return Host(self._lent.engine, self._see_out)
        if (
            ended is not None and ended.ended != directory.FORKED
        ):  # what is the parent's is left to it
            self._close()
        self._owned = Store.open(self.name, **self._options)
        return Host(self._owned.engine, self._see_out)

    def leave(self, door: "Door", waits: bool = True) -> None:
        """See a client out, and close the store behind the last one.

        The garbage collector and handlers of signals call this too, in the middle of anything.
        Inside a turn nothing can be closed: the host's thread does it soon after. Nor may a thread
        wait here that has a lock which others wait for: whoever has the home's lock does it then.
        """
        self._leaving.append(door)
        self._see_out(waits)

    def _see_out(self, waits: bool = False) -> None:
        while self._leaving:
            host = self._host
            is_busy = host is not None and host.is_busy_here()
            if host is not None and is_busy and self._lent is None:
                host.wake()
                return
            if not self._lock.acquire(blocking=waits and not is_busy):
                return
            try:
                while self._leaving:
                    self._discard(self._leaving.popleft())
            finally:
                self._lock.release()

    def _discard(self, door: "Door") -> None:
        if door in self._doors:
            self._doors.discard(door)
            if not self._doors:
                self._close()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._see_out()

    def let_go(self) -> None:
        """Close the store if no client of it can be reached any more."""
        host = self._host
        if host is not None:
            host.between_turns(_collect)
        if self._lock.acquire(timeout=LET_GO_S):  # somebody may be closing it
            self._lock.release()
        self._see_out(waits=True)

    def close(self) -> None:
        """Close as the program ends: threads that wait by then are to end with it, not to fail."""
        with self._lock:
            self._doors.clear()
            self._close(quietly=True)

    def _close(self, quietly: bool = False) -> None:
        host, store = self._host, self._owned
        if host is None or host.ended == directory.FORKED:
            return
        self._host = self._owned = None
        if host.is_busy_here():  # of a store that was lent: here is somebody's transaction
            host.hand_over(host.end)
            return
        host.end(CLOSED, quietly)
        host.join()
        if store is not None:
            store.close()

    def renew_lock(self) -> None:
        """Have, in a forked child, a lock that no thread of the parent holds."""
        self._lock = threading.RLock()


class Door:
    """One client's way in; behind one that was closed the next connection opens it again."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._host: Host | None = None

    def __repr__(self) -> str:
        return repr(self.name)

    @property
    def name(self) -> str:
        return self._home.name

    @property
    def host(self) -> Host | None:
        """The host, where the door is open."""
        host = self._host
        return None if host is None or host.ended else host

    def enter(self) -> Host:
        """Return the host; opening the store takes a while, and fails as ``Store.open`` does."""
        host = self.host
        if host is None:
            host = self._host = self._home.enter(self)
        return host

    def leave(self) -> None:
        """Leave; a second call does nothing. Behind the last one the store is closed."""
        self._host = None
        self._home.leave(self)

    def abandon(self) -> None:
        """Leave, and wait for nobody: the garbage collector has found the client."""
        self._host = None
        self._home.leave(self, waits=False)


# --- the homes of this process ------------------------------------------------------------------

_lock = threading.RLock()
_homes: "weakref.WeakValueDictionary[str | int, Home]" = weakref.WeakValueDictionary()
"""By directory, or by the identity of the engine of a Store that was lent."""


def home_of(store: Store | AnyPath, options: Mapping[str, Any]) -> Home:
    """Return the one home of a directory or of an open Store; ``options`` are those given."""
    if not isinstance(store, Store):
        store_options({name: value for name, value in options.items() if name != "clock"})
    with _lock:
        key = id(store.engine) if isinstance(store, Store) else os.path.realpath(path_of(store))
        home = _homes.get(key)
        if home is None:
            if isinstance(store, Store):
                home = Home(str(store.engine.database.directory), store)
            else:
                home = Home(str(key), None)
            _homes[key] = home
    home.agree(options)
    return home


def _collect() -> None:
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


def _let_go(path: Path) -> None:
    home = _homes.get(os.path.realpath(path))
    if home is not None:
        home.let_go()


directory.last_resorts.append(_let_go)


@atexit.register
def _close_all() -> None:
    """Close what programs have left open, as programs that use Redis do."""
    for home in list(_homes.values()):
        with contextlib.suppress(KVStreamError):
            home.close()


def _renew_locks() -> None:
    global _lock
    _lock = threading.RLock()
    for home in list(_homes.values()):
        home.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
