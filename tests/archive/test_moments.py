"""Any moment and any commit of a store under a mixed load can be restored, row by row.

KVSTREAM_CRASH_ROUNDS sets the number of moments; each load has some.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstream import Queue, Store
from kvstream.archive import archiver, logs, restore
from kvstream.archive.history import read_history
from kvstream.archive.objects import open_objects
from kvstream.errors import InvalidArgument
from kvstream.operations import strings
from kvstream.storage import database
from tests.archive.conftest import Rows, all_rows, wait_archived
from tests.bulkload.test_parts import load, numbers_in
from tests.crash.rounds import rounds
from tests.patience import PATIENCE_S

STEPS = 150
MOMENTS = 10
"""Moments of one load, and as many commits."""
COARSE_S = 0.15
"""Longer than the clock of an archive is coarse, on a busy machine too."""

Copy = tuple[int, int, Rows]
"""A time in Unix ms, the last commit then, and all rows."""


class Load:
    """Random work of all kinds on one store."""

    def __init__(self, store: Store, place: Path, chance: random.Random) -> None:
        self.store, self._place, self._chance = store, place, chance
        self._loads = 0
        self._kinds: list[Callable[[], object]] = [
            *[self._add] * 6,
            *[self._read_group] * 4,
            *[self._add_many, self._trim, self._delete, self._put_job, self._put_string] * 3,
            *[self._expire, self._large, self._flush, self._rename, self._bulk_load] * 2,
            *[self._schedule] * 2,
            self._repair,
            self._compact,
            self._reopen,
            self._flush_db,
        ]

    def step(self) -> None:
        """Do one piece of work."""
        self._chance.choice(self._kinds)()

    def _name(self) -> str:
        return self._chance.choice(("orders", "mails", "events"))

    def _add(self) -> None:
        self.store.stream(self._name()).add({"n": self._chance.randbytes(30)})

    def _add_many(self) -> None:
        rows = [{"n": self._chance.randbytes(10)} for _ in range(200)]
        self.store.stream(self._name()).add_many(rows)

    def _read_group(self) -> None:
        group = self.store.stream(self._name()).create_group("workers", start="0", exist_ok=True)
        entries = group.consumer(self._chance.choice(("ann", "ben"))).read(count=20)
        if entries:
            group.ack(*[entry.id for entry in entries[::2]])

    def _trim(self) -> None:
        self.store.stream(self._name()).trim(maxlen=self._chance.randint(0, 300))

    def _delete(self) -> None:
        stream = self.store.stream(self._name())
        if entries := list(stream.range(count=20)):
            stream.delete(*[entry.id for entry in entries[::3]])

    def _put_job(self) -> None:
        jobs = Queue(self.store, "jobs")
        delay = self._chance.choice((None, 0.01, 3600))
        jobs.put({"n": "1"}, delay=delay, unique=str(self._chance.randint(0, 9)))
        for message in jobs.get(3, block=None):
            jobs.ack(message)

    def _schedule(self) -> None:
        """Make or delete a schedule; some add a message a second, in the thread of the timers."""
        stream = self.store.stream(self._chance.choice(("jobs", "ticks")))
        name = self._chance.choice(("often", "seldom"))
        if self._chance.random() < 0.3:
            stream.delete_schedule(name)
        else:
            stream.schedule(name, "@every 1s" if name == "often" else "0 3 * * *", {"n": "tick"})

    def _repair(self) -> None:
        """Write a wrong counter, and repair it."""
        stream = self.store.stream("orders")
        last = stream.add({"n": "1"})
        with self.store.engine.hold():
            self.store.engine.catalog.streams[b"\0\0orders"].length += 5
            stream.set_id(last)
            assert any(fault.repaired for fault in self.store.check(repair=True))

    def _put_string(self) -> None:
        name = b"string-%d" % self._chance.randint(0, 5)
        self.store.engine.run(strings.put, name, self._chance.randbytes(100))

    def _expire(self) -> None:
        self.store.expire(self._name(), self._chance.choice((0.01, 1000)))

    def _large(self) -> None:
        self.store.stream(self._name()).add({"v": self._chance.randbytes(400_000)})

    def _flush(self) -> None:
        self.store.engine.flush()

    def _compact(self) -> None:
        self.store.compact()

    def _reopen(self) -> None:
        self.store.engine.reopen(from_log=self._chance.random() < 0.5)

    def _rename(self) -> None:
        if self.store.exists("events"):
            self.store.rename("events", self._name())

    def _flush_db(self) -> None:
        self.store.flush()

    def _bulk_load(self) -> None:
        self._loads += 1
        place = self._place / str(self._loads)
        place.mkdir()
        load(self.store, place, [{b"bulk-%d" % self._loads: (None, [*range(500)])}], [])


def copy_of(store: Store) -> Copy:
    """Return the time, the last commit and all rows, as of one moment."""
    with store.engine.hold():
        return time.time_ns() // 1_000_000, store.engine.database.sequence, all_rows(store)


def quiet_copy(store: Store) -> Copy:
    """Return a copy of a moment around which nothing is written, since the clock is coarse."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        before = copy_of(store)
        time.sleep(COARSE_S)
        at_ms, sequence, rows = copy_of(store)
        if sequence == before[1]:
            return at_ms - 20, sequence, rows
    raise AssertionError("something writes all the time")


