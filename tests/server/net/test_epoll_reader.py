"""Compiled code reads plain sockets together."""

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvstream.resp import twins
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

    def ended(self) -> None:
        self.events.append("ended")

    def failed(self, error: Exception) -> None:
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
            received=lambda client, data: self.received.append((client, data)),
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
        pairs.executor.received = receive
        pairs.pairs[0][1].sendall(b"first")
        pairs.pairs[1][1].close()
        pairs.pairs[2][1].sendall(b"third")
        assert reader.receive() == 3
        assert [channel.events for channel in pairs.channels] == [[error], ["ended"], []]

    in_loop(run)
