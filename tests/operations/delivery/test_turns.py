"""Keys that take turns: a key with very many entries delays no other one."""

from collections import Counter
from collections.abc import Callable

import pytest

from kvstream import InvalidArgument, ManualClock, Store, StreamID
from kvstream.engine import timer_thread, upkeep
from kvstream.group import Group
from kvstream.layout.keys import qualified, tree_prefix
from kvstream.meta.txn import Txn
from kvstream.operations import readgroup, turns
from kvstream.operations.queues import image, info, policy
from kvstream.operations.reads.limits import Budget
from kvstream.storage.batch import Family
from kvstream.types.options import RefPolicy
from kvstream.types.thresholds import Thresholds
from tests.opening import Stores, change_thresholds
from tests.patience import until

NAME = qualified(0, b"s")
Reopen = Callable[..., Store]


def rules(store: Store, **changes: object) -> None:
    store.engine.run(policy.set_policy, NAME, b"g", changes)


def group_of(store: Store) -> Group:
    return store.stream("s").group("g")


def add(store: Store, keys: str) -> list[StreamID]:
    """Add an entry for each letter, with no field for ``-``."""
    fields = [{"n": str(n)} if key == "-" else {"user": key} for n, key in enumerate(keys)]
    return store.stream("s").add_many(fields)


def sort_all(store: Store) -> None:
    """Sort as the background does, until nothing is left."""
    names = list(store.engine.catalog.with_turns)
    while names:
        names = store.engine.run(turns.sort_streams, names)


@pytest.fixture
def fair(store: Store) -> Store:
    """A store with a group whose values of ``user`` take turns."""
    store.stream("s").create_group("g")
    rules(store, order_by=b"user", fair=True, max_per_key=100)
    return store


def read(store: Store, count: int | None = None, noack: bool = False) -> str:
    """Return the keys of the entries that a read delivers."""
    entries = group_of(store).consumer("w").read(count=count, noack=noack)
    return "".join(entry.fields.get(b"user", b"-").decode() for entry in entries)


def test_keys_take_turns_whichever_was_first(fair: Store) -> None:
    add(fair, "aaaaaa" + "bbb" + "c")
    assert [read(fair, 1) for _ in range(10)] == list("abcabab" + "aaa")
    assert read(fair, 1) == ""


def test_a_new_key_waits_for_one_turn_of_the_others(fair: Store) -> None:
    add(fair, "a" * 50 + "b" * 50)
    assert [read(fair, 1) for _ in range(4)] == list("abab")
    add(fair, "c")
    assert [read(fair, 1) for _ in range(4)] == list("abca")


def test_one_read_shares_its_entries_among_the_keys(fair: Store) -> None:
    add(fair, "a" * 500 + "b" * 500 + "c" * 5)
    assert Counter(read(fair, 65)) == {"a": 30, "b": 30, "c": 5}
    assert Counter(read(fair, 40)) == {"a": 20, "b": 20}


def test_entries_without_the_field_are_one_key(fair: Store) -> None:
    rules(fair, max_per_key=2)
    add(fair, "----" + "a")
    assert [read(fair, 1) for _ in range(4)] == ["-", "a", "-", ""]


def test_the_limit_of_a_key_holds_and_its_end_frees_it(fair: Store) -> None:
    rules(fair, max_per_key=2)
    ids = add(fair, "aaaa" + "bb")
    assert Counter(read(fair)) == {"a": 2, "b": 2}
    assert read(fair) == ""
    group_of(fair).ack(ids[0])
    assert read(fair) == "a"


def test_the_order_within_a_key_is_that_of_the_stream(fair: Store) -> None:
    ids = add(fair, "abababab")
    found = [group_of(fair).consumer("w").read(count=1)[0].id for _ in range(8)]
    assert found == ids


def test_pending_entries_with_a_lease_that_ended_come_before_the_turns(
    fair: Store, clock: ManualClock
) -> None:
    rules(fair, lease_ms=1000)
    add(fair, "b" + "a" * 100)
    assert read(fair, 1) == "b"
    clock.advance(1000)
    assert read(fair, 1) == "b"


