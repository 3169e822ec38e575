"""A command line about a store in a directory, and what all commands ask of any store.

It opens and closes the store; it knows no command. Whoever only looks opens the store read-only:
then several may look at once, and nothing in it changes.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from kvstream.cli.contracts import AnyGroup, AnyStore, AnyStream, Scratch
from kvstream.cli.holder import holder_of
from kvstream.cli.local import LocalStore
from kvstream.cli.text import quoted
from kvstream.errors import NoGroup, NoSuchKey, StoreLocked, WrongType
from kvstream.ids import MIN_ID, StreamID
from kvstream.options import Durability

T = TypeVar("T")

IMPORT_PREFIX = b"kvstream:import:"
"""Opens the names of the streams in which imports keep how far they have come."""

RETRY_PAUSE_S = 0.02
"""Pause between two tries to get the store from another process."""


@dataclass(frozen=True, slots=True)
class DirectorySession:
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
                "name the store: --store DIR before the command, or KVSTREAM_STORE; "
                "or a server: --url redis://HOST, or KVSTREAM_URL"
            )
        return self.directory

    @contextmanager
    def reading(self) -> Iterator[LocalStore]:
        """Open the store for looking only."""
        with self._opened(read_only=True, create=False) as store:
            yield store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[LocalStore]:
        """Open the store for changing it."""
        with self._opened(read_only=False, create=create) as store:
            yield store

    @contextmanager
    def _opened(self, *, read_only: bool, create: bool) -> Iterator[LocalStore]:
        path = self.path

        def attempt() -> LocalStore:
            return LocalStore.open(
                path, durability=self.durability, db=self.db, read_only=read_only, create=create
            )

        with patiently(path, self.wait_s, attempt) as store:
            yield store

    @contextmanager
    def scratch(self, place: Path | None) -> Iterator[Scratch]:
        """Make a store for a benchmark, by default beside the user's."""
        place = place or self._beside()
        with (
            tempfile.TemporaryDirectory(prefix="kvstream-bench-", dir=place) as folder,
            LocalStore.open(Path(folder) / "store", durability=self.durability) as store,
        ):
            told = f"durability {self.durability}, in {place or tempfile.gettempdir()}"
            yield Scratch(store, (b"one", b"many"), told, slow=self.durability is Durability.ALWAYS)

    def _beside(self) -> Path | None:
        """Return the folder on whose disk the user's store is, where one was named."""
        if self.directory is None or not self.directory.absolute().parent.is_dir():
            return None
        return self.directory.absolute().parent


def retried(attempt: Callable[[], T], wait_s: float, passing: type[Exception]) -> T:
    """Run ``attempt``, again while it fails with what passes, for ``wait_s`` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return attempt()
        except passing:
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def patiently(path: Path, wait_s: float, attempt: Callable[[], T]) -> T:
    """Run what opens a store, again while another process holds it; the error says which."""
    try:
        return retried(attempt, wait_s, StoreLocked)
    except StoreLocked:
        holder = holder_of(path)
        if holder is None:
            raise
        raise StoreLocked(f"the store in {path} is held by {holder}") from None


def existing_stream(store: AnyStore, name: bytes) -> AnyStream:
    """Return a stream that must be there."""
    existing_key(store, name)
    return stream_or_free(store, name)


def last_id(store: AnyStore, name: bytes) -> StreamID:
    """Return the last ID of a stream, of one that is not there the least.

    One question: of a server's stream another client may be about to remove it.
    """
    try:
        return store.stream(name).info().last_generated_id
    except NoSuchKey:
        return MIN_ID


def existing_key(store: AnyStore, name: bytes) -> None:
    """See that there is a key of a name, of whatever kind."""
    if not store.exists(name):
        raise NoSuchKey(f"there is no stream {quoted(name)} in database {store.db}")


def stream_or_free(store: AnyStore, name: bytes) -> AnyStream:
    """Return a stream, which may be yet to be made; WrongType where the key is no stream."""
    kind = store.type(name)
    if kind not in ("stream", "none"):
        raise WrongType(f"{quoted(name)} is a {kind}, and no stream")
    return store.stream(name)


def existing_group(store: AnyStore, name: bytes, group: bytes) -> AnyGroup:
    """Return a group that must be there."""
    stream = existing_stream(store, name)
    if group not in {info.name for info in stream.groups()}:
        raise NoGroup(f"stream {quoted(name)} has no group {quoted(group)}")
    return stream.group(group)
