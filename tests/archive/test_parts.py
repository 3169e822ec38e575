"""Stores of parts of an archive: what they hold is right, and nothing else is fetched.

KVSTREAM_CRASH_ROUNDS sets the number of mixed loads.
"""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver, logs
from kvstream.archive.history import get_snapshot
from kvstream.archive.objects import Folder, open_objects
from kvstream.archive.parts import Moment, Parts, find_moment
from kvstream.archive.retention import is_pinned
from kvstream.errors import Corruption, InvalidArgument
from kvstream.layout.keys import qualified
from kvstream.operations.reads import key_ranges
from kvstream.storage.batch import KeyRange
from kvstream.storage.manifest import parse_manifest
from kvstream.storage.options import LARGE_VALUE
from kvstream.types.clock import ManualClock
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID
from tests.archive.conftest import all_rows, wait_archived
from tests.archive.proxy import Proxy
from tests.archive.seaweed import Seaweed
from tests.archive.test_moments import STEPS, Load, copy_of
from tests.crash.rounds import rounds

STREAMS = (b"apples", b"oranges", b"pears")
MANY = 3000


class Shelf:
    """A folder of parts, and stores that are made of them."""

    def __init__(self, moment: Moment, folder: Path, name: str = "store") -> None:
        folder.mkdir(exist_ok=True)
        self.moment, self.folder, self._name = moment, folder, name
        self._parts = Parts(moment, folder)
        self._made = 0

    @contextmanager
    def store(self, ranges: list[KeyRange]) -> Iterator[Store]:
        self._made += 1
        target = self.folder / f"{self._name}-{self._made}"
        self._parts.make(target, ranges)
        clock = ManualClock(self.moment.now_ms)
        with Store.open(target, read_only=True, clock=clock) as store:
            yield store

    @contextmanager
    def stream(
        self, key: bytes, start: StreamID = MIN_ID, end: StreamID = MAX_ID
    ) -> Iterator[Store]:
        """Open what a read of one stream needs."""
        ranges, name = [key_ranges.OF_DATABASES], qualified(0, key)
        with self.store(ranges) as store:
            ranges += store.engine.run(key_ranges.of_records, [name])
        with self.store(ranges) as store:
            ranges += store.engine.run(key_ranges.of_entries, name, start, end)
        with self.store(ranges) as store:
            yield store

    def fetched(self) -> set[str]:
        return {path.name for path in (self.folder / "tables").iterdir() if "." not in path.name}


@pytest.fixture
def shelf(tmp_path: Path, filled: str) -> Shelf:
    return Shelf(find_moment(filled), tmp_path / "shelf")


@pytest.fixture
def filled(tmp_path: Path, url: str) -> str:
    """An archive of streams in tables of their own, and commits behind the snapshot."""
    fill(tmp_path / "data", url)
    return url


