"""Commands of operators: saving, stopping, waiting for the disk, monitoring."""

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pytest
import redis

from kvstream import Store
from tests.patience import PATIENCE_S, tries, until
from tests.server.asking import Asker, Failure
from tests.server.conftest import Serve, Served


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("checkpoint-*"))


def _await_save(client: redis.Redis) -> None:
    until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"])


# --- saving -------------------------------------------------------------------------------------


def test_a_save_is_an_independent_store(serve: Serve, tmp_path: Path, protocol: int) -> None:
    client = serve(checkpoint_dir=tmp_path / "saved").client(protocol)
    client.xadd("s", {"f": "v"}, id="1-1")
    before = int(time.time())
    assert client.save() is True
    client.xadd("s", {"f": "v"}, id="2-1")
    assert client.lastsave().timestamp() >= before
    (saved,) = _checkpoints(tmp_path / "saved")
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o700
    with Store.open(saved) as store:
        assert [str(entry.id) for entry in store.stream("s").range()] == ["1-1"]
        assert store.check() == []


def test_the_newest_saves_are_kept_and_nothing_else_is_touched(
    serve: Serve, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    (directory / "checkpoint-of-mine").mkdir(parents=True)
    client = serve(checkpoint_dir=directory, checkpoints_kept=2).client()
    for number in range(4):
        client.set("k", number)
        client.save()
    kept = [path for path in _checkpoints(directory) if path.name != "checkpoint-of-mine"]
    assert len(kept) == 2
    assert (directory / "checkpoint-of-mine").exists()
    with Store.open(kept[-1]) as store:
        assert store.check() == []


def test_a_save_removes_what_a_killed_one_has_left(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    left = directory / ".checkpoint-01795934414787000000-x1y2z3_4"
    mine = directory / ".checkpoint-of-mine"
    for folder in (left / "checkpoint-01795934414787000000.tmp", mine):
        folder.mkdir(parents=True)
        (folder / "000009.sst").write_bytes(b"rows")
    serve(checkpoint_dir=directory).client().save()
    assert not left.exists()
    assert mine.exists()
    assert len(_checkpoints(directory)) == 1


def test_a_save_in_the_background_is_one_at_a_time(serve: Serve, tmp_path: Path) -> None:
    served = serve(checkpoint_dir=tmp_path / "saved")
    go = threading.Event()
    database = served.engine.database
    checkpoint = database.checkpoint

    def held(target: Path, alone: AbstractContextManager[object]) -> None:
        assert go.wait(PATIENCE_S)
        checkpoint(target, alone)

    with served.asker() as asker, patch.object(database, "checkpoint", held):
        assert asker.ask("BGSAVE") == b"Background saving started"
        assert asker.ask("BGSAVE") == Failure("ERR Background save already in progress")
        assert asker.ask("SAVE") == Failure("ERR Background save already in progress")
        assert b"rdb_bgsave_in_progress:1\r\n" in asker.ask("INFO persistence")
        assert asker.ask("SET k v") == b"OK"
        go.set()
        _await_save(served.client())
        assert asker.ask("BGSAVE SCHEDULE") == b"Background saving started"
        _await_save(served.client())
    assert len(_checkpoints(tmp_path / "saved")) == 2


def test_a_save_inside_multi_is_scheduled(served: Served) -> None:
    with served.asker() as asker:
        for line in ("MULTI", "BGSAVE SCHEDULE", "BGREWRITEAOF"):
            asker.ask(line)
        assert asker.ask("EXEC") == [
            b"Background saving scheduled",
            b"Background append only file rewriting scheduled",
        ]
        _await_save(served.client())


def test_a_failed_save_reports_its_error_and_is_recorded(serve: Serve, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with serve(checkpoint_dir=blocked).asker() as asker:
        assert isinstance(asker.ask("SAVE"), Failure)
        assert b"rdb_last_bgsave_status:err\r\n" in asker.ask("INFO persistence")
        blocked.unlink()
        assert asker.ask("SAVE") == b"OK"
        assert b"rdb_last_bgsave_status:ok\r\n" in asker.ask("INFO persistence")


def test_without_a_directory_a_save_makes_all_writes_durable(served: Served) -> None:
    with (
        served.asker() as asker,
        patch.object(served.engine.committer, "sync", wraps=served.engine.committer.sync) as sync,
    ):
        asker.ask("SET k v")
        assert asker.ask("SAVE") == b"OK"
        assert sync.called
        assert served.engine.committer.durable_sequence == served.engine.seen_sequence


def test_other_clients_are_served_during_a_compaction(client: redis.Redis) -> None:
    for number in range(50):
        client.set(f"k{number}", "v" * 100)
    assert client.bgrewriteaof() in (True, b"Background append only file rewriting started")
    client.set("k", "v")
    until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    assert client.info("persistence")["aof_last_rewrite_time_sec"] >= 0


# --- waiting for the disk -----------------------------------------------------------------------


def test_waitaof_covers_the_earlier_writes_of_the_client(served: Served) -> None:
    with served.asker() as asker:
        asker.send("SET", "k", "v")
        asker.send("WAITAOF", "1", "0", "0")
        assert asker.read() == b"OK"
        assert asker.read() == [1, 0]
        assert served.engine.committer.durable_sequence == served.engine.seen_sequence


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("WAITAOF 0 0 0", [0, 0]),
        ("WAITAOF 0 1 30", [0, 0]),
        ("WAITAOF 2 0 0", Failure("ERR value is out of range, value must between 0 and 1")),
        ("WAITAOF 1 x 0", Failure("ERR value is out of range, must be positive")),
        ("WAITAOF 1 -1 0", Failure("ERR value is out of range, must be positive")),
        ("WAITAOF 1 0 -1", Failure("ERR timeout is negative")),
        ("WAITAOF 1 0 9223372036854775807", Failure("ERR timeout is out of range")),
        ("WAIT 1 9223372036854775807", Failure("ERR timeout is out of range")),
        ("WAIT 1 30", 0),
        ("WAIT 0 0", 0),
    ],
)
def test_wait_for_replicas_ends_at_its_timeout(served: Served, line: str, reply: object) -> None:
    with served.asker() as asker:
        begun = time.monotonic()
        assert asker.ask(line) == reply
        assert time.monotonic() - begun < 5


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "NOSAVE", "SAVE", "NOW FORCE"])
def test_shutdown_ends_the_connection_and_the_server(
    serve: Serve, tmp_path: Path, words: str
) -> None:
    served = serve(checkpoint_dir=tmp_path / "saved")
    with served.asker() as asker:
        asker.ask("SET k v")
        asker.send("SHUTDOWN", *words.split())
        with pytest.raises(EOFError):
            asker.read()
    assert served.stopped.wait(PATIENCE_S)
    served.join()
    assert len(_checkpoints(tmp_path / "saved")) == (1 if words == "SAVE" else 0)


