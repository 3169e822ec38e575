"""An archive in a folder, and what tests compare: all rows of a store."""

import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver, merging, objects
from kvstream.archive.archiver import Archiver
from kvstream.archive.objects import open_objects
from kvstream.storage.batch import Family
from tests.archive import seaweed as servers
from tests.archive.seaweed import Seaweed

Rows = list[list[tuple[bytes, bytes]]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the commits, and merge pieces, more often than in production.

    And race two creations at an opening: SeaweedFS lets eight wait for whole seconds.
    """
    monkeypatch.setattr(objects, "PROBES", 2)
    monkeypatch.setattr(archiver, "SAMPLE_S", 0.01)
    monkeypatch.setattr(merging, "LEVELS", (4, 16))
    monkeypatch.setattr(merging, "DELAY_S", 0.05)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge nothing but what a test merges."""
    monkeypatch.setattr(Archiver, "_start_merging", lambda _: None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an archive that is empty."""
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return its folder."""
    return tmp_path / "bucket"


_prefixes = count()
VOLUMES_S = 30.0


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server; without its program the test skips, or fails where none may."""
    missing = servers.is_missing()
    if missing is not None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.kill()


@pytest.fixture
def seaweed(seaweed_server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The server, and the environment by which it is reached."""
    for name, value in seaweed_server.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed_server


@pytest.fixture
def bucket_url(seaweed: Seaweed) -> str:
    """The URL of an empty archive in a bucket."""
    seaweed.make_bucket("kvstream")
    url = f"s3://kvstream/{next(_prefixes)}/orders"
    _wait_for_volumes(f"{url}-before")
    return url


def _wait_for_volumes(url: str) -> None:
    """Wait until creations are quick: a new server makes volumes, and some wait for seconds."""
    store, until, quick = open_objects(url), time.monotonic() + VOLUMES_S, 0
    while quick < 3 and time.monotonic() < until:
        begun = time.monotonic()
        store.create(f"probes/{next(_prefixes)}", b"")
        quick = quick + 1 if time.monotonic() - begun < 0.2 else 0


def all_rows(store: Store) -> Rows:
    """Return all rows of a store."""
    return [list(store.engine.database.scan(family, b"", b"\xff" * 64)) for family in Family]


def rows_in(directory: Path) -> Rows:
    """Return all rows of the store in a directory, which must be sound."""
    with Store.open(directory) as store:
        assert store.check() == []
        return all_rows(store)


def wait_archived(store: Store) -> None:
    """Put what is written into the archive."""
    store.engine.archiving.archiver.ship()


def numbers(folder: Path) -> Iterator[int]:
    """Yield the numbers of the objects in a folder of the bucket."""
    yield from sorted(int(path.name, 16) for path in folder.iterdir())
