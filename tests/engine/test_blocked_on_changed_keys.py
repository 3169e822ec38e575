"""Blocked calls whose key becomes a string, or whose database is swapped."""

from contextlib import suppress

import pytest

from kvstream import ManualClock, NoGroup, Store, WrongType
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace, strings
from kvstream.operations.images import copy
from tests.engine.waiting import add, blocked, ms_of, waiting, watch_group
from tests.opening import Stores

S = qualified(0, b"s")
ELSEWHERE = qualified(1, b"s")


def put(store: Store, name: bytes = S) -> None:
    store.engine.run(strings.put, name, b"value")


def swap(store: Store) -> None:
    store.engine.run(keyspace.swap, 0, 1)


@pytest.mark.parametrize("durability", ["no", "always"])
def test_xread_keeps_waiting_while_its_key_is_a_string(open_store: Stores, durability: str) -> None:
    store = open_store(durability=durability)
    call = blocked(store, lambda: store.stream("s").read("$", block=10))
    put(store)
    assert waiting(store) == 1
    with pytest.raises(WrongType):
        store.stream("s").read("0", block=10)
    store.delete("s")
    add(store, b"s", "5-0")
    assert ms_of(call.result()) == [5]


def test_a_string_among_several_streams_is_reported_with_the_next_entry(store: Store) -> None:
    call = blocked(store, lambda: store.read({"s": "0", "t": "0"}, block=10))
    put(store)
    assert waiting(store) == 1
    add(store, b"t", "7-0")
    with pytest.raises(WrongType):
        call.result()


def test_xreadgroup_ends_when_its_key_becomes_a_string(store: Store) -> None:
    add(store, b"s", "1-0")
    store.stream("s").create_group("g", "$")
    watch = watch_group(store, b"s", b"g", b"c")
    put(store)
    with pytest.raises(WrongType):
        watch.outcomes[0].get()
    assert waiting(store) == 0


def test_xread_continues_in_the_database_swapped_in(store: Store) -> None:
    call = blocked(store, lambda: store.stream("s").read("0", block=10))
    add(store.select(1), b"s", "3-0")
    assert waiting(store) == 1
    swap(store)
    assert ms_of(call.result()) == [3]
    call = blocked(store, lambda: store.stream("s").read("$", block=10))
    add(store.select(1), b"s", "4-0")
    add(store, b"s", "5-0")
    assert ms_of(call.result()) == [5]


def test_xreadgroup_ends_when_the_other_database_has_no_such_group(store: Store) -> None:
    add(store, b"s", "1-0")
    store.stream("s").create_group("g", "$")
    watch = watch_group(store, b"s", b"g", b"c")
    swap(store)
    with pytest.raises(NoGroup):
        watch.outcomes[0].get()


def test_a_copy_wakes_clients_blocked_on_its_name(store: Store) -> None:
    add(store, b"t", "6-0")
    call = blocked(store, lambda: store.stream("s").read("0", block=10))
    store.engine.run(copy.copy, qualified(0, b"t"), S)
    assert ms_of(call.result()) == [6]


def test_an_undone_swap_has_no_effect(store: Store) -> None:
    add(store, b"s", "1-0")
    with suppress(KeyError), store.transaction():
        add_one(store, "2-0")
        swap(store)
        assert store.keys() == []
        assert len(store.select(1).stream("s")) == 2
        put(store)
        raise KeyError
    assert len(store.stream("s")) == 1
    assert store.select(1).keys() == []


def test_a_swap_in_a_transaction_sees_earlier_changes(store: Store) -> None:
    with store.transaction():
        add_one(store, "1-0")
        swap(store)
        add_one(store, "9-0")
        swap(store)
        add_one(store, "2-0")
    assert ms_of(store.stream("s").range()) == [1, 2]
    assert ms_of(store.select(1).stream("s").range()) == [9]


def add_one(store: Store, eid: str) -> None:
    store.stream("s").add({"f": "v"}, id=eid)


def test_an_unwritten_seen_time_survives_a_swap(store: Store, clock: ManualClock) -> None:
    add(store, b"s", "1-0")
    group = store.stream("s").create_group("g", "$")
    group.consumer("c").read()
    clock.advance(500)
    group.consumer("c").read()  # nothing to read: only the seen time changes
    clock.advance(300)
    swap(store)
    (consumer,) = store.select(1).stream("s").group("g").consumers()
    assert consumer.idle == 300
    store.sync()
    assert store.check() == []


def test_a_read_only_store_skips_expired_strings(open_store: Stores, clock: ManualClock) -> None:
    store = open_store()
    store.engine.run(strings.put, S, b"value", clock.ms + 1000)
    put(store, ELSEWHERE)
    store.close()
    clock.advance(1000)
    reader = open_store(read_only=True)
    assert reader.keys() == []
    assert reader.type("s") == "none"
    assert reader.size() == 1  # the expired string is not deleted
    assert reader.engine.run(strings.get, S) is None
    assert reader.engine.run(strings.get, ELSEWHERE) == b"value"
    assert reader.select(1).type("s") == "string"


def test_the_expiry_thread_deletes_strings_too(store: Store, clock: ManualClock) -> None:
    for number in range(30):
        store.engine.run(strings.put, qualified(number % 2, b"%d" % number), b"v", clock.ms + 5)
    swap(store)
    clock.advance(5)
    assert store.engine.run(keyspace.delete_expired, 100) == 30
    assert (store.size(), store.select(1).size()) == (0, 0)
