"""Long replies, page by page: their content, and the order of commands of all clients."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.errors import StoreFull
from kvstream.layout.rows import Rows
from kvstream.operations.checks import check
from kvstream.operations.reads import pages
from kvstream.resp.replies import CHUNK
from kvstream.server.runtime.limits import client_bytes
from kvstream.server.runtime.reply_queue import AHEAD, IDLE_S
from kvstream.server.serving import drain
from kvstream.storage.batch import Batch
from kvstream.types.clock import ManualClock
from kvstream.types.options import Durability
from tests.patience import PATIENCE_S
from tests.server.talking import Server, Talker, parsed, sound

VALUE = b"v" * 200
ENTRIES = 2000
"""Some 500 KB of a reply: more than a few pages."""


class Reader(Talker):
    """A client that takes long replies page by page, and none while it does not read."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__(server, number)
        self.client.pages = True
        self.reads = True

    def pending_output(self) -> int:
        return 0 if self.reads else AHEAD + 1

    def page(self) -> bytes:
        """Run a turn or two and take one page, the first that is not empty."""
        executor = self.server.executor
        while executor.run():
            pass
        self.reads = True
        said = b""
        with patch("kvstream.server.runtime.reply_queue.PAGES_S", -1.0):
            while not said and self.client.reply_unfinished:
                executor.streaming.write()
                said = self.heard()
        self.reads = False
        return said

    def rest(self) -> bytes:
        self.reads = True
        self.server.turn()
        return self.heard()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with sound(tmp_path / "store", ManualClock()) as started:
        yield started


@pytest.fixture
def reader(server: Server) -> Reader:
    return Reader(server, 100)


@pytest.fixture
def filled(server: Server, ann: Talker) -> None:
    for number in range(1, ENTRIES + 1):
        ann.send("XADD", "s", f"{number}-1", "f", VALUE)
    server.turn()
    ann.heard()


def held(server: Server) -> int:
    """Return how many iterators are still in use."""
    return len(server.engine.database._scans.live())


def random_read() -> list[str]:
    low, high = sorted(random.choices(range(-5, ENTRIES + 50), k=2))
    ends = [random.choice(["", "("]) + str(max(end, 1)) for end in (low, high)]
    count = random.choice([[], ["COUNT", str(random.randint(900, ENTRIES + 10))]])
    return random.choice(
        [
            ["XRANGE", "s", *ends, *count],
            ["XREVRANGE", "s", *ends[::-1], *count],
            ["XRANGE", "s", "-", "+", *count],
            ["XREVRANGE", "s", "+", "-", *count],
            ["XREAD", *count, "STREAMS", "none", "s", "few", "0", ends[0].strip("("), "0"],
            ["XPENDING", "s", "g", *ends, str(random.randint(900, ENTRIES))],
            ["XPENDING", "s", "g", "IDLE", "5000", "-", "+", "5000", random.choice("ab")],
            ["XPENDING", "s", "g", "-", "+", "5000", random.choice("abc")],
            ["XINFO", "STREAM", "s", "FULL", "COUNT", random.choice(["0", "1100", "5000"])],
            ["KEYS", random.choice(["*", "k*9*", "none"])],
        ]
    )


def random_write(number: int) -> list[str]:
    """Return a command that changes what ``random_read`` reads, or nothing."""
    eid = f"{random.randint(1, ENTRIES)}-1"
    return random.choice(
        [
            ["XADD", "s", f"{ENTRIES + number}-1", "f", "new"],
            ["XDEL", "s", eid],
            ["XTRIM", "s", "MAXLEN", str(ENTRIES - number)],
            ["XACK", "s", "g", eid],
            ["XREADGROUP", "GROUP", "g", random.choice("ab"), "COUNT", "7", "STREAMS", "s", ">"],
            ["XCLAIM", "s", "g", "c", "0", eid],
            ["SET", f"key:{random.randint(0, 1600)}", "v"],
            ["DEL", f"key:{random.randint(0, 1600)}"],
            ["SETRANGE", "long", str(random.randint(0, LONG)), "patched" * 20_000],
            ["XGROUP", "CREATE", "s", f"g{number}", "$"],
            ["SET", "long", "w" * random.choice([LONG - 5, 2 * LONG])],
            ["PING"],
        ]
    )


