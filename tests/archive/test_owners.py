"""Owners that are killed or stopped, and those that take over: what was acknowledged is there.

KVSTREAM_CRASH_ROUNDS sets how many owners follow one another.
"""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import restore
from kvstream.errors import ArchiveTaken, ArchiveUnavailable, UnknownOutcome
from tests.archive.conftest import all_rows, rows_in
from tests.archive.proxy import Proxy
from tests.archive.seaweed import Seaweed
from tests.archive.writer import numbers_in
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
INTERVAL_S = 0.2
SLACK_S = 1.5
"""How much later than its interval a put may come on a busy machine."""


class Owner:
    """A writing process; its output is read at once, so that it never waits."""

    def __init__(self, directory: Path, url: str, level: str, seed: int = 0) -> None:
        program = [sys.executable, "-m", "tests.archive.writer", str(directory), url, level]
        self.process = subprocess.Popen(
            [*program, str(INTERVAL_S), str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.acked: dict[int, float] = {}
        self.refused: list[str] = []
        self._spoke = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # it was killed meanwhile
                break
            first, second = line.split()
            if first == "refused":
                self.refused.append(second)
            else:
                self.acked[int(first)] = float(second)
            self._spoke.set()
        self._spoke.set()

    def write_for(self, seconds: float) -> None:
        """Let it write for a while after its first acknowledgement."""
        assert self._spoke.wait(PATIENCE_S)
        time.sleep(seconds)
        if not self.acked:
            self.process.kill()
            pytest.fail(str(self.process.communicate()[1]))

    def kill(self) -> float:
        """Kill it; return when."""
        self.process.kill()
        killed_at = time.monotonic()
        self.wait()
        return killed_at

    def wait(self) -> None:
        """Wait until it has ended."""
        self._reader.join(PATIENCE_S)
        self.process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("level", ["archive", "everysec"])
def test_killed_owners_go_on_in_place(tmp_path: Path, url: str, level: str) -> None:
    chance, acked = random.Random(level), set[int]()
    for seed in range(rounds(2)):
        owner = Owner(tmp_path / "data", url, level, seed)
        owner.write_for(chance.uniform(0.05, 0.8))
        owner.kill()
        acked |= owner.acked.keys()
    with Store.open(tmp_path / "data", archive=url) as store:
        assert store.check() == []
        found = numbers_in(store)
        expected = all_rows(store)
    assert found == list(range(len(found)))
    assert acked <= set(found)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.parametrize("level", ["archive", "everysec"])
def test_owners_of_lost_machines_are_followed(tmp_path: Path, url: str, level: str) -> None:
    chance, acked = random.Random(level), dict[int, float]()
    for seed in range(rounds(2)):
        owner = Owner(tmp_path / f"machine-{seed}", url, level, seed)
        owner.write_for(chance.uniform(0.3, 0.8))
        killed_at = owner.kill()
        acked |= owner.acked
        with Store.open(tmp_path / f"look-{seed}", archive=url, take_over=True) as store:
            assert store.check() == []
            found = numbers_in(store)
        assert found == list(range(len(found)))
        lost = acked.keys() - set(found)
        if level == "archive":
            assert not lost
        assert all(acked[number] > killed_at - INTERVAL_S - SLACK_S for number in lost)
        acked = {number: acked[number] for number in found if number in acked}


def test_a_stopped_owner_acknowledges_nothing_after_the_fence(tmp_path: Path, url: str) -> None:
    for seed in range(rounds(1)):
        former = Owner(tmp_path / f"former-{seed}", url, "archive", seed)
        former.write_for(0.3)
        former.process.send_signal(signal.SIGSTOP)
        try:
            new = Owner(tmp_path / f"new-{seed}", url, "archive", seed)
            new.write_for(0.3)
        finally:
            former.process.send_signal(signal.SIGCONT)
        former.wait()
        new.write_for(0.1)
        new.kill()
        assert former.refused[-1] == "ArchiveTaken"
        with Store.open(tmp_path / f"last-{seed}", archive=url, take_over=True) as store:
            found = numbers_in(store)
            assert store.check() == []
        assert former.acked.keys() | new.acked.keys() <= set(found)
        assert found == list(range(len(found)))


class Writing(threading.Thread):
    """A thread that writes into a store until it is refused."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.acked: list[int] = []
        self.start()

    def run(self) -> None:
        number = max(numbers_in(self._store), default=-1) + 1
        while True:
            with contextlib.suppress(UnknownOutcome):
                try:
                    self._store.stream("orders").add({"n": str(number)})
                except ArchiveTaken:
                    return
                self.acked.append(number)
            number += 1


def _take_over(directory: Path, url: str) -> Store:
    """Take an archive over, which may take some tries."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Store.open(directory, archive=url, durability="archive", take_over=True)
        except ArchiveUnavailable:
            assert time.monotonic() < until


def test_take_overs_while_answers_are_lost(
    tmp_path: Path, seaweed: Seaweed, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(seaweed.ports[0], lost_each=10) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        stores: list[Store] = []
        writers: list[Writing] = []
        for number in range(rounds(2)):
            place = tmp_path / f"owner-{number}"
            store = _take_over(place, bucket_url)
            stores.append(store)
            writers.append(Writing(store))
            until = time.monotonic() + PATIENCE_S
            while len(writers[-1].acked) < 25:
                assert time.monotonic() < until
                time.sleep(0.01)
        last = Store.open(tmp_path / "last", archive=bucket_url, take_over=True)
        for writer in writers:
            writer.join(PATIENCE_S)
        with last:
            assert last.check() == []
            found = set(numbers_in(last))
        for store in stores:
            with contextlib.suppress(UnknownOutcome):
                store.close()
        assert proxy.lost > 3
        assert {number for writer in writers for number in writer.acked} <= found
