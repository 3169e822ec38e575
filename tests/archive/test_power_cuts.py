"""Power cuts of an owner: what was durable here or in the archive is there, and both agree.

The archive is on the same disk, which loses what was not synced of it too, or elsewhere.
KVSTREAM_CRASH_ROUNDS sets the number of cuts.
"""

import random
import shutil
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.archive import restore
from kvstream.archive.objects import open_objects
from kvstream.archive.verify import verify
from kvstream.storage.durability import FLUSH_INTERVAL_S
from tests.archive.conftest import all_rows, rows_in
from tests.archive.owner import INTERVAL_S, SLACK_S, Owner, refuse_gaps, written_in
from tests.crash.rounds import rounds
from tests.faultshim.disk import FaultyDisk
from tests.faultshim.fixtures import fault_library, faulty_disk
from tests.folders import on_disk

__all__ = ["fault_library", "faulty_disk", "on_disk"]

CHANGES = 500
"""Changes of the disk within which an owner dies in place of one: most are after its opening."""

Written = set[tuple[int, int]]


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """A folder for each test, on a disk."""
    return on_disk


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("level", "place"),
    [
        ("archive", "same disk"),
        ("archive", "other disk"),
        ("always", "same disk"),
        ("everysec", "other disk"),
    ],
)
def test_a_power_cut_loses_only_what_was_durable_nowhere(
    faulty_disk: FaultyDisk, tmp_path: Path, url: str, level: str, place: str
) -> None:
    """The owner dies after a while, or in place of any change of the disk."""
    chance = random.Random(f"{level} {place}")
    data = faulty_disk.root / "data"
    url = f"file://{faulty_disk.root}/bucket" if place == "same disk" else url
    acked: dict[tuple[int, int], tuple[float, float]] = {}
    """What was acknowledged, how long before its owner died, and how far that one was behind."""
    lost_bytes = 0
    for seed in range(rounds(2)):
        die_at = chance.randint(1, CHANGES) if seed % 2 else 0
        owner = Owner(data, url, level, seed, faulty_disk.environment(die_at=die_at))
        owner.write_for(chance.uniform(0.05, 1.5), may_be_dead=bool(die_at))
        died_at = owner.kill()
        acked |= {
            (number, owner.process.pid): (died_at - at, owner.lag_s)
            for number, at in owner.acked.items()
        }
        lost_bytes += faulty_disk.cut_power()
        kept = written_at(data, tmp_path / "copy")
        lost = acked.keys() - kept
        if level == "everysec":
            assert all(acked[each][0] < FLUSH_INTERVAL_S + SLACK_S for each in lost)
        else:
            assert not lost
        archived = written_in_archive(url, tmp_path / "back")
        assert archived <= kept
        late = acked.keys() - archived
        if level == "archive":
            assert not late
        for before_s, lag_s in (acked[each] for each in late):
            assert before_s < lag_s + INTERVAL_S + SLACK_S
        acked = {each: times for each, times in acked.items() if each in kept}
        faulty_disk.forget()
    assert lost_bytes
    with Store.open(data, archive=url) as store:
        assert store.check() == []
        expected = all_rows(store)
    restore.restore(url, tmp_path / "back")
    assert rows_in(tmp_path / "back") == expected
    assert verify(open_objects(url)).faults == []


def written_at(data: Path, copy: Path) -> Written:
    """Return what a store has that was left by a power cut, by a copy: it stays as it is."""
    if not data.exists():
        return set()
    shutil.copytree(data, copy, symlinks=True)  # those of an opening lead nowhere
    found = _written(copy)
    shutil.rmtree(copy)
    return found


def written_in_archive(url: str, back: Path) -> Written:
    """Return what can be restored; nothing before the first snapshot."""
    if not list(open_objects(url).list("snapshots/")):
        return set()
    restore.restore(url, back)
    found = _written(back)
    shutil.rmtree(back)
    return found


def _written(directory: Path) -> Written:
    with Store.open(directory) as store:
        assert store.check() == []
        found = written_in(store)
    refuse_gaps(found)
    return set(found)
