"""Keys: databases, deletion, renaming, expiry and scans, all without a cost per entry."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvstream import InvalidArgument, ManualClock, NoSuchKey, Store, StreamID
from kvstream.layout.keys import qualified
from kvstream.operations import info, keyspace, strings
from kvstream.storage.batch import Batch, Family
from tests.engine.sharing import START_MS
from tests.engine.waiting import Call, add, ms_of
from tests.opening import Stores
from tests.patience import until

MANY = 3000


def fill(store: Store, *keys: str) -> None:
    for key in keys:
        store.stream(key).add({"f": "v"}, id="1-0")


# --- keys ---------------------------------------------------------------------------------------


def test_a_key_exists_from_its_first_entry_to_its_deletion(store: Store) -> None:
    assert (store.exists("s"), "s" in store, store.type("s")) == (False, False, "none")
    fill(store, "s")
    assert (store.exists("s"), b"s" in store, store.type("s")) == (True, True, "stream")
    store.stream("s").trim(maxlen=0)
    assert store.exists("s")
    assert store.delete("s", "s", "missing") == 1
    assert (store.exists("s"), store.size()) == (False, 0)


def test_keys_are_listed_in_the_order_of_their_creation(store: Store) -> None:
    fill(store, "b", "a", "c")
    store.rename("a", "z")
    fill(store, "a")
    assert store.keys() == list(store.scan_keys()) == [b"b", b"z", b"c", b"a"]
    assert store.size() == 4


def test_a_name_that_is_too_long_or_no_name_is_refused(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="the key is longer than 1048576 bytes"):
        store.stream("x" * ((1 << 20) + 1))
    calls: list[Callable[[Any], object]] = [store.stream, store.exists, store.delete, store.type]
    for call in calls:
        with pytest.raises(InvalidArgument, match="the key is None: give its name"):
            call(None)


def test_a_scan_yields_each_key_that_stays_exactly_once(store: Store) -> None:
    stay = [f"stay {n}" for n in range(2500)]
    with store.transaction():
        fill(store, *stay)
    stop = threading.Event()

    def come_and_go() -> None:
        n = 0
        while not stop.is_set():
            fill(store, f"passing {n}")
            store.rename("stay 7", "stay 7")
            store.delete(f"passing {n - 3}")
            n += 1

    calls = [Call(come_and_go)]
    try:
        for _ in range(3):
            seen = [key for key in store.scan_keys() if key.startswith(b"stay")]
            assert sorted(seen) == sorted(key.encode() for key in stay)
    finally:
        stop.set()
        for call in calls:
            call.result()


def test_a_key_renamed_during_a_scan_is_seen_once(store: Store) -> None:
    with store.transaction():
        fill(store, *(str(n) for n in range(1500)))
    scan = store.scan_keys()
    first = next(scan)
    store.rename(first, "renamed")
    store.rename("1499", "the last")
    rest = list(scan)
    assert b"renamed" not in rest
    assert rest[-1] == b"the last"
    assert len(rest) == 1499


# --- databases ----------------------------------------------------------------------------------


def test_sixteen_databases_have_separate_keys(store: Store) -> None:
    for db in range(16):
        store.select(db).stream("s").add({"db": db})
    for db in range(16):
        chosen = store.select(db)
        assert (chosen.db, chosen.size(), chosen.keys()) == (db, 1, [b"s"])
        assert chosen.stream("s").range()[0].fields == {b"db": b"%d" % db}
    assert store.select(3).flush() == 1
    assert [store.select(db).size() for db in (2, 3, 4)] == [1, 0, 1]
    assert store.flush_all() == 15


@pytest.mark.parametrize("db", [-1, 16, 1 << 20])
def test_there_are_no_further_databases(store: Store, db: int) -> None:
    with pytest.raises(InvalidArgument, match="DB index is out of range"):
        store.select(db)


def test_a_store_may_be_opened_at_a_database_and_have_more_of_them(open_store: Stores) -> None:
    store = open_store("own", db=20, databases=32)
    fill(store, "s")
    assert (store.select(20).keys(), store.select(0).keys()) == ([b"s"], [])


def test_a_transaction_spans_databases(store: Store) -> None:
    with store.transaction():
        fill(store, "s")
        fill(store.select(5), "s")
    assert store.size() == store.select(5).size() == 1


# --- renaming -----------------------------------------------------------------------------------


def test_a_renamed_stream_keeps_all_that_it_has(store: Store, clock: ManualClock) -> None:
    stream = store.stream("old")
    stream.add_many([{"n": n} for n in range(250)])
    group = stream.create_group("g", start="0")
    group.consumer("c").read(count=120)
    stream.trim(maxlen=200)
    stream.add({"n": "x"}, idmp=("p", "1"))
    store.expire("old", 60)
    before = stream.info_full(count=0)
    assert store.rename("old", "new")
    moved = store.stream("new")
    assert moved.info_full(count=0) == before
    assert (store.ttl("new"), store.ttl("old"), store.keys()) == (60, None, [b"new"])
    assert moved.add({"n": "y"}, idmp=("p", "1")) == before.info.last_generated_id
    fill(store, "old")  # the new stream must not show the old entries
    assert (len(store.stream("old")), store.stream("old").groups()) == (1, [])
    clock.advance(60_000)
    assert store.keys() == [b"old"]


def test_a_rename_replaces_by_default(store: Store) -> None:
    fill(store, "a", "b")
    add(store, b"a", "2-0")
    assert not store.rename("a", "b", replace=False)
    assert (len(store.stream("a")), len(store.stream("b"))) == (2, 1)
    assert store.rename("a", "b")
    assert (store.keys(), len(store.stream("b"))) == ([b"b"], 2)
    assert store.rename("b", "b")
    assert store.rename("b", "c", replace=False)
    with pytest.raises(NoSuchKey, match="no such key"):
        store.rename("missing", "x")
    with pytest.raises(NoSuchKey):
        store.rename("missing", "missing")


# --- what whole keys cost -----------------------------------------------------------------------


@pytest.fixture
def batches(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The changes of each commit: rows of messages, of metadata, of trees, and ranges.

    Earlier tests have left nothing to sweep, and concurrent sweeps are not counted.
    """
    changes: list[list[int]] = []
    write = store.engine.database.write
    here = threading.get_ident()

    def count(batch: Batch, frees: bool = False) -> int:
        if threading.get_ident() == here:
            changes.append([*map(len, batch.puts), len(batch.ranges)])
        return write(batch, frees)

    big = store.stream("big")
    big.add_many([{"n": n} for n in range(MANY)])
    big.create_group("g", start="0").consumer("c").read(count=MANY // 2)
    while store.engine.run(keyspace.sweep, MANY):
        pass
    monkeypatch.setattr(store.engine.database, "write", count)
    return changes


COSTS: dict[str, Callable[[Store], object]] = {
    "a deletion": lambda store: store.delete("big"),
    "a flush": lambda store: store.flush(),
    "a rename": lambda store: store.rename("big", "other"),
    "a rename over": lambda store: store.rename("small", "big"),
    "an expiry": lambda store: store.expire("big", 60),
    "an expiry in the past": lambda store: store.expire("big", -1),
}


@pytest.mark.parametrize("change", COSTS.values(), ids=COSTS.keys())
def test_whole_keys_change_without_touching_an_entry(
    store: Store, batches: list[list[int]], change: Callable[[Store], object]
) -> None:
    fill(store, "small")
    batches.clear()
    change(store)
    (messages, metadata, trees, ranges) = batches[0]
    assert messages <= 1  # the row of the small stream
    assert metadata <= 8
    assert trees <= 90  # rows for a thousand pending entries and thirty nodes
    assert ranges <= 6
    assert len(batches) <= 2


def test_the_rows_of_a_deleted_stream_leave_the_disk(store: Store) -> None:
    database = store.engine.database
    for key in ("small", "big"):
        store.stream(key).add_many([{"n": n} for n in range(20 if key == "small" else MANY)])
    store.delete("small", "big")
    assert list(database.scan(Family.MESSAGES, b"", b"\xff" * 9)) == []


# --- expiry -------------------------------------------------------------------------------------


def test_a_key_expires_at_its_time(store: Store, clock: ManualClock) -> None:
    fill(store, "s")
    assert store.ttl("s") is None
    assert store.expire("s", 1.5)
    assert store.ttl("s") == 1.5
    clock.advance(1499)
    assert store.exists("s")
    clock.advance(1)
    assert (store.exists("s"), len(store.stream("s")), store.keys()) == (False, 0, [])
    assert store.stream("s").range() == []
    assert (store.ttl("s"), store.type("s")) == (None, "none")


def test_an_expired_key_is_deleted_without_being_read(store: Store, clock: ManualClock) -> None:
    database = store.engine.database
    for n in range(250):  # more than one step of the expiry thread
        fill(store, str(n))
        store.expire(str(n), 1)
    fill(store, "stays")
    clock.advance(1000)
    until(lambda: store.size() == 1, "the deletion of the expired keys")
    assert len(list(database.scan(Family.MESSAGES, b"", b"\xff" * 9))) == 1
    assert list(database.scan(Family.METADATA, b"X", b"Y")) == []


def test_an_expiry_can_be_changed_and_removed(store: Store, clock: ManualClock) -> None:
    fill(store, "s")
    assert not store.persist("s")
    store.expire("s", 10)
    store.expire_at("s", START_MS / 1000 + 100)
    assert store.ttl("s") == 100
    clock.advance(50_000)
    assert store.ttl("s") == 50
    assert store.persist("s")
    assert store.ttl("s") is None
    clock.advance(100_000)
    assert store.exists("s")


def test_a_missing_key_has_no_expiry(store: Store) -> None:
    assert not store.expire("s", 5)
    assert not store.expire_at("s", 1 << 40)
    assert not store.persist("s")
    assert store.ttl("s") is None


@pytest.mark.parametrize("seconds", [1e20, float("inf"), float("nan"), float("-inf")])
def test_an_invalid_time_is_refused(store: Store, seconds: float) -> None:
    fill(store, "s")
    for call in (store.expire, store.expire_at):
        with pytest.raises(InvalidArgument, match="expire time"):
            call("s", seconds)
    assert store.ttl("s") is None


def test_an_expiry_survives_a_restart(open_store: Stores, clock: ManualClock) -> None:
    store = open_store("own")
    fill(store, "s", "t")
    store.expire("s", 60)
    store.expire("t", 10)
    clock.advance(30_000)
    store = open_store.reopen(store)
    assert (store.ttl("s"), store.exists("t")) == (30, False)


def test_the_keys_that_expire_are_counted_once_and_kept_counted(
    store: Store, clock: ManualClock
) -> None:
    def reply(limit: int, db: int = 0) -> tuple[int, int]:
        found = store.engine.run(keyspace.expiries, limit)(db)
        return found.keys, found.times

    keys = [f"k{number}" for number in range(6)]
    fill(store, *keys)
    for number, key in enumerate(keys[:5]):
        store.expire_at(key, START_MS / 1000 + 10 + number)
    times = [START_MS + 10_000 + 1000 * number for number in range(5)]
    assert reply(2) == (2, sum(times[:2]))
    store.expire_at("k0", START_MS / 1000 + 50)  # later than all counted ones
    store.persist("k1")
    assert store.check() == []
    assert reply(10) == (4, sum(times[2:]) + START_MS + 50_000)
    store.rename("k2", "k9")
    store.delete("k3")
    fill(store.select(1), "other")
    store.select(1).expire("other", 100)
    assert reply(0) == (3, times[2] + times[4] + START_MS + 50_000)
    assert reply(0, db=1)[0] == 1
    assert store.check() == []
    clock.advance(20_000)
    store.engine.run(keyspace.delete_expired, 10)
    assert reply(0) == (1, START_MS + 50_000)
    store.flush_all()
    clock.advance(100_000)
    store.engine.run(keyspace.delete_expired, 10)
    assert store.check() == []
    while store.engine.run(keyspace.sweep, 10):
        pass
    assert reply(0) == reply(0, db=1) == (0, 0)


def test_ids_of_streams_in_other_databases_are_independent(store: Store) -> None:
    add(store, b"s", "5-0")
    store.select(1).stream("s").add({"f": "v"}, id="1-0")
    assert ms_of(store.stream("s").range()) == [5]
    assert store.select(1).stream("s").info().last_generated_id == StreamID(1, 0)


def test_keys_that_have_expired_unnoticed_are_not_listed(store: Store, clock: ManualClock) -> None:
    for db in (0, 1):
        for name in ("a", "b", "c"):
            store.select(db).stream(name).add({"f": "v"})
    store.expire("b", 1)
    store.select(1).expire("c", 1)
    store.select(1).expire("a", 60)
    clock.advance(2000)
    assert (store.keys(), store.select(1).keys()) == ([b"a", b"c"], [b"a", b"b"])
    assert (list(store.scan_keys()), store.keys("[bc]")) == ([b"a", b"c"], [b"c"])


def test_summaries_of_keys_count_unwritten_changes_and_load_nothing(store: Store) -> None:
    for number in range(7):
        stream = store.stream(f"s{number}")
        for _ in range(number):
            stream.add({"f": "v"})
    store.stream("s1").create_group("g", mkstream=True)
    store.expire("s2", 100)
    store.expire("s6", 100)
    store.engine.run(strings.put, qualified(0, b"text"), b"v")
    expected = [
        (b"s%d" % n, "stream", n, int(n == 1), store.stream(f"s{n}").info().last_generated_id)
        for n in range(1, 7)
    ]
    store.engine.reopen()
    found, cursor = [], 0
    while True:
        cursor, page = store.engine.run(keyspace.summaries, 0, cursor, 4)
        found += page
        if cursor == 0:
            break
    assert [tuple(each[:5]) for each in found] == [*expected, (b"text", "string", None, None, None)]
    assert [bool(each.expire_at) for each in found] == [
        False,
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    assert not store.engine.catalog.streams


def test_lag_and_size_of_a_list_of_keys_are_those_of_each_key(store: Store) -> None:
    for number in range(4):
        stream = store.stream(f"s{number}")
        stream.add_many([{"f": "v" * (at + 1)} for at in range(number * 7)] or [{"f": "v"}])
        group = stream.create_group("g", "0") if number else stream.create_group("g")
        group.consumer("c").read(number + 1)
    store.stream("s3").create_group("unknown", "1-1")
    store.engine.run(strings.put, qualified(0, b"text"), b"v" * 100)

    def compute() -> list[tuple[bytes, int | None, int | None]]:
        return [
            (
                key,
                info.largest_lag([each.lag for each in store.stream(key).groups()])
                if store.type(key) == "stream"
                else None,
                store.engine.run(info.usage, qualified(0, key)),
            )
            for key in list(store.keys())
        ]

    def read(pattern: str | None = None) -> list[tuple[bytes, int | None, int | None]]:
        return [(key.key, key.lag, key.size) for key in store.key_infos(pattern, usage=True)]

    before = compute()
    store.engine.reopen()
    assert read() == before
    assert read("s[12]") == before[1:3]
    with store.transaction():  # with changes that are not written yet
        store.stream("s1").add({"f": "w" * 50})
        store.delete("s2")
        assert read() == compute()
