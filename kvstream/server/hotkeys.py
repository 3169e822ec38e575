"""HOTKEYS: the keys that take most of the processor's time, and of the network.

Each call of a command with keys adds its time and its bytes to its keys, in equal shares. A script
adds the whole call to the keys that it names, and EXEC the calls of its commands. The time is that
of the call alone: neither that of the network nor of the commit. As in Redis 8.10:
https://redis.io/commands/hotkeys
"""

import random
import resource
import time
from heapq import nlargest
from math import inf
from operator import itemgetter
from typing import Final

from kvstream.commands.args import Argv
from kvstream.commands.command import Answer, Attempt, Blocked, Command
from kvstream.commands.replies import Bulk, Gradual, Paged, Reply
from kvstream.commands.reply_pages import memory_of
from kvstream.errors import KVStreamError
from kvstream.meta.txn import Txn
from kvstream.resp.replies import encode
from kvstream.resp.requests import request_bytes
from kvstream.types.clock import monotonic, perf_counter

KEYS_MAX: Final = 10_000
"""Keys kept for each metric. Twice as many, 3 MB, are held before the smallest are dropped."""
_MS: Final = 1000


class Totals:
    """Sums by key, of the keys with the largest sums.

    A key that is dropped has a sum below half of the mean of all; it begins anew.
    """

    def __init__(self) -> None:
        self.all = 0.0
        """The sum of all keys, dropped ones included."""
        self._sums: dict[bytes, float] = {}

    def add(self, key: bytes, amount: float) -> None:
        self.all += amount
        self._sums[key] = self._sums.get(key, 0.0) + amount
        if len(self._sums) >= 2 * KEYS_MAX:
            self._sums = dict(self.largest(KEYS_MAX))

    def largest(self, count: int) -> list[tuple[bytes, float]]:
        """Return the keys with the largest sums, and these, from the largest one on."""
        return nlargest(count, self._sums.items(), key=itemgetter(1))


class HotKeys:
    """One run of the tracking."""

    def __init__(
        self, *, cpu: bool, net: bool, count: int = 10, seconds: float = inf, ratio: int = 1
    ) -> None:
        """Track for ``seconds``; count one of ``ratio`` calls, at random.

        ``count`` is the number of keys that are shown.
        """
        self.cpu = Totals() if cpu else None
        self.net = Totals() if net else None
        self.ratio, self._count = ratio, count
        self.start_ms = time.time_ns() // 1_000_000
        self._begun = monotonic()
        self._seconds = seconds
        self._stopped: float | None = None
        """When it was stopped, in seconds since its start."""
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self.seconds = 0.0
        """The time of all calls with keys, whether counted or not."""
        self.bytes = 0

    @property
    def is_active(self) -> bool:
        return self._stopped is None and self._elapsed() < self._seconds

    @property
    def duration_ms(self) -> int:
        """Return how long it has tracked."""
        elapsed = self._elapsed() if self._stopped is None else self._stopped
        return int(min(elapsed, self._seconds) * _MS)

    def _elapsed(self) -> float:
        return monotonic() - self._begun

    def stop(self) -> None:
        """End the tracking, and keep the sums."""
        self._stopped = min(self._elapsed(), self._seconds)

    def processor_ms(self) -> tuple[int, int]:
        """Return the time of the process since the start, in its own code and in the system."""
        now, then = resource.getrusage(resource.RUSAGE_SELF), self._usage
        return int((now.ru_utime - then.ru_utime) * _MS), int((now.ru_stime - then.ru_stime) * _MS)

    def list_largest(self, totals: Totals, unit: int = 1) -> list[Reply]:
        """Return the largest keys, each followed by its sum times ``unit``; leave out zeros."""
        largest = [(key, int(amount * unit)) for key, amount in totals.largest(self._count)]
        return [part for pair in largest if pair[1] for part in pair]

    # --- calls ----------------------------------------------------------------------------------

    def add_call(
        self, command: Command, argv: Argv, reply: Answer, seconds: float, protocol: int
    ) -> None:
        """Add a call to its keys, unless the tracking has ended."""
        keys = command.keys_of(argv) if self.is_active else ()
        if not keys:
            return
        size = request_bytes(argv) + _reply_bytes(reply, protocol)
        self.seconds += seconds
        self.bytes += size
        if self.ratio > 1 and random.random() * self.ratio >= 1:
            return
        for key in keys:
            if self.cpu is not None:
                self.cpu.add(key, seconds / len(keys))
            if self.net is not None:
                self.net.add(key, size / len(keys))

    def attempt_of(self, command: Command, argv: Argv, attempt: Attempt, protocol: int) -> Attempt:
        """Wrap the attempt of a blocked call: the one that succeeds is added to its keys."""

        def count_call(txn: Txn) -> Reply:
            begun = perf_counter()
            reply = attempt(txn)
            if reply is not None:
                self.add_call(command, argv, reply, perf_counter() - begun, protocol)
            return reply

        return count_call


def _reply_bytes(reply: Answer, protocol: int) -> int:
    """Return the bytes of a reply; an estimate for one that can be encoded only once."""
    if isinstance(reply, Blocked):
        return 0
    if isinstance(reply, Paged | Gradual | Bulk):
        return memory_of(reply)
    try:
        return len(encode(reply, protocol))  # type: ignore[arg-type]
    except KVStreamError:  # damaged rows are found when they are encoded
        return 0
