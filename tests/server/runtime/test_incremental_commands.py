"""Clients whose commands run in steps: their order, their end, and other clients meanwhile."""

import gc
import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.operations.plans import Stepped
from kvstream.storage import reads
from kvstream.types.clock import ManualClock
from kvstream.types.options import Durability
from tests.server.talking import Other, Server, Talker, Worker, parsed, sound

ENTRIES = 300
STEP = 16


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    sizes = {"long_rows": 2 * STEP, "step_rows": STEP, "steps_s": -1.0, "node_pages_together": 1}
    sizes |= {"long_names": 4, "step_names": 2}
    with sound(tmp_path / "store", ManualClock(), **sizes) as started:
        yield started


@pytest.fixture
def ann(server: Server) -> Talker:
    """A client whose commands run in one step."""
    return Other(server, 1)


def fill(ann: Talker, key: str = "s", count: int = ENTRIES) -> None:
    for number in range(1, count + 1):
        ann.ask("XADD", key, f"{number}-1", "f", f"v{number}")
    ann.ask("XGROUP", "CREATE", key, "g", "0")


def reply_to(ann: Talker, *words: str) -> Any:
    return parsed(ann.ask(*words))


def state(ann: Talker, key: str) -> Any:
    return reply_to(ann, "XRANGE", key, "-", "+"), reply_to(
        ann, "XINFO", "STREAM", key, "FULL", "COUNT", "0"
    )


READ, STREAMS = ("XREADGROUP", "GROUP", "g", "w"), ("STREAMS", "s", ">")


