"""MGET and MSET of very many keys: steps have the effect of one command."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream.errors import InvalidArgument, ReplyTooLarge
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace, strings
from kvstream.operations.checks import check
from kvstream.operations.plans import Stepped
from kvstream.operations.strings import plan_get, plan_put
from kvstream.types.clock import ManualClock
from tests.server.runtime.test_incremental_del import CHANGES, KEYS, WHOLE, Others
from tests.server.talking import Other, Server, Worker, sound

LARGE = "v" * 17_000
MORE = (*CHANGES, ("APPEND", "KEY", LARGE), ("SETRANGE", "KEY", "2", "x"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    sizes = {"long_names": 9, "step_names": 4, "records_together": 2, "cycle_pause_s": 3600}
    with sound(tmp_path / "store", clock, steps_s=-1.0, **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client that runs commands meanwhile."""
    return Other(server, 1)


def values_of(server: Server, keys: list[bytes]) -> list[bytes | None]:
    """Return the strings of keys, read one by one."""
    found = []
    for key in keys:
        kind = server.engine.run(keyspace.kind, qualified(0, key))
        text = kind == "string"
        found.append(server.engine.run(strings.get, qualified(0, key)) if text else None)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_strings_have_the_values_of_the_last_step(
    server: Server, clock: ManualClock, seed: int
) -> None:
    others = Others(server, clock, seed)
    for _ in range(6):
        others.fill()
        keys = [key.encode() for key in others.draw.sample(KEYS, 30)]
        work, found = Stepped(plan_get(0, [*keys, keys[0], b"none"])), None
        while found is None:
            for _ in range(others.draw.randint(0, 5)):
                others.ask(*others.draw.choice(MORE))
                clock.advance(others.draw.randint(0, 1))
            if others.draw.random() < 0.05:
                others.ask(*others.draw.choice(WHOLE))
            found = server.engine.run(work.step)
        expected = values_of(server, keys)
        assert found == [*expected, expected[0], None]
        names = [qualified(0, key) for key in keys]
        assert server.engine.run(strings.get_several, names) == expected


@pytest.mark.parametrize("seed", range(4))
def test_strings_are_set_over_any_value(
    server: Server, ann: Other, clock: ManualClock, seed: int
) -> None:
    others, draw = Others(server, clock, seed), random.Random(seed)
    for number in range(12):
        for _ in range(30):
            others.ask(*draw.choice(MORE))
        if number % 4 == 3:
            others.ask(*draw.choice(WHOLE))
        if draw.random() < 0.3:
            ann.ask("WATCH", "k0")
        clock.advance(draw.randint(0, 5))
        given = {key: draw.choice(["", "v", str(number), LARGE]) for key in draw.sample(KEYS, 9)}
        pairs = [word for pair in given.items() for word in pair]
        assert ann.ask("MSET", *pairs[:2], *pairs) == b"+OK\r\n"
        assert ann.ask("TTL", next(iter(given))) == b":-1\r\n"
        found = values_of(server, [key.encode() for key in given])
        assert found == [value.encode() for value in given.values()]
        assert server.engine.run(check) == []


@pytest.mark.parametrize("only_new", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_strings_are_set_in_the_last_step(
    server: Server, clock: ManualClock, seed: int, only_new: bool
) -> None:
    others = Others(server, clock, seed)
    draw = others.draw
    for number in range(12):
        if not only_new:
            others.fill()
        elif number % 2:
            others.ask("FLUSHDB")
        keys = [key.encode() for key in draw.sample(KEYS, draw.choice([5, 30]))]
        values = {key: draw.choice([b"", b"v%d" % number, LARGE.encode()]) for key in keys}
        work, done = Stepped(plan_put(0, values, only_new)), None
        while done is None:
            for _ in range(draw.randint(0, 5)):
                others.ask(*draw.choice(MORE))
                clock.advance(draw.randint(0, 1))
            if draw.random() < 0.05:
                others.ask(*draw.choice(WHOLE))
            there = [server.engine.run(keyspace.kind, qualified(0, key)) for key in keys]
            before = values_of(server, keys)
            done = server.engine.run(work.step)
        assert done == (not only_new or not any(kind != "none" for kind in there))
        assert values_of(server, keys) == (list(values.values()) if done else before)
        assert server.engine.run(check) == []


def test_very_many_are_set_while_other_clients_are_served(
    server: Server, ann: Other, worker: Worker
) -> None:
    waiting, bob = server.client(), Other(server, 2)
    waiting.send("XREAD", "BLOCK", "0", "STREAMS", "k7", "$")
    bob.ask("SET", "k3", "old")
    bob.ask("WATCH", "k3")
    pairs = [word for key in KEYS for word in (key, "v")]
    worker.begin("MSET", *pairs)
    assert ann.ask("GET", KEYS[0]) == b"$-1\r\n"
    ann.ask("SET", "k5", "meanwhile")
    assert worker.end() == b"OK"
    assert ann.ask("MGET", "k3", "k5", *KEYS[:2]) == b"*4\r\n" + b"$1\r\nv\r\n" * 4
    bob.ask("MULTI")
    bob.ask("PING")
    assert bob.ask("EXEC") == b"*-1\r\n"
    assert waiting.client.block is not None
    worker.begin("MSETNX", *pairs)
    assert worker.end() == 0
    ann.ask("FLUSHALL")
    worker.begin("MSETNX", *pairs)
    assert worker.end() == 1
    assert worker.ask("MSET", *pairs, "half").startswith(b"-ERR wrong number")


def test_clients_that_wait_for_a_key_or_watch_it_notice_the_change(
    server: Server, ann: Other
) -> None:
    waiting = server.client()
    waiting.send("XREAD", "BLOCK", "0", "STREAMS", "k2", "$")
    ann.ask("WATCH", "k1")
    server.client().ask("MSET", "k1", "v", "k2", "v")
    ann.ask("MULTI")
    ann.ask("PING")
    assert ann.ask("EXEC") == b"*-1\r\n"
    assert waiting.client.block is not None


def test_a_client_is_answered_after_the_last_step(
    server: Server, ann: Other, worker: Worker
) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, "v")])
    worker.begin("MGET", *KEYS, "none")
    ann.ask("SET", KEYS[-1], "new")
    assert worker.end() == [*[b"v"] * 39, b"new", None]


def test_a_reply_above_the_limit_is_refused(server: Server, worker: Worker, ann: Other) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, LARGE)])
    server.engine.catalog.limits.reply_max = 20 * len(LARGE)
    assert worker.ask("MGET", *KEYS).startswith(b"-ERR")
    with pytest.raises(ReplyTooLarge):
        server.engine.run(strings.get_several, [qualified(0, key.encode()) for key in KEYS])


def test_nothing_is_set_if_one_value_is_too_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strings, "STRING_BYTES_MAX", 3)
    with pytest.raises(InvalidArgument):
        server.engine.run(
            strings.put_several, {qualified(0, b"a"): b"v", qualified(0, b"b"): b"long"}
        )
    assert server.engine.run(keyspace.size, 0) == 0
