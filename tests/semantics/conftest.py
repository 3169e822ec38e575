"""The subject of a case: one of the implementations, empty and with Redis's configuration."""

from collections.abc import Iterator

import pytest

from tests.semantics.fixtures import redis_server
from tests.semantics.implementations import CONFIGURATION, START_MS, Kvstream, Model, Subject

__all__ = ["redis_server"]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvstream]:
    """One store for all cases: opening one takes longer than most of them."""
    store = Kvstream(tmp_path_factory.mktemp("kvstream"))
    yield store
    store.close()


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The implementation that the case is told of; a store is checked afterwards."""
    if request.param == "model":
        yield Model()
        return
    fixture = "opened" if request.param == "kvstream" else "redis_server"
    subject: Subject = request.getfixturevalue(fixture)
    subject("FLUSHALL")
    for name, value in CONFIGURATION.items():
        subject("CONFIG", "SET", name, value)
    subject.clock.ms = START_MS
    yield subject
    if isinstance(subject, Kvstream):
        assert subject.faults() == []
