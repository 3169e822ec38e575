"""A store that is closed and opened again while in use: DEBUG RELOAD, for the library."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvstream import Store
from kvstream.errors import InvalidArgument, StoreClosed
from kvstream.types.options import Durability
from tests.engine.waiting import Call, waiting
from tests.opening import LEVELS
from tests.patience import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of its own for each test."""
    with Store.open(tmp_path / "store", durability="no") as opened:
        yield opened


FROM_LOG = pytest.mark.parametrize("from_log", [False, True], ids=["tables", "log"])


@FROM_LOG
def test_groups_and_pending_entries_are_read_back_from_disk(store: Store, from_log: bool) -> None:
    orders = store.stream("s")
    orders.add_many([{"n": number} for number in range(300)])
    worker = orders.create_group("g", start="0").consumer("w")
    given = worker.read(count=200)
    orders.group("g").ack(*[entry.id for entry in given[:50]])
    before = orders.info(), orders.group("g").pending(), [entry.id for entry in orders.range()]
    store.engine.reopen(from_log)
    after = orders.info(), orders.group("g").pending(), [entry.id for entry in orders.range()]
    assert after == before
    assert not store.engine.catalog.seen
    assert len(worker.read(count=200)) == 100
    assert store.check() == []


@FROM_LOG
def test_a_blocked_client_keeps_waiting_and_is_served(store: Store, from_log: bool) -> None:
    worker = store.stream("s").create_group("g").consumer("w")
    reader = Call(lambda: store.stream("s").read(after="$", block=10))
    member = Call(lambda: worker.read(block=10))
    until(lambda: waiting(store) == 2, "both to wait")
    store.engine.reopen(from_log)
    assert waiting(store) == 2
    added = store.stream("s").add({"f": "v"})
    assert [entry.id for entry in reader.result()] == [added]
    assert [entry.id for entry in member.result()] == [added]


@pytest.mark.parametrize("level", LEVELS)
def test_writers_lose_nothing_when_the_store_is_reopened(store: Store, level: Durability) -> None:
    store.engine.set_durability(level)
    ended = threading.Event()
    writers = [Call(partial(_add, store, number, ended)) for number in range(3)]
    for turn in range(4):
        store.engine.reopen(from_log=turn % 2 == 1)
    ended.set()
    counts = [writer.result() for writer in writers]
    assert [len(store.stream(f"s{number}")) for number in range(3)] == counts
    assert store.check() == []


def _add(store: Store, number: int, ended: threading.Event) -> int:
    """Add entries until the test ends; return how many were acknowledged."""
    count = 0
    while not ended.is_set():
        store.stream(f"s{number}").add({"n": count})
        count += 1
    return count


def test_the_expiry_continues(store: Store) -> None:
    store.stream("s").add({"f": "v"})
    store.engine.reopen()
    store.expire("s", 0.001)
    until(lambda: store.size() == 0, "the key to be deleted")


def test_reopening_is_refused_in_a_transaction(store: Store) -> None:
    with store.transaction():
        store.stream("s").add({"f": "v"})
        with pytest.raises(InvalidArgument):
            store.engine.reopen()
    assert len(store.stream("s")) == 1


def test_a_closed_store_stays_closed(store: Store) -> None:
    store.close()
    with pytest.raises(StoreClosed):
        store.engine.reopen()


def test_another_durability_applies_from_the_next_write(store: Store) -> None:
    engine = store.engine
    for level in (Durability.ALWAYS, Durability.NO, Durability.ALWAYS, Durability.EVERYSEC):
        engine.set_durability(level)
        assert engine.durability is level
        store.stream("s").add({"f": "v"})
        durable = engine.committer.durable_sequence >= engine.seen_sequence
        assert durable or level is not Durability.ALWAYS
