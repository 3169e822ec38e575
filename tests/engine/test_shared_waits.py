"""Readers of one group share its entries; readers from one position share one attempt."""

from typing import Any

import pytest

from kvstream.engine.waiters import Outcome, Waiter, Waiters
from kvstream.meta.wakeups import Wake, Wakeups

KEY = b"\0\0s"


class Attempts:
    """Waiters of one key, and which of them have tried; the first ``finds`` attempts succeed."""

    def __init__(self, finds: int) -> None:
        self.waiters = Waiters(Wakeups())
        self.tried: list[int] = []
        self.served: list[tuple[int, int]] = []
        self._all: list[Waiter] = []
        self._finds = finds

    def add(self, share_key: bytes | None, group: bytes | None = b"group") -> None:
        self._all.append(Waiter([KEY], _nothing, _nothing, share_key, group=group))
        self.waiters.add(self._all[-1])

    def run(self) -> list[int]:
        self.waiters.serve(KEY, Wake.ADDED, self._attempt, self._take)
        return self.tried

    def _attempt(self, waiter: Waiter) -> Outcome | None:
        self.tried.append(self._all.index(waiter))
        self._finds -= 1
        return Outcome(self.tried[-1]) if self._finds >= 0 else None

    def _take(self, waiter: Waiter, outcome: Outcome) -> None:
        self.served.append((self._all.index(waiter), outcome.reply))


def _nothing(*_: Any) -> None:
    return None


@pytest.mark.parametrize(("finds", "tried"), [(0, 1), (1, 2), (4, 5), (10, 10)])
def test_later_readers_of_a_group_do_not_try_after_one_that_found_nothing(
    finds: int, tried: int
) -> None:
    attempts = Attempts(finds)
    for _ in range(10):
        attempts.add(b"group")
    assert attempts.run() == list(range(tried))
    assert attempts.served == [(at, at) for at in range(finds)]


def test_readers_without_a_group_share_one_attempt() -> None:
    attempts = Attempts(2)
    for share_key in (b"$", b"0", b"$", None, b"0", b"$"):
        attempts.add(share_key, group=None)
    assert attempts.run() == [0, 1, 3]
    assert attempts.served == [(0, 0), (1, 1), (2, 0), (4, 1), (5, 0)]


def test_readers_of_other_groups_and_of_none_try_for_themselves() -> None:
    attempts = Attempts(0)
    for share_key in (b"one", None, b"one", b"other", None, b"other", b"one"):
        attempts.add(share_key)
    assert attempts.run() == [0, 1, 3, 4]


def test_a_reader_that_no_longer_waits_is_skipped() -> None:
    attempts = Attempts(0)
    attempts.add(b"one")
    attempts.add(b"one")
    next(iter(attempts.waiters.of(KEY))).done = True
    assert attempts.run() == [1]


def test_the_number_of_sharing_waiters_follows_the_queue() -> None:
    waiters = Waiters(Wakeups())
    claims, plain = Waiter([KEY], _nothing, _nothing, group=b"g"), Waiter([KEY], _nothing, _nothing)
    member = Waiter([KEY, KEY], _nothing, _nothing, b"g", group=b"g")
    for waiter in (claims, plain, member):
        waiters.add(waiter)
    assert waiters.queues[KEY].sharing == {None: 2, b"g": 1}
    waiters.remove(claims)
    waiters.remove(member)
    waiters.remove(member)
    waiters.put_back([claims, member])
    assert waiters.of(KEY) == [claims, member, plain]
    assert waiters.queues[KEY].sharing == {None: 2, b"g": 1}
    for waiter in (claims, plain, member):
        waiters.remove(waiter)
    assert KEY not in waiters


def test_readers_that_share_nothing_are_all_tried() -> None:
    attempts = Attempts(0)
    for share_key, group in ((None, None), (b"one", b"one"), (None, b"one"), (None, None)):
        attempts.add(share_key, group)
    assert attempts.run() == [0, 1, 2, 3]
