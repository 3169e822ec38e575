"""XDEL, XDELEX and XACKDEL of very many IDs: steps have the effect of one command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.operations import ack, delete
from kvstream.operations.delete import Live, plan_erasure
from kvstream.operations.plans import Stepped
from kvstream.types.clock import ManualClock
from kvstream.types.ids import StreamID
from kvstream.types.options import RefPolicy
from tests.server.runtime.test_incremental_commands import fill, reply_to
from tests.server.runtime.twins import ENTRIES, IDS, Twins, shown
from tests.server.talking import Other, Server, Worker, parsed, sound

STEP = 4
COMMANDS: list[tuple[str, ...]] = [
    ("XDEL", "s"),
    ("XDELEX", "s", "IDS"),
    ("XDELEX", "s", "DELREF", "IDS"),
    ("XDELEX", "s", "ACKED", "IDS"),
    ("XACKDEL", "s", "g", "IDS"),
    ("XACKDEL", "s", "g", "ACKED", "IDS"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"step_rows": STEP, "long_rows": 2 * STEP, "steps_s": -1.0}
    with sound(tmp_path / "store", ManualClock(), **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client, whose commands run in one step meanwhile."""
    return Other(server, 1)


def asked(command: tuple[str, ...], ids: list[str]) -> list[str]:
    return [*command, *([str(len(ids))] if command[-1] == "IDS" else []), *ids]


def read_some(ann: Other, key: str) -> None:
    for number in ("15", "1", "9"):
        ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", number, "STREAMS", key, ">")


@pytest.mark.parametrize("seed", range(8))
def test_the_effect_happens_in_the_last_step(server: Server, seed: int) -> None:
    twins = Twins(server, seed)
    for at, command in enumerate(COMMANDS * 3):
        twins.begin()
        ids = [StreamID.parse(eid) for eid in twins.draw.choices([*IDS, "45-1", "60-1"], k=30)]
        if at % 2:
            ids.sort()

        def operation(txn: Any, live: Live, command: Any = command, ids: Any = ids) -> Any:
            name = b"\0\0s"
            if command[0] == "XDEL":
                return delete.delete(txn, name, ids, live)
            policy = next((RefPolicy(word) for word in command if word in [*RefPolicy]), None)
            how = policy or RefPolicy.KEEPREF
            if command[0] == "XDELEX":
                return delete.delete_with_policy(txn, name, ids, how, live)
            return ack.acknowledge_and_delete(txn, name, b"g", ids, how, live)

        work = Stepped(plan_erasure(b"\0\0s", ids, operation))
        for _ in range(1000):
            twins.change(rarely=at >= len(COMMANDS))
            wrong_type = twins.ask("TYPE", "s") == b"string"
            if wrong_type or (done := server.engine.run(work.step)) is not None:
                break
        if not wrong_type:
            words = ["t" if word == "s" else word for word in asked(command, [*map(str, ids)])]
            assert done == twins.ask(*words)
            assert twins.are_alike()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_other_clients_see_all_of_it_or_nothing(
    server: Server, ann: Other, worker: Worker, command: tuple[str, ...]
) -> None:
    for key in "st":
        fill(ann, key, ENTRIES)
        read_some(ann, key)
        ann.ask("XACK", key, "g", "3-1")
    seen = shown(server, "s")
    ids = [*IDS, "99-1", "7-1"]
    words = asked(("COMMAND", *command[1:]), ids)[1:]
    one = reply_to(ann, command[0], *["t" if word == "s" else word for word in words])
    worker.begin(command[0], *words)
    steps = 1
    while server.executor.incremental.is_busy:
        assert shown(server, "s") == seen
        steps += 1
        worker.step()
    assert steps == ENTRIES // STEP
    server.turn()
    assert parsed(worker.heard()) == one
    assert shown(server, "s") == shown(server, "t") != seen


def test_constant_deletions_do_not_restart_it(server: Server, ann: Other, worker: Worker) -> None:
    fill(ann, "s", ENTRIES)
    worker.begin("XDEL", "s", *IDS)
    steps = 1
    while server.executor.incremental.is_busy:
        ann.send("XDEL", "s", IDS[-steps])  # in the turn before the step
        worker.step()
        steps += 1
    assert steps <= ENTRIES // STEP + 2
    server.turn()
    ann.heard()
    assert parsed(worker.heard()) == ENTRIES - steps + 1
    assert reply_to(ann, "XLEN", "s") == 0


@pytest.mark.parametrize(
    ("change", "command", "answer"),
    [
        (("DEL", "s"), COMMANDS[0], 0),
        (("DEL", "s"), COMMANDS[1], [-1] * ENTRIES),
        (("DEL", "s"), COMMANDS[4], [-1] * ENTRIES),
        (("XGROUP", "DESTROY", "s", "g"), COMMANDS[4], [-1] * ENTRIES),
        (("SET", "s", "v"), COMMANDS[0], "WRONGTYPE"),
        (("SET", "s", "v"), COMMANDS[4], "WRONGTYPE"),
        (("RENAME", "s", "elsewhere"), COMMANDS[0], 0),
        (("SWAPDB", "0", "1"), COMMANDS[0], 0),
        (("FLUSHALL",), COMMANDS[1], [-1] * ENTRIES),
        (("DEBUG", "RELOAD"), COMMANDS[0], ENTRIES),
    ],
    ids=str,
)
def test_a_completely_changed_stream(
    server: Server, ann: Other, worker: Worker, change: tuple[str, ...], command: Any, answer: Any
) -> None:
    fill(ann, "s", ENTRIES)
    read_some(ann, "s")
    worker.begin(*asked(command, IDS))
    worker.step()
    if change[0] == "DEBUG":
        server.engine.reopen()
    else:
        ann.ask(*change)
    reply = worker.end()
    assert (reply.args[0].split()[0] if isinstance(reply, Exception) else reply) == answer
    assert worker.ask("PING") == b"+PONG\r\n"


def test_a_client_that_disconnects_and_a_transaction(
    server: Server, ann: Other, worker: Worker
) -> None:
    fill(ann, "s", ENTRIES)
    worker.ask("MULTI")
    worker.ask("XDEL", "s", *IDS[:20])
    worker.send("EXEC")
    worker.step()
    assert not server.executor.incremental.is_busy
    server.turn()
    assert parsed(worker.heard()) == [20]
    worker.begin("XDEL", "s", *IDS)
    worker.leave()
    server.turn()
    assert reply_to(ann, "XLEN", "s") == ENTRIES - 20


@pytest.mark.parametrize("emptied", [("DEL", "s"), ("XTRIM", "s", "MAXLEN", "0")], ids=str)
def test_a_recreated_stream(
    server: Server, ann: Other, worker: Worker, emptied: tuple[str, ...]
) -> None:
    fill(ann, "s", ENTRIES)
    worker.begin("XDEL", "s", *IDS)
    worker.step()
    for words in (emptied, ("XADD", "s", "0-1", "f", "v"), ("XDEL", "s", "0-1")):
        ann.send(*words)
    ann.send("XSETID", "s", "0-1")
    for eid in ("2-1", "20-1", "20-2"):
        ann.send("XADD", "s", eid, "f", "v")
    assert worker.end() == 2
    ann.heard()
    assert reply_to(ann, "XLEN", "s") == 1
