"""Deadlines of blocked clients: on time, at a cost that does not depend on their number."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kvstream.server.runtime.blocked_clients import SPARE, TIMES
from tests.server.talking import Server, Talker

WAITERS = 1000


def wait_for(server: Server, stream: str, block_ms: int) -> Talker:
    """Return a client that waits."""
    talker = server.client()
    assert talker.ask("XREAD", "BLOCK", str(block_ms), "STREAMS", stream, "$") == b""
    return talker


def lines_run(function: Callable[[], object]) -> int:
    """Return how many lines of Python a call executes: the least of several tries."""
    return min(_lines_run(function) for _ in range(5))


def _lines_run(function: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def one_round(server: Server, talker: Talker) -> Callable[[], None]:
    """Return what the loop does for one request: a turn, and a check for due work."""

    def run() -> None:
        assert talker.ask("PING") == b"+PONG\r\n"
        server.executor.expire()
        server.executor.due()

    return run


def test_a_turn_does_not_visit_a_thousand_waiters(server: Server) -> None:
    active = server.client()
    wait_for(server, "s", 100_000)
    run = one_round(server, active)
    run()  # one-time initialisation
    alone = lines_run(run)
    for number in range(WAITERS):
        wait_for(server, f"s{number}", 100_000 + number)
    assert len(server.executor.blocked) == WAITERS + 1
    assert lines_run(run) == alone


def test_each_of_a_thousand_waits_ends_at_its_own_time(server: Server) -> None:
    order = [number * 7919 % WAITERS for number in range(WAITERS)]  # a mixed order
    talkers = {number: wait_for(server, "s", 1000 + number) for number in order}
    assert server.executor.due() == pytest.approx(server.now + 1)
    server.wait(1.4995)
    ended = {number for number, talker in talkers.items() if talker.heard() == b"*-1\r\n"}
    assert ended == set(range(500))
    assert server.executor.due() == pytest.approx(1001.5)
    server.wait(0.5)
    assert all(talkers[number].heard() == b"*-1\r\n" for number in range(500, WAITERS))
    assert server.executor.due() is None


def test_finished_waits_are_removed_before_their_deadline(server: Server) -> None:
    talker = server.client()
    writer = server.client()
    for number in range(1, WAITERS):
        talker.ask("XREAD", "BLOCK", "3600000", "STREAMS", "s", "$")
        writer.ask("XADD", "s", f"{number}-1", "f", "v")
        assert talker.heard() != b""
    assert len(server.executor.blocking.deadlines) <= SPARE + 2 * TIMES


def test_a_wait_for_replicas_that_is_over_is_forgotten(server: Server) -> None:
    waits, talker, lost = server.executor.replication.waits, server.client(), server.client()
    for each in (talker, lost):
        assert each.ask("WAIT", "1", "1000") == b""
    lost.leave()
    assert waits.is_any()
    server.wait(2)
    assert talker.heard() == b":0\r\n"
    assert not waits.is_any()


def test_the_deadline_of_a_finished_wait_does_not_end_the_next(server: Server) -> None:
    talker, writer = server.client(), server.client()
    talker.ask("XREAD", "BLOCK", "1000", "STREAMS", "s", "$")
    writer.ask("XADD", "s", "1-1", "f", "v")
    assert b"1-1" in talker.heard()
    talker.ask("XREAD", "BLOCK", "5000", "STREAMS", "s", "$")
    assert server.executor.due() == pytest.approx(1005)
    server.wait(2)
    assert talker.heard() == b""
    server.wait(3)
    assert talker.heard() == b"*-1\r\n"


def test_a_deadline_precedes_another_attempt(server: Server) -> None:
    talker, writer = server.client(), server.client()
    writer.ask("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    claim = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", "2500", "CLAIM", "60000")
    talker.ask(*claim, "STREAMS", "s", ">")
    assert server.executor.due() == pytest.approx(server.now + 1)
    server.wait(1)
    assert talker.heard() == b""
    assert server.executor.due() == pytest.approx(server.now + 1)
    server.wait(1)
    assert server.executor.due() == pytest.approx(1002.5)
    server.wait(0.5)
    assert talker.heard() == b"*-1\r\n"
    assert server.executor.due() is None


CLAIMERS, GROUPS = 50, 10


def test_all_due_clients_are_handled_at_once(server: Server) -> None:
    """After a stop, or with many CLAIM readers: expired waits end first; each group is tried once.

    The readers of a group that wait for the same idle time find what the first of them finds.
    """
    writer = server.client()
    writer.ask("XADD", "s", "1-1", "f", "v")
    claimers = [server.client() for _ in range(CLAIMERS)]
    for number, talker in enumerate(claimers):
        group = f"g{number % GROUPS}"
        writer.ask("XGROUP", "CREATE", "s", group, "0")
        writer.ask("XREADGROUP", "GROUP", group, "old", "STREAMS", "s", ">")
        claim = ("BLOCK", "0", "CLAIM", "100000", "STREAMS", "s", ">")
        assert talker.ask("XREADGROUP", "GROUP", group, "c", *claim) == b""
        server.now += 0.013  # each has its own time
    plain = wait_for(server, "other", 500)
    tried: list[bool] = []
    for talker in claimers:
        block = talker.client.block
        assert block is not None
        block.waiter.attempt = counted(
            block.waiter.attempt, lambda: tried.append(not plain.has_heard)
        )
    server.wait(10.0)
    assert plain.heard() == b"*-1\r\n"
    assert tried == [False] * GROUPS
    tried.clear()
    server.wait(0.5)  # the others retry together
    server.wait(0.5)
    assert len(tried) == GROUPS


def _note(tried: list[bool], plain: Talker) -> None:
    tried.append(not plain.has_heard)


def counted(attempt: Callable[[Any], Any], note: Callable[[], None]) -> Callable[[Any], Any]:
    """Return an attempt that is recorded."""

    def run(txn: Any) -> Any:
        note()
        return attempt(txn)

    return run
