"""Scripts cannot leave the sandbox: published escapes from Redis and lupa, and others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.talking import Server, sound


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("sandbox")
    with sound(directory / "store") as server:
        yield server


ABSENT = (
    *("json_list", "varargs"),
    *("debug", "io", "package", "require", "module", "python", "dofile", "loadfile"),
    *("print", "getfenv", "setfenv", "newproxy", "__redis__err__handler"),
)


def with_parameters(count: int) -> str:
    """Return a function with parameters before ``...``."""
    names = "".join(f"p{number}," for number in range(count))
    return f"(function({names}...) local a=... return a end)"


REFUSED = {
    "bytecode (CVE-2015-4335)": "local f=loadstring(string.dump(function() end)) f()",
    "bytecode by hand": "assert(loadstring('\\27Lua\\81\\0\\1\\4\\8\\4\\8\\0'))",
    "bytecode by load": (
        "local n=0 assert(load(function() n=n+1 return n==1 and '\\27Lua' or nil end))"
    ),
    "struct.pack (CVE-2018-11218)": "return struct.pack('>I2147483648', 1)",
    "struct.unpack beyond the end": "return struct.unpack('>I4', 'ab')",
    "struct at a negative place": "return struct.unpack('s', 'abc', -100)",
    "cmsgpack nesting (CVE-2018-11218)": "return cmsgpack.unpack(('\\145'):rep(1000000))",
    "cmsgpack lengths": "return cmsgpack.unpack('\\221\\255\\255\\255\\255')",
    "cjson nesting": "return cjson.decode(('['):rep(1000000))",
    "package (CVE-2022-0543)": "return package.loadlib('liblua5.1.so.0','luaopen_io')",
    "a global function (CVE-2022-24735)": "function tostring() return 'x' end",
    "a library's function": "redis.call = function() return 'x' end",
    "_G": "_G.redis = {}",
    "_G by rawset": "rawset(_G, 'redis', {})",
    "a loop over _G": "for k in pairs(_G) do _G[k] = nil end",
    "the metatable of strings (CVE-2025-46818)": "getmetatable('').__index = {}",
    "strings' methods": "getmetatable('').__index.upper = function() return 'x' end",
    "rawset on strings' metatable": "rawset(getmetatable(''), '__index', {})",
    "setmetatable on a library": "setmetatable(string, {__index = {}})",
    "the metatable of _G": "setmetatable(_G, nil)",
    "a metatable of nil (CVE-2025-46818)": "getmetatable(nil).__index = 1",
    "a metatable of numbers": "getmetatable(1).__add = 1",
    "a metatable of functions": "getmetatable(redis.call).__index = 1",
    "a metatable of cjson.null": "getmetatable(cjson.null).__gc = function() end",
    "the metatable of a list of JSON": (
        "cjson.decode_array_with_array_mt(true) getmetatable(cjson.decode('[]')).x = 1"
    ),
    "rawset on the same": (
        "cjson.decode_array_with_array_mt(true) rawset(getmetatable(cjson.decode('[]')), 'x', 1)"
    ),
    "table.insert into a library": "table.insert(math, 1)",
    "table.setn": "table.setn(redis, 5)",
    "unpack (CVE-2025-46817)": "return unpack({}, 0, 2147483647)",
    "unpack from below": "return unpack({}, -2147483648, 2147483647)",
    "unpack from NaN": "return unpack({}, 0/0, 2147483647)",
    "unpack from infinity": "return unpack({}, -1/0, 2147483647)",
    "unpack from what an int cannot hold": "return unpack({}, -2^32, 2147483647)",
    "unpack of texts": "return unpack({}, '-4294967296', '2147483647')",
    "many parameters before ... (CVE-2014-5461)": "return " + with_parameters(4),
    "the same further inside": (
        f"return function() return function() return {with_parameters(180)} end end"
    ),
    "the same by loadstring": f"assert(loadstring('return {with_parameters(180)}'))",
    "the same by load": (
        "local n=0 assert(load(function() n=n+1 return n==1 and "
        f"'return {with_parameters(180)}' or nil end))"
    ),
    "table.insert far below": "table.insert({}, -2147483648, 1)",
    "table.insert far below, wrapped": "table.insert({}, 2147483653, 1)",
    "gfind of very many repetitions": (
        "for _ in string.gfind(('a'):rep(400000), ('a?'):rep(400000)) do end"
    ),
    "an unclosed long string": "return redis.call('ping') " + "[==[" * 100000,
    "unclosed long comments": "return redis.call('ping') " + "--[==[\n" * 100000,
    "an unclosed string": "return redis.call('ping') " + '"\\' * 100000,
    "another unclosed string": "return redis.call('ping') " + "'\\" * 100000,
    "an error with very many line breaks": (
        "return redis.error_reply('x' .. ('\\n'):rep(1000000) .. 'y')"
    ),
    "a long string (CVE-2025-46819)": (
        "return loadstring('return [' .. ('='):rep(50000000) .. '[')()"
    ),
    "deep recursion": "local function f() return f() + 1 end return f()",
    "deep recursion of pcall": (
        "local function f() return pcall(f) and error('x') end f() error('x')"
    ),
    "deep recursion of metamethods": (
        "local t={} setmetatable(t,{__index=function(t,k) return t[k..'x'] end}) return t.x"
    ),
    "deep nesting of code": "return loadstring('return ' .. ('('):rep(100000) .. ('1'))()",
    "many coroutines inside": (
        "local function f() local c=coroutine.wrap(f) return c() end return f()"
    ),
    "patterns of very many repetitions": (
        "return ('a'):rep(400000):find(('a?'):rep(400000) .. 'b')"
    ),
    "the same without a method": "return string.match(('a'):rep(4e5), ('a-'):rep(3e5) .. 'b')",
    "gsub without an end": "return ('x'):rep(1e7):gsub('x', ('y'):rep(1e3))",
    "concat without an end": (
        "local t,s={},('x'):rep(1e4) for i=1,1e5 do t[i]=s end return #table.concat(t)"
    ),
}

HARMLESS = {
    "bit.tohex (CVE-2024-31449)": "return bit.tohex(65535, -2147483648)",
    "the collector (CVE-2024-46981)": (
        "for i=1,100 do local t=setmetatable({},{__mode='kv',__gc=function() end}) "
        "t[{}]=t collectgarbage() end collectgarbage('stop') return collectgarbage('count')>0"
    ),
    "a name that the parser drops (CVE-2025-49844)": (
        "local s = {} for i=1,2000 do s[i] = 'local v'..i..'=[==['..('x'):rep(i)..']==]' "
        "local f = loadstring(s[i]) collectgarbage('step') if f then f() end end return 1"
    ),
    "few parameters before ...": f"return {with_parameters(3)}(1,2,3,4)",
    "unpack from behind the end": "return #{unpack({}, 2147483647, -1/0)} == 0",
    "table.insert below": "local t={} table.insert(t, -5, 1) return t[-5]",
    "empty repetitions": "return #(''):rep(1e15)",
    "an error that is cjson.null": "return pcall(error, cjson.null)",
    "a script's own metatables": ("return getmetatable(setmetatable({}, {__metatable = 'mine'}))"),
}


def test_dangerous_globals_are_absent(server: Server) -> None:
    ann = server.client()
    for name in ABSENT:
        said = ann.ask("EVAL", f"return {name}", "0")
        assert b"nonexistent global variable" in said, name
        assert ann.ask("EVAL", f"return rawget(_G, '{name}') == nil", "0") == b":1\r\n"
    assert ann.ask("EVAL", "return string.dump == nil", "0") == b":1\r\n"


@pytest.mark.parametrize("script", REFUSED.values(), ids=REFUSED)
def test_escapes_are_errors(server: Server, script: str) -> None:
    ann = server.client()
    said = ann.ask("EVAL", script, "0")
    assert said.startswith(b"-ERR "), said[:200]
    assert b"internal" not in said
    _is_sound(server)


@pytest.mark.parametrize("script", HARMLESS.values(), ids=HARMLESS)
def test_harmless_scripts_run(server: Server, script: str) -> None:
    said = server.client().ask("EVAL", script, "0")
    assert not said.startswith(b"-"), said[:200]
    _is_sound(server)


def _is_sound(server: Server) -> None:
    """Check that the next script of any client has its complete environment."""
    script = (
        "redis.call('set','k','v') return {redis.call('get','k'), ('a'):upper(), type(tostring), "
        "#redis.sha1hex('x'), redis[1] == nil and math[1] == nil and 'clean', tostring(nil)}"
    )
    said = server.client().ask("EVAL", script, "0")
    words = (b"v", b"A", b"function")
    head = b"*6\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    assert said == head + b":40\r\n$5\r\nclean\r\n$3\r\nnil\r\n"


REACHABLE = r"""
-- Every value that a script can reach from its globals, by keys, values, metatables and results.
local seen, queue, found = {}, {_G}, {}
local function add(value)
  local kind = type(value)
  if kind == 'thread' or kind == 'userdata' and value ~= cjson.null then
    found[#found+1] = tostring(value)
  end
  if (kind == 'table' or kind == 'function') and not seen[value] then
    seen[value] = true
    queue[#queue+1] = value
  end
end
local at = 1
while queue[at] do
  local value = queue[at]
  at = at + 1
  if type(value) == 'table' then
    for k, v in pairs(value) do add(k) add(v) end
    add(getmetatable(value))
  else
    if value ~= coroutine.yield and value ~= redis.setresp then
      local co = coroutine.create(function() end)
      for _, given in ipairs({ {}, {redis}, {function() end}, {'', {}}, {co} }) do
        local results = { pcall(value, unpack(given)) }
        for i = 2, 10 do if type(results[i]) ~= 'thread' then add(results[i]) end end
      end
    end
  end
  if at > 3000 then break end
end
return found
"""


def test_no_object_of_python_is_reachable(server: Server) -> None:
    said = server.client().ask("EVAL", REACHABLE, "0")
    assert said == b"*0\r\n", said[:300]
    _is_sound(server)


def test_an_error_that_is_a_shared_table_is_not_modified(server: Server) -> None:
    ann = server.client()
    for name in ("_G", "redis", "string"):
        said = ann.ask("EVAL", f"loadstring('error({name})', '@mine')()", "0")
        assert said.startswith(b"-ERR Attempt to modify a readonly table")
        assert ann.ask("EVAL", f"return rawget({name}, 'source') == nil", "0") == b":1\r\n"
    assert b"nonexistent global variable 'source'" in ann.ask("EVAL", "return source", "0")


@pytest.mark.parametrize("name", ["redis.two", "redis.call2", "bit2.two", "struct.unpack"])
def test_returned_calls_of_a_scripts_own_functions_keep_all_results(
    server: Server, name: str
) -> None:
    table, _, field = name.partition(".")
    script = (
        f"local {table} = {{{field}=function() return 1, 2 end}} "
        f"local function f() return {name}('(') end return {{f()}}"
    )
    assert server.client().ask("EVAL", script, "0") == b"*2\r\n:1\r\n:2\r\n"


def test_a_library_has_few_parameters_before_dots_too(server: Server) -> None:
    ann = server.client()
    code = "#!lua name=lib\nredis.register_function('f', {})"
    said = ann.ask("FUNCTION", "LOAD", code.format(with_parameters(4)))
    assert b"more than 3 parameters before '...'" in said
    assert ann.ask("FUNCTION", "LOAD", code.format(with_parameters(3))) == b"$3\r\nlib\r\n"
