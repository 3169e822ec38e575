"""What a server waits for at shutdown, and how long."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from kvstream.server.serving import Ending, drain
from kvstream.types.options import Durability
from tests.patience import PATIENCE_S
from tests.server.talking import Server, Talker


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "store", Durability.ALWAYS)
    yield started
    started.engine.close()


class Leaver(Talker):
    """A client whose connection is lost once it is closed, like that of a socket."""

    def close(self) -> None:
        super().close()
        asyncio.get_running_loop().call_soon(self.leave)


def end(server: Server, seconds: float) -> tuple[Ending, float]:
    """Drain a server; return the result, and how long it took."""

    async def run() -> Ending:
        server.run_in_loop()
        return await drain(server.executor, seconds)

    began = time.monotonic()
    return asyncio.run(run()), time.monotonic() - began


def test_an_idle_server_ends_at_once(server: Server) -> None:
    ending, took = end(server, PATIENCE_S)
    assert ending == Ending(undurable="", idle=True)
    assert took < PATIENCE_S


def test_received_requests_run_and_are_answered_once_they_are_durable(
    server: Server,
) -> None:
    talker = Leaver(server, 1)
    for number in range(1, 101):
        talker.send("XADD", "s", f"{number}-1", "f", "v")
    ending, _ = end(server, PATIENCE_S)
    assert ending == Ending(undurable="", idle=True)
    assert talker.heard().count(b"-1\r\n") == 100
    assert talker.closed
    assert server.engine.committer.durable_sequence == server.engine.seen_sequence


def test_a_compaction_is_awaited_for_a_limited_time(server: Server) -> None:
    talker = server.client()
    go_on = threading.Event()
    with patch.object(server.engine, "compact", lambda: go_on.wait(PATIENCE_S)):
        talker.ask("BGREWRITEAOF")
        ending, took = end(server, 0.5)
        assert ending == Ending(undurable="", idle=False)
        assert 0.5 <= took < PATIENCE_S
        go_on.set()


def test_a_hanging_disk_is_reported(server: Server) -> None:
    talker = server.client()
    talker.send("XADD", "s", "1-1", "f", "v")
    go_on = threading.Event()
    flush = server.engine.database.flush_wal

    def hang() -> int:
        go_on.wait(PATIENCE_S)
        return flush()

    with (
        patch("kvstream.server.serving.SYNC_S", 0.5),
        patch.object(server.engine.database, "flush_wal", hang),
    ):
        ending, took = end(server, 0.1)
        go_on.set()
    assert ending.undurable
    assert took < PATIENCE_S
    assert talker.closed
