"""When a write is durable, and which callbacks and waiters are notified."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvstream.errors import StoreClosed
from kvstream.storage import durability
from kvstream.storage.database import Database
from kvstream.storage.durability import Committer
from kvstream.storage.watermark import Watermark
from kvstream.types.options import Durability
from tests.patience import PATIENCE_S, tries, until
from tests.storage.stores import SMALL, put_one_by_one

ALWAYS, EVERYSEC, NO = Durability.ALWAYS, Durability.EVERYSEC, Durability.NO


@pytest.fixture
def committer(database: Database) -> Iterator[Callable[[Durability], Committer]]:
    """Create committers of a given level; close them before their database."""
    made: list[Committer] = []

    def make(level: Durability) -> Committer:
        made.append(Committer(database, level))
        return made[-1]

    yield make
    for one in made:
        one.close()


def watermark(database: Database) -> int:
    mark = Watermark.read(database.directory)
    assert mark is not None
    return mark.sequence


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "kvstream-committer"}


def test_always_waits_for_an_fsync_that_covers_the_write(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    always = committer(ALWAYS)
    for number in range(5):
        sequence = put_one_by_one(database, range(number, number + 1))
        always.wait(sequence)
        assert always.durable_sequence >= sequence
        assert watermark(database) >= sequence


@pytest.mark.parametrize("level", [EVERYSEC, NO])
def test_the_other_levels_do_not_wait(
    database: Database, committer: Callable[[Durability], Committer], level: Durability
) -> None:
    one = committer(level)
    called = threading.Event()
    sequence = put_one_by_one(database, range(5))
    one.wait(sequence)
    one.after(sequence, called.set)
    assert called.is_set()
    assert one.durable_sequence < sequence


def test_everysec_makes_writes_durable_within_a_second_and_an_fsync(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    everysec = committer(EVERYSEC)
    for each in tries():
        sequence = put_one_by_one(database, range(5))
        began = time.monotonic()
        with each:
            while everysec.durable_sequence < sequence:
                assert time.monotonic() - began < PATIENCE_S
                time.sleep(0.01)
            assert time.monotonic() - began < durability.FLUSH_INTERVAL_S + 1
        assert watermark(database) == sequence


def test_everysec_does_nothing_while_nothing_is_written(
    database: Database,
) -> None:
    everysec = Committer(database, EVERYSEC, flush_interval_s=0.01)
    sequence = put_one_by_one(database, range(5))
    everysec.sync()
    before = (database.directory / "WATERMARK").stat().st_mtime_ns
    time.sleep(0.2)
    assert (database.directory / "WATERMARK").stat().st_mtime_ns == before
    assert everysec.durable_sequence == sequence
    everysec.close()


@pytest.mark.parametrize("level", list(Durability))
def test_sync_makes_all_writes_durable_at_every_level(
    database: Database, committer: Callable[[Durability], Committer], level: Durability
) -> None:
    one = committer(level)
    sequence = put_one_by_one(database, range(5))
    assert one.sync() == sequence == watermark(database)
    assert one.sync() == sequence


def test_a_callback_runs_once_its_write_is_durable(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    always = committer(ALWAYS)
    called = threading.Event()
    seen: list[tuple[int, int]] = []

    def durable(sequence: int) -> None:
        seen.append((sequence, watermark(database)))
        if len(seen) == 20:
            called.set()

    for number in range(20):
        sequence = put_one_by_one(database, range(number, number + 1))
        always.after(sequence, lambda sequence=sequence: durable(sequence))  # type: ignore[misc]
    assert called.wait(PATIENCE_S)
    assert sorted(sequence for sequence, _ in seen) == list(range(1, 21))
    assert all(sequence <= mark for sequence, mark in seen)


def test_a_callback_for_a_durable_write_runs_at_once(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    always = committer(ALWAYS)
    sequence = put_one_by_one(database, range(1))
    always.wait(sequence)
    caller: list[threading.Thread] = []
    always.after(sequence, lambda: caller.append(threading.current_thread()))
    assert caller == [threading.current_thread()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_raises_does_not_stop_the_next_one(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    always = committer(ALWAYS)
    called = threading.Event()

    def raise_() -> None:
        raise ValueError("a mistake in a callback")

    always.after(put_one_by_one(database, range(1)), raise_)
    always.after(put_one_by_one(database, range(1, 2)), called.set)
    assert called.wait(PATIENCE_S)


def test_threads_that_wait_share_fsyncs(
    directory: Path,
) -> None:
    class SlowDisk(Database):
        def flush_wal(self) -> int:
            sequence = super().flush_wal()
            flushes.append(sequence)
            time.sleep(0.005)
            return sequence

    flushes: list[int] = []
    database = SlowDisk.open(directory, SMALL)
    always = Committer(database, ALWAYS)
    lock = threading.Lock()
    early: list[int] = []

    together = threading.Barrier(16)

    def write(number: int) -> None:
        together.wait()
        for turn in range(10):
            with lock:
                sequence = put_one_by_one(database, range(number + turn, number + turn + 1))
            always.wait(sequence)
            if watermark(database) < sequence:
                early.append(sequence)

    writers = [threading.Thread(target=write, args=(1000 * number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert early == []
    assert len(flushes) < 160 / 2
    assert flushes == sorted(flushes)
    always.close()
    database.close()


@pytest.mark.parametrize("level", list(Durability))
def test_closing_makes_all_writes_durable_and_leaves_no_thread(
    directory: Path, level: Durability
) -> None:
    before = threads()  # includes threads of stores of other tests
    database = Database.open(directory, SMALL)
    one = Committer(database, level)
    called = threading.Event()
    sequence = put_one_by_one(database, range(5))
    one.after(sequence, called.set)
    one.close()
    one.close()
    assert called.is_set()
    assert one.durable_sequence == sequence == watermark(database)
    assert threads() <= before
    database.close()
    Database.open(directory, SMALL).close()


def test_a_closed_committer_raises(database: Database) -> None:
    always = Committer(database, ALWAYS)
    always.close()
    sequence = put_one_by_one(database, range(1))
    with pytest.raises(StoreClosed):
        always.after(sequence, lambda: None)


def test_a_reader_has_no_thread_and_nothing_to_make_durable(directory: Path) -> None:
    Database.open(directory, SMALL).close()
    reader = Database.open(directory, replace(SMALL, read_only=True))
    before = threads()
    one = Committer(reader, ALWAYS)
    assert threads() <= before
    one.wait(reader.sequence)
    one.sync()
    one.close()
    reader.close()


def test_a_change_to_always_syncs_every_later_write(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    changed = committer(NO)
    put_one_by_one(database, range(5))
    changed.change(ALWAYS)
    assert changed.level is ALWAYS
    for number in range(5, 10):
        sequence = put_one_by_one(database, range(number, number + 1))
        changed.wait(sequence)
        assert watermark(database) >= sequence


def test_a_change_from_always_still_serves_waiting_threads(
    directory: Path,
) -> None:
    class HeldDisk(Database):
        def flush_wal(self) -> int:
            assert release.wait(PATIENCE_S)
            return super().flush_wal()

    release, notified = threading.Event(), threading.Event()
    database = HeldDisk.open(directory, SMALL)
    changed = Committer(database, ALWAYS)
    changed.after(put_one_by_one(database, range(1)), notified.set)
    changed.change(EVERYSEC)
    assert not notified.is_set()
    release.set()
    assert notified.wait(PATIENCE_S)
    changed.after(put_one_by_one(database, range(1, 2)), notified.clear)
    assert not notified.is_set()
    changed.close()
    database.close()


def test_each_level_has_its_own_thread_and_no_other(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    before = threads()
    changed = committer(ALWAYS)
    for level in (EVERYSEC, NO, ALWAYS, ALWAYS, EVERYSEC, NO):
        changed.change(level)
    until(lambda: threads() <= before, "the threads to end")


def test_no_thread_flushes_while_the_log_is_held(
    database: Database, committer: Callable[[Durability], Committer]
) -> None:
    always = committer(ALWAYS)
    sequence = put_one_by_one(database, range(1))
    waiting = threading.Thread(target=always.wait, args=(sequence,))
    with always.hold():
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        with always_held_twice(always) as second:
            assert not second.is_set()
    waiting.join(PATIENCE_S)
    assert always.durable_sequence >= sequence


@contextmanager
def always_held_twice(always: Committer) -> Iterator[threading.Event]:
    """Wait for a lock that is already held; yield an event that is set once it is acquired."""
    held = threading.Event()

    def hold() -> None:
        with always.hold():
            held.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    yield held
    thread.join(0.05)
