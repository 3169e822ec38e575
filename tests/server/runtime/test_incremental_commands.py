"""Long commands in steps: their replies and effects, with other commands between two steps."""

import gc
import itertools
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.operations.plans import Stepped
from kvstream.server.runtime.executor import server_of
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


def ids_of(entries: list[Any]) -> list[bytes]:
    return [entry[0] for entry in entries]


def pending(ann: Talker, *consumer: str) -> list[bytes]:
    return ids_of(reply_to(ann, "XPENDING", "s", "g", "-", "+", "100000", *consumer))


def state(ann: Talker, key: str) -> Any:
    return reply_to(ann, "XRANGE", key, "-", "+"), reply_to(
        ann, "XINFO", "STREAM", key, "FULL", "COUNT", "0"
    )


# --- the same as in one go ----------------------------------------------------------------------


READ = ("XREADGROUP", "GROUP", "g", "w")


@pytest.mark.parametrize(
    "options",
    [(), ("COUNT", "33"), ("COUNT", "48"), ("COUNT", "10000"), ("NOACK",), ("BLOCK", "0")],
    ids=" ".join,
)
@pytest.mark.parametrize("given", ["0", "7", "299"])
def test_a_delivery_has_the_effect_of_one_step(
    server: Server, ann: Talker, worker: Worker, options: tuple[str, ...], given: str
) -> None:
    for key in "st":
        fill(ann, key)
        ann.ask("XGROUP", "SETID", key, "g", f"{given}-1")
        ann.ask("XDEL", key, "50-1", "51-1", "299-1")
    one = reply_to(ann, *READ, *options, "STREAMS", "t", ">")
    worker.send(*READ, *options, "STREAMS", "s", ">")
    ((key, entries),) = worker.end()
    assert [key, entries] == [b"s", one[0][1]]
    assert state(ann, "s") == state(ann, "t")


