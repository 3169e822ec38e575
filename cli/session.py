"""What the options before the command say: which store, which database, how long to wait for it.

It opens and closes the store; it knows no command. Whoever only looks opens the store read-only:
then several may look at once, and nothing in it changes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from kvstream.cli.holder import holder_of
from kvstream.cli.text import quoted
from kvstream.errors import KVStreamError, NoGroup, NoSuchKey, StoreLocked, WrongType
from kvstream.group import Group
from kvstream.options import Durability
from kvstream.store import Store
from kvstream.stream import Stream

T = TypeVar("T")

IMPORT_PREFIX = b"kvstream:import:"
"""Opens the names of the streams in which imports keep how far they have come."""

RETRY_PAUSE_S = 0.02
"""Pause between two tries to get the store from another process."""


@dataclass(frozen=True, slots=True)
class Session:
    """The store that one command line is about."""

    directory: Path | None
    db: int = 0
    wait_s: float = 1.0
    durability: Durability = Durability.EVERYSEC

    @property
    def path(self) -> Path:
        """The directory of the store; a usage error where none was named."""
        if self.directory is None:
            raise click.UsageError(
                "name the store: --store DIR before the command, or KVSTREAM_STORE"
            )
        return self.directory

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the store for looking only."""
        with self._opened(read_only=True, create=False) as store:
            yield store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[Store]:
        """Open the store for changing it."""
        with self._opened(read_only=False, create=create) as store:
            yield store

    @contextmanager
    def _opened(self, *, read_only: bool, create: bool) -> Iterator[Store]:
        def attempt() -> Store:
            return Store.open(
                self.path,
                durability=self.durability,
                db=self.db,
                read_only=read_only,
                create=create,
            )

        with self.patiently(attempt) as store:
            yield store

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Run what opens the store, again while another process holds it, for ``wait_s``."""
        deadline = time.monotonic() + self.wait_s
        while True:
            try:
                return attempt()
            except StoreLocked as error:
                if time.monotonic() >= deadline:
                    raise self._locked(error) from None
            time.sleep(RETRY_PAUSE_S)

    def _locked(self, error: StoreLocked) -> StoreLocked:
        holder = holder_of(self.path)
        if holder is None:
            return error
        return StoreLocked(f"the store in {self.path} is held by {holder}")


def existing_stream(store: Store, name: bytes) -> Stream:
    """Return a stream that must be there."""
    existing_key(store, name)
    return stream_or_free(store, name)


def existing_key(store: Store, name: bytes) -> None:
    """See that there is a key of a name, of whatever kind."""
    if not store.exists(name):
        raise NoSuchKey(f"there is no stream {quoted(name)} in database {store.db}")


def stream_or_free(store: Store, name: bytes) -> Stream:
    """Return a stream, which may be yet to be made; WrongType where the key is no stream."""
    kind = store.type(name)
    if kind not in ("stream", "none"):
        raise WrongType(f"{quoted(name)} is a {kind}, and no stream")
    return store.stream(name)


def existing_group(store: Store, name: bytes, group: bytes) -> Group:
    """Return a group that must be there."""
    stream = existing_stream(store, name)
    if group not in {info.name for info in stream.groups()}:
        raise NoGroup(f"stream {quoted(name)} has no group {quoted(group)}")
    return stream.group(group)


def complete_names(root: Mapping[str, Any]) -> list[str]:
    """Return the streams that the shell may offer; none where the store cannot be looked into."""
    directory = root.get("store")
    if directory is None:
        return []
    session = Session(directory, root.get("db") or 0, wait_s=0.0)
    try:
        with session.reading() as store:
            names = [name for name in store.scan_keys() if not name.startswith(IMPORT_PREFIX)]
    except (KVStreamError, OSError):
        return []
    return [text for name in names if (text := name.decode("utf-8", "replace")).isprintable()]
