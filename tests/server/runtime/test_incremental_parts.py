"""KVSTREAM.ACK, EXTEND, NACK and DELAYED CANCEL of very many: in parts, each a commit.

The end of an order (KVSTREAM.POLICY SET and DEL) runs in parts, too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.operations.checks import check
from kvstream.types.clock import ManualClock
from tests.commands.dispatcher import Dispatcher, flatten
from tests.opening import change_thresholds
from tests.server.runtime.test_incremental_commands import fill, reply_to
from tests.server.talking import Other, Server, Worker, parsed, sound

ENTRIES, STEP = 40, 4
COMMANDS = [
    "KVSTREAM.ACK KEY g w *",
    "KVSTREAM.EXTEND KEY g w *",
    "KVSTREAM.NACK KEY g w *",
    "KVSTREAM.NACK KEY g w DELAY 70 *",
    "KVSTREAM.NACK KEY g w FATAL ERROR oops *",
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[Server]:
    sizes = {"step_rows": STEP, "long_rows": 2 * STEP, "steps_s": -1.0}
    with sound(tmp_path / "store", clock, **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client, whose commands run meanwhile."""
    return Other(server, 1)


def leased(ann: Other, clock: ManualClock, *keys: str) -> None:
    """Lease all entries to consumer w, some of which it then loses or finishes."""
    for key in keys:
        fill(ann, key, ENTRIES)
        ann.ask("KVSTREAM.POLICY", "SET", key, "g", "LEASE", "1000000", "BACKOFF", "50")
        ann.ask("XREADGROUP", "GROUP", "g", "w", "STREAMS", key, ">")
        ann.ask("XACK", key, "g", "5-1", "30-1")
        ann.ask("XCLAIM", key, "g", "v", "0", "9-1", "10-1")
    clock.advance(10)


def worded(command: str, key: str, numbers: list[int]) -> list[str]:
    tokens = [word for number in numbers for word in (f"{number}-1", "1")]
    words: list[str] = []
    for word in command.split():
        words += tokens if word == "*" else [key if word == "KEY" else word]
    return words


def do(server: Server, line: str) -> Any:
    """Run a command outside the turns of the server, so that no step runs."""
    return flatten(Dispatcher(server.engine).execute(line.encode().split()))


def pending(server: Server, key: str = "s") -> Any:
    return do(server, f"XPENDING {key} g - + 100")


def state(server: Server, key: str) -> Any:
    entries = [eid for eid, _ in do(server, f"XRANGE {key} - +")]
    return entries, do(server, f"XLEN {key}:dead"), pending(server, key)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_outcomes_are_those_of_one_step(
    server: Server, ann: Other, worker: Worker, clock: ManualClock, command: str
) -> None:
    leased(ann, clock, "s", "t")
    numbers = [*range(ENTRIES, 0, -1), 99]
    one = reply_to(ann, *worded(command, "t", numbers))
    assert sorted(set(one)) == [-1, 0, 1]
    worker.begin(*worded(command, "s", numbers))
    assert worker.end() == one
    assert state(server, "s") == state(server, "t")


@pytest.mark.parametrize("command", COMMANDS)
def test_another_client_is_served_between_two_parts(
    server: Server, ann: Other, worker: Worker, clock: ManualClock, command: str
) -> None:
    """It sees the parts, and its changes are not overwritten."""
    leased(ann, clock, "s")
    worker.begin(*worded(command, "s", [*range(1, ENTRIES + 1)]))
    seen = []
    while server.executor.incremental.is_busy:
        shown = state(server, "s")
        seen += [shown] if shown not in seen else []
        do(server, "XACK s g 40-1")
        worker.step()
    server.turn()
    outcomes = parsed(worker.heard())
    assert outcomes[-1] == 0
    assert outcomes.count(1) == ENTRIES - 5
    assert len(seen) == ENTRIES // STEP + 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", ["x 1", "41-1 x", "41-1"])
def test_a_wrong_argument_is_refused_before_any_change(
    server: Server, ann: Other, worker: Worker, clock: ManualClock, command: str, wrong: str
) -> None:
    leased(ann, clock, "s")
    before = state(server, "s")
    worker.send(*worded(command, "s", [*range(1, ENTRIES + 1)]), *wrong.split())
    assert isinstance(worker.end(), Exception)
    assert state(server, "s") == before


def test_a_transaction_settles_all_in_one_step(
    server: Server, ann: Other, worker: Worker, clock: ManualClock
) -> None:
    leased(ann, clock, "s")
    worker.ask("MULTI")
    worker.ask(*worded(COMMANDS[0], "s", [*range(1, ENTRIES + 1)]))
    (outcomes,) = parsed(worker.ask("EXEC"))
    assert outcomes.count(1) == ENTRIES - 4


def test_a_full_disk_ends_it_and_earlier_parts_stay(
    server: Server, ann: Other, worker: Worker, clock: ManualClock
) -> None:
    leased(ann, clock, "s")
    worker.begin(*worded(COMMANDS[0], "s", [*range(11, 31)]))
    while len(pending(server)) == ENTRIES - 2:
        worker.step()
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no space")):
        worker.step()
    assert "no space" in str(parsed(worker.heard()))
    assert not server.executor.incremental.is_busy
    assert len(pending(server)) == ENTRIES - 2 - STEP


def test_a_client_that_disconnects_leaves_the_rest(
    server: Server, ann: Other, worker: Worker, clock: ManualClock
) -> None:
    leased(ann, clock, "s")
    worker.begin(*worded(COMMANDS[0], "s", [*range(11, 31)]))
    while len(pending(server)) == ENTRIES - 2:
        worker.step()
    worker.leave()
    assert not server.executor.incremental.is_busy
    assert len(pending(server)) == ENTRIES - 2 - STEP


