"""The store or server that a command line names, opened for as long as a command needs it.

A command works on an ``AnyStore``: a store in a directory, or a database of a server. Both have the
same calls, and mypy checks every call of a command against both. A store is opened read-only by a
command that only reads: then several may read at once, and nothing in the store changes.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from kvstream.cli.remote.group import RemoteGroup
from kvstream.cli.remote.store import KeyInfo, RemoteChanges, RemoteStore
from kvstream.cli.remote.stream import RemoteStream
from kvstream.cli.tables import quoted
from kvstream.errors import KVStreamError, NoGroup, NoSuchKey, StoreLocked, WrongType
from kvstream.group import Group
from kvstream.layout.values import FieldsLike
from kvstream.operations import keyspace
from kvstream.remote.connection import CONNECT_S, REPLY_S, Connection, ServerLoading, connect
from kvstream.store import Store
from kvstream.stream import Stream
from kvstream.types.glob import matcher
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import Durability

T = TypeVar("T")

LOCKS = Path("/proc/locks")
COMMAND_LENGTH_MAX = 60
KEYS_PAGE = 1000
"""Keys that are listed by one read."""


class LocalStore(Store):
    """A store that this process has open."""

    shared: ClassVar[bool] = False
    """Whether other clients write while it is open, so that a read may wait for them."""

    def atomically(self, keys: Sequence[bytes], work: Callable[["LocalChanges"], T]) -> T:
        """Commit all writes of ``work`` at once; ``keys`` are for a server alone."""
        with self.transaction():
            return work(LocalChanges(self))

    def key_infos(self, pattern: bytes | None) -> Iterator[KeyInfo]:
        """Yield the keys with type, counters and expiry."""
        wanted = None if pattern is None else matcher(pattern)
        cursor, now_ms = 0, self.engine.clock.now_ms
        while True:
            cursor, page = self.engine.run(keyspace.summaries, self.db, cursor, KEYS_PAGE)
            for key in page:
                if wanted is None or wanted(key.key):
                    ttl = max(key.expire_at - now_ms(), 0) / 1000 if key.expire_at else None
                    yield KeyInfo(*key[:-1], ttl)
            if cursor == 0:
                return

    def size_on_disk(self) -> int:
        size: int = self.stats()["size_on_disk"]
        return size


class LocalChanges:
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

    def ack(self, stream: bytes, group: bytes, ids: Sequence[StreamID]) -> None:
        self._store.stream(stream).group(group).ack(ids)

    def set_group_id(self, stream: bytes, group: bytes, id: StreamID) -> None:
        self._store.stream(stream).group(group).set_id(id)

    def delete_consumer(self, stream: bytes, group: bytes, consumer: bytes) -> None:
        self._store.stream(stream).group(group).delete_consumer(consumer)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a store open."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.command})" if self.command else "")


def holder_of(directory: Path) -> Holder | None:
    """Return a process that holds the lock of ``directory``; None if the system does not tell.

    Linux lists all file locks in /proc/locks.
    """
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


AnyStore: TypeAlias = LocalStore | RemoteStore
AnyStream: TypeAlias = Stream | RemoteStream
AnyGroup: TypeAlias = Group | RemoteGroup
Changes: TypeAlias = LocalChanges | RemoteChanges
"""Writes that are committed together; none of them returns anything."""

IMPORT_PREFIX = b"kvstream:import:"
"""Names of the streams in which imports keep their progress begin with it."""
BENCH_PREFIX = b"kvstream:bench:"

RETRY_PAUSE_S = 0.02
"""Pause before the next try to open a store that another process has open."""
COMPLETION_S = 1.0
"""How long the completion of a shell waits for a server."""
NAMES_MAX = 10_000
"""Names that the completion of a shell looks at."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a benchmark may write; everything is deleted afterwards."""

    store: AnyStore
    keys: tuple[bytes, bytes]
    """Names of the streams that it may make."""
    description: str
    """The place, as the benchmark shows it."""
    slow: bool = False
    """Whether each write waits for a disk."""


