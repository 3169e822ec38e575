"""When the replies of an ``always`` server ask for their fsync."""

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvstream.operations import pages
from kvstream.server.runtime import group_fsync
from kvstream.server.runtime.group_fsync import (
    LINGER_S,
    QUICK_S,
    SHARE,
    SLOWEST_S,
    VAIN_MAX,
    Gathering,
)
from kvstream.types.options import Durability
from tests.server.asking import Asker
from tests.server.conftest import Served


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
        self.owner: SimpleNamespace = SimpleNamespace(
            outbox=self.outbox,
            bursts=[],
            ready={},
            engine=SimpleNamespace(durability=Durability.ALWAYS),
        )
        self.gathering = Gathering(cast(Any, self.owner), self.soon.append, lambda: self.now)
        self.coming: list[tuple[float, int]] = []
        """When who sends an append, in order."""
        self.looked_us: list[int] = []

    def _wait(self) -> None:
        self.waited.append(self.outbox.waiting)
        self.synced(self.takes_s, self.outbox.waiting)

    def turn(self, replies: int) -> None:
        """Have a turn leave so many replies."""
        self.outbox.waiting += replies
        self.gathering.begin()

    def appends(self, *clients: int) -> None:
        """Have clients send an append each."""
        self.owner.bursts += [SimpleNamespace(client=SimpleNamespace(id=each)) for each in clients]

    def look(self, patience_us: int) -> bool:
        """Read what comes within so many microseconds."""
        self.looked_us.append(patience_us)
        until = self.now + patience_us / 1_000_000
        if not self.coming or self.coming[0][0] > until:
            self.now = until
            return False
        self.now = max(self.now, self.coming[0][0])
        while self.coming and self.coming[0][0] <= self.now:
            self.appends(self.coming.pop(0)[1])
        return True

    def turn_of_appends(self) -> int:
        """Have what came, and who is waited for, run and answered; return how many they were."""
        self.gathering.gather(self.look)
        count = len(self.owner.bursts)
        self.owner.bursts.clear()
        self.turn(count)
        return count

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
    monkeypatch.setattr(group_fsync, "QUICK_S", 0.0)
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


def test_one_slow_fsync_among_quick_ones_changes_nothing(quick: Loop) -> None:
    fsyncs = (QUICK_S * SHARE / 2, *[QUICK_S / 2] * 3 * SHARE) * 3
    for waited, quick.takes_s in enumerate(fsyncs, start=1):
        quick.turn(1)
        quick.round()
        assert (len(quick.asked), len(quick.waited)) == (1, waited)


@pytest.mark.parametrize("took_s", [QUICK_S * SHARE, SLOWEST_S, 10.0])
def test_a_disk_that_is_slow_of_late_is_waited_for_by_a_thread(quick: Loop, took_s: float) -> None:
    quick.takes_s = took_s
    quick.turn(1)
    quick.round()
    assert quick.waited == [1]
    for asked in range(2, 12):
        quick.turn(1)
        quick.round()
        assert (len(quick.asked), quick.waited) == (asked, [1])
        quick.synced(QUICK_S * 1.5, answered=1)
    again = 0
    while len(quick.waited) == 1:
        again += 1
        quick.takes_s = QUICK_S / 2
        quick.turn(1)
        quick.round()
        if len(quick.waited) == 1:
            quick.synced(QUICK_S / 2, answered=1)
    assert 1 < again < 3 * SHARE


@pytest.fixture
def quick() -> Loop:
    """A loop whose fsyncs take a millisecond, and are known to."""
    loop = Loop()
    loop.takes_s = QUICK_S / 2
    loop.turn(1)
    loop.round()
    loop.synced(loop.takes_s, answered=1)
    return loop


def test_one_turn_and_one_fsync_do_for_all_who_take_turns(quick: Loop) -> None:
    quick.appends(1, 2)
    assert quick.turn_of_appends() == 2
    assert (quick.waited, quick.soon) == ([2], [])  # at once, in the turn
    quick.appends(3, 4)
    quick.coming = [(quick.now + 0.0002, 1), (quick.now + 0.0003, 2)]
    assert quick.turn_of_appends() == 4
    quick.appends(1, 2, 3, 4)
    quick.looked_us.clear()
    assert quick.turn_of_appends() == 4
    assert (quick.waited, quick.looked_us) == ([2, 4, 4], [])


def test_who_is_alone_waits_for_nobody(quick: Loop) -> None:
    for _ in range(3):
        quick.appends(7)
        assert quick.turn_of_appends() == 1
    assert (quick.waited, quick.looked_us) == ([1, 1, 1], [])


