"""Scripts in a turn: one commit, transactions, statistics, tracking, the cache, the ACL."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.server.scripting.script import EVAL_SCRIPTS_MAX
from tests.server.asking import Asker
from tests.server.conftest import Served
from tests.server.talking import Server, sound

UNLOCK = (
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with sound(tmp_path / "store") as server:
        yield server


def sha(script: str) -> str:
    return hashlib.sha1(script.encode()).hexdigest()


def test_a_lock_is_released_only_by_its_owner(server: Server) -> None:
    ann = server.client()
    ann.ask("SET", "lock", "token")
    assert ann.ask("EVAL", UNLOCK, "1", "lock", "other") == b":0\r\n"
    assert ann.ask("EVALSHA", sha(UNLOCK), "1", "lock", "token") == b":1\r\n"
    assert ann.ask("GET", "lock") == b"$-1\r\n"


def test_writes_before_an_error_stay(server: Server) -> None:
    ann = server.client()
    script = "redis.call('set','a','1') redis.call('incr','a','b')"
    assert ann.ask("EVAL", script, "0").startswith(b"-ERR Wrong number of args")
    assert ann.ask("GET", "a") == b"$1\r\n1\r\n"


def test_a_script_of_a_transaction_sees_its_writes(server: Server) -> None:
    ann = server.client()
    for words in (("MULTI",), ("SET", "a", "5"), ("EVAL", "return redis.call('incr','a')", "0")):
        ann.ask(*words)
    assert ann.ask("EXEC") == b"*2\r\n+OK\r\n:6\r\n"


def test_a_script_changes_a_watched_key(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.ask("WATCH", "a")
    bob.ask("EVAL", "redis.call('set','a','1')", "0")
    ann.ask("MULTI")
    ann.ask("PING")
    assert ann.ask("EXEC") == b"*-1\r\n"


def test_a_script_serves_a_blocked_reader_after_its_end(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    server.turn()
    bob.ask("EVAL", "for i=1,3 do redis.call('xadd','s',i..'-1','f',i) end", "0")
    assert ann.heard().count(b"-1\r\n*2") == 3


def test_a_script_does_not_change_the_database_of_its_client(server: Server) -> None:
    ann = server.client()
    ann.ask("SELECT", "2")
    ann.ask("EVAL", "redis.call('select',3) redis.call('set','a','in 3')", "0")
    assert ann.ask("GET", "a") == b"$-1\r\n"
    ann.ask("SELECT", "3")
    assert ann.ask("GET", "a") == b"$4\r\nin 3\r\n"


def test_time_does_not_advance_in_a_script(server: Server) -> None:
    ann = server.client()
    script = (
        "redis.call('set','a','1','px',1) local n=0 for i=1,2000000 do n=n+i end "
        "return redis.call('get','a')"
    )
    assert ann.ask("EVAL", script, "0") == b"$1\r\n1\r\n"


def test_blocking_commands_do_not_block(server: Server) -> None:
    ann = server.client()
    ann.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for command in (
        "'xread','block','0','streams','s','$'",
        "'xreadgroup','group','g','c','block','0','streams','s','>'",
    ):
        assert ann.ask("EVAL", f"return redis.call({command})==false", "0") == b":1\r\n"


def test_scripts_of_eval_are_evicted_in_the_order_of_use(server: Server) -> None:
    ann = server.client()
    ann.ask("SCRIPT", "LOAD", "return 'kept'")
    ann.ask("EVAL", "return 'loaded later'", "0")
    ann.ask("SCRIPT", "LOAD", "return 'loaded later'")
    ann.ask("EVAL", "return 'used'", "0")
    ann.ask("EVAL", "return 'unused'", "0")
    for number in range(EVAL_SCRIPTS_MAX - 1):
        ann.ask("EVAL", f"return {number}", "0")
        ann.ask("EVALSHA", sha("return 'used'"), "0")
    hashes = [sha(f"return '{word}'") for word in ("kept", "loaded later", "used", "unused")]
    assert ann.ask("SCRIPT", "EXISTS", *hashes) == b"*4\r\n:1\r\n:1\r\n:1\r\n:0\r\n"
    info = ann.ask("INFO", "memory", "stats").decode()
    assert f"number_of_cached_scripts:{EVAL_SCRIPTS_MAX + 2}\r\n" in info
    assert "evicted_scripts:1\r\n" in info


def test_flushed_scripts_are_gone(server: Server) -> None:
    ann = server.client()
    digest = ann.ask("SCRIPT", "LOAD", "return 1").split(b"\r\n")[1]
    assert ann.ask("SCRIPT", "SHOW", digest) == b"$8\r\nreturn 1\r\n"
    ann.ask("SCRIPT", "FLUSH")
    assert ann.ask("EVALSHA", digest, "0").startswith(b"-NOSCRIPT ")
    assert ann.ask("SCRIPT", "SHOW", digest).startswith(b"-NOSCRIPT ")
    assert b"used_memory_lua:0\r\n" in ann.ask("INFO", "memory")


def test_many_arguments_and_large_replies(server: Server) -> None:
    ann = server.client()
    args = [str(number) for number in range(20_000)]
    script = "return {#KEYS, #ARGV, KEYS[10000], ARGV[10000]}"
    said = ann.ask("EVAL", script, "10000", *args)
    assert said == b"*4\r\n:10000\r\n:10000\r\n$4\r\n9999\r\n$5\r\n19999\r\n"
    assert ann.ask("EVAL", "return #('x'):rep(5000000)", "0") == b":5000000\r\n"
    ann.ask("SET", "big", "x" * 3_000_000)
    assert ann.ask("EVAL", "return #redis.call('get','big')", "0") == b":3000000\r\n"
    entries = "for i=1,5000 do redis.call('xadd','s','*','f',i) end "
    entries += "return #redis.call('xrange','s','-','+')"
    assert ann.ask("EVAL", entries, "0") == b":5000\r\n"


def test_a_reply_is_nested_as_deeply_as_in_redis(server: Server) -> None:
    said = server.client().ask("EVAL", "local t={} t[1]=t return t", "0")
    assert said == b"*1\r\n" * 7995 + b"-ERR reached lua stack limit\r\n"


def test_running_out_of_memory_is_an_error_and_the_next_script_runs(server: Server) -> None:
    server.executor.options.script_memory = 8 << 20
    ann = server.client()
    for script in (
        "local t={} while true do t[#t+1]={} end",
        "return ('x'):rep(1e9)",
        "local t={} t[1]=t t[2]=t return t",
        "local s='x' while true do s=s..s end",
        "local t={} while true do redis.call('append','k','x') t[#t+1]=redis.call('get','k') end",
    ):
        ann.ask("SET", "k", "x" * 100_000)
        assert ann.ask("EVAL", script, "0").startswith(b"-ERR "), script
        assert ann.ask("EVAL", "return 1", "0") == b":1\r\n"
    assert ann.ask("EVAL", "return 1", "0", "x" * (20 << 20)).startswith(b"-ERR ")
    assert ann.ask("EVAL", "return 1", "0") == b":1\r\n"


def test_without_lupa_one_error_names_the_package_to_install(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lupa.lua51", None)
    said = server.client().ask("EVAL", "return 1", "0")
    assert said == b"-ERR scripts need the package lupa: pip install 'kvstream-db[server]'\r\n"


@pytest.mark.parametrize("name", ["redis82_port", "served"])
def test_rights_statistics_and_monitor_are_those_of_redis(
    name: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(name)
    port = found.port if isinstance(found, Served) else found
    with Asker(port) as ann, Asker(port) as bob, Asker(port) as eve:
        ann.ask("ACL LOG RESET")
        ann.ask("CONFIG RESETSTAT")
        ann.ask("ACL SETUSER u reset on nopass +@all -set ~k* %R~r*")
        bob.ask("AUTH u x")
        refused = "ERR ACL failure in script: "
        for script, said in (
            (
                "return redis.call('set','k','1')",
                "User u has no permissions to run the 'set' command",
            ),
            ("return redis.call('get','z')", "No permissions to access a key"),
            ("return redis.call('append','r','x')", "No permissions to access a key"),
            ("return redis.call('publish','c','x')", "No permissions to access a channel"),
        ):
            assert bob.ask("EVAL", script, "0").startswith(refused + said)
        log = [entry[1:8:2] for entry in ann.ask("ACL LOG")]
        assert [row[1:] for row in log] == [
            [b"channel", b"lua", b"c"],
            *([b"key", b"lua", key] for key in (b"r", b"z")),
            [b"command", b"lua", b"set"],
        ]
        ann.ask("SET", "st", "text")
        for script in ("redis.call('incr','st')", "redis.pcall('incr','st')", "error('x')"):
            ann.ask("EVAL", script, "0")
        for script in ("return {err='OWN x'}", "redis.call('get')", "redis.pcall('nosuch')"):
            ann.ask("EVAL", script, "0")
        stats = ann.ask("INFO commandstats errorstats stats").decode()
        assert "errorstat_ERR:count=9\r\n" in stats
        assert "errorstat_OWN:count=1\r\n" in stats
        assert "total_error_replies:10\r\n" in stats
        assert "rejected_calls=1,failed_calls=0" in _line(stats, "cmdstat_set:")
        assert "rejected_calls=0,failed_calls=8" in _line(stats, "cmdstat_eval:")
        assert "calls=2," in _line(stats, "cmdstat_incr:")
        eve.ask("MONITOR")
        ann.ask("EVAL", "redis.call('select',3) redis.call('ping')", "0")
        lines = [eve.read().split(b"]", 1) for _ in range(3)]
        assert [line.split(b"[")[1].split()[0] for line, _ in lines] == [b"0", b"3", b"3"]
        assert [line.endswith(b" lua") for line, _ in lines] == [False, True, True]


def _line(text: str, begin: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(begin))


def test_a_paused_server_holds_scripts(server: Server) -> None:
    ann, bob = server.client(), server.client()
    ann.ask("CLIENT", "PAUSE", "10000", "WRITE")
    bob.send("EVAL", "return 1", "0")
    server.turn()
    assert not bob.has_heard
    assert ann.ask("EVAL_RO", "return 1", "0") == b":1\r\n"
    server.wait(11)
    assert bob.heard() == b":1\r\n"


LIBRARY = """#!lua name=paused
redis.register_function{
  function_name='reads', callback=function() return 1 end, flags={'no-writes'}
}
redis.register_function('writes', function() return 1 end)
"""
READS = "#!lua flags=no-writes\nreturn 1"


def test_a_paused_server_runs_scripts_that_say_they_only_read(server: Server) -> None:
    ann = server.client()
    ann.ask("FUNCTION", "LOAD", LIBRARY)
    ann.ask("SCRIPT", "LOAD", READS)
    ann.ask("CLIENT", "PAUSE", "10000", "WRITE")
    for words in (("EVAL", READS), ("EVAL", f"{READS} "), ("EVALSHA", sha(READS))):
        assert ann.ask(*words, "0") == b":1\r\n"
    assert ann.ask("FCALL", "READS", "0") == b":1\r\n"
    ann.ask("MULTI")
    ann.ask("EVAL", READS, "0")
    assert ann.ask("EXEC") == b"*1\r\n:1\r\n"


@pytest.mark.parametrize(
    "words",
    [
        ("EVAL", "#!lua\nreturn 1", "0"),
        ("EVAL", "#!lua flags=nonsense\nreturn 1", "0"),
        ("EVALSHA", 40 * "a", "0"),
        ("FCALL", "writes", "0"),
        ("FCALL", "nosuch", "0"),
    ],
)
def test_a_paused_server_holds_scripts_that_may_write(
    server: Server, words: tuple[str, ...]
) -> None:
    ann, bob = server.client(), server.client()
    ann.ask("FUNCTION", "LOAD", LIBRARY)
    ann.ask("CLIENT", "PAUSE", "10000", "WRITE")
    assert ann.ask(*words) == b""
    for each in (("MULTI",), words):
        bob.ask(*each)
    assert bob.ask("EXEC") == b""
    server.wait(11)
    assert ann.has_heard
    assert bob.has_heard


@pytest.mark.parametrize(
    "words", [("EVAL", "return 1"), ("EVALSHA", "x"), ("FCALL", "f"), ("MSETEX",)]
)
def test_a_number_of_keys_with_very_many_digits_is_refused(
    server: Server, words: tuple[str, ...]
) -> None:
    ann = server.client()
    request = *words, 5000 * "9", "a", "b"
    assert ann.ask(*request)[:1] == b"-"
    assert ann.ask("COMMAND", "GETKEYS", *request) != b""


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("2 a b c", b"*2\r\n$1\r\na\r\n$1\r\nc\r\n"),
        ("3 a b c d", b"-ERR Invalid arguments specified for command\r\n"),
    ],
)
def test_the_keys_of_msetex_are_within_its_arguments(
    server: Server, words: str, reply: bytes
) -> None:
    assert server.client().ask("COMMAND", "GETKEYS", "MSETEX", *words.split()) == reply


def test_a_script_publishes_only_to_the_channels_of_its_user(served: Served) -> None:
    with Asker(served.port) as ann:
        ann.ask("ACL SETUSER u reset on nopass +@all ~* &ours*")
        ann.ask("AUTH u x")
        for name in ("publish", "spublish"):
            said = ann.ask("EVAL", f"return redis.call('{name}','theirs','x')", "0")
            assert said.startswith("ERR ACL failure in script: No permissions to access a channel")
            assert ann.ask("EVAL", f"return redis.call('{name}','ours','x')", "0") == 0
