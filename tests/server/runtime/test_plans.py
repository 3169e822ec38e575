"""Commands on streams in steps have the effect of one step: that of their last one.

Each command runs in steps on one of two equal streams and at once on the other one, and other
clients change both between the steps.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstream.meta.pel import runs_by_time
from kvstream.meta.txn import Txn
from kvstream.operations.checks import check
from kvstream.operations.groups import group_of_key
from kvstream.types.clock import ManualClock
from tests.commands.dispatcher import Dispatcher, flatten
from tests.server.runtime.test_incremental_commands import fill, reply_to
from tests.server.talking import Other, Server, Worker, parsed, sound

ENTRIES, STEP = 40, 4
IDS = [f"{number}-1" for number in range(1, ENTRIES + 1)]
DELETES = [
    "XDEL KEY *",
    "XDELEX KEY IDS N *",
    "XDELEX KEY DELREF IDS N *",
    "XDELEX KEY ACKED IDS N *",
    "XACKDEL KEY g IDS N *",
    "XACKDEL KEY g ACKED IDS N *",
]
PENDING = [
    "XACK KEY g *",
    "XCLAIM KEY g other 0 *",
    "XCLAIM KEY g other 0 * JUSTID",
    "XCLAIM KEY g w 0 * FORCE LASTID 30-1",
    "XCLAIM KEY g other 50 * RETRYCOUNT 7 IDLE 3",
    "XNACK KEY g FAIL IDS N *",
    "XNACK KEY g SILENT IDS N * FORCE",
    "XNACK KEY g FATAL IDS N * RETRYCOUNT 3",
]
SCANS = [
    "XAUTOCLAIM KEY g other 0 0 COUNT 1000",
    "XAUTOCLAIM KEY g other 0 7 COUNT 25",
    "XAUTOCLAIM KEY g other 50 5-0 COUNT 1000 JUSTID",
]
READS = [
    "XREADGROUP GROUP g v STREAMS KEY >",
    "XREADGROUP GROUP g v COUNT 17 STREAMS KEY >",
    "XREADGROUP GROUP g v COUNT 1000 NOACK STREAMS KEY >",
]
COPIES = ["COPY KEY KEY:copy", "COPY KEY KEY:copy REPLACE", "MOVE KEY 3"]
COMMANDS = [*DELETES, *PENDING, *SCANS, *READS, *COPIES]
CHANGES = [
    *["XADD KEY NEXT f v"] * 5,
    "XDEL KEY ID",
    "XDEL KEY ID ID ID",
    "XDELEX KEY DELREF IDS 1 ID",
    "XTRIM KEY MINID ID",
    "XTRIM KEY MAXLEN 33",
    "XACK KEY g ID ID",
    "XNACK KEY g FAIL IDS 2 ID ID",
    "XCLAIM KEY g w 0 ID ID",
    "XREADGROUP GROUP g v COUNT 5 STREAMS KEY >",
]
MOVES = [
    *CHANGES,
    "XCLAIM KEY g v 0 ID ID FORCE",
    "XGROUP SETID KEY g ID",
    "XGROUP DELCONSUMER KEY g v",
]
RARE = [
    "XGROUP DESTROY KEY g",
    "XGROUP CREATE KEY g 0",
    "XTRIM KEY MAXLEN 0",
    "XSETID KEY 3-0",
    "DEL KEY",
    "SET KEY v",
    "SET KEY:copy v",
]


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


def show(server: Server, key: str) -> Any:
    """Return the whole state of a stream, and of its copies, read outside the turns."""
    ask = Dispatcher(server.engine).execute
    found = []
    for db, name in (b"0", key), (b"0", f"{key}:copy"), (b"3", key):
        ask([b"SELECT", db])
        if flatten(ask([b"TYPE", name.encode()])) == b"stream":
            full = [b"XINFO", b"STREAM", name.encode(), b"FULL", b"COUNT", b"0"]
            entries = ask([b"XRANGE", name.encode(), b"-", b"+"])
            found.append((db, flatten(entries), flatten(ask(full)), ask([b"PTTL", name.encode()])))
    return found, _given_back(server, key)


def _given_back(server: Server, key: str) -> list[bytes]:
    """Return the pending entries without an owner, in the order of their delivery."""

    def look(txn: Txn) -> list[bytes]:
        stream = txn.key(b"\0\0" + key.encode())
        if stream is None or not getattr(stream, "groups_count", 0):
            return []
        _, group = group_of_key(txn, b"\0\0" + key.encode(), b"g")
        return [eid for run in runs_by_time(txn, group, 0) if not run.owned for eid in run.ids]

    return server.engine.run(look)


class Twins:
    """Two streams that get the same changes."""

    def __init__(self, server: Server, seed: int) -> None:
        self._execute = Dispatcher(server.engine).execute
        self.draw = random.Random(seed)
        self._last = 0

    def ask(self, *words: str) -> Any:
        return flatten(self._execute([word.encode() for word in words]))

    def both(self, line: str) -> None:
        self._last += line.startswith("XADD")
        line = line.replace("NEXT", f"{self._last}-1")
        words = [self.draw.choice(IDS) if word == "ID" else word for word in line.split()]
        for key in "st":
            self.ask(*[word.replace("KEY", key) for word in words])

    def begin(self) -> None:
        self.ask("FLUSHALL")
        self._last = 0
        for line in ["XADD KEY NEXT f v"] * ENTRIES + ["XGROUP CREATE KEY g 0"]:
            self.both(line)
        for number in (15, 1, 9):
            self.both(f"XREADGROUP GROUP g w COUNT {number} STREAMS KEY >")

    def change(self, rarely: bool, kinds: Sequence[str]) -> None:
        for _ in range(self.draw.randint(0, 3)):
            self.both(self.draw.choice(kinds))
        if rarely and self.draw.random() < 0.1:
            self.both(self.draw.choice(RARE))


def put_in(command: str, key: str, ids: Sequence[str]) -> list[str]:
    whole = command.replace("KEY", key).replace(" N ", f" {len(ids)} ")
    return whole.replace("*", " ".join(ids)).split()


def same(reply: Any) -> Any:
    """Return a reply as that of the other stream."""
    if isinstance(reply, Exception):
        return str(reply).replace("'t'", "'s'")
    return [[b"s", *rest] for _, *rest in reply] if "[[b't'" in str(reply)[:6] else reply


@pytest.mark.parametrize("seed", range(2))
def test_the_effect_happens_in_the_last_step(
    server: Server, ann: Other, worker: Worker, seed: int
) -> None:
    twins = Twins(server, seed)
    for at, command in enumerate(COMMANDS * 2):
        twins.begin()
        kinds = CHANGES if command in SCANS else MOVES  # none behind the scanned part
        for kind in kinds[:10]:
            twins.both(kind)
        ids = sorted(twins.draw.sample(IDS, 30), key=lambda eid: int(eid.split("-")[0]))
        if command.startswith(("XACK ", "XDEL")) and at % 2:
            ids = twins.draw.choices([*IDS, "45-1", "60-1"], k=30)
        elif at % 3 == 2:
            twins.draw.shuffle(ids)
        worker.send(*put_in(command, "s", ids))
        worker.step()
        while server.executor.incremental.is_busy:
            twins.change(at >= len(COMMANDS), kinds)
            worker.step()
        one = reply_to(ann, *put_in(command, "t", ids))
        server.turn()
        assert same(parsed(worker.heard())) == same(one), command
        assert show(server, "s") == show(server, "t"), command


@pytest.mark.parametrize("command", COMMANDS)
def test_other_clients_see_all_of_it_or_nothing(
    server: Server, ann: Other, worker: Worker, command: str
) -> None:
    by = 1 if server.engine.thresholds.cached_rows < ENTRIES else 7
    for key in "st":
        fill(ann, key, ENTRIES)
        for _ in range(0 if command in READS else ENTRIES // by):
            ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", str(by), "STREAMS", key, ">")
        ann.ask("XACK", key, "g", "3-1", "20-1")
        ann.ask("XDEL", key, "5-1", "21-1")
        ann.ask("XADD", key, "IDMP", "p", "i", "99-0", "f", "v")
        ann.ask("EXPIRE", key, "1000")
        if "REPLACE" in command:
            ann.ask("SET", f"{key}:copy", "v")
    seen = show(server, "s")
    ids = [eid for eid in IDS if int(eid.split("-")[0]) % 2 or by == 7] + ["99-1", "7-1"]
    one = reply_to(ann, *put_in(command, "t", ids))
    worker.begin(*put_in(command, "s", ids))
    steps = 1
    while server.executor.incremental.is_busy:
        assert show(server, "s") == seen
        steps += 1
        worker.step()
    server.turn()
    assert same(parsed(worker.heard())) == same(one)
    assert show(server, "s") == show(server, "t") != seen
    assert steps > 3


# --- streams that change completely -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "command", "answer"),
    [
        *[("DEL s", command, [-1] * ENTRIES) for command in (DELETES[1], DELETES[4])],
        *[("DEL s", command, 0) for command in (DELETES[0], PENDING[0], COPIES[0])],
        ("XGROUP DESTROY s g", DELETES[4], [-1] * ENTRIES),
        *[("XGROUP DESTROY s g", each, "NOGROUP") for each in (PENDING[1], SCANS[0], READS[0])],
        *[("SET s v", each, "WRONGTYPE") for each in (DELETES[0], DELETES[4], PENDING[5])],
        ("SET s v", COPIES[0], 1),
        ("SET s:copy v", COPIES[0], 0),
        *[("RENAME s elsewhere", command, 0) for command in (DELETES[0], COPIES[0])],
        *[("SWAPDB 0 1", command, 0) for command in (DELETES[0], COPIES[0])],
        ("FLUSHALL", DELETES[1], [-1] * ENTRIES),
        ("FLUSHALL", COPIES[0], 0),
        ("DEBUG RELOAD", DELETES[0], ENTRIES),
        ("DEBUG RELOAD", PENDING[0], 21),
        ("DEBUG RELOAD", COPIES[0], 1),
    ],
    ids=str,
)
def test_a_completely_changed_stream(
    server: Server, ann: Other, worker: Worker, change: str, command: str, answer: Any
) -> None:
    fill(ann, "s", ENTRIES)
    for number in () if command in READS else ("15", "1", "5"):
        ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", number, "STREAMS", "s", ">")
    worker.begin(*put_in(command, "s", IDS))
    worker.step()
    if change == "DEBUG RELOAD":
        server.engine.reopen()
    else:
        ann.ask(*change.split())
    reply = worker.end()
    assert (reply.args[0].split()[0] if isinstance(reply, Exception) else reply) == answer
    assert worker.ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("emptied", ["DEL s", "XTRIM s MAXLEN 0"])
@pytest.mark.parametrize("command", [DELETES[0], SCANS[0], READS[0], COPIES[0]])
def test_a_recreated_stream_shows_no_old_entries(
    server: Server, ann: Other, worker: Worker, emptied: str, command: str
) -> None:
    fill(ann, "s", ENTRIES)
    if command == SCANS[0]:
        ann.ask("XREADGROUP", "GROUP", "g", "w", "STREAMS", "s", ">")
    worker.begin(*put_in(command, "s", IDS))
    for line in (emptied, "XADD s 0-1 f v", "XDEL s 0-1"):
        ann.send(*line.split())  # all of these between two steps
    for line in ("XSETID s 0-1", "XADD s 2-1 f new", "XADD s 20-1 f new", "XADD s 20-2 f new"):
        ann.send(*line.split())
    ann.send("XGROUP", "CREATE", "s", "g", "0")
    reply = worker.end()
    ann.heard()
    live = reply_to(ann, "XRANGE", "s", "-", "+")
    if command == DELETES[0]:
        assert (reply, len(live)) == (2, 1)
    elif command == SCANS[0]:
        assert reply[1] == (live[:2] if "XTRIM" in emptied else [])
    elif command == READS[0]:
        assert reply == [[b"s", live]]
    else:
        assert reply_to(ann, "XRANGE", "s:copy", "-", "+") == live


@pytest.mark.parametrize("command", [DELETES[0], PENDING[0], READS[0], COPIES[0], COPIES[2]])
def test_a_client_that_disconnects_leaves_nothing(
    server: Server, ann: Other, worker: Worker, command: str
) -> None:
    fill(ann, "s", ENTRIES)
    for _ in range(0 if command == READS[0] else ENTRIES):
        ann.ask("XREADGROUP", "GROUP", "g", "w", "COUNT", "1", "STREAMS", "s", ">")
    before = show(server, "s")
    worker.begin(*put_in(command, "s", IDS))
    worker.step()
    worker.leave()
    server.turn()
    assert not server.executor.incremental.is_busy
    assert show(server, "s") == before


# --- what is special to one command -------------------------------------------------------------


def test_constant_deletions_do_not_restart_xdel(server: Server, ann: Other, worker: Worker) -> None:
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


def test_xautoclaim_claims_no_more_than_asked(server: Server, ann: Other, worker: Worker) -> None:
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


def test_a_group_moved_to_the_greatest_id_meanwhile_delivers_nothing(
    server: Server, ann: Other, worker: Worker
) -> None:
    fill(ann, "s", ENTRIES)
    worker.begin("XREADGROUP", "GROUP", "g", "w", "STREAMS", "s", ">")
    ann.ask("XGROUP", "SETID", "s", "g", f"{2**64 - 1}-{2**64 - 1}")
    assert not worker.end()
    assert reply_to(ann, "XPENDING", "s", "g")[0] == 0


def test_a_read_blocks_if_the_entries_are_delivered_meanwhile(
    server: Server, ann: Other, worker: Worker
) -> None:
    fill(ann, "s", ENTRIES)
    worker.begin("XREADGROUP", "GROUP", "g", "w", "BLOCK", "0", "STREAMS", "s", ">")
    ann.ask("XGROUP", "SETID", "s", "g", "$")
    assert worker.heard() == b""
    server.turn()
    assert worker.client.block is not None
    ann.ask("XADD", "s", "1000-1", "f", "v")
    assert parsed(worker.heard()) == [[b"s", [[b"1000-1", [b"f", b"v"]]]]]
    assert worker.ask("PING") == b"+PONG\r\n"
