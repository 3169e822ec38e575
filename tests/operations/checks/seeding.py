"""A store with rows of every kind, and ways to damage its rows one at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from kvstream import Entry, Fault, Group, ManualClock, Store, StoreClosed, StreamID
from kvstream.layout.keys import qualified, stream_row, successor, tree_prefix
from kvstream.meta.records import ConsumerMeta, GroupMeta, Node, StreamMeta
from kvstream.meta.runs import Run
from kvstream.meta.strings import StringMeta
from kvstream.operations import readgroup
from kvstream.storage.batch import Batch, Family, Row
from tests.opening import change_thresholds

Reopen = Callable[..., Store]
MESSAGES, METADATA, TREES = Family.MESSAGES, Family.METADATA, Family.TREES
KEY, GROUP = b"orders", b"billing"
NODE_ENTRIES = 4
SMALL_TREE_ROWS = 2


@contextmanager
def small_trees(store: Store, rows: int = SMALL_TREE_ROWS) -> Iterator[None]:
    """Index groups of more than a few runs, until the block ends or the store is closed."""
    before = store.engine.thresholds
    change_thresholds(store.engine, cached_rows=rows, store_rows=0)
    yield
    with suppress(StoreClosed):
        change_thresholds(
            store.engine, cached_rows=before.cached_rows, store_rows=before.store_rows
        )


def fill(store: Store, clock: ManualClock) -> None:
    """Use every feature that writes rows; needs ``stream_node_max_entries=4``."""
    orders = store.stream(KEY)
    ids = []
    for number in range(40):
        clock.advance(7)
        ids.append(orders.add({"n": number, "note": "x" * number}))
    orders.trim(maxlen=30)
    orders.delete(ids[15], ids[20:24], ids[33])
    billing = orders.create_group(GROUP, "0")
    ann, bob = billing.consumer("ann"), billing.consumer("bob")
    given = [ann.read(count=8), bob.read(count=3), ann.read(count=1)]
    billing.ack(given[0][1], given[0][2])
    billing.nack(given[0][3], mode="FATAL")
    billing.nack(given[1][0])
    orders.create_group("audit", "$")
    for producer, number in (("web", 1), ("web", 2), ("app", 1)):
        orders.add({"n": number}, idmp=(producer, number))
    repeated = [("a", "1"), ("a", "2")]
    store.stream("brief").add_many([{"a": "b"}, repeated, {"a": "c", "d": "-5"}])
    store.stream("brief").add_many([repeated, repeated, {"a": "b"}])
    store.expire("brief", 3600)
    store.select(1).stream("elsewhere").add({"a": "b"})


def read_new(group: Group, consumer: str) -> Entry:
    """Deliver one new entry, and skip entries given back, as XREADGROUP does."""
    wanted = [(group._key, readgroup.NEW)]
    ((_, (entry,)),) = group._engine.run(
        readgroup.read_group, group._name, consumer.encode(), wanted, 1
    )
    assert isinstance(entry, Entry)
    return entry


def use(store: Store) -> None:
    """Use the damaged streams in all ways."""
    orders = store.stream(KEY)
    group = orders.group(GROUP)
    orders.add_many([{"n": "new"}] * 3)
    eid = orders.add({"n": "new"})
    assert orders.get(eid) is not None
    assert len(orders.range()) == len(orders) > 0
    read = group.consumer("ann").read(count=100)
    assert read[-1].id == eid
    assert group.ack(read) == len(read)
    group.autoclaim("cat")
    held = [row.id for row in group.pending_range(count=1000)]
    assert group.ack(held) == len(held)
    assert group.pending().count == 0
    orders.trim(maxlen=9, approximate=True)
    orders.trim(maxlen=3)
    assert len(orders.range()) == len(orders) == 3
    assert orders.delete(eid) == 1
    orders.add({"n": "once"}, idmp=("web", 9))


class Rows:
    """The rows of an open store, as they are on disk; changes bypass the catalog."""

    def __init__(self, store: Store) -> None:
        self.database = store.engine.database

    @cached_property
    def orders(self) -> StreamMeta:
        """The stream that the tests damage."""
        return self.stream(KEY)

    # --- any row --------------------------------------------------------------------------------

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        batch = Batch(self.database)
        batch.put(family, key, value)
        self.database.write(batch)

    def delete(self, family: Family, *keys: bytes) -> None:
        batch = Batch(self.database)
        for key in keys:
            batch.delete(family, key)
        self.database.write(batch)

    def get(self, family: Family, key: bytes) -> bytes:
        value = self.database.get(family, key)
        assert value is not None
        return value

    def pieces_of(self, name: bytes) -> list[bytes]:
        """Return the keys of the pieces of a large string."""
        pieces = StringMeta.decode(name, self.get(METADATA, stream_row(name))).pieces
        assert pieces is not None
        return [key for key, _ in self.under(MESSAGES, pieces.prefix)]

    def under(self, family: Family, prefix: bytes) -> list[Row]:
        return list(self.database.scan(family, prefix, successor(prefix)))

    def tree(self, tree: int) -> list[Row]:
        """Return (suffix, value) of a tree."""
        return [(key[8:], value) for key, value in self.under(TREES, tree_prefix(tree))]

    def put_in(self, tree: int, suffix: bytes, value: bytes) -> None:
        self.put(TREES, tree_prefix(tree) + suffix, value)

    def delete_from(self, tree: int, *suffixes: bytes) -> None:
        self.delete(TREES, *(tree_prefix(tree) + suffix for suffix in suffixes))

    # --- records --------------------------------------------------------------------------------

    def stream(self, key: bytes, db: int = 0) -> StreamMeta:
        name = qualified(db, key)
        return StreamMeta.decode(name, self.get(METADATA, stream_row(name)))

    def edit_orders(self, **fields: Any) -> None:
        """Set fields of the stream's record."""
        for field, value in fields.items():
            setattr(self.orders, field, value)
        self.orders.forget_cold_part()
        self.put(METADATA, self.orders.row, self.orders.encode())

    @property
    def group(self) -> GroupMeta:
        return self.group_of(self.orders, GROUP)

    def group_of(self, stream: StreamMeta, name: bytes) -> GroupMeta:
        row = tree_prefix(stream.groups_tree) + name
        return GroupMeta.decode(name, row, self.get(TREES, row))

    def edit_group(self, **fields: Any) -> None:
        group = self.group
        for field, value in fields.items():
            setattr(group, field, value)
        self.put(TREES, group.row, group.encode())

    def edit_consumer(self, name: bytes, **fields: Any) -> None:
        consumer = self.consumer(name)
        for field, value in fields.items():
            setattr(consumer, field, value)
        self.put(TREES, consumer.row, consumer.encode())

    def consumer(self, name: bytes, group: GroupMeta | None = None) -> ConsumerMeta:
        row = tree_prefix((group or self.group).consumers_tree) + name
        return ConsumerMeta.decode(name, row, self.get(TREES, row))

    @property
    def runs(self) -> list[Run]:
        return [Run.decode(*row) for row in self.tree(self.group.runs.id)]

    def put_run(self, run: Run) -> None:
        self.put_in(self.group.runs.id, run.anchor, run.encode())

    # --- entries and nodes ----------------------------------------------------------------------

    def messages(self) -> list[Row]:
        return self.under(MESSAGES, self.orders.prefix)

    def live(self) -> list[Row]:
        first = self.orders.prefix + self.orders.first.packed
        return [row for row in self.messages() if row[0] >= first]

    @property
    def nodes(self) -> list[Node]:
        """Return the closed nodes from the first live one on."""
        nodes = [Node.decode(StreamID.unpack(first), value) for first, value in self._node_rows()]
        return [node for node in nodes if node.first >= self.orders.head]

    def _node_rows(self) -> list[Row]:
        return self.tree(self.orders.nodes_tree)

    def edit_node(self, place: int, **fields: Any) -> None:
        node = self.nodes[place]
        for field, value in fields.items():
            setattr(node, field, value)
        self.put_in(self.orders.nodes_tree, node.first.packed, node.encode())


def damage(store: Store, reopen: Reopen, seed: Callable[[Rows], None]) -> Store:
    """Change rows of a store without its knowledge; reopen it, so that nothing is cached."""
    store.sync()  # write delayed rows now, as close() would
    seed(Rows(store))
    return reopen(store)


def fault_texts(faults: list[Fault]) -> list[str]:
    """Return the message of each fault without its details."""
    return [fault.message.split(":")[0] for fault in faults]


def mend(store: Store, reopen: Reopen, *expected: str) -> Store:
    """Assert that exactly these faults are found, and that a repair mends all of them."""
    found = store.check()
    assert fault_texts(found) == list(expected), found
    assert not any(fault.repaired for fault in found)
    mended = store.check(repair=True)
    assert fault_texts(mended) == list(expected)
    assert all(fault.repaired for fault in mended)
    assert store.check() == []
    store = reopen(store)
    assert store.check() == []
    return store


def assert_mended(store: Store, reopen: Reopen, *expected: str) -> Store:
    """Assert that exactly these faults are found and repaired, and that the store still works."""
    store = mend(store, reopen, *expected)
    use(store)
    assert store.check() == []
    return store
