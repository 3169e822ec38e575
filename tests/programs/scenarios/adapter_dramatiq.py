"""The conftest.py of dramatiq's own tests, which its source distribution lacks."""

import os

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.rate_limits.backends import RedisBackend as RedisRateLimiterBackend
from dramatiq.results.backends import RedisBackend
from redis import Redis

from kvstream.adapters.dramatiq import KVStreamBackend, KVStreamBroker, KVStreamRateLimiterBackend

PORT = int(os.environ["REDIS_PORT"])
ON_KVSTREAM = os.environ["ADAPTER"] == "kvstream"
URL = f"redis://127.0.0.1:{PORT}"


@pytest.fixture(autouse=True)
def empty():
    Redis(port=PORT).flushall()


def served(broker):
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_broker():
    yield from served(StubBroker())


@pytest.fixture
def redis_broker():
    yield from served(KVStreamBroker(URL) if ON_KVSTREAM else RedisBroker(url=URL))


def working(broker):
    worker = Worker(broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def stub_worker(stub_broker):
    yield from working(stub_broker)


@pytest.fixture
def redis_worker(redis_broker):
    yield from working(redis_broker)


@pytest.fixture
def result_backend():
    return KVStreamBackend(URL) if ON_KVSTREAM else RedisBackend(url=URL)


@pytest.fixture
def redis_result_backend(result_backend):
    return result_backend


@pytest.fixture
def rate_limiter_backend():
    return KVStreamRateLimiterBackend(URL) if ON_KVSTREAM else RedisRateLimiterBackend(url=URL)
