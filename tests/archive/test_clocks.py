"""Clocks of machines that differ: times are the owner's, and nothing else depends on them."""

import time
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import archiver, restore, retention
from kvstream.archive.objects import open_objects
from kvstream.archive.retention import is_pinned, pin
from kvstream.errors import InvalidArgument
from tests.archive.conftest import wait_archived
from tests.archive.test_failures import add, archiver_of, names_in

HOUR_MS = 3_600_000
COARSE_S = 0.05


class Machine:
    """This machine, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.skew_ms = 0
        for module in (archiver, restore, retention):
            monkeypatch.setattr(module, "now_ms", self.now_ms)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.skew_ms

    def pause(self) -> int:
        """Return a time between what is before and behind it."""
        time.sleep(COARSE_S)
        between_ms = self.now_ms()
        time.sleep(COARSE_S)
        return between_ms


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("skew_ms", [-HOUR_MS // 2, HOUR_MS // 2])
def test_moments_are_those_of_the_owner_at_that_time(
    tmp_path: Path, url: str, machine: Machine, skew_ms: int
) -> None:
    """While the clock of the next owner is behind, the time of an archive stands still."""
    moments: list[tuple[int, list[str]]] = []

    def write(store: Store, number: int) -> None:
        add(store, f"{number}")
        moments.append((machine.pause(), [f"{each}" for each in range(number + 1)]))

    former = Store.open(tmp_path / "data", archive=url, archive_interval_s=0.0)
    for number in range(3):
        write(former, number)
    wait_archived(former)
    machine.skew_ms = skew_ms
    with Store.open(tmp_path / "new", archive=url, archive_interval_s=0.0, take_over=True) as new:
        for number in range(3, 6):
            write(new, number)
            archiver_of(new)._snapshot()
    former.close()
    if skew_ms < 0:
        early_ms, last_ms, names = moments[3][0], moments[2][0], moments[-1][1]
        with pytest.raises(InvalidArgument, match="begins with commit"):
            restore.restore(url, tmp_path / "early", at_ms=early_ms)
        moments[2:] = [(last_ms + 1000, names)]  # of the former owner only what is noted counts
    for at_ms, names in moments:
        restore.restore(url, tmp_path / f"at-{at_ms}", at_ms=at_ms)
        assert names_in(tmp_path / f"at-{at_ms}") == names


def test_a_clock_that_was_far_ahead_is_corrected(
    tmp_path: Path, url: str, machine: Machine
) -> None:
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        machine.skew_ms = 1000 * HOUR_MS
        add(store, "1")
        wait_archived(store)
        machine.skew_ms = 0
        add(store, "2")
        archiver_of(store)._snapshot()
        at_ms = machine.pause()
        add(store, "3")
    restore.restore(url, tmp_path / "back", at_ms=at_ms)
    assert names_in(tmp_path / "back") == ["1", "2"]


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
def test_a_restore_by_another_clock_keeps_the_owner_from_deleting(
    tmp_path: Path, url: str, machine: Machine, skew_ms: int
) -> None:
    with Store.open(
        tmp_path / "data", archive=url, archive_interval_s=60, archive_keep_s=0.0
    ) as store:
        machine.skew_ms = skew_ms
        with pin(open_objects(url)):
            machine.skew_ms = 0
            for number in range(3):
                add(store, f"{number}")
                archiver_of(store)._snapshot()
                time.sleep(0.005)
            assert is_pinned(open_objects(url))
            kept = len(list(open_objects(url).list("snapshots/")))
        add(store, "3")
        archiver_of(store)._snapshot()
        left = len(list(open_objects(url).list("snapshots/")))
        assert left < kept
    restore.restore(url, tmp_path / "back")
    assert names_in(tmp_path / "back") == ["0", "1", "2", "3"]


@pytest.mark.parametrize("skew_ms", [-HOUR_MS, HOUR_MS])
def test_an_owner_whose_clock_jumps_keeps_what_its_retention_says(
    tmp_path: Path, url: str, machine: Machine, skew_ms: int
) -> None:
    """Snapshots of the last minutes stay, and the order of commits is that of their numbers."""
    with Store.open(
        tmp_path / "data", archive=url, archive_interval_s=60, archive_keep_s=2 * 3600.0
    ) as store:
        sequences = []
        for number in range(4):
            machine.skew_ms = skew_ms * (number % 2)
            add(store, f"{number}")
            archiver_of(store)._snapshot()
            sequences.append(store.engine.database.sequence)
    for number, sequence in enumerate(sequences):
        restore.restore(url, tmp_path / f"back-{number}", sequence=sequence)
        names = [f"{each}" for each in range(number + 1)]
        assert names_in(tmp_path / f"back-{number}") == names
