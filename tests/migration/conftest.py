"""Two redis-servers for all tests, emptied before each, and more on request."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.migration.servers import RedisServer, require_redis

Start = Callable[..., RedisServer]


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    require_redis()
    folder = tmp_path_factory.mktemp("redis")
    # With the same format of DUMP, the payloads can be compared byte by byte.
    servers = [RedisServer(folder / name, "--rdbcompression", "no") for name in ("one", "other")]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def source(two_servers: list[RedisServer]) -> RedisServer:
    """A redis-server without any key."""
    return _emptied(two_servers[0])


@pytest.fixture
def target(two_servers: list[RedisServer]) -> RedisServer:
    """Another redis-server without any key."""
    return _emptied(two_servers[1])


def _emptied(server: RedisServer) -> RedisServer:
    client = server.client()
    client.flushall()
    client.function_flush()
    client.config_set("proto-max-bulk-len", 512 << 20)
    for name in client.acl_users():
        if name not in (b"default", "default"):
            client.acl_deluser(name)
    return server


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Start]:
    """Start redis-servers: ``start_redis("name", "--appendonly", "yes")``."""
    require_redis()
    started: list[RedisServer] = []

    def start(name: str, *options: str) -> RedisServer:
        started.append(RedisServer(tmp_path / name, *options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder of journals for these tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "kvstream" / "migrate"


@pytest.fixture(autouse=True)
def _own_state(state: Path) -> None:
    """Write no journal to the user's default folder."""
