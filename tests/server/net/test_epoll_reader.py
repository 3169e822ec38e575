"""Compiled code reads plain sockets together."""

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.server.compiled import twins
from kvstream.server.net.asyncio_server import Channel, EpollReader

pytestmark = pytest.mark.skipif(
    twins is None or not hasattr(select, "epoll"), reason="transports read the sockets here"
)


class Ending(Channel):
    """A channel that records how it ended."""

    def __init__(self, executor: Any) -> None:
        listener: Any = SimpleNamespace()
        super().__init__(executor, listener)
        self.client: Any = object()
        self.events: list[object] = []

    def end_input(self) -> None:
        self.events.append("end_input")

    def report(self, error: Exception) -> None:
        self.events.append(error)

    def abort(self) -> None:
        self.events.append("aborted")


class Pairs:
    """Sockets, their peers, and their channels."""

    def __init__(self, count: int) -> None:
        self.received: list[tuple[Any, bytes]] = []
        self.executor = SimpleNamespace(
            statistics=None,
            limits=None,
            receive=lambda client, data: self.received.append((client, data)),
        )
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.channels = [Ending(self.executor) for _ in range(count)]

    def join(self, reader: EpollReader) -> None:
        for (ours, _), channel in zip(self.pairs, self.channels, strict=True):
            reader.add(ours.fileno(), channel)

    def close(self) -> None:
        for ours, theirs in self.pairs:
            ours.close()
            theirs.close()


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    made = Pairs(3)
    yield made
    made.close()


def in_loop(function: Callable[[EpollReader], None]) -> None:
    """Call a function with a reader, in a loop."""

    async def main() -> None:
        function(EpollReader(lambda: None))

    asyncio.run(main())


def test_all_readable_sockets_are_read_together(pairs: Pairs) -> None:
    def run(reader: EpollReader) -> None:
        first, second, third = (channel.client for channel in pairs.channels)
        pairs.join(reader)
        assert reader.receive() == 0
        pairs.pairs[0][1].sendall(b"first")
        pairs.pairs[2][1].sendall(b"third")
        assert reader.receive() == 2
        assert sorted(pairs.received, key=lambda each: each[1]) == [
            (first, b"first"),
            (third, b"third"),
        ]
        pairs.pairs[1][1].sendall(b"second")
        reader.discard(pairs.pairs[1][0].fileno())
        reader.discard(pairs.pairs[1][0].fileno())
        assert reader.receive() == 0
        reader.add(pairs.pairs[1][0].fileno(), pairs.channels[1])
        assert reader.receive() == 1
        assert pairs.received[2:] == [(second, b"second")]

    in_loop(run)


def test_each_channel_is_notified_of_its_end_or_failure(pairs: Pairs) -> None:
    error = ValueError("no such request")
    third = pairs.channels[2].client

    def receive(client: Any, data: bytes) -> None:
        if client is not third:
            raise error

    def run(reader: EpollReader) -> None:
        pairs.join(reader)
        pairs.executor.receive = receive
        pairs.pairs[0][1].sendall(b"first")
        pairs.pairs[1][1].close()
        pairs.pairs[2][1].sendall(b"third")
        assert reader.receive() == 3
        assert [channel.events for channel in pairs.channels] == [[error], ["end_input"], []]

    in_loop(run)


def processor_us(call: Callable[[], object]) -> float:
    begun = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begun) / 1000


POLLED_US = 50
"""Processor time of a look that polls; one that does not takes a few microseconds."""
FEW = 30
"""Of a thousand looks so many may take longer for another reason."""


def exchange(pairs: Pairs, reader: EpollReader, client: int = 0) -> float:
    """Send to a reader that waits for no long time; return the processor time of its next look."""
    pairs.pairs[client][1].sendall(b"request")
    assert reader.receive() == 1
    return processor_us(reader.receive)


def test_a_reader_polls_after_short_waits_until_a_long_one(pairs: Pairs) -> None:
    def run(reader: EpollReader) -> None:
        pairs.join(reader)
        assert reader.receive() == 0
        first = [exchange(pairs, reader) for _ in range(5)]
        assert min(first) < POLLED_US
        assert any(exchange(pairs, reader) > POLLED_US for _ in range(10_000))
        time.sleep(0.001)
        assert min(exchange(pairs, reader) for _ in range(5)) < POLLED_US

    in_loop(run)


def test_a_reader_polls_for_four_clients_and_not_for_five() -> None:
    def polls(reader: EpollReader, count: int) -> int:
        """Return how many looks poll, of a thousand after requests of some clients by turns."""
        return sum(exchange(five, reader, number % count) > POLLED_US for number in range(1000))

    def run(reader: EpollReader) -> None:
        five.join(reader)
        assert polls(reader, 5) < FEW
        assert any(polls(reader, 4) > FEW for _ in range(20))
        assert polls(reader, 5) < FEW

    five = Pairs(5)
    try:
        in_loop(run)
    finally:
        five.close()


def test_a_reader_returns_what_comes_while_it_polls(pairs: Pairs) -> None:
    asked = threading.Semaphore(0)
    rounds = 2000

    def answer() -> None:
        for _ in range(rounds):
            asked.acquire()
            pairs.pairs[0][1].sendall(b"request")

    def run(reader: EpollReader) -> None:
        pairs.join(reader)
        for _ in range(rounds):
            asked.release()
            while not reader.receive():
                pass

    peer = threading.Thread(target=answer)
    peer.start()
    in_loop(run)
    peer.join()
    assert b"".join(data for _, data in pairs.received) == b"request" * rounds


@pytest.fixture
def one_processor() -> Iterator[None]:
    """Let this thread run on one processor only."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    yield
    os.sched_setaffinity(0, processors)


@pytest.mark.usefixtures("one_processor")
def test_a_reader_does_not_poll_on_one_processor(pairs: Pairs) -> None:
    def run(reader: EpollReader) -> None:
        pairs.join(reader)
        assert reader.receive() == 0
        looks = [exchange(pairs, reader) for _ in range(100)]
        assert sorted(looks)[50] < POLLED_US

    in_loop(run)
