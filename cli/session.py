"""A command line about a store in a directory, and what all commands ask of any store.

It opens and closes the store; it knows no command. Whoever only looks opens the store read-only:
then several may look at once, and nothing in it changes.

A store in a directory, with what the commands ask for beyond the library.

It knows no command.

Which process holds a store, as far as the system tells: Linux lists the locks in a file.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import click

from kvstream.cli.contracts import AnyGroup, AnyStore, AnyStream, Changes, IDList, Listed, Scratch
from kvstream.cli.tables import quoted
from kvstream.errors import NoGroup, NoSuchKey, StoreLocked, WrongType
from kvstream.layout.values import FieldsLike
from kvstream.store import Store
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import Durability

T = TypeVar("T")


class LocalStore(Store):
    """A store that this process holds."""

    shared: ClassVar[bool] = False

    def atomically(self, keys: Sequence[bytes], work: Callable[[Changes], T]) -> T:
        """Do all that ``work`` writes in one commit."""
        with self.transaction():
            return work(_LocalChanges(self))

    def listed(self, pattern: bytes | None) -> Iterator[Listed]:
        """Yield the keys with what they are."""
        for key in self.scan_keys(pattern):
            kind = self.type(key)
            info = self.stream(key).info() if kind == "stream" else None
            yield Listed(key, kind, info, self.ttl(key))

    def back_up(self, target: Path | None) -> str:
        """Write a checkpoint into a new directory, and return its path."""
        if target is None:
            raise click.UsageError("name the NEW_DIRECTORY of the checkpoint")
        self.checkpoint(target)
        return str(target)

    def size_on_disk(self) -> int:
        size: int = self.stats()["size_on_disk"]
        return size


class _LocalChanges:
    """Writes inside a transaction of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, stream: bytes, fields: FieldsLike, id: str = "*", maxlen: int | None = None
    ) -> None:
        self._store.stream(stream).add(fields, id, maxlen=maxlen)

    def expire(self, key: bytes, seconds: float) -> None:
        self._store.expire(key, seconds)

    def persist(self, key: bytes) -> None:
        self._store.persist(key)

    def ack(self, stream: bytes, group: bytes, ids: IDList) -> None:
        self._store.stream(stream).group(group).ack(ids)

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None:
        self._store.stream(stream).group(group).set_id(id)

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None:
        self._store.stream(stream).group(group).delete_consumer(consumer)


LOCKS = Path("/proc/locks")
COMMAND_LENGTH_MAX = 60


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a store."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")


def holder_of(directory: Path) -> Holder | None:
    """Return a process that holds the lock on ``directory``; None where nobody can tell."""
    try:
        status = os.stat(directory)
        listed = LOCKS.read_text("ascii", "replace")
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in listed.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:262147 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == device:
            pid = int(words[4])
            return Holder(pid, _command(pid)) if pid > 0 else None
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode("utf-8", "replace")
    return text if len(text) <= COMMAND_LENGTH_MAX else text[: COMMAND_LENGTH_MAX - 3] + "..."


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
