"""What only a process shows: the loop that users have, its timers, the end of connections."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(tmp_path / "store", "--durability", "no")
    yield started
    started.end()


def test_a_wait_that_ends_while_the_loop_is_busy_is_told(server: ServerProcess) -> None:
    with server.asker() as waiting, server.asker() as sleeper, server.asker() as other:
        for _ in range(20):
            waiting.send("XREAD", "BLOCK", "1", "STREAMS", "s", "$")
            sleeper.send("DEBUG", "SLEEP", "0.02")
            other.send("PING")
            assert waiting.read() is None
            assert (sleeper.read(), other.read()) == (b"OK", b"PONG")
