"""An archive without space: it is named, what is there can be restored, and it is followed again.

A folder on a small file system, and an S3 server with one small volume.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from kvstream import Store
from kvstream.archive import archiver, objects, restore
from kvstream.archive.objects import open_objects
from kvstream.archive.verify import verify
from kvstream.errors import ArchiveUnavailable, UnknownOutcome
from kvstream.types.options import Durability
from tests.archive import seaweed as servers
from tests.archive.conftest import all_rows, rows_in, wait_archived
from tests.archive.seaweed import Seaweed
from tests.patience import until
from tests.storage.test_failing_disk import mounted


class Space(Protocol):
    """An archive of which the space can be taken."""

    url: str
    reason: str
    """What an error says, as a pattern."""

    def fill(self, left: int = 0) -> None:
        """Take all space but for some bytes."""

    def free(self) -> None:
        """Give space back."""


class SmallDisk:
    """A folder on a file system of some megabytes."""

    reason = r"cannot write .*/log/[0-9a-f]{16}.*No space left on device"

    def __init__(self, disk: Path) -> None:
        self.url = f"file://{disk}/bucket"
        self._filler = disk / "filler"

    def fill(self, left: int = 0) -> None:
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(self._filler, self._filler.stat().st_size - left)

    def free(self) -> None:
        self._filler.unlink()


class SmallServer:
    """A server whose one volume is full; it takes more when it is started again."""

    reason = r"cannot put log/[0-9a-f]{16}.*500 Internal Server Error: InternalError: We enc"
    url = "s3://kvstream/orders"

    def __init__(self, server: Seaweed) -> None:
        self._server = server

    def fill(self, left: int = 0) -> None:
        until(lambda: not self._is_taken(500_000), "the volume to be full", look_s=0.1)

    def free(self) -> None:
        self._server.kill()
        self._server.grow(10)
        self._server.start()
        until(lambda: self._is_taken(1), "the server to have space", look_s=0.1)

    def _is_taken(self, size: int) -> bool:
        """Return whether the server takes an object of some bytes."""
        try:
            return open_objects("s3://kvstream/filler").create(uuid4().hex, os.urandom(size))
        except ArchiveUnavailable:
            return False


@pytest.fixture
def space(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Space]:
    monkeypatch.setattr(objects, "RETRY_S", 0.1)
    monkeypatch.setattr(archiver, "BACKOFF_MAX_S", 0.1)
    if request.param == "a small disk":
        with mounted(tmp_path, "size=8m") as disk:
            yield SmallDisk(disk)
        return
    missing = servers.is_missing()
    if missing is not None:
        pytest.skip(missing)
    (tmp_path / "seaweed").mkdir()
    server = Seaweed(tmp_path / "seaweed", volumes=1, volume_mb=1)
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("kvstream")
        yield SmallServer(server)
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("space", "level"),
    [
        ("a small disk", Durability.ARCHIVE),
        ("a small disk", Durability.EVERYSEC),
        ("a small server", Durability.ARCHIVE),
    ],
    indirect=["space"],
)
def test_a_full_bucket_is_named_and_followed_again(
    tmp_path: Path, space: Space, monkeypatch: pytest.MonkeyPatch, level: Durability
) -> None:
    with Store.open(
        tmp_path / "data", archive=space.url, durability=level, archive_interval_s=0.01
    ) as store:
        status, orders = store.engine.archiving.archiver.status, store.stream("orders")
        orders.add({"n": "1"})
        wait_archived(store)
        archived = all_rows(store)
        space.fill()
        with monkeypatch.context() as patched:
            patched.setattr(archiver, "TIMEOUT_S", 0.3)
            if level is Durability.ARCHIVE:
                with pytest.raises(UnknownOutcome, match=space.reason):
                    orders.add({"n": "2"})
            else:
                orders.add({"n": "2"})
        until(lambda: status().state == "unreachable")
        assert re.search(space.reason, status().error)
        restore.restore(space.url, tmp_path / "old")
        assert rows_in(tmp_path / "old") == archived
        with pytest.raises(ArchiveUnavailable, match=space.reason):
            Store.open(tmp_path / "new", archive=space.url, take_over=True)
        assert not (tmp_path / "new").exists()
        space.free()
        until(lambda: status().state == "follows" and not status().behind_s)
        orders.add({"n": "3"})
        wait_archived(store)
        expected = all_rows(store)
    restore.restore(space.url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    assert verify(open_objects(space.url)).faults == []


@pytest.mark.parametrize("space", ["a small disk"], indirect=True)
def test_an_opening_names_the_full_bucket(tmp_path: Path, space: Space) -> None:
    with Store.open(tmp_path / "data", archive=space.url) as store:
        store.stream("orders").add({"n": "1"})
    space.fill()
    for _ in range(2):
        with pytest.raises(ArchiveUnavailable, match=space.reason):
            Store.open(tmp_path / "data", archive=space.url)
    space.free()
    with Store.open(tmp_path / "data", archive=space.url) as store:
        store.stream("orders").add({"n": "2"})
        expected = all_rows(store)
    restore.restore(space.url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.parametrize("space", ["a small disk"], indirect=True)
def test_a_snapshot_without_space_is_tried_again(tmp_path: Path, space: Space) -> None:
    """Pieces that have space go on meanwhile, and lead to the end."""
    with Store.open(tmp_path / "data", archive=space.url, archive_interval_s=60) as store:
        ours, orders = store.engine.archiving.archiver, store.stream("orders")
        for _ in range(20):
            orders.add({"v": os.urandom(100_000)})
        wait_archived(store)
        store.engine.flush()
        space.fill(left=100_000)
        ours._try_snapshot()
        assert re.search(r"cannot write .*tables/.*No space left", ours.status().snapshot_error)
        orders.add({"n": "more"})
        wait_archived(store)
        expected = all_rows(store)
        restore.restore(space.url, tmp_path / "before")
        assert rows_in(tmp_path / "before") == expected
        space.free()
        ours._try_snapshot()
        assert (ours.status().snapshot_error, len(ours._snapshots)) == ("", 2)
    restore.restore(space.url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    assert not list(tmp_path.rglob("*.partial"))
