"""A database with its catalog, for the tests of metadata; and settings of hypothesis."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from kvstream.options import StoreOptions
from kvstream.storage.database import Database
from tests.metadata.rows import Metadata

# A machine that does other work too may stall any one example.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


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
