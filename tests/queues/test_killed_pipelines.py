"""Workers of a pipeline of two queues are killed: each message has its effect exactly once."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvstream
from kvstream import Queue, Store
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S
from tests.remote.conftest import Places

ROOT = Path(__file__).parents[2]
ROUNDS = 3
MESSAGES = 150
LIFE_S = (0.05, 0.6)


class Workers:
    """Processes that work on the pipeline."""

    def __init__(self, place: str, kind: str, count: int, chance: random.Random) -> None:
        program = [sys.executable, "-m", "tests.queues.pipeline", place, kind]
        self._processes = [
            subprocess.Popen(
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


def is_done(store: Store) -> bool:
    with suppress(kvstream.StoreError):  # the owner was killed
        return len(store.stream("done")) >= MESSAGES and left(store) == 0
    return False


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["directory", "server", "shared"])
def test_each_message_of_a_killed_pipeline_has_its_effect_once(
    places: Places, directory: Path, kind: str
) -> None:
    seed = os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30)
    print(f"seed {seed} (repeat with KVSTREAM_CRASH_SEED={seed})")
    chance = random.Random(f"{seed} {kind}")
    place = places.of("server") if kind == "server" else str(directory)
    options: dict[str, Any] = {"shared": True, "durability": "no"} if kind == "shared" else {}
    opening = partial(kvstream.open, place, **options)
    with opening() as store:
        Queue(store, "first").put_many([{"n": n} for n in range(MESSAGES)])
    start = partial(Workers, place, "shared" if kind == "shared" else "alone")
    count = 1 if kind == "directory" else 2
    for _ in range(rounds(ROUNDS)):
        workers = start(count, chance)
        time.sleep(chance.uniform(*LIFE_S))
        workers.kill()
    deadline = time.monotonic() + PATIENCE_S
    done = False
    while not done:
        assert time.monotonic() < deadline
        workers = start(count, chance)
        time.sleep(2)
        workers.kill()
        with opening() as store:
            done = is_done(store)
    with opening() as store:
        effects = Counter(int(entry.fields[b"n"]) for entry in store.stream("done"))
        assert effects == dict.fromkeys(range(MESSAGES), 1)
        steps = Counter((e.fields[b"queue"], int(e.fields[b"n"])) for e in store.stream("steps"))
        wanted = [(name, n) for name in (b"first", b"second") for n in range(MESSAGES)]
        assert steps == dict.fromkeys(wanted, 1)
        if kind == "directory":
            assert store.check() == []