def fill(directory: Path, url: str) -> None:
    sizes = ("target_file_size_base", "write_buffer_size", "max_bytes_for_level_base")
    small = dict.fromkeys(sizes, "1M")
    with Store.open(directory, rocksdb=small) as store:
        for key in STREAMS:
            for _ in range(MANY // 500):
                store.stream(key).add_many([{"n": os.urandom(2000)} for _ in range(500)])
        store.stream("large-values").add({"n": os.urandom(LARGE_VALUE)})
        store.compact()
    with Store.open(directory, archive=url) as store:
        store.stream(b"pears").add_many([{"n": str(n)} for n in range(300)])
        store.stream(b"pears").trim(maxlen=1000)
        store.delete("oranges")
        wait_archived(store)
        assert store.check() == []


@pytest.mark.parametrize("seed", range(rounds(1)))
def test_parts_of_a_mixed_load_are_those_of_the_whole(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also with tables at level 0 from before and after the snapshot, and files of large values."""
    monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", 600_000)
    monkeypatch.setattr(logs, "RAW_MAX", 100_000)
    (tmp_path / "bulk").mkdir()
    chance, copies = random.Random(seed), []
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.02) as store:
        work = Load(store, tmp_path / "bulk", chance)
        for step in range(STEPS):
            work.step()
            if step % 25 == 24:
                with store.engine.hold():
                    entries = {
                        key: list(store.stream(key).range())
                        for key in (b"orders", b"mails", b"events")
                        if store.exists(key)
                    }
                    copies.append((*copy_of(store), entries))
    checked = 0
    for number, (at_ms, sequence, expected, entries) in enumerate(copies):
        try:
            moment = find_moment(url, sequence=sequence)
        except InvalidArgument:
            continue  # before the first snapshot
        shelf = Shelf(moment, tmp_path / f"shelf-{number}")
        with shelf.store(key_ranges.OF_ALL) as store:
            assert store.check() == []
            assert all_rows(store) == expected
        shelf = Shelf(replace(moment, now_ms=at_ms), tmp_path / f"shelf-{number}", "streams")
        for key, wanted in entries.items():
            with shelf.stream(key) as store:
                assert list(store.stream(key).range()) == wanted
        checked += 1
    assert checked > 2


@pytest.mark.parametrize("key", [b"apples", b"pears"])
def test_the_tables_of_other_streams_are_not_fetched(
    shelf: Shelf, tmp_path: Path, filled: str, key: bytes
) -> None:
    with Store.open(tmp_path / "data", read_only=True) as store:
        expected = list(store.stream(key).range())
    with shelf.stream(key) as store:
        assert list(store.stream(key).range()) == expected
        assert len(store.stream(key)) == len(expected) > 0
    others = tables_of_others(shelf, key)
    assert len(others) > 2
    assert not others & shelf.fetched()
    assert not is_pinned(open_objects(filled))


def tables_of_others(shelf: Shelf, key: bytes) -> set[str]:
    """Return the tables with rows of one other stream alone, and all files of large values."""
    snapshot = get_snapshot(open_objects(shelf.moment.url), shelf.moment.piece)
    manifest = parse_manifest(snapshot.files[snapshot.files["CURRENT"].decode().strip()])
    others = [
        each.name
        for each in manifest.tables
        for other in STREAMS
        if other != key and each.first[6:].startswith(other) and each.last[6:].startswith(other)
    ]
    return {snapshot.tables[name][0] for name in [*others, *(b.name for b in manifest.blobs)]}


def test_an_s3_server_is_asked_for_the_tables_of_the_stream_alone(
    tmp_path: Path, bucket_url: str, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "data", bucket_url)
    with Proxy(seaweed.ports[0]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        shelf = Shelf(find_moment(bucket_url), tmp_path / "shelf")
        with shelf.stream(b"apples") as store:
            assert len(list(store.stream("apples").range())) == MANY
        others = tables_of_others(shelf, b"apples")
        parts = [get for get in proxy.gets if "/tables/" in get[0]]
    asked = {path.rpartition("/")[2] for path, _ in parts}
    assert asked == shelf.fetched()
    assert len(parts) == len(set(parts))
    assert not others & asked
    assert len(others) > 2


def test_a_range_of_a_stream_fetches_the_tables_of_this_range(shelf: Shelf) -> None:
    with shelf.stream(b"apples") as store:
        entries = list(store.stream(b"apples").range())
    whole = shelf.fetched()
    other = Shelf(shelf.moment, shelf.folder / "other")
    first, last = entries[10].id, entries[20].id
    with other.stream(b"apples", first, last) as store:
        assert list(store.stream(b"apples").range(first, last)) == entries[10:21]
    assert other.fetched() < whole


def test_a_deleted_stream_is_not_there_and_one_with_a_large_value_is(shelf: Shelf) -> None:
    with shelf.stream(b"oranges") as store:
        assert not store.exists("oranges")
    with shelf.stream(b"large-values") as store:
        (entry,) = store.stream("large-values").range()
        assert len(entry.fields[b"n"]) == LARGE_VALUE


def test_threads_that_share_a_folder_fetch_each_table_once(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    read = Folder.chunks

    def chunks(self: Folder, key: str) -> Iterator[bytes]:
        keys.append(key)
        return read(self, key)

    monkeypatch.setattr(Folder, "chunks", chunks)
    lengths: list[int] = []

    def look(number: int) -> None:
        mine = Shelf(shelf.moment, shelf.folder, f"thread-{number}")
        with mine.stream(b"apples") as store:
            lengths.append(len(store.stream("apples")))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [MANY] * 4
    assert sorted(keys) == sorted(set(keys)) != []


def test_what_a_killed_process_has_left_is_fetched_again(shelf: Shelf) -> None:
    with shelf.stream(b"apples"):
        fetched = shelf.fetched()
    tables = shelf.folder / "tables"
    for digest in fetched:
        (tables / digest).rename(tables / f"{digest}.partial")
    (log,) = shelf.folder.glob("log-*-*[0-9a-f]")
    log.rename(f"{log}.partial")
    with shelf.stream(b"apples") as store:
        assert len(list(store.stream("apples").range())) == MANY
    assert shelf.fetched() == fetched
    assert not [*tables.glob("*.partial")]


@pytest.mark.parametrize("damage", [b"", b"damaged"], ids=["missing", "changed"])
def test_damage_of_a_table_is_raised(shelf: Shelf, bucket: Path, damage: bytes) -> None:
    for path in (bucket / "tables").iterdir():
        path.unlink()
        if damage:
            path.write_bytes(damage)
    with pytest.raises(Corruption, match="tables/"), shelf.stream(b"apples"):
        pass
    assert shelf.fetched() == set()


def test_a_moment_before_the_archive_is_refused(filled: str) -> None:
    with pytest.raises(InvalidArgument, match="begins with commit"):
        find_moment(filled, at_ms=1000)
