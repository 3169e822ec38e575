"""EXISTS, DEL, MGET, MSET and MSETNX of very many keys: steps have the effect of the last one."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.errors import InvalidArgument, ReplyTooLarge
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace, strings
from kvstream.operations.checks import check
from kvstream.operations.plans import Plan, Stepped
from kvstream.types.clock import ManualClock
from tests.commands.dispatcher import Dispatcher, flatten
from tests.opening import change_thresholds
from tests.server.runtime.test_incremental_commands import reply_to
from tests.server.talking import Other, Server, Worker, sound

KEYS = [f"k{number}" for number in range(40)]
LARGE = "v" * 17_000
CHANGES = [
    "SET KEY v",
    "SET KEY v PX 7",
    "XADD KEY * f v",
    "DEL KEY",
    "DEL KEY KEY KEY KEY KEY KEY",
    "RENAME KEY KEY",
    "RENAME KEY free",
    "RENAME free KEY",
    "COPY KEY KEY REPLACE",
    "MOVE KEY 1",
    "PEXPIRE KEY 3",
    "PERSIST KEY",
    "EXISTS KEY",
    f"APPEND KEY {LARGE}",
    "SETRANGE KEY 2 x",
]
WHOLE = ["FLUSHDB", "SWAPDB 0 1", "SWAPDB 2 3"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    sizes = {"long_keys": 4, "step_keys": 4, "keys_together": 2, "long_names": 9, "step_names": 4}
    sizes |= {"unlinked_keys": 2, "records_together": 2, "cycle_pause_s": 3600}
    with sound(tmp_path / "store", clock, **sizes, steps_s=-1.0) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client that runs commands meanwhile."""
    return Other(server, 1)


class Others:
    """Random changes of the keys."""

    def __init__(self, server: Server, clock: ManualClock, seed: int) -> None:
        self._server, self._clock = server, clock
        self._execute = Dispatcher(server.engine).execute
        self.draw = random.Random(seed)

    def ask(self, line: str) -> Any:
        words = [self.draw.choice(KEYS) if word == "KEY" else word for word in line.split()]
        return flatten(self._execute([word.encode() for word in words]))

    def fill(self) -> None:
        for key in KEYS:
            self.ask(self.draw.choice(CHANGES[:3]).replace("KEY", key))

    def change(self) -> None:
        for _ in range(self.draw.randint(0, 5)):
            self.ask(self.draw.choice(CHANGES))
            self._clock.advance(self.draw.randint(0, 1))
        if self.draw.random() < 0.05:
            self.ask(self.draw.choice(WHOLE))
        self._server.engine.run(keyspace.delete_expired, 100)

    def show(self, keys: list[bytes]) -> dict[bytes, Any]:
        """Return what is under each key: a kind, and the value of a string."""
        run, found = self._server.engine.run, self.ask("KEYS *")
        assert len(found) == self.ask("DBSIZE")
        kinds = {key: run(keyspace.kind, qualified(0, key)) for key in keys}
        assert {key for key in keys if kinds[key] != "none"} == {*found} & {*keys}
        return {
            key: run(strings.get, qualified(0, key)) if kind == "string" else kind
            for key, kind in kinds.items()
        }


COMMANDS = ["EXISTS", "DEL", "MGET", "MSET", "MSETNX"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(6))
def test_the_effect_is_that_of_the_last_step(
    server: Server, clock: ManualClock, command: str, seed: int
) -> None:
    others = Others(server, clock, seed)
    draw = others.draw
    for number in range(8):
        if command != "MSETNX" or number % 2:
            others.fill()
        else:
            others.ask("FLUSHDB")
        keys = [key.encode() for key in draw.sample(KEYS, draw.choice([5, 30]))]
        asked = [*keys, *keys, keys[0], b"none"]
        values = {key: draw.choice([b"", b"v%d" % number, LARGE.encode()]) for key in keys}
        plans: dict[str, Plan[Any]] = {
            "EXISTS": keyspace.plan_count(0, asked),
            "DEL": keyspace.plan_delete(0, asked),
            "MGET": strings.plan_get(0, asked),
            "MSET": strings.plan_put(0, values),
            "MSETNX": strings.plan_put(0, values, only_new=True),
        }
        work, done = Stepped(plans[command]), None
        while done is None:
            others.change()
            before = others.show(keys)
            done = server.engine.run(work.step)
        there = [key for key in asked if before.get(key, "none") != "none"]
        texts = {key: value for key, value in before.items() if isinstance(value, bytes)}
        replies = {
            "EXISTS": len(there),
            "DEL": len({*there}),
            "MGET": [texts.get(key) for key in asked],
            "MSET": True,
            "MSETNX": not there,
        }
        assert done == replies[command]
        after: dict[bytes, Any] = before
        if command == "DEL":
            after = dict.fromkeys(keys, "none")
        elif "MSET" in command and done:
            after = values
        assert others.show(keys) == after
        names = [qualified(0, key) for key in keys]
        assert server.engine.run(strings.get_several, names) == [
            value if isinstance(value, bytes) else None for value in after.values()
        ]
        assert server.engine.run(check) == []
        server.engine.run(keyspace.sweep, draw.choice([0, 1, 100]))


