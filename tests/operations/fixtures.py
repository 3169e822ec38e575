"""Fixtures that start the implementations under comparison."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.operations.implementations import Kvstream, RedisServer


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """Start a real redis-server; without one skip the test, or fail it if skips are forbidden."""
    if shutil.which("redis-server") is None:
        if os.environ.get("KVSTREAM_REQUIRE_ALL") == "1":
            pytest.fail("redis-server is required here: apt-get install redis-server")
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvstream]:
    """Open one store for all cases: opening one takes longer than most of them."""
    store = Kvstream(tmp_path_factory.mktemp("kvstream"))
    yield store
    store.close()
