"""When the replies of an ``always`` server ask for their fsync."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstream.server import gathering
from kvstream.server.gathering import CAUTION_S, LINGER_S, QUICK_S, Gathering


class Loop:
    """A loop whose rounds are run by hand, and an outbox that notes when it was asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.asked: list[int] = []
        self.waited: list[int] = []
        self.takes_s = 0.0
        self.outbox: SimpleNamespace = SimpleNamespace(
            waiting=0, ask=lambda: self.asked.append(self.outbox.waiting), wait=self._wait
        )
        owner = SimpleNamespace(clock=lambda: self.now, outbox=self.outbox)
        self.gathering = Gathering(cast(Any, owner), self.soon.append)

    def _wait(self) -> None:
        self.waited.append(self.outbox.waiting)
        self.synced(self.takes_s, self.outbox.waiting)

    def turn(self, replies: int) -> None:
        """Have a turn leave so many replies."""
        self.outbox.waiting += replies
        self.gathering.begin()

    def round(self) -> None:
        """Run what was to be run behind the reads of this round."""
        soon, self.soon[:] = list(self.soon), []
        for function in soon:
            function()

    def synced(self, seconds: float, answered: int) -> None:
        """End an fsync that took so long."""
        self.now += seconds
        self.outbox.waiting -= answered
        self.gathering.done()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """One in which a thread does all fsyncs."""
    monkeypatch.setattr(gathering, "QUICK_S", 0.0)
    return Loop()


def test_a_reply_alone_waits_for_one_round_of_reads_and_no_more(loop: Loop) -> None:
    loop.turn(1)
    assert loop.asked == []
    loop.round()
    loop.synced(0.001, answered=1)
    loop.turn(1)
    loop.round()
    assert loop.asked == [1, 1]


def test_those_who_come_during_an_fsync_wait_for_those_whom_it_answers(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.round()
    assert loop.asked == [3]  # and none for the two while it is under way
    loop.synced(0.001, answered=3)
    loop.round()
    assert loop.asked == [3]
    loop.turn(3)
    loop.round()
    assert loop.asked == [3, 5]


def test_nobody_waits_longer_than_half_an_fsync_for_who_does_not_come(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.synced(0.001, answered=3)
    loop.now += 0.00049
    loop.round()
    assert loop.asked == [3]
    loop.now += 0.00002
    loop.round()
    assert loop.asked == [3, 2]
    loop.synced(0.001, answered=2)
    loop.turn(2)
    loop.round()
    assert loop.asked == [3, 2, 2]  # it is not waited for the three again


def test_a_slow_disk_makes_nobody_wait_long(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.synced(1.0, answered=3)
    loop.now += LINGER_S
    loop.round()
    assert loop.asked == [3, 2]


def test_replies_that_were_written_otherwise_are_asked_for_no_more(loop: Loop) -> None:
    loop.turn(2)
    loop.outbox.waiting = 0
    loop.gathering.done()
    loop.round()
    loop.turn(1)
    loop.round()
    assert loop.asked == [1]


def test_a_quick_disk_is_waited_for_in_the_loop() -> None:
    loop = Loop()
    loop.takes_s = QUICK_S / 2
    loop.turn(1)
    loop.round()
    assert (loop.asked, loop.waited) == ([1], [])  # nothing is known of the disk yet
    loop.synced(QUICK_S / 2, answered=1)
    for _ in range(3):
        loop.turn(2)
        loop.round()
        loop.now += LINGER_S
        loop.round()
    assert (loop.asked, loop.waited) == ([1], [2, 2, 2])


def test_a_disk_that_was_slow_is_waited_for_by_a_thread_until_it_is_quick_again() -> None:
    loop = Loop()
    loop.turn(1)
    loop.round()
    loop.synced(QUICK_S / 2, answered=1)
    loop.takes_s = QUICK_S * 2
    loop.turn(1)
    loop.round()
    assert loop.waited == [1]
    for took in (QUICK_S / 2, CAUTION_S, QUICK_S / 2, CAUTION_S - QUICK_S, QUICK_S, QUICK_S / 2):
        loop.turn(1)
        loop.round()
        assert loop.waited == [1]
        loop.synced(took, answered=1)
    loop.now += CAUTION_S
    loop.turn(1)
    loop.round()
    loop.synced(QUICK_S / 2, answered=1)
    assert len(loop.asked) == 8
    loop.turn(1)
    loop.round()
    assert (len(loop.asked), loop.waited) == (8, [1, 1])
