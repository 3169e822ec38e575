"""Generated scripts have the same reply on kvstream and on redis-server, errors included.

Known differences are left out: addresses, the order of tables, and positions of errors in functions
that are tail calls (``return next(nil)``).
"""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.server.asking import Asker
from tests.server.conftest import Served

EXAMPLES = 150

_names = st.sampled_from(["a", "b", "c"])
_literals = st.one_of(
    st.sampled_from(["nil", "true", "false", "''", "'x y'", "'10'", "'\\r\\n'", "0/0", "-1", "{}"]),
    st.integers(-(2**40), 2**40).map(str),
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: f"({number!r})"),
    st.text("ab\x00\xff'\\", max_size=6).map(lambda text: f"{_quoted(text)}"),
)


def _quoted(text: str) -> str:
    return "'" + "".join(f"\\{ord(letter):03}" for letter in text) + "'"


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    operators = st.sampled_from(["+", "-", "*", "/", "%", "..", "==", "<", "and", "or", "~="])
    calls = ["tostring(#{})", "type({})", "tonumber({})", "#({})", "not ({})", "-({})"]
    calls += ["string.upper({})", "string.reverse({})", "math.floor({})", "string.len({})"]
    calls += ["select('#',{})", "redis.sha1hex(tostring(#({})))", "string.format('%s',type({}))"]
    calls += ["(select(2,pcall(function() return {} end)))", "({}).x", "({})[1]"]
    calls += ["cjson.encode({})", "redis.status_reply({})", "redis.error_reply({})"]
    commands = ["'get',{}", "'set','k',{}", "'incr',{}", "'append','k',{}", "'nosuch',{}"]
    commands += ["'xadd','s','*',{}", "'mget','k',{}", "'echo',{}", "'setrange','k',1,{}"]
    called = st.tuples(st.sampled_from(["call", "pcall"]), st.sampled_from(commands), inner)
    return st.one_of(
        st.tuples(two, operators).map(lambda it: f"({it[0][0]}) {it[1]} ({it[0][1]})"),
        st.tuples(st.sampled_from(calls), inner).map(lambda it: it[0].format(it[1])),
        called.map(lambda it: f"redis.{it[0]}({it[1].format(it[2])})"),
        st.lists(inner, max_size=4).map(lambda items: "{" + ",".join(items) + "}"),
        st.tuples(st.sampled_from(["ok", "err", "map", "set", "double", "big_number"]), inner).map(
            lambda it: f"{{{it[0]}={it[1]}}}"
        ),
    )


_values = st.recursive(st.one_of(_literals, _names), _combined, max_leaves=6)
_statements = st.one_of(
    st.tuples(_names, _values).map(lambda it: f"{it[0]} = {it[1]}"),
    st.tuples(_values, _names, _values).map(lambda it: f"if {it[0]} then {it[1]} = {it[2]} end"),
    st.tuples(_names, _values).map(lambda it: f"for i = 1, 3 do {it[0]} = {it[1]} end"),
    _values.map(lambda value: f"redis.setresp(3) local unused = {value}"),
    st.sampled_from(["x = 1", "redis.x = 1", "error('e')", "error('e', 0)", "local d = x"]),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_statements, max_size=4), _values, st.sampled_from([2, 3]))
@example(["a = redis.pcall('incr','k')"], "{a, {a.err}}", 3)
def test_replies_are_those_of_redis(
    served: Served, redis82_port: int, body: list[str], value: str, protocol: int
) -> None:
    script = "\n".join(["local a, b, c = 1, 'b', {3}", *body, f"local r = {value}", "return r"])
    with Asker(redis82_port, protocol) as redis, Asker(served.port, protocol) as ours:
        for asker in (redis, ours):
            asker.ask("FLUSHALL")
            asker.ask("SET", "k", "5")
        assert ours.ask("EVAL", script, "0") == redis.ask("EVAL", script, "0"), script
        for key in ("k", "b"):
            assert ours.ask("GET", key) == redis.ask("GET", key)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_libraries_accept_protected_tables(served: Served, protocol: int) -> None:
    with Asker(served.port, protocol) as ours:
        assert ours.ask("EVAL", "return #cjson.encode({KEYS,ARGV})", "0") > 0
