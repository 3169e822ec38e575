"""Libraries of functions are migrated with the streams, and a report names the others."""

from functools import partial
from pathlib import Path

from kvstream import Store
from kvstream.migration import Outcome, run, verify
from kvstream.operations import functions
from tests.migration.conftest import Start
from tests.migration.servers import RedisServer

ONE = "#!lua name=one\nredis.register_function('first', function() return 1 end)"
TWO = "#!lua name=two\nredis.register_function('second', function() return 2 end)"
OTHER = ONE.replace("return 1", "return 3")


def libraries(store: Path) -> dict[bytes, bytes]:
    with Store.open(store) as opened:
        return dict(opened.engine.run(functions.libraries))


def put(store: Path, *texts: str) -> None:
    with Store.open(store) as opened:
        for text in texts:
            opened.engine.run(partial(functions.load, replace=False), text.encode())


BOTH = {b"one": ONE.encode(), b"two": TWO.encode()}


def test_functions_are_migrated_from_a_server_to_a_store_and_back(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    source.client().function_load(ONE)
    source.client().function_load(TWO)
    report = run(source.url, tmp_path / "store")
    assert report.functions.outcomes == {Outcome.COPIED: 2}
    assert report.complete
    assert libraries(tmp_path / "store") == BOTH
    assert run(tmp_path / "store", target.url).functions.outcomes == {Outcome.COPIED: 2}
    assert target.client().fcall("second", 0) == 2
    assert run(tmp_path / "store", target.url).functions.outcomes == {Outcome.SAME: 2}
    assert verify(tmp_path / "store", target.url).equal
    target.client().execute_command("FUNCTION", "DELETE", "two")
    target.client().function_load(OTHER, replace=True)
    found = verify(tmp_path / "store", target.url).differences
    assert [(each.key, each.what, each.target) for each in found] == [
        (b"one", "function library", f"{len(OTHER)} bytes"),
        (b"two", "function library", "absent"),
    ]


def test_functions_are_migrated_through_rdb_files(
    source: RedisServer, start_redis: Start, tmp_path: Path
) -> None:
    source.client().function_load(ONE)
    source.client().set("key", "value")
    store, written, folder = tmp_path / "store", tmp_path / "out.rdb", tmp_path / "fresh"
    assert run(source.saved(), store).functions.outcomes == {Outcome.COPIED: 1}
    put(store, TWO)
    report = run(store, written, target_version="redis:7.0")
    assert report.functions.outcomes == {Outcome.COPIED: 2}
    folder.mkdir()
    written.rename(folder / "dump.rdb")
    fresh = start_redis(str(folder)).client()
    assert fresh.fcall("first", 0) == 1
    assert fresh.fcall("second", 0) == 2
    assert fresh.get("key") == b"value"


def test_functions_of_an_append_only_file_are_replayed(start_redis: Start, tmp_path: Path) -> None:
    folder = tmp_path / "aof"
    folder.mkdir()
    server = start_redis(str(folder), "--appendonly", "yes", "--appendfsync", "always")
    client = server.client()
    client.function_load(ONE)
    client.function_load(TWO)
    client.execute_command("FUNCTION", "DELETE", "two")
    client.function_load(OTHER, replace=True)
    client.set("key", "value")
    report = run(next(folder.rglob("*.manifest")), tmp_path / "store")
    assert report.functions.outcomes == {Outcome.COPIED: 1}
    assert libraries(tmp_path / "store") == {b"one": OTHER.encode()}


def test_a_different_library_is_kept_unless_it_may_be_replaced(
    source: RedisServer, tmp_path: Path
) -> None:
    source.client().function_load(ONE)
    store = tmp_path / "store"
    put(store, OTHER)
    report = run(source.url, store)
    assert report.functions.outcomes == {Outcome.DIFFERENT: 1}
    assert not report.complete
    assert libraries(store) == {b"one": OTHER.encode()}
    assert run(source.url, store, replace=True).functions.outcomes == {Outcome.REPLACED: 1}
    assert libraries(store) == {b"one": ONE.encode()}


def test_a_target_without_functions_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "store", ONE)
    report = run(tmp_path / "store", tmp_path / "old.rdb", target_version="redis:6.2")
    assert report.functions.outcomes == {Outcome.SKIPPED: 1}
    refusal = "a function library was not copied: redis:6.2 has no functions"
    assert report.functions.reported == [refusal]


def test_a_library_that_the_target_refuses_is_reported(target: RedisServer, tmp_path: Path) -> None:
    target.client().function_load(ONE.replace("name=one", "name=three"))
    put(tmp_path / "store", ONE, TWO)
    report = run(tmp_path / "store", target.url)
    assert report.functions.outcomes == {Outcome.SKIPPED: 1, Outcome.COPIED: 1}
    assert report.functions.reported == [
        "a function library was not copied: Function first already exists"
    ]


def test_a_selection_of_keys_has_no_functions(source: RedisServer, tmp_path: Path) -> None:
    source.client().function_load(ONE)
    assert not run(source.url, tmp_path / "store", match=["a*"]).functions.outcomes
    assert libraries(tmp_path / "store") == {}
