"""What RocksDB 9.8 writes into its log, on which the reader of the change log rests.

A failure here is no defect of the reader: a new rocksdict, or a new option of the store, changes
what the log holds. Then docs/internals.md ("The change log") must be decided again.
"""

import configparser
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import IngestExternalFileOptions, Options, Rdict, SstFileWriter

from kvstream import Store
from kvstream.storage.batch import Family
from kvstream.storage.changes import ARCHIVE
from kvstream.storage.log import DELETE, DELETE_RANGE, PUT, LogReader, Record, Row
from kvstream.storage.manifest import family_names, read_families
from tests.patience import PATIENCE_S
from tests.storage import log_bytes
from tests.storage.log_bytes import fragments, log_of, logs, opened, write


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "store", durability="no")
    yield opened
    opened.close()


def records(directory: Path) -> list[Record]:
    """Return the records of the newest log of a store that may be open."""
    return LogReader().feed(log_of(directory))


def many(count: int) -> list[dict[str, str]]:
    return [{"field": f"value {number}"} for number in range(count)]


def prepared(store: Store) -> None:
    """Make keys of all kinds, and entries that the commits of the test refer to."""
    store.stream("s").add_many(many(3000))
    store.stream("s").create_group("g", start="0")
    for number in range(300):
        store.stream(f"s{number}").add({"field": "value"})


def transaction(store: Store) -> None:
    with store.transaction():
        for number in range(20):
            store.stream("t").add({"field": f"{number}"})
        store.delete("s7")
        store.stream("s").trim(maxlen=5)


COMMITS: dict[str, Callable[[Store], object]] = {
    "add": lambda store: store.stream("s").add({"field": "value"}),
    "add to a new key": lambda store: store.stream("new").add({"field": "value"}),
    "add_many": lambda store: store.stream("s").add_many(many(2000)),
    "a large entry": lambda store: store.stream("s").add({"field": "v" * 3_000_000}),
    "a read of a group": lambda store: store.stream("s").group("g").consumer("c").read(count=200),
    "a trim": lambda store: store.stream("s").trim(maxlen=3),
    "FLUSHDB": lambda store: store.flush(),
    "DEL": lambda store: store.delete("s", "s1", "s2"),
    "a transaction": transaction,
}


@pytest.mark.parametrize("name", COMMITS)
def test_one_commit_is_one_record_that_is_there_when_the_call_returns(
    store: Store, tmp_path: Path, name: str
) -> None:
    prepared(store)
    before, number = records(tmp_path / "store"), store.engine.database.sequence
    COMMITS[name](store)
    latest = store.engine.database.sequence
    (record,) = records(tmp_path / "store")[len(before) :]
    assert (record.sequence, record.last) == (number + 1, latest)
    rows, families = record.rows(), read_families(tmp_path / "store")
    assert {family for family, *_ in rows} <= families.keys()
    kinds = [kind for _, kind, _, _ in rows]
    assert kinds.count(DELETE_RANGE) == kinds[: kinds.count(DELETE_RANGE)].count(DELETE_RANGE)
    if name in ("FLUSHDB", "a trim"):
        assert DELETE_RANGE in kinds


def test_a_log_has_the_known_fragments_alone(store: Store, tmp_path: Path) -> None:
    prepared(store)
    store.stream("s").add({"field": "v" * 3_000_000})
    kinds = {kind for kind, _ in fragments(log_of(tmp_path / "store"))}
    assert kinds == {1, 2, 3, 4}


def test_logs_are_not_used_again(tmp_path: Path) -> None:
    """Else fragments would have other types, and old records would stand behind the new ones."""
    seen = set()
    for _ in range(2):
        store = Store.open(tmp_path / "store", durability="no")
        for _ in range(3):
            store.stream("s").add_many(many(500))
            for log in logs(tmp_path / "store"):
                seen.add(log.name)
                assert {kind for kind, _ in fragments(log.read_bytes())} <= {1, 2, 3, 4}
            store.engine.database.flush()
        store.close()
    assert len(seen) >= 6


