"""A pipeline of two queues is killed again and again: each message has its effect exactly once.

Its workers are killed, or their server, which is restarted.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Queue, Store
from tests import forking
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.remote.conftest import Places
from tests.serving import ServerProcess

ROOT = Path(__file__).parents[2]
ROUNDS = 2
MESSAGES = 50
"""Messages that are added in each round."""
LIFE_S = (0.05, 0.6)


class Workers:
    """Processes that work on the pipeline."""

    def __init__(self, place: str, kind: str, count: int, chance: random.Random) -> None:
        program = [sys.executable, "-m", "tests.queues.pipeline", place, kind]
        self._processes = [
            forking.start(
                [*program, str(chance.random())],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(count)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"working\n", process.communicate()[1]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            said = process.communicate()[1].decode()
            assert process.returncode == -9, said


def left(store: Store) -> int:
    infos = [Queue(store, name).info() for name in ("first", "second")]
    return sum(info.ready + info.leased + info.waiting for info in infos)


def is_done(store: Store, messages: int) -> bool:
    with suppress(kvstream.StoreError):  # the owner was killed
        return len(store.stream("done")) >= messages and left(store) == 0
    return False


def check_effects(store: Store, messages: int) -> None:
    effects = Counter(int(entry.fields[b"n"]) for entry in store.stream("done"))
    assert effects == dict.fromkeys(range(messages), 1)
    steps = Counter((e.fields[b"queue"], int(e.fields[b"n"])) for e in store.stream("steps"))
    wanted = [(name, n) for name in (b"first", b"second") for n in range(messages)]
    assert steps == dict.fromkeys(wanted, 1)


def add(store: Store, round_number: int) -> None:
    numbers = range(round_number * MESSAGES, (round_number + 1) * MESSAGES)
    Queue(store, "first").put_many([{"n": n} for n in numbers])


def chance_of(kind: str) -> random.Random:
    seed = os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30)
    print(f"seed {seed} (repeat with KVSTREAM_CRASH_SEED={seed})")
    return random.Random(f"{seed} {kind}")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["directory", "server", "shared"])
def test_each_message_of_a_killed_pipeline_has_its_effect_once(
    places: Places, directory: Path, kind: str
) -> None:
    chance = chance_of(kind)
    place = places.of("server") if kind == "server" else str(directory)
    options: dict[str, Any] = {"shared": True, "durability": "no"} if kind == "shared" else {}
    opening = partial(kvstream.open, place, **options)
    start = partial(Workers, place, "shared" if kind == "shared" else "alone")
    count = 1 if kind == "directory" else 2
    for number in range(rounds(ROUNDS)):
        with opening() as store:
            add(store, number)
        workers = start(count, chance)
        time.sleep(chance.uniform(*LIFE_S))
        workers.kill()
    messages = rounds(ROUNDS) * MESSAGES
    deadline = time.monotonic() + PATIENCE_S + messages / MESSAGES
    done = False
    while not done:
        assert time.monotonic() < deadline
        workers = start(count, chance)
        time.sleep(2)
        workers.kill()
        with opening() as store:
            done = is_done(store, messages)
    with opening() as store:
        check_effects(store, messages)
        if kind == "directory":
            assert store.check() == []


@pytest.mark.timeout(3600)
def test_each_message_has_its_effect_once_though_the_server_is_killed(directory: Path) -> None:
    """The workers live on, and connect to the server that takes its place."""
    chance, port = chance_of("killed server"), free_port()
    url, messages = f"redis://127.0.0.1:{port}", rounds(ROUNDS) * MESSAGES
    start = partial(ServerProcess, directory, "--port", str(port))
    server = start()
    with ExitStack() as ends:
        ends.callback(lambda: server.stop())
        with kvstream.open(url) as store:
            add(store, 0)
        ends.callback(Workers(url, "alone", 2, chance).kill)
        for number in range(1, rounds(ROUNDS) + 1):
            time.sleep(chance.uniform(*LIFE_S))
            server.kill()
            server = start()
            if number < rounds(ROUNDS):
                with kvstream.open(url) as store:
                    add(store, number)
        with kvstream.open(url) as store:
            deadline = time.monotonic() + PATIENCE_S + messages / MESSAGES
            while not is_done(store, messages):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            check_effects(store, messages)
    with Store.open(directory) as store:
        assert store.check() == []