def test_delayed_messages_are_cancelled_in_parts(
    server: Server, ann: Other, worker: Worker, clock: ManualClock
) -> None:
    tickets = [
        reply_to(ann, "KVSTREAM.ADD", "s", "DELAY", f"{number}", "n", "1").decode()
        for number in range(1, ENTRIES + 1)
    ]
    worker.begin("KVSTREAM.DELAYED", "CANCEL", "s", *tickets, tickets[0], "@5-5")
    left = []
    while server.executor.incremental.is_busy:
        left.append(do(server, "KVSTREAM.DELAYED LEN s"))
        do(server, f"KVSTREAM.DELAYED CANCEL s {tickets[-1]}")
        worker.step()
    server.turn()
    assert parsed(worker.heard()) == ENTRIES - 1
    assert sorted(set(left)) == [0, *range(3, ENTRIES, STEP), ENTRIES]
    assert reply_to(ann, "KVSTREAM.DELAYED", "LEN", "s") == 0
    worker.send("KVSTREAM.DELAYED", "CANCEL", "s", *tickets, "nonsense")
    assert isinstance(worker.end(), Exception)


# --- the end of an order ------------------------------------------------------------------------


def ordered(ann: Other, *keys: str) -> None:
    """Hold all entries but the first one of each user."""
    for key in keys:
        for number in range(1, ENTRIES + 1):
            ann.ask("XADD", key, f"{number}-1", "user", f"u{number % 3}", "other", "o")
        ann.ask("XGROUP", "CREATE", key, "g", "0")
        ann.ask("KVSTREAM.POLICY", "SET", key, "g", "ORDERBY", "user", "LEASE", "1000000")
        for number in range(ENTRIES):  # many runs
            ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", "4", "STREAMS", key, ">")
            ann.ask("XADD", key, f"{100 + number}-1", "user", "u0")


CHANGES = ["SET KEY g ORDERBY other", "SET KEY g ORDERBY user", "DEL KEY g"]


@pytest.fixture
def few_runs(server: Server) -> None:
    change_thresholds(server.engine, run_ids=4, released_runs=1)


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("change", CHANGES)
def test_another_order_has_the_effect_of_one_step(
    server: Server, ann: Other, worker: Worker, change: str
) -> None:
    ordered(ann, "s", "t")
    one = do(server, f"KVSTREAM.POLICY {change}".replace("KEY", "t"))
    worker.send(*f"KVSTREAM.POLICY {change}".replace("KEY", "s").split())
    assert worker.end() == one
    reads = ["XREADGROUP GROUP g v COUNT 500 STREAMS KEY >"] * 2 + ["XPENDING KEY g - + 500"]
    for line in reads:
        found = [do(server, line.replace("KEY", key)) for key in "st"]
        assert str(found[0]).replace("b's'", "b't'") == str(found[1])


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("change", ["SET KEY g ORDERBY NOTHING", "DEL KEY g"])
def test_other_clients_are_served_while_an_order_ends(
    server: Server, ann: Other, worker: Worker, change: str
) -> None:
    ordered(ann, "s")
    words = f"KVSTREAM.POLICY {change}".replace("KEY", "s").split()
    worker.begin(*["" if word == "NOTHING" else word for word in words])
    steps = 0
    while server.executor.incremental.is_busy:
        do(server, f"XADD s {1000 + steps}-1 user u1")
        do(server, "XREADGROUP GROUP g v COUNT 2 STREAMS s >")
        do(server, f"XACK s g {steps + 1}-1")
        assert server.engine.run(check) == []
        worker.step()
        steps += 1
    assert steps > 5
    server.turn()
    assert not isinstance(parsed(worker.heard()), Exception)
    if change.startswith("DEL"):
        assert do(server, "KVSTREAM.POLICY GET s g") == []
        do(server, "KVSTREAM.POLICY SET s g LEASE 1000000")
        while do(server, "XREADGROUP GROUP g v COUNT 500 STREAMS s >"):
            pass
        assert all(owner for _, owner, _, _ in do(server, "XPENDING s g - + 500"))


@pytest.mark.usefixtures("few_runs")
def test_an_order_ends_though_its_client_disconnects(
    server: Server, ann: Other, worker: Worker
) -> None:
    ordered(ann, "s")
    worker.begin("KVSTREAM.POLICY", "DEL", "s", "g")
    worker.leave()
    server.turn()
    assert do(server, "KVSTREAM.POLICY GET s g") == []
    assert server.engine.run(check) == []


@pytest.mark.usefixtures("few_runs")
def test_an_order_that_ends_without_its_client_wakes_readers(
    server: Server, ann: Other, worker: Worker
) -> None:
    ordered(ann, "s")
    worker.begin("KVSTREAM.POLICY", "SET", "s", "g", "ORDERBY", "")
    while do(server, "XREADGROUP GROUP g v COUNT 500 STREAMS s >"):
        pass
    reader = server.client()
    reader.send(*["XREADGROUP", "GROUP", "g", "r", "BLOCK", "0", "STREAMS", "s", ">"])
    worker.leave()
    server.turn()
    assert len(parsed(reader.heard())[0][1]) > 1


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize("leaves", [False, True])
def test_a_group_destroyed_while_its_order_ends_stops_nothing_else(
    server: Server, ann: Other, worker: Worker, leaves: bool
) -> None:
    ordered(ann, "s")
    worker.begin("KVSTREAM.POLICY", "DEL", "s", "g")
    do(server, "XGROUP DESTROY s g")
    if leaves:
        worker.leave()
        server.turn()
    else:
        assert "No such consumer group" in str(worker.end())
    do(server, "SET k v")
    assert do(server, "GET k") == b"v"
    assert server.engine.run(check) == []