@dataclass(frozen=True, slots=True)
class DirectorySession:
    """The store in a directory."""

    directory: Path | None
    db: int = 0
    wait_s: float = 1.0
    """How long to wait for a store that another process has open."""
    durability: Durability = Durability.EVERYSEC

    @property
    def path(self) -> Path:
        """The directory of the store; a usage error if none was named."""
        if self.directory is None:
            raise click.UsageError(
                "name the store: --store DIR before the command, or KVSTREAM_STORE; "
                "or a server: --url redis://HOST, or KVSTREAM_URL"
            )
        return self.directory

    @contextmanager
    def reading(self) -> Iterator[LocalStore]:
        """Open the store read-only."""
        with self._opened(read_only=True, create=False) as store:
            yield store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[LocalStore]:
        """Open the store for writing."""
        with self._opened(read_only=False, create=create) as store:
            yield store

    @contextmanager
    def _opened(self, *, read_only: bool, create: bool) -> Iterator[LocalStore]:
        path = self.path

        def attempt() -> LocalStore:
            return LocalStore.open(
                path, durability=self.durability, db=self.db, read_only=read_only, create=create
            )

        with wait_for_store(path, self.wait_s, attempt) as store:
            yield store

    @contextmanager
    def scratch(self, directory: Path | None) -> Iterator[Scratch]:
        """Make a store for a benchmark, by default beside the user's."""
        directory = directory or self._parent()
        with (
            tempfile.TemporaryDirectory(prefix="kvstream-bench-", dir=directory) as folder,
            LocalStore.open(Path(folder) / "store", durability=self.durability) as store,
        ):
            text = f"durability {self.durability}, in {directory or tempfile.gettempdir()}"
            yield Scratch(store, (b"one", b"many"), text, slow=self.durability is Durability.ALWAYS)

    def _parent(self) -> Path | None:
        """Return the folder of the user's store, so that a benchmark measures the same disk."""
        if self.directory is None or not self.directory.absolute().parent.is_dir():
            return None
        return self.directory.absolute().parent


class ServerSession:
    """A server, over one connection until the command ends."""

    def __init__(
        self, url: str, db: int | None = None, wait_s: float = 1.0, connect_s: float = CONNECT_S
    ) -> None:
        """``db`` None: the one that the URL names."""
        self.wait_s = wait_s
        """How long to wait for a server that is loading its data set."""
        self._url = url
        self._db = db
        self._connect_s = connect_s
        self._store: RemoteStore | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    @property
    def path(self) -> Path:
        """A server has no directory here: a usage error."""
        raise click.UsageError(
            "this command works on the directory of a store, on the machine that has it: "
            "give --store DIR, not --url"
        )

    @contextmanager
    def reading(self) -> Iterator[RemoteStore]:
        """Connect to the server, unless it is connected."""
        if self._store is None:
            self._store = self._connected()
        yield self._store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[RemoteStore]:
        """Connect to the server; a database need not be created."""
        with self.reading() as store:
            yield store

    @contextmanager
    def scratch(self, directory: Path | None) -> Iterator[Scratch]:
        """Choose keys on the server for a benchmark, and delete them afterwards."""
        if directory is not None:
            raise click.UsageError("--directory needs a store on this machine, not --url")
        prefix = BENCH_PREFIX + token_hex(8).encode() + b":"
        keys = (prefix + b"one", prefix + b"many")
        with self.reading() as store:
            try:
                yield Scratch(store, keys, "over one connection to the server")
            finally:
                store.delete(*keys)

    def _connected(self) -> RemoteStore:
        # The first connection has the shorter timeout: a port that accepts and then stays silent,
        # as a TLS port does to a client without TLS, is no server.
        with closing(self._connection(self._connect_s)) as first:
            retry(first.greet, self.wait_s, ServerLoading)
        return RemoteStore(self._connection(REPLY_S))

    def _connection(self, reply_s: float) -> Connection:
        return Connection(connect(self._url, self._connect_s, reply_s), self._db)