LONG = 3 << 19
"""The length of a string that is sent in pages."""
LONG_READS = [
    ["GET", "long"],
    ["MGET", "long", "key:1", "long", "none"],
    ["XREAD", "STREAMS", *[f"t{number}" for number in range(40)], "s", *["0"] * 41],
]


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_a_reply_in_pages_is_the_complete_reply(
    server: Server, ann: Talker, reader: Reader, filled: None, protocol: str
) -> None:
    for client in (ann, reader):
        client.ask("HELLO", protocol)
    ann.ask("XADD", "few", "1-1", "f", "v")
    ann.ask("XGROUP", "CREATE", "s", "g", "0")
    for number in range(1500):
        ann.send("SET", f"key:{number}", "v")
    server.turn()
    for change in range(8):
        consumer = random.choice("ab")
        for _ in range(20):
            ann.send("XREADGROUP", "GROUP", "g", consumer, "COUNT", str(change + 1), *STREAMS)
        deleted = [f"{random.randint(1, ENTRIES)}-1" for _ in range(20)]
        ann.send("XDEL", "s", *deleted)
        ann.send("XACK", "s", "g", *deleted)
        ann.send("XTRIM", "s", "MAXLEN", str(ENTRIES - 30 * change))
        server.turn()
        ann.heard()
        for _ in range(12):
            words = random_read()
            whole = ann.ask(*words)
            assert reader.ask(*words) == whole, words
            assert not reader.client.reply_unfinished
    assert held(server) == 0


