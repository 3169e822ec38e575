"""Kill an ordered queue with dead letters and a running redrive, again and again.

Afterwards each job is in exactly one place: in the stream, among the dead letters, or done.
"""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from kvstream import Store
from tests import forking
from tests.crash.rounds import rounds

ROOT = Path(__file__).parents[2]
LIFE_S = (0.3, 1.2)


def work_until_killed(directory: Path, seed: int, writer: str = "order_writer") -> list[list[str]]:
    """Run a writer for a random time; return the words of its output."""
    command = [sys.executable, "-m", f"tests.crash.{writer}", str(directory), str(seed)]
    process = forking.start(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        lines = [process.stdout.readline()]
        listener = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
        listener.start()
        time.sleep(random.Random(seed).uniform(*LIFE_S))
        process.kill()
        listener.join()
    return [line.split() for line in lines if line.endswith("\n")]


def test_every_job_is_in_one_place_and_keys_are_in_order(tmp_path: Path) -> None:
    added: set[int] = set()
    done: set[int] = set()
    for seed in range(1, rounds(2) + 1):
        words = work_until_killed(tmp_path / "store", seed)
        doubtful: set[int] = set()
        for word, command, *numbers in words:
            named = {int(number) for number in numbers}
            if word == "try":
                doubtful = named
                continue
            doubtful = set()
            added |= named if command == "add" else set()
            done |= named if command == "done" else set()
        with Store.open(tmp_path / "store", free_space_reserve=0) as store:
            assert store.check() == []
            jobs, dead = store.stream("jobs"), store.stream("jobs:dead")
            with store.transaction():  # the redrive pauses meanwhile
                found, letters = jobs.range(), dead.range()
                rows = jobs.group("workers").pending_range(count=1 << 20)
            places = Counter(int(entry.fields[b"n"]) for entry in [*found, *letters])
            assert set(places.values()) <= {1}
            assert (places.keys() ^ (added - done)) <= doubtful
            added |= doubtful & places.keys()
            done |= doubtful - places.keys()
            keys = {entry.id: entry.fields[b"key"] for entry in found}
            flying = Counter(keys[row.id] for row in rows if row.consumer)
            assert set(flying.values()) <= {1}
