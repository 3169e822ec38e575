"""A commit through a server is the same as into a store: kvstream's server, and Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from kvstream.errors import IDTooSmall, WrongType
from kvstream.layout.values import encode_fields
from kvstream.spark.writing.commits import Commit
from kvstream.spark.writing.marks import Transaction
from kvstream.spark.writing.pages import StagedRows
from kvstream.spark.writing.servers import commit_through
from tests.server.conftest import Served, redis_port, redis_process
from tests.spark.staged import QUERY, rows, share

__all__ = ["redis_port", "redis_process"]


@pytest.fixture(params=["kvstream", "redis"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[redis.Redis]:
    if request.param == "redis":
        with redis.Redis(port=request.getfixturevalue("redis_port"), protocol=2) as client:
            client.flushall()
            yield client
        return
    served = Served(tmp_path / "store")
    try:
        yield served.client()
    finally:
        served.stop()


def entries(client: redis.Redis, key: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(key))


def test_rows_and_mark_are_one_transaction_that_happens_once(client: redis.Redis) -> None:
    work = Commit(QUERY, True, [share(rows(b"a", "1", "2"), rows(b"b", "x", ids=["5-1"]))])
    assert commit_through(client, work) == (True, 3, 0)
    assert commit_through(client, work) == (False, 0, 0)
    assert [fields for _, fields in entries(client, b"a")] == [{b"v": b"1"}, {b"v": b"2"}]
    assert entries(client, b"b") == [(b"5-1", {b"v": b"x"})]
    assert client.get(QUERY.key) == b"7"


def test_an_id_that_does_not_rise_refuses_all(client: redis.Redis) -> None:
    commit_through(client, Commit(QUERY, False, [share(rows(b"a", "1", ids=["5-1"]))]))
    more = share(rows(b"b", "1"), rows(b"a", "2", ids=["5-1"]))
    with pytest.raises(IDTooSmall, match="stream b'a': 5-1"):
        commit_through(client, Commit(QUERY, True, [more]))
    assert client.keys() == [b"a"]
    assert commit_through(client, Commit(QUERY, True, [more], True)) == (True, 1, 1)
    assert len(entries(client, b"b")) == 1


def test_a_key_of_another_kind_refuses_all(client: redis.Redis) -> None:
    client.set("a", "text")
    with pytest.raises(WrongType, match="b'a' is a string"):
        commit_through(client, Commit(QUERY, True, [share(rows(b"0", "1"), rows(b"a", "1"))]))
    assert client.keys() == [b"a"]


def test_a_stream_that_gets_ahead_meanwhile_is_looked_at_again(client: redis.Redis) -> None:
    class Hasty(redis.client.Pipeline):
        """Lets another client add an entry right before an EXEC, twice."""

        left = 2

        def execute(self, raise_on_error: bool = True) -> Any:
            if Hasty.left:
                Hasty.left -= 1
                client.xadd("a", {"v": "other"})
            return super().execute(raise_on_error)

    class HastyClient(redis.Redis):
        def pipeline(self, transaction: Any = True, shard_hint: Any = None) -> Hasty:
            return Hasty(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    port = client.connection_pool.connection_kwargs["port"]
    with HastyClient(port=port, protocol=2) as hasty:
        work = Commit(Transaction("q", 1), True, [share(rows(b"a", "mine", ids=[f"{1 << 50}-1"]))])
        assert commit_through(hasty, work) == (True, 1, 0)
    assert [fields[b"v"] for _, fields in entries(client, b"a")] == [b"other", b"other", b"mine"]


def test_fields_that_repeat_stay_as_they_are(client: redis.Redis) -> None:
    staged = StagedRows(b"a", [encode_fields([("v", "1"), ("v", "2")])])
    commit_through(client, Commit(QUERY, False, [share(staged)]))
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    [[_, flat]] = cast("list[list[Any]]", client.xrange("a"))
    assert flat == [b"v", b"1", b"v", b"2"]
