"""An archive in a folder, and what tests compare: all rows of a store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver
from kvstream.storage.batch import Family

Rows = list[list[tuple[bytes, bytes]]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the commits more often than in production."""
    monkeypatch.setattr(archiver, "SAMPLE_S", 0.01)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an archive that is empty."""
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return its folder."""
    return tmp_path / "bucket"


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
