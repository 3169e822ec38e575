"""A read command written in the simplest way holds the event loop no longer than XREVRANGE does."""

import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.commands.args import Argv
from kvstream.commands.command import FIRST, OURS, READ, Family, Session, table_of
from kvstream.layout.keys import qualified
from kvstream.layout.values import encode_fields
from kvstream.meta.txn import Txn
from kvstream.operations import append
from kvstream.operations.reads.range import Range
from kvstream.operations.reads.read import StreamsRead
from kvstream.server.commands import TABLE
from kvstream.types.clock import ManualClock
from kvstream.types.ids import MIN_ID
from tests.patience import tries
from tests.server.runtime.test_reply_streaming import Reader
from tests.server.talking import Server

ENTRIES = 100_000
TURN_S = 0.02
"""The longest time that one read may hold the loop."""
COMMANDS = Family("stream")


@COMMANDS.command("xlast", "key COUNT n", READ, FIRST, since=OURS)
def xlast(txn: Txn, session: Session, argv: Argv) -> Range:
    """Return the last entries of a stream, newest first."""
    return Range(session.prefix + argv[1], count=int(argv[3]), reverse=True)


@COMMANDS.command("xall", "key", READ, FIRST, since=OURS)
def xall(txn: Txn, session: Session, argv: Argv) -> StreamsRead:
    """Return all entries of a stream, as XREAD does."""
    return StreamsRead([(session.prefix + argv[1], MIN_ID)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("reads") / "store"
    server = Server(directory, clock=ManualClock(), commands={**TABLE, **table_of([[COMMANDS]])})
    entries = [encode_fields({"f": "v" * 20})] * 1000
    for _ in range(ENTRIES // 1000):
        server.engine.run(append.add_many, qualified(0, b"s"), entries)
    yield server
    server.engine.close()


def read(server: Server, reader: Reader, *words: str) -> tuple[bytes, float]:
    """Return the reply, and the longest processor time of a turn of the loop and one page."""
    executor, longest, works = server.executor, 0.0, True
    said: list[bytes] = []
    reader.send(*words)
    with patch("kvstream.server.runtime.reply_queue.PAGES_S", -1.0):
        while works:
            begun = time.thread_time()
            works = executor.run() or executor.streaming.write() or bool(executor.pending)
            longest = max(longest, time.thread_time() - begun)
            said.append(reader.heard())
    return b"".join(said), longest


@pytest.mark.parametrize(
    ("words", "builtin"),
    [
        (("XLAST", "s", "COUNT", str(ENTRIES)), ("XREVRANGE", "s", "+", "-")),
        (("XALL", "s"), ("XREAD", "STREAMS", "s", "0")),
    ],
)
def test_a_simple_read_command_does_not_hold_the_loop(
    server: Server, words: tuple[str, ...], builtin: tuple[str, ...]
) -> None:
    reader = Reader(server, 100)
    whole, _ = read(server, reader, *builtin)
    assert whole.count(b"v" * 20) == ENTRIES
    for attempt in tries():
        with attempt:
            found, longest = read(server, reader, *words)
            assert found == whole
            assert longest < TURN_S
    reader.leave()