@pytest.mark.parametrize("bounds", [("-", "+"), ("7", "(290-1"), ("100-0", "100-5"), ("9", "2")])
def test_a_count_is_that_of_its_start(
    server: Server,
    ann: Talker,
    worker: Worker,
    bounds: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ann.ask("CONFIG", "SET", "stream-node-max-entries", "4")
    fill(ann)
    ann.ask("XDEL", "s", "50-1", "51-1", "299-1")
    whole = reply_to(ann, "KVSTREAM.COUNT", "s", *bounds)
    assert whole == len(reply_to(ann, "XRANGE", "s", *bounds))
    monkeypatch.setattr(reads, "PAGE_ROWS", 4)
    worker.send("KVSTREAM.COUNT", "s", *bounds)
    assert worker.end(lambda: ann.ask("XTRIM", "s", "MAXLEN", "10")) == whole
    assert reply_to(ann, "KVSTREAM.COUNT", "none", *bounds) == 0


def test_a_move_to_a_key_created_meanwhile_changes_nothing(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    before = state(ann, "s")
    worker.begin("MOVE", "s", "3")
    ann.ask("SELECT", "3")
    ann.ask("SET", "s", "v")
    assert worker.end() == 0
    assert ann.ask("GET", "s") == b"$1\r\nv\r\n"
    ann.ask("SELECT", "0")
    assert state(ann, "s") == before


def test_a_copy_to_an_existing_key_is_refused(server: Server, ann: Talker, worker: Worker) -> None:
    fill(ann)
    ann.ask("SET", "c", "v")
    assert worker.ask("COPY", "s", "c") == b":0\r\n"
    assert worker.ask("COPY", "s", "s").startswith(b"-ERR source and destination")


# --- the client ---------------------------------------------------------------------------------


def test_later_requests_of_the_client_wait_and_other_clients_do_not(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    worker.begin("COPY", "s", "c")
    worker.send("EXISTS", "c")
    worker.send("PING")
    worker.step()
    assert worker.heard() == b""
    assert ann.ask("PING") == b"+PONG\r\n"
    server.turn()
    assert worker.heard() == b":1\r\n:1\r\n+PONG\r\n"


def test_a_client_woken_by_a_step_is_answered(server: Server, ann: Talker, worker: Worker) -> None:
    server.engine.expiry.active = False
    fill(ann)
    worker.begin("COPY", "s", "c")
    reader = server.client()
    ann.send("XGROUP", "CREATE", "c", "g", "$", "MKSTREAM")
    ann.send("PEXPIRE", "c", "1")
    reader.send("XREADGROUP", "GROUP", "g", "r", "BLOCK", "0", "STREAMS", "c", ">")
    # The key has expired by the next step.
    server.engine._now_ms = itertools.count(1_700_000_000_000, 10).__next__
    assert worker.end() == 1
    assert parsed(reader.heard()).args[0].startswith("NOGROUP")


def test_the_steps_of_several_clients_alternate(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    other = Worker(server, 101)
    worker.begin(*READ, *STREAMS)
    other.begin("XREADGROUP", "GROUP", "g", "other", *STREAMS)
    server.turn()
    both = [parsed(each.heard()) for each in (worker, other)]
    assert sorted(len(reply[0][1]) if reply else 0 for reply in both) == [0, ENTRIES]


def test_a_transaction_runs_it_in_one_step(server: Server, ann: Talker, worker: Worker) -> None:
    fill(ann)
    for words in (("MULTI",), ("COPY", "s", "c"), (*READ, *STREAMS)):
        worker.ask(*words)
    worker.send("EXEC")
    worker.step()
    assert not server.executor.incremental.is_busy
    server.turn()
    copied, read = parsed(worker.heard())
    assert copied == 1
    assert len(read[0][1]) == ENTRIES


def test_an_incremental_command_counts_once(server: Server, ann: Talker, worker: Worker) -> None:
    fill(ann)
    worker.send("COPY", "s", "c")
    worker.end()
    row = server.executor.statistics.of("copy")
    assert (row.calls, row.idle) == (1, 0)
    assert row.seconds > 0


def test_a_full_disk_ends_a_copy_without_remains(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    worker.begin("COPY", "s", "c")
    worker.step()
    with patch.object(server.engine.database, "write", side_effect=StoreFull("no space")):
        worker.step()
    assert worker.end().args[0].startswith("MISCONF")
    assert reply_to(ann, "EXISTS", "c") == 0
    assert worker.ask("PING") == b"+PONG\r\n"


def test_with_always_the_reply_waits_for_the_disk(tmp_path: Path) -> None:
    server = Server(tmp_path / "always", Durability.ALWAYS)
    worker = Worker(server, 100)
    ann = server.client()
    for number in range(1, 2200):
        ann.send("XADD", "s", f"{number}-1", "f", "v")
    server.turn()
    with server.engine.committer.hold():
        worker.send("COPY", "s", "c")
        server.turn()
        assert worker.heard() == b""
        assert server.executor.reply_queue.is_waiting()
    until = monotonic() + 60
    while not (said := worker.heard()):
        server.turn()
        assert monotonic() < until
    assert said == b":1\r\n"
    server.engine.close()


# --- pauses -------------------------------------------------------------------------------------


def test_a_pause_of_writes_holds_running_writes_and_no_read(
    server: Server, ann: Talker, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ann)
    worker.begin("COPY", "s", "t")
    assert ann.ask("CLIENT", "PAUSE", "1000", "WRITE") == b"+OK\r\n"
    server.turn()
    assert (worker.heard(), ann.ask("EXISTS", "t")) == (b"", b":0\r\n")
    reader = Worker(server, 9)
    reader.begin("DUMP", "s")
    server.turn()
    assert reader.heard().startswith(b"$")
    assert not server.executor.pending
    server.wait(1.1)
    assert worker.heard() == b":1\r\n"
    worker.begin("COPY", "s", "u")
    ann.ask("CLIENT", "PAUSE", "1000", "WRITE")
    worker.leave()
    server.wait(1.1)
    assert ann.ask("EXISTS", "u") == b":0\r\n"


# --- memory -------------------------------------------------------------------------------------


def plans_in_memory() -> list[Stepped[Any]]:
    return [each for each in gc.get_objects() if type(each) is Stepped]


@pytest.mark.parametrize(
    "words",
    [
        ("MSET", *"avbwcxdyez"),
        ("XDEL", "s", *(f"{number}-1" for number in range(1, 100))),
        ("XACK", "s", "g", *(f"{number}-1" for number in range(1, 100))),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("leaves", [False, True])
def test_a_finished_long_command_leaves_no_garbage(
    server: Server,
    ann: Talker,
    worker: Worker,
    words: tuple[str, ...],
    leaves: bool,
) -> None:
    fill(ann)
    ann.ask(*READ, "COUNT", "200", "STREAMS", "s", ">")
    gc.disable()
    try:
        before = {*map(id, plans_in_memory())}  # other tests may have left some
        worker.begin(*words)
        (begun,) = [each for each in plans_in_memory() if id(each) not in before]
        assert begun._run is not None
        held: list[weakref.ref[Any]] = [weakref.ref(begun), weakref.ref(begun._run)]
        del begun
        if leaves:
            worker.leave()
            server.turn()
        else:
            worker.end()
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()
