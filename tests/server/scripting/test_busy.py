"""Long scripts: other clients get BUSY, and may end the script or the server."""

from pathlib import Path

import pytest

from kvstream import Store
from tests.patience import PATIENCE_S
from tests.server.asking import Asker
from tests.server.conftest import Serve, Served
from tests.serving import ServerProcess

BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
ENDLESS = {
    "a loop": "while true do end",
    "a caught kill": "while true do pcall(function() while true do end end) end",
    "xpcall": "while true do xpcall(function() while true do end end, function() end) end",
    "an endless handler": (
        "while true do xpcall(function() error('x') end, function() while true do end end) end"
    ),
    "coroutines": (
        "while true do local c=coroutine.create(function() while true do end end) "
        "coroutine.resume(c) end"
    ),
    "nested coroutines": (
        "local function f() local c=coroutine.wrap(function() pcall(function() while true do end "
        "end) while true do end end) c() end while true do pcall(f) end"
    ),
    "a comparison": "table.sort({3,2,1,5,4}, function(a,b) while true do end end)",
    "a replacement": "string.gsub('x','x',function() while true do end end)",
    "a metamethod": "local t=setmetatable({},{__index=function() while true do end end}) x=t.y",
    "a reader": "load(function() while true do end end)",
    "full memory": (
        "local t={} pcall(function() while true do t[#t+1]={} end end) while true do end"
    ),
    "full memory, and calls": (
        "local t={} pcall(function() while true do t[#t+1]=('x'):rep(#t) end end) "
        "while true do pcall(redis.call,'get','k') pcall(redis.sha1hex,'x') end"
    ),
    "calls": "while true do redis.pcall('get','k') end",
    "short coroutines that run short coroutines": (
        "local function leaf() for i=1,2000 do end end "
        "local function middle() for i=1,1500 do coroutine.wrap(leaf)() end end "
        "while true do for i=1,100 do coroutine.wrap(middle)() end end"
    ),
    "yields": (
        "local c=coroutine.wrap(function() while true do for i=1,50 do end coroutine.yield() end "
        "end) while true do c() end"
    ),
    "long texts": "while true do local s=('x'):rep(200000) end",
    "long texts after short loops": (
        "for i=1,1000000 do end while true do local s=('x'):rep(200000) end"
    ),
}
FILLING = ("full memory", "full memory, and calls")
"""Scripts that may end before the kill, since they run out of memory."""


def started(ann: Asker, bob: Asker, script: str) -> None:
    """Run a script of Ann until Bob gets BUSY."""
    ann.send("EVAL", script, "0")
    while bob.ask("PING") != BUSY:
        pass


@pytest.fixture
def quick(serve: Serve) -> Served:
    """A server with a low limit for long scripts."""
    return serve(busy_reply_ms=20, script_memory=8 << 20)


@pytest.mark.parametrize("script", ENDLESS.values(), ids=ENDLESS)
def test_any_endless_script_is_ended(quick: Served, script: str) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        started(ann, bob, script)
        fills = script in [ENDLESS[name] for name in FILLING]
        assert bob.ask("SCRIPT KILL") == b"OK" or fills
        said = ann.read()
        killed = said.startswith("ERR Script killed by user with SCRIPT KILL... ")
        assert killed or (fills and said.startswith("ERR not enough memory"))
        assert bob.ask("PING") == ann.ask("PING") == b"PONG"
        assert ann.ask("EVAL", "return 1", "0") == 1


