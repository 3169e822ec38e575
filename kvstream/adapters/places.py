"""Stores of frameworks: a place is opened once in a process, by the first call that needs it.

Frameworks make their parts (broker, result backend, schedule) one by one, each from a place, and
fork between them. The parts of one process share a store; it is closed with the last part.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kvstream import opening
from kvstream.engine.coerce import path_of
from kvstream.errors import Conflict, UnknownOutcome
from kvstream.operations import strings
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.types.urls import AnyPath, server_url, show_place

T = TypeVar("T")

TRIES = 20
"""How often a call that conflicts is made."""
_GLOB = str.maketrans({letter: "\\" + letter for letter in "\\*?["})

_lock = threading.RLock()
_stores: dict[Any, tuple[Store, int]] = {}
"""The open stores of this process, and the number of places that use each."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def retry_conflicts(call: Callable[[], T], twice: bool = True) -> T:
    """Repeat a call that conflicts with others; with ``twice`` also if its outcome is unknown."""
    for _ in range(TRIES - 1):
        with suppress(Conflict, *([UnknownOutcome] if twice else [])):
            return call()
    return call()


class Place:
    """A directory or the URL of a server, and the options to open it with.

    With ``shared`` (the default) several processes may open the directory; without it this one
    alone. A server needs neither.
    """

    def __init__(self, place: AnyPath, *, shared: bool = True, **options: Any) -> None:
        url = server_url(place)
        if url is None:
            options["shared"] = shared
        self.address = os.path.abspath(path_of(place)) if url is None else url
        self.options = options
        self._key = self.address, repr(sorted(options.items()))
        self._store: Store | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {show_place(self.address)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Place, **self.options), (self.address,)

    @property
    def store(self) -> Store:
        """The open store; the first use opens it."""
        if self._store is None:
            with _lock:
                if self._store is None:
                    store, users = _stores.get(self._key) or (None, 0)
                    store = store or opening.open(self.address, **self.options)
                    _stores[self._key] = store, users + 1
                    self._store = store
        return self._store

    def close(self) -> None:
        """Close the store if no other place uses it; the next call opens it again."""
        with _lock:
            if self._store is None:
                return
            self._store = None
            store, users = _stores[self._key]
            if users > 1:
                _stores[self._key] = store, users - 1
            else:
                del _stores[self._key]
                store.close()


class Strings:
    """The strings of a store whose keys begin with a prefix."""

    def __init__(self, place: Place, prefix: str) -> None:
        self._place, self._prefix = place, prefix.encode()

    def _name(self, key: str | bytes) -> bytes:
        return self._prefix + (key.encode() if isinstance(key, str) else key)

    def _run(self, operation: Callable[..., T], key: str | bytes, *args: Any) -> T:
        return self._place.store.run(operation, self._name(key), *args)

    def _expiry(self, ttl: float | None) -> int:
        """Return the Unix time in milliseconds at which a string expires, 0 for never."""
        return 0 if not ttl else self._place.store.now_ms() + int(ttl * 1000)

    def get(self, key: str | bytes) -> bytes | None:
        return self._run(strings.get, key)

    def put(self, key: str | bytes, value: bytes, ttl: float | None = None) -> None:
        """Set a string, which expires after ``ttl`` seconds."""
        self._run(strings.put, key, value, self._expiry(ttl))

    def put_new(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        """Set a string if there is none; return whether it was set."""
        return self._run(strings.put_new, key, value, self._expiry(ttl))

    def take(self, key: str | bytes) -> bytes | None:
        """Delete a string and return its value."""
        return self._run(strings.take, key)

    def add(self, key: str | bytes, number: int) -> int:
        """Add to the integer of a string, 0 without one; return the sum."""
        return self._run(strings.add, key, number)

    def exists(self, key: str | bytes) -> bool:
        return self.get(key) is not None

    def keys(self) -> list[bytes]:
        """Return the keys without the prefix; every key of the store is looked at."""
        pattern = self._prefix.decode().translate(_GLOB) + "*"
        return [key[len(self._prefix) :] for key in self._place.store.keys(pattern)]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                yield key, value

    def delete(self, *keys: str | bytes) -> int:
        """Delete strings; return how many there were."""
        names = [self._name(key) for key in keys]
        return self._place.store.delete(*names) if names else 0

    def clear(self) -> int:
        """Delete all strings; return how many there were."""
        return self.delete(*self.keys())


class Records:
    """Named records: entries of a stream, of which the last one of a name counts.

    Each call reads the whole stream. It is for hundreds or thousands of records, not for millions.
    """

    def __init__(self, place: Place, key: str) -> None:
        self._place, self._key = place, key

    @property
    def stream(self) -> Stream:
        return self._place.store.stream(self._key)

    def all(self) -> dict[str, bytes]:
        """Return the records by name."""
        return {entry.fields[b"name"].decode(): entry.fields[b"record"] for entry in self.stream}

    def put(self, name: str, record: str | bytes, *, exists: bool | None = None) -> bool:
        """Set a record in one commit; ``exists`` True: only if there is one; False: only if not."""
        return retry_conflicts(lambda: self._change(name, record, exists), twice=exists is None)

    def delete(self, name: str) -> bool:
        """Delete a record; return whether there was one."""
        return retry_conflicts(lambda: self._change(name, None, True), twice=False)

    def _change(self, name: str, record: str | bytes | None, exists: bool | None) -> bool:
        with self._place.store.transaction():
            wanted = name.encode()
            before = [entry.id for entry in self.stream if entry.fields[b"name"] == wanted]
            if exists is not None and exists is not bool(before):
                return False
            if record is not None:
                self.stream.add({"name": name, "record": record})
            if before:
                self.stream.delete(before)
        return True

    def clear(self) -> None:
        """Delete all records."""
        self.stream.trim(maxlen=0)
