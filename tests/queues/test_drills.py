"""Drills: bad messages among many good ones, and very many messages due at once."""

import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstream import ManualClock, Queue, Store
from kvstream.engine import timer_thread

MESSAGES = 10_000
POISON = frozenset({17, 2500, 2501, 9999})
LEASE_S, BACKOFF_S, DELIVERIES = 30, 60, 5
DELAYED = 1_000_000 if os.environ.get("KVSTREAM_LOAD") else 20_000
MINUTE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store.open(tmp_path / "store", durability="no", clock=clock) as opened:
        yield opened
        assert opened.check() == []


def fire(store: Store) -> int:
    """Fire all due timers; return the number of steps."""
    steps = 0
    while store.engine.run(timer_thread.run_due, 500):
        steps += 1
    return steps


@pytest.mark.parametrize("order_by", [None, "key"])
@pytest.mark.parametrize("how", ["fails", "kills its worker"])
def test_four_bad_messages_among_ten_thousand_do_not_block_the_others(
    store: Store, clock: ManualClock, how: str, order_by: str | None
) -> None:
    """All others are done before the clock moves; only messages with the key of a bad one wait."""
    rules = {"lease": LEASE_S, "backoff": [BACKOFF_S], "max_deliveries": DELIVERIES}
    queue = Queue(store, "jobs", order_by=order_by, **rules)  # type: ignore[arg-type]
    queue.put_many([{"n": n, "key": n % 1000} for n in range(MESSAGES)])
    done: Counter[int] = Counter()

    def work() -> None:
        while messages := queue.get(1 if how != "fails" else 50):
            for message in messages:
                n = int(message.fields[b"n"])
                if n not in POISON:
                    message.ack()
                    done[n] += 1
                elif how == "fails":
                    message.nack(error="bad")

    work()
    behind = {n for bad in POISON for n in range(bad + 1000, MESSAGES, 1000)} if order_by else set()
    assert set(done) == set(range(MESSAGES)) - POISON - behind
    for _ in range(DELIVERIES + 1):
        clock.advance(1000 * max(LEASE_S, BACKOFF_S))
        fire(store)
        work()
    assert done == dict.fromkeys(set(range(MESSAGES)) - POISON, 1)
    letters = queue.dead()
    assert {int(letter.fields[b"n"]) for letter in letters} == POISON
    assert {letter.deliveries for letter in letters} == {DELIVERIES}
    assert queue.info().leased == queue.info().waiting == 0


@pytest.mark.timeout(3600)
def test_very_many_delayed_messages_are_due_in_one_minute(store: Store, clock: ManualClock) -> None:
    """Each is in the stream within a step after its time, in the order of the times, once.

    A million of them with KVSTREAM_LOAD.
    """
    chance, begun = random.Random(1), clock.ms
    times: list[int] = sorted(begun + 1 + chance.randrange(MINUTE_MS) for _ in range(DELAYED))
    stream, shuffled = store.stream("s"), times[:]
    chance.shuffle(shuffled)
    for at in range(0, DELAYED, 1000):
        with store.transaction():
            for at_ms in shuffled[at : at + 1000]:
                stream.add({"at": at_ms}, at=at_ms / 1000)
    fired = 0
    for _ in range(12):
        clock.advance(MINUTE_MS // 12)
        steps = fire(store)
        waiting = DELAYED - bisect_right(times, clock.ms)
        assert steps <= (DELAYED - waiting - fired) // 500 + 2
        fired = DELAYED - waiting
        assert (len(stream), stream.delayed_count()) == (fired, waiting)
    assert [int(entry.fields[b"at"]) for entry in stream] == times