# --- watching -----------------------------------------------------------------------------------


def test_a_monitor_of_redis_py(client: redis.Redis, served: Served) -> None:
    with client.monitor() as monitor, served.asker() as asker:  # type: ignore[no-untyped-call]
        asker.ask("XADD s 1-1 f v")
        reply = monitor.next_command()
    assert (reply["command"], reply["db"]) == ("XADD s 1-1 f v", 0)


def test_slow_commands_are_kept_as_redis_keeps_them(served: Served, redis_port: int) -> None:
    seen = []
    for port in (served.port, redis_port):
        with Asker(port) as asker:
            asker.ask("CLIENT SETNAME me")
            asker.ask("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 3")
            asker.ask("SLOWLOG RESET")
            asker.ask("ECHO one")
            asker.ask("ECHO", "x" * 300)
            asker.ask("DEL", *(f"k{number}" for number in range(50)))
            reply = asker.ask("SLOWLOG GET")
            assert [each[0] for each in reply] == sorted((each[0] for each in reply), reverse=True)
            assert all(abs(each[1] - time.time()) < 60 and each[2] >= 0 for each in reply)
            assert all(each[4].startswith(b"127.0.0.1:") and each[5] == b"me" for each in reply)
            seen.append([each[3] for each in reply])
            assert asker.ask("SLOWLOG LEN") == 3
            assert len(asker.ask("SLOWLOG GET 1")) == 1
            asker.ask("CONFIG SET slowlog-log-slower-than -1")
            asker.ask("SLOWLOG RESET")
            assert asker.ask("SLOWLOG GET -1") == []
            asker.ask("CONFIG SET slowlog-log-slower-than 10000 slowlog-max-len 128")
    assert seen[0] == seen[1]


