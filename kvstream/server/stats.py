"""What INFO tells of the commands that ran, the errors that were answered, and the load.

How long the calls of a command took: counts of times to within a hundredth.

Times are in seconds, and counted by their first eight binary digits, so a command has a few hundred
counts whatever it was called for. They are counted a thousand together: sorted, they cost a tenth
of a microsecond each.

What LATENCY tells: when something took longer than ``latency-monitor-threshold``, by events.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import frexp, ldexp

from kvstream.engine.engine import Engine
from kvstream.types.options import Durability

RECENT = 1024
"""Times that wait to be counted together."""
_DIGITS = 8
_NS = 1_000_000_000
_FIRST_BITS = 10
"""The first bound of a histogram is 2^10 nanoseconds."""


class Durations:
    """The times of one command's calls."""

    __slots__ = ("_counts", "_together", "recent")

    def __init__(self) -> None:
        self.recent: list[float] = []
        """Times of calls that are not counted yet; whoever adds one looks whether it is full."""
        self._together: list[tuple[float, int]] = []
        """Times of calls that were run together, with their number; not counted yet."""
        self._counts: dict[float, int] = {}

    def add(self, seconds: float, calls: int) -> None:
        """Note calls that took ``seconds`` each."""
        self._together.append((seconds, calls))
        if len(self._together) >= RECENT:
            self._count_together()

    def _count_together(self) -> None:
        together, counts = sorted(self._together), self._counts
        self._together.clear()
        at = 0
        while at < len(together):
            low, high = _rounded(together[at][0])
            end = bisect_left(together, (high, 0), at)
            counts[low] = counts.get(low, 0) + sum([calls for _, calls in together[at:end]])
            at = end

    def count(self) -> None:
        """Count those that wait."""
        self._count_together()
        recent, counts = sorted(self.recent), self._counts
        self.recent.clear()
        at = 0
        while at < len(recent):
            low, high = _rounded(recent[at])
            end = bisect_left(recent, high, at)
            counts[low] = counts.get(low, 0) + end - at
            at = end

    def _rows(self) -> list[tuple[float, int]]:
        self.count()
        return sorted(self._counts.items())

    @property
    def calls(self) -> int:
        together = sum([calls for _, calls in self._together])
        return len(self.recent) + together + sum(self._counts.values())

    def percentiles(self, ranks: list[float]) -> list[float]:
        """Return for each rank, from 0 to 100, the time that so many of a hundred calls kept to.

        There must have been a call.
        """
        rows = self._rows()
        times = [seconds for seconds, _ in rows]
        seen = list(accumulate(count for _, count in rows))
        ends = [bisect_left(seen, max(1, round(rank / 100 * seen[-1]))) for rank in ranks]
        return [times[min(end, len(times) - 1)] for end in ends]

    def histogram(self) -> Iterator[tuple[int, int]]:
        """Yield bounds in microseconds, each twice the one before, and how many calls kept to them.

        Bounds below which nothing more has come are left out.
        """
        bits, seen, told = _FIRST_BITS, 0, 0
        for seconds, count in self._rows():
            while seconds * _NS > _bound(bits):
                if seen > told:
                    yield _bound(bits) // 1000, seen
                    told = seen
                bits += 1
            seen += count
        if seen > told:
            yield _bound(bits) // 1000, seen


def _rounded(seconds: float) -> tuple[float, float]:
    """Return the times from which, and to which, one counts the same as ``seconds``."""
    share, power = frexp(max(seconds, 1 / _NS))
    low = int(ldexp(share, _DIGITS))
    return ldexp(low, power - _DIGITS), ldexp(low + 1, power - _DIGITS)


def _bound(bits: int) -> int:
    """Return what counts as 2^bits nanoseconds: all that is the same to within a hundredth."""
    return (1 << bits) + (1 << bits - 7) - 1


SAMPLES = 16
"""Seconds over which the rates of INFO are taken."""


