"""Clients in this process, and the peers that one program runs against."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvstream import Store, SystemClock
from tests.inprocess.peers import Peer, closing, in_process, on_a_server
from tests.opening import Stores
from tests.server.conftest import redis_port, redis_process

__all__ = ["redis_port", "redis_process"]


@pytest.fixture
def store(open_store: Stores) -> Store:
    """An empty store with the clock of the machine, checked when the test is over."""
    return open_store(clock=SystemClock())


@pytest.fixture(params=["in process", "redis-server"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    """Where the program runs: each test with it runs once in both places."""
    if request.param == "in process":
        made = in_process(request.getfixturevalue("store"))
    else:
        made = on_a_server(request.getfixturevalue("redis_port"))
    with closing(made):
        yield made


@pytest.fixture
def here(store: Store) -> Iterator[Peer]:
    """Clients of the store in this process."""
    with closing(in_process(store)) as made:
        yield made


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


@pytest.fixture
def client(peer: Peer, protocol: int) -> Any:
    """A client of either peer, once in each protocol."""
    return peer.client(protocol=protocol)
