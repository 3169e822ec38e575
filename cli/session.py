"""The store or server that a command line names, opened for as long as a command needs it.

A command works on the library's ``Store``, in a directory or on a server. A command that only reads
opens a directory read-only: several may read at once, and nothing in it changes. If a process has
it open and shares it (``shared=True``, ``kvstream work``), the command is one of its clients. The
engine is imported when a store is opened, since a help text does not need it.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from kvstream.cli.profiles import apply_profile
from kvstream.cli.tables import quote
from kvstream.errors import (
    Conflict,
    KVStreamError,
    NoGroup,
    NoSuchKey,
    RequestError,
    ServerLoading,
    ServerUnavailable,
    StoreLocked,
    WrongType,
)
from kvstream.types.clock import monotonic, perf_counter
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.options import Durability

if TYPE_CHECKING:
    from kvstream.group import Group
    from kvstream.remote.connection import Connection
    from kvstream.remote.engine import RemoteEngine
    from kvstream.remote.failover import FailoverEngine
    from kvstream.store import Store
    from kvstream.stream import Stream

T = TypeVar("T")

IMPORT_PREFIX = b"kvstream:import:"
"""The prefix of the streams in which imports keep their progress."""
BENCH_PREFIX = b"kvstream:bench:"

RETRY_PAUSE_S = 0.02
"""Pause before the next try to open a store that another process has open."""
COMPLETION_S = 1.0
"""How long the completion of a shell waits for a server."""
NAMES_MAX = 10_000
"""Names that the completion of a shell looks at."""
TRIES = 100
"""Attempts of a transaction that conflicts with other clients of a server."""
COMMAND_LENGTH_MAX = 120
COUNTED_MAX = 10_000
"""Entries of a server that are read in order to count them, if it does not know their number."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a benchmark may write; everything is deleted afterwards."""

    store: Store
    keys: tuple[bytes, bytes]
    """Names of the streams that it may make."""
    description: str
    """The place, as the benchmark shows it."""
    slow: bool = False
    """Whether each write waits for a disk."""


@dataclass(frozen=True, slots=True)
class DirectorySession:
    """The store in a directory."""

    shared: ClassVar = False
    """Whether others can write while it is open: then a read may wait for entries."""
    directory: Path | None
    db: int = 0
    wait_s: float = 1.0
    """How long to wait for a store that another process has open."""
    durability: Durability = Durability.EVERYSEC
    trust_group: bool = False
    """Whether the group of the files may have write permission."""

    @property
    def path(self) -> Path:
        """The directory of the store; a usage error if none was named."""
        if self.directory is None:
            raise click.UsageError(
                "name the store: --store DIR, or KVSTREAM_STORE; "
                "or a server: --url redis://HOST, or KVSTREAM_URL"
            )
        return self.directory

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the store read-only."""
        with self._open(read_only=True, create=False) as store:
            yield store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[Store]:
        """Open the store for writing."""
        with self._open(read_only=False, create=create) as store:
            yield store

    def holder(self) -> str | None:
        """Name a process that has the store open; None if there is none, or it is unknown."""
        return holder_of(self.path)

    @contextmanager
    def _open(self, *, read_only: bool, create: bool) -> Iterator[Store]:
        from kvstream.store import Store

        path = self.path

        def attempt() -> Store:
            try:
                return Store.open(
                    path,
                    durability=self.durability,
                    db=self.db,
                    read_only=read_only,
                    create=create,
                    trust_group=self.trust_group,
                )
            except StoreLocked:
                if (engine := self.shared_engine()) is None:
                    raise
                return Store(engine, self.db)

        with wait_for_store(path, self.wait_s, attempt) as store:
            yield store

    def ping(self) -> float:
        """Return the seconds that opening the store takes."""
        import_module("kvstream.store")  # which takes longer than opening a small one
        start = perf_counter()
        with self.reading():
            return perf_counter() - start

    def shared_engine(self) -> RemoteEngine | None:
        """Connect to the process that shares the directory; None if no process does."""
        from kvstream.remote.connection import CONNECT_S
        from kvstream.remote.engine import RemoteEngine
        from kvstream.shared.owner import SOCKET, Place

        place = Place(self.path, self.trust_group)
        if not (place.directory / SOCKET).exists():
            return None
        place.check()
        try:
            return RemoteEngine.open(place.url, self.db, CONNECT_S)
        except ServerUnavailable:  # a killed owner has left the socket
            return None

    def monitor(self) -> Iterator[bytes]:
        """Yield the requests of the processes that share the directory, as its owner gets them.

        When the owner ends, wait for the next one: the process that calls the store next. Raises
        RequestError or StoreLocked if no process shares it.
        """
        wait_s: float = self.wait_s
        while True:
            engine = retry(self._owner_engine, wait_s, KVStreamError)
            with closing(engine), suppress(ServerUnavailable):
                yield from engine.connection().monitor()
            wait_s = math.inf

    def _owner_engine(self) -> RemoteEngine:
        if (engine := self.shared_engine()) is not None:
            return engine
        if (holder := self.holder()) is not None:
            raise StoreLocked(f"the store in {self.path} is held by {holder}, not shared")
        raise RequestError(
            f"no process shares the store in {self.path}: its requests are shown while a process "
            "has it open with shared=True, and has called it since the last owner ended; for a "
            "server give --url"
        )

    def count_after(self, stream: Stream, eid: StreamID) -> int | None:
        """Return the number of entries after an ID."""
        return stream.count_after(eid)

    def size_on_disk(self, store: Store) -> int:
        """Return the bytes of the directory's files."""
        size: int | None = store.stats().get("size_on_disk")
        if size is None:  # another process has the store open, and shares it
            files = [each for each in self.path.rglob("*") if each.is_file()]
            size = sum(each.stat().st_size for each in files)
        return size

    @contextmanager
    def scratch(self, directory: Path | None) -> Iterator[Scratch]:
        """Make a store for a benchmark, by default beside the user's."""
        from kvstream.store import Store

        directory = directory or self._parent()
        with (
            tempfile.TemporaryDirectory(prefix="kvstream-bench-", dir=directory) as folder,
            Store.open(Path(folder) / "store", durability=self.durability) as store,
        ):
            text = f"durability {self.durability}, in {directory or tempfile.gettempdir()}"
            yield Scratch(store, (b"one", b"many"), text, slow=self.durability is Durability.ALWAYS)

    def _parent(self) -> Path | None:
        """Return the folder of the user's store, so that a benchmark measures the same disk."""
        if self.directory is None or not self.directory.absolute().parent.is_dir():
            return None
        return self.directory.absolute().parent


