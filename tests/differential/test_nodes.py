"""Nodes end where Redis's would: to the byte of their listpacks, in every trim by ``~``."""

import os
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.operations.implementations import Kvstream, Model, RedisServer
from tests.operations.replies import Argument, Run

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "20"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
INT64_MAX = (1 << 63) - 1
U64_MAX = (1 << 64) - 1
WHOLE_NUMBERS = [
    *(n + step for n in (0, 127, 4095, 32767, 8388607, 2147483647) for step in (0, 1)),
    *(-n - step for n in (0, 1, 4096, 32768, 8388608, 2147483648) for step in (0, 1)),
    *(INT64_MAX, INT64_MAX + 1, -INT64_MAX - 1, -INT64_MAX - 2),
]
NOT_NUMBERS = ["-0", "00", "007", "+7", "1.0", " 1", "1 ", "", "-", "9" * 20, "1" * 21]
LENGTHS = [1, 62, 63, 64, 65, 125, 126, 127, 4093, 4094, 4095, 4096, 16376, 16377, 16378, 16379]
LENGTHS_OF_THREE_BYTES = [16380, 2097144, 2097145, 2097146, 2097147]


def keys_of(run: Run) -> int:
    reply = run("XINFO", "STREAM", "s")
    return int(reply[reply.index(b"radix-tree-keys") + 1])


def node_size(model: Model) -> int:
    stream = model.redis.keys[b"s"]
    assert not isinstance(stream, bytes)
    return stream.nodes[-1].size()


def joins_or_opens(run: Run, bytes_max: int) -> int:
    """Return the number of nodes after one more entry, of two bytes, under that limit."""
    run("CONFIG", "SET", "stream-node-max-bytes", bytes_max)
    assert run("XADD", "s", f"{U64_MAX}-{U64_MAX}", "x", "y") == f"{U64_MAX}-{U64_MAX}".encode()
    return keys_of(run)


def prepare(run: Run, commands: list[tuple[Argument, ...]]) -> None:
    run("FLUSHDB")
    run("CONFIG", "SET", "stream-node-max-bytes", 0)
    run("CONFIG", "SET", "stream-node-max-entries", 0)
    for command in commands:
        assert isinstance(run(*command), bytes | int)


def entry(id: str, *flat: Argument) -> tuple[Argument, ...]:
    return ("XADD", "s", id, *flat)


NODES: dict[str, list[tuple[Argument, ...]]] = {
    **{f"the value {n}": [entry("1-1", "f", n)] for n in WHOLE_NUMBERS},
    **{f"the text {t!r}": [entry("1-1", "f", t)] for t in NOT_NUMBERS},
    **{f"a value of {n} bytes": [entry("1-1", "f", "v" * n)] for n in LENGTHS},
    **{f"a field of {n} bytes": [entry("1-1", "f" * n, "v")] for n in LENGTHS},
    **{f"a value of {n} bytes": [entry("1-1", "f", "v" * n)] for n in LENGTHS_OF_THREE_BYTES},
    **{f"a field named {n}": [entry("1-1", n, "v")] for n in WHOLE_NUMBERS[::3]},
    **{
        f"{n} fields": [entry("1-1", *[part for i in range(n) for part in (f"f{i}", "v")])]
        for n in (1, 2, 61, 62, 63, 123, 124, 125, 127, 128)
    },
    **{
        f"other fields, {n} of them": [
            entry("1-1", "a", "b"),
            entry("1-2", *[part for i in range(n) for part in (f"f{i}", "v")]),
        ]
        for n in (1, 2, 61, 62, 63, 127, 128)
    },
    **{
        f"milliseconds that differ by {n}": [entry("1-1", "f", "v"), entry(f"{1 + n}-1", "f", "v")]
        for n in (1, 127, 128, 4095, 4096, 32767, 32768, 1 << 23, 1 << 31, 1 << 62, 1 << 63)
    },
    **{
        f"a sequence that differs by {n}": [
            entry(f"1-{max(0, -n)}", "f", "v"),
            entry(f"2-{max(0, n)}", "f", "v"),
        ]
        for n in (-1, -4096, -4097, -32768, -32769, 127, 128, 4095, 4096, 1 << 63, -(1 << 63))
    },
    **{
        f"{n} entries": [entry(f"1-{i}", "f", "v") for i in range(1, n + 1)]
        for n in (127, 128, 129)
    },
    "127 of 128 entries deleted": [
        *[entry(f"1-{i}", "f", "v") for i in range(1, 129)],
        ("XDEL", "s", *[f"1-{i}" for i in range(1, 128)]),
    ],
    "128 of 129 entries deleted": [
        *[entry(f"1-{i}", "f", "v") for i in range(1, 130)],
        ("XDEL", "s", *[f"1-{i}" for i in range(2, 130)]),
    ],
    "entries trimmed inside the node": [
        *[entry(f"1-{i}", "f", "v") for i in range(1, 9)],
        ("XTRIM", "s", "MAXLEN", 3),
    ],
    "the same fields in another order": [
        entry("1-1", "f", "v", "g", "w"),
        entry("1-2", "g", "w", "f", "v"),
    ],
    "a field that repeats": [entry("1-1", "f", "v", "f", "w"), entry("1-2", "f", "v", "f", "w")],
}


