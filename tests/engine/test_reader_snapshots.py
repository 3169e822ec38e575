"""Readers in other processes: copies that the owner makes, and stores that a reader follows."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.engine import reader_snapshots
from kvstream.errors import InvalidArgument, StoreError, StoreLocked
from kvstream.storage.batch import Family
from tests.patience import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of which no other test has requested copies."""
    with Store.open(tmp_path / "alone") as store:
        yield store


def asked(store: Store, patience_s: float = 10.0) -> Path:
    directory = store.engine.database.directory
    return reader_snapshots.ask(directory, reader_snapshots.new_token(os.getpid()), patience_s)


def ended_process() -> int:
    """Return the ID of a process that has ended, and that is not reused yet."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_the_owner_makes_a_copy_of_its_current_store(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    copy = asked(store)
    store.stream("orders").add({"sku": "b7"})
    with Store.open(copy, read_only=True) as reader:
        assert [entry.fields for entry in reader.stream("orders")] == [{b"sku": b"a1"}]
    again = asked(store)
    with Store.open(again, read_only=True) as reader:
        assert len(reader.stream("orders")) == 2


def test_a_copy_has_the_rows_of_the_log_in_tables(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    with Store.open(asked(store), read_only=True) as reader:
        database = reader.engine.database
        assert database.property_int("rocksdb.num-entries-active-mem-table", Family.MESSAGES) == 0
        assert database.size_on_disk(".sst")


def test_two_simultaneous_readers_get_a_copy_each(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(asked(store))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2
    for copy in found:
        with Store.open(copy, read_only=True) as reader:
            assert len(reader.stream("orders")) == 1


def test_the_error_of_the_owner_is_reported_to_the_reader(store: Store) -> None:
    directory = store.engine.database.directory
    token = reader_snapshots.new_token(os.getpid())
    reader_snapshots.place_for(directory, token).mkdir()  # the name is taken already
    with pytest.raises(StoreError, match=r"the owner of the store .* exists"):
        reader_snapshots.ask(directory, token, 10.0)
    assert [path.name for path in (directory / reader_snapshots.FOLDER).iterdir()] == [token]


def test_keys_expire_although_a_request_cannot_be_removed(store: Store) -> None:
    directory = store.engine.database.directory
    token = reader_snapshots.new_token(os.getpid())
    request = reader_snapshots.place_for(directory, token).with_name(f"{token}.wanted")
    request.mkdir()
    until((directory / reader_snapshots.FOLDER / token).exists, "the owner to see it")
    store.stream("short").add({"n": "1"})
    store.expire("short", 0.01)
    until(lambda: store.size() == 0, "the key to expire")


def test_a_store_without_an_owner_makes_no_copy(store: Store) -> None:
    store.close()
    with pytest.raises(StoreLocked, match=r"given no copy of it within 0\.05 s"):
        asked(store, 0.05)
    assert list((store.engine.database.directory / reader_snapshots.FOLDER).iterdir()) == []


def test_copies_of_ended_processes_are_removed(store: Store) -> None:
    folder = store.engine.database.directory / reader_snapshots.FOLDER
    also_kept = asked(store)
    left = asked(store)
    gone = left.rename(folder / f"{ended_process()}-1-{reader_snapshots.system_id()}-{'0' * 16}")
    (folder / f".{gone.name}-half").mkdir()
    (folder / f"{gone.name}.refused").touch()
    other_system = "f" * 8 if reader_snapshots.system_id() != "f" * 8 else "e" * 8
    kept = asked(store).rename(folder / f"{ended_process()}-1-{other_system}-{'0' * 16}")
    foreign = folder / "notes.txt"
    foreign.touch()
    reader_snapshots.sweep(folder)
    assert sorted(folder.iterdir()) == sorted([kept, also_kept, foreign])


def test_a_copy_in_use_is_not_removed(store: Store) -> None:
    folder = store.engine.database.directory / reader_snapshots.FOLDER
    copy = asked(store)
    long_ago = time.time() - 2 * reader_snapshots.IDLE_S
    with Store.open(copy, read_only=True):
        os.utime(copy, (long_ago, long_ago))
        reader_snapshots.sweep(folder)
        assert copy.exists()
        reader_snapshots.touch(copy)
    reader_snapshots.sweep(folder)
    assert copy.exists()
    os.utime(copy, (long_ago, long_ago))
    reader_snapshots.sweep(folder)
    assert not copy.exists()


def test_the_store_neither_counts_nor_checks_copies(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    store.sync()
    before = store.engine.database.size_on_disk(".sst")
    asked(store)
    assert store.check() == []
    assert store.engine.database.size_on_disk(".sst") < before + (1 << 20)


def test_a_follower_sees_the_writes_of_the_owner(store: Store) -> None:
    stream = store.stream("orders")
    stream.add({"sku": "a1"})
    directory = store.engine.database.directory
    with Store.open(directory, read_only=True, following=True) as follower:
        assert len(follower.stream("orders")) == 1
        stream.add_many([{"sku": str(number)} for number in range(500)])
        store.engine.flush()
        stream.add({"sku": "last"})
        txn = follower.engine.begin_turn()
        follower.engine.database.catch_up()
        follower.engine.undo_turn(txn)
        assert len(follower.stream("orders")) == 502
        assert follower.stream("orders").range() == stream.range()


def test_only_read_only_stores_can_follow(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="read-only"):
        Store.open(tmp_path / "store", following=True)


def test_a_reader_copies_a_store_without_a_writer(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    directory = store.engine.database.directory
    with pytest.raises(StoreLocked):
        reader_snapshots.link(directory, reader_snapshots.new_token(os.getpid()))
    store.close()
    with Store.open(directory, read_only=True):  # another reader
        copy = reader_snapshots.link(directory, reader_snapshots.new_token(os.getpid()))
    assert copy is not None
    with Store.open(directory) as again:
        again.stream("orders").add_many([{"sku": str(number)} for number in range(1000)])
        again.compact()
    with Store.open(copy, read_only=True) as reader:
        assert [entry.fields for entry in reader.stream("orders")] == [{b"sku": b"a1"}]


def test_a_reader_leaves_a_long_log_to_a_writer(store: Store) -> None:
    store.stream("orders").add({"sku": "a1"})
    store.close()
    directory = store.engine.database.directory
    (directory / "999999.log").write_bytes(bytes(reader_snapshots.LOG_BYTES_MAX + 1))
    assert reader_snapshots.link(directory, reader_snapshots.new_token(os.getpid())) is None
    (directory / "999999.log").unlink()
