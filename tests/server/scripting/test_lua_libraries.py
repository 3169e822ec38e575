"""The Lua libraries of scripts return the results and the error texts of Redis's libraries.

Each case is a list of Lua expressions. A VM with kvstream's libraries and a redis-server run it,
and the results are compared as text. The cases in ``lua_library_cases.txt`` cover every branch;
Hypothesis generates the others.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

lua51 = pytest.importorskip("lupa.lua51")

from kvstream.server.scripting.sandbox import LIBRARIES, install_libraries  # noqa: E402

CASES = Path(__file__).with_name("lua_library_cases.txt").read_text().splitlines()

SHOW = rb"""
local function show(value, depth)
  if type(value) == 'number' then
    return value ~= value and 'nan' or string.format('%.17g', value)
  elseif type(value) == 'string' then
    return string.format('%q', value)
  elseif type(value) ~= 'table' then
    return tostring(value)
  elseif depth > 40 then
    return 'deep'
  end
  local parts = {}
  for key, item in pairs(value) do
    parts[#parts + 1] = show(key, depth + 1) .. '=' .. show(item, depth + 1)
  end
  table.sort(parts)
  return '{' .. table.concat(parts, ',') .. '}'
end
local function keep(...) return ... end
local function all(...)
  local parts = {}
  for index = 1, select('#', ...) do parts[index] = show((select(index, ...)), 0) end
  return table.concat(parts, ' ')
end
""".replace(b"\n", b" ")


class Comparison:
    """A VM with kvstream's libraries and a redis-server, which run the same scripts."""

    def __init__(self, port: int) -> None:
        self._client = redis.Redis(port=port)
        lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        install_libraries(lua)
        # Called in parentheses: a tail call would lose the line of a script's error.
        self._run = lua.eval(
            b"function(text) return (assert(loadstring(text, '@user_script'))()) end"
        )

    def both(self, expressions: bytes) -> tuple[bytes, bytes]:
        """Return the results of Lua expressions with kvstream's libraries and with Redis's."""
        body = b"return all(pcall(function() return keep(" + expressions + b") end))"
        return self._run(SHOW + body), self._client.eval((SHOW + body).decode("latin-1"), 0)

    def check(self, expressions: bytes) -> None:
        ours, theirs = self.both(expressions)
        assert ours == theirs, expressions

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def comparison(redis_process: int) -> Iterator[Comparison]:
    made = Comparison(redis_process)
    made._client.connection_pool.connection_kwargs["encoding"] = "latin-1"
    yield made
    made.close()


@pytest.fixture(scope="module")
def comparison82(redis82_process: int) -> Iterator[Comparison]:
    made = Comparison(redis82_process)
    made._client.connection_pool.connection_kwargs["encoding"] = "latin-1"
    yield made
    made.close()


def test_results_and_errors_are_those_of_redis_7(comparison: Comparison) -> None:
    for case in CASES:
        comparison.check(case.encode())


def test_results_and_errors_are_those_of_redis_8(comparison82: Comparison) -> None:
    for case in CASES:
        comparison82.check(case.encode())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_the_names_of_redis(comparison: Comparison, library: str) -> None:
    names = (
        "(function() local t = {} for k, v in pairs(%s) do t[k] = type(v) end "
        "t.decode_array_with_array_mt = nil return t end)()"  # of Redis 8.6
    )
    comparison.check((names % library).encode())


MARKED_LISTS = [
    ("cjson.encode(cjson.decode('[]'))", "[]"),
    ("cjson.encode({cjson.decode('[]'), {}, cjson.decode('{\"a\":[[]]}')})", '[[],{},{"a":[[]]}]'),
    ("cjson.encode(cjson.decode('{}'))", "{}"),
    ("cjson.encode(setmetatable(cjson.decode('[]'), nil))", "{}"),
    ("cjson.encode(setmetatable({}, getmetatable(cjson.decode('[]'))))", "[]"),
    ("cjson.encode(setmetatable({a = 1}, {__is_cjson_array = 1}))", "[]"),
    ("cjson.encode(setmetatable({1, 2}, {__is_cjson_array = false}))", "[1,2]"),
    ("cjson.encode(setmetatable({}, {__metatable = 5, __is_cjson_array = true}))", "[]"),
    ("cjson.decode_array_with_array_mt()", "true"),
    ("cjson.decode_array_with_array_mt('off')", "false"),
    ("cjson.new().encode(cjson.new().decode('[]'))", "{}"),
]


@pytest.mark.parametrize(("expression", "text"), MARKED_LISTS)
def test_empty_lists_of_json_stay_lists_if_wanted(
    comparison: Comparison, expression: str, text: str
) -> None:
    """The results are those of Redis 8.6."""
    script = f"cjson.decode_array_with_array_mt(true) local text = tostring({expression}) "
    script += "cjson.decode_array_with_array_mt(false) return text"
    assert comparison._run(script.encode()) == text.encode()


def test_lists_of_json_are_not_marked_unless_wanted(comparison: Comparison) -> None:
    run = comparison._run
    assert run(b"return cjson.encode(cjson.decode('[]'))") == b"{}"
    assert run(b"return getmetatable(cjson.decode('[1]')) == nil") is True


def quoted(text: bytes) -> bytes:
    return b"'" + b"".join(b"\\%03d" % byte for byte in text) + b"'"


def number(value: float) -> bytes:
    if value != value:
        return b"(0/0)"
    if value in (float("inf"), float("-inf")):
        return b"(1/0)" if value > 0 else b"(-1/0)"
    return b"(%s)" % repr(value).encode()


numbers = st.one_of(
    st.floats(width=64).map(lambda value: value + 0.0 if value else 0.0),
    st.floats(width=32).map(lambda value: value + 0.0 if value else 0.0),
    st.integers(-(2**70), 2**70).map(float),
    st.integers(-300, 300).map(float),
    st.integers(0, 64).map(lambda power: float(2**power)),
).map(number)
strings = st.binary(max_size=40).map(quoted)
scalars = st.one_of(numbers, strings, st.sampled_from([b"true", b"false", b"nil"]))
arguments = st.one_of(scalars, st.just(b"{}"))
keys = st.one_of(strings, st.integers(1, 12).map(lambda key: b"%d" % key))
tables = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(lambda items: b"{" + b",".join(items) + b"}"),
        st.tuples(keys, inner).map(lambda pair: b"{[%s]=%s}" % pair),
    ),
    max_leaves=20,
)
compared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

