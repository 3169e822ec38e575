"""Readers of one group share what comes: an entry costs one attempt more than it serves."""

from typing import Any

import pytest

from kvstream.engine.waiters import Waiter, Waiters

KEY = b"\0\0s"


class Attempts:
    """Waiters of one key, and which of them have tried; so many of them find something."""

    def __init__(self, finds: int) -> None:
        self.waiters = Waiters()
        self.tried: list[int] = []
        self._all: list[Waiter] = []
        self._finds = finds

    def add(self, shares: bytes | None) -> None:
        self._all.append(Waiter([KEY], _nothing, _nothing, shares))
        self.waiters.add(self._all[-1])

    def run(self) -> list[int]:
        self.waiters.serve(KEY, self._attempt)
        return self.tried

    def _attempt(self, waiter: Waiter) -> bool:
        self.tried.append(self._all.index(waiter))
        self._finds -= 1
        return self._finds >= 0


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


def test_readers_of_other_groups_and_of_none_try_for_themselves() -> None:
    attempts = Attempts(0)
    for shares in (b"one", None, b"one", b"other", None, b"other", b"one"):
        attempts.add(shares)
    assert attempts.run() == [0, 1, 3, 4]


def test_a_reader_that_waits_no_more_is_skipped() -> None:
    attempts = Attempts(0)
    attempts.add(b"one")
    attempts.add(b"one")
    next(iter(attempts.waiters.of(KEY))).done = True
    assert attempts.run() == [1]
