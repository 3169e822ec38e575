"""Loads too long for one commit: invisible until the last, resumable, and swept if abandoned."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvstream import Corruption, InvalidArgument, ManualClock, Store, StoreError
from kvstream.errors import KeyExists
from kvstream.layout.keys import INGESTED_KEY
from kvstream.meta.txn import Txn
from kvstream.meta.unfinished_loads import StagedLoad
from kvstream.storage.batch import Family
from kvstream.types.ids import MIN_ID, StreamID
from kvstream.types.images import NodeImage
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores, change_thresholds
from tests.operations.images.kept import Kept, take_image

WEEK_S = 7 * 24 * 3600
SMALL_STEPS = Thresholds(direct_entries=150, table_bytes=10_000, load_rows=7)


@pytest.fixture
def store(open_store: Stores) -> Store:
    """A store with low limits, so that small loads are staged like large ones."""
    return open_store(thresholds=SMALL_STEPS)


@pytest.fixture
def source(store: Store) -> Kept:
    """The image of a stream with every feature."""
    stream = store.stream("source")
    for n in range(1, 1201):
        stream.add({"f": f"value {n}"} if n % 11 else [("f", "1"), ("f", "2")], id=(n, n % 3))
    stream.delete(*[(n, n % 3) for n in range(100, 1200, 13)])
    stream.trim(maxlen=1000)
    for name in ("g", "h"):
        group = stream.create_group(name, "0")
        for consumer in ("a", "b"):
            group.consumer(consumer).read(count=50)
            group.consumer(consumer).read(count=1)
        stream.delete(*[entry.id for entry in group.pending_range(count=3)])
    stream.create_group("idle", "500")
    return take_image(store, "source")


def rows_of(store: Store) -> list[int]:
    """Return how many rows each family has."""
    return [
        len(store.engine.database.page(family, b"", b"\xff" * 40, 1 << 30)) for family in Family
    ]


def test_a_staged_stream_is_the_same_as_its_source(store: Store, source: Kept) -> None:
    loaded = store.load("copy", source, expire_at_ms=4_000_000_000_000)
    assert loaded.corrections == []
    assert loaded.entries == len(store.stream("source")) == source.rest.length
    assert loaded.groups == 3
    copy = take_image(store, "copy")
    assert copy.expire_at_ms == 4_000_000_000_000
    assert (copy.found, copy.rest) == (source.found, source.rest)
    assert store.stream("copy").info_full(0) == store.stream("source").info_full(0)
    assert store.unfinished_loads() == []
    assert list((store.engine.database.staging()).iterdir()) == []


def test_large_groups_are_loaded_with_their_indexes(store: Store, source: Kept) -> None:
    change_thresholds(store.engine, cached_rows=3, store_rows=0)
    assert store.load("copy", source).corrections == []
    assert take_image(store, "copy").rest == source.rest
    assert store.check() == []
    group = store.stream("copy").group("g")
    assert [entry.consumer for entry in group.pending_range(count=1)] == [b"a"]


def test_nothing_is_visible_before_the_end(store: Store, source: Kept) -> None:
    with store.loader("copy", label=b"mine") as load:
        for node in source.found:
            load.node(node)
            assert not store.exists("copy")
            assert store.check() == []
        (under_way,) = store.unfinished_loads()
        assert (under_way.key, under_way.label) == (b"copy", b"mine")
        load.finish(source.rest)
    assert take_image(store, "copy").rest == source.rest


def test_an_abandoned_load_without_a_label_leaves_nothing(store: Store, source: Kept) -> None:
    before = rows_of(store)
    with suppress(ZeroDivisionError), store.loader("copy") as load:
        for node in source.found:
            load.node(node)
        raise ZeroDivisionError
    assert store.unfinished_loads() == []
    assert rows_of(store) == before
    assert not store.exists("copy")


def test_a_load_resumes_after_the_staged_entries(
    store: Store, source: Kept, reopen: Callable[..., Store]
) -> None:
    seen = [MIN_ID]
    for part in range(1, len(source.found), 3):
        with store.loader("copy", label=b"mine") as load:
            assert load.last >= seen[-1]
            seen.append(load.last)
            for node in source.found[:part]:
                load.node(node)
        store = reopen(store)
    assert len(set(seen)) == 3
    with store.loader("copy", label=b"mine") as load:
        image_at = StreamID.unpack(source.found[-1].ids[0])
        assert MIN_ID < load.last < image_at
        for node in source.found:
            load.node(node)
        assert load.finish(source.rest).corrections == []
    copy = take_image(store, "copy")
    assert (copy.found, copy.rest) == (source.found, source.rest)


def test_pages_resume_in_the_middle_of_a_node(store: Store, source: Kept) -> None:
    ids = [eid for node in source.found for eid in node.ids]
    values = [value for node in source.found for value in node.values]
    with store.loader("other") as load:
        load.page(ids, values)
        load.finish(source.rest)
    for cut in (170, 433, 700):
        with store.loader("copy", label=b"mine") as load:
            for at in range(0, cut, 17):
                load.page(ids[at : min(cut, at + 17)], values[at : min(cut, at + 17)])
    with store.loader("copy", label=b"mine") as load:
        assert load.last > MIN_ID
        load.page(ids, values)
        load.finish(source.rest)
    assert take_image(store, "copy") == take_image(store, "other")


@pytest.mark.parametrize("label", [b"", b"mine"])
def test_abandoned_loads_are_swept(
    store: Store, source: Kept, clock: ManualClock, reopen: Callable[..., Store], label: bytes
) -> None:
    before = rows_of(store)
    load = store.loader("copy", label=label)
    for node in source.found:
        load.node(node)
    assert rows_of(store)[0] > before[0]
    store = reopen(store)
    assert len(store.unfinished_loads()) == bool(label)
    if label:
        clock.advance(WEEK_S * 1000 + 1)
        store = reopen(store)
    assert store.unfinished_loads() == []
    assert rows_of(store) == before


def test_a_load_can_be_discarded_by_its_label(store: Store, source: Kept) -> None:
    before = rows_of(store)
    with store.loader("copy", label=b"mine") as load:
        for node in source.found:
            load.node(node)
    assert store.discard_load(b"mine")
    assert not store.discard_load(b"mine")
    assert rows_of(store) == before


def test_a_taken_name_is_refused_at_the_start_and_at_the_end(store: Store, source: Kept) -> None:
    with pytest.raises(KeyExists) as refused:
        store.loader("source")
    assert refused.value.reply == "BUSYKEY Target key name already exists."
    before = rows_of(store)
    with store.loader("copy") as load:
        for node in source.found:
            load.node(node)
        store.stream("copy").add({"f": "first"})
        with pytest.raises(KeyExists):
            load.finish(source.rest)
    assert len(store.stream("copy")) == 1
    store.delete("copy")
    assert rows_of(store) == before


def test_a_stream_is_replaced_in_one_commit(store: Store, source: Kept) -> None:
    store.stream("copy").add({"f": "old"})
    with store.loader("copy", replace=True) as load:
        for node in source.found:
            load.node(node)
        assert len(store.stream("copy")) == 1
        load.finish(source.rest)
    assert take_image(store, "copy").rest == source.rest


def test_a_flush_in_between_ends_a_load(store: Store, source: Kept) -> None:
    with store.loader("copy") as load:
        for node in source.found:
            load.node(node)
        store.flush()
        with pytest.raises(StoreError, match="flushed"):
            load.finish(source.rest)
    assert store.keys() == []
    assert rows_of(store)[0] == 0


def test_a_label_belongs_to_one_key(store: Store, source: Kept) -> None:
    with store.loader("copy", label=b"mine") as load:
        for node in source.found:
            load.node(node)
    with pytest.raises(InvalidArgument, match="another key"):
        store.loader("other", label=b"mine")
    store.discard_load(b"mine")


def test_inside_a_transaction_a_load_is_a_part_of_it(store: Store, source: Kept) -> None:
    with suppress(ZeroDivisionError), store.transaction():
        store.load("copy", source)
        assert load_inside(store, "copy") == source.rest.length
        raise ZeroDivisionError
    assert not store.exists("copy")
    with store.transaction():
        store.load("copy", source)
        store.load("twin", source)
    assert take_image(store, "copy").rest == take_image(store, "twin").rest == source.rest


def load_inside(store: Store, key: str) -> int:
    return len(store.stream(key).range())


def test_a_failing_source_leaves_nothing(store: Store, source: Kept) -> None:
    class Broken(Kept):
        def nodes(self) -> Iterator[NodeImage]:
            yield from self.found[:5]
            raise EOFError

    before = rows_of(store)
    with pytest.raises(EOFError):
        store.load("copy", Broken(source.found, source.rest))
    assert rows_of(store) == before


def test_dead_tables_are_removed_when_the_store_is_opened(
    store: Store, reopen: Callable[..., Store]
) -> None:
    left: Path = store.engine.database.staging() / "left.sst"
    left.write_bytes(b"")
    store = reopen(store)
    assert not left.exists()


def test_a_damaged_note_is_reported_and_repaired(
    store: Store, source: Kept, reopen: Callable[..., Store]
) -> None:
    before = rows_of(store)
    with store.loader("copy", label=b"mine") as load:
        for node in source.found:
            load.node(node)
    ((row, value),) = store.engine.database.page(Family.METADATA, b"L", b"M", 9)

    def damage(txn: Txn) -> None:
        txn.batch.put(Family.METADATA, row, value[:-1])
        txn.batch.put(Family.METADATA, INGESTED_KEY, b"\0\0\0\7seven")

    store.engine.run(damage)
    store = reopen(store)
    assert store.unfinished_loads() == []
    kinds = {fault.message.partition(":")[0] for fault in store.check()}
    assert kinds == {
        "a load cannot be decoded",
        "what was taken in cannot be known",
        "entries of no stream",
        "rows of no known tree",
    }
    store.check(repair=True)
    assert store.check() == []
    assert rows_of(store) == before
    with pytest.raises(Corruption):
        StagedLoad.decode(row, value[:9])