def test_a_read_blocks_if_the_entries_are_deleted_meanwhile(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    worker.begin(*READ, "BLOCK", "0", "STREAMS", "s", ">")
    ann.ask("XGROUP", "SETID", "s", "g", "$")
    assert worker.heard() == b""
    server.turn()
    assert worker.client.block is not None
    ann.ask("XADD", "s", "1000-1", "f", "v")
    assert parsed(worker.heard()) == [[b"s", [[b"1000-1", [b"f", b"v"]]]]]
    assert worker.ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize(
    "options", [("COUNT", "33"), ("COUNT", "5000"), ("COUNT", "200", "JUSTID")]
)
@pytest.mark.parametrize("start", ["0", "40-1"])
def test_a_claim_has_the_effect_of_one_step(
    server: Server, ann: Talker, worker: Worker, options: tuple[str, ...], start: str
) -> None:
    for key in "st":
        fill(ann, key)
        for count in (100, 1, 30, 100):
            ann.ask(*READ, "COUNT", str(count), "STREAMS", key, ">")
        ann.ask("XDEL", key, "50-1", "51-1", "131-1")
        ann.ask("XACK", key, "g", "60-1", "101-1")
        ann.ask("XTRIM", key, "MAXLEN", "290")
    one = reply_to(ann, "XAUTOCLAIM", "t", "g", "other", "0", start, *options)
    worker.send("XAUTOCLAIM", "s", "g", "other", "0", start, *options)
    assert worker.end() == one
    assert state(ann, "s") == state(ann, "t")


@pytest.mark.parametrize("options", [(), ("REPLACE",), ("DB", "3")], ids=str)
def test_a_copy_has_the_effect_of_one_step(
    server: Server, ann: Talker, worker: Worker, options: tuple[str, ...]
) -> None:
    fill(ann)
    ann.ask("XADD", "s", "IDMP", "p", "i", "*", "f", "v")
    for count in (100, 1, 30):
        ann.ask(*READ, "COUNT", str(count), "STREAMS", "s", ">")
    ann.ask("XDEL", "s", "50-1", "51-1", "131-1")
    ann.ask("EXPIRE", "s", "1000")
    if "REPLACE" in options:
        fill(ann, "c", 3)
    worker.send("COPY", "s", "c", *options)
    assert worker.end() == 1
    before = state(ann, "s")
    ann.ask("SELECT", "3" if "DB" in options else "0")
    assert state(ann, "c") == before
    assert reply_to(ann, "TTL", "c") == 1000


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


def test_a_move_has_the_effect_of_one_step(server: Server, ann: Talker, worker: Worker) -> None:
    for key in "st":
        fill(ann, key)
        ann.ask(*READ, "COUNT", "100", "STREAMS", key, ">")
        ann.ask("EXPIRE", key, "1000")
    ann.ask("MOVE", "t", "3")
    worker.begin("MOVE", "s", "3")
    assert reply_to(ann, "EXISTS", "s") == 1
    ann.ask("XADD", "s", "1000-1", "f", "v")
    assert worker.end() == 1
    assert reply_to(ann, "EXISTS", "s", "t") == 0
    ann.ask("SELECT", "3")
    ann.ask("XADD", "t", "1000-1", "f", "v")
    assert state(ann, "s") == state(ann, "t")
    ann.ask("SELECT", "0")
    fill(ann)
    assert worker.ask("MOVE", "s", "3") == b":0\r\n"


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


def test_a_copy_to_an_existing_key_is_refused_without_a_step(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    ann.ask("SET", "c", "v")
    assert worker.ask("COPY", "s", "c") == b":0\r\n"
    assert worker.ask("COPY", "s", "s").startswith(b"-ERR source and destination")


# --- others between two steps -------------------------------------------------------------------


class Others:
    """Change the stream randomly as another client."""

    def __init__(self, ann: Talker, kinds: str) -> None:
        self._ann, self._kinds = ann, kinds
        self._works = server_of(ann.client).incremental
        self._last = ENTRIES
        self.given: set[bytes] = set()

    def __call__(self) -> None:
        kind = random.choice(self._kinds)
        some = [f"{random.randint(1, self._last)}-1" for _ in range(3)]
        if kind == "a":
            for _ in range(random.choice([1, 20])):
                if not self._works.is_busy:
                    return  # nothing may follow the last step
                self._last += 1
                self._ann.ask("XADD", "s", f"{self._last}-1", "f", "later")
        elif kind == "t":
            self._ann.ask("XTRIM", "s", "MAXLEN", str(random.randint(150, 320)))
        elif kind == "d":
            self._ann.ask("XDEL", "s", *some)
        elif kind == "r":
            read = reply_to(self._ann, "XREADGROUP", "GROUP", "g", "ann", "COUNT", "9", *STREAMS)
            self.given.update(ids_of(read[0][1]) if read else ())
        elif kind == "k":
            self._ann.ask("XACK", "s", "g", *some)
        elif kind == "c":
            self._ann.ask("XCLAIM", "s", "g", "ann", "0", *some)


STREAMS = ["STREAMS", "s", ">"]
ROUNDS = 12


def test_a_delivery_skips_no_entry_and_repeats_none(
    server: Server, ann: Talker, worker: Worker
) -> None:
    for _ in range(ROUNDS):
        ann.ask("DEL", "s")
        fill(ann)
        others = Others(ann, random.choice(["a", "atr", "atrd", "r", "t", "d"]))
        worker.begin(*READ, *STREAMS)
        reply = worker.end(others)
        mine = ids_of(reply[0][1]) if reply else []
        assert pending(ann, "w") == mine
        live = ids_of(reply_to(ann, "XRANGE", "s", "-", "+"))
        assert [eid for eid in live if eid not in others.given] == mine


def test_a_delivery_follows_a_group_that_is_set_back(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    ann.ask("XGROUP", "SETID", "s", "g", "100-1")
    worker.begin(*READ, *STREAMS)
    ann.ask("XGROUP", "SETID", "s", "g", "20-1")
    assert ids_of(worker.end()[0][1])[0] == b"21-1"


def test_a_group_moved_to_the_greatest_id_meanwhile_delivers_nothing(
    ann: Talker, worker: Worker
) -> None:
    fill(ann)
    worker.begin(*READ, *STREAMS)
    ann.ask("XGROUP", "SETID", "s", "g", "18446744073709551615-18446744073709551615")
    assert not worker.end()
    assert pending(ann) == []


@pytest.mark.parametrize(
    "words",
    [
        (*READ, *STREAMS),
        ("XAUTOCLAIM", "s", "g", "w", "0", "0", "COUNT", "10000"),
        ("COPY", "s", "c"),
    ],
    ids=lambda words: words[0],
)
def test_a_stream_emptied_and_set_back_delivers_no_old_entries(
    server: Server, ann: Talker, worker: Worker, words: tuple[str, ...]
) -> None:
    fill(ann)
    for _ in range(20 if words[0] == "XAUTOCLAIM" else 0):
        ann.ask(*READ, "COUNT", "9", *STREAMS)
    worker.begin(*words)
    ann.send("XTRIM", "s", "MAXLEN", "0")  # all entries between two steps
    ann.send("XSETID", "s", "0-1")
    for eid in ("2-0", "3-0", "4-0", "20-1"):
        ann.send("XADD", "s", eid, "f", "anew")
    reply = worker.end()
    ann.heard()
    live = reply_to(ann, "XRANGE", "s", "-", "+")
    if words[0] == "COPY":
        assert reply_to(ann, "XRANGE", "c", "-", "+") == live
    elif words[0] == "XAUTOCLAIM":
        assert reply[1] == live[3:]
    else:
        assert reply == [[b"s", live]]


def test_a_claim_gets_the_entries_that_are_still_available(
    server: Server, ann: Talker, worker: Worker
) -> None:
    for _ in range(ROUNDS):
        ann.ask("DEL", "s")
        fill(ann)
        for count in (100, 1, 30, 100):
            ann.ask(*READ, "COUNT", str(count), *STREAMS)
        worker.begin("XAUTOCLAIM", "s", "g", "other", "0", "0", "COUNT", "10000")
        before = set(pending(ann))
        others = Others(ann, random.choice(["k", "kc", "akct", "d", "kctd"]))
        cursor, claimed, gone = worker.end(others)
        assert cursor == b"0-0"
        mine = ids_of(claimed)
        assert pending(ann, "other") == mine
        assert not set(gone) & set(pending(ann))
        assert set(mine) <= set(ids_of(reply_to(ann, "XRANGE", "s", "-", "+")))
        assert set(mine) | set(gone) <= before


def test_a_claim_restarts_if_all_entries_changed(
    server: Server, ann: Talker, worker: Worker
) -> None:
    fill(ann)
    for _ in range(ENTRIES // 3):
        ann.ask(*READ, "COUNT", "3", *STREAMS)
    worker.begin("XAUTOCLAIM", "s", "g", "other", "0", "0", "COUNT", "10000")
    ann.ask("XACK", "s", "g", *(f"{3 * n + 1}-1" for n in range(ENTRIES // 3)))
    _, claimed, gone = worker.end()
    assert len(claimed) == 2 * ENTRIES // 3
    assert not gone


def test_a_claim_gets_the_rest_of_a_split_run(server: Server, ann: Talker, worker: Worker) -> None:
    fill(ann)
    for number in (100, 100, 100):
        ann.ask(*READ, "COUNT", str(number), *STREAMS)
    worker.begin("XAUTOCLAIM", "s", "g", "other", "0", "0", "COUNT", "10000")
    ann.send("XCLAIM", "s", "g", "ann", "0", "50-1")
    ann.send("XACK", "s", "g", "70-1", "71-1")
    _, claimed, _ = worker.end()
    gone = {b"70-1", b"71-1"}
    wanted = [b"%d-1" % number for number in range(1, ENTRIES + 1)]
    assert ids_of(claimed) == [eid for eid in wanted if eid not in gone]


def test_a_copy_has_the_final_state_of_the_stream(
    server: Server, ann: Talker, worker: Worker
) -> None:
    for _ in range(ROUNDS):
        ann.ask("DEL", "s", "c")
        fill(ann)
        ann.ask(*READ, "COUNT", "100", *STREAMS)
        worker.begin("COPY", "s", "c")
        assert reply_to(ann, "EXISTS", "c") == 0
        others = Others(ann, random.choice(["a", "t", "at", "atrkc", "atd", "d"]))
        assert worker.end(others) == 1
        assert state(ann, "c") == state(ann, "s")
        ann.ask("XADD", "c", "*", "f", "v")
        ann.ask("XTRIM", "c", "MAXLEN", "10")


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (("DEL", "s"), 0),
        (("SET", "c", "taken"), 0),
        (("FLUSHALL",), 0),
        (("SET", "s", "v"), 1),
        (("SWAPDB", "0", "1"), 0),
        (("RENAME", "s", "elsewhere"), 0),
        (("DEBUG", "RELOAD"), 1),
    ],
    ids=str,
)
def test_a_copy_with_changed_keys(
    server: Server, ann: Talker, worker: Worker, change: tuple[str, ...], answer: int
) -> None:
    fill(ann)
    worker.begin("COPY", "s", "c")
    worker.step()
    if change[0] == "DEBUG":
        server.engine.reopen()
    else:
        ann.ask(*change)
    assert worker.end() == answer
    assert reply_to(ann, "EXISTS", "c") == (answer or int("taken" in change))


@pytest.mark.parametrize(
    "words",
    [
        (*READ, *STREAMS),
        ("XAUTOCLAIM", "s", "g", "other", "0", "0", "COUNT", "10000"),
    ],
    ids=lambda words: words[0],
)
def test_a_deleted_group_is_an_error(
    server: Server, ann: Talker, worker: Worker, words: tuple[str, ...]
) -> None:
    fill(ann)
    for _ in range(3 * STEP):
        ann.ask(*READ, "COUNT", "2", *STREAMS)
    worker.begin(*words)
    ann.ask("XGROUP", "DESTROY", "s", "g")
    assert worker.end().args[0].startswith("NOGROUP")
    assert worker.ask("PING") == b"+PONG\r\n"


# --- the client ---------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("COPY", "s", "c"), (*READ, *STREAMS)], ids=lambda w: w[0])
def test_a_client_that_disconnects_leaves_nothing(
    server: Server, ann: Talker, worker: Worker, words: tuple[str, ...]
) -> None:
    fill(ann)
    before = state(ann, "s")
    worker.begin(*words)
    worker.step()
    worker.leave()
    server.turn()
    assert not server.executor.incremental.is_busy
    assert state(ann, "s") == before
    assert reply_to(ann, "EXISTS", "c") == 0


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
    with server.engine.committer.held():
        worker.send("COPY", "s", "c")
        server.turn()
        assert worker.heard() == b""
        assert server.executor.reply_queue.is_waiting
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
