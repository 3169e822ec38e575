"""Load at a fixed rate: requests are sent when they are due, whether replies have come or not.

A latency counts from the time at which its request was due, so a server that stalls is charged for
all requests that it held up (no coordinated omission).

``python -m bench.open_loop PORT KEY RATE`` adds entries at a rate until it is stopped.
"""

import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from redis import Redis

from bench.load import CHUNK, ENTRY, STALL_S, WrongReply, connect
from bench.processes import both, framed, port_of
from bench.results import Limit
from bench.server import KEY
from bench.workload import Sizes

CONNECTIONS = 10
RATES = (5_000, 20_000, 40_000)
PROMISED_RATE = 20_000
P50_TIMES_MAX = 3.0
LINES = 2
"""Lines of a reply of XADD."""
QUANTILES = (0.5, 0.99, 0.999)
FOREVER_S = 86_400.0


class _Connection:
    """A connection, and the times at which its unanswered requests were due."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self.due: deque[float] = deque()
        self._lines = 0

    def received(self, latencies: list[float]) -> int:
        """Read replies, and add their latencies; return how many there are."""
        data = self.socket.recv(CHUNK)
        if not data or b"-ERR" in data:
            raise WrongReply(repr(data[:200]))
        now = time.perf_counter()
        answered, self._lines = divmod(self._lines + data.count(b"\n"), LINES)
        for _ in range(answered):
            latencies.append(now - self.due.popleft())
        return answered


def send_at_rate(port: int, key: str, rate: int, seconds: float) -> list[float]:
    """Send XADDs at a rate over 10 connections; return the latency of each in seconds."""
    request = framed("XADD", key, "*", *ENTRY)
    total, sent, answered = int(rate * seconds), 0, 0
    latencies: list[float] = []
    with ExitStack() as stack:
        connections = [_Connection(port) for _ in range(CONNECTIONS)]
        # epoll rounds its timeout up to milliseconds, select does not.
        selector = stack.enter_context(selectors.SelectSelector())
        for connection in connections:
            stack.enter_context(connection.socket)
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        begun = time.perf_counter()
        while answered < total:
            now = time.perf_counter()
            while sent < total and (due := begun + sent / rate) <= now:
                connection = connections[sent % CONNECTIONS]
                connection.due.append(due)
                connection.socket.sendall(request)
                sent += 1
            wait = begun + sent / rate - time.perf_counter() if sent < total else STALL_S
            ready = selector.select(max(wait, 0))
            if not ready and sent == total:
                raise WrongReply(f"no reply within {STALL_S:g} s")
            for each, _ in ready:
                answered += each.data.received(latencies)
    return latencies


@contextmanager
def background_adds(client: Any, key: str, rate: int) -> Iterator[None]:
    """Add entries at a rate by another process during the block, which begins after the first."""
    before = client.xlen(key)
    command = [sys.executable, "-m", "bench.open_loop", str(port_of(client)), key, str(rate)]
    adds = subprocess.Popen(command)
    try:
        while client.xlen(key) == before and adds.poll() is None:
            time.sleep(0.01)
        yield
    finally:
        adds.terminate()
        adds.wait()


def _quantiles_ms(client: Redis, rate: int, seconds: float) -> list[float]:
    """Return the p50, p99 and p99.9 of one load, in milliseconds."""
    client.flushall()
    latencies = sorted(send_at_rate(port_of(client), KEY, rate, seconds))
    length = int(client.xlen(KEY))
    if length != len(latencies):
        raise WrongReply(f"{length} entries after {len(latencies)} XADDs")
    return [1000 * latencies[int(share * (len(latencies) - 1))] for share in QUANTILES]


def _told(quantiles: list[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in quantiles)


def open_loop(folder: Path, sizes: Sizes) -> list[Limit]:
    """Compare the latencies of XADD at fixed rates: the median of the rounds' quantiles."""
    limits = []
    with both(folder / "open-loop", "everysec") as servers:
        for client in servers:
            _quantiles_ms(client, RATES[0], sizes.open_s / 3)  # warms up
        for rate in RATES:
            rounds: list[list[list[float]]] = [[], []]
            for _ in range(sizes.command_rounds):
                for side, client in zip(rounds, servers, strict=True):
                    side.append(_quantiles_ms(client, rate, sizes.open_s))
            own, peer = ([median(each) for each in zip(*side, strict=True)] for side in rounds)
            title = f"XADD, {rate:,} a second: p50, beside redis-server"
            note = f"p50 / p99 / p99.9: {_told(own)} ms against {_told(peer)} ms"
            limit = P50_TIMES_MAX if rate == PROMISED_RATE else 0
            limits.append(
                Limit(f"open-loop-{rate // 1000}k", title, own[0] / peer[0], limit, "x", note)
            )
    return limits


if __name__ == "__main__":
    send_at_rate(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), FOREVER_S)