END: dict[str, Callable[[Store, StreamID], object]] = {
    "XACK": lambda store, eid: group_of(store).ack(eid),
    "XACKDEL": lambda store, eid: group_of(store).ack_delete(eid, ref_policy=RefPolicy.DELREF),
    "XCLAIM": lambda store, eid: group_of(store).claim("v", [eid]),
    "XAUTOCLAIM": lambda store, eid: group_of(store).autoclaim("v", count=1),
    "XDEL": lambda store, eid: store.stream("s").delete(eid),
    "XNACK": lambda store, eid: group_of(store).nack(eid),
    "XTRIM": lambda store, eid: store.stream("s").trim(minid=eid.next()),
}


@pytest.mark.parametrize("how", END)
def test_whatever_takes_the_entry_of_the_turn_the_key_goes_on(fair: Store, how: str) -> None:
    ids = add(fair, "aaa")
    END[how](fair, ids[0])
    assert fair.check() == []
    left = 3 - (how in ("XACK", "XACKDEL", "XCLAIM", "XAUTOCLAIM", "XDEL", "XTRIM"))
    assert sum(len(read(fair, 1)) for _ in range(5)) == left
    assert fair.check() == []


def test_a_read_without_acknowledgement_takes_turns_too(fair: Store) -> None:
    add(fair, "aaaa" + "b")
    assert [read(fair, 1, noack=True) for _ in range(5)] == list("abaaa")
    assert group_of(fair).pending().count == 0


def test_a_paused_group_and_its_limits_hold(fair: Store) -> None:
    add(fair, "aaaa" + "bb")
    rules(fair, paused=True)
    assert read(fair) == ""
    rules(fair, paused=False, max_in_flight=3)
    assert Counter(read(fair)) == {"a": 2, "b": 1}


def test_entries_of_before_the_rule_are_sorted_by_reads_and_in_the_background(
    store: Store,
) -> None:
    add(store, "a" * 1300 + "b")
    store.stream("s").create_group("g", start="0")
    rules(store, order_by=b"user", fair=True, max_per_key=10_000)
    assert read(store, 1) == "a"
    sort_all(store)
    assert [read(store, 1) for _ in range(2)] == list("ab")
    info = store.stream("s").group("g").info()
    assert (info.lag, info.pending) == (0, 1301)
    assert store.check() == []


def test_a_read_behind_a_very_long_key_sorts_some_entries_only(store: Store) -> None:
    change_thresholds(store.engine, sorted_entries=10)
    add(store, "a" * 100 + "b")
    store.stream("s").create_group("g", start="0")
    rules(store, order_by=b"user", fair=True, max_per_key=3)
    found = [read(store, 1) for _ in range(12)]
    assert sorted(found) == ["", *[""] * 7, "a", "a", "a", "b"]


def test_very_many_entries_of_one_add_are_sorted_in_the_background(fair: Store) -> None:
    change_thresholds(fair.engine, ordered_entries=20)
    assert read(fair) == ""  # the group is in memory
    add(fair, "a" * 100 + "b")
    assert fair.stream("s").group("g").info().pending == 20
    sort_all(fair)
    assert fair.stream("s").group("g").info().pending == 101
    assert [read(fair, 1) for _ in range(2)] == ["a", "b"]


def test_a_group_that_is_moved_back_keeps_its_pending_entries(fair: Store) -> None:
    ids = add(fair, "aab")
    assert read(fair, 1) == "a"
    group_of(fair).ack(ids[0])
    group_of(fair).set_id("0")
    assert sorted(read(fair, 1) for _ in range(4)) == ["", "a", "a", "b"]
    assert fair.check() == []


def test_appends_sort_after_a_restart(fair: Store, reopen: Reopen) -> None:
    add(fair, "aaa")
    store = reopen(fair)
    assert read(store, 1) == "a"
    add(store, "b")
    assert [read(store, 1) for _ in range(2)] == list("ab")
    assert store.check() == []


@pytest.mark.parametrize("before", [False, True])
def test_the_rule_may_be_set_and_removed(fair: Store, before: bool) -> None:
    rules(fair, fair=before, max_per_key=2)
    add(fair, "aaaaa" + "b")
    if not before:
        assert read(fair, 2) == "aa"
    rules(fair, fair=not before)
    assert fair.check() == []
    group = group_of(fair)
    for _ in range(6):
        read(fair)
        group.ack(*[row.id for row in group.pending_range(count=10, consumer="w")])
    assert group.pending().count == 0
    assert fair.check() == []


