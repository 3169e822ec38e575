"""Checkpoints that block no writer: a copy of the files at one moment of a running RocksDB."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

import pytest

from kvstream.errors import StoreError
from kvstream.storage import checkpoint
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.storage.sst import TableWriter
from kvstream.storage.watermark import Watermark
from tests.storage.stores import SMALL, key_of, keys, put, put_one_by_one


@contextmanager
def never() -> Iterator[None]:
    """A lock that must not be taken: writers would have to wait."""
    raise AssertionError("the checkpoint holds writers up")
    yield


class Entered:
    """Counts how often it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory on another file system than ``tmp_path``."""
    for parent in (Path("/dev/shm"), Path("/var/tmp"), Path.home()):
        if parent.is_dir() and parent.stat().st_dev != tmp_path.stat().st_dev:
            with TemporaryDirectory(dir=parent) as folder:
                yield Path(folder)
            return
    pytest.skip("there is one file system only")


def opened_keys(path: Path) -> list[bytes]:
    copy = Database.open(path, SMALL)
    try:
        return keys(copy)
    finally:
        copy.close()


@contextmanager
def writing(database: Database) -> Iterator[list[int]]:
    """Put rows in order in a thread; yield their number."""
    over, written = threading.Event(), [0]

    def write() -> None:
        while not over.is_set():
            put(database, {key_of(written[0]): b"v" * 20})
            written[0] += 1
            if written[0] % 100 == 0:
                sleep(0.001)  # at full speed it fills a buffer of SMALL within a few milliseconds

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def test_a_checkpoint_beside_a_writer_has_all_earlier_rows_and_no_gap(
    database: Database, tmp_path: Path
) -> None:
    with writing(database) as written:
        for number in range(4):
            if number % 2:
                database.flush()
            before = written[0]
            database.checkpoint(tmp_path / f"copy-{number}", never())
            after = written[0]
            found = opened_keys(tmp_path / f"copy-{number}")
            assert before <= len(found) <= after + 1
            assert found == [key_of(row) for row in range(len(found))]


def test_a_checkpoint_beside_compactions_is_complete(database: Database, tmp_path: Path) -> None:
    over, written = threading.Event(), [0]

    def work() -> None:
        while not over.is_set():
            put(database, {key_of(written[0]): b"v" * 100})
            written[0] += 1
            database.flush()
            database.compact()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(3):
            before = written[0]
            database.checkpoint(tmp_path / f"copy-{number}", Entered())
            found = opened_keys(tmp_path / f"copy-{number}")
            assert found == [key_of(row) for row in range(len(found))]
            assert len(found) >= before
    finally:
        over.set()
        thread.join()


def test_ingested_tables_wait_while_a_checkpoint_copies_the_log(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_one_by_one(database, range(10))
    table = database.staging() / "given.sst"
    writer = TableWriter(table)
    writer.put(b"given", [bytes(16)], [b"v"])
    writer.finish()
    given: list[threading.Thread] = []
    copy = checkpoint._copy

    def give() -> None:
        database.ingest(Family.MESSAGES, [table])
        put(database, {key_of(200): b"speaks of 100"})

    def copied(source: int, target: Path, size: int) -> None:
        if not given:
            given.append(threading.Thread(target=give))
            given[0].start()
            given[0].join(0.2)  # it must not finish, however long it gets
        copy(source, target, size)

    monkeypatch.setattr(checkpoint, "_copy", copied)
    database.checkpoint(tmp_path / "copy", never())
    given[0].join()
    assert len(opened_keys(tmp_path / "copy")) == 10
    assert len(keys(database)) == 12


def test_later_writes_do_not_reach_a_checkpoint(database: Database, tmp_path: Path) -> None:
    put_one_by_one(database, range(10))
    database.checkpoint(tmp_path / "copy", never())
    put_one_by_one(database, range(10, 50))
    database.flush()
    database.compact()
    assert len(opened_keys(tmp_path / "copy")) == 10
    assert len(keys(database)) == 50
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "store"]


def test_a_checkpoint_has_all_writes_before_its_call(database: Database, tmp_path: Path) -> None:
    sequence = put_one_by_one(database, range(10))
    database.checkpoint(tmp_path / "copy", never())
    mark = Watermark.read(tmp_path / "copy")
    assert mark is not None
    assert mark.sequence == sequence
    put(database, {b"t": b"1"}, Family.TREES)
    assert database.sequence > sequence


def refuse_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make hard links fail with an error of the system."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpoint, "link", refuse)


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_without_links_rocksdb_copies_itself_while_writers_wait(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    put_one_by_one(database, range(10))
    database.flush()

    refuse_links(monkeypatch, refusal)
    alone = Entered()
    database.checkpoint(tmp_path / "copy", alone)
    assert alone.count == 1
    assert len(opened_keys(tmp_path / "copy")) == 10


def test_a_checkpoint_on_another_file_system_holds_nobody_up(
    database: Database, elsewhere: Path
) -> None:
    put_one_by_one(database, range(10))
    database.flush()
    put_one_by_one(database, range(10, 20))
    database.checkpoint(elsewhere / "copy", never())
    assert len(opened_keys(elsewhere / "copy")) == 20
    assert not list(database.staging().iterdir())


def test_another_error_of_the_disk_is_raised(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_one_by_one(database, range(10))
    database.flush()

    refuse_links(monkeypatch, errno.ENOSPC)
    with pytest.raises(StoreError, match="No space left"):
        database.checkpoint(tmp_path / "copy", never())
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


class Scripted(checkpoint.LiveTables):
    """Tables with scripted answers: each is given once, and then the true ones."""

    def __init__(self, at_work: list[bool], names: list[list[str]], true: list[str]) -> None:
        self._at_work, self._names, self._true = at_work, names, true
        self.ingest_lock: AbstractContextManager[object] = nullcontext()

    def at_work(self) -> bool:
        return self._at_work.pop(0) if self._at_work else False

    def names(self) -> list[str]:
        return self._names.pop(0) if self._names else self._true


def rocks(folder: Path, tables: list[str]) -> Path:
    """Make a folder that looks like RocksDB's."""
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000005\n")
    (folder / "MANIFEST-000005").write_text("manifest")
    for number in (9, 10):
        (folder / f"OPTIONS-{number:06}").write_text(str(number))
    (folder / "000008.log").write_text("log")
    for name in tables:
        (folder / name).write_text(name)
    return folder


