"""Kill a process that works on a queue at random moments: every acknowledged command survives."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvstream import Durability, Store
from tests import forking
from tests.crash.queue_writer import KEPT
from tests.crash.rounds import rounds
from tests.faultshim.disk import FaultyDisk
from tests.opening import LEVELS
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
ROUNDS = 2
LIFE_S = (0.1, 0.8)
LOSS_S = 1.5
"""The time that ``everysec`` may lose: a second, and the fsync under way."""


@dataclass
class Expected:
    """The expected state of the queue, computed from the output of the writer."""

    added: int = 0
    live: list[str] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    given_back: set[str] = field(default_factory=set)
    """Entries given back; a read acknowledges those of them that are deleted."""

    def did(self, command: str, ids: list[str]) -> None:
        if command.startswith("add"):
            self.added += len(ids)
            self.live += ids
            if command == "add_trimming":
                del self.live[: max(0, len(self.live) - KEPT)]
        elif command == "read":
            self.pending |= set(ids)
        elif command == "nack":
            self.given_back |= set(ids)
        elif command in ("ack", "claim"):
            self.pending -= set(ids)
        elif command == "delete":
            self.live = [eid for eid in self.live if eid not in set(ids)]

    def same(self, other: "Expected") -> bool:
        """Compare queues, except for pending entries that any read may have acknowledged."""
        gone = self.given_back - set(self.live)
        return (self.added, self.live, self.pending - gone) == (
            *(other.added, other.live),
            other.pending - gone,
        )


def found_in(store: Store) -> Expected:
    stream = store.stream("jobs")
    if "jobs" not in store or not stream.groups():
        return Expected()
    pending = stream.group("workers").pending_range(count=1 << 20)
    return Expected(
        stream.info().entries_added,
        [str(entry.id) for entry in stream],
        {str(each.id) for each in pending},
        {str(each.id) for each in pending if not each.consumer},
    )


@dataclass(frozen=True)
class Word:
    """One line of a writer's output, and the time of its arrival."""

    at: float
    word: str
    command: str
    ids: list[str] = field(default_factory=list)
    sequence: int = 0
    """The number of the last write so far."""
    durable: int = 0
    """All writes up to this one were on disk."""


class Writer:
    """A working process; its output is read at once."""

    def __init__(
        self,
        store: Path,
        level: Durability,
        seed: int,
        environment: Mapping[str, str],
        module: str = "tests.crash.queue_writer",
    ) -> None:
        program = [sys.executable, "-m", module, str(store), level, str(seed)]
        self._child = forking.start(
            program, cwd=ROOT, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.words: list[Word] = []
        self._spoke = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith(b"\n"):
                self.words.append(Word(time.monotonic(), *json.loads(line)))
                self._spoke.set()
        self._spoke.set()

    def kill_after(self, seconds: float) -> None:
        """Let it work for a while after its first word, and kill it."""
        assert self._spoke.wait(PATIENCE_S)
        time.sleep(seconds)
        self._child.send_signal(signal.SIGKILL)
        self._reader.join()
        _, error = self._child.communicate()
        assert self._child.returncode == -signal.SIGKILL, error.decode()


def seeds(what: str) -> Iterator[tuple[int, random.Random]]:
    base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 30))
    print(f"seed {base} (repeat with KVSTREAM_CRASH_SEED={base})")
    for number in range(rounds(ROUNDS)):
        chance = random.Random(f"{base} {what} {number}")
        yield chance.randrange(1 << 30), chance


def complete(expected: Expected, found: Expected, words: list[Word]) -> None:
    """Check that all acknowledged commands survive, and the last one completely or not at all."""
    for word in words:
        if word.word == "did":
            expected.did(word.command, word.ids)
    if not expected.same(found):
        check_under_way(expected, found, words[-1])


def check_under_way(expected: Expected, found: Expected, last: Word) -> None:
    """Check that the store has the complete last command, which had no reply, and nothing else."""
    assert last.word == "try", "the store differs, but no command was running"
    extra = found.live[len(found.live) - (found.added - expected.added) :]
    if last.command.startswith("add"):
        ids = extra
    elif last.command == "read":
        ids = sorted(found.pending - expected.pending)
    elif last.command == "delete":
        ids = [eid for eid in expected.live if eid not in set(found.live)]
    else:
        ids = sorted(expected.pending - found.pending)
    expected.did(last.command, ids)
    assert expected.same(found)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_worker_loses_no_acknowledged_command(tmp_path: Path, level: Durability) -> None:
    path = tmp_path / "store"
    expected = Expected()
    for seed, chance in seeds(f"kill {level}"):
        writer = Writer(path, level, seed, os.environ)
        writer.kill_after(chance.uniform(*LIFE_S))
        with Store.open(path) as store:
            assert store.check() == []
            found = found_in(store)
        complete(expected, found, writer.words)
        expected = found


@pytest.mark.timeout(3600)
def test_a_worker_killed_while_its_group_changes_form_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    expected = Expected()
    for seed, chance in seeds("kill changing"):
        writer = Writer(path, Durability.NO, seed, os.environ, "tests.crash.changing_writer")
        writer.kill_after(chance.uniform(*LIFE_S))
        with Store.open(path) as store:
            assert store.check() == []
            found = found_in(store)
        complete(expected, found, writer.words)
        expected = found


@pytest.mark.timeout(3600)
def test_power_loss_loses_no_command_acknowledged_with_always(faulty_disk: FaultyDisk) -> None:
    path = faulty_disk.root / "store"
    expected = Expected()
    for seed, chance in seeds("cut always"):
        writer = Writer(path, Durability.ALWAYS, seed, faulty_disk.environment())
        writer.kill_after(chance.uniform(*LIFE_S))
        faulty_disk.cut_power()
        with Store.open(path) as store:
            assert store.check() == []
            found = found_in(store)
        complete(expected, found, writer.words)
        expected = found
        faulty_disk.forget()


@pytest.mark.timeout(3600)
def test_power_loss_loses_at_most_a_second_of_everysec(faulty_disk: FaultyDisk) -> None:
    """The queue is in the state after one of the last commands.

    All writes that were on disk survive. The loss in seconds depends on the pace of the writer, and
    a busy machine may stop it, so the limit applies to the best round.
    """
    path = faulty_disk.root / "store"
    expected = Expected()
    losses_s = []
    for seed, chance in seeds("cut everysec"):
        writer = Writer(path, Durability.EVERYSEC, seed, faulty_disk.environment())
        writer.kill_after(chance.uniform(*LIFE_S) + LOSS_S)
        died = writer.words[-1].at
        faulty_disk.cut_power()
        with Store.open(path) as store:
            assert store.check() == []
            found = found_in(store)
        durable = max(word.durable for word in writer.words)
        known = max(word.sequence for word in writer.words if word.sequence <= durable)
        last = Word(0.0, "did", "nothing")
        for word in writer.words:
            if word.word == "did":
                expected.did(word.command, word.ids)
                if expected.same(found):
                    last = word
        if last.sequence < known:  # nothing is lost, and the last command was committed too
            last = writer.words[-1]
            check_under_way(expected, found, last)
        losses_s.append(died - last.at)
        expected = found
        faulty_disk.forget()
    assert min(losses_s) <= LOSS_S
