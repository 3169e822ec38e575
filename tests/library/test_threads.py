"""Many threads on one store: no losses, no duplicates, and a sound store."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kvstream import InvalidArgument, NoGroup, RequestError, Store, StreamID
from tests.engine.waiting import Call, ms_of
from tests.opening import Stores

THREADS = 8
SECONDS = 0.8


def in_threads(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Run ``work`` in threads that begin together; each receives its number."""
    together = threading.Barrier(threads)

    def begin(number: int) -> None:
        together.wait()
        work(number)

    calls = [Call(lambda number=number: begin(number)) for number in range(threads)]  # type: ignore[misc]
    for call in calls:
        call.result()


def test_adds_of_many_threads_have_distinct_ids(store: Store) -> None:
    ids: list[list[StreamID]] = [[] for _ in range(THREADS)]

    def add(number: int) -> None:
        stream = store.stream("s")
        for n in range(50):
            ids[number].append(stream.add({"thread": number, "n": n}))
            ids[number] += stream.add_many([{"thread": number, "n": n}] * 3)

    in_threads(add)
    found = store.stream("s").range()
    assert sorted(eid for own in ids for eid in own) == [entry.id for entry in found]
    assert all(own == sorted(own) for own in ids)
    for number in range(THREADS):
        own = [e for e in found if e.fields and e.fields[b"thread"] == b"%d" % number]
        assert [e.fields[b"n"] for e in own if e.fields] == [
            b"%d" % n for n in range(50) for _ in range(4)
        ]


def test_each_entry_goes_to_one_consumer_of_a_group(store: Store) -> None:
    group = store.stream("s").create_group("g")
    taken: list[list[int]] = [[] for _ in range(THREADS)]
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for ms in range(1, 401):
                store.stream("s").add({"f": "v"}, id=f"{ms}-0")
            done.set()
            return
        consumer = group.consumer(f"c{number}")
        while True:
            last = done.is_set()
            entries = consumer.read(count=random.randint(1, 5), block=0.01)
            taken[number] += ms_of(entries)
            assert consumer.ack(entries) == len(entries)
            if last and not entries:
                return

    in_threads(work)
    assert Counter(ms for own in taken for ms in own) == dict.fromkeys(range(1, 401), 1)
    assert all(own == sorted(own) for own in taken)
    assert group.pending().count == 0


def test_concurrent_calls_of_all_kinds_leave_a_sound_store(open_store: Stores) -> None:
    store = open_store("own", durability="everysec", stream_node_max_entries=10)
    until = time.monotonic() + SECONDS
    errors: list[BaseException] = []
    counts: Counter[str] = Counter()

    def add(key: str) -> None:
        store.stream(key).add({"f": "v" * 20}, maxlen=random.choice([None, 200, 50]))

    def add_many(key: str) -> None:
        store.stream(key).add_many([{"n": n} for n in range(30)])

    def take(key: str) -> None:
        group = store.stream(key).group("g")
        entries = group.consumer(random.choice("abc")).read(count=10, claim_min_idle=0.1)
        group.ack(entries[::2])

    def give_back(key: str) -> None:
        group = store.stream(key).group("g")
        group.nack(group.pending_range(count=3))
        group.autoclaim(random.choice("abc"), min_idle=0.01, count=5)

    def delete(key: str) -> None:
        stream = store.stream(key)
        stream.delete(stream.range(count=5)[::2])
        stream.delete_entries(stream.revrange(count=2), ref_policy="DELREF")

    def look(key: str) -> None:
        stream = store.stream(key)
        entries = list(stream.scan(page=50))
        assert [e.id for e in entries] == sorted({e.id for e in entries})
        stream.read("$", block=0.001)
        stream.group("g").consumer("a").history(count=5)

    def change_keys(key: str) -> None:
        other = random.choice("st")
        store.stream(key).create_group("g", start="0")
        if random.random() < 0.2:
            store.rename(key, other)
        if random.random() < 0.1:
            store.delete(other)
        store.expire(key, random.choice([0.01, 60]))

    def transact(key: str) -> None:
        with store.transaction() as tx:
            eid = tx.stream(key).add({"f": "v"})
            tx.stream("t").add({"of": str(eid)})
            assert tx.stream(key).get(eid)

    kinds = [add, add_many, take, give_back, delete, look, change_keys, transact]

    def work(number: int) -> None:
        while (time.monotonic() < until or len(counts) < len(kinds)) and not errors:
            kind = random.choice(kinds)
            try:
                kind(random.choice("st"))
            except (
                RequestError
            ) as error:  # the group or the key may be deleted; no other error is expected
                if kind is add:
                    errors.append(error)
            counts[kind.__name__] += 1

    in_threads(work)
    assert errors == []
    assert set(counts) == {kind.__name__ for kind in kinds}
    assert store.check() == []
    reopened = open_store.reopen(store)
    assert reopened.check() == []


@pytest.mark.parametrize("durability", ["always", "no"])
def test_transfers_between_streams_keep_every_entry(open_store: Stores, durability: str) -> None:
    store = open_store("own", durability=durability)
    for key in ("a", "b"):
        store.stream(key).create_group("g")
    for n in range(40):
        store.stream("a").add({"n": n})
    store.stream("a").group("g").set_id("0")

    def transfer(number: int) -> None:
        source, target = ("a", "b") if number % 2 else ("b", "a")
        group = store.stream(source).group("g")
        for _ in range(15):
            with store.transaction() as tx:
                for entry in group.consumer("c").read(count=2):
                    tx.stream(target).add(entry.pairs)
                    group.ack_delete(entry)

    in_threads(transfer, threads=4)
    entries = [*store.stream("a").range(), *store.stream("b").range()]
    numbers = sorted(int(entry.fields[b"n"]) for entry in entries if entry.fields)
    assert numbers == list(range(40))


def test_a_group_destroyed_under_its_consumers_fails_them_cleanly(store: Store) -> None:
    stream = store.stream("s")
    stream.create_group("g")
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for _ in range(60):
                stream.group("g").destroy()
                stream.create_group("g", start="0")
                stream.add({"f": "v"})
            stop.set()
            return
        consumer = stream.group("g").consumer(f"c{number}")
        while not stop.is_set():
            try:
                consumer.ack(consumer.read(count=3, block=0.005))
            except NoGroup:
                continue

    in_threads(work, threads=4)
    assert len(stream) == 60


def test_a_transaction_that_ends_in_another_thread_says_so(store: Store) -> None:
    block = store.transaction()
    block.__enter__()
    store.stream("s").add({"n": 1})
    errors: list[BaseException] = []

    def end() -> None:
        try:
            block.__exit__(None, None, None)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert [type(error) for error in errors] == [InvalidArgument]
    assert "ends in the thread that began it" in str(errors[0])
    store.engine.abandon_turn()  # what the other thread could not do
    assert len(store.stream("s")) == 0