def test_a_slow_command_has_its_number_of_words_and_bounded_ones(served: Served) -> None:
    with served.asker() as asker:
        limits = "slowlog-entry-max-argc 4 slowlog-entry-max-string-len 5"
        asker.ask(f"CONFIG SET slowlog-log-slower-than 0 {limits}")
        asker.ask("MSET", "key", "a" * 9, "x", "y", "z", "z")
        (mset,) = asker.ask("SLOWLOG GET 1")
        assert mset[3] == [b"MSET", b"key", b"aaaaa... (4 more bytes)", b"... (4 more arguments)"]
        assert mset[6] == 7
        asker.ask("CONFIG SET slowlog-entry-max-argc 2")
        asker.ask("DEL a b")
        after, _, _, before = asker.ask("SLOWLOG GET 4")
        assert after[3] == [b"DEL", b"... (2 more arguments)"]
        assert before == mset
        for setting, most in (("argc 1", 2147483647), ("string-len 0", 9223372036854775807)):
            least = 2 if "argc" in setting else 1
            error = asker.ask(f"CONFIG SET slowlog-entry-max-{setting}")
            assert error.endswith(f"argument must be between {least} and {most} inclusive")


def test_slow_calls_are_counted_until_a_reset_of_the_statistics(client: redis.Redis) -> None:
    client.config_set("slowlog-log-slower-than", 100_000)
    client.get("k")
    assert client.info("stats")["slowlog_commands_count"] == 0
    for seconds in (0.2, 0.3):
        client.execute_command("DEBUG", "SLEEP", seconds)  # type: ignore[no-untyped-call]
    client.slowlog_reset()
    slow, debug = client.info("stats"), client.info("commandstats")["cmdstat_debug"]
    assert slow["slowlog_commands_count"] == debug["slowlog_count"] == 2
    for figure, least in (("time_ms_sum", 500), ("time_ms_max", 300)):
        assert slow[f"slowlog_commands_{figure}"] == debug[f"slowlog_{figure}"] >= least
    assert "slowlog_count" not in client.info("commandstats")["cmdstat_get"]
    client.config_resetstat()
    assert client.info("stats")["slowlog_commands_time_ms_sum"] == 0


def test_redis_py_reads_the_slow_log(client: redis.Redis) -> None:
    client.config_set("slowlog-log-slower-than", 0)
    client.echo("hello")
    reply = client.slowlog_get(1)
    assert reply[0]["command"] == b"ECHO hello"
    assert client.slowlog_len() > 0


# --- the rest -----------------------------------------------------------------------------------


def test_debug_sleep_holds_the_server(served: Served) -> None:
    with served.asker() as asker, served.asker() as other:
        for each in tries():
            asker.send("DEBUG", "SLEEP", "0.3")
            time.sleep(0.05)
            begun = time.monotonic()
            other.ask("PING")
            took = time.monotonic() - begun
            assert asker.read() == b"OK"
            with each:
                assert took > 0.1