def test_those_who_are_here_wait_no_longer_than_the_others_would(quick: Loop) -> None:
    quick.appends(*range(10))
    quick.turn_of_appends()
    quick.appends(*range(8))
    begun = quick.now
    quick.coming = [(begun + 0.0001, 8), (begun + 0.0002, 9)]
    assert quick.turn_of_appends() == 9
    took_s = quick.now - begun - quick.takes_s
    assert took_s == pytest.approx(max(0.0001, quick.takes_s / 9), abs=2e-6)
    assert quick.looked_us[0] == pytest.approx(quick.takes_s * 2 / 8 * 1_000_000, abs=1)


def test_who_is_waited_for_in_vain_is_waited_for_less_and_less_often(quick: Loop) -> None:
    held = []
    for number in range(2 ** (VAIN_MAX + 1)):
        quick.appends(number)
        quick.turn_of_appends()
        if quick.looked_us:
            held.append(number)
            quick.looked_us.clear()
    assert held == [2**n - 1 for n in range(1, VAIN_MAX + 2)]
    for number in range(1000, 1000 + 2**VAIN_MAX):
        quick.appends(number)
        quick.coming = [(quick.now, number - 1)]
        quick.turn_of_appends()
        quick.coming.clear()
    quick.looked_us.clear()
    for number in range(2):  # somebody came: the next is held back again, and then not
        quick.appends(number)
        quick.turn_of_appends()
    assert len(quick.looked_us) == 1


@pytest.mark.parametrize("why", ["a slow disk", "other requests", "no fsync", "one under way"])
def test_turns_are_held_back_for_their_fsync_alone(quick: Loop, why: str) -> None:
    quick.appends(1, 2)
    quick.turn_of_appends()
    quick.appends(1)
    if why == "a slow disk":
        quick.turn(1)
        quick.takes_s = QUICK_S * 2 * SHARE
        quick.now += LINGER_S
        quick.round()
    elif why == "other requests":
        quick.owner.ready[object()] = None
    elif why == "no fsync":
        quick.owner.engine.durability = Durability.EVERYSEC
    else:
        quick.turn(1)
    waited = list(quick.waited)
    quick.turn_of_appends()
    assert (quick.looked_us, quick.waited, len(quick.soon)) == ([], waited, 1)


def test_whoever_comes_with_another_request_ends_the_wait(quick: Loop) -> None:
    quick.appends(1, 2)
    quick.turn_of_appends()
    quick.appends(1)

    def look(patience_us: int) -> bool:
        quick.looked_us.append(patience_us)
        quick.owner.ready[object()] = None
        return True

    quick.gathering.gather(look)
    assert len(quick.looked_us) == 1


@pytest.mark.parametrize("quick_s", [0.0, 60.0])
def test_appends_are_durable_when_they_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch, quick_s: float
) -> None:
    monkeypatch.setattr(group_fsync, "QUICK_S", quick_s)
    served.engine.set_durability(Durability.ALWAYS)
    committer, fsyncs = served.engine.committer, list[float]()
    committer.on_fsync = fsyncs.append
    with ExitStack() as stack:
        askers = [stack.enter_context(Asker(served.port, 2)) for _ in range(6)]
        for number in range(20):
            present = askers[: number % 6 + 1]
            for asker in present:
                asker.send("XADD", "log", "*", "number", str(number))
            for asker in present:
                assert b"-" in asker.read()
            assert committer.durable_sequence == served.engine.seen_sequence
    assert 20 <= len(fsyncs) <= served.executor.statistics.turns + 1  # the last may still run


@pytest.mark.parametrize("quick_s", [0.0, 60.0])
def test_a_long_reply_is_written_behind_the_fsync_though_nobody_sends_more(
    served: Served, monkeypatch: pytest.MonkeyPatch, quick_s: float
) -> None:
    monkeypatch.setattr(group_fsync, "QUICK_S", quick_s)
    monkeypatch.setattr(pages, "SHORT_ROWS", 1)
    monkeypatch.setattr(pages, "LOOK_ROWS", 1)
    served.engine.set_durability(Durability.ALWAYS)
    with served.asker() as asker:
        for _ in range(5):
            for words in ("XADD s * f v", "XADD s * f v", "XRANGE s - +"):
                asker.send(*words.split())
            assert len([asker.read() for _ in range(3)][2]) >= 2


def test_a_long_reply_that_a_timer_has_found_is_written(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SHORT_ROWS", 1)
    with served.asker() as asker:
        for _ in range(3):
            asker.ask("XADD s * f v")
        asker.ask("XGROUP CREATE s g 0")
        asker.ask("XREADGROUP GROUP g one STREAMS s >")
        claim = "XREADGROUP GROUP g two BLOCK 0 CLAIM 300 STREAMS s >"
        assert len(asker.ask(claim)[0][1]) == 3
