"""Which processes may open a directory, and which files it may contain."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstream.engine import server_address
from kvstream.errors import (
    Corruption,
    KVStreamError,
    LostWrites,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    UnknownLayout,
    UnsafeDirectory,
)
from kvstream.logs import emit_deferred
from kvstream.storage import files, watermark
from kvstream.storage.batch import Batch
from kvstream.storage.database import Database
from kvstream.storage.directory import LAYOUT_FILE
from tests import forking
from tests.folders import as_killed
from tests.patience import PATIENCE_S
from tests.storage.stores import SMALL, contents, keys, put, put_one_by_one

READER = replace(SMALL, read_only=True)
NOT_ROOT = 65534
ROOT = str(Path(__file__).parents[2])


def refusal(path: Path, **changes: Any) -> type[KVStreamError] | None:
    """Return the error that opening raises, or None."""
    try:
        Database.open(path, replace(SMALL, **changes)).close()
    except KVStreamError as error:
        return type(error)
    return None


def refused_in_another_process(path: Path, **changes: bool) -> str:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.storage.test_directory import refusal\n"
        f"print(getattr(refusal(Path(sys.argv[1]), **{changes!r}), '__name__', None))"
    )
    child = forking.run(
        [sys.executable, "-c", program, str(path)],
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": ROOT},
    )
    assert child.returncode == 0, child.stderr
    return str(child.stdout.strip())


def pictures(path: Path) -> dict[str, tuple[int, int]]:
    """Return time and size of each file, except RocksDB's log of its own actions."""
    return {
        entry.name: (entry.stat().st_mtime_ns, entry.stat().st_size)
        for entry in os.scandir(path)
        if entry.name != "LOG"
    }


# Making a store