BIT_FUNCTIONS = ["tobit", "bnot", "band", "bor", "bxor", "bswap", "tohex"]
BIT_FUNCTIONS += ["lshift", "rshift", "arshift", "rol", "ror"]


@given(st.sampled_from(BIT_FUNCTIONS), st.lists(arguments, max_size=4))
@compared
def test_bit(comparison: Comparison, name: str, values: list[bytes]) -> None:
    comparison.check(b"bit.%s(%s)" % (name.encode(), b",".join(values)))


options = st.one_of(
    st.sampled_from([*"><!bBhHlLTiIfdsxc", "c0", "c1", "c3", "!4", "!8", "!1"]),
    st.integers(0, 34).map(lambda size: f"i{size}"),
    st.integers(0, 34).map(lambda size: f"I{size}"),
    st.text("zq-5 !c", max_size=2),
)
formats = st.lists(options, max_size=8).map("".join).map(lambda text: quoted(text.encode()))


@given(formats, st.lists(arguments, max_size=8))
@compared
def test_struct_pack(comparison: Comparison, text: bytes, values: list[bytes]) -> None:
    comparison.check(b"struct.pack(%s)" % b",".join([text, *values]))
    comparison.check(b"struct.size(%s)" % text)


@given(formats, st.binary(max_size=60).map(quoted), st.lists(arguments, max_size=1))
@compared
def test_struct_unpack(
    comparison: Comparison, text: bytes, data: bytes, start: list[bytes]
) -> None:
    comparison.check(b"struct.unpack(%s)" % b",".join([text, data, *start]))


@given(st.lists(tables, max_size=3))
@compared
def test_cmsgpack_pack(comparison: Comparison, values: list[bytes]) -> None:
    comparison.check(b"cmsgpack.pack(%s)" % b",".join(values))


