"""A primary and a replica of one process, whose bytes go from one to the other without a socket."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.engine.coerce import store_options
from kvstream.engine.engine import Engine
from kvstream.engine.following import Source
from kvstream.layout.history import History, Place
from kvstream.layout.keys import HISTORY_KEY
from kvstream.replicas.applying import Applier
from kvstream.replicas.copying import CopySource, Incoming
from kvstream.replicas.sending import LogTail, locate
from kvstream.storage import replacement
from kvstream.storage.batch import Batch, Family
from kvstream.storage.changes import read_history
from kvstream.storage.manifest import read_families
from kvstream.types.options import MEGABYTE

SMALL = {"durability": "no", "write_buffer_bytes": MEGABYTE, "block_cache_bytes": MEGABYTE}
PIECE = 10_000
"""Bytes of a file that are sent at a time."""


def open_store(directory: Path) -> Store:
    """Open a store that keeps its logs, as a server does."""
    return Store(Engine(directory, store_options(dict(SMALL)), keep_logs=True))


def rows_of(store: Store) -> dict[tuple[Family, bytes], bytes]:
    """Return all rows of a store, but for that of its own position."""
    return {
        (family, key): value
        for family in Family
        for key, value in store.engine.database.scan(family, b"", b"\xff" * 64)
        if (family, key) != (Family.METADATA, HISTORY_KEY)
    }


def sum_of(store: Store) -> str:
    """Return the SHA-256 of all rows of a store, but for that of its own position."""
    total = hashlib.sha256()
    for (family, key), value in rows_of(store).items():
        total.update(b"%d %d %d " % (family, len(key), len(value)) + key + value)
    return total.hexdigest()


def history_of(store: Store) -> History:
    """Return the history of a store that has one."""
    found = read_history(store.engine.database)
    assert found is not None
    return found


def place_of(store: Store) -> Place:
    """Return the position of a store."""
    return history_of(store).place(store.engine.database.sequence)


class Piping:
    """Takes the log of a primary over to a replica, some bytes at a time."""

    def __init__(self, primary: Store, replica: Store) -> None:
        self._primary, self._replica = primary, replica
        place, history = place_of(replica), history_of(primary)
        sequence = history.sequence_of(place.lsn)
        path = primary.engine.database.directory
        found = locate(path, sequence, primary.engine.database.sequence)
        assert found is not None
        self.tail = LogTail(path, *found)
        self.applier = Applier(
            replica.engine.database,
            history_of(replica),
            place,
            sequence,
            read_families(path),
            self._write,
        )

    def _write(self, batch: Batch, history: History) -> None:
        assert self._replica.engine.following.apply(batch, lambda: True)

    def catch_up(self, most: int = 1 << 20) -> None:
        """Apply all that the primary has written."""
        while part := self.tail.part(most):
            with open(part.descriptor, "rb", closefd=False) as log:
                log.seek(part.offset)
                self.applier.feed(part.log, part.offset, log.read(part.size))
            self.tail.sent(part.size)

    def close(self) -> None:
        self.tail.close()


def copy_to(
    primary: Store,
    replica: Store,
    kept_from: int | None = None,
    note: dict[str, object] | None = None,
) -> None:
    """Give a replica all files of a primary."""
    source = CopySource(primary.engine, {})
    path = replica.engine.database.directory
    incoming = Incoming(path, source.files)
    for index in incoming.needed:
        with open(source.open(index), "rb") as file:
            offset = 0
            while data := file.read(PIECE):
                incoming.write(index, offset, data)
                offset += len(data)
            if not offset:
                incoming.write(index, 0, b"")
    incoming.complete()
    source.close()
    following = replica.engine.following
    assert following.replace(lambda: replacement.prepare(path, kept_from, note or {}), lambda: True)


@pytest.fixture
def open_one(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Opens stores; each that is open at the end is checked and closed."""
    opened: list[Store] = []

    def open_it(name: str) -> Store:
        opened.append(open_store(tmp_path / name))
        return opened[-1]

    yield open_it
    for store in opened:
        if store.engine.database.failure is None:
            assert store.check() == []
        store.close()


@pytest.fixture
def pair(open_one: Callable[[str], Store]) -> tuple[Store, Store]:
    """A primary with a history, and a replica that has its copy."""
    primary, replica = open_one("primary"), open_one("replica")
    primary.stream("first").add({"n": 1})
    primary.engine.following.begin_epoch()
    replica.engine.following.follow(Source("primary.example", 1))
    copy_to(primary, replica)
    return primary, replica


def reopened(store: Store) -> Store:
    """Close a store and open it again."""
    options, directory = store.engine.options, store.engine.database.directory
    store.close()
    return Store(Engine(directory, replace(options), keep_logs=True))
