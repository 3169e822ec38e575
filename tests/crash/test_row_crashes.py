"""Kill a process, or cut the power, at a random moment: acknowledged rows survive."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvstream.storage import watermark
from kvstream.storage.batch import Family
from kvstream.storage.database import Database
from kvstream.types.options import Durability
from tests import forking
from tests.crash.rounds import rounds
from tests.crash.row_writer import STATE, TREE_ROWS, State, key_of, options, value_of
from tests.faultshim.disk import FaultyDisk
from tests.opening import LEVELS
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
ROUNDS = 2
LIFE_S = (0.05, 0.6)
"""The time from a writer's first acknowledgement to its kill."""


@dataclass(frozen=True)
class Output:
    """The output of a writer until it was killed."""

    acked_batch: int
    acked_sequence: int
    durable_sequence: int


class Writer:
    """A writing process; its output is read at once, so that it never waits."""

    def __init__(
        self, directory: Path, level: Durability, seed: int, environment: Mapping[str, str]
    ) -> None:
        program = [sys.executable, "-m", "tests.crash.row_writer"]
        self._child = forking.start(
            [*program, str(directory), level, str(seed)],
            cwd=ROOT,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._words: list[bytes] = []
        self._spoke = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def kill_after(self, seconds: float) -> Output:
        """Let it write for a while, kill it, and return its output."""
        spoke = self._spoke.wait(PATIENCE_S)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGKILL)
        self._reader.join()
        _, error = self._child.communicate()
        assert spoke, error.decode()
        assert self._child.returncode == -signal.SIGKILL, error.decode()
        return self._output()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith(b"\n"):
                self._words.append(line)
                self._spoke.set()
        self._spoke.set()

    def _output(self) -> Output:
        acked = [line.split() for line in self._words if line.startswith(b"acked")]
        durable = [line.split() for line in self._words if line.startswith(b"durable")]
        return Output(int(acked[-1][1]), int(acked[-1][2]), int(durable[-1][1]) if durable else 0)


def checked(directory: Path, level: Durability) -> tuple[State, int]:
    """Open the store, and check that every batch is complete and no earlier one is missing."""
    database = Database.open(directory, options(level))
    state = State.decoded(database.get(Family.METADATA, STATE))
    found = list(database.scan(Family.MESSAGES, b"", b"\xff" * 9))
    assert found == [(key_of(n), value_of(n)) for n in range(state.first, state.end)]
    last = max(0, state.batches - TREE_ROWS)
    trees = [key for key, _ in database.scan(Family.TREES, b"", b"\xff" * 9)]
    assert trees == [key_of(n) for n in range(last + 1, state.batches + 1)]
    sequence = database.sequence
    database.close()
    return state, sequence


def seeds(level: Durability, default: int) -> list[int]:
    base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30))
    print(f"seed {base} (repeat with KVSTREAM_CRASH_SEED={base})")
    chance = random.Random(f"{base} {level}")
    return [chance.randrange(1 << 30) for _ in range(rounds(default))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_writer_loses_nothing_at_any_level(tmp_path: Path, level: Durability) -> None:
    store = tmp_path / "store"
    for seed in seeds(level, ROUNDS):
        chance = random.Random(seed)
        output = Writer(store, level, seed, os.environ).kill_after(chance.uniform(*LIFE_S))
        state, sequence = checked(store, level)
        assert state.batches >= output.acked_batch
        assert sequence >= output.acked_sequence


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_power_loss_loses_only_rows_that_were_not_durable(
    faulty_disk: FaultyDisk, level: Durability
) -> None:
    store = faulty_disk.root / "store"
    lost = 0
    for seed in seeds(level, ROUNDS):
        chance = random.Random(seed)
        writer = Writer(store, level, seed, faulty_disk.environment())
        life = chance.uniform(*LIFE_S)
        if level is Durability.EVERYSEC:
            life += 1.0
        time.sleep(life / 2)
        mark = picture_of_watermark(store)
        output = writer.kill_after(life / 2)
        lost += faulty_disk.cut_power()
        if mark and chance.random() < 0.5:
            # It is written without an fsync, so an older one may survive.
            (store / watermark.FILE_NAME).write_bytes(mark)
        state, sequence = checked(store, level)
        assert sequence >= output.durable_sequence
        if level is Durability.ALWAYS:
            assert state.batches >= output.acked_batch
        faulty_disk.forget()
    assert lost > 0


def picture_of_watermark(store: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return (store / watermark.FILE_NAME).read_bytes()
    return b""


CREATING = """
import sys
from pathlib import Path
from kvstream.storage.database import Database
from tests.crash.row_writer import OPTIONS
Database.open(Path(sys.argv[1]), OPTIONS).close()
"""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cut", [False, True], ids=["killed", "power cut"])
def test_a_store_whose_creation_was_interrupted_is_completed(
    faulty_disk: FaultyDisk, cut: bool
) -> None:
    """Every change of the disk during the creation may be lost."""
    store = faulty_disk.root / "store"
    stride = max(1, 30 // rounds(3))
    interrupted = 0
    for step in range(random.randint(1, stride), 2000, stride):
        shutil.rmtree(store, ignore_errors=True)
        faulty_disk.forget()
        child = forking.run(
            [sys.executable, "-c", CREATING, str(store)],
            cwd=ROOT,
            env=faulty_disk.environment(die_at=step) | {"PYTHONPATH": str(ROOT)},
            timeout=PATIENCE_S,
        )
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        interrupted += 1
        if cut:
            faulty_disk.cut_power()
        state, sequence = checked(store, Durability.ALWAYS)
        assert (state, sequence) == (State(), 0)
    assert interrupted > 3
