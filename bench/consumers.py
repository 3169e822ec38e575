"""Consumers over plain sockets: each reads 100 entries of its own stream, then acknowledges them.

What a consumer sends, and how long each reply is, is known beforehand: the IDs of its stream are
chosen, and all of a length. So the load takes little time beside the servers that it measures.
"""

import selectors
import socket
import time
from collections.abc import Iterator

from redis import Redis

from bench.servers import CLIENTS, framed, port_of
from bench.workload import BATCH, entries

PAGE = 100
FIRST_ID = 1_000_000
"""IDs from here on: all of the same length."""
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
    """One socket, its requests to come, and the bytes that its next reply still lacks."""

    def __init__(self, port: int, number: int, pages: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = self._all(_key(number), pages)
        self._tail = b""

    def _all(self, key: str, pages: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield each request with the bytes that its reply ends with."""
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
        """Send the next request; False where there is none."""
        request, self._awaited = next(self._requests, (b"", b""))
        self.socket.sendall(request)
        return bool(request)

    def received(self) -> bool:
        """Take what has come; True once the reply is whole."""
        data = self.socket.recv(1 << 18)
        if not data or data.startswith(b"-"):
            raise RuntimeError(f"a consumer was told {data[:200]!r}")
        self._tail = (self._tail + data)[-len(self._awaited) :]
        if self._tail != self._awaited:
            return False
        self._tail = b""
        return True


def consumed(client: Redis, pages: int) -> float:
    """Have 50 consumers read and acknowledge pages of 100, so many in all; return the seconds."""
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
    _prove(client, each)
    return seconds * pages / (each * CLIENTS)


def _prove(client: Redis, pages: int) -> None:
    """Raise where not every entry was read and acknowledged."""
    for number in range(CLIENTS):
        group = client.xinfo_groups(_key(number))[0]
        if group["pending"] or group["entries-read"] != PAGE * pages:
            raise RuntimeError(f"{_key(number)} was not consumed: {group}")