WANTED = {
    "recycle_log_file_num": "0",
    "wal_compression": "kNoCompression",
    "manual_wal_flush": "false",
    "enable_pipelined_write": "false",
    "unordered_write": "false",
    "two_write_queues": "false",
    "allow_2pc": "false",
    "track_and_verify_wals_in_manifest": "false",
}


def test_the_options_of_the_log_are_the_known_ones(store: Store, tmp_path: Path) -> None:
    newest = max((tmp_path / "store").glob("OPTIONS-*"), key=lambda path: int(path.name[8:]))
    options = configparser.ConfigParser(interpolation=None, strict=False)
    options.read_string(newest.read_text())
    assert {name: options["DBOptions"].get(name) for name in WANTED} == WANTED


ROWS: list[Row] = [
    (0, PUT, b"a", b"1"),
    (0, DELETE, b"b", None),
    (0, DELETE_RANGE, b"c", b"d"),
    (1, PUT, b"a", b"1"),
    (1, DELETE, b"b", None),
    (1, DELETE_RANGE, b"c", b"d"),
]


def test_rows_have_the_known_tags(tmp_path: Path) -> None:
    database = opened(tmp_path)
    write(database, ROWS)
    (record,) = records(tmp_path)
    database.close()
    assert record.data == log_bytes.encode_record(1, ROWS)
    assert record.rows() == ROWS


def test_a_single_put_is_a_record_of_one_row(tmp_path: Path) -> None:
    database = opened(tmp_path)
    family = database.get_column_family(log_bytes.FAMILY)
    family[b"key"] = b"value"
    del family[b"key"]
    found = [record.rows() for record in records(tmp_path)]
    del family
    database.close()
    assert found == [[(1, PUT, b"key", b"value")], [(1, DELETE, b"key", None)]]


def test_an_empty_batch_is_a_record_without_rows(tmp_path: Path) -> None:
    database = opened(tmp_path)
    write(database, ROWS)
    write(database, [])
    write(database, ROWS)
    found = [(record.sequence, record.row_count) for record in records(tmp_path)]
    database.close()
    assert found == [(1, 6), (7, 0), (7, 6)]


def test_recovery_does_not_count_an_empty_range_delete(tmp_path: Path) -> None:
    """So numbers would be given twice; a batch of the store has none (storage/batch.py)."""
    database = opened(tmp_path)
    write(database, [(0, PUT, b"key", b"value"), (0, DELETE_RANGE, b"a", b"a")])
    assert database.latest_sequence_number() == 2
    database.close()
    database = opened(tmp_path)
    assert database.latest_sequence_number() == 1
    database.close()


def ingest(database: Rdict, folder: Path, keys: list[bytes]) -> None:
    writer = SstFileWriter(Options(raw_mode=True))
    path = folder / f"{keys[0].hex()}-{len(list(folder.iterdir()))}.sst"
    writer.open(str(path))
    for key in keys:
        writer[key] = b"ingested"
    writer.finish()
    database.ingest_external_file([str(path)], IngestExternalFileOptions())


def test_an_ingest_is_not_in_the_log_and_takes_a_number_only_where_rows_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "tables").mkdir()
    database = opened(tmp_path / "rows")
    write(database, [(0, PUT, b"key", b"value")])
    ingest(database, tmp_path / "tables", [b"other", b"others"])
    assert database.latest_sequence_number() == 1
    ingest(database, tmp_path / "tables", [b"key"])
    assert database.latest_sequence_number() == 2
    write(database, [(0, PUT, b"key", b"value")])
    found = [
        (record.sequence, record.row_count)
        for log in logs(tmp_path / "rows")
        for record in LogReader().feed(log.read_bytes())
    ]
    database.close()
    assert found in ([(1, 1), (3, 1)], [(3, 1)])  # the first log may be gone