class ServerSession:
    """A server, connected until the command ends."""

    shared: ClassVar = True

    def __init__(
        self, url: str, db: int | None = None, wait_s: float = 1.0, connect_s: float | None = None
    ) -> None:
        """``db`` None: the one that the URL names."""
        self.wait_s = wait_s
        """How long to wait for a server that is loading its data set."""
        self.url = url
        self.db = db
        self._connect_s = connect_s
        self._engine: FailoverEngine | RemoteEngine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.close()

    @property
    def path(self) -> Path:
        """A server has no directory here: a usage error."""
        raise click.UsageError(
            "this command works on the directory of a store, on the machine that has it: "
            "give --store DIR, not --url"
        )

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Connect to the server, unless it is connected."""
        from kvstream.store import Store

        if self._engine is None:
            self._engine = self._connect()
        yield Store(self._engine, self._engine.db)

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator[Store]:
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

    def _connect(self) -> FailoverEngine | RemoteEngine:
        from kvstream.opening import connect_engine

        connect = partial(connect_engine, self.url, self.db, self._connect_s, self._connect_s)
        return retry(connect, self.wait_s, ServerLoading)

    def connection(self) -> Connection:
        """Return the connections to the server's database."""
        with self.reading():
            assert self._engine is not None
            return self._engine.connection()

    def ping(self) -> float:
        """Return the seconds of a round trip to the server."""
        connection = self.connection()
        start = perf_counter()
        connection.ask("PING")
        return perf_counter() - start

    def monitor(self) -> Iterator[bytes]:
        """Yield the requests of the server's clients, as MONITOR shows them."""
        yield from self.connection().monitor()

    def save(self) -> str:
        """Run BGSAVE on the server, and return its directory."""
        with self.reading():
            assert self._engine is not None
            self._engine.save()
            try:
                setting = self._engine.connection().ask("CONFIG", "GET", "dir")
            except KVStreamError:  # hosted servers do not allow CONFIG
                return "its directory"
        return os.fsdecode(setting[1])

    def count_after(self, stream: Stream, eid: StreamID) -> int | None:
        """Return the number of entries after an ID; None if there are too many to read."""
        if eid == MIN_ID:
            return len(stream)
        count = sum(1 for _ in islice(stream.scan(f"({eid}"), COUNTED_MAX + 1))
        return count if count <= COUNTED_MAX else None

    def size_on_disk(self, store: Store) -> int:
        size: int = store.stats().get("persistence", {}).get("aof_current_size", 0)
        return size


Session: TypeAlias = DirectorySession | ServerSession


def atomically(store: Store, work: Callable[[], T]) -> T:
    """Run ``work`` in a transaction, and again while another client of a server is faster."""
    for _ in range(TRIES):
        with suppress(Conflict), store.transaction():
            return work()
    raise RequestError("others write to the same stream all the time: try again")