@given(st.binary(max_size=40), st.lists(st.integers(-2, 45), max_size=2))
@example(b"\xdd\xff\xff\xff\xff", [])
@compared
def test_cmsgpack_unpack(comparison: Comparison, data: bytes, places: list[int]) -> None:
    given = b",".join([quoted(data), *(b"%d" % place for place in places)])
    for name in (b"unpack", b"unpack_one", b"unpack_limit"):
        comparison.check(b"cmsgpack.%s(%s)" % (name, given))


@given(tables)
@compared
def test_values_survive_cmsgpack(comparison: Comparison, value: bytes) -> None:
    comparison.check(b"cmsgpack.unpack(cmsgpack.pack(%s))" % value)


@given(tables)
@compared
def test_cjson_encode(comparison: Comparison, value: bytes) -> None:
    comparison.check(b"cjson.encode(%s)" % value)


json_tokens = st.sampled_from(
    [
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"\\',
        '"a"',
        '"\\n"',
        '"\\u00e9"',
        *'[]{}:," \t\n\x00-1x',
        "true",
        "false",
        "null",
        "nan",
        "inf",
        "0x1",
        "12.5",
        "1e5",
        "1.e",
        "-.5",
        "+1",
    ]
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(json_tokens, max_size=12).map("".join))
@compared
def test_cjson_decode_of_tokens(comparison: Comparison, text: str) -> None:
    comparison.check(b"cjson.decode(%s)" % quoted(text.encode()))


@given(json_values, st.booleans())
@compared
def test_cjson_decode(comparison: Comparison, value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    comparison.check(b"cjson.decode(%s)" % quoted(text))


HOSTILE = {
    "struct takes huge sizes (CVE-2018-11219)": [
        rb"struct.unpack('bbbc2147483647x', 'abcdef')",
        rb"struct.unpack('c2147483647c2147483647c2147483647', 'abc')",
        rb"struct.unpack('I4c0', '\255\255\255\255abc')",
        rb"struct.pack('!2147483648 b d', 1, 2)",
        rb"#struct.pack('!1073741824bd', 1, 2)",
        rb"struct.pack('i' .. ('9'):rep(100000), 1)",
        rb"struct.unpack(('c0'):rep(10000), 'abc')",
    ],
    "cmsgpack unpacks into the stack (CVE-2018-11218)": [
        rb"cmsgpack.unpack(('\1'):rep(100000))",
        rb"cmsgpack.unpack(('\145'):rep(1000000))",
        rb"cmsgpack.unpack(('\129'):rep(1000000))",
        rb"cmsgpack.unpack(('\223\255\255\255\255'):rep(100000))",
        rb"cmsgpack.unpack_limit('\1', 2^31, 2^31)",
        rb"cmsgpack.unpack_one('\1', -2^63)",
    ],
    "bit.tohex negates the smallest number (CVE-2024-31449)": [
        rb"bit.tohex(65535, -2147483648)",
        rb"bit.tohex(65535, 2147483648)",
    ],
    "cjson nests deeply": [
        rb"cjson.decode(('['):rep(1000000))",
        rb"""cjson.decode(('{"a":'):rep(1000000))""",
        rb"""cjson.decode('"' .. ('\\'):rep(1000000))""",
        rb"(function() local t = {} t[1] = t return (cjson.encode(t)) end)()",
    ],
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_input_is_refused_as_redis_refuses_it(comparison: Comparison, attack: str) -> None:
    for case in HOSTILE[attack]:
        comparison.check(case)


def test_a_library_gives_no_access_to_globals(comparison: Comparison) -> None:
    lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
    install_libraries(lua)
    reach = lua.eval(b"""function()
      local seen, reached = {}, {}
      local function visit(value)
        if (type(value) ~= 'table' and type(value) ~= 'function') or seen[value] then return end
        seen[value] = true
        if type(value) == 'table' then
          for key, item in pairs(value) do visit(key) visit(item) end
        else
          visit(getfenv(value))
        end
        visit(getmetatable(value))
      end
      for _, name in ipairs({'bit', 'struct', 'cjson', 'cmsgpack'}) do visit(_G[name]) end
      for name, value in pairs(_G) do
        if name ~= 'bit' and name ~= 'struct' and name ~= 'cjson' and name ~= 'cmsgpack' then
          if seen[value] then reached[#reached + 1] = name end
        end
      end
      return table.concat(reached, ' ')
    end""")
    assert reach() == b""