def rows_at(directory: Path) -> Rows:
    """Return the rows of a restored store, which must be sound; no timer of it fires."""
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []
        return all_rows(store)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(-(-rounds(MOMENTS) // MOMENTS)))
def test_any_moment_and_commit_of_a_mixed_load(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", 300_000)
    monkeypatch.setattr(archiver, "SAMPLE_S", 0.005)
    monkeypatch.setattr(logs, "RAW_MAX", 100_000)
    chance = random.Random(seed)
    (tmp_path / "parts").mkdir()
    copies: list[Copy] = []
    moments: list[Copy] = []
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.02) as store:
        work = Load(store, tmp_path / "parts", chance)
        steps = chance.sample(range(STEPS), 2 * MOMENTS)
        for step in range(STEPS):
            work.step()
            if step in steps[:MOMENTS]:
                moments.append(quiet_copy(store))
            elif step in steps:
                copies.append(copy_of(store))
        copies.append(copy_of(store))
        expected_end = copies[-1]
    history = read_history(open_objects(url))
    assert len(history.snapshots) > 1
    first = history.snapshots[0]
    for number, (_, sequence, expected) in enumerate(copies):
        if sequence < first.sequence:
            with pytest.raises(InvalidArgument):
                restore.restore(url, tmp_path / f"commit-{number}", sequence=sequence)
            continue
        restore.restore(url, tmp_path / f"commit-{number}", sequence=sequence)
        assert rows_at(tmp_path / f"commit-{number}") == expected
    for number, (at_ms, _, expected) in enumerate(moments):
        restore.restore(url, tmp_path / f"moment-{number}", at_ms=at_ms)
        assert rows_at(tmp_path / f"moment-{number}") == expected
    assert len(moments) == MOMENTS
    assert expected_end[1] <= history.head.last  # type: ignore[union-attr]


def test_any_commit_of_a_bulk_load_and_those_before_its_snapshot(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the load is undone when the store is opened, as after a crash."""
    monkeypatch.setattr(database, "TABLE_BATCH_ROWS", 20)
    (tmp_path / "parts").mkdir()
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=60) as store:
        store.stream("orders").add({"n": "0"})
        before = copy_of(store)
        load(store, tmp_path / "parts", [{b"bulk": (None, [*range(300)])}], [])
        loaded = copy_of(store)
        store.stream("orders").add({"n": "1"})
        later = copy_of(store)
        store.engine.archiving.archiver._snapshot()
        store.stream("orders").add({"n": "2"})
        wait_archived(store)
    within = random.sample(range(before[1] + 1, loaded[1]), max(rounds(5) // 5, 5))
    expected = {sequence: rows for _, sequence, rows in (before, loaded, later)}
    for sequence in (*expected, *within):
        place = tmp_path / f"commit-{sequence}"
        restore.restore(url, place, sequence=sequence)
        if sequence in expected:
            assert rows_at(place) == expected[sequence]
        with Store.open(place) as store:
            assert store.check() == []
            contents = numbers_in(store, "bulk")
        assert contents in ([], [*range(300)])
        if sequence in expected:
            assert bool(contents) is (sequence >= loaded[1])