def session_of(ctx: click.Context) -> Session:
    """Return the session that the global options name; it ends with the context."""
    apply_profile(ctx)
    options = ctx.params
    if not _names_server(ctx):
        durability = Durability(options["durability"])
        how = options["wait"], durability, options["trust_group"]
        return DirectorySession(options["store"], options["db"] or 0, *how)
    if ctx.get_parameter_source("durability") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "--durability is for a store in a directory: a server's was chosen when it started"
        )
    return ctx.with_resource(ServerSession(options["url"], options["db"], options["wait"]))


def _names_server(ctx: click.Context) -> bool:
    """Return whether a server is named; the command line goes before the environment.

    A profile has set one of the two.
    """
    if ctx.params.get("store") is None or ctx.params.get("url") is None:
        return ctx.params.get("url") is not None
    store, url = map(ctx.get_parameter_source, ("store", "url"))
    if store is url:
        raise click.UsageError("give either --store (KVSTREAM_STORE) or --url (KVSTREAM_URL)")
    return url is ParameterSource.COMMANDLINE


# --- names for completion -------------------------------------------------------------------------


def names_in(ctx: click.Context, find: Callable[[Store], Iterator[bytes]]) -> list[str]:
    """Return the names that ``find`` yields for the store or server of the global options.

    Return none if it cannot be read: the completion of a shell shows no errors.
    """
    try:
        apply_profile(ctx)
        url, directory, db = (ctx.params[name] for name in ("url", "store", "db"))
        trusts = bool(ctx.params["trust_group"])
        session: AbstractContextManager[Session]
        if _names_server(ctx):
            session = ServerSession(url, db, 0, COMPLETION_S)
        else:
            session = nullcontext(
                DirectorySession(directory, db or 0, wait_s=0.0, trust_group=trusts)
            )
        with session as opened, opened.reading() as store:
            names = list(islice(find(store), NAMES_MAX))
    except (click.UsageError, KVStreamError, OSError):
        return []
    return [text for name in names if (text := name.decode("utf-8", "replace")).isprintable()]


def retry(attempt: Callable[[], T], wait_s: float, transient: type[Exception]) -> T:
    """Run ``attempt``, and repeat it for ``wait_s`` seconds while it raises ``transient``."""
    deadline = monotonic() + wait_s
    while True:
        try:
            return attempt()
        except transient:
            if monotonic() >= deadline:
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


def holder_of(directory: Path) -> str | None:
    """Name a process that holds the lock of ``directory``; None if the system does not tell."""
    from kvstream.storage.directory import holders_of  # with RocksDB: not for a help text

    try:
        pids = holders_of(directory)
    except OSError:  # there is no directory
        return None
    if not pids:
        return None
    command = _command(pids[0])
    return f"process {pids[0]}" + (f" ({command})" if command else "")


_PASSWORD = re.compile(rb"(--[a-z-]*pass[=\0])[^\0]*|(\w://[^/@\0]*:)[^\0]*(?=@)")
"""A password in a command line: the value of an option, or a part of a URL."""


def _command(pid: int) -> str:
    """Return the command line of a process on one line, without the folders of its program.

    Passwords are left out: this text comes into logs, which more people read than see processes.
    """
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return ""
    words = _PASSWORD.sub(rb"\1\2***", line).split(b"\0")
    names = [os.path.basename(word) for word in words[:2]]  # of the interpreter and the program
    text = " ".join(b" ".join([*names, *words[2:]]).decode("utf-8", "replace").split())
    return text if len(text) <= COMMAND_LENGTH_MAX else text[: COMMAND_LENGTH_MAX - 3] + "..."


def existing_key(store: Store, name: bytes) -> None:
    """Raise NoSuchKey unless a key of any type has this name."""
    if not store.exists(name):
        raise NoSuchKey(f"there is no stream {quote(name)} in database {store.db}")


def stream_or_free(store: Store, name: bytes) -> Stream:
    """Return a stream that may not exist yet; WrongType if the key is of another type."""
    kind = store.type(name)
    if kind not in ("stream", "none"):
        raise WrongType(f"{quote(name)} is a {kind}, not a stream")
    return store.stream(name)


def existing_stream(store: Store, name: bytes) -> Stream:
    """Return a stream; NoSuchKey if there is none."""
    existing_key(store, name)
    return stream_or_free(store, name)


def existing_group(store: Store, name: bytes, group: bytes) -> Group:
    """Return a group; NoSuchKey or NoGroup if there is none."""
    stream = existing_stream(store, name)
    if group not in {info.name for info in stream.groups()}:
        raise NoGroup(f"stream {quote(name)} has no group {quote(group)}")
    return stream.group(group)


def last_id(store: Store, name: bytes) -> StreamID:
    """Return the last ID of a stream; 0-0 if there is no stream.

    It is one request, since another client may delete a server's stream between two.
    """
    try:
        return store.stream(name).info().last_generated_id
    except NoSuchKey:
        return MIN_ID
