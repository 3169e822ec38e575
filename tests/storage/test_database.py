"""Reading and writing rows."""

import gc
import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import StoreClosed, StoreError
from kvstream.storage import reads
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import LARGE_WRITE, Database
from tests.storage.stores import EVERYTHING, SMALL, key_of, keys, put, put_one_by_one, value_of

REFUSED = -1
KILOBYTE = 1 << 10
LIMITS = [1, 2, reads.SHORT_PAGE, reads.SHORT_PAGE + 1, 9, 10, 11, 1000]


def rows(numbers: range) -> list[tuple[bytes, bytes]]:
    return [(key_of(number), value_of(number)) for number in numbers]


@pytest.fixture(params=["in memory", "in tables", "in both"])
def ten_rows(database: Database, request: pytest.FixtureRequest) -> Database:
    """Rows 10 to 19, with neighbours on both sides outside the range."""
    put_one_by_one(database, range(5, 15))
    if request.param != "in memory":
        database.flush()
    put_one_by_one(database, range(15, 25))
    if request.param == "in tables":
        database.flush()
    return database


def test_a_row_is_read_only_from_its_own_family(database: Database) -> None:
    for family in Family:
        put(database, {b"key": b"of %d" % family}, family)
    assert [database.get(family, b"key") for family in Family] == [b"of 0", b"of 1", b"of 2"]
    assert database.get(Family.TREES, b"other") is None


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("size", [0, LARGE_WRITE, LARGE_WRITE + 1])
def test_a_single_row_is_put_and_deleted(database: Database, family: Family, size: int) -> None:
    before = put(database, {b"other": b""}, family)
    assert put(database, {b"key": bytes(size)}, family) == before + 1
    assert database.get(family, b"key") == bytes(size)
    batch = Batch(database)
    batch.delete(family, b"key")
    assert database.write(batch) == before + 2
    assert database.get_many(family, [b"key", b"other"]) == [None, b""]


def test_many_rows_are_returned_in_the_requested_order(ten_rows: Database) -> None:
    asked = [key_of(12), b"none", key_of(19), key_of(12)]
    assert ten_rows.get_many(Family.MESSAGES, asked) == [
        value_of(12), None, value_of(19), value_of(12)
    ]  # fmt: skip
    assert ten_rows.get_many(Family.MESSAGES, []) == []


@pytest.mark.parametrize("limit", LIMITS)
def test_a_page_holds_the_first_or_last_rows_of_its_range(ten_rows: Database, limit: int) -> None:
    bounds, expected = (key_of(10), key_of(20)), rows(range(10, 20))
    assert ten_rows.page(Family.MESSAGES, *bounds, limit) == expected[:limit]
    found = ten_rows.page(Family.MESSAGES, *bounds, limit, reverse=True)
    assert found == expected[::-1][:limit]


