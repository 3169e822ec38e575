"""Clients that wait: blocked ones until one or all wake up, and subscribers until they hear."""

import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from statistics import median
from threading import Thread
from typing import Any

from redis import Redis

from bench.load import CHUNK, READ_LINES, WrongReply, connect
from bench.processes import both, framed, loaded, meanwhile, port_of
from bench.results import Limit
from bench.server import Load, ServerRow, benchmark
from bench.workload import Sizes

WAKEUP_TIMES_MAX = 3.0
FAN_OUT_TIMES_MAX = 1.2
READERS = 100
BLOCKED_S_MAX = 30.0
LINES = READ_LINES + 8
"""Lines of a reply of XREAD with one entry of one field."""
_READ = ("XREAD", "BLOCK", 0, "STREAMS")


@contextmanager
def _connections(client: Redis, count: int) -> Iterator[list[socket]]:
    """Open connections, and close them at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(port_of(client))) for _ in range(count)]


def _wait_for_blocked(client: Any, count: int, patience_s: float = BLOCKED_S_MAX) -> None:
    """Wait until ``count`` clients are blocked."""
    deadline = time.monotonic() + patience_s
    while (blocked := client.info("clients")["blocked_clients"]) != count:
        if time.monotonic() > deadline:
            raise WrongReply(f"{blocked} clients are blocked, not {count}")
        time.sleep(0.001)


def _reply(connection: socket, lines: int) -> bytes:
    """Read a reply with a number of lines."""
    data = b""
    while data.count(b"\n") < lines:
        received = connection.recv(CHUNK)
        if not received or received.startswith(b"-"):
            raise WrongReply(repr(data + received))
        data += received
    return data


def wake_one(
    client: Redis, blocked: int, wakeups: int, patience_s: float = BLOCKED_S_MAX
) -> list[float]:
    """Wake one of many blocked clients at a time; return the seconds of each."""
    seconds = []
    with _connections(client, blocked + 1) as (adder, *readers):
        for number, reader in enumerate(readers):
            reader.sendall(framed(*_READ, f"wake:{number}", "$"))
        _wait_for_blocked(client, blocked, patience_s)
        for wakeup in range(wakeups):
            number = wakeup * 7 % blocked
            begun = time.perf_counter()
            adder.sendall(framed("XADD", f"wake:{number}", "*", "n", wakeup))
            reply = _reply(readers[number], LINES)
            seconds.append(time.perf_counter() - begun)
            added = _reply(adder, 2).split(b"\r\n")[1]
            if added not in reply:
                raise WrongReply(f"{reply!r} after the XADD of {added!r}")
            readers[number].sendall(framed(*_READ, f"wake:{number}", "$"))
            _wait_for_blocked(client, blocked, patience_s)
    return seconds


def fan_out(client: Redis, readers: int, times: int) -> list[float]:
    """Wake all readers of a stream; return the seconds until the last has its entry."""
    seconds = []
    with _connections(client, readers + 1) as (adder, *blocked):
        for each in range(times):
            for reader in blocked:
                reader.sendall(framed(*_READ, "news", "$"))
            _wait_for_blocked(client, readers)
            begun = time.perf_counter()
            adder.sendall(framed("XADD", "news", "*", "n", each))
            _reply_to_all(blocked)
            seconds.append(time.perf_counter() - begun)
            _reply(adder, 2)
    return seconds


def _reply_to_all(readers: list[socket]) -> None:
    """Read one reply from each of the readers."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ, reader)
        left = len(readers)
        while left:
            ready = selector.select(BLOCKED_S_MAX)
            if not ready:
                raise WrongReply(f"{left} readers were not woken")
            for key, _ in ready:
                _reply(key.data, LINES)
                selector.unregister(key.data)
                left -= 1


def _compare(
    servers: tuple[Redis, Redis], rounds: int, measure: Callable[[Redis], list[float]]
) -> tuple[float, str]:
    """Return the ratio of the medians of both servers by turns, and a note."""
    both_sides: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for client, seconds in zip(servers, both_sides, strict=True):
            client.flushall()
            seconds.extend(measure(client))
    own, peer = (1000 * median(side) for side in both_sides)
    return own / peer, f"{own:.3f} ms against {peer:.3f} ms"


