"""A command line about a store behind a server: one connection, until the command has ended."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from kvstream.cli.contracts import Scratch
from kvstream.cli.session import retried
from kvstream.remote.connection import CONNECT_S, REPLY_S, Connection, ServerLoading, connect

if TYPE_CHECKING:
    from kvstream.cli.remote.store import RemoteStore

BENCH_PREFIX = b"kvstream:bench:"


class ServerSession:
    """The server that one command line is about."""

    def __init__(
        self, url: str, db: int | None = None, wait_s: float = 1.0, connect_s: float = CONNECT_S
    ) -> None:
        """``db`` None: the one that the URL names."""
        self.wait_s = wait_s
        self._url = url
        self._db = db
        self._connect_s = connect_s
        self._store: RemoteStore | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._store is not None:
            self._store.close()

    @property
    def path(self) -> Path:
        """There is none: a usage error."""
        raise click.UsageError(
            "this works in the directory of a store, on its own machine: --store DIR, not --url"
        )

    @contextmanager
    def reading(self) -> Iterator["RemoteStore"]:
        """Connect to the server, unless that has been done."""
        if self._store is None:
            self._store = self._connected()
        yield self._store

    @contextmanager
    def writing(self, *, create: bool = False) -> Iterator["RemoteStore"]:
        """Connect to the server; nothing needs to be made."""
        with self.reading() as store:
            yield store

    @contextmanager
    def scratch(self, place: Path | None) -> Iterator[Scratch]:
        """Lend keys of the server's to a benchmark, and delete them afterwards."""
        if place is not None:
            raise click.UsageError("--directory is for a store on this machine, not for --url")
        prefix = BENCH_PREFIX + token_hex(8).encode() + b":"
        keys = (prefix + b"one", prefix + b"many")
        with self.reading() as store:
            try:
                yield Scratch(store, keys, "over one connection to the server")
            finally:
                store.delete(*keys)

    def _connected(self) -> "RemoteStore":
        from kvstream.cli.remote.store import RemoteStore

        # A first connection with less patience: what takes connections and says nothing, as a port
        # without TLS does to one with it, is no server.
        with closing(self._connection(self._connect_s)) as first:
            retried(first.greet, self.wait_s, ServerLoading)
        return RemoteStore(self._connection(REPLY_S))

    def _connection(self, reply_s: float) -> Connection:
        return Connection(connect(self._url, self._connect_s, reply_s), self._db)
