"""Tombstones and slow compaction as a program sees them: through streams, groups and a loop.

The short forms run a part of the load; ``KVSTREAM_LOAD=1000000`` runs all of it.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from kvstream import Store, StreamID
from kvstream.storage import options
from kvstream.storage.batch import Batch, Family
from kvstream.storage.database import Database
from kvstream.storage.options import Settings, database_settings
from kvstream.types.options import MEGABYTE, StoreOptions
from kvstream.types.thresholds import Thresholds
from tests.opening import open_with
from tests.patience import retried, until

LOAD = int(os.environ.get("KVSTREAM_LOAD") or 40_000)
"""Entries that are trimmed, or acknowledged."""
STEP = 100
LOOK_EVERY = max(1, LOAD // STEP // 200)
"""Steps between two checks of the store."""
DELAY_P99_S, WORST_S = 0.001, 0.05
LOOP_GAP_S, STALLED_LOOP_GAP_S = 0.02, 0.05
COMPACTION_BYTES_S = 4 * MEGABYTE


def spent(call: Callable[[], object]) -> float:
    """Return the seconds of processor time of a call."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


@contextmanager
def loop(gaps: list[float]) -> Iterator[None]:
    """Run a thread that ticks like an event loop, and record the delay of each tick."""
    done = threading.Event()

    def tick() -> None:
        before = time.monotonic()
        while not done.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            gaps.append(now - before - 0.001)
            before = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


def worst_but_few(times: list[float]) -> float:
    """Return the delay that one tick in five hundred exceeds: other processes cause these."""
    return statistics.quantiles(times, n=500)[-1]


def busy_gap() -> float:
    """Return the delay of a tick beside a thread that only computes: turns are of 5 ms."""
    gaps: list[float] = []
    with loop(gaps):
        until = time.monotonic() + 1
        while time.monotonic() < until:
            sum(range(100))
    return worst_but_few(gaps)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """Directories, a new one for each attempt."""
    return (tmp_path / f"store{number}" for number in count())


def test_the_head_of_a_constantly_trimmed_queue_is_read_at_once(
    places: Iterator[Path],
) -> None:
    retried(lambda: trim_all_the_time(next(places)))