EVERY_NODE = pytest.mark.parametrize("commands", NODES.values(), ids=NODES.keys())


def assert_bytes(run: Run, commands: list[tuple[Argument, ...]]) -> None:
    """Find the very limit at which one more entry opens a node: it is where the model puts it."""
    model = Model(old=True)
    prepare(model, commands)
    full = node_size(model) + len("xy")
    for bytes_max, nodes in ((full + 1, 1), (full, 2)):
        prepare(run, commands)
        assert joins_or_opens(run, bytes_max) == nodes


@EVERY_NODE
def test_a_node_of_the_model_takes_the_bytes_that_redis_counts(
    redis_server: RedisServer, commands: list[tuple[Argument, ...]]
) -> None:
    assert_bytes(redis_server, commands)


@EVERY_NODE
def test_a_node_of_kvstream_takes_the_bytes_that_redis_counts(
    opened: Kvstream, commands: list[tuple[Argument, ...]]
) -> None:
    assert_bytes(opened, commands)
    assert opened.faults() == []


@dataclass(frozen=True)
class Script:
    """Limits, and what is done under them."""

    entries_max: int
    bytes_max: int
    commands: list[tuple[Argument, ...]]


FIELDS = st.sampled_from(
    [["f", "{}"], ["g", "{}"], ["f", "{}", "g", "{}"], ["f", "{}", "f", "{}"], ["12", "{}"]]
)
VALUES = st.one_of(
    st.integers(-70000, 70000).map(str),
    st.integers(0, 140).map(lambda n: "v" * n),
    st.sampled_from(["", "0", "-1", "2147483648", "9223372036854775808"]),
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw a stream's life: runs of appends, deletions and trims of every kind."""
    ms, ids = 1, ["1-1"]
    commands: list[tuple[Argument, ...]] = [entry("1-1", "f", "v")]
    for _ in range(draw(st.integers(1, 12))):
        step = draw(st.sampled_from(["append", "append", "append", "delete", "maxlen", "minid"]))
        if step == "append":
            for _ in range(draw(st.integers(1, 25))):
                ms += draw(st.sampled_from([1, 1, 1, 2, 200, 70000]))
                ids.append(f"{ms}-{draw(st.sampled_from([0, 0, 1, 5, 300]))}")
                value = draw(VALUES)
                commands.append(entry(ids[-1], *[p.format(value) for p in draw(FIELDS)]))
        elif step == "delete":
            commands.append(("XDEL", "s", *draw(st.lists(st.sampled_from(ids), min_size=1))))
        else:
            bound = draw(st.integers(0, 40)) if step == "maxlen" else draw(st.sampled_from(ids))
            sign = draw(st.sampled_from(["~", "~", "="]))
            limit = draw(st.sampled_from([(), ("LIMIT", 0), ("LIMIT", 7)])) if sign == "~" else ()
            commands.append(("XTRIM", "s", step.upper(), sign, bound, *limit))
    entries_max = draw(st.sampled_from([0, 1, 2, 3, 10, 100]))
    bytes_max = draw(st.sampled_from([0, 1, 30, 60, 100, 300, 4096]))
    return Script(entries_max, bytes_max, commands)


def assert_same(left: Run, right: Run, script: Script) -> None:
    for run in (left, right):
        run("FLUSHDB")
        run("CONFIG", "SET", "stream-node-max-entries", script.entries_max)
        run("CONFIG", "SET", "stream-node-max-bytes", script.bytes_max)
    for command in script.commands:
        assert left(*command) == right(*command)
        assert left("XLEN", "s") == right("XLEN", "s")
        assert keys_of(left) == keys_of(right)


@SETTINGS
@given(script=scripts())
def test_trims_of_the_model_leave_what_redis_leaves(
    redis_server: RedisServer, script: Script
) -> None:
    assert_same(Model(old=True), redis_server, script)


@SETTINGS
@given(script=scripts())
def test_trims_of_kvstream_leave_what_redis_leaves(opened: Kvstream, script: Script) -> None:
    assert_same(Model(), opened, script)
    assert opened.faults() == []
