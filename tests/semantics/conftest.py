"""The subject of a case: a fresh store of the implementation it names."""

from collections.abc import Iterator

import pytest

from tests.semantics.fixtures import redis_server
from tests.semantics.implementations import CONFIGURATION, Model, Subject

__all__ = ["redis_server"]


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The implementation that the case is told of, empty and with Redis's configuration."""
    if request.param == "model":
        yield Model()
    elif request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server("FLUSHALL")
        for name, value in CONFIGURATION.items():
            server("CONFIG", "SET", name, value)
        yield server
    else:
        pytest.skip("kvstream has no commands yet")
