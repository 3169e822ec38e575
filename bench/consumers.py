"""Consumers over plain sockets: each reads 100 entries of its own stream, then acknowledges them.

IDs are explicit and of equal length, so each request and the end of each reply are known
beforehand. So the consumers take little time beside the server that they measure.
"""

import selectors
import socket
import time
from collections.abc import Iterator

from redis import Redis

from bench.processes import CLIENTS, framed, port_of
from bench.workload import BATCH, entries

PAGE = 100
FIRST_ID = 1_000_000
"""The first ID; all have the same length."""
GROUP = "billing"


def _key(number: int) -> str:
    return f"orders-{number:02d}"


def _prepare(client: Redis, pages: int) -> None:
    pool = entries(PAGE * pages)
    for number in range(CLIENTS):
        key = _key(number)
        for start in range(0, len(pool), BATCH):
            pipe = client.pipeline(transaction=False)
            for at, fields in enumerate(pool[start : start + BATCH], FIRST_ID + start):
                pipe.xadd(key, fields, id=f"{at}-0")  # type: ignore[arg-type]
            pipe.execute()
        client.xgroup_create(key, GROUP, id="0")


class _Consumer:
    """One socket with its remaining requests, and the end of the next reply."""

    def __init__(self, port: int, number: int, pages: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = self._exchanges(_key(number), pages)
        self._tail = b""

    def _exchanges(self, key: str, pages: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield each request with the end of its reply."""
        read = framed("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(PAGE), "STREAMS", key, ">")
        pool = entries(PAGE * pages)
        for page in range(pages):
            start = FIRST_ID + page * PAGE
            ids = [f"{at}-0" for at in range(start, start + PAGE)]
            last = "".join(
                f"${len(word)}\r\n{word}\r\n"
                for pair in pool[page * PAGE + PAGE - 1].items()
                for word in pair
            )
            yield read, f"${len(ids[-1])}\r\n{ids[-1]}\r\n*8\r\n{last}".encode()
            yield framed("XACK", key, GROUP, *ids), f":{PAGE}\r\n".encode()

    def send(self) -> bool:
        """Send the next request; return False if there is none."""
        request, self._awaited = next(self._requests, (b"", b""))
        self.socket.sendall(request)
        return bool(request)

    def received(self) -> bool:
        """Read what has arrived; return whether the reply is complete."""
        data = self.socket.recv(1 << 18)
        if not data or data.startswith(b"-"):
            raise RuntimeError(f"unexpected reply: {data[:200]!r}")
        self._tail = (self._tail + data)[-len(self._awaited) :]
        if self._tail != self._awaited:
            return False
        self._tail = b""
        return True


def consumed(client: Redis, pages: int) -> float:
    """Read and acknowledge ``pages`` pages of 100 entries with 50 consumers; return the seconds."""
    each = max(pages // CLIENTS, 1)
    _prepare(client, each)
    consumers = [_Consumer(port_of(client), number, each) for number in range(CLIENTS)]
    left = len(consumers)
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        begun = time.perf_counter()
        for consumer in consumers:
            consumer.send()
        while left:
            for ready, _ in selector.select():
                consumer = ready.data
                if consumer.received() and not consumer.send():
                    left -= 1
        seconds = time.perf_counter() - begun
    for consumer in consumers:
        consumer.socket.close()
    _check(client, each)
    return seconds * pages / (each * CLIENTS)


def _check(client: Redis, pages: int) -> None:
    """Raise RuntimeError unless every entry was read and acknowledged."""
    for number in range(CLIENTS):
        group = client.xinfo_groups(_key(number))[0]
        if group["pending"] or group["entries-read"] != PAGE * pages:
            raise RuntimeError(f"{_key(number)} was not consumed fully: {group}")
