"""Where the parts of a long stream go: a store that nobody has open, or a kvstream server.

Both take the entries first, under a name that migrations keep for themselves; then, in one commit
each, what was added meanwhile, the state, and the name at the very end.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from kvstream.errors import DataError, NoSuchKey
from kvstream.ids import MIN_ID, StreamID
from kvstream.images import StreamState
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration import commanding, parse_place
from kvstream.migration.paging import PagedStream
from kvstream.migration.places import PlaceKind
from kvstream.operations import keyspace
from kvstream.operations.loading import restate
from kvstream.parts import BulkTicket, Part, PartWriter
from kvstream.rdb import payload
from kvstream.rdb.targets import NEWEST
from kvstream.remote.connection import Connection, connect
from kvstream.spark.options import Place
from kvstream.spark.reading.servers import client_of
from kvstream.spark.writing import uploading
from kvstream.spark.writing.uploading import Upload, Workshop
from kvstream.storage.private_files import DIRECTORY_MODE
from kvstream.store import Store

UNDER = b"kvstream:migrate:split:"
"""Opens the name of a stream that is not whole yet."""


@dataclass(frozen=True, slots=True)
class Long:
    """A long stream, and where it is to go."""

    source: str
    target: str
    db: int
    key: bytes

    @property
    def under(self) -> bytes:
        """The name that it has until it is whole."""
        return UNDER + self.key

    @property
    def is_served(self) -> bool:
        return parse_place(self.target, create=True).kind is PlaceKind.SERVER

    def connection(self) -> Connection:
        return Connection(connect(self.source, reply_s=300.0), self.db)

    def target_client(self) -> Any:
        """Return a client of the server that it is to go to."""
        return client_of(Place("url", self.target, self.db))


class Making(Protocol):
    """How tasks make parts; to be pickled."""

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]: ...


class Joining(Protocol):
    """One stream on its way to its target; ``end`` removes what is left of it."""

    def begin(self) -> Making | None:
        """Return how tasks make parts; None where the stream is at the target already."""
        ...

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        """Make the stream of parts, up to ``last``, and of what came since; return its entries."""
        ...

    def end(self) -> None: ...


def joining(stream: Long) -> Joining:
    return ServerJoining(stream) if stream.is_served else StoreJoining(stream)


def _fill(writer: PartWriter, stream: Long, pages: Iterator[Any]) -> list[Part]:
    for ids, values in pages:
        writer.extend(stream.under, ids, values)
    return writer.close()


def _rest(stream: Long, source: Connection, last: StreamID | None, loaded: int) -> PagedStream:
    return PagedStream(source, stream.key, after=last, counted=loaded)


def _refuse_changed(stream: Long, state: StreamState, loaded: int) -> None:
    if not loaded or state.length != loaded:
        raise DataError(
            f"{stream.key!r} was changed while it was read: {loaded} entries came, {state.length} "
            "were there at the end: run again"
        )


def _taken(stream: Long) -> DataError:
    return DataError(f"{stream.key!r} has come to the target while it was brought there")


def _expiry(connection: Connection, key: bytes) -> int:
    """Return when a key expires, 0: never."""
    seconds, micros = connection.ask("TIME")
    left_ms: int = connection.ask("PTTL", key)
    if left_ms == -2:
        raise NoSuchKey(f"{key!r} has gone while it was read")
    return 0 if left_ms < 0 else int(seconds) * 1000 + int(micros) // 1000 + left_ms


# --- a store --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InFolder:
    """Parts that are made where the store is."""

    ticket: BulkTicket
    folder: str

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]:
        return _fill(PartWriter(self.folder, self.ticket, partition=partition), stream, pages)


class StoreJoining:
    """A store that is opened twice: for the ticket, and for the commit."""

    def __init__(self, stream: Long) -> None:
        self._stream = stream
        self._folder: Path | None = None
        self._ticket: BulkTicket | None = None

    def begin(self) -> InFolder | None:
        stream = self._stream
        with Store.open(stream.target, db=stream.db) as store:
            if store.type(stream.key) != "none":
                return None
            store.delete(stream.under)  # what a run that was killed has left
            self._ticket = store.bulk_ticket([stream.under])
        self._folder = Path(f"{stream.target}.staging") / f"split-{self._ticket.shared:x}"
        self._folder.mkdir(DIRECTORY_MODE, parents=True)
        return InFolder(self._ticket, str(self._folder))

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        stream = self._stream
        assert self._ticket is not None
        with Store.open(stream.target, db=stream.db) as store:
            try:
                loaded = store.bulk_load(self._ticket, parts).entries
                with closing(stream.connection()) as source:
                    rest = _rest(stream, source, last, loaded)
                    for node in rest.nodes():
                        page = list(node.ids), list(node.values)
                        loaded += store.bulk_append({stream.under: page}).entries
                    state, expire_at_ms = rest.state(), _expiry(source, stream.key)
                _refuse_changed(stream, state, loaded)
                store.engine.run(_publish, stream, state, expire_at_ms)
            except BaseException:
                store.delete(stream.under)
                raise
        return loaded

    def end(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            if not any(self._folder.parent.iterdir()):
                self._folder.parent.rmdir()


def _publish(txn: Txn, stream: Long, state: StreamState, expire_at_ms: int) -> None:
    under, name = (qualified(stream.db, key) for key in (stream.under, stream.key))
    restate(txn, under, state)
    if not keyspace.rename(txn, under, name, replace=False):
        raise _taken(stream)
    if expire_at_ms:
        keyspace.expire_at(txn, name, expire_at_ms)


# --- a server -------------------------------------------------------------------------------------


def takes_tables(target: str) -> bool:
    """Tell whether a server takes bulk loads, from this user."""
    client = client_of(Place("url", target))
    try:
        upload = uploading.begin(client, [])
        if upload is not None:
            uploading.discard(client, upload)
        return upload is not None
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class BySending:
    """Parts that are made anywhere, and sent."""

    upload: Upload

    def make(self, stream: Long, partition: int, pages: Iterator[Any]) -> list[Part]:
        with Workshop() as folder, closing(stream.target_client()) as client:
            writer = PartWriter(folder, self.upload.ticket, partition=partition)
            return uploading.send(client, self.upload, _fill(writer, stream, pages))


class ServerJoining:
    """A kvstream server, by KVSTREAM.LOAD."""

    def __init__(self, stream: Long) -> None:
        self._stream = stream
        self._client = stream.target_client()
        self._upload: Upload | None = None

    def begin(self) -> BySending | None:
        stream, target = self._stream, Connection(self._client)
        if target.ask("EXISTS", stream.key):
            return None
        target.do("DEL", stream.under)  # what a run that was killed has left
        self._upload = uploading.begin(self._client, [stream.under])
        if self._upload is None:
            raise DataError("the server takes no bulk loads from this user any more")
        return BySending(self._upload)

    def complete(self, parts: Sequence[Part], last: StreamID | None) -> int:
        stream, loaded = self._stream, 0
        assert self._upload is not None
        target = Connection(self._client)
        try:
            if parts:
                _, loaded = uploading.commit(self._client, self._upload, parts, None)
            with closing(stream.connection()) as source:
                rest = _rest(stream, source, last, loaded)
                for node in rest.nodes():
                    target.do_many(commanding.adds(stream.under, [node], MIN_ID.packed))
                    loaded += node.count
                state, expire_at_ms = rest.state(), _expiry(source, stream.key)
            _refuse_changed(stream, state, loaded)
            bare = replace(state, length=0, first=MIN_ID)
            told = b"".join(payload.dump(NEWEST, iter(()), bare, 0))
            target.do(uploading.COMMAND, "STATE", stream.under, told)
            if expire_at_ms:
                target.do("PEXPIREAT", stream.under, expire_at_ms)
            if not target.do("RENAMENX", stream.under, stream.key):
                raise _taken(stream)
        except BaseException:
            target.do("DEL", stream.under)
            raise
        return loaded

    def end(self) -> None:
        if self._upload is not None:
            uploading.discard(self._client, self._upload)
        self._client.close()
