"""Kill a queue while messages are delayed, leased, backing off, given up and redriven.

Afterwards each is in exactly one place: delayed, in the stream, among the dead letters, or done.
Messages that waited when the process died become ready again, and are done in the end.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from kvstream import Entry, Store
from kvstream.layout.keys import qualified
from kvstream.operations import delayed
from tests.crash.retry_writer import DELIVERIES, queue_of
from tests.crash.rounds import rounds
from tests.crash.test_order_crashes import work_until_killed
from tests.patience import until

NAME = qualified(0, b"jobs")


class Places(NamedTuple):
    """The numbers of the messages in each state."""

    delayed: set[int]
    live: set[int]
    """Not delivered yet, leased, waiting or ready."""
    done: set[int]
    """Acknowledged, but not removed yet."""
    dead: set[int]


def distinct(entries: Iterable[Entry]) -> set[int]:
    numbers = [int(entry.fields[b"n"]) for entry in entries]
    assert len(set(numbers)) == len(numbers), "a message is there twice"
    return set(numbers)


def places_in(store: Store) -> Places:
    jobs = store.stream("jobs")
    with store.transaction():  # no timer fires between the reads
        found = jobs.range()
        waiting = store.engine.run(delayed.list_messages, NAME, None, 1 << 20)
        letters = store.stream("jobs:dead").range()
        groups = jobs.groups() if store.exists("jobs") else []
        rows = jobs.group("workers").pending_range(count=1 << 20) if groups else []
    last = groups[0].last_delivered_id if groups else None
    pending = {row.id for row in rows}
    for letter in letters:
        deliveries = int(letter.fields[b"dead:deliveries"])
        assert letter.fields[b"dead:reason"] == b"fatal" or deliveries == DELIVERIES
    assert all(row.deliveries <= DELIVERIES for row in rows)
    live = [each for each in found if each.id in pending or last is None or each.id > last]
    assert pending <= {each.id for each in found}
    numbers = [int(each.fields[b"n"]) for each in waiting]
    assert len(set(numbers)) == len(numbers)
    done = distinct(found) - distinct(live)
    return Places(set(numbers), distinct(live), done, distinct(letters))


@pytest.mark.timeout(3600)
def test_every_message_is_in_one_state_and_none_is_stuck(tmp_path: Path) -> None:
    added: set[int] = set()
    done: set[int] = set()
    for seed in range(1, rounds(2) + 1):
        doubtful: set[int] = set()
        for word, command, *numbers in work_until_killed(tmp_path / "store", seed, "retry_writer"):
            named = {int(number) for number in numbers}
            doubtful = named if word == "try" else set()
            if word == "did":
                added |= named if command == "add" else set()
                done |= named if command == "done" else set()
        with Store.open(tmp_path / "store", free_space_reserve=0) as store:
            assert store.check() == []
            found = places_in(store)
            open_ones = [*found.delayed, *found.live, *found.dead]
            assert len(set(open_ones)) == len(open_ones)
            assert found.done.isdisjoint(open_ones)
            assert (set(open_ones) ^ (added - done)) <= doubtful
            added |= doubtful & set(open_ones)
            done |= (doubtful & added) - set(open_ones)
    with Store.open(tmp_path / "store", free_space_reserve=0) as store:
        queue = queue_of(store)
        queue.cancel_redrive()

        def is_worked_off() -> bool:
            while messages := queue.get(1000):
                queue.ack(*messages)
                done.update(int(message.fields[b"n"]) for message in messages)
            left = places_in(store)
            return not left.delayed and not left.live

        until(is_worked_off, "what waited", 0.02)
        dead = places_in(store).dead
        assert dead | done == added
        assert dead.isdisjoint(done)
        assert store.check() == []
