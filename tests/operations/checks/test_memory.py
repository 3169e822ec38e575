"""The state in memory, compared with the disk; and the memory that a check needs."""

import tracemalloc
from collections.abc import Callable

import pytest

from kvstream import Store
from kvstream.layout.keys import qualified
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.operations import keyspace
from kvstream.types.ids import MIN_ID
from tests.operations.checks.seeding import (
    GROUP,
    KEY,
    MESSAGES,
    Reopen,
    Rows,
    fault_texts,
    read_new,
    use,
)

Change = Callable[[StreamMeta, GroupMeta], None]
RECORD = "the record in memory is another than on disk"
INDEX = "the index in memory is another than the runs make"
TREE = "the tree in memory is another than on disk"
AHEAD = "what was read ahead is not what follows"
MEGABYTE = 1 << 20


def _lengthen(stream: StreamMeta, group: GroupMeta) -> None:
    stream.length += 1


def _deliver(stream: StreamMeta, group: GroupMeta) -> None:
    group.last_delivered = MIN_ID


def _activate(stream: StreamMeta, group: GroupMeta) -> None:
    group.consumers[b"ann"].active_ms += 1


def _lose_run(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.runs.memory is not None
    *_, last = group.runs.memory.keys
    group.runs.memory.keys.remove(last)
    del group.runs.memory.items[last]


def _lose_time(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.times.memory is not None
    del group.times.memory.items[next(iter(group.times.memory.keys))]


def _lose_owned(stream: StreamMeta, group: GroupMeta) -> None:
    memory = group.consumers[b"ann"].runs.memory
    assert memory is not None
    memory.keys.remove(next(iter(memory.keys)))
    memory.keys.add(bytes(16))


def _lose_indexed_time(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.index is not None
    group.index.times.remove(next(iter(group.index.times)))


def _lose_indexed_run(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.index is not None
    anchors = group.index.shares[b"ann"].anchors
    anchors.remove(next(iter(anchors)))


def _miscount(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.index is not None
    group.index.shares[None].pending += 1


def _read_ahead_wrongly(stream: StreamMeta, group: GroupMeta) -> None:
    assert group.readahead is not None
    group.readahead.rows[0] = group.readahead.rows[0][0], b""


def _note_first_ids_wrongly(stream: StreamMeta, group: GroupMeta) -> None:
    assert stream.first_ids
    stream.first_ids.append(stream.first_ids[-1].next())


def _note_first_node_wrongly(stream: StreamMeta, group: GroupMeta) -> None:
    assert stream.head_node is not None
    stream.head_node.live += 1


def use_and_change(store: Store, change: Change, *expected: str) -> None:
    """Load everything, change it in memory, and check that it is reported and read again."""
    stream = store.stream(KEY)
    stream.trim(maxlen=len(stream) - 1)
    for name in ("bob", "ann"):  # one run each
        read_new(stream.group(GROUP), name)
    stream.info_full()
    assert store.check() == []
    loaded = store.engine.catalog.streams[qualified(0, KEY)]
    change(loaded, loaded.groups[GROUP])
    assert fault_texts(store.check()) == [*expected]
    assert fault_texts(store.check(repair=True)) == [*expected]
    assert store.check() == []
    use(store)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_lengthen, RECORD),
        (_deliver, RECORD),
        (_activate, RECORD),
        (_lose_indexed_time, INDEX),
        (_lose_indexed_run, INDEX),
        (_miscount, INDEX),
        (_read_ahead_wrongly, AHEAD),
        (_note_first_ids_wrongly, AHEAD),
        (_note_first_node_wrongly, "a node in memory is another than on disk"),
    ],
)
def test_memory_that_differs_from_the_disk_is_reported_and_read_again(
    busy: Store, reopen: Reopen, change: Change, expected: str
) -> None:
    use_and_change(reopen(busy), change, expected)


def test_a_run_lost_in_memory_is_reported_and_read_again(busy: Store, reopen: Reopen) -> None:
    use_and_change(reopen(busy), _lose_run, TREE, INDEX)


@pytest.mark.parametrize("change", [_lose_run, _lose_time, _lose_owned])
def test_a_tree_in_memory_that_differs_from_the_disk_is_reported_and_read_again(
    indexed: Store, reopen: Reopen, change: Change
) -> None:
    use_and_change(reopen(indexed), change, TREE)


def test_a_wrong_count_of_expiring_keys_is_reported_and_corrected(busy: Store) -> None:
    assert busy.engine.run(keyspace.expiries, 10)(0).keys == 1
    busy.engine.catalog.index._expiries[0].keys += 1
    miscounted = ["the keys that expire are miscounted in memory"]
    assert fault_texts(busy.check()) == miscounted
    assert fault_texts(busy.check(repair=True)) == miscounted
    assert busy.check() == []
    assert busy.engine.run(keyspace.expiries, 10)(0).keys == 1


def test_an_entry_read_ahead_and_then_damaged_is_reported_once(store: Store) -> None:
    stream = store.stream("s")
    ids = stream.add_many([{"n": number} for number in range(50)])
    consumer = stream.create_group("g", "0").consumer("c")
    for _ in range(4):
        consumer.read(count=1)
    rows = Rows(store)
    key = rows.stream(b"s").prefix + ids[5].packed
    value = rows.get(MESSAGES, key)
    rows.put(MESSAGES, key, b"?")
    assert fault_texts(store.check()) == ["an entry cannot be decoded"]
    rows.put(MESSAGES, key, value)


def test_a_stream_that_exists_only_in_memory_is_reported(busy: Store, reopen: Reopen) -> None:
    store = reopen(busy)
    store.stream(KEY).range(count=1)
    streams = store.engine.catalog.streams
    ghost = StreamMeta(qualified(0, b"ghost"), 77)
    streams[ghost.name] = ghost
    (fault,) = store.check(repair=True)
    assert fault.place == "database 0, stream 'ghost'"
    assert store.check() == []


def test_a_check_holds_chunks_and_not_all_rows(store: Store) -> None:
    stream = store.stream("s")
    for _ in range(16):
        stream.add_many([{"n": number, "note": "x" * 100} for number in range(1000)])
    group = stream.create_group("g", "0")
    group.consumer("c").read(count=10_000)
    for _ in range(200):
        group.consumer("c").read(count=1)
    store.check()
    tracemalloc.start()
    try:
        assert store.check() == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MEGABYTE
