"""Stores as sources and as targets."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from kvstream.errors import RequestError
from kvstream.layout.keys import qualified
from kvstream.meta.txn import Txn
from kvstream.migration.items import (
    STREAM,
    STRING,
    Consent,
    Content,
    Done,
    Item,
    Outline,
    Page,
    Selection,
    key_gone,
    too_long,
)
from kvstream.migration.libraries import find_refused
from kvstream.operations import functions, info, keyspace, strings
from kvstream.operations.images import load
from kvstream.operations.images.load import StreamImage
from kvstream.rdb.versions import Loss
from kvstream.store import Store
from kvstream.types.ids import StreamID
from kvstream.types.images import NodeImage, PackedID, StreamState
from kvstream.types.options import DATABASES

ROWS = 1000
"""Entries of one read."""


class StoredStream(Content):
    """A stream of a store at one moment."""

    def __init__(self, image: StreamImage) -> None:
        super().__init__()
        self._image = image

    def _read(self) -> Iterator[NodeImage]:
        return self._image.nodes()

    def state(self) -> StreamState:
        return self._image.state()


class StoreSource:
    """A store that is read."""

    ranged = True
    may_lose = False

    def __init__(self, store: Store, has_queues: bool = True) -> None:
        """``has_queues`` is false for a store that was made of something which has none."""
        self.has_queues = has_queues
        self.remarks: list[str] = []
        self._store = store

    def close(self) -> None:
        self._store.close()

    def size(self, selection: Selection) -> int | None:
        return sum(
            len(store.stream(key))
            for store in self._databases(selection)
            for key in store.scan_keys()
            if selection.has(store.db, key) and store.type(key) == STREAM
        )

    def position(self) -> int | None:
        return None

    def items(self, selection: Selection) -> Iterator[Item]:
        self.remarks = [
            f"an unfinished load of {load.key!r} in database {load.db} is not migrated"
            for load in self._store.unfinished_loads()
            if selection.has(load.db, load.key)
        ]
        for store in self._databases(selection):
            for key in store.scan_keys():
                if selection.has(store.db, key):
                    item = self.item(store.db, key)
                    if item is not None:
                        yield item

    def _databases(self, selection: Selection) -> list[Store]:
        """Return the selected databases that have keys."""
        engine = self._store.engine
        numbers = engine.run(_used_databases, engine.options.databases)
        return [self._store.select(db) for db in numbers if selection.has_database(db)]

    def item(self, db: int, key: bytes) -> Item | None:
        if not 0 <= db < self._store.engine.options.databases:
            return None
        store = self._store.select(db)
        kind, expire_at_ms = store.engine.run(_kind_and_expiry, qualified(db, key))
        if expire_at_ms is None:
            return None
        item = Item(db, key, kind, expire_at_ms, rereadable=True)
        if kind == STREAM:
            item.stream = partial(_content, store, key, self.has_queues)
            item.read_range = partial(_read_range, store, key)
            item.outline = partial(_outline, store, key, self.has_queues)
        elif kind == STRING:
            item.value = partial(self._string, db, key)
        return item

    def functions(self) -> list[bytes]:
        return [*self._store.engine.run(functions.libraries).values()]

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        return find_refused(libraries, self.functions())

    def _string(self, db: int, key: bytes) -> bytes | None:
        return self._store.engine.run(strings.get, qualified(db, key))


def _used_databases(txn: Txn, databases: int) -> list[int]:
    """Return those of the first databases that have keys."""
    return [db for db in range(databases) if keyspace.size(txn, db)]


def _kind_and_expiry(txn: Txn, name: bytes) -> tuple[str, int | None]:
    return keyspace.kind(txn, name), keyspace.expiry(txn, name)


def _content(store: Store, key: bytes, has_queues: bool) -> Content:
    return StoredStream(_image(store, key, has_queues))


def _image(store: Store, key: bytes, has_queues: bool) -> StreamImage:
    image = store.image(key)
    if image is None:
        raise key_gone(key)
    if not has_queues:
        image.state().queue = None
    return image


def _read_range(store: Store, key: bytes, first: PackedID, last: PackedID) -> Iterator[Page]:
    lower, upper = StreamID.unpack(first), StreamID.unpack(last)
    while page := store.rows(key, lower, upper, ROWS):
        yield [eid for eid, _ in page], [value for _, value in page]
        reached = StreamID.unpack(page[-1][0])
        if reached >= upper:
            return
        lower = reached.next()


def _outline(store: Store, key: bytes, has_queues: bool) -> Outline:
    state = store.engine.run(load.state_of_now, qualified(store.db, key))
    if state is None:
        raise key_gone(key)
    if not has_queues:
        state.queue = None

    def size() -> int:
        return store.engine.run(info.usage, qualified(store.db, key)) or 0

    return Outline(state.length, size, state, [])


def _remarks(databases: int) -> list[str]:
    """Return what the user of a target with many databases must know."""
    if databases <= DATABASES:
        return []
    return [
        f"the target has {databases} databases only where it is opened with databases={databases}: "
        f"kvstream serve --databases {databases}, Store.open(..., databases={databases})"
    ]


class PlannedStore:
    """A store that a plan is about; it need not exist."""

    may_lose = False
    has_queues = True
    takes_keys_once = False

    def __init__(self, store: Store | None, databases: int) -> None:
        self.existing = None if store is None else StoreSource(store)
        self.remarks = _remarks(databases)
        self._databases = databases

    def find_exclusion(self, item: Item) -> Loss | None:
        if item.db < self._databases:
            return too_long(item)
        text = (
            f"the store has the databases 0 to {self._databases - 1}; --databases {item.db + 1} "
            "gives it more, --db selects some of the source"
        )
        return Loss("databases", 1, text, f"database {item.db}")

    def losses(self, state: StreamState) -> list[Loss]:
        return []

    def refused_functions(self, libraries: Sequence[bytes]) -> Mapping[bytes, str]:
        if self.existing is not None:
            return self.existing.refused_functions(libraries)
        return find_refused(libraries)

    def close(self) -> None:
        if self.existing is not None:
            self.existing.close()


class StoreTarget(PlannedStore):
    """A store that is written; a stream becomes visible as a whole."""

    existing: StoreSource

    def __init__(self, store: Store) -> None:
        super().__init__(store, store.engine.options.databases)
        store.engine.timers.paused = True  # what is due fires where the store is used
        self._store = store
        self._finished = False

    def close(self) -> None:
        """Close the store; if it was created by a run without success, remove it."""
        self._store.engine.close(discard=not self._finished)

    def finish(self) -> None:
        self._store.sync()
        self._finished = True

    def reduce(self, state: StreamState) -> None:
        """Do nothing: a store holds everything."""

    def _database(self, item: Item) -> Store:
        return self._store.select(item.db)

    def put_stream(
        self, item: Item, content: Content, *, label: bytes, replace: bool, consent: Consent
    ) -> Done:
        loading = self._database(item).loader(
            item.key, label=label, replace=replace, expire_at_ms=item.expire_at_ms
        )
        with loading as loader:
            reached = loader.last.packed
            resumed = entries = 0
            for node in content.nodes():
                entries += node.count
                if node.last_id <= reached:
                    resumed += node.count
                else:
                    loader.node(node)
            state = content.state()
            consent(content.notes)
            loaded = loader.finish(state)
        if resumed and loaded.entries != entries:
            self._database(item).delete(item.key)
            raise RequestError(
                f"the source has deleted entries of {item.key!r} since the last run: run again"
            )
        return Done(loaded.entries, [*content.corrections, *loaded.corrections], resumed)

    def put_string(self, item: Item, value: bytes, *, replace: bool) -> None:
        store = self._database(item)
        store.engine.run(strings.put, qualified(item.db, item.key), value, item.expire_at_ms)

    def put_function(self, text: bytes, *, replace: bool) -> None:
        self._store.engine.run(partial(functions.load, replace=replace), text)