def wakeups(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the time to wake blocked clients with redis-server's."""
    readers = min(READERS, sizes.blocked)
    with both(folder / "wakeups", "everysec") as servers:
        one = _compare(
            servers,
            sizes.command_rounds,
            lambda client: wake_one(client, sizes.blocked, sizes.wakeups),
        )
        all_readers = _compare(
            servers,
            sizes.command_rounds,
            lambda client: fan_out(client, readers, sizes.wakeups // 2),
        )
    one_title = f"XADD wakes 1 of {sizes.blocked:,} blocked clients, beside redis-server"
    title = f"XADD wakes {readers} blocked readers of its stream, beside redis-server"
    return [
        Limit("wakeup", one_title, one[0], WAKEUP_TIMES_MAX, "x", one[1]),
        Limit("fan-out", title, all_readers[0], FAN_OUT_TIMES_MAX, "x", all_readers[1]),
    ]


# --- subscribers --------------------------------------------------------------------------------

CHANNEL, MESSAGE = "news", "m" * 32
HEARD = len(framed("message", CHANNEL, MESSAGE))
"""Bytes of a message as a subscriber gets it."""
DELIVERIES = 100
"""Deliveries to be counted as one PUBLISH of the count of a row."""
PUBLISH_PAUSE_S = 0.1
PING_TIMES_MAX = 1.0


@contextmanager
def _subscribed(client: Redis, count: int) -> Iterator[list[socket]]:
    """Open connections that are subscribed to CHANNEL, and close them at the end."""
    with _connections(client, count) as readers:
        for reader in readers:
            reader.sendall(framed("SUBSCRIBE", CHANNEL))
        for reader in readers:
            _reply(reader, 6)
        yield readers


def _hear_all(readers: list[socket], messages: int) -> None:
    """Read until each of the readers has so many messages."""
    left = {reader.fileno(): messages * HEARD for reader in readers}
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while left:
            ready = selector.select(BLOCKED_S_MAX)
            if not ready:
                raise WrongReply(f"{len(left)} subscribers miss messages")
            for key, _ in ready:
                left[key.fd] -= len(key.fileobj.recv(CHUNK))  # type: ignore[union-attr]
                if left[key.fd] <= 0:
                    selector.unregister(key.fileobj)
                    del left[key.fd]


class Publishing:
    """The load of a row: it ends when all subscribers have all messages."""

    def __init__(self, subscribers: int, pipeline: int) -> None:
        self._subscribers = subscribers
        self._publish: Load = benchmark(pipeline, "PUBLISH", CHANNEL, MESSAGE)
        self._stack = ExitStack()
        self._readers: list[socket] = []

    def prepare(self, client: Redis, count: int) -> None:
        """Connect the subscribers."""
        self._readers = self._stack.enter_context(_subscribed(client, self._subscribers))

    def load(self, client: Redis, count: int) -> float:
        """Publish so many messages with 50 clients; return the seconds."""
        took: list[float] = []
        thread = Thread(target=lambda: took.append(self._publish(client, count)))
        begun = time.perf_counter()
        thread.start()
        _hear_all(self._readers, count)
        heard = time.perf_counter() - begun
        thread.join()
        return max(heard, *took)

    def check(self, client: Any, count: int) -> None:
        """Disconnect the subscribers; raise WrongReply if one was lost."""
        subscribed = client.publish(CHANNEL, MESSAGE)  # Valkey 9.1's NUMSUB is wrong
        self._stack.close()
        if subscribed != self._subscribers:
            raise WrongReply(f"{subscribed} subscribers are left of {self._subscribers}")


def _publish_row(subscribers: int, pipeline: int, target: float) -> ServerRow:
    publishing = Publishing(subscribers, pipeline)
    what = "1 subscriber" if subscribers == 1 else f"{subscribers:,} subscribers"
    return ServerRow(
        f"publish-{subscribers}-p{pipeline}",
        f"PUBLISH to {what}, -P {pipeline}",
        target,
        "everysec",
        lambda sizes: max(sizes.requests // max(subscribers // DELIVERIES * 3, 1), 2 * pipeline),
        publishing.load,
        publishing.prepare,
        publishing.check,
        rounds=lambda sizes: sizes.command_rounds,
    )


PUBLISH_ROWS = (
    _publish_row(1, 1, 0.8),
    _publish_row(1, 16, 0.3),
    _publish_row(100, 1, 0.8),
    _publish_row(1000, 1, 0.8),
)


def _ping_p99_ms(client: Any, subscribers: int, count: int) -> tuple[float, float]:
    """Return the p99 of PING in milliseconds: of a quiet server, and while messages fan out."""
    client.config_set("maxclients", subscribers + 1000)
    with _subscribed(client, subscribers):
        quiet = loaded(client, count, 1, "PING")["p99_latency_ms"]

        def publish(publisher: Any) -> None:
            time.sleep(PUBLISH_PAUSE_S)
            if publisher.publish(CHANNEL, MESSAGE) != subscribers:
                raise WrongReply("a subscriber is lost")

        with meanwhile(port_of(client), publish):
            busy = loaded(client, count, 1, "PING")["p99_latency_ms"]
    return quiet, busy


def publish_latency(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the p99 of PING while messages go to very many subscribers with redis-server's."""
    count = 10 * sizes.blocked
    with both(folder / "publish", "everysec") as servers:
        own, peer = (_ping_p99_ms(client, count, sizes.served) for client in servers)
    title = f"p99 of PING while PUBLISH goes to {count:,} subscribers, beside redis-server"
    note = f"{own[1]:.2f} ms against {peer[1]:.2f} ms; quiet {own[0]:.2f} and {peer[0]:.2f} ms"
    return [Limit("publish-latency", title, own[1] / peer[1], PING_TIMES_MAX, "x", note)]
