"""FUNCTION and FCALL answer as redis-server does, and libraries survive a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import kvstream
from kvstream.operations import functions as operations
from tests.patience import PATIENCE_S, until
from tests.server.asking import Asker
from tests.server.conftest import Serve, Served
from tests.serving import ServerProcess

pytest.importorskip("lupa.lua51")


def restore(client: redis.Redis, *argv: bytes | str) -> None:
    client.execute_command("FUNCTION RESTORE", *argv)  # type: ignore[no-untyped-call]


def library(code: str, name: str = "lib") -> str:
    return f"#!lua name={name}\n{code}"


BUSY = "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."


def function(body: str, name: str = "f", flags: str = "") -> str:
    """Return the text of a library with one function."""
    return library(
        f"redis.register_function{{function_name='{name}', flags={{{flags}}}, "
        f"callback=function(keys, args) {body} end}}"
    )


REGISTERED = """
redis.register_function('f')
redis.register_function()
redis.register_function(1, 2, 3)
redis.register_function('f', 1)
redis.register_function({}, function() end)
redis.register_function(5, function() end)
redis.register_function{function_name='f'}
redis.register_function{callback=function() end}
redis.register_function{function_name='f', callback=function() end, more=1}
redis.register_function{function_name={}, callback=function() end}
redis.register_function{function_name='f', callback=1}
redis.register_function{function_name='f', callback=function() end, flags=1}
redis.register_function{function_name='f', callback=function() end, flags={'x'}}
redis.register_function{function_name='f', callback=function() end, flags={{}}}
redis.register_function{function_name='f', callback=function() end, description={}}
redis.register_function{function_name='f', callback=function() end, [{}]=2}
redis.register_function{FUNCTION_NAME='f', Callback=function() end, Flags={'NO-WRITES'}}
redis.register_function('f', function() end) redis.register_function('f', function() end)
redis.register_function('f-1', function() end)
redis.register_function('', function() end)
redis.register_function('f', function() end) error('late')
local x = 1 +
return 1
redis.call('get', 'x')
redis.pcall('get', 'x')
redis.setresp(3)
redis.sha1hex('x')
math.random()
string.rep('a', 3)
cjson.encode({})
print('x')
loadstring('return 1')
pcall(function() end)
setmetatable(redis, {})
x = 1
redis.x = 1
redis.register_function = 1
local x = ('x'):upper() redis.register_function(x, function() end)
redis.log(redis.LOG_DEBUG, redis.REDIS_VERSION) redis.register_function('f', function() end)
""".strip().split("\n")
"""Libraries; each replaces the one before."""

BODIES = """
return 1
return {keys, args}
return {#keys, #args}
return KEYS
return ARGV
return redis.register_function('g', function() end)
return redis.pcall('register_function')
x = 1 return x
redis.x = 1
error('oh')
error({err='CODE oh'})
return redis.error_reply('CODE oh')
return redis.call('nosuch')
return redis.call('set', 'k', 'v')
return redis.call('get', 'k')
return redis.call('function', 'list')
return redis.call('fcall', 'f', 0)
return redis.call('eval', 'return 1', 0)
return cjson.encode({redis.sha1hex(''), 1})
return cjson.decode('[')
return loadstring('return a')()
return {redis.breakpoint == nil, redis.replicate_commands == nil, redis.set_repl == nil}
return tostring(redis.nosuch)
return _G.redis == redis
redis.setresp(3) return {double=1.5}
local t = {} t[1] = t return #t
return pcall(function() nosuch = 1 end)
""".strip().split("\n")

HEADERS = [
    *("", "return 1", "#!lua name=a", "#!lua\nx", "#!lua name=a-b\nx", "#!lua name=\nx"),
    *("#!lua name=a name=b\nx", "#!lua bla=1\nx", "#!lua name=a bla\nx", "#!js name=a\nx"),
    *('#!lua name="a"\nreturn 1', '#!lua name="a\nx', "#!LUA name=a\nreturn 1"),
]

REQUESTS: list[tuple[str, ...]] = [
    ("FUNCTION", "FLUSH"),
    *(("FUNCTION", "LOAD", text) for text in HEADERS),
    *(("FUNCTION", "LOAD", "REPLACE", library(code)) for code in REGISTERED),
    ("FUNCTION", "FLUSH", "SYNC"),
    *(
        request
        for body in BODIES
        for request in [
            ("FUNCTION", "LOAD", "REPLACE", function(body)),
            ("FCALL", "f", "1", "key", "a", "b"),
            ("FCALL_RO", "f", "0"),
            ("FUNCTION", "LOAD", "REPLACE", function(body, flags="'no-writes'")),
            ("FCALL", "f", "0"),
            ("FCALL_RO", "F", "0"),
        ]
    ),
    ("FUNCTION", "LOAD", function("return 1")),
    ("FUNCTION", "LOAD", function("return 1").replace("name=lib", "name=other")),
    ("FUNCTION", "LOAD", "REPLACE", function("return 2", flags="'allow-oom', 'allow-stale'")),
    ("FUNCTION", "LOAD", "REPLACE", "REPLACE", function("return 3", flags="'no-cluster'")),
    ("FUNCTION", "LOAD", "X", function("return 1")),
    ("FUNCTION", "LOAD"),
    ("FUNCTION", "LOAD", "REPLACE"),
    ("FUNCTION", "LIST"),
    ("FUNCTION", "LIST", "WITHCODE"),
    ("FUNCTION", "LIST", "LIBRARYNAME", "L*", "withcode"),
    ("FUNCTION", "LIST", "LIBRARYNAME", "x*"),
    ("FUNCTION", "LIST", "LIBRARYNAME"),
    ("FUNCTION", "LIST", "WITHCODE", "WITHCODE"),
    ("FUNCTION", "LIST", "LIBRARYNAME", "a", "LIBRARYNAME", "b"),
    ("FUNCTION", "LIST", "X"),
    ("FUNCTION", "STATS"),
    ("FUNCTION", "DUMP"),
    ("FUNCTION", "DUMP", "x"),
    ("FUNCTION", "KILL"),
    ("FUNCTION", "KILL", "x"),
    ("FUNCTION", "RESTORE", "x"),
    ("FUNCTION", "RESTORE", "x", "X"),
    ("FUNCTION", "RESTORE", "x", "FLUSH", "x"),
    ("FUNCTION", "FLUSH", "X"),
    ("FUNCTION", "FLUSH", "SYNC", "x"),
    ("FUNCTION", "DELETE"),
    ("FUNCTION", "DELETE", "nosuch"),
    ("FUNCTION", "NOSUCH"),
    ("FUNCTION",),
    ("FCALL",),
    ("FCALL", "nosuch", "0"),
    ("FCALL", "f", "x"),
    ("FCALL", "f", "-1"),
    ("FCALL", "f", "2", "a"),
    ("FUNCTION", "DELETE", "lib"),
    ("FCALL", "f", "0"),
    ("FUNCTION", "STATS"),
    ("COMMAND", "GETKEYS", "FCALL", "f", "2", "a", "b", "c"),
    ("COMMAND", "GETKEYS", "FCALL_RO", "f", "0"),
    ("COMMAND", "GETKEYSANDFLAGS", "FCALL", "f", "1", "a"),
    ("COMMAND", "GETKEYSANDFLAGS", "FCALL_RO", "f", "1", "a"),
]


@pytest.mark.parametrize("protocol", [2, 3])
def test_functions_answer_as_redis(served: Served, redis_port: int, protocol: int) -> None:
    with Asker(redis_port, protocol) as theirs, Asker(served.port, protocol) as ours:
        for request in REQUESTS:
            said = theirs.ask(*request), ours.ask(*request)
            assert said[1] == said[0], request
            assert type(said[1]) is type(said[0]), request


def test_two_names_of_a_library_may_differ_only_in_case(serve: Serve) -> None:
    code = "".join(
        f"redis.register_function('{name}', function() return '{name}' end) " for name in ("f", "F")
    )
    with Asker(serve().port) as ours:
        assert ours.ask("FUNCTION", "LOAD", library(code)) == b"lib"
        assert [ours.ask("FCALL", name, "0") for name in ("f", "F")] == [b"f", b"F"]
        rows = ours.ask("FUNCTION LIST")[0][5]
        assert [row[1] for row in rows] == [b"f", b"F"]
        other = library("redis.register_function('F', function() end)", "other")
        assert ours.ask("FUNCTION", "LOAD", other) == "ERR Function F already exists"
        assert ours.ask("FUNCTION", "LOAD", "REPLACE", function("return 1", "G")) == b"lib"
        assert ours.ask("FCALL", "f", "0") == "ERR Function not found"
        assert ours.ask("FCALL", "g", "0") == 1


def test_a_load_that_takes_too_long_is_refused_and_changes_nothing(served: Served) -> None:
    client = served.client()
    client.function_load(function("return 1"))
    with pytest.raises(redis.ResponseError, match="ERR FUNCTION LOAD timeout"):
        client.function_load(library("while true do end"), replace=True)
    assert client.fcall("f", 0) == 1


def test_local_variables_of_a_library_are_kept(served: Served) -> None:
    client = served.client()
    counting = "local n = 0 redis.register_function('f', function() n = n + 1 return n end)"
    client.function_load(library(counting))
    assert [client.fcall("f", 0) for _ in range(3)] == [1, 2, 3]
    client.function_load(function("return 1", "g").replace("name=lib", "name=other"))
    assert client.fcall("f", 0) == 4


# --- payloads -------------------------------------------------------------------------------------


def test_payloads_survive_the_way_to_redis_and_back(served: Served, redis_port: int) -> None:
    ours = served.client()
    theirs = redis.Redis(port=redis_port)
    theirs.function_flush()
    texts = [function("return 1", "one"), function("return 2", "two").replace("lib", "other", 1)]
    for text in texts:
        ours.function_load(text)
    restore(theirs, ours.function_dump())
    assert theirs.fcall("two", 0) == 2
    ours.function_flush()
    restore(ours, theirs.function_dump())
    assert ours.fcall("one", 0) == 1
    theirs.function_flush()
    theirs.close()


def test_a_restore_is_atomic(served: Served) -> None:
    client = served.client()
    client.function_load(function("return 1", "one"))
    client.function_load(function("return 2", "two").replace("lib", "other", 1))
    payload = client.function_dump()
    with pytest.raises(redis.ResponseError, match="Library lib already exists"):
        restore(client, payload)
    restore(client, payload, "REPLACE")
    client.function_flush()
    client.function_load(function("return 3", "two").replace("lib", "third", 1))
    with pytest.raises(redis.ResponseError, match="Function two already exists"):
        restore(client, payload, "REPLACE")
    assert client.fcall("two", 0) == 3
    client.function_load(function("return 0", "zero"))
    with pytest.raises(redis.ResponseError, match="Library lib already exists"):
        restore(client, payload)
    restore(client, payload, "FLUSH")
    assert (client.fcall("one", 0), client.fcall("two", 0)) == (1, 2)
    assert len(client.function_list()) == 2


# --- transactions ---------------------------------------------------------------------------------


def test_functions_run_inside_exec(served: Served) -> None:
    client = served.client()
    with client.pipeline() as pipeline:
        pipeline.function_load(function("return redis.call('incr', 'n')"))
        pipeline.fcall("f", 0)
        pipeline.fcall("f", 0)
        assert pipeline.execute() == [b"lib", 1, 2]


def test_users_need_the_category_and_the_keys(served: Served) -> None:
    admin = served.client()
    admin.function_load(function("return redis.call('set', keys[1], 'v')"))
    admin.acl_setuser("ann", enabled=True, nopass=True, keys=["a*"], categories=["+@all"])
    admin.acl_setuser(
        "bob", enabled=True, nopass=True, keys=["*"], categories=["+@all", "-@scripting"]
    )
    ann = served.client(username="ann", password="x")
    assert ann.fcall("f", 1, "a1") == b"OK"
    with pytest.raises(redis.exceptions.NoPermissionError):
        ann.fcall("f", 1, "b1")
    bob = served.client(username="bob", password="x")
    with pytest.raises(redis.exceptions.NoPermissionError):
        bob.fcall("f", 1, "a1")
    with pytest.raises(redis.exceptions.NoPermissionError):
        bob.function_load(function("return 1"))


def test_info_counts_functions(serve: Serve) -> None:
    client = serve().client()
    assert client.info("memory")["number_of_libraries"] == 0
    client.function_load(
        library("for i = 1, 3 do redis.register_function('f' .. i, function() end) end")
    )
    memory = client.info("memory")
    assert (memory["number_of_libraries"], memory["number_of_functions"]) == (1, 3)
    assert memory["used_memory_vm_functions"] > 0
    assert memory["used_memory_functions"] > 0


# --- limits ---------------------------------------------------------------------------------------


@pytest.fixture
def endless(served: Served) -> Iterator[Asker]:
    """A connection whose function runs until it is killed."""
    served.client().config_set("busy-reply-threshold", 1)
    served.client().function_load(function("redis.pcall('get', 'k') while true do end", "endless"))
    with served.asker() as asker:
        asker.send("FCALL", "endless", "1", "key", "word")
        yield asker


def test_a_long_function_can_be_killed(served: Served, endless: Asker) -> None:
    with served.asker() as other:
        until(lambda: other.ask("GET k") == BUSY)
        stats = other.ask("FUNCTION STATS")
        assert stats[0] == b"running_script"
        assert stats[1][:4] == [
            *(b"name", b"endless"),
            *(b"command", [b"FCALL", b"endless", b"1", b"key", b"word"]),
        ]
        assert stats[1][5] >= 1
        assert stats[3] == [b"LUA", [b"libraries_count", 1, b"functions_count", 1]]
        assert other.ask("SCRIPT KILL") == BUSY
        assert other.ask("FCALL endless 0") == BUSY
        assert other.ask("FUNCTION KILL") == b"OK"
        killed = endless.read()
        assert killed.startswith("ERR Script killed by user with SCRIPT KILL... script: endless")
        assert other.ask("FUNCTION KILL") == "NOTBUSY No scripts in execution right now."
        assert other.ask("FUNCTION STATS")[1] is None


def test_a_script_is_not_a_function(served: Served) -> None:
    served.client().config_set("busy-reply-threshold", 1)
    busy = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    with served.asker() as script, served.asker() as other:
        script.send("EVAL", "while true do end", "0")
        until(lambda: other.ask("GET k") == busy)
        assert other.ask("FUNCTION STATS") == busy
        assert other.ask("FUNCTION KILL") == busy
        assert other.ask("SCRIPT KILL") == b"OK"
        assert script.read().startswith("ERR Script killed by user with SCRIPT KILL... ")


def test_without_memory_only_functions_with_allow_oom_run(serve: Serve) -> None:
    client = serve().client()
    client.function_load(function("return redis.call('set', 'x', '1')", "plain"))
    allowed = function("return redis.call('set', 'x', '1')", "allowed", "'allow-oom'")
    client.function_load(allowed.replace("name=lib", "name=other"))
    reading = function("return 'hello'", "reading", "'no-writes'")
    client.function_load(reading.replace("name=lib", "name=third"))
    payload = client.function_dump()
    client.config_set("maxmemory", 1)
    for refused in (
        lambda: client.fcall("plain", 0),
        lambda: client.function_load(function("return 1"), replace=True),
        lambda: restore(client, payload, "FLUSH"),
    ):
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            refused()
    assert client.fcall("allowed", 0) == b"OK"
    assert client.fcall("reading", 0) == client.fcall_ro("reading", 0) == b"hello"
    assert client.function_delete("lib")


def test_loading_code_and_functions_have_separate_apis(served: Served) -> None:
    client = served.client()
    client.function_load(
        library("""
local api = redis
local function ping() return (redis.call('ping')) end
redis.register_function('ping', function() return (ping()) end)
redis.register_function('mix', function() api.math = math end)
redis.register_function('late', function() return (api.register_function('g', ping)) end)
redis.register_function('trick', function()
  local globals = getmetatable(_G).__index
  globals.redis = function() return 1 end
end)
redis.register_function('leak', function() return {rawget(_G, 'x') == nil, next(_G) ~= nil} end)
""")
    )
    assert client.fcall("ping", 0) == b"PONG"
    for name in ("mix", "trick"):
        with pytest.raises(redis.ResponseError):
            client.fcall(name, 0)
    with pytest.raises(redis.ResponseError, match="can only be called on FUNCTION LOAD command"):
        client.fcall("late", 0)
    assert client.fcall("ping", 0) == b"PONG"
    for name, code in (("math", "redis.math.random()"), ("redis", "redis.redis.call('ping')")):
        refusal = f"attempted to access nonexistent global variable '{name}'"
        with pytest.raises(redis.ResponseError, match=refusal):
            client.function_load(library(code, "other"))


WALK = """
local seen, names = {}, {}
local function walk(value, path)
  if type(value) == 'userdata' then names[#names + 1] = path .. ' ' .. tostring(value) end
  if type(value) ~= 'table' or seen[value] then return end
  seen[value] = true
  for key, item in pairs(value) do
    names[#names + 1] = path .. '.' .. tostring(key)
    walk(item, path .. '.' .. tostring(key))
  end
  walk(getmetatable(value), path .. ' metatable')
end
walk(_G, '_G') walk(getmetatable(''), 'string')
table.sort(names)
return names
"""


def test_functions_and_scripts_reach_the_same_globals(served: Served) -> None:
    client = served.client()
    client.function_load(function(WALK.replace("\n", " ")))
    script = client.eval(WALK, 0)
    reached = client.fcall("f", 0)
    assert isinstance(script, list)
    assert isinstance(reached, list)
    of_scripts = {b"_G.KEYS", b"_G.ARGV"}
    of_scripts |= {
        b"_G." + table + name
        for table in (b"redis.", b"server.")
        for name in (b"breakpoint", b"debug", b"replicate_commands")
    }
    assert set(script) - set(reached) == of_scripts
    assert set(reached) <= set(script)
    assert b"_G.cjson.null userdata: (nil)" in reached


def test_a_library_that_no_longer_compiles_is_skipped(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with kvstream.connect(store) as client:
        client.function_load(function("return 1", "one"))
    with kvstream.Store.open(store) as opened:
        broken = function("return 2", "two").replace("name=lib", "name=other") + " broken"
        opened.engine.run(lambda txn: operations.load(txn, broken.encode(), replace=False))
    with kvstream.connect(store) as client:
        assert client.fcall("one", 0) == 1
        with pytest.raises(redis.ResponseError, match="Function not found"):
            client.fcall("two", 0)
        assert len(client.function_list()) == 2
        client.function_delete("other")


# --- what outlives what ---------------------------------------------------------------------------


def test_functions_survive_kill_9(tmp_path: Path) -> None:
    loaded: list[str] = []
    for number in range(3):
        server = ServerProcess(tmp_path / "store")
        try:
            with redis.Redis(port=server.port, socket_timeout=PATIENCE_S) as client:
                for name in loaded:
                    assert client.fcall(name, 0) == name.encode()
                assert len(client.function_list()) == len(loaded)
                name = f"f{number}"
                text = function(f"return '{name}'", name).replace("name=lib", f"name=lib{number}")
                client.function_load(text)
                loaded.append(name)
        finally:
            server.kill()


def test_functions_work_in_process(tmp_path: Path) -> None:
    with kvstream.connect(tmp_path / "store") as client:
        client.function_load(function("return redis.call('incr', keys[1])"))
        assert client.fcall("f", 1, "n") == 1
    with kvstream.connect(tmp_path / "store") as client:
        assert client.fcall("f", 1, "n") == 2
