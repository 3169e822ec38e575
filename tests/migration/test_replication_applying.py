"""Applying the replication stream of a redis-server gives a store the state of that server."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from kvstream import Store
from kvstream.migration.items import Selection
from kvstream.migration.replication.commands import SourceExchanged
from kvstream.migration.replication.following import Link, source_offset
from kvstream.migration.replication.protocol import Received, SnapshotEnd
from kvstream.migration.replication.targets import FollowingStore
from kvstream.operations import functions
from tests.differential.grammar import FAMILIES_7, Argv, one_of, sentence, step, words
from tests.differential.machines import BEGINNING, FIRST_IDS, Naming
from tests.migration.sources import Source, needs_redis
from tests.migration.states import asking, state_of, without

pytestmark = needs_redis

STEPS = 300
SHORT, LONG = 10, 200
"""The number of runs of random commands; many with KVSTREAM_LOAD=1."""
COMMANDS = step(
    [
        *FAMILIES_7,
        (2, sentence("SELECT", words("0 0 0 1 15"))),
        (1, sentence("MOVE", words("s t u n"), words("0 1 15"))),
        (1, sentence("COPY", words("s t u n list"), "u DB", words("1 15"), "REPLACE")),
        (1, sentence(words("LPUSH SADD"), words("list set u"), "x")),
        (1, sentence("RENAME", words("list set"), words("s t u n"))),
        (1, sentence("SUNIONSTORE", words("t u n"), "set nothing")),
        (1, sentence("SWAPDB", words("0 1"), words("1 15"))),
        (1, one_of(sentence("FLUSHDB"), sentence("DEL s t"), sentence("UNLINK u s"))),
        (1, sentence("MSET u 1 n 2")),
        (1, sentence("SETBIT n 3 1")),
    ]
)


class Following:
    """A store that has followed a server from its start, one step at a time."""

    def __init__(self, source: Source, store: Store, selection: Selection | None = None) -> None:
        self.source = source
        self.target = FollowingStore(store.engine, source.url, selection or Selection())
        self.engine = store.engine
        self.ask = asking(store.engine)
        self.target.begin()
        self.link = Link(source.connect())
        self._held: list[Received] = []
        began = False
        while not began:
            events = self.link.receive(5)
            self._held += [event for event in events if isinstance(event, Received)]
            began = any(isinstance(event, SnapshotEnd) for event in events)
        self.target.record_loaded(self.link.position)

    def catch_up(self) -> None:
        """Apply all commands of the server so far."""
        goal = source_offset(self.source.ask)
        while self.link.position.offset < goal:
            self.link.acknowledge(self.link.position.offset)
            for event in self.link.receive(0.1):
                assert isinstance(event, Received)
                self._held.append(event)
        self.target.commit(self._held, self.link.position)
        self._held = []


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """A server that all tests of the module begin to follow while it is empty."""
    server = Source(tmp_path_factory.mktemp("redis"), "--save", "", "--repl-diskless-sync", "no")
    yield server
    server.stop()


@pytest.fixture
def following(source: Source, tmp_path: Path) -> Iterator[Following]:
    source.ask("FLUSHALL")
    with Store.open(tmp_path / "store", durability="no") as store:
        following = Following(source, store)
        yield following
        following.link.close()
        following.target.finish()
        assert store.check() == []


class Names(Naming):
    """The IDs of one run."""

    def __init__(self) -> None:
        self.ids = list(FIRST_IDS)


def reads_history(argv: Argv) -> bool:
    """Return whether a command counts deliveries without replicating it."""
    if argv[:1] != ["XREADGROUP"] or "STREAMS" not in argv:
        return False
    named = argv[argv.index("STREAMS") + 1 :]
    return any(eid != ">" for eid in named[len(named) // 2 :])


def play(source: Source, seed: int) -> list[Argv]:
    """Run random commands on a server, except history reads, which it does not replicate."""
    random, names, played = Random(seed), Names(), []
    for argv in [*(command.split() for command in BEGINNING)]:
        source.ask(*argv)
    client: Any = source.connect()
    for _ in range(STEPS):
        argv = names.with_ids(COMMANDS(random))
        if reads_history(argv):
            continue
        try:
            reply = client.execute_command(*argv)
        except redis.ResponseError:
            continue
        if argv[0] == "XADD" and isinstance(reply, bytes):
            names.ids.append(reply.decode())
        played.append(argv)
    client.close()
    return played


@pytest.mark.parametrize("seed", range(LONG if os.environ.get("KVSTREAM_LOAD") else SHORT))
def test_random_commands_leave_the_same_state(following: Following, seed: int) -> None:
    played = play(following.source, seed)
    following.catch_up()
    assert_same(following, played)
    assert all(name.startswith("XSETID") for name in following.target.journal.refused)


def assert_same(following: Following, played: list[Argv]) -> None:
    """Compare everything except unreplicated fields, and keys that wait for another copy."""
    journal = following.target.journal
    ours = without(state_of(following.ask), "read", "seen")
    theirs = without(state_of(following.source.ask), "read", "seen")
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in journal.recopy:
            assert ours.get(name) == theirs.get(name), (name, journal, played)


def test_one_key_of_a_pattern_is_followed_and_others_are_not(
    source: Source, tmp_path: Path
) -> None:
    source.ask("FLUSHALL")
    with Store.open(tmp_path / "store", durability="no") as store:
        following = Following(source, store, Selection((b"in:*",), frozenset([0, 2])))
        for command in (
            *("XADD in:a 1-1 f v", "XADD out:a 1-1 f v", "MSET in:n 1 out:n 2", "DEL in:x out:a"),
            *("XADD in:b 1-1 f v", "RENAME in:b out:b", "RENAME out:b in:c", "MOVE in:n 2"),
            *("COPY in:a out:c", "COPY in:a in:d DB 1", "COPY in:a in:d DB 2"),
        ):
            source.ask(*command.split())
        following.catch_up()
        assert state_of(following.ask).keys() == {(0, b"in:a"), (2, b"in:n"), (2, b"in:d")}
        assert following.target.journal.recopy == {(0, b"in:c")}
        source.ask("FLUSHALL")
        following.catch_up()
        assert state_of(following.ask) == {}
        following.link.close()


def test_swapping_with_a_database_that_is_not_followed_is_an_error(
    source: Source, tmp_path: Path
) -> None:
    source.ask("FLUSHALL")
    with Store.open(tmp_path / "store", durability="no") as store:
        following = Following(source, store, Selection((), frozenset([0])))
        source.ask("SWAPDB", 0, 1)
        with pytest.raises(SourceExchanged, match="SWAPDB"):
            following.catch_up()
        following.link.close()


def test_expired_keys_are_deleted_only_by_commands_of_the_source(
    following: Following,
) -> None:
    source = following.source
    kept = 0
    while not kept:  # if this test is late, the stream has expired by then
        source.ask("XADD", "s", "1-1", "f", "v")
        source.ask("PEXPIRE", "s", 150)
        kept = source.ask("PERSIST", "s")
    appended = 0
    while appended < 2:
        source.ask("SET", "n", 1, "PX", 150)
        appended = source.ask("APPEND", "n", 2)
    time.sleep(0.3)  # both times are past when their commands arrive
    source.ask("EXISTS", "n")
    following.catch_up()
    assert following.ask("XLEN", "s") == 1
    assert following.ask("EXISTS", "n") == 0
    assert not following.target.journal.refused


def test_deliveries_count_as_read_though_7_0_does_not_replicate_the_counter(
    following: Following,
) -> None:
    source = following.source
    for at in range(1, 6):
        source.ask("XADD", "s", f"{at}-0", "f", "v")
    source.ask("XGROUP", "CREATE", "s", "g", "0")
    source.ask("XREADGROUP", "GROUP", "g", "c", "COUNT", 3, "STREAMS", "s", ">")
    following.catch_up()
    shown = state_of(following.ask)[0, b"s"][0]["groups"][b"g"]
    theirs = state_of(source.ask)[0, b"s"][0]["groups"][b"g"]
    assert shown["read"] == theirs["read"] == (3, 2)
    (_, active_ms) = shown["seen"][b"c"]
    assert active_ms == max(row[2] for row in shown["pending"])  # Redis reads its clock for each
    assert shown["pending"] == theirs["pending"]


def test_reads_of_thousands_of_entries_are_replicated_exactly(following: Following) -> None:
    source = following.source
    pipeline = source.client.pipeline(transaction=False)
    for at in range(1, 6001):
        pipeline.execute_command("XADD", "s", f"{at}-0", "f", "v")
    pipeline.execute()
    source.ask("XDEL", "s", "10-0", "20-0")
    source.ask("XGROUP", "CREATE", "s", "g", "0")
    for consumer, count in (("c", 3000), ("d", 1), ("c", 1000), ("e", 1500)):
        command = ("XREADGROUP", "GROUP", "g", consumer, "COUNT", count)
        source.client.execute_command(*command, "STREAMS", "s", ">")
    source.ask("XAUTOCLAIM", "s", "g", "d", 0, "-", "COUNT", 200)
    following.catch_up()
    assert_same(following, [])
    group = state_of(following.ask)[0, b"s"][0]["groups"][b"g"]
    assert len(group["pending"]) == 5501
    assert not following.target.journal.refused


def test_libraries_of_functions_are_followed(following: Following) -> None:
    def libraries() -> list[bytes]:
        following.catch_up()
        return sorted(following.engine.run(functions.libraries).values())

    ask, texts = following.source.ask, []
    for name in ("one", "two"):
        texts.append(
            f"#!lua name={name}\nredis.register_function('{name}', function() end)".encode()
        )
        ask("FUNCTION", "LOAD", texts[-1])
    assert libraries() == texts
    payload = ask("FUNCTION", "DUMP")
    ask("FUNCTION", "DELETE", "one")
    assert libraries() == texts[1:]
    ask("FUNCTION", "RESTORE", payload, "REPLACE")
    assert libraries() == texts
    ask("FUNCTION", "FLUSH")
    assert libraries() == []
    ask("FUNCTION", "RESTORE", payload, "FLUSH")
    assert libraries() == texts
    ask("FUNCTION", "FLUSH")
