"""Kill a process that deletes very many keys, or frees their rows: all are deleted, or none."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.operations import keyspace
from tests import forking
from tests.crash.delete_writer import KEYS, RICH
from tests.crash.rounds import rounds

ROOT = Path(__file__).parents[2]
LINES_MAX = 12


@pytest.mark.parametrize("seed", range(rounds(2)))
def test_keys_deleted_together_are_deleted_atomically(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store"
    command = [sys.executable, "-m", "tests.crash.delete_writer", str(path)]
    with forking.start(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(random.Random(seed).randint(3, LINES_MAX))]
        writer.kill()
        lines += writer.stdout
    words = [
        (word, int(number))
        for word, number in (line.split() for line in lines if line.endswith("\n"))
    ]
    with Store.open(path, durability="no") as store:
        assert store.check() == []
        keys = store.keys()
        found = Counter(int(key.partition(b":")[0]) for key in keys if key != RICH)
        assert set(found.values()) <= {KEYS}
        tried = {number for word, number in words if word == "try"}
        made = {number for word, number in words if word == "made"}
        assert made - tried <= found.keys()
        assert not found.keys() & {number for word, number in words if word == "did"}
        while store.engine.run(keyspace.sweep, 100):
            pass
        assert store.check() == []
        assert store.keys() == keys
        assert store.size() == len(keys)
