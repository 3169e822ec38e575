"""Whatever a migration loses: ``plan``, ``run`` and ``verify`` say the same of any source."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvstream import InvalidArgument, Store
from kvstream.cli import main
from kvstream.migration import LossRefused, Outcome, plan, run, verify
from kvstream.migration.copy import Carried
from kvstream.migration.runner import Progress
from kvstream.migration.server_target import losses_by_commands
from kvstream.rdb.file_writer import FileWriter
from kvstream.rdb.versions import NEWEST
from kvstream.spark.jobs.migration import MigrateOptions, Pair, _split
from kvstream.types.options import KEY_BYTES_MAX
from kvstream.types.thresholds import Thresholds
from tests.migration.conftest import Start
from tests.migration.servers import RedisServer
from tests.migration.test_append_only import log_of
from tests.migration.test_functions import put
from tests.migration.test_old_files import twice
from tests.opening import open_with
from tests.serving import ServerProcess

GOOD = "#!lua name=good\nredis.register_function('good', function() return 7 end)"
BAD = "#!lua name=bad\nserver.register_function('bad', function() return 8 end)"


def planned_losses(*places: Any, **options: Any) -> set[str]:
    return {loss.name for each in plan(*places, **options) for loss in each.losses}


def refused_losses(*places: Any, allow: Iterable[str] = (), **options: Any) -> set[str]:
    with pytest.raises(LossRefused) as refusal:
        run(*places, allow_loss=allow, **options)
    return {loss.name for loss in refusal.value.losses}


# --- kinds of losses ------------------------------------------------------------------------------


def of_streams(folder: Path) -> Path:
    """Return a store whose stream has what older servers lack."""
    with Store.open(folder / "streams") as store:
        stream = store.stream("s")
        ids = [stream.add({"n": str(n)}, id=f"{n}-1") for n in range(1, 9)]
        stream.create_group("g", start="0")
        stream.group("g").consumer("c").read(count=4)
        stream.group("g").nack(*ids[:2])
        stream.delete(ids[7])
        stream.add({"a": "1"}, idmp=("p", "i"))
    return folder / "streams"


def of_databases(folder: Path) -> Path:
    with Store.open(folder / "databases", databases=20) as store:
        store.stream("s").add({"a": 1})
        store.select(19).stream("high").add({"a": 1})
    return folder / "databases"


def of_functions(folder: Path) -> Path:
    put(folder / "functions", GOOD, BAD)
    return folder / "functions"


def of_other_types(folder: Path) -> Path:
    lines = ("HSET h a 1", "HSET h2 a 1", "RPUSH l 1", "SETBIT b 1 1")
    return log_of(folder, "XADD s 1-1 a 1", *lines)


def of_long_names(folder: Path) -> Path:
    with (folder / "long.rdb").open("wb") as file:
        writer = FileWriter(file, NEWEST)
        writer.string(0, b"n" * (KEY_BYTES_MAX + 1), b"value")
        writer.string(0, b"n", b"value")
        writer.finish()
    return folder / "long.rdb"


def of_repeated_keys(folder: Path) -> Path:
    (folder / "twice.rdb").write_bytes(twice())
    return folder / "twice.rdb"


KINDS: dict[str, tuple[Callable[[Path], Path], str | None]] = {
    "streams": (of_streams, "redis:6.2"),
    "functions": (of_functions, "redis:7.0"),
    "databases": (of_databases, None),
    "other-types": (of_other_types, None),
    "long-names": (of_long_names, None),
    "repeated-keys": (of_repeated_keys, "redis:7.0"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_refuses_what_the_plan_shows_and_nothing_else(kind: str, tmp_path: Path) -> None:
    make, version = KINDS[kind]
    places = make(tmp_path), tmp_path / ("out.rdb" if version else "out")
    options: Any = {"target_version": version} if version else {}
    lost = planned_losses(*places, **options)
    assert lost
    assert refused_losses(*places, **options) == lost
    for name in lost:
        assert refused_losses(*places, allow=lost - {name}, **options) == {name}
    assert not places[1].exists()
    assert run(*places, allow_loss=lost, **options).complete
    found = verify(*places)
    assert found.differences or found.skipped or found.uncompared or kind == "repeated-keys"
    assert planned_losses(*places, **options) == lost  # whatever is there by now


def stop_at(kind: str) -> Progress:
    """Return a progress that is interrupted after a key of a type."""

    def stop(carried: Carried) -> None:
        if carried.kind == kind:
            raise KeyboardInterrupt

    return Progress(key=stop)


def test_a_resumed_run_refuses_and_reports_what_a_whole_one_does(tmp_path: Path) -> None:
    log = of_other_types(tmp_path)
    whole = run(log, tmp_path / "whole", allow_loss=["other-types"])
    there = tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        run(log, there, allow_loss=["other-types"], progress=stop_at("stream"))
    assert refused_losses(log, there) == {"other-types"}
    resumed = run(log, there, allow_loss=["other-types"])
    assert (resumed.skipped, resumed.losses) == (whole.skipped, whole.losses)
    assert whole.skipped == {"hash": 2, "list": 1, "string (SETBIT)": 1}


def test_what_an_interrupted_run_lost_is_in_the_report_of_the_next(
    target: RedisServer, tmp_path: Path
) -> None:
    source = of_streams(tmp_path)
    lost = planned_losses(source, target.url)
    whole = run(source, target.url, allow_loss=lost)
    assert set(whole.losses) == lost
    again = run(source, target.url, allow_loss=lost)
    assert (again.outcomes, again.losses) == ({Outcome.SAME: 1}, whole.losses)
    target.client().flushall()
    with Store.open(source) as store:
        store.copy("s", "t")
    with pytest.raises(KeyboardInterrupt):
        run(source, target.url, allow_loss=lost, progress=stop_at("stream"))
    resumed = run(source, target.url, allow_loss=lost)
    assert resumed.resumed_keys == 1
    assert set(resumed.losses) == lost
    assert set(resumed.losses.values()) == {2}


# --- databases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["live", "file", "log"])
def test_databases_that_a_store_lacks_are_told_before_the_first_write(
    place: str, start_redis: Start, tmp_path: Path
) -> None:
    server = start_redis("many", "--databases", "20", "--appendonly", "yes")
    server.client().xadd("low", {"a": 1})
    server.client(db=19).xadd("high", {"a": 1})
    file, log = server.saved(), server.folder / "appendonlydir"
    places: dict[str, Any] = {"live": server.url, "file": file, "log": log}
    source = places[place]
    there = tmp_path / "store"
    assert planned_losses(source, there) == {"databases"}
    with pytest.raises(LossRefused, match=r"database 19 \(1 key\): .* --databases 20"):
        run(source, there)
    assert not there.exists()
    assert run(source, tmp_path / "chosen", databases=[0]).outcomes == {Outcome.COPIED: 1}
    assert planned_losses(source, there, target_databases=20) == set()
    assert run(source, there, target_databases=20).outcomes == {Outcome.COPIED: 2}
    assert verify(source, there).equal
    run(source, tmp_path / "low", allow_loss=["databases"])
    (found,) = verify(source, tmp_path / "low").differences
    assert (found.db, found.key, found.target) == (19, b"high", "absent")


def test_databases_of_a_store_go_where_there_are_as_many(
    target: RedisServer, tmp_path: Path
) -> None:
    store = of_databases(tmp_path)
    assert planned_losses(store, target.url) == {"databases"}
    assert refused_losses(store, target.url) == {"databases"}
    assert target.client().dbsize() == 0
    assert {each.db for each in verify(store, target.url).differences} == {0, 19}
    whole = run(store, tmp_path / "out.rdb", target_version="redis:7.0")
    assert whole.outcomes == {Outcome.COPIED: 2}
    words = ["migrate", "plan", str(store), str(tmp_path / "other.rdb")]
    assert "only with the setting `databases 20`" in CliRunner().invoke(main, words).stderr
    server = ServerProcess(store, "--databases", "20")
    try:
        shown = CliRunner().invoke(main, ["--url", f"redis://127.0.0.1:{server.port}/19", "ls"])
        assert "high" in shown.stdout
    finally:
        server.stop()


def test_a_number_of_databases_is_for_directories_only(tmp_path: Path) -> None:
    store = of_databases(tmp_path)
    targets: tuple[Any, ...] = (tmp_path / "out.rdb", "redis://127.0.0.1:1")
    for target in targets:
        with pytest.raises(InvalidArgument, match="only the directory of a store"):
            run(store, target, target_databases=20)


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line_shows_what_is_lost_and_how_to_allow_it(
    start_redis: Start, tmp_path: Path
) -> None:
    server = start_redis("many", "--databases", "20")
    server.client().xadd("s", {"a": 1})
    server.client().rpush("list", 1)
    server.client(db=19).xadd("high", {"a": 1})
    words = [server.url, str(tmp_path / "store")]
    shown = CliRunner().invoke(main, ["migrate", "plan", *words]).stdout
    assert "1 key to migrate, 2 to skip: database 19 (1 key), list (1 key)" in shown
    assert "run is refused unless --allow-loss databases,other-types is given" in shown
    refused = CliRunner().invoke(main, ["migrate", "run", *words])
    assert refused.exit_code == 1
    assert "list (1 key)" in refused.stderr
    assert "database 19 (1 key)" in refused.stderr
    options = ["--databases", "20", "--allow-loss", "other-types"]
    done = CliRunner().invoke(main, ["migrate", "run", *words, *options])
    assert (done.exit_code, "1 key of type list skipped" in done.stdout) == (0, True)
    equal = CliRunner().invoke(main, ["migrate", "verify", *words])
    assert equal.exit_code == 0
    assert "1 key of type list not compared" in equal.stdout


def test_a_plan_names_what_servers_have_beside_keys(source: RedisServer, tmp_path: Path) -> None:
    source.client().script_flush()
    source.client().eval("return 1", 0)
    source.client().acl_setuser("ann", enabled=True, nopass=True)
    shown = CliRunner().invoke(main, ["migrate", "plan", source.url, str(tmp_path / "store")])
    assert "scripts that the server keeps (1) are not migrated" in shown.stderr
    assert "users of the server (2) are not migrated" in shown.stderr


def test_commands_of_old_servers_lose_what_they_cannot_make(tmp_path: Path) -> None:
    with Store.open(of_streams(tmp_path)) as store:
        stream = store.stream("s")
        stream.group("g").create_consumer("idle")
        stream.configure(idmp_duration=7)
        image = store.image("s")
        assert image is not None
        state = image.state()
    lost = {
        version: {loss.name for loss in losses_by_commands(state, version)}
        for version in ((6, 0), (6, 2), (7, 0), (8, 6), (8, 8))
    }
    assert lost[8, 8] == {"active-time", "idempotency"}
    assert lost[8, 6] == lost[8, 8] | {"nacked"}
    assert lost[7, 0] == lost[8, 6] | {"idempotency-limits"}
    assert lost[6, 2] == lost[7, 0] | {"entries-added"}
    assert lost[6, 0] == lost[6, 2] | {"consumers"}


# --- what only some users may do ------------------------------------------------------------------


def test_a_source_without_dump_is_refused_before_the_first_key(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "served")
    try:
        with server.asker() as asker:
            asker.ask("SET a value")
            asker.ask("XADD s IDMP p i * f v")
            asker.ask("ACL SETUSER some on nopass ~* +@all -dump")
            asker.ask("ACL SETUSER other on nopass ~s +@all")
        url = f"redis://some:any@127.0.0.1:{server.port}"
        limited = f"redis://other:any@127.0.0.1:{server.port}"
        assert planned_losses(limited, tmp_path / "store", match=["s"]) == set()
        assert planned_losses(url, tmp_path / "store") == {"idempotency"}
        assert refused_losses(url, tmp_path / "store") == {"idempotency"}
        assert not (tmp_path / "store").exists()
    finally:
        server.stop()


# --- sizes ----------------------------------------------------------------------------------------


def test_what_is_above_a_limit_of_the_target_is_refused_before_the_first_write(
    source: RedisServer, target: RedisServer
) -> None:
    large = b"x" * (3 << 20)
    source.client().xadd("a", {"n": 1})
    source.client().set("small", "value")
    source.client().set("string", large)
    source.client().xadd("stream", {"n": large})
    target.client().config_set("proto-max-bulk-len", 2 << 20)
    assert planned_losses(source.url, target.url) == {"too-large"}
    with pytest.raises(LossRefused, match=f"a string of {3 << 20} bytes") as refusal:
        run(source.url, target.url)
    assert set(refusal.value.keys) == {b"string", b"stream"}
    assert target.client().dbsize() == 0
    report = run(source.url, target.url, allow_loss=["too-large"])
    assert report.outcomes == {Outcome.COPIED: 2, Outcome.SKIPPED: 2}
    absent = {each.key for each in verify(source.url, target.url).differences}
    assert absent == {b"string", b"stream"}


def test_spark_splits_no_stream_of_a_source_that_will_be_refused(
    source: RedisServer, tmp_path: Path
) -> None:
    for number in range(20):
        source.client().xadd("long", {"n": number})
    source.client().hset("h", "a", "1")
    pair = Pair(source.url, str(tmp_path / "store"))
    said: list[str] = []
    no_session: Any = None  # a split would need one
    assert _split(no_session, pair, MigrateOptions(), 10, said.append) == []
    assert said == []
    assert not (tmp_path / "store").exists()


def test_an_unfinished_load_of_a_store_is_named(
    tmp_path: Path,
) -> None:
    sizes = Thresholds(direct_entries=0)  # else it begins at the end
    with open_with(tmp_path / "store", sizes) as store:
        store.stream("s").add({"a": 1})
        image = store.image("s")
        assert image is not None
        with suppress(ZeroDivisionError), store.loader("half", label=b"label") as loader:
            for node in image.nodes():
                loader.node(node)
            raise ZeroDivisionError
        assert len(store.unfinished_loads()) == 1
    for word in ("plan", "run", "verify"):
        words = ["migrate", word, str(tmp_path / "store"), str(tmp_path / "other")]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        assert "an unfinished load of b'half' in database 0 is not migrated" in result.stderr
