"""When the replies of an ``always`` server request their fsync."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from kvstream.server.runtime.reply_queue import LINGER_S, QUICK_S, SLOWEST_S, GroupFsync
from kvstream.types.options import Durability
from tests.opening import change_thresholds
from tests.server.asking import Asker
from tests.server.conftest import Served

SLOW_S = QUICK_S + 0.00001
"""A simulated fsync, for which the loop does not block."""


class Loop:
    """A loop whose rounds are run manually, and an outbox that records the requests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.asked: list[int] = []
        self.waited: list[int] = []
        self.waiting = 0
        self.group_fsync = GroupFsync(self, self.soon.append, lambda: self.now)

    def ask(self) -> None:
        self.asked.append(self.waiting)

    def wait(self) -> None:
        self.waited.append(self.waiting)

    def turn(self, replies: int) -> None:
        """Run a turn with this many replies."""
        self.waiting += replies
        self.group_fsync.begin()

    def round(self) -> None:
        """Run the functions due after the reads of this round."""
        soon, self.soon[:] = list(self.soon), []
        for function in soon:
            function()

    def synced(self, seconds: float, answered: int) -> None:
        """End an fsync of this duration."""
        self.now += seconds
        self.waiting -= answered
        self.group_fsync.end()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_single_reply_waits_for_one_round_of_reads(loop: Loop) -> None:
    loop.turn(1)
    assert loop.asked == []
    loop.round()
    loop.synced(SLOW_S, answered=1)
    loop.turn(1)
    loop.round()
    assert loop.asked == [1, 1]


def test_requests_that_arrive_during_an_fsync_wait_for_the_answered_clients(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.round()
    assert loop.asked == [3]  # and none for the two while it is running
    loop.synced(SLOW_S, answered=3)
    loop.round()
    assert loop.asked == [3]
    loop.turn(3)
    loop.round()
    assert loop.asked == [3, 5]


def test_a_group_commit_waits_at_most_half_an_fsync_for_absent_clients(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.synced(SLOW_S, answered=3)
    loop.now += SLOW_S / 2 - 0.00001
    loop.round()
    assert loop.asked == [3]
    loop.now += 0.00002
    loop.round()
    assert loop.asked == [3, 2]
    loop.synced(SLOW_S, answered=2)
    loop.turn(2)
    loop.round()
    assert loop.asked == [3, 2, 2]  # the three are no longer awaited


def test_no_client_waits_long_for_others_on_a_slow_disk(loop: Loop) -> None:
    loop.turn(3)
    loop.round()
    loop.turn(2)
    loop.synced(1.0, answered=3)
    loop.now += LINGER_S
    loop.round()
    assert loop.asked == [3, 2]


def test_the_loop_waits_for_a_fast_disk_after_a_single_slow_fsync(loop: Loop) -> None:
    for number, seconds in enumerate([QUICK_S / 2, QUICK_S / 2, QUICK_S, QUICK_S / 2]):
        loop.turn(1)
        loop.round()
        assert (len(loop.asked), len(loop.waited)) == (1, number)
        loop.synced(seconds, answered=1)


def test_a_thread_waits_for_a_disk_that_became_slow_until_it_is_fast(
    loop: Loop,
) -> None:
    for seconds in (QUICK_S / 2, SLOWEST_S * 100):
        loop.turn(1)
        loop.round()
        loop.synced(seconds, answered=1)
    assert (len(loop.asked), len(loop.waited)) == (1, 1)
    fsyncs = 0
    while len(loop.waited) == 1:
        loop.turn(1)
        loop.round()
        loop.synced(QUICK_S / 2, answered=1)
        fsyncs += 1
    assert 10 < fsyncs < 30


def test_replies_already_written_request_no_fsync(loop: Loop) -> None:
    loop.turn(2)
    loop.waiting = 0
    loop.group_fsync.end()
    loop.round()
    loop.turn(1)
    loop.round()
    assert loop.asked == [1]


def test_appends_are_durable_before_their_replies(served: Served) -> None:
    served.engine.set_durability(Durability.ALWAYS)
    committer, fsyncs = served.engine.committer, list[float]()
    committer.watch_fsyncs(fsyncs.append)
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


def test_a_long_reply_is_written_after_the_fsync_without_further_requests(
    served: Served,
) -> None:
    change_thresholds(served.engine, short_rows=1, look_rows=1)
    served.engine.set_durability(Durability.ALWAYS)
    with served.asker() as asker:
        for _ in range(5):
            for words in ("XADD s * f v", "XADD s * f v", "XRANGE s - +"):
                asker.send(*words.split())
            assert len([asker.read() for _ in range(3)][2]) >= 2


def test_a_long_reply_made_by_a_timer_is_written(served: Served) -> None:
    change_thresholds(served.engine, short_rows=1)
    with served.asker() as asker:
        for _ in range(3):
            asker.ask("XADD s * f v")
        asker.ask("XGROUP CREATE s g 0")
        asker.ask("XREADGROUP GROUP g one STREAMS s >")
        claim = "XREADGROUP GROUP g two BLOCK 0 CLAIM 300 STREAMS s >"
        assert len(asker.ask(claim)[0][1]) == 3