def trim_all_the_time(place: Path) -> None:
    delays: list[float] = []
    works: list[float] = []
    gaps: list[float] = []
    with Store.open(place, durability="no", free_space_reserve=0) as store, loop(gaps):
        queue = store.stream("queue")
        for number in range(LOAD // STEP):
            entries: list[dict[str, int | str]] = [{"n": number, "padding": "x" * 80}] * STEP
            works.append(spent(lambda: queue.add_many(entries, maxlen=1000)))  # noqa: B023
            if number % LOOK_EVERY == 0:
                delays.append(spent(lambda: queue.read(after="0", count=10)))
        assert len(queue) == 1000
    assert p99(delays) < DELAY_P99_S
    assert worst_but_few(works) < LOOP_GAP_S
    assert p99(gaps) < busy_gap() + LOOP_GAP_S
    with Store.open(place, free_space_reserve=0) as store:
        assert spent(lambda: store.stream("queue").read(after="0", count=10)) < WORST_S
        assert store.check() == []


def test_entries_and_keys_deleted_one_by_one_delay_no_reader(
    tmp_path: Path,
) -> None:
    """A memtable kept their rows for hours: reading the last of ten entries took 160 ms."""
    looks: dict[str, Callable[[], object]]
    sizes = Thresholds(reclaim_pause_s=0.1)
    with open_with(tmp_path / "store", sizes, durability="no") as store:
        queue = store.stream("queue")
        ids = queue.add_many([{"n": number} for number in range(LOAD)])
        for at in range(10, LOAD, STEP):
            queue.delete(ids[at : at + STEP])
        for number in range(LOAD):
            store.stream(f"short-lived {number}").add({"n": number})
            store.delete(f"short-lived {number}")
        looks = {
            "the last entry": lambda: queue.revrange(count=1),
            "an entry behind the deleted ones": lambda: queue.read(after=ids[9]),
            "the keys": store.keys,
        }
        for title, look in looks.items():
            until(lambda: spent(look) < WORST_S / 20, title)  # noqa: B023
        assert len(queue.range()) == 10
        assert store.keys() == [b"queue"]


def test_stuck_entries_are_found_at_once_among_acknowledged_ones(places: Iterator[Path]) -> None:
    retried(lambda: acknowledge_all_but_some(next(places)))


def acknowledge_all_but_some(place: Path) -> None:
    delays: list[float] = []
    works: list[float] = []
    gaps: list[float] = []
    with Store.open(place, durability="no", free_space_reserve=0) as store, loop(gaps):
        queue = store.stream("queue")
        group = queue.create_group("workers", start="0")
        worker, stuck = group.consumer("worker"), group.consumer("stuck")
        looks = (
            group.pending,
            lambda: group.pending_range(count=10),
            lambda: group.autoclaim("another", min_idle=3600),
            lambda: stuck.history(count=10),
        )

        def work() -> None:
            for entry in worker.read(count=1):
                group.ack(entry.id)

        for number in range(LOAD // STEP):
            queue.add_many([{"n": number}] * STEP)
            if number % (LOAD // STEP // 10) == 0:
                stuck.read(count=1)
            for _ in range(STEP):
                works.append(spent(work))
            if number % LOOK_EVERY == 0:
                delays += map(spent, looks)
        assert group.pending().count == 10
    assert max(delays) < WORST_S
    assert worst_but_few(works) < LOOP_GAP_S
    assert p99(gaps) < busy_gap() + LOOP_GAP_S
    with Store.open(place, free_space_reserve=0) as store:
        group = store.stream("queue").group("workers")
        assert spent(lambda: group.autoclaim("another", min_idle=3600)) < WORST_S
        assert group.pending().count == 10
        assert store.check() == []


def test_a_slow_compaction_slows_writers_without_refusals_or_losses(
    places: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are written and compacted at 4 MB/s, and entries are added faster."""

    def throttled(*arguments: object, **named: object) -> Settings:
        settings = database_settings(*arguments, **named)  # type: ignore[arg-type]
        return settings | {"set_ratelimiter": (COMPACTION_BYTES_S, 100_000, 10)}

    def once() -> None:
        place = next(places)
        with monkeypatch.context() as patch:
            patch.setattr(options, "database_settings", throttled)
            store = Store.open(
                place,
                durability="no",
                free_space_reserve=0,
                stall_seconds_max=2.0,
                write_buffer_bytes=MEGABYTE,
                tree_write_buffer_bytes=MEGABYTE,
            )
        with store:
            added = add_more_than_is_compacted(store)
        with Store.open(place, free_space_reserve=0) as store:
            assert [entry.id for entry in store.stream("fast").scan()] == added
            assert store.check() == []

    retried(once)


def add_more_than_is_compacted(store: Store) -> list[StreamID]:
    """Add entries for longer than a refusal takes, more than once; return their number."""
    stream, database = store.stream("fast"), store.engine.database
    gaps: list[float] = []
    added, pauses = [], 0
    value = os.urandom(50_000).hex()
    rest = database.rest

    def count_and_rest() -> None:
        nonlocal pauses
        pauses += 1
        rest()

    database.rest = count_and_rest  # type: ignore[method-assign]
    with loop(gaps):
        until = time.monotonic() + 3 * store.engine.options.stall_seconds_max
        while time.monotonic() < until:
            added.append(stream.add({"value": value}))
            if len(added) % 50 == 0:
                assert len(stream.range(count=1)) == 1
    assert pauses > 0
    assert worst_but_few(gaps) < busy_gap() + STALLED_LOOP_GAP_S
    assert database.failure is None
    return added


@pytest.mark.parametrize("limit", [10, 100])
def test_the_end_of_a_range_is_found_without_reading_deleted_rows(
    directory: Path, limit: int
) -> None:
    """RocksDB skips each row of its write buffer that is covered by a range delete around both."""
    database = Database.open(directory, StoreOptions())

    def write(name: bytes, rows: int, deletes: bool = False) -> None:
        batch = Batch(database)
        if deletes:
            batch.delete_range(Family.MESSAGES, b"a", b"c")
        for number in range(rows):
            batch.put(Family.MESSAGES, b"%b%05d" % (name, number), b"value")
        database.write(batch)

    def read() -> None:
        assert len(database.page(Family.MESSAGES, b"a", b"a00009\0", limit)) == 10

    write(b"a", 10)
    before = min(spent(read) for _ in range(20))
    write(b"b", 20_000)
    write(b"a", 10, deletes=True)
    assert min(spent(read) for _ in range(20)) < 10 * before
    database.close()
