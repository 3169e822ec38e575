"""kombu's tests for all transports, run on the adapter or on kombu's transport for Redis."""

import os
from contextlib import suppress

import kombu
import pytest
from redis import Redis
from t.integration.common import (
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

import kvstream.adapters.kombu

assert kvstream.adapters.kombu.Transport
PORT = int(os.environ["REDIS_PORT"])
ON_KVSTREAM = os.environ["ADAPTER"] == "kvstream"
SCHEME = "kvstream+redis" if ON_KVSTREAM else "redis"
URL, NOBODY = f"{SCHEME}://127.0.0.1:{PORT}", f"{SCHEME}://127.0.0.1:1"


class Draining(kombu.Connection):
    """A connection that receives all messages at once, as the tests of priorities expect."""

    def drain_events(self, **options):
        super().drain_events(**options)
        with suppress(TimeoutError):
            while True:
                super().drain_events(timeout=0.1)


@pytest.fixture(autouse=True)
def empty():
    Redis(port=PORT).flushall()


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(NOBODY, connect_timeout=1)


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"{NOBODY};{URL}")


class TestFunctionality(BasicFunctionality):
    pass


class TestExchanges(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestFailover(BaseFailover):
    pass


class TestMessage(BaseMessage):
    pass


class TestPriority(BasePriority):
    PRIORITY_ORDER = "asc" if ON_KVSTREAM else "desc"

    @pytest.fixture
    def connection(self):
        return Draining(URL)