@dataclass(slots=True)
class CommandStatistics:
    """One command's calls, as ``cmdstat_*`` counts them."""

    calls: int = 0
    seconds: float = 0.0
    rejected: int = 0
    failed: int = 0
    idle: int = 0
    """Calls of a command that may write, and did not as far as its reply or its turn tells."""
    durations: Durations = field(default_factory=Durations)

    def ran(self, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        self.seconds += seconds
        recent = self.durations.recent
        recent.append(seconds)
        if len(recent) >= RECENT:
            self.durations.count()


class Statistics:
    """Counters since the start, or since CONFIG RESETSTAT."""

    def __init__(self, writes: frozenset[str] = frozenset()) -> None:
        """``writes`` names the commands that may change something."""
        self._writes = writes
        self.commands: dict[str, CommandStatistics] = {}
        self.errors: dict[str, int] = {}
        self._changes_before = 0
        self.requests = 0
        """Those that turns have taken, refused ones too."""
        self.turns = 0
        self.turn_seconds = 0.0
        """In turns, from the first request to the commit."""
        self.connections = 0
        self.rejected_connections = 0
        self.output_disconnections = self.input_disconnections = 0
        self.evicted_clients = 0
        """Those closed for want of memory."""
        self.keyspace_hits = self.keyspace_misses = 0
        """Keys that commands which read have found, and not."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.denied: dict[str, int] = {}
        """What was refused for want of rights, by auth, cmd, key."""
        self._peak = (0, 0)
        self._samples: deque[tuple[float, ...]] = deque(maxlen=SAMPLES)

    def of(self, name: str) -> CommandStatistics:
        found = self.commands.get(name)
        if found is None:
            found = self.commands[name] = CommandStatistics()
        return found

    def ran(self, name: str, seconds: float, calls: int = 1) -> None:
        """Count calls, and the time of them all."""
        row = self.of(name)
        row.calls += calls
        row.seconds += seconds
        row.durations.add(seconds / calls, calls)

    def failed(self, name: str, code: str) -> None:
        """Count the error that a call ended in, beside the call."""
        self.of(name).failed += 1
        self._error(code)

    def rejected(self, code: str, name: str = "") -> None:
        """Count a request that was refused before it ran."""
        if name:
            self.of(name).rejected += 1
        self._error(code)

    def deny(self, kind: str) -> None:
        """Count what somebody had no right to."""
        self.denied[kind] = self.denied.get(kind, 0) + 1

    def _error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def calls(self) -> int:
        """Commands that ran."""
        return sum(row.calls for row in self.commands.values())

    @property
    def seconds(self) -> float:
        """Time that commands took."""
        return sum(row.seconds for row in self.commands.values())

    @property
    def changes(self) -> int:
        """Commands that may write and did, or may have behind one that did, since the start."""
        rows = (self.commands[name] for name in self._writes if name in self.commands)
        return self._changes_before + sum(row.calls - row.failed - row.idle for row in rows)

    @property
    def error_replies(self) -> int:
        return sum(self.errors.values())

    def sample(self, now: float) -> None:
        """Note the counters, once a second."""
        counters = (self.calls, self.bytes_in, self.bytes_out, self.turns, self.turn_seconds)
        self._samples.append((now, *counters))

    def peaked(self, peak: int) -> int:
        """Return when the process was first seen to have taken so much memory, as Unix time."""
        if peak > self._peak[0]:
            self._peak = peak, int(time.time())
        return self._peak[1]

    def turned(self, requests: int, seconds: float) -> None:
        """Count a turn, with what it has taken."""
        self.requests += requests
        self.turns += 1
        self.turn_seconds += seconds

    def rates(self) -> list[float]:
        """Return commands, bytes read, bytes written, turns and time in turns, each a second."""
        if len(self._samples) < 2:
            return [0.0] * 5
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last[0] - first[0], 1e-3)
        return [(after - before) / seconds for before, after in zip(first, last, strict=True)][1:]

    def reset(self) -> None:
        """Begin anew, as CONFIG RESETSTAT does; the changes since the last save stay."""
        changes = self.changes
        self.__init__(self._writes)  # type: ignore[misc]
        self._changes_before = changes


EVENT_SAMPLES = 160
"""Seconds kept of each event."""
_MS = 1000


@dataclass(slots=True)
class Event:
    """The spikes of one event, oldest first; those of one second count as the longest of them."""

    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EVENT_SAMPLES))
    """Unix seconds, and milliseconds."""
    longest_ms: int = 0

    def add(self, at: int, ms: int) -> None:
        self.longest_ms = max(self.longest_ms, ms)
        if self.samples and self.samples[-1][0] == at:
            ms = max(ms, self.samples.pop()[1])
        self.samples.append((at, ms))


class Latency:
    """The events of one server."""

    def __init__(self) -> None:
        self.threshold_ms = 0
        """What takes so long is noted; 0: nothing is."""
        self.events: dict[str, Event] = {}
        self._engine: Engine | None = None

    def add(self, event: str, seconds: float) -> None:
        """Note an event if it took long enough; from any thread."""
        ms = int(seconds * _MS)
        if 0 < self.threshold_ms <= ms:
            self.events.setdefault(event, Event()).add(int(time.time()), ms)

    def reset(self, names: set[str]) -> int:
        """Forget events, all of them where none is named; return how many there were."""
        gone = [name for name in self.events if not names or name in names]
        for name in gone:
            del self.events[name]
        return len(gone)

    def watch(self, engine: Engine, threshold_ms: int) -> None:
        """Note from here on what takes so long, what the store does too."""
        self.threshold_ms = threshold_ms
        if not threshold_ms or self._engine is engine:
            return
        self._engine = engine
        engine.on_commit = _both(engine.on_commit, lambda seconds: self.add("aof-write", seconds))
        committer = engine.committer
        committer.on_fsync = _both(committer.on_fsync, self._fsynced)

    def _fsynced(self, seconds: float) -> None:
        if self._engine is not None and self._engine.durability is Durability.ALWAYS:
            self.add("aof-fsync-always", seconds)  # nobody waits for the others


def _both(
    first: Callable[[float], None] | None, second: Callable[[float], None]
) -> Callable[[float], None]:
    def tell(seconds: float) -> None:
        if first is not None:
            first(seconds)
        second(seconds)

    return tell
