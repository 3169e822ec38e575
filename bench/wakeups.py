"""Blocked clients: the time until one of many wakes up, and until all readers of a stream do."""

import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import socket
from statistics import median
from typing import Any

from redis import Redis

from bench.load import CHUNK, READ_LINES, WrongReply, connect
from bench.processes import both, framed, port_of
from bench.results import Limit
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


def _wait_for_blocked(client: Any, count: int) -> None:
    """Wait until ``count`` clients are blocked."""
    deadline = time.monotonic() + BLOCKED_S_MAX
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


def wake_one(client: Redis, blocked: int, wakeups: int) -> list[float]:
    """Wake one of many blocked clients at a time; return the seconds of each."""
    seconds = []
    with _connections(client, blocked + 1) as (adder, *readers):
        for number, reader in enumerate(readers):
            reader.sendall(framed(*_READ, f"wake:{number}", "$"))
        _wait_for_blocked(client, blocked)
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
            _wait_for_blocked(client, blocked)
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