ONE, TWO = "000001.sst", "000002.sst"


@pytest.mark.parametrize(
    ("at_work", "names"),
    [
        ([True, True], []),
        ([False, True], []),
        ([], [[ONE], [TWO]]),
        ([], [["000003.sst"]]),
    ],
    ids=["at work before", "at work since", "other tables since", "a table has gone"],
)
def test_an_inconsistent_copy_is_removed(
    tmp_path: Path, at_work: list[bool], names: list[list[str]]
) -> None:
    source, target = rocks(tmp_path / "source", [ONE, TWO]), tmp_path / "target"
    assert checkpoint.copy_database(source, target, Scripted(at_work, names, [TWO]))
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "CURRENT": "MANIFEST-000005\n",
        "MANIFEST-000005": "manifest",
        "OPTIONS-000010": "10",
        "000008.log": "log",
        TWO: TWO,
    }
    assert (target / TWO).samefile(source / TWO)
    assert not (target / "000008.log").samefile(source / "000008.log")


def test_a_timeout_without_a_consistent_copy_leaves_nothing(tmp_path: Path) -> None:
    source, target = rocks(tmp_path / "source", [ONE]), tmp_path / "target"
    assert not checkpoint.copy_database(
        source, target, Scripted([True] * 1000, [], [ONE]), patience_s=0
    )
    assert not target.exists()
