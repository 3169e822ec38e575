"""The library's types: wrong calls are errors to mypy, and fail when they run.

mypy is strict: if it no longer finds an error, the unused ``type: ignore`` is one.
"""

from collections.abc import Callable
from typing import Any, assert_type

import pytest

from kvstream import (
    BareEntry,
    Claimed,
    ClaimedIDs,
    Consumer,
    DeletedEntry,
    Entry,
    InvalidArgument,
    NackMode,
    Store,
    Stream,
)
from tests.opening import LEVELS

Fields = dict[bytes, bytes]


@pytest.fixture
def orders(store: Store) -> Stream:
    """A stream of three entries."""
    stream = store.stream("orders")
    stream.add_many([{"sku": "a1", "qty": 2}, {"sku": "b7"}, {b"sku": b"c3", "share": 0.5}])
    return stream


@pytest.fixture
def worker(orders: Stream) -> Consumer:
    """A consumer with three pending entries, of which the first was deleted."""
    worker = orders.create_group("billing", "0").consumer("w")
    worker.read()
    orders.delete(orders.range(count=1))
    return worker


def test_entries_of_reads_have_fields(store: Store, orders: Stream) -> None:
    worker = orders.create_group("billing", "0").consumer("w")
    for entry in worker.listen():
        assert_type(entry, Entry)
        assert entry.fields[b"sku"] == b"a1"
        break
    assert_type([entry.fields for entry in worker.read()], list[Fields])
    assert_type([entry.fields for entry in worker.claim("1-0")], list[Fields])
    assert_type(worker.autoclaim(), Claimed)
    assert_type([entry.fields for entry in worker.autoclaim().entries], list[Fields])
    reads = [orders.range(), orders.revrange(), orders.read("0"), list(orders), list(orders.scan())]
    assert_type(reads, list[list[Entry]])
    assert [len(entries) for entries in reads] == [3] * 5
    assert_type(store.read({"orders": "0"}), dict[bytes, list[Entry]])


def test_a_deleted_entry_is_recognised_by_its_type(worker: Consumer) -> None:
    seen = worker.history()
    assert_type(seen, list[Entry | DeletedEntry])
    assert [type(entry) for entry in seen] == [DeletedEntry, Entry, Entry]
    there = [entry.fields[b"sku"] for entry in seen if isinstance(entry, Entry)]
    assert there == [b"b7", b"c3"]
    gone = [entry.id for entry in seen if isinstance(entry, DeletedEntry)]
    assert worker.ack(gone) == 1


def test_a_deleted_entry_is_recognised_by_its_fields(worker: Consumer, store: Store) -> None:
    found = store.read_group("billing", "w", {"orders": "0"})[b"orders"]
    for entry in found:
        if entry.fields is None:
            assert_type(entry, DeletedEntry)
            assert (entry.flat, entry.pairs, entry) == ((), (), (entry.id, None, None, None))
        else:
            assert_type(entry, Entry)
            assert_type(entry.fields, Fields)
    with pytest.raises(TypeError):
        found[0].fields[b"sku"]  # type: ignore[index]


def test_a_claim_of_ids_has_no_fields(worker: Consumer, orders: Stream) -> None:
    group = orders.group("billing")
    assert_type(worker.claim("1-0", justid=True), list[BareEntry])
    assert_type(worker.autoclaim(justid=True), ClaimedIDs)
    assert_type(group.claim("w", "1-0", justid=True), list[BareEntry])
    claimed = group.autoclaim("w", justid=True)
    assert_type(claimed, ClaimedIDs)
    assert [entry.fields for entry in claimed.entries] == [None, None]
    assert worker.ack(claimed.entries) == 2


def test_values_have_the_types_that_can_be_stored(orders: Stream) -> None:
    number: int = 3
    ratio: float = 0.5
    counts: dict[str, int] = {"n": 1}
    mixed: dict[str, int | str] = {"n": 1, "s": "x"}
    anything: dict[str, Any] = {"n": 1}
    orders.add({"a": number, "b": ratio, "c": bytearray(b"x"), "d": memoryview(b"y"), b"e": "z"})
    orders.add_many([counts, mixed, anything])
    orders.add([("a", number), ("a", "x")])
    orders.add(counts.items())
    orders.add(zip("ab", (1, 2), strict=True))
    orders.add((name, 1) for name in ("a", "b"))
    assert len(orders) == 11


def test_type_checkers_find_values_that_cannot_be_stored(orders: Stream) -> None:
    flags: dict[str, bool] = {"a": True}
    calls: list[Callable[[], object]] = [
        lambda: orders.add({"a": None}),  # type: ignore[dict-item]
        lambda: orders.add({"a": True}),  # type: ignore[dict-item]
        lambda: orders.add({"a": [1]}),  # type: ignore[dict-item]
        lambda: orders.add({"a": {"b": 1}}),  # type: ignore[dict-item]
        lambda: orders.add(flags),  # type: ignore[arg-type]
        lambda: orders.add([("a", None)]),  # type: ignore[list-item]
        lambda: orders.add([("a", True)]),  # type: ignore[list-item]
        lambda: orders.add("ab"),  # type: ignore[arg-type]
        lambda: orders.add_many([{"a": None}]),  # type: ignore[dict-item]
        lambda: orders.add({"a": 1}, idmp=("p", None)),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert len(orders) == 3


def test_an_argument_with_fixed_words_accepts_no_other(
    worker: Consumer, orders: Stream, tmp_path: Any
) -> None:
    group = orders.group("billing")
    calls: list[Callable[[], object]] = [
        lambda: Store.open(tmp_path / "s", durability="sync"),  # type: ignore[call-overload]
        lambda: worker.nack("1-0", mode="RETRY"),  # type: ignore[arg-type]
        lambda: group.nack("1-0", mode="fail"),  # type: ignore[arg-type]
        lambda: group.ack_delete("1-0", ref_policy="KEEP"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert worker.nack("1-0", mode="FAIL") == worker.nack("1-0", mode=NackMode.FATAL) == 0
    for durability in LEVELS:
        Store.open(tmp_path / "s", durability=durability).close()
    Store.open(tmp_path / "s", durability="always").close()
