"""Libraries of functions are migrated with the streams, and a report names the others."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvstream import Store
from kvstream.cli import main
from kvstream.migration import LossRefused, Outcome, plan, run, runner, verify
from kvstream.migration.api import open_source, place_of, planned_target
from kvstream.migration.items import Selection
from kvstream.migration.libraries import notes_for_redis
from kvstream.operations import functions
from kvstream.rdb.file_writer import FileWriter
from kvstream.rdb.versions import TARGETS
from tests.migration.conftest import Start
from tests.migration.servers import RedisServer
from tests.serving import ServerProcess

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
    shown = CliRunner().invoke(main, ["migrate", "verify", str(tmp_path / "store"), target.url])
    assert shown.stdout == "equal: 0 keys, 0 entries, 2 function libraries\n"
    target.client().execute_command("FUNCTION", "DELETE", "two")
    target.client().function_load(OTHER, replace=True)
    verified = verify(tmp_path / "store", target.url)
    assert verified.functions == 2
    shown = CliRunner().invoke(main, ["migrate", "verify", str(tmp_path / "store"), target.url])
    assert shown.stdout.endswith(
        "different: 2 different function libraries in 0 keys, 0 entries, 2 function libraries\n"
    )
    found = verified.differences
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
    places = tmp_path / "store", tmp_path / "old.rdb"
    with pytest.raises(LossRefused, match=r"b'one' cannot be loaded: redis:6\.2 has no functions"):
        run(*places, target_version="redis:6.2")
    report = run(*places, target_version="redis:6.2", allow_loss=["functions"])
    assert report.functions.outcomes == {Outcome.SKIPPED: 1}
    refusal = "the library b'one' cannot be loaded: redis:6.2 has no functions"
    assert report.functions.reported == [f"left out: functions: {refusal}"]


def test_a_library_that_the_target_refuses_is_reported(target: RedisServer, tmp_path: Path) -> None:
    target.client().function_load(ONE.replace("name=one", "name=three"))
    put(tmp_path / "store", ONE, TWO)
    with pytest.raises(LossRefused, match="Function first already exists"):
        run(tmp_path / "store", target.url)
    assert [each[1] for each in target.client().function_list()] == [b"three"]
    report = run(tmp_path / "store", target.url, allow_loss=["functions"])
    assert report.functions.outcomes == {Outcome.SKIPPED: 1, Outcome.COPIED: 1}
    (reported,) = report.functions.reported
    assert reported.endswith("b'one' cannot be loaded: Function first already exists")


def test_a_selection_of_keys_has_no_functions(source: RedisServer, tmp_path: Path) -> None:
    source.client().function_load(ONE)
    assert not run(source.url, tmp_path / "store", match=["a*"]).functions.outcomes
    assert libraries(tmp_path / "store") == {}


def test_many_databases_of_a_directory_are_told(tmp_path: Path) -> None:
    put(tmp_path / "store", ONE)
    words = ["migrate", "run", str(tmp_path / "store")]
    told = CliRunner().invoke(main, [*words, str(tmp_path / "many"), "--databases", "40"])
    assert "kvstream serve --databases 40, Store.open(..., databases=40)" in told.stderr
    usual = CliRunner().invoke(main, [*words, str(tmp_path / "usual")])
    assert "databases" not in usual.stderr


# --- libraries that cannot be loaded --------------------------------------------------------------

VALKEYS = "#!lua name=theirs\nserver.register_function('f', function() return 1 end)"
CALLS_SERVER = (
    "#!lua name=calling\nredis.register_function('c', function() return server.call('PING') end)"
)
UNLOADABLE = {
    "syntax": "#!lua name=lib\nredis.register_function('f', function()",
    "runtime": "#!lua name=lib\nlocal n = nil + 1",
    "empty": "#!lua name=lib\nlocal n = 1",
    "flag": "#!lua name=lib\nredis.register_function{function_name='f', callback=function() end, "
    "flags={'some-new-flag'}}",
    "member": "#!lua name=lib\nredis.register_newest('f', function() end)",
    "engine": "#!js name=lib\nserver.register_function('f', () => 1)",
    "global": "#!lua name=lib\nnewest.register_function('f', function() end)",
}


def log_of_libraries(folder: Path, *texts: str) -> Path:
    """Write a log that loads libraries as they are."""
    log = folder / "functions.aof"
    with log.open("wb") as out:
        for words in (["SET", "key", "v"], *(["FUNCTION", "LOAD", text] for text in texts)):
            out.write(b"*%d\r\n" % len(words))
            for word in words:
                out.write(b"$%d\r\n%b\r\n" % (len(word), word.encode()))
    return log


def refused(*places: Any, **options: Any) -> str:
    """Return the text with which ``plan`` and ``run`` refuse one library of a source."""
    (loss,) = [loss for each in plan(*places, **options) for loss in each.losses]
    assert loss.name == "functions"
    with pytest.raises(LossRefused) as refusal:
        run(*places, **options)
    assert [each.text for each in refusal.value.losses] == [loss.text]
    return loss.text


@pytest.mark.parametrize("cause", UNLOADABLE)
def test_a_library_that_no_target_can_load_is_refused_by_all(
    cause: str, target: RedisServer, tmp_path: Path
) -> None:
    log = log_of_libraries(tmp_path, ONE, UNLOADABLE[cause])
    there = tmp_path / "store"
    reasons = {
        refused(log, there),
        refused(log, target.url),
        refused(log, tmp_path / "out.rdb", target_version="redis:7.0"),
    }
    assert all(reason.startswith("the library b'lib' cannot be loaded: ") for reason in reasons)
    assert not there.exists()
    assert target.client().dbsize() == 0
    assert target.client().function_list() == []
    report = run(log, there, allow_loss=["functions"])
    assert report.functions.outcomes == {Outcome.SKIPPED: 1, Outcome.COPIED: 1}
    assert libraries(there) == {b"one": ONE.encode()}
    (found,) = verify(log, there).differences
    assert (found.key, found.what, found.target) == (b"lib", "function library", "absent")


def test_a_library_of_valkey_is_refused_by_redis_alone(
    target: RedisServer, start_redis: Start, tmp_path: Path
) -> None:
    log = log_of_libraries(tmp_path, ONE, VALKEYS)
    reason = "the library b'theirs' cannot be loaded: Error registering functions: "
    for version in ("redis:7.0", "redis:7.2", "redis:8.10"):
        assert refused(log, tmp_path / "a.rdb", target_version=version).startswith(reason)
    assert refused(log, target.url).startswith(reason)
    for there, name in ((tmp_path / "b.rdb", "valkey"), (tmp_path / "s", None)):
        report = run(log, there, target_version=name)
        assert report.functions.outcomes == {Outcome.COPIED: 2}
        assert verify(log, there).equal
    folder = tmp_path / "fresh"
    folder.mkdir()
    run(log, folder / "dump.rdb", target_version="redis:7.0", allow_loss=["functions"])
    client = start_redis(str(folder)).client()  # which a library that does not load would prevent
    assert client.fcall("first", 0) == 1


VALKEYS_WHEN_LOADED = {
    "member": "local n = 'x'..redis.SERVER_NAME redis.register_function('v', function() end)",
    "alias": "local r = redis local n = 'x'..r.SERVER_NAME "
    "r.register_function('v', function() return n end)",
    "key": "local k = 'SERVER_NAME' local n = 'x'..redis[k] "
    "redis.register_function('v', function() return n end)",
    "version": "local n = server.VALKEY_VERSION..'' "
    "server.register_function('v', function() return n end)",
    "number": "local r = redis local n = r.VALKEY_VERSION_NUM + 1 "
    "r.register_function('v', function() return n end)",
}


@pytest.mark.parametrize("use", VALKEYS_WHEN_LOADED)
def test_what_a_library_reads_while_it_is_loaded_is_that_of_the_target(
    use: str, tmp_path: Path
) -> None:
    text = f"#!lua name=theirs\n{VALKEYS_WHEN_LOADED[use]}"
    log = log_of_libraries(tmp_path, text)
    for version in ("redis:7.0", "redis:8.10"):
        reason = refused(log, tmp_path / "redis.rdb", target_version=version)
        assert reason.startswith("the library b'theirs' cannot be loaded: ")
    report = run(log, tmp_path / "valkey.rdb", target_version="valkey")
    assert report.functions.outcomes == {Outcome.COPIED: 1}


GUARDED = {
    "call": "redis.register_function('c', function() return server.call('PING') end)",
    "branch": "redis.register_function('c', function() "
    "if redis.VALKEY_VERSION then return 'valkey' end return 'redis' end)",
    "pcall": "redis.register_function('c', function() "
    "local ok = pcall(function() return server end) return ok and 'valkey' or 'redis' end)",
}


@pytest.mark.parametrize("use", GUARDED)
def test_a_function_that_may_look_for_valkey_is_migrated_with_a_note(
    use: str, target: RedisServer, tmp_path: Path
) -> None:
    log = log_of_libraries(tmp_path, f"#!lua name=port\n{GUARDED[use]}")
    for place in (target.url, tmp_path / "out.rdb"):
        there = planned_target(place_of(place, create=True), target_version=None)
        with closing(open_source(place_of(log))) as source, closing(there):
            _, library = runner.plan(source, there, Selection())
        assert library.losses == ()
        (note,) = there.remarks
        assert note.startswith("the library b'port' uses ")
        assert "which Redis does not have: a function that needs it fails when" in note
        assert run(log, place).functions.outcomes == {Outcome.COPIED: 1}
        assert verify(log, place).equal
    if use != "call":
        assert target.client().fcall("c", 0) == b"redis"


def test_a_local_variable_of_that_name_is_no_object_of_valkey(tmp_path: Path) -> None:
    own = "#!lua name=own\nlocal server = redis\nlocal t = {server = 1}\nt.server = 2\n"
    own += "redis.register_function('f', function(server) return server.call, t.server end)\n"
    own += "redis.register_function('g', function() return server.call('PING') end)"
    log = log_of_libraries(tmp_path, own)
    report = run(log, tmp_path / "out.rdb", target_version="redis:7.0")
    assert report.functions.outcomes == {Outcome.COPIED: 1}
    assert notes_for_redis([own.encode()], ()) == []


def test_a_name_that_another_library_has_is_refused(
    source: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    source.client().function_load(ONE)
    other = ONE.replace("name=one", "name=other")
    put(tmp_path / "store", other)
    target.client().function_load(other)
    for place in (tmp_path / "store", target.url):
        assert refused(source.url, place).endswith("Function first already exists")
    put(tmp_path / "both", ONE, other)
    assert "already exists" in refused(tmp_path / "both", tmp_path / "out.rdb")


def test_verify_finds_a_library_that_cannot_be_called(tmp_path: Path) -> None:
    for name in ("source", "target"):
        put(tmp_path / name, ONE, UNLOADABLE["syntax"])
    (found,) = verify(tmp_path / "source", tmp_path / "target").differences
    assert (found.key, found.what) == (b"lib", "function library")
    assert found.target.startswith("cannot be loaded: ")


def test_libraries_behind_the_keys_of_a_file_are_migrated(tmp_path: Path) -> None:
    with (tmp_path / "late.rdb").open("wb") as file:
        writer = FileWriter(file, TARGETS["redis:7.0"])
        writer.string(0, b"key", b"value")
        writer.function(ONE.encode())
        writer.finish()
    assert [each.key for each in plan(tmp_path / "late.rdb")] == [b"key", b"one"]
    assert run(tmp_path / "late.rdb", tmp_path / "store").functions.outcomes == {Outcome.COPIED: 1}


def test_a_user_who_may_not_try_a_library_gets_the_same_answer(
    target: RedisServer, tmp_path: Path
) -> None:
    rights = {"keys": ["*"], "commands": ["+@all", "-function|restore"]}
    target.client().acl_setuser("some", enabled=True, nopass=True, **rights)
    url = target.url.replace("redis://", "redis://some:any@")
    log = log_of_libraries(tmp_path, ONE, UNLOADABLE["syntax"], VALKEYS, CALLS_SERVER)
    losses = [loss.text for each in plan(log, url) for loss in each.losses]
    assert [text.partition("'")[2].partition("'")[0] for text in losses] == ["lib", "theirs"]
    report = run(log, url, allow_loss=["functions"])
    assert report.functions.outcomes == {Outcome.SKIPPED: 2, Outcome.COPIED: 2}
    assert target.client().fcall("first", 0) == 1


def test_a_server_of_kvstream_is_asked_as_well(tmp_path: Path) -> None:
    log = log_of_libraries(tmp_path, ONE, UNLOADABLE["syntax"])
    server = ServerProcess(tmp_path / "served")
    url = f"redis://127.0.0.1:{server.port}"
    try:
        assert "Error compiling function" in refused(log, url)
        report = run(log, url, allow_loss=["functions"])
        assert report.functions.outcomes == {Outcome.SKIPPED: 1, Outcome.COPIED: 1}
        with server.asker() as asker:
            assert asker.ask("FCALL first 0") == 1
    finally:
        server.stop()