@pytest.mark.parametrize("size", [1, 5, 6, 10, 11])
def test_pages_continue_to_the_end_and_are_empty_after_it(ten_rows: Database, size: int) -> None:
    pages = ten_rows.pages(Family.MESSAGES, key_of(10), key_of(20))
    next(pages)
    found = [pages.send(size) for _ in range(12)]
    assert [row for page in found for row in page] == rows(range(10, 20))
    assert found[-1] == []
    assert all(len(page) == size for page in found[: 10 // size])


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_of_no_rows_is_empty(ten_rows: Database, limit: int) -> None:
    assert ten_rows.page(Family.MESSAGES, *EVERYTHING, limit) == []


def test_a_scan_runs_in_both_directions_between_its_bounds(ten_rows: Database) -> None:
    bounds = (key_of(10), key_of(20))
    assert list(ten_rows.scan(Family.MESSAGES, *bounds)) == rows(range(10, 20))
    assert list(ten_rows.scan(Family.MESSAGES, *bounds, reverse=True)) == rows(range(10, 20))[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_an_empty_range_has_no_rows(ten_rows: Database, reverse: bool) -> None:
    for lower, upper in [(b"x", b"y"), (key_of(12), key_of(12)), (b"", b"0")]:
        assert list(ten_rows.scan(Family.MESSAGES, lower, upper, reverse)) == []
        assert ten_rows.page(Family.MESSAGES, lower, upper, 100, reverse) == []


def test_a_scan_shows_the_rows_of_the_moment_it_began(database: Database) -> None:
    put_one_by_one(database, range(3))
    scan = database.scan(Family.MESSAGES, *EVERYTHING)
    first = next(scan)
    put_one_by_one(database, range(3, 6))
    assert [first, *scan] == rows(range(3))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_snapshot_shows_the_rows_of_the_moment_it_was_made(
    ten_rows: Database, reverse: bool
) -> None:
    most = reads.PAGE_ROWS
    put(ten_rows, dict(rows(range(25, 3 * most))))
    pages = ten_rows.snapshot(Family.MESSAGES, key_of(10), key_of(2 * most + 11), reverse)
    put(ten_rows, {key_of(13): b"new"})
    batch = Batch(ten_rows)
    batch.delete_range(Family.MESSAGES, key_of(15), key_of(2 * most))
    ten_rows.write(batch)
    found = list(pages)
    assert [len(page) for page in found] == [most, most, 1]
    expected = rows(range(10, 2 * most + 11))
    assert [row for page in found for row in page] == (expected[::-1] if reverse else expected)


def test_a_page_of_large_rows_has_few_of_them(database: Database) -> None:
    put(database, {key_of(n): b"v" * (reads.PAGE_BYTES // 2 + 1) for n in range(5)})
    assert [len(page) for page in database.snapshot(Family.MESSAGES, *EVERYTHING)] == [2, 2, 1]
    assert len(database.seeks(Family.MESSAGES).send((key_of(0), key_of(4), 5))) == 2


def test_many_ranges_are_read_as_they_were_at_one_moment(ten_rows: Database) -> None:
    seeks = ten_rows.seeks(Family.MESSAGES)
    put(ten_rows, {key_of(13): b"new", key_of(25): b"new"})
    assert seeks.send((key_of(15), key_of(17), 9)) == rows(range(15, 18))
    assert seeks.send((key_of(12), key_of(30), 2)) == rows(range(12, 14))
    assert seeks.send((key_of(20), key_of(30), 9)) == rows(range(20, 25))
    assert seeks.send((key_of(30), key_of(40), 1)) == []
    assert seeks.send((key_of(0), key_of(10), 2)) == rows(range(5, 7))


def test_a_snapshot_ends_with_the_store(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    begun, untouched = (database.snapshot(Family.MESSAGES, *EVERYTHING) for _ in range(2))
    assert len(next(begun)) == 10
    seeks = database.seeks(Family.MESSAGES)
    database.close()
    for pages in (begun, untouched):
        with pytest.raises(StoreClosed):
            next(pages)
    with pytest.raises(StoreClosed):
        seeks.send((key_of(0), key_of(4), 5))


def test_a_snapshot_has_the_committed_rows_and_those_of_the_batch(
    database: Database,
) -> None:
    batch = Batch(database)
    assert list(batch.snapshot(Family.MESSAGES, *EVERYTHING)) == []
    batch.put(Family.TREES, b"key", b"of another family")
    batch.put(Family.MESSAGES, b"first", b"value")
    snapshot = batch.snapshot(Family.MESSAGES, *EVERYTHING)
    batch.put(Family.MESSAGES, b"later", b"value")
    assert list(snapshot) == [[(b"first", b"value")]]


def test_temporary_bounds_live_as_long_as_the_scan(database: Database) -> None:
    put_one_by_one(database, range(300))
    scans = [
        database.scan(Family.MESSAGES, key_of(0), b"%08d" % (number + 1)) for number in range(300)
    ]
    garbage = [b"%08d" % number for number in range(10_000)]  # would reuse freed memory
    gc.collect()
    assert [len(list(scan)) for scan in scans] == list(range(1, 301))
    assert len(garbage) == 10_000


def test_a_batch_writes_to_all_families_at_once_and_counts_its_rows(database: Database) -> None:
    batch = Batch(database)
    for family in Family:
        batch.put(family, b"key", b"value")
    before = database.sequence
    assert database.write(batch) == database.sequence == before + 3


def test_range_deletes_apply_before_the_rows_put_with_them(database: Database) -> None:
    put_one_by_one(database, range(10))
    batch = Batch(database)
    batch.delete_range(Family.MESSAGES, key_of(2), key_of(8))
    batch.put(Family.MESSAGES, key_of(5), b"new")
    batch.delete(Family.MESSAGES, key_of(9))
    database.write(batch)
    assert keys(database) == [key_of(number) for number in (0, 1, 5, 8)]


def test_a_batch_can_be_written_again(database: Database) -> None:
    batch = Batch(database)
    batch.put(Family.MESSAGES, b"key", b"value")
    assert database.write(batch) < database.write(batch)


def test_a_key_that_is_not_bytes_is_a_mistake_of_the_caller_not_of_the_store(
    database: Database,
) -> None:
    batch = Batch(database)
    batch.puts[Family.MESSAGES]["text"] = b""  # type: ignore[index]
    with pytest.raises(KeyError, match="only support bytes"):
        database.write(batch)
    assert database.failure is None


def test_rows_survive_closing_and_opening(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    sequence = put_one_by_one(database, range(100))
    for _ in range(2):  # a second close has no effect
        database.close()
    assert sum(path.stat().st_size for path in directory.glob("*.log")) == 0
    reopened = Database.open(directory, SMALL)
    assert reopened.sequence == sequence
    assert len(keys(reopened)) == 100
    reopened.close()


def test_every_use_of_a_closed_store_raises_store_closed(database: Database) -> None:
    put(database, {b"key": b"value"})
    batch = Batch(database)
    batch.put(Family.MESSAGES, b"key", b"value")
    database.close()
    uses = [
        lambda: database.get(0, b"key"),
        lambda: database.get_many(0, [b"key"]),
        lambda: list(database.scan(0, *EVERYTHING)),
        lambda: database.page(0, *EVERYTHING, 1),
        lambda: database.page(0, *EVERYTHING, 100),
        lambda: database.write(batch),
        lambda: database.sequence,
        database.flush,
        database.flush_wal,
        database.verify,
        database.compact,
        database.statistics,
    ]
    for use in uses:
        with pytest.raises(StoreClosed):
            use()


@pytest.mark.parametrize("asked", ["never", "once", "to its end"])
def test_a_scan_left_open_does_not_keep_a_closed_store_open(directory: Path, asked: str) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(3))
    scan = database.scan(Family.MESSAGES, *EVERYTHING)
    for _ in range({"never": 0, "once": 1, "to its end": 3}[asked]):
        next(scan)
    database.close()
    Database.open(directory, SMALL).close()
    with pytest.raises(StoreClosed):
        next(scan)


@pytest.mark.parametrize("reverse", [False, True])
def test_closing_while_another_thread_scans_never_shortens_its_result(
    directory: Path, reverse: bool
) -> None:
    database = Database.open(directory, SMALL)
    put(database, dict(rows(range(20_000))))
    counts: list[int] = []
    started = threading.Event()

    def scan() -> None:
        count = 0
        try:
            for _ in database.scan(Family.MESSAGES, *EVERYTHING, reverse):
                count += 1
                started.set()
        except StoreClosed:
            count = REFUSED
        counts.append(count)

    scanner = threading.Thread(target=scan)
    scanner.start()
    started.wait()
    database.close()
    scanner.join()
    assert counts in ([REFUSED], [20_000])
    Database.open(directory, SMALL).close()


def test_threads_read_while_one_writes(database: Database) -> None:
    put_one_by_one(database, range(1000))
    short: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = len(database.page(Family.MESSAGES, key_of(0), key_of(1000), 1000))
            if found != 1000:
                short.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    put_one_by_one(database, range(1000, 4000))
    done.set()
    for reader in readers:
        reader.join()
    assert short == []


def test_a_checkpoint_does_not_touch_existing_files(database: Database, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (target / "theirs").touch()
    with pytest.raises(StoreError, match="exists"):
        database.checkpoint(target, nullcontext())
    assert [path.name for path in target.iterdir()] == ["theirs"]


def test_the_error_of_a_checkpoint_names_its_directory(database: Database, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        database.checkpoint(tmp_path / "nowhere" / "copy", nullcontext())


def test_compacting_frees_the_space_of_deleted_rows(database: Database) -> None:
    for number in range(2000):
        put(database, {key_of(number): number.to_bytes(4, "big") * 250})
    database.flush()
    before = database.size_on_disk()
    batch = Batch(database)
    batch.delete_range(Family.MESSAGES, *EVERYTHING)
    database.write(batch)
    database.compact()
    assert database.size_on_disk() < before
    assert database.verify() == 0


def test_verifying_counts_every_row_of_every_family(database: Database) -> None:
    put_one_by_one(database, range(10))
    put(database, {b"a": b"", b"b": b""}, Family.TREES)
    assert database.verify() == 12


def test_the_statistics_name_every_family_and_the_size_on_disk(database: Database) -> None:
    put_one_by_one(database, range(10))
    found = database.statistics()
    assert found["families"]["messages"]["keys"] == 10
    assert set(found["families"]) == {"messages", "metadata", "trees"}
    assert found["size_on_disk"] > 0
    assert found["failure"] is None
    assert database.property_int("rocksdb.estimate-num-keys", Family.MESSAGES) == 10


def test_every_written_table_of_every_family_is_verified(database: Database) -> None:
    """Read from RocksDB's options file, which has one more family without rows."""
    (path,) = database.directory.glob("OPTIONS-*")  # written once: an opening costs no more
    _, *families = path.read_text().split("[CFOptions ")
    checked = {text.split("]")[0] for text in families if "paranoid_file_checks=true" in text}
    assert checked == {'"messages"', '"metadata"', '"trees"'}


def test_rocksdb_never_slows_writes_down_and_stops_them_late(database: Database) -> None:
    """kvstream treats a slowdown of RocksDB as a stop: see ``stalls``."""
    (path,) = database.directory.glob("OPTIONS-*")
    shared, *families = path.read_text().split("[CFOptions ")
    assert "max_background_jobs=3\n" in shared
    noted = {text.split("]")[0]: dict(re.findall(r"(\w+)=(\d+)", text)) for text in families}
    del noted['"default"']
    assert len(noted) == 3
    for options in noted.values():
        assert options["level0_slowdown_writes_trigger"] == "64"
        assert options["level0_stop_writes_trigger"] == "64"
        assert options["max_write_buffer_number"] == "3"
        assert options["soft_pending_compaction_bytes_limit"] == "0"
        assert options["hard_pending_compaction_bytes_limit"] == "0"


def test_levels_of_messages_start_small_and_their_tables_grow(database: Database) -> None:
    (path,) = database.directory.glob("OPTIONS-*")
    text = path.read_text().split('[CFOptions "messages"]')[1].split("[")[0]
    options = dict(re.findall(r"(\w+)=(\d+)", text))
    assert options["max_bytes_for_level_base"] == str(32 << 20)
    assert options["target_file_size_base"] == str(16 << 20)
    assert options["target_file_size_multiplier"] == "2"


def bytes_read() -> int:
    """Return the bytes that this process has read from files, including cached ones."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("family", [Family.METADATA, Family.TREES])
def test_a_get_reads_little_of_a_table_whose_filter_exceeds_a_shard_of_the_cache(
    directory: Path, family: Family
) -> None:
    """The filter of 500,000 rows has 610 KB, and a shard of a cache of 4 MB has 512 KB."""
    options = replace(SMALL, tree_write_buffer_bytes=64 << 20, block_cache_bytes=4 << 20)
    database = Database.open(directory, options)
    put(database, {key_of(number): b"" for number in range(500_000)}, family)
    database.compact()  # the filters of the first level are pinned
    database.close()
    database = Database.open(directory, options)
    before, gets = bytes_read(), 200
    for number in range(gets):
        assert database.get(family, key_of(number * 2000) + b"missing") is None
    database.close()
    assert (bytes_read() - before) / gets < 32 * KILOBYTE
