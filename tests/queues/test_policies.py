"""Policies of groups: set, shown and dropped alike on every place."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import kvstream
from kvstream import (
    Backoff,
    Group,
    GroupPolicy,
    InvalidArgument,
    NoGroup,
    Queue,
    ServerTooOld,
    Ticket,
)


def test_a_policy_is_set_rule_by_rule(place: str) -> None:
    with kvstream.open(place) as store:
        group = store.stream("jobs").create_group("g", "0")
        assert group.policy() is None
        set_first = group.set_policy(lease=30, max_deliveries=5, backoff=[1, 10.5, 60])
        assert set_first == GroupPolicy(
            lease_ms=30_000, max_deliveries=5, backoff_ms=(1000, 10_500, 60_000)
        )
        group.set_policy(backoff=Backoff(1, timedelta(hours=1), jitter=0.2), rate=(100, 60))
        group.set_policy(dead_letter="lost", order_by="user", max_per_key=2, max_in_flight=7)
        group.set_policy(fair=True)
        group.set_policy(max_deliveries=0, reap=timedelta(days=1))
        assert group.policy() == GroupPolicy(
            lease_ms=30_000,
            backoff_ms=(1000,),
            backoff_cap_ms=3_600_000,
            jitter_percent=20,
            dead_letter=b"lost",
            order_by=b"user",
            max_per_key=2,
            fair=True,
            max_in_flight=7,
            rate_count=100,
            rate_ms=60_000,
            reap_idle_ms=86_400_000,
        )
        group.set_policy(
            backoff=(), order_by="", dead_letter="", rate=(0, 0), max_in_flight=0, reap=0
        )
        found = group.set_policy()
        assert (found.backoff_ms, found.rate_count, found.order_by) == ((), 0, b"")
        assert group.drop_policy()
        assert not group.drop_policy()
        assert group.policy() is None
        with pytest.raises(NoGroup):
            store.stream("jobs").group("none").policy()


def test_keys_take_turns_alike_in_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        queue = Queue(store, "calls", order_by="tenant", max_per_key=2, fair=True)
        queue.prepare()
        queue.put_many([{"tenant": "a", "n": n} for n in range(5)])
        queue.put({"tenant": "b", "n": 5})
        queue.put({"tenant": "c", "n": 6}, unique="c", window=(1, 60))
        found = [queue.get_one() for _ in range(5)]
        given = [None if message is None else int(message.fields[b"n"]) for message in found]
        assert given == [0, 5, 6, 1, None]
        assert found[0] is not None
        found[0].ack()
        assert [int(message.fields[b"n"]) for message in queue.get(10)] == [2]
        info = queue.info()
        assert (info.held, info.leased) == (2, 4)
        with pytest.raises(InvalidArgument, match="fair"):
            queue.groups()[0].set_policy(order_by="", fair=True)


def test_puts_are_throttled_alike_in_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        with pytest.raises(InvalidArgument, match="window is a time, or a pair"):
            store.stream("q").add({"n": 1}, unique="u", window=(1, 2, 3))  # type: ignore[arg-type]
        queue = Queue(store, "calls")
        ids = [queue.put({"n": n}, unique="u", window=(2, 3600)) for n in range(3)]
        assert ids[0] != ids[1] == ids[2]
        options: dict[str, Any] = {"unique": "v", "on_conflict": "throttle"}
        later = [queue.put({"n": n}, window=(1, timedelta(hours=1)), **options) for n in range(3)]
        assert [type(each).__name__ for each in later] == ["StreamID", "Ticket", "Ticket"]
        waits: dict[str, Any] = {"unique": "w", "on_conflict": "debounce", "delay": 3600}
        waits["max_wait"] = 5
        moved = [queue.put({"n": n}, **waits) for n in range(2)]
        assert queue.info().delayed == 3
        assert isinstance(moved[0], Ticket)
        assert isinstance(moved[1], Ticket)
        assert moved[1].at_ms <= moved[0].at_ms + 60_000


WRONG: dict[str, tuple[Callable[[Group], Any], str]] = {
    "a negative lease": (
        lambda group: group.set_policy(lease=-1),
        "lease is negative: -1",
    ),
    "a rate that is a number": (
        lambda group: group.set_policy(rate=100),  # type: ignore[arg-type]
        "rate is a pair, (100, 60) for 100 messages in 60 seconds, not 100",
    ),
    "a backoff that is text": (
        lambda group: group.set_policy(backoff="1,10"),  # type: ignore[arg-type]
        "backoff is seconds, a list of them or Backoff(1, 60), not '1,10'",
    ),
    "a backoff that falls": (
        lambda group: group.set_policy(backoff=Backoff(10, 1)),
        "a backoff doubles from first up to cap: Backoff(first=10, cap=1, jitter=0.0) does not",
    ),
    "a jitter in percent": (
        lambda group: group.set_policy(backoff=Backoff(1, 10, jitter=20)),
        "jitter is a share from 0 to 1, not 20",
    ),
    "a number of deliveries that is a float": (
        lambda group: group.set_policy(max_deliveries=1.5),  # type: ignore[arg-type]
        "max_deliveries must be a whole number, not 1.5",
    ),
    "a negative limit": (
        lambda group: group.set_policy(max_in_flight=-1),
        "max_in_flight must not be negative: -1; 0 is without a limit",
    ),
    "turns without the key": (
        lambda group: group.set_policy(fair=True, order_by=""),
        "fair goes with order_by, which names the field of the key",
    ),
    "a limit of a key without the key": (
        lambda group: group.set_policy(max_per_key=2),
        "max_per_key goes with order_by, which names the field of the key",
    ),
}


def test_equal_rules_are_equal_in_every_place(place: str) -> None:
    with kvstream.open(place) as store:
        group = store.stream("s").create_group("g")
        group.set_policy(order_by="user", max_in_flight=5)
        store.stream("s").add_many([{"user": "ann"}] * 3)
        assert len(group.consumer("c").read(3)) == 1
        rules = GroupPolicy(order_by=b"user", max_in_flight=5)
        assert group.policy() == group.set_policy(max_in_flight=5) == rules


@pytest.mark.parametrize(("wrong", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_rule_is_explained(
    store: kvstream.Store, wrong: Callable[[Group], Any], says: str
) -> None:
    group = store.stream("jobs").create_group("g", "0")
    with pytest.raises(InvalidArgument) as error:
        wrong(group)
    assert str(error.value) == says
    assert group.policy() is None


def test_a_redis_has_no_policies(old: str) -> None:
    with kvstream.open(old) as store:
        group = store.stream("jobs").create_group("g", "0")
        with pytest.raises(ServerTooOld) as error:
            group.set_policy(lease=30)
        said = str(error.value)
        assert said.startswith("KVSTREAM.POLICY is a command of kvstream: the server at ")
        assert said.endswith(" is Redis 7.0.15; open a directory, or run `kvstream serve`")
