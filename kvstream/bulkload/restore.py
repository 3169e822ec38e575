"""Loading a stream of any length into an open store, from its image.

A short stream is one commit. The entries of a long one are written as tables that RocksDB takes in
whole, with a note of how far that has come after each; whoever gave the load a label goes on from
there after any interruption. The key comes with the last commit.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

from kvstream.engine.engine import Engine
from kvstream.errors import InvalidArgument, StoreError
from kvstream.meta import unfinished_loads
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.operations import load as loading
from kvstream.operations import unfinished_loads as staging
from kvstream.operations.load import Loaded
from kvstream.storage.batch import Batch, Family
from kvstream.storage.sst import TableWriter
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import NodeImage, PackedID, StreamState
from kvstream.types.options import MEGABYTE

_NOTHING = MIN_ID.packed
DIRECT_ENTRIES = 20_000
DIRECT_BYTES = 8 * MEGABYTE
"""What is no more than this is one commit, and waits for that in memory."""
TABLE_BYTES = 64 * MEGABYTE
"""Bytes of the entries of one table: the size of the tables that compaction makes."""
STEP_ROWS = 20_000
"""Rows of groups that are written at once."""

_MESSAGES = Family.MESSAGES


class Loader:
    """A load under way, for one thread; ``finish`` makes the key, and without it there is none.

    Leaving its ``with`` block earlier discards it, unless it has a label: then it can be gone on
    with, in this process or another.
    """

    def __init__(
        self,
        engine: Engine,
        name: bytes,
        *,
        replace: bool = False,
        expire_at_ms: int = 0,
        label: bytes = b"",
    ) -> None:
        """KeyExists where the name is taken and what has it is not to be replaced."""
        self._engine = engine
        self._name = name
        self._replace = replace
        self._expire_at = expire_at_ms
        self._label = label
        self._held: list[NodeImage] = []
        self._held_entries = self._held_bytes = 0
        self._staged: _Staged | None = None
        self._ended = False
        self._direct = engine.is_open_here()
        if label and self._direct:
            raise InvalidArgument("inside a transaction nothing can be gone on with later")
        engine.run(loading.refuse_existing, name, replace)
        found = engine.run(staging.resume, name, label) if label else None
        if found is not None:
            self._staged = _Staged(engine, found)

    @property
    def last(self) -> StreamID:
        """The last ID that is there already and need not be given again; MIN_ID: none."""
        return MIN_ID if self._staged is None else self._staged.noted

    def node(self, node: NodeImage) -> None:
        """Append a node, less what is there already; InvalidArgument where it is out of order."""
        last = _NOTHING if self._staged is None else self._staged.reached
        if node.count and node.first_id <= last:
            at = bisect_right(node.ids, last)
            if at == len(node.ids):
                return
            node = NodeImage(b"", (), node.ids[at:], node.values[at:], 0, 0)
        if self._staged is not None:
            self._staged.node(node)
            return
        self._held.append(node)
        self._held_entries += node.count
        self._held_bytes += node.value_bytes
        many = self._held_entries > DIRECT_ENTRIES or self._held_bytes > DIRECT_BYTES
        if many and not self._direct:
            self._stage()

    def page(self, ids: list[PackedID], values: list[bytes]) -> None:
        """Append entries, which are shared out among nodes as XADD would do it."""
        if ids:
            self.node(NodeImage(b"", (), ids, values, 0, 0))

    def finish(self, state: StreamState) -> Loaded:
        """Make the key with all that was given, and what ``state`` tells besides."""
        if self._ended:
            raise InvalidArgument("the load has ended")
        if self._staged is None:
            source = _Held(self._held, state)
            loaded = self._engine.run(
                loading.load, self._name, source, self._replace, self._expire_at
            )
        else:
            loaded = self._staged.finish(self._name, state, self._replace, self._expire_at)
        self._ended = True
        self._held = []
        return loaded

    def discard(self) -> None:
        """Delete what is there already."""
        self._held = []
        self._ended = True
        if self._staged is not None:
            self._staged.discard()

    def _stage(self) -> None:
        begun = self._engine.run(staging.begin, self._name, self._replace, self._label)
        # Tables are durable at once. Were the note, and with it the number that their rows bear,
        # lost with the power, another stream could come by that number and have these rows.
        self._engine.sync()
        self._staged = _Staged(self._engine, begun)
        held, self._held = self._held, []
        for node in held:
            self._staged.node(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if self._label:
            if self._staged is not None:
                self._staged.leave()
            return
        with suppress(StoreError):  # then it is swept when the store is opened again
            self.discard()


class _Held:
    """What was given so far, as a source."""

    def __init__(self, held: list[NodeImage], state: StreamState) -> None:
        self._held = held
        self._state = state

    def nodes(self) -> Iterator[NodeImage]:
        return iter(self._held)

    def state(self) -> StreamState:
        return self._state


@dataclass(slots=True)
class _Full:
    """A table that is being completed beside, and what is to be noted once it is taken in."""

    table: TableWriter
    load: StagedLoad
    """The load as it was when the table was full."""
    made: Batch


class _Staged:
    """A load whose rows are on disk already, but for those of the last tables."""

    def __init__(self, engine: Engine, load: StagedLoad) -> None:
        self.noted = load.stream.last
        """The last ID of which the note tells."""
        self.reached = self.noted.packed
        self._engine = engine
        self._load = load
        self._table: TableWriter | None = None
        self._full: _Full | None = None
        self._scratch = Txn(engine.database, engine.catalog, engine.clock.now_ms())
        self._failed = False

    def node(self, node: NodeImage) -> None:
        if self._failed:
            raise StoreError("the load has failed: go on with a new one")
        if self._table is None:
            folder = self._engine.database.staging()
            self._table = TableWriter(folder / f"{uuid4().hex}.sst")
        loading.take_node(self._scratch, self._load.stream, node, self._table)
        if self._table.size >= TABLE_BYTES:
            self._fill_up()

    def _fill_up(self) -> None:
        """Have the table completed while the next one is begun; the one before it is noted."""
        self._note()
        table, self._table = self._table, None
        if table is not None:
            load = self._load.copy()
            self._full = _Full(table, load, self._scratch.batch)
            self._scratch.batch = Batch(self._engine.database)
            table.complete()

    def _note(self) -> None:
        """Have the full table taken in, and note how far that is."""
        full, self._full = self._full, None
        if full is None:
            return
        try:
            full.table.finish()
            self._engine.run(self._take_in, full)
        except BaseException:
            self._failed = True
            full.table.abandon()
            raise
        self.noted = full.load.stream.last
        self.reached = self.noted.packed

    def _take_in(self, txn: Txn, full: _Full) -> None:
        staging.refuse_gone(txn, full.load)
        self._engine.database.ingest(_MESSAGES, [full.table.path])
        staging.step(txn, full.load, full.made)

    def finish(self, name: bytes, state: StreamState, replace: bool, expire_at: int) -> Loaded:
        self._fill_up()
        self._note()
        load, engine = self._load, self._engine
        needed = loading.trees_needed(state)
        numbers = iter(engine.run(staging.reserve, load, needed))
        self._scratch.batch = _Spilling(engine)
        loaded = loading.seal(self._scratch, load.stream, state, numbers.__next__)
        engine.run(staging.publish, name, load, self._scratch.batch, replace, expire_at)
        return loaded

    def leave(self) -> None:
        """Stop where the last table that is full ends."""
        with suppress(StoreError):
            self._note()
        self._abandon()

    def discard(self) -> None:
        self._abandon()
        self._engine.run(unfinished_loads.discard, self._load)

    def _abandon(self) -> None:
        if self._table is not None:
            self._table.abandon()
        if self._full is not None:
            self._full.table.abandon()


class _Spilling(Batch):
    """Rows of groups, which are written whenever there are many."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.database)
        self._engine = engine

    def put(self, family: int, key: bytes, value: bytes) -> None:
        super().put(family, key, value)
        if len(self.puts[family]) >= STEP_ROWS:
            self._engine.run(loading.merge, self)
            self.clear()
