"""A commit through a server has the same result as into a store: kvstream's server, and Redis."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from kvstream.engine.server_address import Address, write
from kvstream.errors import (
    AccessDenied,
    IDTooSmall,
    KVStreamError,
    ServerUnavailable,
    StoreLocked,
    WrongType,
)
from kvstream.layout.values import encode_fields
from kvstream.server.commands.info import run_id
from kvstream.spark.options import Place
from kvstream.spark.read.servers import client_of
from kvstream.spark.write.commit import Commit, Share, Upload
from kvstream.spark.write.servers import BATCH_ROWS, append_now, commit_through
from kvstream.spark.write.spill import EXACTLY, spill_of
from kvstream.spark.write.stage import StagedRows, Transaction
from kvstream.spark.write.writers import commit_to, mark_in, prepare
from tests.ports import free_port
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


def test_rows_and_mark_are_one_transaction_that_runs_once(client: redis.Redis) -> None:
    work = Commit(QUERY, True, [share(rows(b"a", "1", "2"), rows(b"b", "x", ids=["5-1"]))])
    assert commit_through(client, work) == (True, 3, 0)
    assert commit_through(client, work) == (False, 0, 0)
    assert [fields for _, fields in entries(client, b"a")] == [{b"v": b"1"}, {b"v": b"2"}]
    assert entries(client, b"b") == [(b"5-1", {b"v": b"x"})]
    assert client.get(QUERY.key) == b"7"


def test_an_id_that_does_not_rise_refuses_all(client: redis.Redis) -> None:
    commit_through(client, Commit(QUERY, False, [share(rows(b"a", "1", ids=["5-1"]))]))
    more = share(rows(b"b", "1"), rows(b"a", "2", ids=["5-1"]))
    with pytest.raises(IDTooSmall, match=r"stream 'a': 5-1: .*: the option skipExisting skips"):
        commit_through(client, Commit(QUERY, True, [more]))
    assert client.keys() == [b"a"]
    assert commit_through(client, Commit(QUERY, True, [more], True)) == (True, 1, 1)
    assert len(entries(client, b"b")) == 1
    twice = Commit(QUERY, False, [share(rows(b"a", "3", "4", ids=["6-1", "6-1"]))], True)
    with pytest.raises(IDTooSmall, match=r"stream 'a': 6-1: .* top item$"):  # neither is there yet
        commit_through(client, twice)
    assert len(entries(client, b"a")) == 1


def test_rows_that_are_added_at_once_name_the_id_that_is_refused(client: redis.Redis) -> None:
    append_now(plain(client), [rows(b"a", "1", ids=["5-1"])])
    with pytest.raises(IDTooSmall, match=r"^stream 'a': 4-1: The ID specified in XADD"):
        append_now(plain(client), [rows(b"a", "2", "3", ids=["6-1", "4-1"])])
    assert [eid for eid, _ in entries(client, b"a")] == [b"5-1", b"6-1"]
    client.set("text", "")
    with pytest.raises(WrongType, match=r"^stream 'text': \*: "):
        append_now(plain(client), [rows(b"text", "1")])


def test_a_server_that_is_gone_is_an_error_of_kvstream() -> None:
    client = client_of(Place("url", f"redis://127.0.0.1:{free_port()}"))
    with pytest.raises(ServerUnavailable, match=r"no connection to 127\.0\.0\.1"):
        commit_through(client, Commit(QUERY, True, [share(rows(b"a", "1"))]))
    with pytest.raises(ServerUnavailable, match=r"no connection to 127\.0\.0\.1"):
        append_now(client, [rows(b"a", "1")])


def test_a_key_of_another_kind_refuses_all(client: redis.Redis) -> None:
    client.set("a", "text")
    with pytest.raises(WrongType, match="'a' is a string"):
        commit_through(client, Commit(QUERY, True, [share(rows(b"0", "1"), rows(b"a", "1"))]))
    assert client.keys() == [b"a"]


def test_a_stream_changed_meanwhile_is_checked_again(client: redis.Redis) -> None:
    class Hasty(redis.client.Pipeline):
        """Let another client add an entry right before an EXEC, twice."""

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


def test_repeated_fields_are_unchanged(client: redis.Redis) -> None:
    staged = StagedRows(b"a", [encode_fields([("v", "1"), ("v", "2")])])
    commit_through(client, Commit(QUERY, False, [share(staged)]))
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    [[_, flat]] = cast("list[list[Any]]", client.xrange("a"))
    assert flat == [b"v", b"1", b"v", b"2"]


# --- bulk loads ---------------------------------------------------------------------------------


def plain(client: redis.Redis) -> redis.Redis:
    """Return a client as writers use it."""
    port = client.connection_pool.connection_kwargs["port"]
    return client_of(Place("url", f"redis://127.0.0.1:{port}"))


MANY = rows(b"many", *["x"] * BATCH_ROWS)
"""Rows with which a commit of some more rows is a bulk load."""


def has_loaded(client: redis.Redis) -> bool:
    """Return whether a bulk load was committed through the server."""
    return "cmdstat_kvstream.load|commit" in client.info("commandstats")


def test_many_rows_are_a_bulk_load_if_the_server_supports_it(client: redis.Redis) -> None:
    kvstream = "kvstream_version" in client.info("server")
    few = share(rows(b"a", "1", "2"), rows(b"b", "x", ids=["5-1"]), MANY)
    work = Commit(QUERY, True, [few])
    assert commit_through(plain(client), work) == (True, 3 + BATCH_ROWS, 0)
    assert has_loaded(client) == kvstream
    assert commit_through(plain(client), work)[:2] == (False, 0)
    assert [fields for _, fields in entries(client, b"a")] == [{b"v": b"1"}, {b"v": b"2"}]
    assert entries(client, b"b") == [(b"5-1", {b"v": b"x"})]
    assert client.get(QUERY.key) == b"7"


def test_rows_unfit_for_tables_are_a_transaction(client: redis.Redis) -> None:
    unfit = rows(b"a", "1", "2", "3", ids=["5-*", "5-*", "6-1"])
    work = Commit(QUERY, False, [share(unfit, MANY)])
    assert commit_through(plain(client), work) == (True, 3 + BATCH_ROWS, 0)
    assert not has_loaded(client)
    assert [eid for eid, _ in entries(client, b"a")] == [b"5-0", b"5-1", b"6-1"]


def test_a_refused_bulk_load_leaves_nothing(client: redis.Redis) -> None:
    client.xadd("a", {"v": "0"}, id="9-1")
    client.set("text", "")
    more = share(rows(b"b", "1", "2"), rows(b"a", "3", ids=["9-1"]), MANY)
    with pytest.raises(IDTooSmall, match=r"9-1.* equal or smaller .*: the option skipExisting"):
        commit_through(plain(client), Commit(QUERY, True, [more]))
    with pytest.raises(WrongType, match=r"^'text' is a string, not a stream$"):
        commit_through(plain(client), Commit(QUERY, True, [share(rows(b"text", "1"), MANY)]))
    assert sorted(cast("list[bytes]", client.keys())) == [b"a", b"text"]


def test_a_task_sends_its_tables_and_a_dead_one_leaves_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path / "store")
    try:
        client = served.client()
        place = Place("url", f"redis://127.0.0.1:{served.port}")
        _, upload = prepare(place, b"a")
        assert isinstance(upload, Upload)
        shares = []
        for partition in range(3):
            spill = spill_of([place], None, EXACTLY, [upload], QUERY, True, partition, 0)
            spill.write([rows(b"a", f"{partition}1", f"{partition}2"), rows(b"b", "x")])
            if partition == 1:
                spill.abort()
            else:
                shares.append(Share(3, spill.close(), b"", partition))
        work = Commit(QUERY, True, shares, upload=upload)
        assert commit_through(plain(client), work) == (True, 6, 0)
        found = [fields[b"v"] for _, fields in entries(client, b"a")]
        assert found == [b"01", b"02", b"21", b"22"]
        assert client.xlen("b") == 2
        spill = spill_of([place], None, EXACTLY, [upload], QUERY, True, 3, 0)
        spill.write([rows(b"a", "late")])
        with pytest.raises(KVStreamError, match="NOLOAD"):
            spill.close()
        assert list((tmp_path / "store" / "loads").iterdir()) == []
    finally:
        served.stop()


def test_a_served_store_is_written_through_its_server(tmp_path: Path) -> None:
    served = Served(tmp_path / "store", requirepass="open sesame")
    by_path = Place("path", str(tmp_path / "store"), password="open sesame")
    work = Commit(QUERY, True, [share(rows(b"a", "1"))])
    try:
        with pytest.raises(StoreLocked):  # the address of the server is unknown
            commit_to(by_path, 0, work)
        url = f"redis://127.0.0.1:{served.port}"
        write(tmp_path / "store", Address(url, "of another run"))
        with pytest.raises(StoreLocked):
            commit_to(by_path, 0, work)
        write(tmp_path / "store", Address(url, run_id()))
        with pytest.raises(AccessDenied, match="is held by its server"):
            commit_to(Place("path", by_path.address), 0, work)
        assert commit_to(by_path, 0, work) == (True, 1, 0)
        assert mark_in(by_path, QUERY) == b"7"
        place, ticket = prepare(by_path, b"a")
        assert place.shown == url
        assert isinstance(ticket, Upload)
    finally:
        served.stop()
    assert commit_to(by_path, 0, work) == (False, 0, 0)  # directly: it is no longer served