Session: TypeAlias = DirectorySession | ServerSession


def session_of(ctx: click.Context) -> Session:
    """Return the session that the options before the command name; it ends with the context."""
    options = ctx.params
    if not _names_server(ctx):
        return DirectorySession(
            options["store"], options["db"] or 0, options["wait"], Durability(options["durability"])
        )
    if ctx.get_parameter_source("durability") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--durability is for a store in a directory: a server's was chosen when it started"
        )
    return ctx.with_resource(ServerSession(options["url"], options["db"], options["wait"]))


def _names_server(ctx: click.Context) -> bool:
    """Return whether a server is named; the command line goes before the environment."""
    if ctx.params.get("store") is None or ctx.params.get("url") is None:
        return ctx.params.get("url") is not None
    store, url = map(ctx.get_parameter_source, ("store", "url"))
    if store is url:
        raise click.UsageError("give either --store (KVSTREAM_STORE) or --url (KVSTREAM_URL)")
    return url is ParameterSource.COMMANDLINE


def complete_names(options: Mapping[str, Any]) -> list[str]:
    """Return the streams that a shell may offer; none if the store or server cannot be read."""
    url, store = options.get("url"), options.get("store")
    try:
        if url is not None and store is None:
            with ServerSession(url, options.get("db"), 0, COMPLETION_S) as server:
                names = _names(server)
        else:
            names = _names(DirectorySession(store, options.get("db") or 0, wait_s=0.0))
    except (click.UsageError, KVStreamError, OSError):
        return []
    return [text for name in names if (text := name.decode("utf-8", "replace")).isprintable()]


def _names(session: Session) -> list[bytes]:
    with session.reading() as store:
        names = islice(store.scan_keys(), NAMES_MAX)
        return [name for name in names if not name.startswith(IMPORT_PREFIX)]


def retry(attempt: Callable[[], T], wait_s: float, transient: type[Exception]) -> T:
    """Run ``attempt``, and repeat it for ``wait_s`` seconds while it raises ``transient``."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return attempt()
        except transient:
            if time.monotonic() >= deadline:
                raise
        time.sleep(RETRY_PAUSE_S)


def wait_for_store(path: Path, wait_s: float, attempt: Callable[[], T]) -> T:
    """Open a store once no other process has it open; StoreLocked names that process."""
    try:
        return retry(attempt, wait_s, StoreLocked)
    except StoreLocked:
        holder = holder_of(path)
        if holder is None:
            raise
        raise StoreLocked(f"the store in {path} is held by {holder}") from None


def existing_key(store: AnyStore, name: bytes) -> None:
    """Raise NoSuchKey unless a key of any type has this name."""
    if not store.exists(name):
        raise NoSuchKey(f"there is no stream {quoted(name)} in database {store.db}")


def stream_or_free(store: AnyStore, name: bytes) -> AnyStream:
    """Return a stream that may not exist yet; WrongType if the key is of another type."""
    kind = store.type(name)
    if kind not in ("stream", "none"):
        raise WrongType(f"{quoted(name)} is a {kind}, not a stream")
    return store.stream(name)


def existing_stream(store: AnyStore, name: bytes) -> AnyStream:
    """Return a stream; NoSuchKey if there is none."""
    existing_key(store, name)
    return stream_or_free(store, name)


def existing_group(store: AnyStore, name: bytes, group: bytes) -> AnyGroup:
    """Return a group; NoSuchKey or NoGroup if there is none."""
    stream = existing_stream(store, name)
    if group not in {info.name for info in stream.groups()}:
        raise NoGroup(f"stream {quoted(name)} has no group {quoted(group)}")
    return stream.group(group)


def last_id(store: AnyStore, name: bytes) -> StreamID:
    """Return the last ID of a stream; 0-0 if there is no stream.

    It is one request, since another client may delete a server's stream between two.
    """
    try:
        return store.stream(name).info().last_generated_id
    except NoSuchKey:
        return MIN_ID
