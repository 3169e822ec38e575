"""Servers to measure, or a reason to skip."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from bench.processes import PeerMissing, both, require_load, require_peer


@pytest.fixture(scope="session")
def peer() -> None:
    """Skip where there is no redis-server to compare with, or fail where there must be one."""
    try:
        require_peer()
        require_load()
    except PeerMissing as missing:
        if os.environ.get("KVSTREAM_REQUIRE_ALL"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def servers(peer: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Redis]]:
    """Run kvstream and redis-server; yield their clients."""
    folder: Path = tmp_path_factory.mktemp("bench")
    with both(folder, "everysec") as (own, other):
        yield {"kvstream": own, "redis": other}


@pytest.fixture(params=["kvstream", "redis"])
def client(request: pytest.FixtureRequest, servers: dict[str, Redis]) -> Redis:
    """Return a client of one empty server."""
    found = servers[request.param]
    found.flushall()
    return found