def test_a_new_store_is_private_to_its_owner(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_new_store_names_its_layout(database: Database) -> None:
    assert (database.directory / LAYOUT_FILE).read_bytes() == b"kvstream store\nlayout 3\n"


def test_the_parent_directories_of_a_new_store_are_created(tmp_path: Path) -> None:
    Database.open(tmp_path / "a" / "b" / "store", SMALL).close()
    assert (tmp_path / "a" / "b" / "store" / LAYOUT_FILE).exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        Database.open(tmp_path / "file" / "store", SMALL)


@pytest.mark.parametrize("options", [replace(SMALL, create=False), READER])
def test_a_store_is_created_only_if_requested(directory: Path, options: object) -> None:
    with pytest.raises(StoreError, match="no store"):
        Database.open(directory, options)  # type: ignore[arg-type]
    assert not directory.exists()
    directory.mkdir(mode=0o700)
    with pytest.raises(StoreError, match="no store"):
        Database.open(directory, options)  # type: ignore[arg-type]
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", [".", "..", "inner/.."])
def test_a_store_is_found_by_any_name_of_its_directory(
    directory: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Database.open(directory, SMALL).close()
    inner = directory / "inner"
    inner.mkdir(mode=0o700)
    monkeypatch.chdir(inner if name == ".." else directory)
    database = Database.open(Path(name), SMALL)
    assert database.directory == directory.resolve()
    database.close()


# A second opener


@pytest.fixture
def names(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every way to name the directory of an open store."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return [database.directory, link / "store", Path("store"), Path("store/../store")]


@pytest.mark.parametrize("reads", [False, True])
def test_a_second_opener_in_this_process_is_refused_before_it_writes(
    database: Database, names: list[Path], reads: bool
) -> None:
    before = pictures(database.directory)
    for name in names:
        assert refusal(name, read_only=reads) is StoreLocked
    assert pictures(database.directory) == before


@pytest.mark.parametrize("reads", [False, True])
def test_a_second_opener_in_another_process_is_refused_before_it_writes(
    database: Database, names: list[Path], reads: bool
) -> None:
    before = pictures(database.directory)
    assert refused_in_another_process(names[1], read_only=reads) == "StoreLocked"
    assert pictures(database.directory) == before


def test_removing_lock_files_does_not_admit_a_second_opener(database: Database) -> None:
    (database.directory / "LOCK").unlink()
    assert refusal(database.directory) is StoreLocked
    assert refused_in_another_process(database.directory) == "StoreLocked"


def test_a_closed_store_can_be_opened_again_at_once(directory: Path) -> None:
    for _ in range(3):
        Database.open(directory, SMALL).close()


def test_a_refused_opener_leaves_the_lock_free(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    layout = (directory / LAYOUT_FILE).read_bytes()
    (directory / LAYOUT_FILE).write_bytes(b"kvstream store\nlayout 999\n")
    assert refusal(directory) is UnknownLayout
    (directory / LAYOUT_FILE).write_bytes(layout)
    assert refusal(directory) is None


# What is not ours


def test_a_link_is_not_followed_to_a_store(directory: Path, tmp_path: Path) -> None:
    Database.open(directory, SMALL).close()
    link = tmp_path / "link"
    link.symlink_to(directory, target_is_directory=True)
    assert refusal(link) is UnsafeDirectory
    assert refusal(link, read_only=True) is UnsafeDirectory


@pytest.mark.parametrize("name", ["CURRENT", "000001.sst", "000002.log", "WATERMARK", "KVSTREAM"])
def test_a_link_among_the_files_is_refused(directory: Path, tmp_path: Path, name: str) -> None:
    Database.open(directory, SMALL).close()
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to(tmp_path / "elsewhere")
    assert refusal(directory) is UnsafeDirectory
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_write_to_is_refused(directory: Path, mode: int) -> None:
    Database.open(directory, SMALL).close()
    directory.chmod(mode)
    assert refusal(directory) is UnsafeDirectory


def test_a_file_that_others_write_to_is_refused(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    (directory / "CURRENT").chmod(0o666)
    assert refusal(directory) is UnsafeDirectory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "CURRENT"])
def test_files_of_another_user_are_refused(directory: Path, name: str) -> None:
    Database.open(directory, SMALL).close()
    os.chown(directory / name, NOT_ROOT, NOT_ROOT)
    assert refusal(directory) is UnsafeDirectory


@pytest.mark.parametrize("name", ["notes.txt", "CURRENT", "MANIFEST-000001", ".hidden"])
def test_a_directory_with_foreign_files_is_not_touched(directory: Path, name: str) -> None:
    directory.mkdir(mode=0o700)
    (directory / name).write_bytes(b"theirs")
    assert refusal(directory) is UnsafeDirectory
    assert contents(directory) == {name: b"theirs"}


def test_an_empty_volume_with_its_lost_and_found_becomes_a_store(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "lost+found").mkdir(mode=0o700)
    assert refusal(directory) is None


def test_a_file_is_no_directory(directory: Path) -> None:
    directory.write_bytes(b"")
    assert refusal(directory) is UnsafeDirectory


class Marker:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


PICKLING = """
import sys
from rocksdict import Options, Rdict
sys.path.insert(0, {root!r})
from tests.storage.test_directory import Marker
rows = Rdict({directory!r}, Options(raw_mode=False))
rows["key"] = Marker({marker!r})
rows.close()
"""


@pytest.mark.parametrize("disguised", [False, True])
def test_a_foreign_store_of_pickles_runs_no_code(
    directory: Path, tmp_path: Path, disguised: bool
) -> None:
    marker = tmp_path / "marker"
    program = PICKLING.format(root=ROOT, directory=str(directory), marker=str(marker))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    directory.chmod(0o700)
    assert json.loads((directory / "rocksdict-config.json").read_bytes())["raw_mode"] is False
    if disguised:
        (directory / LAYOUT_FILE).write_bytes(b"kvstream store\nlayout 1\n")
        watermark.Watermark.create(directory, 0)
        with pytest.raises(Corruption, match="comparator"):
            Database.open(directory, SMALL)
    else:
        assert refusal(directory) is UnsafeDirectory
    assert not marker.exists()
    pickle.loads(pickle.dumps(Marker(marker)))
    assert marker.exists()  # unpickling it would have created the marker


# Layouts


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"kvstream store\nlayout 4\n", UnknownLayout),
        (b"kvstream store\nlayout 0\n", UnknownLayout),
        (b"kvstream store\nlayout one\n", Corruption),
        (b"kvstream store\n", Corruption),
        (b"", Corruption),
    ],
)
def test_a_store_of_another_layout_is_refused_before_any_write(
    directory: Path, text: bytes, error: type[KVStreamError]
) -> None:
    Database.open(directory, SMALL).close()
    (directory / LAYOUT_FILE).write_bytes(text)
    before = pictures(directory)
    assert refusal(directory) is error
    assert refusal(directory, read_only=True) is error
    assert refusal(directory, accept_loss=True) is error
    assert pictures(directory) == before


def of_layout_1(directory: Path) -> Path:
    """Make a store that an older kvstream may have written; return its layout file."""
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    database.close()
    layout = directory / LAYOUT_FILE
    layout.write_bytes(b"kvstream store\nlayout 1\n")
    return layout


def test_older_code_refuses_a_store_once_this_code_may_have_written_to_it(directory: Path) -> None:
    layout = of_layout_1(directory)
    Database.open(directory, READER).close()
    assert layout.read_bytes() == b"kvstream store\nlayout 1\n"
    number = layout.stat().st_ino
    database = Database.open(directory, SMALL)
    try:
        assert layout.read_bytes() == b"kvstream store\nlayout 3\n"
        assert layout.stat().st_ino == number  # processes that share the store hold a lock on it
        assert len(keys(database)) == 10
    finally:
        database.close()