@pytest.mark.parametrize("word", ["RELOAD", "LOADAOF"])
def test_after_a_reload_all_is_read_from_disk_again(served: Served, word: str) -> None:
    with served.asker() as asker:
        asker.send("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        asker.send("XADD", "s", "1-1", "f", "v")
        asker.send("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        asker.send("DEBUG", word)
        asker.send("XADD", "s", "2-1", "f", "v")
        asker.send("XPENDING", "s", "g")
        replies = [asker.read() for _ in range(6)]
        assert replies[3] == b"OK"
        assert replies[5] == [1, b"1-1", b"1-1", [[b"c", b"1"]]]
        assert asker.ask("XLEN s") == 2


def test_debug_is_allowed_by_the_option(serve: Serve) -> None:
    with serve(enable_debug_command="no").asker() as asker:
        assert asker.ask("DEBUG RELOAD").startswith("ERR DEBUG command not allowed")
    with serve(enable_debug_command="yes").asker() as asker:
        assert asker.ask("DEBUG RELOAD") == b"OK"
        assert asker.ask("DEBUG JMAP").startswith("ERR unknown subcommand")


def test_the_time_is_that_of_the_machine(client: redis.Redis) -> None:
    seconds, microseconds = client.time()
    assert abs(seconds + microseconds / 1e6 - time.time()) < 5


def test_minor_commands_answer_as_clients_expect(client: redis.Redis) -> None:
    assert client.role() == [b"master", 0, []]
    assert client.script_flush() is True
    assert client.function_flush() in (True, "OK", b"OK")
    assert client.latency_latest() == []
    assert isinstance(client.lolwut(), bytes)
    assert client.command_count() == len(client.command())
    assert client.info("server")["process_id"] == os.getpid()
    assert client.command_getkeys("XADD", "s", "*", "f", "v") in ([b"s"], ["s"])


def test_a_slow_log_without_room_numbers_nothing(client: redis.Redis) -> None:
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 0)
    client.slowlog_reset()
    last = client.slowlog_len()
    for _ in range(3):
        client.ping()
    client.config_set("slowlog-max-len", 8)
    client.ping()
    numbers = [entry["id"] for entry in client.slowlog_get(8)]
    assert last == 0
    assert numbers[-1] <= 4  # the earlier and later requests have no numbers


def test_a_failed_exec_counts_as_a_failed_call(served: Served) -> None:
    with served.asker() as asker:
        asker.ask("EXEC")
        asker.ask("MULTI")
        asker.ask("NOSUCH")
        assert asker.ask("EXEC").startswith("EXECABORT")
        reply = asker.ask("INFO commandstats")
        (row,) = [line for line in reply.split(b"\r\n") if line.startswith(b"cmdstat_exec:")]
        assert row.startswith(b"cmdstat_exec:calls=2,")
        assert row.endswith(b"rejected_calls=0,failed_calls=2")


def test_an_error_that_ends_a_wait_is_counted(served: Served) -> None:
    with served.asker() as asker, served.asker() as member:
        asker.ask("XGROUP CREATE s g $ MKSTREAM")
        member.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
        until(lambda: b"blocked_clients:1\r\n" in asker.ask("INFO clients"))
        asker.ask("XGROUP DESTROY s g")
        assert member.read().startswith("NOGROUP")
        assert b"errorstat_NOGROUP:count=1" in asker.ask("INFO errorstats")
        assert b"cmdstat_xreadgroup:calls=1," in asker.ask("INFO commandstats")


def test_only_effective_commands_count_as_changes(served: Served) -> None:
    def changes() -> bytes:
        reply: bytes = asker.ask("INFO persistence")
        return reply.partition(b"rdb_changes_since_last_save:")[2].partition(b"\r\n")[0]

    with served.asker() as asker:
        for command in ("XADD s 1-1 f v", "XGROUP CREATE s g 0", "SET k v"):
            asker.ask(command)
        for command in (
            *("DEL missing", "XDEL s 9-9", "XACK s g 1-1", "SET k w NX", "EXPIRE missing 1"),
            *("XTRIM s MAXLEN 5", "XREADGROUP GROUP g c STREAMS s 0", "XADD k * f v", "GET k"),
        ):
            asker.ask(command)
        assert changes() == b"4"  # the consumer c is new
        asker.ask("XREADGROUP GROUP g c STREAMS s 0")
        assert changes() == b"4"
        asker.ask("XREADGROUP GROUP g c STREAMS s >")
        asker.ask("XREADGROUP GROUP g c STREAMS s 0")
        assert changes() == b"5"
        asker.ask("XACK s g 1-1")
        assert changes() == b"6"
        idle = ("DEL missing", "XDEL s 9-9", "XACK s g 1-1", "EXPIRE missing 1", "XADD k * f v")
        for command in ("MULTI", "SET k x", *idle, "EXEC"):
            asker.ask(command)
        assert changes() == b"7"


def test_reset_ends_a_monitor(served: Served) -> None:
    with served.asker() as monitor:
        monitor.ask("MONITOR")
        assert monitor.ask("RESET") == b"RESET"
        assert monitor.ask("PING") == b"PONG"


def test_a_client_sees_the_bytes_of_its_own_request(served: Served) -> None:
    with served.asker() as asker, served.asker() as other:
        other.ask("PING")
        assert b" qbuf=26 " in asker.ask("client list").split(b"\n")[0]
        assert b" qbuf=0 " in asker.ask("client list").split(b"\n")[1]
        assert b" qbuf=26 " in asker.ask("client info")


def test_every_subcommand_is_listed(served: Served) -> None:
    with served.asker() as asker:
        listed = asker.ask("COMMAND LIST")
        assert {b"xadd", b"xgroup", b"xgroup|create", b"client|list"} <= set(listed)
        assert len(listed) == len(set(listed))
