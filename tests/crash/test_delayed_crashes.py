"""Kill a process while its delayed messages fire: each is added once, or still delayed.

A schedule with catch-up adds each missed time once.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from kvstream import Durability, Store
from kvstream.meta.txn import Txn
from kvstream.operations import delayed, unique
from kvstream.types.ids import StreamID, Ticket
from tests import forking
from tests.crash.delayed_writer import NAME, ONLY
from tests.crash.rounds import rounds
from tests.opening import LEVELS
from tests.patience import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
ROUNDS = 2
LIFE_S = (0.3, 1.2)

Words = list[list[object]]


def words_of_killed(store: Path, level: Durability, seed: int, life_s: float) -> Words:
    """Run a writer, kill it after a while, and return its output."""
    program = [sys.executable, "-m", "tests.crash.delayed_writer", str(store), level, str(seed)]
    child = forking.start(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[str] = []
    spoke = threading.Event()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            spoke.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert spoke.wait(PATIENCE_S)
    time.sleep(life_s)
    child.send_signal(signal.SIGKILL)
    reader.join()
    _, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Oracle:
    """The messages that must exist, and those that may."""

    def __init__(self) -> None:
        self.sure: set[int] = set()
        self.maybe: set[int] = set()
        """Messages of a command without a reply."""

    def add_output(self, words: Words) -> None:
        for word, command, number, *result in words:
            assert isinstance(number, int)
            if word == "try":
                if command != "move":
                    self.maybe.add(number)
                continue
            self.maybe.discard(number)
            if command == "add":
                self.sure.add(number)
            elif command == "cancel" and result == [1]:
                self.sure.discard(number)
        for number in self.maybe:
            self.sure.discard(number)

    def judge(self, found: Counter[int]) -> None:
        assert max(found.values(), default=1) == 1, "a message was added twice"
        assert self.sure <= found.keys() <= self.sure | self.maybe
        self.sure, self.maybe = set(found), set()


def messages(store: Store) -> Counter[int]:
    """Return the numbers of all messages, delayed and in the stream."""
    there = [int(entry.fields[b"n"]) for entry in store.stream("jobs")]
    waiting = store.engine.run(delayed.list_messages, NAME, None, 1 << 20)
    return Counter(there + [int(each.fields[b"n"]) for each in waiting])


def check_unique(store: Store) -> None:
    """Check that at most one message of each unique ID waits, and that it holds the ID."""
    [group] = store.stream("only").groups()
    waiting: list[tuple[bytes, StreamID | Ticket]] = [
        (entry.fields[b"id"], entry.id)
        for entry in store.stream("only").range(f"({group.last_delivered_id}")
    ]
    listed = store.engine.run(delayed.list_messages, ONLY)
    waiting += [(each.fields[b"id"], each.ticket) for each in listed]
    assert len({unique_id for unique_id, _ in waiting}) == len(waiting)

    def holder(txn: Txn, unique_id: bytes) -> StreamID | Ticket | None:
        stream = txn.stream(ONLY)
        assert stream is not None
        row = unique.held_row(txn, stream, unique_id)
        return None if row is None else row.holder

    for unique_id, name in waiting:
        assert store.engine.run(holder, unique_id) == name


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_process_neither_loses_nor_repeats_a_delayed_message(
    tmp_path: Path, level: Durability
) -> None:
    path = tmp_path / "store"
    base = int(os.environ.get("KVSTREAM_CRASH_SEED") or random.randrange(1 << 20))
    print(f"seed {base} (repeat with KVSTREAM_CRASH_SEED={base})")
    chance, oracle = random.Random(f"{base} {level}"), Oracle()
    for number in range(rounds(ROUNDS)):
        oracle.add_output(words_of_killed(path, level, number + 1, chance.uniform(*LIFE_S)))
        with Store.open(path) as store:
            with store.transaction():  # no timer fires between the two reads
                found = messages(store)
                if store.exists("only"):
                    check_unique(store)
            oracle.judge(found)
            ticks = [int(entry.fields[b"cron:at"]) for entry in store.stream("ticks")]
            assert ticks == [*range(ticks[0], ticks[-1] + 1, 1000)] if ticks else True
            assert store.check() == []
    with Store.open(path) as store:
        until(lambda: not store.engine.run(delayed.length, NAME), "the last message to fire")
        assert {int(entry.fields[b"n"]) for entry in store.stream("jobs")} == oracle.sure
        assert len(store.stream("jobs")) == len(oracle.sure)