def filled_server(directory: Path, protocol: str, paged: bool) -> tuple[Server, Talker]:
    server = Server(directory, clock=ManualClock())
    talker = Reader(server, 1)
    talker.client.pages = paged
    talker.ask("HELLO", protocol)
    talker.send("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(1, ENTRIES + 1):
        talker.send("XADD", "s", f"{number}-1", "f", VALUE)
    for number in range(40):
        for at in range(1, 40):
            talker.send("XADD", f"t{number}", f"{at}-1", "f", VALUE)
    for number in range(1500):
        talker.send("SET", f"key:{number}", "v")
    talker.send("SET", "long", b"l" * LONG)
    server.turn()
    talker.heard()
    return server, talker


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_a_transaction_in_pages_has_the_reply_of_one_in_memory(
    tmp_path: Path, protocol: str
) -> None:
    made = [filled_server(tmp_path / str(paged), protocol, paged) for paged in (True, False)]
    for turn in range(1, 4):
        queue = []
        for at in range(5):
            queue.append(random.choice([random_write(10 * turn + at), random_read()]))
            queue.append(random.choice([random_read(), *LONG_READS]))
        random.shuffle(queue)
        queue.insert(random.randrange(len(queue)), LONG_READS[0])
        replies = []
        for server, talker in made:
            for words in (["SET", "other", "v"], ["MULTI"], *queue, ["EXEC"]):
                talker.send(*words)  # one turn: other requests have changed the stream in it, too
            server.turn()
            replies.append(talker.heard())
        assert replies[0] == replies[1], queue
    for server, _ in made:
        assert held(server) == 0
        assert server.engine.run(check) == []
        server.engine.close()


STREAMS = ["STREAMS", "s", ">"]


@pytest.mark.usefixtures("filled")
def test_the_reply_shows_the_store_at_its_start(
    server: Server, ann: Talker, reader: Reader
) -> None:
    whole = ann.ask("XRANGE", "s", "-", "+")
    reader.send("XRANGE", "s", "-", "+")
    said = reader.page()
    assert 0 < len(said) < len(whole) // 2
    for words in (
        ["XADD", "s", "MAXLEN", "100", "*", "f", "new"],
        ["XDEL", "s", f"{ENTRIES}-1"],
        ["DEL", "s"],
        ["XADD", "s", "1-1", "f", "another stream"],
        ["FLUSHALL"],
    ):
        assert not ann.ask(*words).startswith(b"-")
        said += reader.page()
    assert said + reader.rest() == whole
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_its_client_is_answered_in_order_and_others_immediately(
    server: Server, ann: Talker, reader: Reader
) -> None:
    whole = ann.ask("XRANGE", "s", "-", "+")
    for words in (["PING"], ["XRANGE", "s", "-", "+"], ["XLEN", "s"], ["PING", "last"]):
        reader.send(*words)
    server.executor.run()
    said = reader.heard() + reader.page()
    assert ann.ask("XADD", "s", "*", "f", "v").startswith(b"$")
    said += reader.page()
    assert ann.ask("PING") == b"+PONG\r\n"
    said += reader.rest()
    assert said == b"+PONG\r\n" + whole + b":%d\r\n$4\r\nlast\r\n" % (ENTRIES + 1)


@pytest.mark.usefixtures("filled")
def test_the_reply_has_the_earlier_writes_of_the_same_turn(
    server: Server, ann: Talker, reader: Reader
) -> None:
    reader.send("XADD", "s", f"{ENTRIES + 1}-1", "f", "mine")
    ann.send("XADD", "s", f"{ENTRIES + 2}-1", "f", "another's")
    reader.send("XREVRANGE", "s", "+", "-")
    reader.send("XADD", "s", f"{ENTRIES + 3}-1", "f", "later")
    said = reader.rest()
    assert said.count(VALUE) == ENTRIES
    assert b"mine" in said
    assert said.endswith(b"$6\r\n%d-1\r\n" % (ENTRIES + 3))
    assert b"later" not in said
    statistics = server.executor.statistics.of("xrevrange")
    assert statistics.calls == 1
    assert reader.client.commands_run == 3


@pytest.mark.usefixtures("filled")
def test_expired_idempotent_ids_do_not_prevent_a_reply_in_pages(
    server: Server, ann: Talker, reader: Reader
) -> None:
    clock = server.engine.clock
    assert isinstance(clock, ManualClock)
    assert ann.ask("XADD", "s", "IDMP", "p", "i", "*", "f", "v").startswith(b"$")
    clock.advance(10_000_000)
    said = reader.ask("XINFO", "STREAM", "s", "FULL", "COUNT", "0")
    assert b"$12\r\niids-tracked\r\n:0\r\n" in said
    assert said.count(VALUE) == ENTRIES


@pytest.mark.usefixtures("filled")
def test_a_read_of_a_transaction_shows_its_earlier_commands(
    server: Server, ann: Talker, reader: Reader
) -> None:
    reader.ask("MULTI")
    reader.send("XADD", "s", f"{ENTRIES + 1}-1", "f", "mine")
    reader.send("XRANGE", "s", "-", "+")
    reader.send("DEL", "s")
    server.turn()
    reader.heard()
    reader.reads = False
    assert reader.ask("EXEC") == b""
    assert ann.ask("EXISTS", "s") == b":0\r\n"
    said = reader.rest()
    assert said.startswith(b"*3\r\n$6\r\n")
    assert said.count(VALUE) == ENTRIES
    assert b"mine" in said
    assert said.endswith(b":1\r\n")
    assert held(server) == 0


def execute(reader: Reader, *queue: list[str]) -> None:
    """Send a transaction, and take the output before the reply of EXEC."""
    reader.ask("MULTI")
    for words in queue:
        assert reader.ask(*words) == b"+QUEUED\r\n"
    reader.reads = False
    reader.send("EXEC")


WRITE = ["XADD", "s", f"{ENTRIES + 1}-1", "f", "mine"]
BOTH_WAYS = [["XRANGE", "s", "-", "+"], ["XLEN", "s"], ["XREVRANGE", "s", "+", "-"]]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("queue", [BOTH_WAYS, [WRITE, *BOTH_WAYS, ["XTRIM", "s", "MAXLEN", "1"]]])
@pytest.mark.parametrize("change", ["XTRIM s MAXLEN 3", "XDEL s 1-1 7-1", "DEL s", "FLUSHALL"])
def test_a_transaction_shows_the_store_of_one_moment_beside_writers(
    server: Server, ann: Talker, reader: Reader, queue: list[list[str]], change: str
) -> None:
    execute(reader, *queue)
    said = reader.page()
    assert said.startswith(b"*%d\r\n" % len(queue))
    assert len(said) < 4 * CHUNK
    ann.ask(*change.split())
    ann.ask("XADD", "s", "*", "f", "of others")
    said += reader.rest()
    answers = parsed(said)[queue.index(BOTH_WAYS[0]) :]
    wrote = queue[0] is WRITE
    assert [eid for eid, _ in answers[0]] == [b"%d-1" % at for at in range(1, ENTRIES + 1 + wrote)]
    assert answers[1] == ENTRIES + wrote
    assert answers[2] == answers[0][::-1]
    assert (b"mine" in said) == wrote
    assert b"of others" not in said
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_a_client_that_disconnects_during_a_transaction_leaves_nothing(
    server: Server, ann: Talker, reader: Reader
) -> None:
    execute(reader, WRITE, *BOTH_WAYS)
    assert reader.page()
    assert held(server) > 0
    reader.leave()
    assert held(server) == 0
    assert not server.executor.streaming.under_way
    assert ann.ask("XLEN", "s") == b":%d\r\n" % (ENTRIES + 1)


@pytest.mark.usefixtures("filled")
def test_a_client_that_stops_reading_the_reply_of_exec_is_disconnected(
    server: Server, reader: Reader
) -> None:
    execute(reader, WRITE, *BOTH_WAYS)
    assert reader.page()
    server.now += IDLE_S + 1
    server.executor.tick()
    assert reader.closed
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_a_running_reply_of_exec_ends_with_its_store(
    server: Server, ann: Talker, reader: Reader
) -> None:
    execute(reader, WRITE, *BOTH_WAYS)
    assert reader.page()
    server.engine.reopen()
    reader.rest()
    assert reader.closed
    assert ann.ask("XLEN", "s") == b":%d\r\n" % (ENTRIES + 1)
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("failures", [1, 5])
def test_a_transaction_on_a_full_disk_is_atomic(
    server: Server, ann: Talker, reader: Reader, failures: int
) -> None:
    database, tries = server.engine.database, iter(range(100))
    written = database.write

    def write(batch: Batch, frees: bool = False) -> int:
        if next(tries) < failures:
            raise StoreFull("no room")
        return written(batch, frees)

    with patch.object(database, "write", write):
        execute(reader, WRITE, *BOTH_WAYS)
        ann.send("SET", "k", "v")
        said = reader.rest()
    done = failures == 1  # the retry has space
    assert said.startswith(b"*4\r\n" if done else b"-MISCONF")
    assert said.count(VALUE) == 2 * ENTRIES * done
    assert ann.heard().startswith(b"+OK" if done else b"-MISCONF")
    assert ann.ask("XLEN", "s") == b":%d\r\n" % (ENTRIES + done)
    assert reader.ask("PING") == b"+PONG\r\n"
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_the_memory_of_a_transaction_counts_for_its_client(server: Server, reader: Reader) -> None:
    execute(reader, *[["XRANGE", "s", "-", "+", "COUNT", "100"]] * 60)
    server.executor.run()
    reader.reads = True
    assert 60 * 100 * len(VALUE) < client_bytes(server.executor, reader.client) < 4 << 20
    assert reader.rest().count(VALUE) == 6000
    assert client_bytes(server.executor, reader.client) == 0


@pytest.mark.usefixtures("filled")
def test_the_iterators_of_a_transaction_are_limited(
    server: Server, ann: Talker, reader: Reader
) -> None:
    ann.ask("CONFIG", "SET", "client-output-buffer-limit", f"normal {1 << 18} 0 0")
    execute(reader, *[BOTH_WAYS[0]] * 24, ["XLEN", "s"])
    server.executor.run()
    assert 8 < held(server) <= 16  # of 16 KB each
    read = parsed(reader.rest())
    refused = [each for each in read if isinstance(each, Exception)]
    assert [len(each) for each in read[: 24 - len(refused)]] == [ENTRIES] * (24 - len(refused))
    assert "the reply would exceed" in str(refused[0])
    assert read[-1] == ENTRIES
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_damage_in_the_middle_ends_the_connection(
    server: Server, ann: Talker, reader: Reader
) -> None:
    reader.send("XRANGE", "s", "-", "+")
    said = reader.page()
    with patch.object(pages, "Rows", lambda page, at: Rows([(page[0][0], b"\x01\xc1")], at)):
        reader.rest()
    assert reader.closed
    assert said.startswith(b"*%d\r\n" % ENTRIES)
    assert server.executor.statistics.of("xrange").failed == 1
    assert ann.ask("PING") == b"+PONG\r\n"
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_a_stream_with_a_wrong_count_of_entries_is_damaged(
    server: Server, ann: Talker, reader: Reader
) -> None:
    for change in (1, -1):
        stream = server.engine.catalog.streams[b"\x00\x00s"]
        stream.length += change
        reader = Reader(server, 200 + change)
        reader.send("XRANGE", "s", "-", "+")
        reader.rest()
        assert reader.closed
        stream.length -= change


@pytest.mark.usefixtures("filled")
def test_a_client_that_disconnects_during_a_reply_leaves_nothing(
    server: Server, reader: Reader
) -> None:
    reader.send("XRANGE", "s", "-", "+")
    assert reader.page()
    assert held(server) == 1
    reader.leave()
    assert held(server) == 0
    assert not server.executor.streaming.under_way


@pytest.mark.usefixtures("filled")
def test_a_client_that_reads_nothing_for_long_is_disconnected(
    server: Server, reader: Reader
) -> None:
    reader.send("XRANGE", "s", "-", "+")
    assert reader.page()
    server.executor.options.timeout = 1
    for _ in range(int(IDLE_S)):
        server.now += 1
        server.executor.tick()
    assert not reader.closed
    server.now += 1
    server.executor.tick()
    assert reader.closed
    assert server.executor.statistics.output_disconnections == 1
    assert held(server) == 0


@pytest.mark.usefixtures("filled")
def test_no_pages_are_made_for_a_suppressed_reply(server: Server, reader: Reader) -> None:
    reader.send("CLIENT", "REPLY", "SKIP")
    reader.send("XRANGE", "s", "-", "+")
    reader.send("PING")
    assert reader.rest() == b"+PONG\r\n"
    assert held(server) == 0


def test_a_delivery_is_one_commit_and_its_reply_in_pages(
    server: Server, ann: Talker, reader: Reader, filled: None
) -> None:
    for group in "gh":
        ann.ask("XGROUP", "CREATE", "s", group, "0")
    whole = ann.ask("XREADGROUP", "GROUP", "g", "c", *STREAMS)
    reader.send("XREADGROUP", "GROUP", "h", "c", *STREAMS)
    said = reader.page()
    assert len(said) < 4 * CHUNK < len(whole)
    assert ann.ask("XPENDING", "s", "h").startswith(b"*4\r\n:%d\r\n" % ENTRIES)
    assert said + reader.rest() == whole
    ids = [f"{number}-1" for number in range(1, ENTRIES + 1)]
    whole = ann.ask("XCLAIM", "s", "g", "d", "0", *ids)
    assert reader.ask("XCLAIM", "s", "h", "d", "0", *ids) == whole
    whole = ann.ask("XAUTOCLAIM", "s", "g", "e", "0", "0", "COUNT", "1500")
    assert reader.ask("XAUTOCLAIM", "s", "h", "e", "0", "0", "COUNT", "1500") == whole


def test_a_blocked_read_with_a_long_reply_is_answered_in_pages(
    server: Server, ann: Talker, reader: Reader, filled: None
) -> None:
    ann.ask("XGROUP", "CREATE", "s", "g", "$")
    reader.ask("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", *STREAMS)
    reader.send("PING")
    ann.ask("MULTI")
    for _ in range(ENTRIES):
        ann.send("XADD", "s", "*", "f", VALUE)
    server.turn()
    reader.reads = False
    ann.ask("EXEC")
    said = reader.page()
    assert said.startswith(b"*1\r\n*2\r\n$1\r\ns\r\n*%d\r\n" % ENTRIES)
    assert not said.endswith(b"+PONG\r\n")
    assert reader.rest().endswith(b"+PONG\r\n")


@pytest.mark.parametrize("before", [[], ["XADD", "s", "*", "f", "v"]])
def test_only_the_client_of_a_failed_commit_gets_the_error(
    server: Server, ann: Talker, reader: Reader, filled: None, before: list[str]
) -> None:
    ann.ask("XGROUP", "CREATE", "s", "g", "0")

    def write(batch: Batch, frees: bool = False) -> int:
        raise StoreFull("no room")

    with patch.object(server.engine.database, "write", write):
        if before:
            ann.send(*before)
        reader.send("XREADGROUP", "GROUP", "g", "c", *STREAMS)
        reader.send("XRANGE", "s", "-", "+")
        said = reader.rest()
    assert said.startswith(b"-MISCONF")
    assert said.count(VALUE) == ENTRIES
    assert reader.ask("PING") == b"+PONG\r\n"
    assert held(server) == 0


def test_replies_are_started_once_they_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path / "durable", Durability.ALWAYS)
    go_on, flush = threading.Event(), server.engine.database.flush_wal

    def held() -> int:
        assert go_on.wait(PATIENCE_S)
        return flush()

    monkeypatch.setattr(server.engine.database, "flush_wal", held)
    posted: list[object] = []
    reader = Reader(server, 1)
    server.executor.post = lambda function: posted.append(function)
    for number in range(1, ENTRIES + 1):
        reader.send("XADD", "s", f"{number}-1", "f", VALUE)
    reader.send("XRANGE", "s", "-", "+")
    assert reader.rest() == b""
    go_on.set()
    server.engine.committer.wait(server.engine.seen_sequence)
    while not (reader.client.reply_unfinished and server.executor.streaming.under_way):
        for function in posted[:]:
            posted.remove(function)
            function()  # type: ignore[operator]
        server.executor.run()
    assert reader.rest().count(VALUE) == ENTRIES
    server.engine.close()


