"""A database with its catalog, for the tests of metadata."""

from collections.abc import Iterator

import pytest

from kvstream.storage.database import Database
from kvstream.types.options import StoreOptions
from tests.meta.rows import Metadata


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One database for all tests of a module: opening one takes longer than most of them."""
    opened = Database.open(tmp_path_factory.mktemp("metadata") / "store", StoreOptions())
    yield opened
    opened.close()


@pytest.fixture
def metadata(database: Database) -> Metadata:
    """The catalog of the database, with nothing in memory yet."""
    return Metadata(database)
