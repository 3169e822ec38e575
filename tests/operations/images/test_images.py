"""Reading a stream as an image: of one moment, complete, and without side effects."""

from pathlib import Path

import pytest

from kvstream import Corruption, InvalidArgument, ManualClock, Store, StoreClosed, WrongType
from kvstream.layout.keys import qualified, tree_prefix
from kvstream.layout.rows import Rows
from kvstream.meta.txn import Txn
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID
from tests.operations.images.kept import copy_image, take_image


def fill(store: Store, count: int, key: str = "s") -> None:
    store.stream(key).add_many([{"f": f"value {n}"} for n in range(count)])


def ids_of(store: Store, key: str = "s") -> list[bytes]:
    return [eid for node in take_image(store, key).found for eid in node.ids]


def test_an_image_has_every_entry_in_the_nodes_of_redis(store: Store) -> None:
    fill(store, 250)
    nodes = take_image(store, "s").found
    assert [len(node.ids) for node in nodes] == [100, 100, 50]
    assert [node.appended for node in nodes] == [100, 100, 50]
    assert {node.names for node in nodes} == {(b"f",)}
    entries = [
        entry
        for node in nodes
        for entry in Rows(list(zip(node.ids, node.values, strict=True)), 0).entries()
    ]
    assert entries == store.stream("s").range()


def test_there_is_no_image_of_a_missing_key_and_none_of_a_string(store: Store) -> None:
    assert store.image("s") is None
    store.engine.run(lambda txn: txn.catalog.create_string(txn, b"\0\0s", b"v"))
    with pytest.raises(WrongType):
        store.image("s")


def test_later_writes_do_not_change_an_image(store: Store) -> None:
    fill(store, 1000)
    before = take_image(store, "s")
    image = store.image("s")
    assert image is not None
    first = next(image.nodes())
    fill(store, 500)
    store.stream("s").trim(maxlen=10)
    store.engine.flush()
    store.compact()
    store.delete("s")
    rest = list(image.nodes())
    assert [first, *rest] == before.found
    assert image.node_count == 10
    assert image.state().length == image.length == 1000


def test_an_image_may_begin_in_the_middle(store: Store) -> None:
    fill(store, 450)
    store.stream("s").trim(maxlen=430)
    whole = take_image(store, "s").found
    for start in [0, 1, 99, 100, 101, 399, 429]:
        wanted = ids_of(store)[start]
        image = store.image("s", StreamID.unpack(wanted))
        assert image is not None
        nodes = list(image.nodes())
        assert nodes == whole[len(whole) - len(nodes) :]
        assert wanted in nodes[0].ids
    beyond = store.image("s", StreamID.unpack(ids_of(store)[-1]).next())
    assert beyond is not None
    assert list(beyond.nodes()) == whole[-1:]


def test_reading_changes_no_time_and_creates_no_consumer(store: Store, clock: ManualClock) -> None:
    fill(store, 10)
    group = store.stream("s").create_group("g", "0")
    group.consumer("c").read(count=3)
    clock.advance(5000)
    image = take_image(store, "s")
    (found,) = image.rest.groups
    (consumer,) = found.consumers
    assert consumer.seen_ms == consumer.active_ms == clock.now_ms() - 5000
    assert [pending.id for pending in found.pending] == image.found[0].ids[:3]
    assert take_image(store, "s") == image


def test_an_image_in_a_transaction_that_has_changed_something_is_refused(store: Store) -> None:
    fill(store, 3)
    with store.transaction():
        assert store.image("s") is not None
        store.stream("s").add({"f": "v"})
        with pytest.raises(InvalidArgument, match="changed nothing"):
            store.image("s")


def test_an_image_ends_with_its_store(store: Store) -> None:
    fill(store, 300)
    image = store.image("s")
    assert image is not None
    next(image.nodes())
    store.close()
    with pytest.raises(StoreClosed):
        list(image.nodes())


def test_lost_entries_end_an_image_with_an_error(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "damaged", durability="no")
    fill(store, 300)
    key, _ = store.engine.database.page(Family.MESSAGES, b"", b"\xff" * 9, 200)[150]

    def lose(txn: Txn) -> None:
        txn.batch.delete(Family.MESSAGES, key)

    store.engine.run(lose)
    image = store.image("s")
    assert image is not None
    with pytest.raises(Corruption, match="counts"):
        list(image.nodes())
    store.close()


def test_overlapping_nodes_and_lost_owners_are_damage(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "damaged", durability="no")
    fill(store, 300, "nodes")
    fill(store, 3, "owners")
    store.stream("owners").create_group("g", 0).consumer("w").read()
    stream = store.engine.run(lambda txn: txn.stream(qualified(store.db, b"nodes")))
    assert stream is not None
    tree = stream.nodes_tree
    node, record = store.engine.database.page(Family.TREES, tree_prefix(tree), b"\xff" * 9, 1)[0]
    rows = store.engine.database.scan(Family.TREES, b"", b"\xff" * 9)
    consumer = next(key for key, _ in rows if key[8:] == b"w")

    def damage(txn: Txn) -> None:
        txn.batch.put(Family.TREES, node, b"\xff" * 8 + record[8:])
        txn.batch.delete(Family.TREES, consumer)
        txn.catalog.forget()

    store.engine.run(damage)
    with pytest.raises(Corruption, match="node"):
        store.dump("nodes")
    with pytest.raises(Corruption, match="no consumer b'w'"):
        store.dump("owners")
    store.close()


def test_nodes_with_deleted_entries_keep_their_counts_and_sizes(store: Store) -> None:
    fill(store, 250)
    ids = [StreamID.unpack(eid) for eid in ids_of(store)]
    store.stream("s").delete(ids[0], ids[50], ids[99], ids[249])
    before = take_image(store, "s")
    assert [node.appended for node in before.found] == [100, 100, 50]
    assert [len(node.ids) for node in before.found] == [97, 100, 49]
    assert copy_image(store, "s", "t") == []
    assert take_image(store, "t") == before


def test_rows_are_read_in_pages(store: Store) -> None:
    fill(store, 25)
    ids = ids_of(store)
    assert [eid for eid, _ in store.rows("s", 0, (1 << 64) - 1, 10)] == ids[:10]
    after = StreamID.unpack(ids[9]).next()
    assert [eid for eid, _ in store.rows("s", after, (1 << 64) - 1, 100)] == ids[10:]
    assert store.rows("missing", 0, 5, 10) == []
