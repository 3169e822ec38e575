"""Kill a server while scripts run: each script is committed completely, or not at all."""

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from kvstream import connect
from tests.crash.rounds import rounds
from tests.server.asking import Asker
from tests.serving import ServerProcess

ROUNDS = rounds(2)
KEYS = 40
CLIENTS = 3
SCRIPT = f"""
for i = 1, {KEYS} do redis.call('set', KEYS[1] .. ':' .. i, ARGV[1]) end
redis.call('xadd', KEYS[1] .. ':s', '*', 'n', ARGV[1])
return ARGV[1]
"""


@pytest.mark.parametrize("durability", ["everysec", "always"])
def test_scripts_are_atomic_after_a_kill(tmp_path: Path, durability: str) -> None:
    acknowledged = [0] * CLIENTS
    for _ in range(ROUNDS):
        server = ServerProcess(tmp_path / "store", "--durability", durability)
        threads = [
            threading.Thread(target=_work, args=(server.port, number, acknowledged))
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        time.sleep(random.uniform(0.1, 0.5))  # at any moment
        server.process.kill()
        server.process.communicate()
        for thread in threads:
            thread.join()
        with connect(tmp_path / "store") as client:
            for number in range(CLIENTS):
                last = _last(client, number)
                assert last in (acknowledged[number], acknowledged[number] + 1)
                acknowledged[number] = last


def _work(port: int, number: int, acknowledged: list[int]) -> None:
    """Run scripts that count; record the last acknowledged one."""
    with suppress(OSError, EOFError), Asker(port) as client:
        while True:
            count = acknowledged[number] + 1
            assert client.ask("EVAL", SCRIPT, "1", f"c{number}", str(count)) == b"%d" % count
            acknowledged[number] = count


def _last(client: Redis, number: int) -> int:
    """Return the count that all keys of a client have."""
    values = set(client.mget([f"c{number}:{at}" for at in range(1, KEYS + 1)]))
    assert len(values) == 1
    count = int(values.pop() or 0)
    assert client.xlen(f"c{number}:s") == count
    return count
