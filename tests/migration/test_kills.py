"""Kill any part at any time: the same command resumes, without loss or duplicates."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvstream import KVStreamError
from kvstream.migration import Carried, Outcome, run, verify
from kvstream.migration.runner import Progress
from tests import forking
from tests.cli.program import ENVIRONMENT
from tests.migration.conftest import Start
from tests.migration.filling import full
from tests.migration.servers import RedisServer

ROUNDS = int(os.environ.get("KVSTREAM_KILLS", "2"))
"""The number of kills in each test; KVSTREAM_KILLS=30 takes some minutes."""
ENTRIES = 5_000
DURABLE = ("--appendonly", "yes", "--appendfsync", "no")
SMALL_BULK = 1 << 20
"""A limit of payloads, so that the longer streams are sent by commands."""


def fill(client: Any) -> None:
    """Create streams whose migration takes a while."""
    for key, count in (("long", ENTRIES), ("short", 50), ("longer", 2 * ENTRIES)):
        pipe = client.pipeline(transaction=False)
        for at in range(count):
            pipe.xadd(key, {"n": at, "text": "x" * 100}, f"{at + 1}-0")
        pipe.xgroup_create(key, "g", "0")
        pipe.execute()
        client.xreadgroup("g", "c1", {key: ">"}, 500)
        client.xreadgroup("g", "c2", {key: ">"}, 10)
        client.xdel(key, "3-0", "7-0")


def start(*words: str) -> "subprocess.Popen[bytes]":
    """Start a migration in a process of its own."""
    command = [sys.executable, "-m", "kvstream", "migrate", "run", "-q", *words]
    return forking.start(
        command,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(*words: str) -> None:
    with start(*words) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err


def _kill(whole_s: float, words: tuple[str, ...]) -> None:
    chance = random.Random(5)
    for _ in range(ROUNDS):
        with start(*words) as process:
            time.sleep(chance.uniform(0.2, 1.0) * whole_s)
            process.send_signal(signal.SIGKILL)
    finish(*words)


@pytest.fixture
def filled(source: RedisServer) -> RedisServer:
    fill(source.client())
    return source


def timed(*words: str) -> float:
    begun = time.monotonic()
    finish(*words)
    return time.monotonic() - begun


def test_the_tool_is_killed_while_it_writes_to_a_store(filled: RedisServer, tmp_path: Path) -> None:
    file, there = str(filled.saved()), str(tmp_path / "store")
    whole_s = timed(file, str(tmp_path / "first"))
    _kill(whole_s, (file, there))
    assert verify(file, there).differences == []


def test_the_tool_is_killed_while_it_writes_by_commands(
    filled: RedisServer, target: RedisServer, tmp_path: Path
) -> None:
    target.client().config_set("proto-max-bulk-len", SMALL_BULK)
    whole_s = timed(filled.url, target.url)
    target.client().flushall()
    _kill(whole_s, (filled.url, target.url))
    assert full(filled.client()) == full(target.client())
    assert sorted(target.client().scan_iter()) == [b"long", b"longer", b"short"]


def test_the_tool_killed_while_it_writes_a_file_leaves_none(
    filled: RedisServer, tmp_path: Path
) -> None:
    whole_s = timed(filled.url, str(tmp_path / "first.rdb"))
    file = tmp_path / "out.rdb"
    _kill(whole_s, (filled.url, str(file), "--replace"))
    assert verify(filled.url, file).differences == []


def test_the_source_is_killed(start_redis: Start, tmp_path: Path) -> None:
    user = ("--user", "some", "on", "nopass", "~*", "&*", "+@all", "-dump")
    server = start_redis("source", *DURABLE, *user)  # without DUMP it is read page by page
    fill(server.client())
    there, url = tmp_path / "store", server.url.replace("redis://", "redis://some:any@")
    _with_kills_of(server, url, there)
    assert verify(url, there).equal


def test_the_target_is_killed(filled: RedisServer, start_redis: Start, tmp_path: Path) -> None:
    server = start_redis("target", *DURABLE, "--proto-max-bulk-len", str(SMALL_BULK))
    _with_kills_of(server, filled.url, server.url)
    assert verify(filled.url, server.url).equal
    assert sorted(server.client().scan_iter()) == [b"long", b"longer", b"short"]


def test_changes_after_an_interruption_are_not_missed(source: RedisServer, tmp_path: Path) -> None:
    client = source.client()
    for number in range(4):
        client.xadd(f"s{number}", {"a": 1}, "1-0")
        client.xadd(f"s{number}", {"a": 2}, "2-0")
    done: list[bytes] = []

    def stop(carried: Carried) -> None:
        done.append(carried.key)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source.url, tmp_path / "store", progress=Progress(key=stop))
    client.xadd(done[0], {"a": 3}, "3-0")
    client.xgroup_create(done[1], "g", "0")
    report = run(source.url, tmp_path / "store")
    assert report.outcomes == {Outcome.DIFFERENT: 2, Outcome.SAME: 1, Outcome.COPIED: 1}
    assert report.resumed_keys == 1
    assert not report.complete


def test_a_file_replaced_after_an_interruption_is_read_from_its_start(
    source: RedisServer, tmp_path: Path
) -> None:
    client, file = source.client(), tmp_path / "dump.rdb"
    for number in range(3):
        client.xadd(f"s{number}", {"a": 1}, "1-0")
    file.write_bytes(source.saved().read_bytes())

    def stop(carried: Carried) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(file, tmp_path / "store", progress=Progress(key=stop))
    client.flushall()
    for number in range(3):
        client.xadd(f"s{number}", {"a": 2}, "1-0")
    file.write_bytes(source.saved().read_bytes())
    assert run(file, tmp_path / "store").outcomes == {Outcome.DIFFERENT: 1, Outcome.COPIED: 2}


def _with_kills_of(server: RedisServer, source: str, target: str | Path) -> None:
    """Run a migration until it is done; a server is killed after this many nodes."""
    chance = random.Random(7)
    for _ in range(ROUNDS):
        left = chance.randrange(20, 100)

        def watch(entries: int, size: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                server.kill()

        with pytest.raises(KVStreamError):
            run(source, target, watch=watch)
        server.start()
    assert run(source, target).complete
