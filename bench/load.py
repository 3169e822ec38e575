"""A load generator over plain sockets, for requests that redis-benchmark cannot make.

A script is a generator for one connection: it yields requests and gets their replies. The end of a
reply is known by its number of lines, so a reply is not decoded and the generator takes little time
beside the server that it measures.
"""

import selectors
import socket
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache

from bench.processes import framed
from bench.workload import Fields, entry

Script = Generator[tuple[bytes, int], bytes, None]
"""Yields each request with the number of lines of its reply; receives the reply."""

CHUNK = 1 << 18
KEPT = 4096
"""Bytes that a Line keeps of the end of a reply: enough for a section of INFO."""
STALL_S = 60.0
PIPELINE = 1000
"""Requests sent at once to prepare a row."""
FIRST_ID = 1_000_000
"""The first ID of a numbered stream: all its IDs have the same length."""
GROUP = "billing"
CONSUMER = "worker-1"
_END = b"$3\r\nend\r\n"


class WrongReply(Exception):
    """A server sent a reply that is not the expected one."""


def connect(port: int) -> socket.socket:
    """Connect to a server of this machine, without Nagle's delay."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=STALL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Line:
    """A connection that reads replies without decoding them."""

    def __init__(self, port: int) -> None:
        self._socket = connect(port)
        self._socket.settimeout(600)

    def ask(self, *requests: Sequence[object]) -> bytes:
        """Send requests, read all their replies, and return the end of the last one."""
        return self.send(b"".join(framed(*each) for each in requests))

    def send(self, framed_requests: bytes) -> bytes:
        """Send requests that are encoded already; return the end of the last reply."""
        self._socket.sendall(framed_requests + framed("ECHO", "end"))
        last = b""
        while not last.endswith(_END):
            data = self._socket.recv(CHUNK)
            if not data:
                raise EOFError("the server has closed the connection")
            last = (last + data[-KEPT:])[-KEPT:]
        return last[: -len(_END)]

    def close(self) -> None:
        self._socket.close()


class _Connection:
    """One socket with its script, and what has arrived of the next reply."""

    def __init__(self, connection: socket.socket, script: Script) -> None:
        self.socket = connection
        self._script = script
        self._parts: list[bytes] = []
        self._lines = 0

    def start(self) -> None:
        request, self._lines = next(self._script)
        self.socket.sendall(request)

    def received(self) -> bool:
        """Read what has arrived; send the next request after a whole reply.

        Returns whether the script has ended.
        """
        data = self.socket.recv(CHUNK)
        if not data or (data.startswith(b"-") and not self._parts):
            raise WrongReply(repr(data[:200]))
        self._parts.append(data)
        self._lines -= data.count(b"\n")
        if self._lines > 0:
            return False
        reply = b"".join(self._parts)
        self._parts.clear()
        try:
            request, self._lines = self._script.send(reply)
        except StopIteration:
            return True
        self.socket.sendall(request)
        return False


def run_scripts(port: int, scripts: Sequence[Script]) -> float:
    """Run each script on a connection of its own; return the seconds until all have ended."""
    with ExitStack() as stack:
        return run_on([stack.enter_context(connect(port)) for _ in scripts], scripts)


def run_on(opened: Sequence[socket.socket], scripts: Sequence[Script]) -> float:
    """Run each script on the connection at its place; return the seconds until all have ended."""
    with selectors.DefaultSelector() as selector:
        connections = [*map(_Connection, opened, scripts)]
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        begun = time.perf_counter()
        for connection in connections:
            connection.start()
        left = len(connections)
        while left:
            ready = selector.select(STALL_S)
            if not ready:
                raise WrongReply(f"no reply within {STALL_S:g} s")
            for key, _ in ready:
                if key.data.received():
                    selector.unregister(key.data.socket)
                    left -= 1
        return time.perf_counter() - begun


def exchanges(pairs: Iterable[tuple[bytes, bytes]]) -> Script:
    """Send requests one by one, and compare each reply with the expected one."""
    for request, expected in pairs:
        reply = yield request, expected.count(b"\n")
        if reply != expected:
            raise WrongReply(f"{reply[:200]!r} to {request[:200]!r}")


def dealt(
    requests: Sequence[bytes], replies: Sequence[bytes], clients: int, pipeline: int
) -> list[Script]:
    """Deal requests to the clients in turn, ``pipeline`` at once, with the expected replies."""
    pairs = [
        (b"".join(requests[at : at + pipeline]), b"".join(replies[at : at + pipeline]))
        for at in range(0, len(requests), pipeline)
    ]
    return [exchanges(pairs[number::clients]) for number in range(min(clients, len(pairs)))]


def ask_in_batches(port: int, requests: Sequence[bytes]) -> None:
    """Send encoded requests in batches, to prepare a row."""
    with closing(Line(port)) as opened:
        for at in range(0, len(requests), PIPELINE):
            opened.send(b"".join(requests[at : at + PIPELINE]))


def words(fields: Fields) -> list[str]:
    """Return the fields of an entry as arguments of a command."""
    return [word for pair in fields.items() for word in pair]


ENTRY = words(entry(0))
"""The fields of an entry with 100 bytes."""


def entry_id(number: int, first: int = FIRST_ID) -> str:
    """Return the ID of an entry of a numbered stream."""
    return f"{first + number}-0"


def bulk_string(text: str) -> bytes:
    """Encode a string as in a reply."""
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def entry_reply(number: int) -> bytes:
    """Encode an entry of a numbered stream as in a reply."""
    fields = words(entry(number))
    parts = [b"*2\r\n", bulk_string(entry_id(number)), b"*%d\r\n" % len(fields)]
    return b"".join([*parts, *map(bulk_string, fields)])


ENTRY_LINES = entry_reply(0).count(b"\n")
READ_LINES = 5
"""Lines of a reply of XREAD from one stream, its entries aside."""


def fill_numbered(port: int, key: str, count: int, first: int = FIRST_ID) -> None:
    """Append ``count`` entries with consecutive IDs."""
    ask_in_batches(port, _adds(key, count, first))


@lru_cache(maxsize=8)
def _adds(key: str, count: int, first: int) -> list[bytes]:
    return [framed("XADD", key, entry_id(n, first), *words(entry(n))) for n in range(count)]


def deliver(port: int, key: str, count: int) -> None:
    """Create a group and deliver ``count`` entries of a stream to its consumer."""
    read = framed("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", PIPELINE, "STREAMS", key, ">")
    with closing(Line(port)) as opened:
        opened.ask(("XGROUP", "CREATE", key, GROUP, "0"))
        for _ in range(0, count, PIPELINE):
            opened.send(read)
