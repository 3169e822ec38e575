"""Tables are hashed once, and pass through memory in parts."""

import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import restore, tables
from kvstream.archive.keys import VARIABLE
from kvstream.archive.objects import open_objects
from kvstream.archive.tables import Digests
from kvstream.errors import ArchiveUnavailable, Corruption
from tests.archive.conftest import rows_in, wait_archived

ROOT = Path(__file__).parents[2]
LARGE_MB = 96
MEMORY_MB = 48
"""How much more memory a process may need with a table of LARGE_MB."""


def put_snapshot(store: Store, name: str) -> None:
    """Put a snapshot with a table for a new entry."""
    store.stream("orders").add({"n": name})
    store.engine.flush()
    wait_archived(store)
    store.engine.archiving.archiver._snapshot()


def hashed_by_opening(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Open the store, put a snapshot, and return how many tables were hashed for it."""
    names: list[str] = []
    with monkeypatch.context() as patched:

        def counted(file: BufferedReader, kind: str) -> object:
            names.append(file.name)
            return file_digest(file, kind)

        patched.setattr(tables, "file_digest", counted)
        with Store.open(tmp_path / "data", archive=url) as store:
            put_snapshot(store, "more")
    return len(names)


def test_an_opening_hashes_new_tables_alone(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        for number in range(3):
            put_snapshot(store, str(number))
    known = tmp_path / "data" / tables.FILE_NAME
    count = len(Digests(tmp_path / "data")._known)
    assert count > 3
    new = hashed_by_opening(tmp_path, url, monkeypatch)
    assert 0 < new < count
    for content in (b"", b"{", b"[1]", b'{"000012.sst": [1]}', b'{"000012.sst": 1}'):
        known.write_bytes(content)
        assert hashed_by_opening(tmp_path, url, monkeypatch) > new
        assert hashed_by_opening(tmp_path, url, monkeypatch) <= new + 1
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == rows_in(tmp_path / "data")


def test_a_table_that_the_archive_has_lost_is_put_again(
    tmp_path: Path, url: str, bucket: Path
) -> None:
    with Store.open(tmp_path / "data", archive=url) as store:
        put_snapshot(store, "1")
        for path in (bucket / "tables").iterdir():
            path.unlink()
        put_snapshot(store, "2")
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == rows_in(tmp_path / "data")


def test_another_file_of_the_same_name_is_hashed(tmp_path: Path) -> None:
    path = tmp_path / "000001.sst"
    digests = Digests(tmp_path)
    path.write_bytes(b"one")
    first = digests.of(path)
    status = path.stat()
    path.write_bytes(b"two")
    second = digests.of(path)
    path.unlink()
    (tmp_path / "other").write_bytes(b"six")
    (tmp_path / "other").rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len({first, second, digests.of(path)}) == 3
    digests.save(tmp_path)
    assert Digests(tmp_path)._known == digests._known


def test_a_table_that_the_disk_has_damaged_is_not_put(tmp_path: Path, url: str) -> None:
    path, objects = tmp_path / "000001.sst", open_objects(url)
    digests = Digests(tmp_path)
    path.write_bytes(b"x" * 3_000_000)
    digest, status = digests.of(path), path.stat()
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"y")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.of(path) == digest, "it looks the same"
    with pytest.raises(Corruption, match=r"000001\.sst is not what it was"):
        objects.upload("tables/one", digests.read(path))
    assert list(objects.chunks("tables/one")) == []
    assert list(objects.list("tables/")) == []
    assert digests.of(path) != digest


def fail_in_the_middle() -> Iterator[bytes]:
    for number in range(40):
        if number == 30:
            raise ArchiveUnavailable("the store is being closed")
        yield bytes(1 << 20)


def test_an_upload_that_fails_leaves_nothing(bucket_url: str) -> None:
    objects = open_objects(bucket_url)
    with pytest.raises(ArchiveUnavailable, match="is being closed"):
        objects.upload("tables/one", fail_in_the_middle())
    assert list(objects.list("tables/")) == []


MEASURE = """
import os, sys
from hashlib import sha256
from kvstream.archive.keys import VARIABLE
from kvstream.archive.objects import open_objects

def peak():
    with open("/proc/self/status") as status:  # ru_maxrss would begin with that of the parent
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10

objects, size = open_objects(sys.argv[1]), int(sys.argv[2])
objects.create("one", b"1")
block, sent, got = os.urandom(1 << 20), sha256(), sha256()
before = peak()

def parts():
    for _ in range(size):
        sent.update(block)
        yield block

objects.upload("tables/large", parts())
for part in objects.chunks("tables/large"):
    got.update(part)
assert got.digest() == sent.digest()
print(peak() - before)
"""


@pytest.mark.parametrize("key", ["", "ab" * 32])
@pytest.mark.parametrize("place", ["url", "bucket_url"])
def test_a_large_table_needs_little_memory(
    place: str, key: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(place)
    if key:
        monkeypatch.setenv(VARIABLE, key)
    run = [sys.executable, "-c", MEASURE, url, str(LARGE_MB)]
    shown = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(shown.stdout) < MEMORY_MB
