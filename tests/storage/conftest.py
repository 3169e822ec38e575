"""Fixtures of the storage tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.storage.database import Database
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.folders import on_disk
from tests.storage.stores import SMALL

__all__ = ["fault_library", "faulty_disk", "on_disk"]


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """A folder for each test, on a disk."""
    return on_disk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a store to create."""
    return tmp_path / "store"


@pytest.fixture
def database(directory: Path) -> Iterator[Database]:
    """An empty store with small buffers."""
    opened = Database.open(directory, SMALL)
    yield opened
    opened.close()
