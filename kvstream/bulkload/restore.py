"""Loading a stream of any length into an open store, from its image.

A short stream is one commit. The entries of a long one are written as SST files and ingested, with
a note of the progress after each file; a load with a label continues from there after any
interruption. The key appears with the last commit.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Self
from uuid import uuid4

from kvstream.engine.engine import Engine
from kvstream.errors import InvalidArgument, StoreError
from kvstream.meta import unfinished_loads
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.operations.images import load as loading
from kvstream.operations.images import staged_loads
from kvstream.operations.images.load import Loaded
from kvstream.storage.batch import Batch, Family
from kvstream.storage.sst import TableWriter
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import NodeImage, PackedID, StreamState

_NOTHING = MIN_ID.packed
_MESSAGES = Family.MESSAGES


class Loader:
    """One load, for one thread; ``finish`` creates the key.

    Leaving the ``with`` block earlier discards the load, unless it has a label: then this process
    or another may continue it.
    """

    def __init__(
        self,
        engine: Engine,
        name: bytes,
        *,
        replace: bool,
        expire_at_ms: int,
        label: bytes = b"",
    ) -> None:
        """Raise KeyExists if the name is taken and ``replace`` is false."""
        self._engine = engine
        self._name = name
        self._replace = replace
        self._expire_at = expire_at_ms
        self._label = label
        self._nodes: list[NodeImage] = []
        """The nodes that wait for one commit, with their entries and bytes."""
        self._entries = self._bytes = 0
        self._staged: _Staged | None = None
        self._ended = False
        self._direct = engine.is_open_here()
        if label and self._direct:
            raise InvalidArgument("a load inside a transaction cannot have a label")
        engine.run(loading.refuse_existing, name, replace)
        staged = engine.run(staged_loads.resume, name, label) if label else None
        if staged is not None:
            self._staged = _Staged(engine, staged)

    @property
    def last(self) -> StreamID:
        """The last ID that is stored already and need not come again; MIN_ID: none."""
        return MIN_ID if self._staged is None else self._staged.noted

    def node(self, node: NodeImage) -> None:
        """Append a node, less what is stored already; raise InvalidArgument if out of order."""
        last = _NOTHING if self._staged is None else self._staged.reached
        if node.count and node.first_id <= last:
            at = bisect_right(node.ids, last)
            if at == len(node.ids):
                return
            node = NodeImage(b"", (), node.ids[at:], node.values[at:], 0, 0)
        if self._staged is not None:
            self._staged.node(node)
            return
        self._nodes.append(node)
        self._entries += node.count
        self._bytes += node.value_bytes
        sizes = self._engine.thresholds
        many = self._entries > sizes.direct_entries or self._bytes > sizes.direct_bytes
        if many and not self._direct:
            self._stage()

    def page(self, ids: list[PackedID], values: list[bytes]) -> None:
        """Append entries, in nodes as XADD would make them."""
        if ids:
            self.node(NodeImage(b"", (), ids, values, 0, 0))

    def finish(self, state: StreamState) -> Loaded:
        """Create the key with all entries and the rest of its ``state``."""
        if self._ended:
            raise InvalidArgument("the load has ended")
        if self._staged is None:
            source = _InMemory(self._nodes, state)
            loaded = self._engine.run(
                loading.load, self._name, source, self._replace, self._expire_at
            )
        else:
            loaded = self._staged.finish(self._name, state, self._replace, self._expire_at)
        self._ended = True
        self._nodes = []
        return loaded

    def discard(self) -> None:
        """Delete the nodes stored so far."""
        self._nodes = []
        self._ended = True
        if self._staged is not None:
            self._staged.discard()

    def _stage(self) -> None:
        begun = self._engine.run(staged_loads.begin, self._name, self._replace, self._label)
        # Ingested rows are durable at once. If power failed before the note was, another stream
        # could get the number of these rows, and with it the rows.
        self._engine.sync()
        self._staged = _Staged(self._engine, begun)
        nodes, self._nodes = self._nodes, []
        for node in nodes:
            self._staged.node(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ended:
            return
        if self._label:
            if self._staged is not None:
                self._staged.leave()
            return
        with suppress(StoreError):  # then the next opening removes it
            self.discard()


class _InMemory:
    """Nodes in memory, as a source."""

    def __init__(self, nodes: list[NodeImage], state: StreamState) -> None:
        self._nodes = nodes
        self._state = state

    def nodes(self) -> Iterator[NodeImage]:
        return iter(self._nodes)

    def state(self) -> StreamState:
        return self._state


class _Staged:
    """A load whose rows are in the store already, but for those of the last SST file."""

    def __init__(self, engine: Engine, load: StagedLoad) -> None:
        self.noted = load.stream.last
        """The last ID of the note."""
        self.reached = self.noted.packed
        self._engine = engine
        self._load = load
        self._table: TableWriter | None = None
        self._scratch = Txn(engine.database, engine.catalog, engine.clock.now_ms())
        self._failed = False

    def node(self, node: NodeImage) -> None:
        if self._failed:
            raise StoreError("the load has failed: begin a new one")
        if self._table is None:
            folder = self._engine.database.staging()
            self._table = TableWriter(folder / f"{uuid4().hex}.sst")
        try:
            loading.take_node(self._scratch, self._load.stream, node, self._table)
        except InvalidArgument:  # refused before anything was changed
            raise
        except BaseException:  # the file or the stream may lack a part of the node
            self._failed = True
            raise
        if self._table.size >= self._engine.thresholds.table_bytes:
            self._ingest()

    def _ingest(self) -> None:
        """Complete the SST file, ingest it, and note the progress."""
        table, self._table = self._table, None
        if table is None:
            return
        try:
            table.finish()
            self._engine.run(self._take_in, table)
        except BaseException:
            self._failed = True
            table.abandon()
            raise
        self.noted = self._load.stream.last
        self.reached = self.noted.packed

    def _take_in(self, txn: Txn, table: TableWriter) -> None:
        staged_loads.refuse_gone(txn, self._load)
        self._engine.database.ingest(_MESSAGES, [table.path])
        staged_loads.step(txn, self._load, self._scratch.batch)
        self._scratch.batch = Batch(self._engine.database)

    def finish(self, name: bytes, state: StreamState, replace: bool, expire_at: int) -> Loaded:
        self._ingest()
        load, engine = self._load, self._engine
        needed = loading.trees_needed(state)
        numbers = iter(engine.run(staged_loads.reserve, load, needed))
        self._scratch.batch = _Spilling(engine)
        loaded = loading.seal(self._scratch, load.stream, state, numbers.__next__)

        def publish(txn: Txn) -> None:
            staged_loads.publish(txn, name, load, self._scratch.batch, replace, expire_at)
            loading.add_queue(txn, name, state, loaded)

        engine.run(publish)
        return loaded

    def discard(self) -> None:
        self.leave()
        self._engine.run(unfinished_loads.discard, self._load)

    def leave(self) -> None:
        """Stop after the last SST file that was ingested."""
        if self._table is not None:
            self._table.abandon()


class _Spilling(Batch):
    """Rows of groups, which are committed ``load_rows`` at a time."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.database)
        self._engine = engine

    def put(self, family: int, key: bytes, value: bytes) -> None:
        super().put(family, key, value)
        if len(self.puts[family]) >= self._engine.thresholds.load_rows:
            self._engine.run(loading.merge, self)
            self.clear()