def test_clients_of_the_same_turn_are_answered(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        assert ann.ask("EVAL", "return 1", "0") == 1  # turns may be suspended from now on
        for name in ("one", "another"):
            assert bob.ask("PING") == b"PONG"  # what epoll knows of ann is then up to date
            quick.hold()  # the requests of both arrive before it is over
            bob.send("PING")
            ann.send("EVAL", f"--{name}\nwhile true do end", "0")
            assert bob.read() == b"PONG"
            while bob.ask("PING") != BUSY:
                pass
            assert bob.ask("SCRIPT KILL") == b"OK"
            assert ann.read().startswith("ERR Script killed by user")


def test_other_clients_get_busy_except_for_the_commands_that_redis_allows(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        started(ann, bob, "while true do end")
        assert bob.ask("GET k") == BUSY
        assert bob.ask("EVAL", "return 1", "0") == BUSY
        assert bob.ask("SHUTDOWN") == BUSY
        assert bob.ask("nosuch").startswith("ERR unknown command 'nosuch'")
        assert bob.ask("MULTI") == b"OK"
        assert bob.ask("SET k 1") == BUSY
        assert bob.ask("EXEC") == f"EXECABORT Transaction discarded because of: {BUSY}"
        for _ in range(2):
            bob.send("XADD", "s", "*", "f", "v")
        assert [bob.read(), bob.read()] == [BUSY, BUSY]
        with Asker(quick.port) as new:
            assert new.ask("HELLO 3")[b"proto"] == 3
            assert new.ask("RESET") == b"RESET"
            assert new.ask("QUIT") == b"OK"
        assert bob.ask("SCRIPT KILL") == b"OK"
        ann.read()
        assert bob.ask("XLEN s") == 0


def test_a_script_that_has_written_is_undone_when_the_server_stops(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store")
    with server.asker() as ann, server.asker() as bob:
        bob.ask("CONFIG SET busy-reply-threshold 20")
        started(ann, bob, "redis.call('set','k','1') while true do end")
        for kill in ("SCRIPT KILL", "FUNCTION KILL"):
            assert bob.ask(kill).startswith("UNKILLABLE Sorry the script already executed")
        assert bob.ask("PING") == BUSY
        bob.send("SHUTDOWN", "NOSAVE")
        assert server.process.wait(PATIENCE_S) == 0
    server.process.communicate()
    with Store.open(tmp_path / "store") as store:
        assert "k" not in store


def test_the_writes_of_a_long_script_are_one_commit(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        script = (
            "redis.call('set','a','1') for i=1,20000000 do end redis.call('set','b','2') "
            "return 'done'"
        )
        started(ann, bob, script)
        assert ann.read() == b"done"
        while (said := bob.ask("MGET a b")) == BUSY:
            pass
        assert said == [b"1", b"2"]


def test_a_client_that_disconnects_does_not_end_its_script(quick: Served) -> None:
    with Asker(quick.port) as bob:
        with Asker(quick.port) as ann:
            started(ann, bob, "for i=1,20000000 do end redis.call('set','k','1')")
        while (said := bob.ask("GET k")) == BUSY:
            pass
        assert said == b"1"


def test_scripts_of_transactions_are_long_too(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        ann.ask("MULTI")
        ann.ask("EVAL", "while true do end", "0")
        ann.ask("PING")
        ann.send("EXEC")
        while bob.ask("PING") != BUSY:
            pass
        assert bob.ask("SCRIPT KILL") == b"OK"
        killed, pong = ann.read()
        assert killed.startswith("ERR Script killed by user")
        assert pong == b"PONG"


def test_blocked_clients_keep_waiting_during_a_long_script(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob, Asker(quick.port) as eve:
        eve.send("XREAD", "BLOCK", "1", "STREAMS", "s", "$")
        eve.read()
        eve.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        while b"blocked_clients:1\r\n" not in bob.ask("INFO clients"):
            pass
        started(ann, bob, "redis.call('xadd','s','1-1','f','v') for i=1,10000000 do end")
        assert eve.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]


def test_kill_without_a_script(served: Served) -> None:
    with Asker(served.port) as ann:
        assert ann.ask("SCRIPT KILL") == "NOTBUSY No scripts in execution right now."


def test_scripts_are_compiled_after_a_kill(quick: Served) -> None:
    with Asker(quick.port) as ann, Asker(quick.port) as bob:
        for number in range(3):
            started(ann, bob, f"--{number}\nwhile true do end")
            assert bob.ask("SCRIPT KILL") == b"OK"
            assert ann.read().startswith("ERR Script killed by user")
            numbers = ",".join(map(str, range(20000)))
            script = f"local function f(...) return ... end return f(#{{{numbers},{number}}})"
            assert ann.ask("EVAL", script, "0") == 20001
