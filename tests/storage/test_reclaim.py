"""The space of large deleted ranges is freed, and no neighbouring row is lost."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.errors import StoreFull
from kvstream.layout.keys import qualified
from kvstream.storage.batch import Batch, Family
from kvstream.storage.maintenance import unite
from kvstream.types.thresholds import Thresholds
from tests.opening import open_with
from tests.patience import until

ENTRIES, VALUE = 1500, 1000


def opened(
    directory: Path, reclaim_pause_s: float, reclaim_bytes: int = ENTRIES * VALUE // 2
) -> Store:
    """Open a store with small sizes, in which compaction does not merge the small tables."""
    sizes = Thresholds(
        reclaim_pause_s=reclaim_pause_s,
        reclaim_bytes=reclaim_bytes,
        slice_bytes=ENTRIES * VALUE // 10,
    )
    return open_with(directory, sizes, rocksdb={"level0_file_num_compaction_trigger": 32})


def fill(store: Store, *keys: str) -> None:
    """Write streams, each into its own tables."""
    for key in keys:
        for _ in range(3):
            store.stream(key).add_many([{"f": os.urandom(VALUE)} for _ in range(ENTRIES // 3)])
            store.engine.flush()


def table_bytes(store: Store) -> int:
    return store.engine.database.size_on_disk(".sst")


@pytest.mark.parametrize("how", ["delete", "trim", "flush"])
def test_the_space_of_deleted_entries_is_freed_in_the_background(tmp_path: Path, how: str) -> None:
    with opened(tmp_path, 0.2) as store:
        fill(store, "a", "b", "c")
        full = table_bytes(store)
        if how == "delete":
            store.delete("b")
        elif how == "trim":
            store.stream("b").trim(maxlen=0)
        else:
            store.flush()
        left = {"delete": 2, "trim": 2, "flush": 0}[how]
        until(lambda: table_bytes(store) < full * (left / 3 + 0.1), "the space to come back")
        kept = [key for key in "ac" if how != "flush"]
        assert [len(store.stream(key).range()) for key in kept] == [ENTRIES] * len(kept)
        assert store.stream("b").range() == []
        assert store.check() == []


def test_small_ranges_are_freed_in_slices_once_they_are_large(tmp_path: Path) -> None:
    with opened(tmp_path, 0.2) as store:
        store.engine.expiry.stop()
        fill(store, "a")
        database, stream = store.engine.database, store.stream("a")
        prefix = store.engine.catalog.streams[qualified(0, b"a")].prefix
        ids = [entry.id for entry in stream.range()]
        found: list[tuple[bytes, bytes]] = []
        for number, (one, following) in enumerate(pairwise(ids)):
            batch = Batch(database)
            lower, upper = prefix + one.packed, prefix + following.packed
            batch.delete_range(Family.MESSAGES, lower, upper)
            database.write(batch)
            found = database.large_deleted()
            assert not found or number >= ENTRIES // 3
            if found:
                break
        assert len(found) > 1
        assert unite(found) == [(prefix + ids[0].packed, upper)]
        assert database.large_deleted() == []


def test_adjacent_ranges_are_joined() -> None:
    ranges = [(b"c", b"d"), (b"a", b"b"), (b"b", b"bb"), (b"aa", b"ab"), (b"e", b"f")]
    assert unite(ranges) == [(b"a", b"bb"), (b"c", b"d"), (b"e", b"f")]
    assert unite([]) == []


@pytest.mark.parametrize("how", ["delete", "trim", "trim in pieces"])
def test_small_ranges_are_freed_at_once_if_writers_need_space(tmp_path: Path, how: str) -> None:
    with opened(tmp_path, 1 << 40, reclaim_bytes=1 << 40) as store:
        fill(store, "a", "b")
        gate, full = store.engine.database.write_guard, table_bytes(store)
        gate._reserve, reserve = 1 << 60, gate._reserve
        gate.open_until = 0.0
        with pytest.raises(StoreFull, match="DEL, XTRIM and FLUSHDB free space"):
            store.stream("a").add({"f": "v"})
        if how == "delete":
            store.delete("b")
        else:  # fewer entries than trims delete at once
            kept = range(ENTRIES - 500, -1, -500) if how == "trim in pieces" else (0,)
            for length in kept:
                assert store.stream("b").trim(maxlen=length)
        until(lambda: table_bytes(store) < full * 0.6, "the space to come back")
        gate._reserve = reserve
        store.stream("a").add({"f": "v"})
        assert len(store.stream("a").range()) == ENTRIES + 1
        assert store.stream("b").range() == []
        assert store.check() == []
