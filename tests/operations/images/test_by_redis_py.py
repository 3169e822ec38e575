"""redis-py moves keys between servers: from Redis to kvstream and back."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvstream import Store
from tests.server.conftest import redis_process
from tests.serving import ServerProcess

__all__ = ["redis_process"]


@pytest.fixture
def theirs(redis_process: int) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_process) as client:
        client.flushall()
        client.config_set("rdbcompression", "yes")
        yield client
        client.flushall()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[redis.Redis]:
    server = ServerProcess(tmp_path / "store", "--durability", "no")
    with redis.Redis(port=server.port) as client:
        yield client
    server.stop()
    with Store.open(server.directory) as store:
        assert store.check() == []


def fill(client: redis.Redis) -> None:
    """Make streams of many kinds, a string, and keys that expire."""
    for n in range(3000):
        client.xadd("long", {"sensor": n % 7, "value": f"{n * 31}"}, id=f"{n // 3 + 1}-{n % 3}")
    client.xadd("empty", {"f": "v"})
    client.xtrim("empty", maxlen=0)
    for group in ("7", "billing"):
        client.xgroup_create("long", group, "0")
        for consumer in ("-12", "worker"):
            client.xreadgroup(group, consumer, {"long": ">"}, count=300)
    client.xdel("long", "1-0", "1-1", "50-0")
    client.xgroup_createconsumer("long", "billing", "idle")
    client.set("word", "12345", px=4_000_000)
    client.expire("empty", 4000)


def description(client: redis.Redis, key: str) -> object:
    info = client.xinfo_stream(key, full=True)
    return [info[name] for name in ("length", "last-generated-id", "entries-added", "groups")], (
        client.xrange(key),
        [client.xpending_range(key, group["name"], "-", "+", 9999) for group in info["groups"]],
    )


def same_pending(found: object) -> str:
    """Return the description of a key, without the idle times of entries."""
    return re.sub(r"'time_since_delivered': \d+", "", repr(found))


def test_keys_survive_the_way_there_and_back(theirs: redis.Redis, ours: redis.Redis) -> None:
    fill(theirs)
    before = {key: same_pending(description(theirs, key)) for key in ("long", "empty")}
    for key in theirs.keys("*"):
        payload, ttl = theirs.dump(key), max(0, theirs.pttl(key))
        assert ours.restore(key, ttl, payload or b"")
        assert abs(ours.pttl(key) - theirs.pttl(key)) < 60_000
    theirs.flushall()
    for key in ours.keys("*"):
        ours.config_set("dump-target", "redis:7.0")
        assert theirs.restore(key, max(0, ours.pttl(key)), ours.dump(key) or b"")
    assert {key: same_pending(description(theirs, key)) for key in before} == before
    assert theirs.get("word") == b"12345"
    assert ours.dump("missing") is None
    with pytest.raises(redis.ResponseError, match="BUSYKEY Target key name already exists"):
        ours.restore("word", 0, theirs.dump("word") or b"")