def test_a_copy_by_links_keeps_its_layout(directory: Path, tmp_path: Path) -> None:
    of_layout_1(directory)
    copy = linked(directory, tmp_path / "copy")
    Database.open(directory, SMALL).close()
    assert (directory / LAYOUT_FILE).read_bytes() == b"kvstream store\nlayout 3\n"
    assert (copy / LAYOUT_FILE).read_bytes() == b"kvstream store\nlayout 1\n"


def test_the_layout_of_a_refused_store_stays(directory: Path) -> None:
    layout = of_layout_1(directory)
    (directory / watermark.FILE_NAME).unlink()
    assert refusal(directory) is LostWrites
    assert layout.read_bytes() == b"kvstream store\nlayout 1\n"
    assert refusal(directory, accept_loss=True) is None
    assert layout.read_bytes() == b"kvstream store\nlayout 3\n"
    [kept] = directory.glob("before-recovery-*")
    assert (kept / LAYOUT_FILE).read_bytes() == b"kvstream store\nlayout 1\n"


# Reading only


def test_a_reader_sees_the_rows_and_writes_nothing(directory: Path) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    database.close()
    before = pictures(directory)
    reader = Database.open(directory, READER)
    assert len(keys(reader)) == 10
    batch = Batch(reader)
    batch.put(0, b"key", b"value")
    for write in (lambda: reader.write(batch), reader.flush, reader.flush_wal):
        with pytest.raises(StoreReadOnly):
            write()
    reader.close()
    assert pictures(directory) == before


def test_a_reader_sees_the_rows_that_a_crash_left_in_the_log(
    database: Database, tmp_path: Path
) -> None:
    put_one_by_one(database, range(10))
    crashed = as_killed(database.directory, tmp_path / "crashed")
    before = contents(crashed)
    reader = Database.open(crashed, READER)
    assert len(keys(reader)) == 10
    reader.close()
    assert contents(crashed) == before


def test_readers_share_a_store_and_keep_writers_out(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    first = Database.open(directory, READER)
    second = Database.open(directory, READER)
    assert refusal(directory) is StoreLocked
    first.close()
    assert refusal(directory) is StoreLocked
    second.close()
    assert refusal(directory) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_reader_needs_no_writable_file_system(directory: Path, tmp_path: Path) -> None:
    database = Database.open(directory, SMALL)
    put(database, {b"key": b"value"})
    database.close()
    mounted = tmp_path / "mounted"
    mounted.mkdir(mode=0o700)
    bound = subprocess.run(["mount", "--bind", str(directory), str(mounted)], capture_output=True)
    if bound.returncode:
        pytest.skip(f"cannot mount here: {bound.stderr.decode().strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(mounted)], check=True)
        reader = Database.open(mounted, READER)
        assert reader.get(0, b"key") == b"value"
        reader.close()
        with pytest.raises(StoreError, match="Read-only file system"):
            Database.open(mounted, SMALL)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


# What is no regular file


def special(path: Path, kind: str) -> None:
    """Replace a path with a file that is not regular."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "directory":
        path.mkdir(0o700)
    else:
        path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "link"])
@pytest.mark.parametrize("name", ["KVSTREAM", "WATERMARK", "CURRENT", "000999.log", "000998.sst"])
@pytest.mark.parametrize("reads", [False, True], ids=["to write", "to read"])
def test_a_file_that_is_not_regular_is_refused_at_once(
    directory: Path, name: str, kind: str, reads: bool
) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(3))
    database.close()
    special(directory / name, kind)
    with pytest.raises(UnsafeDirectory, match=f"{name} is a .*{kind}"):
        Database.open(directory, replace(SMALL, read_only=reads))


@pytest.mark.parametrize("name", ["KVSTREAM.partial", "WATERMARK.partial", "KVSTREAM"])
def test_a_pipe_in_place_of_a_new_store_is_refused(directory: Path, name: str) -> None:
    directory.mkdir(0o700)
    special(directory / name, "pipe")
    with pytest.raises(UnsafeDirectory, match=f"{name} is a named pipe"):
        Database.open(directory, SMALL)


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
def test_files_that_the_store_does_not_open_may_be_of_any_type(directory: Path, kind: str) -> None:
    Database.open(directory, SMALL).close()
    special(directory / "kvstream.sock", kind)
    assert refusal(directory) is None


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory", "link"])
def test_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    special(tmp_path / "file", kind)
    with pytest.raises(OSError, match="file"):
        files.read(tmp_path / "file")


def test_a_pipe_in_place_of_a_served_address_is_no_address(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    special(server_address.folder_of(directory) / "server", "pipe")
    assert server_address.read(directory) is None


# A directory that Kubernetes has given to a group


def mounted_with_fs_group(directory: Path) -> None:
    """Change permissions as kubelet does at a mount with ``fsGroup``."""
    for at, _, names in os.walk(directory):
        os.chmod(at, 0o2770)
        for name in names:
            os.chmod(os.path.join(at, name), 0o660)


def loose(directory: Path) -> list[Path]:
    """Return what others than the owner have permissions for."""
    found = [directory, *directory.rglob("*")]
    return [path for path in found if path.stat().st_mode & 0o077]


def test_a_store_that_a_group_can_write_to_is_refused_with_advice(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    mounted_with_fs_group(directory)
    for options in (SMALL, READER):
        with pytest.raises(UnsafeDirectory, match=r"fsGroupChangePolicy.*|trust_group"):
            Database.open(directory, options)


def test_a_trusted_group_loses_its_permissions_at_an_opening_for_writing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(10))
    (database.staging() / "left.sst").touch()
    server_address.write(directory, server_address.Address("redis://127.0.0.1:1", "new"))
    database.close()
    mounted_with_fs_group(directory)
    assert refusal(directory, read_only=True, trust_group=True) is None
    assert loose(directory)
    database = Database.open(directory, replace(SMALL, trust_group=True))
    assert len(keys(database)) == 10
    database.close()
    assert loose(directory) == []
    emit_deferred()
    assert f"the group of {directory} could write to it" in caplog.text
    caplog.clear()
    assert refusal(directory, trust_group=True) is None
    emit_deferred()
    assert caplog.text == ""


def test_others_than_the_group_are_never_trusted(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    (directory / "CURRENT").chmod(0o666)
    assert refusal(directory, trust_group=True) is UnsafeDirectory
    (directory / "CURRENT").chmod(0o600)
    directory.chmod(0o702)
    assert refusal(directory, trust_group=True) is UnsafeDirectory


# Copies by hard links


def linked(source: Path, target: Path) -> Path:
    """Copy a store as ``cp -al`` does."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def torn_off(database: Database, target: Path) -> Path:
    """Copy an open store as a crash would leave it: with a log to recover from."""
    database.flush_wal()
    return as_killed(database.directory, target)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "after a crash"])