@pytest.mark.usefixtures("filled")
def test_a_running_reply_ends_with_its_store(server: Server, reader: Reader) -> None:
    reader.send("XRANGE", "s", "-", "+")
    assert reader.page()
    server.engine.reopen()
    reader.rest()
    assert reader.closed


@pytest.mark.usefixtures("filled")
def test_a_stopping_server_completes_started_replies(server: Server, reader: Reader) -> None:
    async def end() -> bytes:
        server.run_in_loop()
        reader.send("XRANGE", "s", "-", "+")
        reader.send("PING")
        said = reader.page()
        reader.reads = True
        await drain(server.executor, 5)
        return said + reader.heard()

    said = asyncio.run(end())
    assert said.count(VALUE) == ENTRIES
    assert said.endswith(b"+PONG\r\n")
    assert reader.closed


def test_scan_reads_a_limited_number_of_keys(server: Server, ann: Talker, reader: Reader) -> None:
    for number in range(1200):
        ann.send("SET", f"key:{number}", "v")
    server.turn()
    assert reader.ask("SCAN", "0", "COUNT", "5000").count(b"key:") == 1000
    assert reader.ask("SCAN", "0", "COUNT", "5000", "TYPE", "string").count(b"key:") == 250
    assert ann.heard().count(b"+OK") == ann.ask("SCAN", "0", "COUNT", "5000").count(b"key:")
