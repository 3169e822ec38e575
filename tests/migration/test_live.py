"""Migrate streams of a live redis-server to a store and to another server, and verify them."""

import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis

from kvstream import Store
from kvstream.migration import LossRefused, Outcome, run, verify
from kvstream.migration.places import parse_place
from kvstream.migration.server import Server
from kvstream.migration.server_source import PAGE, PagedStream, ServerSource
from kvstream.migration.verification import VerifyOptions
from kvstream.migration.verification import verify as verify_places
from tests.migration.conftest import Start
from tests.migration.filling import DATABASES, dumps, expiries, fill, fill_all_databases, full
from tests.migration.servers import RedisServer

TIMES = {b"seen-time", b"active-time"}


def refuse(server: RedisServer, *commands: str) -> str:
    """Create a user without the right to some commands, and return a URL to log in as that user."""
    server.client().acl_setuser(
        "some", enabled=True, nopass=True, keys=["*"], commands=["+@all", *commands]
    )
    return server.url.replace("redis://", "redis://some:any@")


def without_times(reply: Any) -> Any:
    """Return the reply of XINFO STREAM FULL without the fields that no command can set."""
    if isinstance(reply, dict):
        return {name: without_times(value) for name, value in reply.items() if name not in TIMES}
    return [without_times(each) for each in reply] if isinstance(reply, list) else reply


def check(directory: Path) -> None:
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []


