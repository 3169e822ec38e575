"""The subject of a case: one of the implementations, empty and with Redis's configuration."""

from collections.abc import Iterator

import pytest

from tests.operations.fixtures import opened, redis_server
from tests.operations.implementations import CONFIGURATION, START_MS, Kvstream, Model, Subject
from tests.pieces import small_pieces

__all__ = ["opened", "redis_server"]


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Return the implementation that the case runs on; a store is checked afterwards."""
    if request.param == "model":
        yield Model()
        return
    fixture = "opened" if request.param == "kvstream" else "redis_server"
    subject: Subject = request.getfixturevalue(fixture)
    subject("FLUSHALL")
    for name, value in CONFIGURATION.items():
        subject("CONFIG", "SET", name, value)
    subject.clock.ms = START_MS
    with small_pieces():  # strings of both forms, with the values of the cases
        yield subject
    if isinstance(subject, Kvstream):
        assert subject.faults() == []
