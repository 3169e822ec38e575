"""Background work of the engine: expiring keys in a thread, and limiting the memory of streams."""

from collections.abc import Iterator
from itertools import pairwise
from time import monotonic, sleep, thread_time

import pytest

from kvstream import ManualClock, NoGroup, Store, StoreFull
from kvstream.engine import expiry
from kvstream.layout.keys import EXPIRY_TAG, qualified, stream_row
from kvstream.operations import keyspace
from kvstream.storage.batch import Batch, Family
from kvstream.types.thresholds import DEFAULT, Thresholds
from tests.engine.waiting import add
from tests.opening import Stores, change_thresholds
from tests.patience import until

STREAMS_MAX = 10
WORKED_S = 0.02
"""The processor time of a commit."""


@pytest.fixture
def few(store: Store) -> Iterator[dict[bytes, object]]:
    """The streams in memory, limited to ten."""
    change_thresholds(store.engine, streams_cached=STREAMS_MAX)
    yield store.engine.catalog.streams  # type: ignore[misc]
    store.engine.catalog.over_key_limit = False


def key(number: int) -> bytes:
    return b"stream %d" % number


def test_written_streams_are_evicted_when_there_are_many(
    store: Store, few: dict[bytes, object]
) -> None:
    for number in range(40):
        add(store, key(number), "1-0")
        assert len(few) <= STREAMS_MAX
    assert [len(store.stream(key(number))) for number in range(40)] == [1] * 40


def test_streams_that_are_only_read_are_evicted_too(store: Store, few: dict[bytes, object]) -> None:
    with store.transaction():
        for number in range(40):
            add_one(store, number)
    for number in range(40):
        assert store.stream(key(number)).info().length == 1
        assert len(few) <= STREAMS_MAX


