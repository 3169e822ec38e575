"""Where a console finds its store: one that the program has, a directory, or a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

from kvstream import opening
from kvstream.console.shared_calls import SharedCall
from kvstream.errors import ClientMissing, InvalidArgument, StoreLocked, show
from kvstream.jobs import Jobs
from kvstream.store import Store
from kvstream.types.urls import AnyPath, server_url, show_place


class AnyPlace(Protocol):
    """A place that is opened for each page, or once."""

    @property
    def title(self) -> str: ...

    def reading(self) -> Any:
        """Return a context manager that yields the store, with names and fields as bytes."""
        ...

    def current(self) -> Store | None:
        """Return the store that the pages use; None if none is open."""
        ...

    def close(self) -> None: ...


class GivenPlace:
    """The store of the program that has mounted the console, which closes it itself."""

    def __init__(self, given: Store[Any] | Jobs) -> None:
        self._given = given
        self._last: Store | None = None

    @property
    def title(self) -> str:
        engine = self._store()._engine
        return show_place(getattr(engine, "url", None) or engine.place)  # remote ones have a URL

    def current(self) -> Store | None:
        return self._last

    def _store(self) -> Store:
        given = self._given.store if isinstance(self._given, Jobs) else self._given
        return Store(given._engine, given.db)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        self._last = self._store()
        yield self._last

    def close(self) -> None:
        pass


class OpenedPlace:
    """A directory or a server, opened by the first page.

    A directory is shared: programs that share it work meanwhile, and the console never stands in
    the way of one that starts.
    """

    def __init__(self, place: AnyPath, **options: Any) -> None:
        self._place, self._options = place, options
        self._lock = Lock()
        self._opening: SharedCall[Store] = SharedCall()
        self._store: Store | None = None

    @property
    def title(self) -> str:
        return show_place(self._place)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        yield self._store or self._opening.run(self._keep_open)

    def _keep_open(self) -> Store:
        found = self._store or self._open()
        with self._lock:
            self._store = found
        return found

    def _open(self) -> Store:
        if server_url(self._place) is not None:
            return opening.open(self._place, **self._options)
        return opening.open(self._place, shared=True, create=False, **self._options)

    def current(self) -> Store | None:
        return self._store

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


class ReadOnlyDirectory:
    """A directory that is opened read-only for each page, so that nothing in it changes.

    If a process shares it, this one is its client, for no longer than a page takes: a client that
    stays would own the store once the owner has ended.
    """

    def __init__(self, place: AnyPath, **options: Any) -> None:
        self._place, self._options = place, options

    @property
    def title(self) -> str:
        return show_place(self._place)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        try:
            found = opening.open(self._place, read_only=True, **self._options)
        except StoreLocked:
            found = opening.open(self._place, shared=True, create=False, **self._options)
        with found:
            yield found

    def current(self) -> Store | None:
        return None

    def close(self) -> None:
        pass


def place_of(place: Any, *, read_only: bool, **options: Any) -> AnyPlace:
    """Return the place of a Store, a Jobs, a directory or a URL; InvalidArgument for another."""
    if isinstance(place, Store | Jobs):
        return GivenPlace(place)
    if not hasattr(place, "__fspath__") and not isinstance(place, str | bytes):
        raise InvalidArgument(
            f"a console shows a Store, a Jobs, a directory or a URL, not {show(place)}"
        )
    if server_url(place) is None and (read_only or not _has_client()):
        return ReadOnlyDirectory(place, **options)
    return OpenedPlace(place, **options)


def _has_client() -> bool:
    """Return whether redis-py is there, without which no directory can be shared."""
    from kvstream.remote.connection import require_client

    try:
        require_client()
    except ClientMissing:
        return False
    return True
