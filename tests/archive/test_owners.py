"""Owners that are killed or stopped, and those that take over: what was acknowledged is there.

KVSTREAM_CRASH_ROUNDS sets how many owners follow one another.
"""

import contextlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver, restore
from kvstream.errors import ArchiveTaken, ArchiveUnavailable, UnknownOutcome
from tests.archive.conftest import all_rows, rows_in
from tests.archive.owner import INTERVAL_S, SLACK_S, Owner, refuse_gaps, written_in
from tests.archive.proxy import Proxy
from tests.archive.seaweed import Seaweed
from tests.archive.writer import FIELD, WRITER
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("level", ["archive", "everysec"])
def test_killed_owners_go_on_in_place(tmp_path: Path, url: str, level: str) -> None:
    chance, acked = random.Random(level), set[tuple[int, int]]()
    for seed in range(rounds(2)):
        owner = Owner(tmp_path / "data", url, level, seed)
        owner.write_for(chance.uniform(0.05, 0.8))
        owner.kill()
        acked |= owner.written
    with Store.open(tmp_path / "data", archive=url) as store:
        assert store.check() == []
        found = written_in(store)
        expected = all_rows(store)
    refuse_gaps(found)
    assert acked <= set(found)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected


@pytest.mark.parametrize("level", ["archive", "everysec"])
def test_owners_of_lost_machines_are_followed(tmp_path: Path, url: str, level: str) -> None:
    chance, acked = random.Random(level), dict[tuple[int, int], float]()
    for seed in range(rounds(2)):
        owner = Owner(tmp_path / f"machine-{seed}", url, level, seed)
        owner.write_for(chance.uniform(0.3, 0.8))
        killed_at = owner.kill()
        acked |= {(number, owner.process.pid): at for number, at in owner.acked.items()}
        with Store.open(tmp_path / f"look-{seed}", archive=url, take_over=True) as store:
            assert store.check() == []
            found = written_in(store)
        refuse_gaps(found)
        lost = acked.keys() - set(found)
        if level == "archive":
            assert not lost
        late_s = owner.lag_s + INTERVAL_S + SLACK_S
        assert all(acked[each] > killed_at - late_s for each in lost)
        acked = {each: acked[each] for each in found if each in acked}
        shutil.rmtree(tmp_path / f"machine-{seed}")
        shutil.rmtree(tmp_path / f"look-{seed}")


@pytest.fixture(params=["a folder", "a bucket that loses answers"])
def place(request: pytest.FixtureRequest) -> str:
    """The URL of an empty archive."""
    name = "url" if request.param == "a folder" else "lossy_url"
    found: str = request.getfixturevalue(name)
    return found


@pytest.fixture
def lossy_url(lossy: Proxy, bucket_url: str) -> str:
    """The URL of an empty archive, of which every tenth put has no answer."""
    return bucket_url


@pytest.fixture
def lossy(seaweed: Seaweed, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that loses the answer of every tenth put."""
    with Proxy(seaweed.ports[0], lost_each=10) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{proxy.port}")
        yield proxy


@pytest.mark.parametrize("level", ["archive", "everysec"])
def test_a_stopped_owner_acknowledges_nothing_after_the_fence(
    tmp_path: Path, place: str, level: str
) -> None:
    """At lower levels it does for an interval, as may those be lost of the last one before."""
    for seed in range(rounds(1)):
        former = Owner(tmp_path / f"former-{seed}", place, level, seed)
        former.write_for(0.3)
        former.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            new = Owner(tmp_path / f"new-{seed}", place, level, seed)
            new.write_for(0.3)
        finally:
            continued_at = time.monotonic()
            former.process.send_signal(signal.SIGCONT)
        former.wait()
        new.write_for(0.1)
        new.kill()
        assert former.refused[-1] == "ArchiveTaken"
        with Store.open(tmp_path / f"last-{seed}", archive=place, take_over=True) as store:
            found = written_in(store)
            assert store.check() == []
        refuse_gaps(found)
        if level == "archive":
            assert former.written | new.written <= set(found)
        lost = {former.acked[number] for number, _ in former.written - set(found)}
        assert all(at > stopped_at - former.lag_s - INTERVAL_S - SLACK_S for at in lost)
        assert all(at < continued_at + INTERVAL_S + SLACK_S for at in lost)
        for name in ("former", "new", "last"):
            shutil.rmtree(tmp_path / f"{name}-{seed}")


class Writing(threading.Thread):
    """A thread that writes into a store until it is refused."""

    def __init__(self, directory: Path, url: str, name: int) -> None:
        super().__init__()
        self.directory, self._name = directory, name
        self._store = _take_over(directory, url)
        self.acked: list[tuple[int, int]] = []
        self.start()

    def run(self) -> None:
        number = len(self._store.stream("orders"))
        while True:
            with contextlib.suppress(UnknownOutcome):
                try:
                    self._store.stream("orders").add({FIELD: number, WRITER: self._name})
                except ArchiveTaken:
                    return
                self.acked.append((number, self._name))
            number += 1

    def end(self) -> set[tuple[int, int]]:
        """Wait until it is refused, and close its store; return what was acknowledged."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        with contextlib.suppress(UnknownOutcome):
            self._store.close()
        shutil.rmtree(self.directory)
        return set(self.acked)


def _take_over(directory: Path, url: str) -> Store:
    """Take an archive over, which may take some tries."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return Store.open(directory, archive=url, durability="archive", take_over=True)
        except ArchiveUnavailable:
            assert time.monotonic() < until


def test_take_overs_while_answers_are_lost(
    tmp_path: Path, lossy: Proxy, lossy_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each owner writes until the next one's fence; none of what it had acknowledged is lost."""
    monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", 5000)  # else each reads all pieces
    former: Writing | None = None
    acked: set[tuple[int, int]] = set()
    for name in range(rounds(2) + 1):
        writing = Writing(tmp_path / f"owner-{name}", lossy_url, name)
        if former is not None:
            acked |= former.end()
        former = writing
        until = time.monotonic() + PATIENCE_S
        while len(writing.acked) < 25:
            assert time.monotonic() < until
            time.sleep(0.01)
    with Store.open(tmp_path / "last", archive=lossy_url, take_over=True) as last:
        assert former is not None
        acked |= former.end()
        assert last.check() == []
        found = written_in(last)
    assert len({writer for _, writer in found}) == rounds(2) + 1
    assert lossy.lost > 3
    assert acked <= set(found)