def test_another_key_sorts_the_backlog_anew(fair: Store) -> None:
    rules(fair, max_per_key=1)
    stream = fair.stream("s")
    for n in range(12):
        stream.add({"user": "a", "place": "xxxxy"[n % 5]})
    stream.add({"user": "b"})
    assert read(fair, 1) == "a"
    rules(fair, order_by=b"place")
    assert fair.check() == []
    entries = [each for _ in range(3) for each in group_of(fair).consumer("w").read()]
    assert [entry.fields.get(b"place") for entry in entries] == [b"y", None], "x is in flight"
    [figures] = fair.engine.run(info.queue_info, NAME).groups
    assert (figures.ready, figures.held) == (0, 10)


def test_an_order_that_ends_ends_the_turns(fair: Store) -> None:
    add(fair, "aaaa")
    group_of(fair).set_policy(order_by="")
    found = group_of(fair).policy()
    assert found is not None
    assert not found.fair
    assert read(fair) == "aaaa"
    with pytest.raises(InvalidArgument, match="fair goes with order_by"):
        rules(fair, fair=True)


def test_a_retry_comes_after_its_backoff(fair: Store, clock: ManualClock) -> None:
    rules(fair, backoff_ms=(500,), max_per_key=1)
    ids = add(fair, "aa" + "b")
    assert read(fair) == "ab"
    group_of(fair).nack(ids[0])
    assert read(fair) == ""
    clock.advance(500)
    fair.engine.run(timer_thread.run_due, 100)
    assert read(fair) == "a"
    assert fair.check() == []


def test_a_copy_keeps_the_turns(fair: Store) -> None:
    add(fair, "aaa" + "b")
    assert read(fair, 1) == "a"
    fair.copy("s", "t")
    one, other = (fair.engine.run(image.page, qualified(0, key))[0] for key in (b"s", b"t"))
    assert one == other, "no second entry of a key became ready"
    group = fair.stream("t").group("g")
    found = [group.consumer("v").read(count=1)[0].fields[b"user"] for _ in range(3)]
    assert sorted(found) == [b"a", b"a", b"b"]
    assert fair.check() == []


def test_one_read_makes_no_more_ready_than_it_may_look_at(fair: Store) -> None:
    change_thresholds(fair.engine, ordered_entries=20)
    for _ in range(5):
        add(fair, "a" * 20)
    budget = Budget(maxsize=1)
    found = fair.engine.run(readgroup.read_new, NAME, b"g", b"w", budget=budget)
    assert len(found) == 1
    [figures] = fair.engine.run(info.queue_info, NAME).groups
    assert (figures.ready, figures.held) == (19, 80)
    assert read(fair) == "a" * 20


def test_keys_expire_while_a_long_backlog_is_sorted(
    open_store: Stores, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SORT_S", 0.01)
    store = open_store(thresholds=Thresholds(cycle_pause_s=0.001, sorted_entries=1))
    store.stream("other").add({"f": "v"})
    add(store, "a" * 20_000)
    store.stream("s").create_group("g", start="0")
    rules(store, order_by=b"user", fair=True)
    until(lambda: group_of(store).info().pending > 0, "the first entries to be sorted")
    store.expire("other", 1)
    clock.advance(1000)
    until(lambda: store.size() == 1, "the key to expire")
    assert group_of(store).info().pending < 20_000


def test_appends_go_on_beside_a_damaged_group(fair: Store) -> None:
    fair.stream("s").create_group("other")

    def replace(txn: Txn, value: bytes) -> bytes:
        row = tree_prefix(txn.existing_stream(NAME).groups_tree) + b"other"
        before = txn.batch.get(Family.TREES, row) or b""
        txn.batch.put(Family.TREES, row, value)
        return before

    sound = fair.engine.run(replace, b"no group")
    change_thresholds(fair.engine)  # which forgets what was in memory
    add(fair, "a")
    assert len(fair.stream("s")) == 1
    assert read(fair) == "a"
    fair.engine.run(replace, sound)


def test_entries_that_are_trimmed_before_their_delivery_do_not_pile_up(fair: Store) -> None:
    stream = fair.stream("s")
    for n in range(300):
        stream.add({"user": "abc"[n % 3]}, maxlen=10)
    assert group_of(fair).pending().count < 40
    assert fair.check() == []
    assert sorted(read(fair, 1) for _ in range(10)) == list("aaabbbcccc")
    assert read(fair, 1) == ""