def test_strings_are_set_at_once_over_any_value(
    server: Server, ann: Other, clock: ManualClock
) -> None:
    for seed in range(4):
        others = Others(server, clock, seed)
        for number in range(12):
            for _ in range(6):
                others.change()
            given = {key: others.draw.choice(["v", str(number), LARGE]) for key in KEYS[seed::5]}
            pairs = [word for pair in given.items() for word in pair]
            assert ann.ask("MSET", *pairs[:2], *pairs) == b"+OK\r\n"
            assert ann.ask("TTL", next(iter(given))) == b":-1\r\n"
            keys = [key.encode() for key in given]
            assert [*others.show(keys).values()] == [value.encode() for value in given.values()]
            assert server.engine.run(check) == []


def test_a_key_that_expires_meanwhile_is_not_counted(
    server: Server, ann: Other, worker: Worker, clock: ManualClock
) -> None:
    for key in KEYS:
        ann.ask("SET", key, "v", "PX", "100")
    worker.begin("DEL", *KEYS)
    clock.advance(100)
    assert worker.end() == 0
    assert reply_to(ann, "EXISTS", *KEYS[:3]) == 0
    worker.begin("EXISTS", *KEYS)
    ann.ask("SET", KEYS[7], "v")
    assert worker.end() == 1


@pytest.mark.parametrize("command", ["UNLINK", "MSET", "MSETNX"])
def test_other_clients_see_all_of_it_or_nothing(
    server: Server, ann: Other, worker: Worker, command: str
) -> None:
    words = KEYS if command == "UNLINK" else [word for key in KEYS for word in (key, "v")]
    if command == "UNLINK":
        for key in KEYS:
            ann.ask("XADD", key, "1-1", "f", "v")
        words = [*KEYS, "none", KEYS[0]]
    before, after = (len(KEYS), 0) if command == "UNLINK" else (0, len(KEYS))
    reader, watcher = server.client(), Other(server, 2)
    if command == "UNLINK":
        ann.ask("XGROUP", "CREATE", KEYS[0], "g", "$")
        reader.send("XREADGROUP", "GROUP", "g", "w", "BLOCK", "0", "STREAMS", KEYS[0], ">")
    else:
        reader.send("XREAD", "BLOCK", "0", "STREAMS", KEYS[7], "$")
    watcher.ask("WATCH", KEYS[1])
    worker.begin(command, *words)
    while server.executor.incremental.is_busy:
        assert reply_to(ann, "DBSIZE") == before
        assert reader.heard() == b""
        worker.step()
    assert worker.end() == {"UNLINK": len(KEYS), "MSET": b"OK", "MSETNX": 1}[command]
    assert reply_to(ann, "DBSIZE") == after
    assert reader.heard().startswith(b"-NOGROUP" if command == "UNLINK" else b"")
    assert (reader.client.block is None) == (command == "UNLINK")
    watcher.ask("MULTI")
    watcher.ask("PING")
    assert watcher.ask("EXEC") == b"*-1\r\n"
    worker.begin("MSETNX", *[word for key in KEYS for word in (key, "v")])
    assert worker.end() == (command == "UNLINK")
    assert worker.ask("MSET", *KEYS, "half", "more", "odd").startswith(b"-ERR wrong number")


def test_keys_changed_meanwhile_are_read_again(server: Server, ann: Other, worker: Worker) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, "v")])
    worker.begin("MGET", *KEYS, "none")
    ann.ask("SET", KEYS[-1], "new")
    assert worker.end() == [*[b"v"] * 39, b"new", None]


def test_a_client_that_disconnects_before_the_last_step_deletes_nothing(
    server: Server, ann: Other, worker: Worker
) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, "v")])
    worker.begin("DEL", *KEYS)
    worker.leave()
    server.turn()
    assert reply_to(ann, "DBSIZE") == len(KEYS)


def test_a_transaction_deletes_them_in_its_order(server: Server, ann: Other) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, "v")])
    ann.ask("MULTI")
    for words in (("DEL", *KEYS), ("EXISTS", KEYS[3]), ("SET", KEYS[3], "w"), ("DBSIZE",)):
        assert ann.ask(*words) == b"+QUEUED\r\n"
    assert reply_to(ann, "EXEC") == [len(KEYS), 0, b"OK", 1]


def test_a_reply_above_the_limit_is_refused(server: Server, worker: Worker, ann: Other) -> None:
    ann.ask("MSET", *[word for key in KEYS for word in (key, LARGE)])
    server.engine.catalog.limits.reply_max = 20 * len(LARGE)
    assert worker.ask("MGET", *KEYS).startswith(b"-ERR")
    with pytest.raises(ReplyTooLarge):
        server.engine.run(strings.get_several, [qualified(0, key.encode()) for key in KEYS])


def test_nothing_is_set_if_one_value_is_too_long(server: Server, worker: Worker) -> None:
    change_thresholds(server.engine, string_bytes_max=len(LARGE))
    values = {qualified(0, b"a"): b"v", qualified(0, b"b"): LARGE.encode() + b"!"}
    with pytest.raises(InvalidArgument):
        server.engine.run(strings.put_several, values)
    words = [word for key in KEYS for word in (key, LARGE)]
    for command in ("MSET", "MSETNX"):
        assert worker.ask(command, *words, "b", LARGE + "!").startswith(b"-ERR string exceeds")
    assert server.engine.run(keyspace.size, 0) == 0