def test_all_16_databases_are_migrated_to_a_store_and_back(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    fill_all_databases(source.client())
    report = run(source.url, tmp_path / "store")
    assert report.outcomes == {Outcome.COPIED: 8 + 2 * (DATABASES - 1)}
    assert report.entries == 700 + 400 + 7 + 2 * (DATABASES - 1)
    assert verify(source.url, tmp_path / "store").differences == []
    check(tmp_path / "store")
    assert run(tmp_path / "store", target.url).complete
    for db in range(DATABASES):
        mine, theirs = source.client(db=db), target.client(db=db)
        assert full(mine) == full(theirs)
        assert expiries(mine) == expiries(theirs)
    assert verify(source.url, target.url).differences == []


def test_streams_without_deletions_are_dumped_byte_for_byte_as_by_redis(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    source.client().delete("deleted")
    run(source.url, tmp_path / "store")
    run(tmp_path / "store", target.url)
    assert dumps(source.client()) == dumps(target.client())


def test_without_dump_streams_are_read_by_commands_without_loss(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    url = refuse(source, "-dump", "-restore")
    assert run(url, tmp_path / "store").complete
    check(tmp_path / "store")
    assert verify(source.url, tmp_path / "store").differences == []
    assert verify(url, tmp_path / "store").differences == []
    run(tmp_path / "store", target.url)
    assert full(source.client()) == full(target.client())


def test_a_stream_read_by_commands_equals_its_dump(source: RedisServer) -> None:
    fill(source.client())
    assert verify(source.url, refuse(source, "-dump")).differences == []


def test_without_restore_streams_are_written_by_commands(
    source: RedisServer, target: RedisServer
) -> None:
    fill(source.client())
    url = refuse(target, "-restore")
    with pytest.raises(LossRefused, match="active-time") as refusal:
        run(source.url, url)
    assert {loss.name for loss in refusal.value.losses} == {"active-time"}
    assert target.client().dbsize() == 0
    report = run(source.url, url, allow_loss=["active-time"])
    assert report.losses == {"active-time": 3}
    assert without_times(full(source.client())) == without_times(full(target.client()))
    found = verify(source.url, target.url)
    assert found.equal
    assert all(each.may_move for each in found.differences)
    assert not [key for key in target.client().scan_iter() if key.startswith(b"kvstream:")]


def test_a_payload_over_the_bulk_limit_is_split_without_loss(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    client = source.client()
    pipe = client.pipeline(transaction=False)
    for at in range(3000):
        pipe.xadd("long", {"text": f"{at} " + "x" * 500}, f"{at + 1}-0")
    pipe.execute()
    client.xgroup_create("long", "g", "0")
    client.xreadgroup("g", "c", {"long": ">"}, 900)
    client.xgroup_createconsumer("long", "g", "idle")
    client.xdel("long", "5-0", "6-0", "3000-0")
    target.client().config_set("proto-max-bulk-len", 1 << 20)
    run(source.url, target.url)
    assert full(source.client()) == full(target.client())
    assert target.client().keys() == [b"long"]


def test_a_second_run_changes_nothing(source: RedisServer, tmp_path: Path) -> None:
    fill(source.client())
    first = run(source.url, tmp_path / "store")
    second = run(source.url, tmp_path / "store")
    assert second.outcomes == {Outcome.SAME: first.outcomes[Outcome.COPIED]}


def test_the_search_for_losses_asks_the_target_nothing(target: RedisServer, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        for number in range(20):
            store.stream(f"s{number}").add({"a": "1"})
    client = target.client()
    client.config_resetstat()
    assert run(tmp_path / "store", target.url).outcomes == {Outcome.COPIED: 20}
    assert client.info("commandstats")["cmdstat_type"]["calls"] == 20


def test_a_different_existing_key_is_kept_unless_it_may_be_replaced(
    source: RedisServer, tmp_path: Path
) -> None:
    fill(source.client())
    run(source.url, tmp_path / "store")
    source.client().xadd("orders", {"sku": "new"}, "9999-0")
    source.client().set("a string", "other")
    report = run(source.url, tmp_path / "store")
    assert report.outcomes[Outcome.DIFFERENT] == 2
    assert not report.complete
    (orders,) = (each for each in report.noteworthy if each.key == b"orders")
    assert ("entry 9999-0", "absent") in [(found.what, found.target) for found in orders.reported]
    assert run(source.url, tmp_path / "store", replace=True).outcomes[Outcome.REPLACED] == 2
    assert verify(source.url, tmp_path / "store").differences == []


def test_a_server_is_reached_by_a_socket_of_unix(start_redis: Start, tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:  # short enough for the name of a socket
        server = start_redis("near", "--unixsocket", f"{folder}/socket")
        fill(server.client())
        run(f"unix://{folder}/socket", tmp_path / "store")
        assert verify(f"unix://{folder}/socket", server.url).differences == []
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert len(store.stream("orders")) == 700


def test_keys_are_selected_by_pattern_and_database(source: RedisServer, tmp_path: Path) -> None:
    fill_all_databases(source.client())
    run(source.url, tmp_path / "store", match=["of *", "orders"], databases=[0, 3])
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.keys() == [b"orders"]
        assert store.select(3).keys() == [b"of 3"]
        assert store.select(4).keys() == []


def test_keys_of_other_types_are_named_and_skipped(source: RedisServer, tmp_path: Path) -> None:
    client = source.client()
    client.rpush("list", 1)
    client.hset("hash", "a", "1")
    client.xadd("stream", {"a": 1})
    with pytest.raises(LossRefused, match=r"hash \(1 key\), list \(1 key\)"):
        run(source.url, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert run(source.url, tmp_path / "chosen", match=["str*"]).outcomes == {Outcome.COPIED: 1}
    report = run(source.url, tmp_path / "store", allow_loss=["other-types"])
    assert report.skipped == {"list": 1, "hash": 1}
    assert report.outcomes == {Outcome.COPIED: 1, Outcome.SKIPPED: 2}
    assert verify(source.url, tmp_path / "store").skipped == {"list": 1, "hash": 1}


def test_an_expired_key_is_skipped(tmp_path: Path, target: RedisServer) -> None:
    with Store.open(tmp_path / "store") as store:
        store.stream("s").add({"a": 1})
        store.expire("s", 0.2)
        store.stream("t").add({"a": 1})
    time.sleep(0.3)
    run(tmp_path / "store", target.url)
    assert target.client().keys() == [b"t"]


def test_times_of_delivery_are_exact_over_pages_of_pending_entries(source: RedisServer) -> None:
    client = source.client().pipeline(transaction=False)
    for at in range(PAGE + 60):
        client.xadd("s", {"a": at}, f"{at + 1}-0")
    client.xgroup_create("s", "g", "0")
    for at in range(PAGE + 60):
        client.xreadgroup("g", f"c{at % 7}", {"s": ">"}, 1)
        time_ms = 1_700_000_000_000 + at * 12_345
        client.xclaim("s", "g", f"c{at % 7}", 0, [f"{at + 1}-0"], time=time_ms, retrycount=at)
    client.execute()
    url = refuse(source, "-dump")
    assert verify(source.url, url).differences == []


def test_times_missing_from_entries_are_computed_from_the_clock_and_reported(
    source: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.migration.server_source._exact_times", lambda reply: ())
    fill(source.client())
    url = refuse(source, "-dump")
    (orders,) = (each for each in run(url, tmp_path / "store").noteworthy if each.key == b"orders")
    assert "off by 20 ms" in orders.corrections[0]
    monkeypatch.undo()
    assert verify(source.url, tmp_path / "store", tolerance_ms=20).equal


def test_entries_added_while_a_stream_is_read_are_read_too(source: RedisServer) -> None:
    client = source.client()
    for at in range(500):
        client.xadd("s", {"a": at}, f"{at + 1}-0")
    from kvstream.remote.connection import Connection, connect

    connection = Connection(connect(source.url), 0)
    stream = PagedStream(connection, b"s")
    count = 0
    for node in stream.nodes():
        if count < 400:
            client.xadd("s", {"late": 1}, f"{1000 + count}-0")
        count += len(node.ids)
    state = stream.state()
    connection.close()
    assert state.length == count == client.xlen("s")
    assert stream.corrections == []


def test_a_stream_too_large_for_one_dump_is_read_by_pages(source: RedisServer) -> None:
    fill(source.client())
    place = parse_place(source.url)
    with (
        closing(ServerSource(Server(place), dump_bytes_max=1)) as paged,
        closing(ServerSource(Server(place))) as dumped,
    ):
        assert verify_places(paged, dumped, VerifyOptions()).differences == []
    assert "cmdstat_dump" in source.client().info("commandstats")
    source.client().config_resetstat()
    with closing(ServerSource(Server(place), dump_bytes_max=1)) as paged:
        assert verify_places(paged, paged, VerifyOptions()).differences == []
    assert "cmdstat_dump" not in source.client().info("commandstats")


def test_a_second_concurrent_run_of_a_migration_is_refused(
    source: RedisServer, tmp_path: Path, state: Path
) -> None:
    from kvstream import StoreLocked
    from kvstream.migration.items import Selection
    from kvstream.migration.journal import Journal, identity_of

    there = str(tmp_path / "store")
    identity = identity_of(source.url, there, Selection())
    with (
        Journal(state, identity, source.url, there),
        pytest.raises(StoreLocked, match="running already"),
    ):
        run(source.url, there)


def test_the_password_is_neither_shown_nor_stored(
    start_redis: Any, tmp_path: Path, state: Path
) -> None:
    server = start_redis("locked", "--requirepass", "hunter2")
    url = server.url.replace("redis://", "redis://:hunter2@")
    with redis.Redis(port=server.port, password="hunter2") as client:
        client.xadd("s", {"a": 1})
    run(url, tmp_path / "store")
    (journal,) = state.iterdir()
    assert b"hunter2" not in journal.read_bytes()
    assert server.url.encode() in journal.read_bytes()
