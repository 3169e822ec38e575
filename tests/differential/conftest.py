"""Fixtures of the differential tests."""

from collections.abc import Iterator

import pytest

from kvstream import Store
from tests.operations.fixtures import opened, redis_server
from tests.peers import NEWER_PEERS, PeerProcess
from tests.pieces import small_pieces
from tests.server.conftest import redis_process
from tests.serving import ServerProcess

__all__ = ["opened", "redis_process", "redis_server"]


@pytest.fixture(autouse=True, scope="module")
def pieces() -> Iterator[None]:
    """Store the short strings of this process in both forms."""
    with small_pieces(whole=1):
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A serving process for all conversations; its store is checked after them."""
    server = ServerProcess(tmp_path_factory.mktemp("served") / "store", "--durability", "no")
    yield server
    server.stop()
    with Store.open(server.directory) as store:
        assert store.check() == []


@pytest.fixture
def ports(served: ServerProcess, redis_process: int) -> tuple[int, int]:
    """The ports of kvstream and of redis-server."""
    return served.port, redis_process


@pytest.fixture(scope="module", params=NEWER_PEERS)
def newer_peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    """A newer server: its name, and its port."""
    process = PeerProcess(request.param, tmp_path_factory.mktemp(request.param))
    yield request.param, process.port
    process.stop()