def test_no_stream_is_evicted_during_a_transaction(store: Store, few: dict[bytes, object]) -> None:
    with store.transaction():
        for number in range(40):
            add_one(store, number)
            add_one(store, number // 2)
        assert len(few) == 40
    assert len(few) <= STREAMS_MAX
    assert sum(len(store.stream(key(number))) for number in range(40)) == 80
    assert store.check() == []


def test_the_times_of_a_consumer_survive_eviction(
    store: Store, few: dict[bytes, object], clock: ManualClock
) -> None:
    groups = [store.stream(key(n)).create_group("g", start="0") for n in range(30)]
    for number, group in enumerate(groups):
        add(store, key(number), "1-0", "2-0")
        assert len(group.consumer("c").read(count=1)) == 1
        group.create_consumer("idle")
    clock.advance(5000)
    for group in groups:
        assert group.consumer("idle").history() == []
    clock.advance(1000)
    for group in groups:
        known = {consumer.name: consumer for consumer in group.consumers()}
        assert (known[b"c"].pending, known[b"idle"].idle) == (1, 1000)
        assert group.ack("1-0") == 1


def add_one(store: Store, number: int) -> None:
    store.stream(key(number)).add({"f": "v"})


def test_the_expiry_thread_continues_after_a_full_disk(
    open_store: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(thresholds=Thresholds(cycle_pause_s=0.001, failed_pause_s=3600.0))
    refused: list[Batch] = []
    looks: list[None] = []

    def full(batch: Batch, frees: bool = False) -> int:
        refused.append(batch)
        raise StoreFull("no space")

    add(store, b"s", "1-0")
    store.expire("s", 1)
    monkeypatch.setattr(store.engine.expiry._upkeep, "before_cycle", lambda: looks.append(None))
    with monkeypatch.context() as patch:
        patch.setattr(store.engine.database, "write", full)
        clock.advance(1000)
        until(lambda: len(refused) > 0, "the disk to be full")
        seen = len(looks)
        until(lambda: len(looks) > seen + 5, "some rounds more")
    assert len(refused) == 1  # each attempt would make the store reload its streams
    store.engine.expiry._rests_until = 0.0
    until(lambda: store.size() == 0, "the key to be deleted")


def test_the_expiry_thread_continues_after_a_damaged_record(
    open_store: Stores, clock: ManualClock
) -> None:
    store = open_store("own")
    add(store, b"s", "1-0")
    store.expire("s", 1)
    row = stream_row(qualified(0, b"s"))
    record = store.engine.database.get(Family.METADATA, row)
    assert record is not None
    overwrite(store, row, record[:20])
    clock.advance(1000)
    engine = store.engine
    engine.expiry.join(0.25)
    assert engine.expiry.is_alive()
    overwrite(store, row, record)
    until(lambda: store.size() == 0, "the key to be deleted")


def test_damaged_keys_do_not_stop_others_from_expiring(
    open_store: Stores, clock: ManualClock
) -> None:
    store = open_store("own")
    names = ["bad 1", "good 1", "bad 2", *(f"good {number}" for number in range(2, 150))]
    records = {}
    for at, name in enumerate(names):
        add(store, name.encode(), "1-0")
        store.expire(name, 1 + at / 1000)
        if name.startswith("bad"):
            row = stream_row(qualified(0, name.encode()))
            records[row] = store.engine.database.get(Family.METADATA, row)
    for row, record in records.items():
        assert record is not None
        overwrite(store, row, record[:20])
    clock.advance(2000)
    until(lambda: store.size() == 2, "all but the damaged keys to be deleted")
    for row, record in records.items():
        assert record is not None
        overwrite(store, row, record)
    until(lambda: store.size() == 0, "the mended keys to be deleted")


def test_each_scan_for_expired_keys_starts_after_those_already_deleted(
    open_store: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("own", Thresholds(hurried_keys=DEFAULT.expire_keys))
    begun: list[bytes] = []
    page = Batch.page

    def noted(batch: Batch, family: int, lower: bytes, *more: object) -> object:
        if lower[:1] == EXPIRY_TAG:
            begun.append(lower)
        return page(batch, family, lower, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "page", noted)
    for number in range(3 * DEFAULT.expire_keys):
        add(store, key(number), "1-0")
        store.expire(key(number), 1 + number / 1000)
    clock.advance(5000)
    until(lambda: store.size() == 0, "all keys to be deleted")
    assert begun == sorted(begun)
    assert len({*begun}) >= 3

    for name, seconds in ((b"late", 20), (b"early", 10)):
        add(store, name, "1-0")
        store.expire(name, seconds)
    clock.advance(15_000)
    until(lambda: store.size() == 1, "the key that expires first to be deleted")
    clock.advance(15_000)
    until(lambda: store.size() == 0, "the other key to be deleted")


def test_the_expiry_thread_deletes_more_keys_at_once_if_it_is_late() -> None:
    steps: list[tuple[float, int]] = []

    def commit(step: object, keys: int) -> int:
        if step is keyspace.sweep or len(steps) == 60:
            return 0
        steps.append((monotonic(), keys))
        sleep(0.005)
        return keys

    thread = expiry.Expiry(commit, sizes=Thresholds(hurry_s=0.1))
    thread.start()
    until(lambda: len(steps) == 60, "sixty steps")
    thread.stop()
    hurried_at = steps[0][0] + 0.1
    assert {keys for at, keys in steps if at < hurried_at - 0.05} == {100}
    assert {keys for at, keys in steps if at > hurried_at + 0.1} == {400}


def test_a_sweep_uses_a_quarter_of_a_core() -> None:
    begun: list[float] = []

    def commit(step: object, keys: int) -> int:
        if step is not keyspace.sweep or len(begun) == 3:
            return 0
        begun.append(monotonic())
        until_s = thread_time() + WORKED_S
        while thread_time() < until_s:
            pass
        return keys

    thread = expiry.Expiry(commit)
    thread.start()
    until(lambda: len(begun) == 3, "three commits")
    thread.stop()
    assert min(later - earlier for earlier, later in pairwise(begun)) >= 4 * WORKED_S


def overwrite(store: Store, row: bytes, value: bytes) -> None:
    """Write a row without the store's knowledge."""
    batch = Batch(store.engine.database)
    batch.put(Family.METADATA, row, value)
    store.engine.database.write(batch)
    store.engine.catalog.forget()


def test_a_refused_wait_raises_at_every_durability(open_store: Stores) -> None:
    for durability in ("always", "everysec", "no"):
        store = open_store(durability, durability=durability)
        with pytest.raises(NoGroup):
            store.stream("s").group("g").consumer("c").read(block=0)
        with pytest.raises(NoGroup):
            store.stream("s").group("g").consumer("c").read(block=0, claim_min_idle=5)
