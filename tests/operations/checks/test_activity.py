"""When each consumer was seen and active: exact after a reload, from whichever record."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from kvstream import Group, ManualClock, Store
from kvstream.layout.keys import qualified
from kvstream.operations import keyspace
from kvstream.operations.images import copy
from kvstream.types.records import ConsumerInfo
from tests.operations.checks.seeding import KEY, TREES, Reopen, Rows, damage, fault_texts

GROUP = b"billing"


class _Undo(Exception):
    """Ends a transaction without a commit."""


@pytest.fixture
def group(store: Store) -> Group:
    stream = store.stream(KEY)
    stream.add_many([{"n": number} for number in range(100)])
    return stream.create_group(GROUP, "0")


def reload(store: Store) -> list[ConsumerInfo]:
    """Return the times of the consumers as read from disk, as after a crash."""
    before = store.stream(KEY).group(GROUP).consumers()
    store.engine.catalog.forget()
    after = store.stream(KEY).group(GROUP).consumers()
    assert after == before
    assert store.check() == []
    return after


def times(store: Store) -> dict[bytes, tuple[int, int | None]]:
    return {each.name: (each.idle, each.inactive) for each in reload(store)}


def test_a_delivery_writes_only_the_run_and_the_group(store: Store, group: Group) -> None:
    group.consumer("ann").read(count=1)
    before = dict(Rows(store).under(TREES, b"\x00"))
    sequence = store.engine.database.sequence
    group.consumer("ann").read(count=1)
    assert store.engine.database.sequence == sequence + 2
    after = dict(Rows(store).under(TREES, b"\x00"))
    changed = {key for key in after if after[key] != before.get(key)}
    assert changed == {
        Rows(store).group.row,
        Rows(store).group.runs.prefix + Rows(store).runs[-1].anchor,
    }


def test_consumers_that_take_turns_keep_their_times(
    store: Store, group: Group, clock: ManualClock
) -> None:
    for name in ("ann", "bob", "ann", "cid", "cid"):
        clock.advance(10)
        group.ack(group.consumer(name).read(count=1))
    assert times(store) == {b"ann": (20, 20), b"bob": (30, 30), b"cid": (0, 0)}
    clock.advance(5)
    group.consumer("bob").read(count=1)
    assert times(store) == {b"ann": (25, 25), b"bob": (0, 0), b"cid": (5, 5)}


def test_an_acknowledgement_never_sets_a_time_back(
    store: Store, group: Group, clock: ManualClock
) -> None:
    given = group.consumer("ann").read(count=1)
    clock.advance(1000)
    group.ack(group.consumer("ann").read(count=1))
    assert times(store) == {b"ann": (0, 0)}
    group.ack(given)
    assert times(store) == {b"ann": (0, 0)}


def test_a_consumer_that_got_nothing_was_seen_but_not_active(
    store: Store, group: Group, clock: ManualClock
) -> None:
    group.consumer("ann").read(count=100)
    clock.advance(10)
    assert group.consumer("ann").read() == []
    store.sync()
    clock.advance(1)
    assert times(store) == {b"ann": (1, 11)}


@pytest.mark.parametrize("back", [-10_000, -10, 0])
def test_times_follow_a_clock_that_was_set_back(
    store: Store, group: Group, clock: ManualClock, back: int
) -> None:
    group.consumer("ann").read(count=1)
    clock.advance(10)
    group.consumer("ann").history("99")
    store.sync()  # its record says: seen later than active
    clock.advance(back)
    group.consumer("ann").read(count=1)
    clock.advance(7)
    assert times(store) == {b"ann": (7, 7)}


def test_a_claim_keeps_the_times_of_the_last_active_consumer(
    store: Store, group: Group, clock: ManualClock
) -> None:
    given = group.consumer("ann").read(count=2)
    clock.advance(10)
    group.claim("ann", [given[0].id])
    clock.advance(10)
    group.autoclaim("bob", count=1)
    clock.advance(10)
    assert times(store) == {b"ann": (20, 20), b"bob": (10, 10)}


def test_a_recreated_consumer_was_never_active(
    store: Store, group: Group, clock: ManualClock
) -> None:
    group.consumer("ann").read(count=1)
    group.delete_consumer("ann")
    clock.advance(10)
    group.create_consumer("ann")
    assert times(store) == {b"ann": (0, -1)}
    clock.advance(10)
    group.consumer("ann").read(count=1)
    assert times(store) == {b"ann": (0, 0)}


def test_an_undone_delivery_is_no_activity(store: Store, group: Group, clock: ManualClock) -> None:
    group.consumer("ann").read(count=1)
    group.consumer("bob").read(count=1)
    clock.advance(10)
    with suppress(_Undo), store.transaction():
        group.consumer("ann").read(count=1)
        raise _Undo
    assert times(store) == {b"ann": (10, 10), b"bob": (10, 10)}


@pytest.mark.parametrize("deed", [copy.copy, keyspace.rename])
def test_a_renamed_key_keeps_the_times(
    store: Store, group: Group, clock: ManualClock, deed: Callable[..., object]
) -> None:
    group.consumer("ann").read(count=1)
    clock.advance(10)
    before = group.consumers()
    store.engine.run(deed, qualified(0, KEY), qualified(0, b"other"))
    for _ in range(2):
        assert store.stream("other").group(GROUP).consumers() == before
        store.engine.catalog.forget()


def _name_unknown_consumer(rows: Rows) -> None:
    activity = rows.group.activity
    activity.name = b"stranger"
    rows.edit_group(activity=activity)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (_name_unknown_consumer, "the consumer that was active last has no record"),
        (
            lambda rows: rows.edit_consumer(b"ann", activity=1 << 40),
            "its activity is yet to come",
        ),
    ],
)
def test_an_impossible_activity_is_reported_and_repaired(
    store: Store, group: Group, reopen: Reopen, seed: Callable[[Rows], None], expected: str
) -> None:
    group.consumer("ann").read(count=1)
    store = damage(store, reopen, seed)
    assert fault_texts(store.check(repair=True)) == [expected]
    assert store.check() == []
    group = store.stream(KEY).group(GROUP)
    group.consumer("ann").read(count=1)
    assert store.check() == []
