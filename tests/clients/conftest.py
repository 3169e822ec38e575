"""Two servers for real clients: kvstream in a process of its own, and redis-server beside it."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from kvstream import Store
from tests.server.conftest import redis_port, redis_process
from tests.serving import ServerProcess

__all__ = ["redis_port", "redis_process"]


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served") / "store", "--durability", "no")
    yield server
    server.stop()
    with Store.open(server.directory) as store:
        assert store.check() == []


@pytest.fixture
def port(_served: ServerProcess) -> int:
    """The port of a kvstream that holds nothing."""
    with closing(redis.Redis(port=_served.port)) as client:
        client.flushall()
        client.config_resetstat()
    return _served.port