@pytest.mark.parametrize("writes_to", ["copy", "original"])
def test_a_copy_by_links_and_its_original_do_not_change_each_other(
    directory: Path, tmp_path: Path, writes_to: str, closed: bool
) -> None:
    database = Database.open(tmp_path / "made", SMALL)
    put_one_by_one(database, range(100))
    torn_off(database, directory)
    database.close()
    if closed:
        Database.open(directory, SMALL).close()
    other = linked(directory, tmp_path / "copy")
    written, left = (other, directory) if writes_to == "copy" else (directory, other)
    before = contents(left)
    for numbers in (range(100, 3000), range(3000, 6000)):
        database = Database.open(written, SMALL)
        put_one_by_one(database, numbers)
        database.flush_wal()
        database.compact()
        database.close()
    assert contents(left) == before
    for path, count in ((left, 100), (written, 6000)):
        database = Database.open(path, SMALL)
        assert len(keys(database)) == database.verify() == count
        database.close()


def test_a_copy_by_links_and_its_original_are_open_together(
    directory: Path, tmp_path: Path
) -> None:
    database = Database.open(directory, SMALL)
    put_one_by_one(database, range(100))
    database.close()
    stores = [Database.open(path, SMALL) for path in (linked(directory, tmp_path / "c"), directory)]
    try:
        for number, store in enumerate(stores):
            put_one_by_one(store, range(100, 110 + number))
            store.flush_wal()
            assert len(keys(store)) == 110 + number
    finally:
        for store in stores:
            store.close()
    assert refused_in_another_process(directory) == "None"


OUTLIVED = """
import logging, sys
from pathlib import Path
from kvstream.storage.database import Database
from tests.storage.stores import SMALL, put_one_by_one
logging.basicConfig()
database = Database.open(Path(sys.argv[1]), SMALL)
put_one_by_one(database, range(100, 200))
print(flush=True)
sys.stdin.readline()
database.close()
"""


@pytest.mark.parametrize("again", [True, False])
def test_a_store_with_a_replaced_directory_closes_without_writing_to_the_new_one(
    directory: Path, again: bool
) -> None:
    program = [sys.executable, "-c", OUTLIVED, str(directory)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(program, cwd=ROOT, text=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        shutil.rmtree(directory)
        if again:
            database = Database.open(directory, SMALL)
            put_one_by_one(database, range(10))
            database.close()
            before = {each: each.stat().st_mtime_ns for each in directory.iterdir()}
        _, errors = process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == 0
    assert f"{directory} was removed or replaced while it was open" in errors
    assert directory.exists() is again
    if again:
        assert {each: each.stat().st_mtime_ns for each in directory.iterdir()} == before
        database = Database.open(directory, SMALL)
        assert len(keys(database)) == 10
        database.close()