ROOT = Path(__file__).resolve().parent.parent.parent
FILLING = """
import os, resource, sys
from pathlib import Path
from tests.patience import PATIENCE_S
from tests.storage import log_bytes
path = Path(sys.argv[1])
database = log_bytes.opened(path)
for number in range(50):
    log_bytes.write(database, [(1, 1, b"%d" % number, b"value" * 100)])
(log,) = log_bytes.logs(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + int(sys.argv[2]), -1))
try:
    log_bytes.write(database, [(1, 1, b"large", b"v" * 100_000)])
except Exception:
    print(database.latest_sequence_number(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("room", [0, 3, 8, 24_386, 70_000])
def test_a_failed_write_leaves_a_torn_end_and_takes_no_number(tmp_path: Path, room: int) -> None:
    program = [sys.executable, "-W", "ignore", "-c", FILLING, str(tmp_path), str(room)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.stdout == "50\n", done.stderr
    reader = LogReader()
    found = reader.feed(log_of(tmp_path))
    assert [record.sequence for record in found] == list(range(1, 51))
    assert reader.unread == room


def kept(directory: Path) -> int:
    """Return the bytes of the archived logs."""
    return sum(log.stat().st_size for log in (directory / ARCHIVE).glob("*.log"))


def finish_logs(database: Rdict, count: int = 4) -> None:
    """Write some logs of half a megabyte, and flush the rows of each."""
    for number in range(count):
        write(database, [(0, PUT, b"%d" % number, bytes(500_000))])
        database.flush(True)


def test_logs_that_are_kept_by_time_stay_until_somebody_removes_them(tmp_path: Path) -> None:
    for ttl_s in (3600, 3600, 0, 0):
        database = opened(tmp_path, ttl_s)
        if ttl_s:
            finish_logs(database)
        database.close()
    assert kept(tmp_path) > 3_500_000


def test_a_limit_of_bytes_is_exceeded_and_then_takes_logs_at_an_opening(tmp_path: Path) -> None:
    database = opened(tmp_path, 3600, 1)
    finish_logs(database)
    assert kept(tmp_path) > 1_400_000
    database.close()
    opened(tmp_path, 3600, 1).close()
    assert kept(tmp_path) <= 1 << 20


def test_the_folder_of_archived_logs_is_not_made_again(tmp_path: Path) -> None:
    database = opened(tmp_path, 3600)
    finish_logs(database)
    shutil.rmtree(tmp_path / ARCHIVE)
    finish_logs(database)
    assert len(logs(tmp_path)) >= 4
    assert not (tmp_path / ARCHIVE).exists()
    database.close()


def test_families_have_no_fixed_numbers(tmp_path: Path) -> None:
    """Their names and numbers are in MANIFEST; the store has none but its own and ``default``."""
    orders = set()
    for number in range(20):
        path = tmp_path / str(number)
        Store.open(path, durability="no").close()
        manifest = (path / (path / "CURRENT").read_text().strip()).read_bytes()
        names = family_names(manifest)
        assert names.pop(0) == "default"
        assert sorted(names) == [1, 2, 3]
        assert set(read_families(path).values()) == set(Family)
        orders.add(tuple(names[number] for number in sorted(names)))
        if len(orders) > 1:
            return
    pytest.fail("all stores have the same order")


def test_every_row_of_a_store_is_in_its_log(store: Store, tmp_path: Path) -> None:
    """Replayed on nothing, the log gives the rows that the store has."""
    prepared(store)
    transaction(store)
    families = read_families(tmp_path / "store")
    rows: dict[Family, dict[bytes, Any]] = {family: {} for family in Family}
    for record in records(tmp_path / "store"):
        for number, kind, key, value in record.rows():
            of = rows[families[number]]
            if kind == PUT:
                of[key] = value
            elif kind == DELETE:
                of.pop(key, None)
            else:
                assert value is not None
                for each in [each for each in of if key <= each < value]:
                    del of[each]
    for family in Family:
        stored = dict(store.engine.database.scan(family, b"", b"\xff" * 64))
        assert stored == rows[family]
