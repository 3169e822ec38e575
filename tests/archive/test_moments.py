"""Any moment and any commit of a store under a mixed load can be restored, row by row.

KVSTREAM_CRASH_ROUNDS sets the number of loads.
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
from tests.archive.conftest import Rows, all_rows
from tests.bulkload.test_parts import load
from tests.crash.rounds import rounds

STEPS = 150


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


def copy_of(store: Store) -> tuple[int, int, Rows]:
    """Return the time, the last commit and all rows, as of one moment."""
    with store.engine.hold():
        return time.time_ns() // 1_000_000, store.engine.database.sequence, all_rows(store)


def rows_at(directory: Path) -> Rows:
    """Return the rows of a restored store, which must be sound; no timer of it fires."""
    with Store.open(directory, read_only=True) as store:
        assert store.check() == []
        return all_rows(store)


@pytest.mark.parametrize("seed", range(rounds(1)))
def test_any_moment_and_commit_of_a_mixed_load(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(archiver, "SNAPSHOT_LOG_BYTES", 300_000)
    monkeypatch.setattr(archiver, "SAMPLE_S", 0.005)
    monkeypatch.setattr(logs, "RAW_MAX", 100_000)
    chance = random.Random(seed)
    (tmp_path / "parts").mkdir()
    copies: list[tuple[int, int, Rows]] = []
    moments: list[tuple[int, int, Rows]] = []
    with Store.open(tmp_path / "data", archive=url, archive_interval_s=0.02) as store:
        work = Load(store, tmp_path / "parts", chance)
        for step in range(STEPS):
            work.step()
            if step % 12 == 0:
                copies.append(copy_of(store))
            if step % 30 == 29:  # nothing is written for as long as the clock is coarse
                before = copy_of(store)
                time.sleep(0.15)
                after = copy_of(store)
                if before[1] == after[1]:
                    moments.append((after[0] - 20, *after[1:]))
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
    assert moments
    assert expected_end[1] <= history.head.last  # type: ignore[union-attr]
