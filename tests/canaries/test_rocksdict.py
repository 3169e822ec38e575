"""The fifteen traps of rocksdict 0.3.29, as its code behaves now.

The storage floor is built around them. A failure here is no defect of kvstream: a new rocksdict
behaves differently, so the handling of that trap must be decided again.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rocksdict import (
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from tests.patience import PATIENCE_S, retried

ROWS = 6000


def options(raw: bool = True) -> Options:
    chosen = Options(raw_mode=raw)
    chosen.create_if_missing(True)
    chosen.create_missing_column_families(True)
    return chosen


def opened(path: Path) -> Rdict:
    return Rdict(str(path), options(), {"rows": options()})


def key(number: int) -> bytes:
    return b"%08d" % number


def close(database: Rdict) -> None:
    """Close a database that a test may have closed already, or left in a failed state."""
    with contextlib.suppress(Exception):
        database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


@pytest.fixture
def rows(path: Path) -> Iterator[Rdict]:
    """Six thousand rows in a table."""
    database = opened(path)
    for number in range(ROWS):
        database.put(key(number), b"value of %d" % number)
    database.flush(True)
    yield database
    close(database)


@pytest.fixture
def damaged(path: Path, rows: Rdict) -> Iterator[Rdict]:
    """The same rows; a block of them does not match its checksum."""
    rows.close()
    (table,) = path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 4] ^= 0x10
    table.write_bytes(content)
    database = opened(path)
    yield database
    close(database)


def bounded(**setters: Any) -> ReadOptions:
    chosen = ReadOptions()
    for name, value in setters.items():
        getattr(chosen, f"set_{name}")(value)
    return chosen


def walked(rows: Any, chosen: ReadOptions) -> list[bytes]:
    cursor = rows.iter(chosen)
    cursor.seek_to_first()
    found = []
    while cursor.valid():
        found.append(cursor.key())
        cursor.next()
    return found


def test_1_the_lower_bound_of_an_iterator_sets_its_upper_bound(rows: Rdict) -> None:
    assert walked(rows, bounded(iterate_lower_bound=key(10))) == [key(n) for n in range(10)]


def test_2_an_iterator_does_not_keep_its_upper_bound_alive(rows: Rdict) -> None:
    wrong = 0
    for _ in range(100):
        cursor = rows.iter(bounded(iterate_upper_bound=b"%08d" % 3000))
        taking_its_place = [b"%08d" % 1 for _ in range(100)]
        cursor.seek(key(2990))
        count = 0
        while cursor.valid() and count < 100:
            count += 1
            cursor.next()
        wrong += count != 10
        del taking_its_place
    assert wrong > 0


def test_3_an_iterator_of_a_snapshot_shows_later_writes(rows: Rdict) -> None:
    snapshot = rows.snapshot()
    rows.put(b"later", b"")
    with pytest.raises(Exception, match="key not found"):
        snapshot[b"later"]
    assert b"later" in list(snapshot.keys())
    del snapshot


def test_4_items_ends_at_a_damaged_block_as_if_there_were_no_more_rows(damaged: Rdict) -> None:
    assert 0 < len(list(damaged.items())) < ROWS
    cursor = damaged.iter()
    cursor.seek_to_first()
    while cursor.valid():
        cursor.next()
    with pytest.raises(Exception, match=r"^Corruption"):
        cursor.status()


def test_5_a_failed_compaction_raises_nothing(damaged: Rdict) -> None:
    damaged.put(key(0), b"")
    damaged.put(key(ROWS), b"")
    damaged.compact_range(None, None)
    with pytest.raises(Exception, match=r"^Corruption"):
        damaged.write(WriteBatch(True))  # this is how the floor learns of it


def test_6_a_write_empties_the_batch(rows: Rdict) -> None:
    batch = WriteBatch(True)
    batch.put(b"key", b"value")
    rows.write(batch)
    with pytest.raises(Exception, match="consumed"):
        rows.write(batch)


def test_7_a_put_without_a_column_family_goes_to_the_default_one(
    rows: Rdict, tmp_path: Path
) -> None:
    family = rows.get_column_family("rows")
    batch = WriteBatch(True)
    batch.put(b"key", b"value")
    family.write(batch)
    assert family.get(b"key") is None
    assert rows.get(b"key") == b"value"
    other = opened(tmp_path / "other")
    foreign = WriteBatch(True)
    foreign.put(b"foreign", b"value", other.get_column_family_handle("rows"))
    rows.write(foreign)  # a handle of another database is taken
    assert family.get(b"foreign") == b"value"
    other.close()


@pytest.mark.parametrize("holder", ["get_column_family", "get_column_family_handle", "iter"])
def test_8_a_closed_database_stays_open_while_any_handle_lives(path: Path, holder: str) -> None:
    database = opened(path)
    handle = database.iter() if holder == "iter" else getattr(database, holder)("rows")
    database.close()
    with pytest.raises(Exception, match=r"[Ll]ock"):
        opened(path)
    del handle
    gc.collect()
    opened(path).close()


def test_9_a_failed_open_has_written_to_the_directory(path: Path, rows: Rdict) -> None:
    config = path / "rocksdict-config.json"
    assert json.loads(config.read_bytes())["raw_mode"] is True
    with pytest.raises(Exception, match=r"[Ll]ock"):
        Rdict(str(path), options(raw=False))
    assert json.loads(config.read_bytes())["raw_mode"] is False


class Marker:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_10_a_database_opened_without_options_unpickles_values(path: Path, tmp_path: Path) -> None:
    theirs = Rdict(str(path), options(raw=False))
    theirs["key"] = Marker(tmp_path / "marker")
    theirs.close()
    with pytest.raises(Exception, match="does not match existing comparator"):
        opened(path)
    assert not (tmp_path / "marker").exists()
    (path / "rocksdict-config.json").write_text('{"raw_mode":false,"prefix_extractors":{}}')
    careless = Rdict(str(path))
    list(careless.items())
    careless.close()
    assert (tmp_path / "marker").exists()


def test_11_one_process_opens_a_database_twice_through_a_link(
    path: Path, rows: Rdict, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(path, target_is_directory=True)
    second = opened(tmp_path / "link")
    second.close()


FORKING = """
import os, sys
from rocksdict import Options, Rdict
options = Options(raw_mode=True)
options.create_if_missing(True)
rows = Rdict(sys.argv[1], options)
rows.put(b"of the parent", b"")
child = os.fork()
if child == 0:
    rows.put(b"of the child", b"")  # succeeds, in the parent's log
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), rows.get(b"of the child"), flush=True)
os._exit(0)
"""


def test_12_a_forked_child_writes_into_the_log_of_its_parent(path: Path) -> None:
    program = [sys.executable, "-W", "ignore", "-c", FORKING, str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["0", "None"], done.stderr  # the parent does not see the row
    reopened = opened(path)
    assert reopened.get(b"of the child") is not None  # but its log has it
    reopened.close()


def test_13_an_error_of_the_engine_is_a_bare_exception_with_a_text(damaged: Rdict) -> None:
    with pytest.raises(Exception, match=r"^Corruption: ") as raised:
        damaged.get([key(number) for number in range(ROWS)])
    assert type(raised.value) is Exception


def test_14_two_declared_types_are_wrong() -> None:
    writing: Any = WriteOptions()
    assert writing.disable_wal is False
    writing.disable_wal = True
    reading: Any = ReadOptions()
    reading.fill_cache(False)
    with pytest.raises(TypeError):
        reading.fill_cache()


@pytest.mark.parametrize("kind", [bytearray, memoryview, bytes.decode])
def test_15_keys_and_values_must_be_bytes(rows: Rdict, kind: Any) -> None:
    for pair in [(kind(b"key"), b"value"), (b"key", kind(b"value"))]:
        with pytest.raises(Exception, match="bytes"):
            rows.put(*pair)


# What the floor relies on besides


def test_an_inverted_range_delete_fails_in_the_middle_of_its_batch(path: Path) -> None:
    """The write fails, and yet its first row is written. So a batch drops inverted ranges."""
    database = opened(path)
    batch = WriteBatch(True)
    batch.put(b"key", b"value")
    batch.delete_range(b"b", b"a")
    with pytest.raises(Exception, match="end key comes before start key"):
        database.write(batch)
    assert database.get(b"key") == b"value"
    close(database)
    del database
    reopened = opened(path)
    assert reopened.get(b"key") == b"value"
    close(reopened)


def test_a_write_holds_the_interpreter_and_a_flush_of_the_log_does_not(rows: Rdict) -> None:
    """Therefore the store uses flush_wal(), and never WriteOptions.sync."""
    retried(lambda: _see_who_is_held(rows))


def _see_who_is_held(rows: Rdict) -> None:
    stop = threading.Event()
    ticks: list[float] = []

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    batch = WriteBatch(True)
    value = bytes(64 << 20)
    batch.put(b"large", value)
    began = time.monotonic()
    rows.write(batch)
    ended = time.monotonic()
    rows.flush_wal(True)
    flushed = time.monotonic()
    stop.set()
    ticker.join()
    assert ended - began > 0.02
    # On a busy machine the other thread may have a turn before the write begins, or after it.
    assert longest_silence(ticks, began, ended) > (ended - began) / 2
    during_flush = longest_silence(ticks, ended, flushed)
    assert during_flush < (flushed - ended) / 2 or flushed - ended < 0.02


def longest_silence(ticks: list[float], began: float, ended: float) -> float:
    within = [began, *(tick for tick in ticks if began < tick < ended), ended]
    return max(after - before for before, after in pairwise(within))


def test_the_bundled_rocksdb_is_the_tested_release(path: Path, rows: Rdict) -> None:
    assert "rocksdb_version=9.8.4" in max(path.glob("OPTIONS-*")).read_text()
