"""XACK, XCLAIM, XAUTOCLAIM and XNACK of very many IDs: steps have the effect of one command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.meta.pel import runs_by_time
from kvstream.meta.txn import Txn
from kvstream.operations.checks import check
from kvstream.operations.groups import group_of_key
from kvstream.types.clock import ManualClock
from tests.server.runtime.test_incremental_commands import fill, reply_to
from tests.server.runtime.twins import CHANGES, ENTRIES, IDS, Twins, shown
from tests.server.talking import Other, Server, Worker, parsed, sound

STEP = 4
COMMANDS = [
    "XACK KEY g *",
    "XCLAIM KEY g other 0 *",
    "XCLAIM KEY g other 0 * JUSTID",
    "XCLAIM KEY g w 0 * FORCE LASTID 30-1",
    "XCLAIM KEY g other 50 * RETRYCOUNT 7 IDLE 3",
    "XNACK KEY g FAIL IDS N *",
    "XNACK KEY g SILENT IDS N * FORCE",
    "XNACK KEY g FATAL IDS N * RETRYCOUNT 3",
    "XAUTOCLAIM KEY g other 0 0 COUNT 1000",
    "XAUTOCLAIM KEY g other 50 5-0 COUNT 1000 JUSTID",
]
MOVES = (
    *CHANGES,
    ("XCLAIM", "KEY", "g", "v", "0", "ID", "ID", "FORCE"),
    ("XGROUP", "SETID", "KEY", "g", "ID"),
    ("XGROUP", "DELCONSUMER", "KEY", "g", "v"),
)


@pytest.fixture(params=[1 << 14, 6], ids=["small", "indexed"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    sizes = {"step_rows": STEP, "long_rows": 2 * STEP, "packed_together": 7}
    sizes |= {"cached_rows": request.param, "store_rows": 0, "stretch_rows": 4}
    sizes["run_ids"] = 7 if request.param > ENTRIES else 1  # many runs
    with sound(tmp_path / "store", ManualClock(), steps_s=-1.0, **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Other:
    """Another client, whose commands run in one step meanwhile."""
    return Other(server, 1)


def worded(command: str, key: str, ids: list[str]) -> list[str]:
    whole = {"KEY": key, "N": str(len(ids)), "*": " ".join(ids)}
    return " ".join(whole.get(word, word) for word in command.split()).split()


def given_back(server: Server, key: str) -> list[bytes]:
    """Return the pending entries without an owner, in the order of their delivery."""

    def look(txn: Txn) -> list[bytes]:
        _, group = group_of_key(txn, b"\0\0" + key.encode(), b"g")
        return [eid for run in runs_by_time(txn, group, 0) if not run.owned for eid in run.ids]

    return server.engine.run(look)


def answered(reply: Any) -> Any:
    return str(reply).replace("'t'", "'s'") if isinstance(reply, Exception) else reply


@pytest.mark.parametrize("seed", range(2))
def test_the_effect_happens_in_the_last_step(
    server: Server, ann: Other, worker: Worker, seed: int
) -> None:
    twins = Twins(server, seed)
    for at, command in enumerate(COMMANDS * 2):
        twins.begin()
        kinds = MOVES if "*" in command else CHANGES  # no other changes behind the scanned part
        for kind in kinds[:10]:
            twins.both(kind)
        ids = sorted(twins.draw.sample(IDS, 30), key=lambda eid: int(eid.split("-")[0]))
        if command.startswith("XACK") and at % 2:
            ids = twins.draw.choices(IDS, k=30)
        elif at % 3 == 2:
            twins.draw.shuffle(ids)
        worker.begin(*worded(command, "s", ids))
        while server.executor.incremental.is_busy:
            twins.change(rarely=at >= len(COMMANDS), kinds=kinds)
            worker.step()
        one = reply_to(ann, *worded(command, "t", ids))
        server.turn()
        assert answered(parsed(worker.heard())) == answered(one)
        if twins.ask("TYPE", "s") == b"stream":
            assert twins.are_alike()
            if not isinstance(one, Exception) and one:
                assert given_back(server, "s") == given_back(server, "t")


@pytest.mark.parametrize("command", COMMANDS)
def test_other_clients_see_all_of_it_or_nothing(
    server: Server, ann: Other, worker: Worker, command: str
) -> None:
    by = 1 if server.engine.thresholds.cached_rows < ENTRIES else 7
    for key in "st":
        fill(ann, key, ENTRIES)
        for _ in range(ENTRIES // by):
            ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", str(by), "STREAMS", key, ">")
        ann.ask("XACK", key, "g", "3-1", "20-1")
        ann.ask("XDEL", key, "5-1", "21-1")
    seen = shown(server, "s")
    ids = [eid for eid in IDS if int(eid.split("-")[0]) % 2 or by == 7] + ["99-1"]
    one = reply_to(ann, *worded(command, "t", ids))
    worker.begin(*worded(command, "s", ids))
    steps = 1
    while server.executor.incremental.is_busy:
        assert shown(server, "s") == seen
        steps += 1
        worker.step()
    server.turn()
    assert parsed(worker.heard()) == one
    assert shown(server, "s") == shown(server, "t")
    assert steps > 3


@pytest.mark.parametrize("others", [0, 1, 3])
def test_deleting_a_consumer_during_an_ack_removes_all_its_entries(
    server: Server, ann: Other, worker: Worker, others: int
) -> None:
    fill(ann, "s", ENTRIES)
    for number in range(ENTRIES):
        consumer = "v" if others and not number % (5 - others) else "w"
        ann.ask("XREADGROUP", "GROUP", "g", consumer, "COUNT", "1", "STREAMS", "s", ">")
    ann.ask("XNACK", "s", "g", "FAIL", "IDS", "2", "3-1", "20-1") if others else None
    owners = dict(reply_to(ann, "XPENDING", "s", "g")[3])
    worker.begin("XACK", "s", "g", *IDS)
    assert reply_to(ann, "XGROUP", "DELCONSUMER", "s", "g", "w") == int(owners.pop(b"w"))
    assert server.engine.run(check) == []
    left = reply_to(ann, "XPENDING", "s", "g")
    assert dict(left[3] or []) == owners
    worker.end()
    server.turn()
    assert reply_to(ann, "XPENDING", "s", "g")[0] == 0


def test_no_more_entries_than_requested_are_claimed(
    server: Server, ann: Other, worker: Worker
) -> None:
    fill(ann, "s", ENTRIES)
    for number in (12, 20):
        ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", str(number), "STREAMS", "s", ">")
    first, rest = IDS[:12], IDS[12:32]
    ann.ask("XCLAIM", "s", "g", "w", "0", *rest, "IDLE", "1000", "JUSTID")
    worker.begin("XAUTOCLAIM", "s", "g", "other", "500", "0", "COUNT", "10")
    while server.executor.incremental.is_busy:
        ann.ask("XNACK", "s", "g", "SILENT", "IDS", "1", first.pop())
        worker.step()
    server.turn()
    cursor, taken, deleted = parsed(worker.heard())
    assert len(first) < 12
    assert 0 < len(taken) <= 10
    assert deleted == []
    left = set(rest) - {eid.decode() for eid, _ in taken}
    assert int(cursor.split(b"-")[0]) <= min(int(eid.split("-")[0]) for eid in left)
