"""Statistics of INFO, LATENCY and SLOWLOG: calls, errors, load, call times and slow calls.

A histogram counts times by their first eight binary digits, so it is right to within a hundredth
and has a few hundred counts. Times are counted 1024 at a time: one at a time would take 1.4 times
the processor time of ``PING, -P 16``.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from math import frexp, ldexp

from kvstream.engine.engine import Engine
from kvstream.server.compiled import twins
from kvstream.server.options import BYTES_MAX, WORDS_MAX
from kvstream.storage.durability import WAITING

RECENT = 1024
"""Times that are counted together."""
_DIGITS = 8
_NS = 1_000_000_000
_FIRST_BITS = 10
"""The first bound of a histogram is 2^10 nanoseconds."""


class Durations:
    """The histogram of one command's call times, in seconds."""

    __slots__ = ("_counts", "recent")

    def __init__(self) -> None:
        self.recent: list[float] = []
        """Times that are not counted yet."""
        self._counts: dict[float, int] = {}

    def add(self, seconds: float, calls: int = 1) -> None:
        """Note calls that took ``seconds`` each."""
        self.recent += [seconds] * calls
        if len(self.recent) >= RECENT:
            self.count()

    def count(self) -> None:
        """Count the recent times."""
        count_times(self.recent, self._counts)
        self.recent.clear()

    def _rows(self) -> list[tuple[float, int]]:
        self.count()
        return sorted(self._counts.items())

    @property
    def calls(self) -> int:
        return len(self.recent) + sum(self._counts.values())

    def percentiles(self, ranks: list[float]) -> list[float]:
        """Return the time of each percentile, from 0 to 100; there must have been a call."""
        rows = self._rows()
        times = [seconds for seconds, _ in rows]
        seen = list(accumulate(count for _, count in rows))
        ends = [bisect_left(seen, max(1, round(rank / 100 * seen[-1]))) for rank in ranks]
        return [times[min(end, len(times) - 1)] for end in ends]

    def histogram(self) -> Iterator[tuple[int, int]]:
        """Yield bounds in microseconds, each twice the one before, and the calls within each.

        A bound is left out if it has no more calls than the one before.
        """
        bits, seen, shown = _FIRST_BITS, 0, 0
        for seconds, count in self._rows():
            while seconds * _NS > _bound(bits):
                if seen > shown:
                    yield _bound(bits) // 1000, seen
                    shown = seen
                bits += 1
            seen += count
        if seen > shown:
            yield _bound(bits) // 1000, seen


def count_in_python(times: list[float], counts: dict[float, int]) -> None:
    """Count times in the buckets that their lower bounds name."""
    ordered, at = sorted(times), 0
    while at < len(ordered):
        low, high = _bucket_of(ordered[at])
        end = bisect_left(ordered, high, at)
        counts[low] = counts.get(low, 0) + end - at
        at = end


count_times = count_in_python if twins is None else twins.count_times


def _bucket_of(seconds: float) -> tuple[float, float]:
    """Return the bounds of the bucket of a time."""
    share, power = frexp(max(seconds, 1 / _NS))
    low = int(ldexp(share, _DIGITS))
    return ldexp(low, power - _DIGITS), ldexp(low + 1, power - _DIGITS)


def _bound(bits: int) -> int:
    """Return the last time, in nanoseconds, in the bucket of 2^bits."""
    return (1 << bits) + (1 << bits - 7) - 1


SAMPLES = 16
"""Seconds over which the rates of INFO are taken."""


@dataclass(slots=True)
class SlowCalls:
    """How many calls were slow, and how long they took."""

    count: int = 0
    microseconds: int = 0
    longest: int = 0
    """Microseconds of the slowest call."""

    def add(self, microseconds: int) -> None:
        self.count += 1
        self.microseconds += microseconds
        self.longest = max(self.longest, microseconds)


@dataclass(slots=True)
class CommandStatistics:
    """The ``cmdstat_*`` counters of one command."""

    calls: int = 0
    seconds: float = 0.0
    rejected: int = 0
    failed: int = 0
    idle: int = 0
    """Calls of a write command that changed nothing, judged by the reply or the turn."""
    durations: Durations = field(default_factory=Durations)
    slow: SlowCalls = field(default_factory=SlowCalls)

    def count(self, seconds: float) -> None:
        """Count a call."""
        self.calls += 1
        self.seconds += seconds
        recent = self.durations.recent
        recent.append(seconds)
        if len(recent) >= RECENT:
            self.durations.count()


class Statistics:
    """Counters since the start, or since CONFIG RESETSTAT."""

    __slots__ = (
        "_changes_before",
        "_peak",
        "_samples",
        "_writes",
        "bytes_in",
        "bytes_out",
        "commands",
        "connections",
        "denied",
        "errors",
        "evicted_clients",
        "input_disconnections",
        "keyspace_hits",
        "keyspace_misses",
        "output_disconnections",
        "rejected_connections",
        "requests",
        "slow_calls",
        "turn_seconds",
        "turns",
    )

    def __init__(self, writes: frozenset[str]) -> None:
        """``writes`` are the names of the write commands."""
        self._writes = writes
        self.commands: dict[str, CommandStatistics] = {}
        self.errors: dict[str, int] = {}
        self._changes_before = 0
        self.requests = 0
        """Requests that turns have taken, refused ones included."""
        self.turns = 0
        self.turn_seconds = 0.0
        """Time in turns, from the first request to the commit."""
        self.connections = 0
        self.rejected_connections = 0
        self.output_disconnections = self.input_disconnections = 0
        self.evicted_clients = 0
        """Clients closed by ``maxmemory-clients``."""
        self.keyspace_hits = self.keyspace_misses = 0
        """Keys that reads have found or missed."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.slow_calls = SlowCalls()
        self.denied: dict[str, int] = {}
        """ACL refusals by kind: auth, cmd, key."""
        self._peak = (0, 0)
        self._samples: deque[tuple[float, ...]] = deque(maxlen=SAMPLES)

    def of(self, name: str) -> CommandStatistics:
        statistics = self.commands.get(name)
        if statistics is None:
            statistics = self.commands[name] = CommandStatistics()
        return statistics

    def count(self, name: str, seconds: float, calls: int = 1) -> None:
        """Count calls that took ``seconds`` together."""
        row = self.commands.get(name) or self.of(name)
        row.calls += calls
        row.seconds += seconds
        durations = row.durations
        if calls > 1:
            durations.add(seconds / calls, calls)
            return
        durations.recent.append(seconds)
        if len(durations.recent) >= RECENT:
            durations.count()

    def count_each(self, name: str, times: list[float], idle: int) -> None:
        """Count calls by the seconds that each took; ``idle`` of them have changed nothing."""
        row = self.commands.get(name) or self.of(name)
        row.idle += idle
        row.calls += len(times)
        row.seconds += sum(times)
        recent = row.durations.recent
        recent += times
        if len(recent) >= RECENT:
            row.durations.count()

    def count_slow(self, name: str, microseconds: int) -> None:
        """Count a slow call, which is counted already as a call."""
        self.of(name).slow.add(microseconds)
        self.slow_calls.add(microseconds)

    def count_failure(self, name: str, code: str) -> None:
        """Count the error of a call that is counted already."""
        self.of(name).failed += 1
        self.count_error(code)

    def count_rejection(self, code: str, name: str = "") -> None:
        """Count a request that was refused before it ran."""
        if name:
            self.of(name).rejected += 1
        self.count_error(code)

    def count_denial(self, kind: str) -> None:
        """Count an ACL refusal."""
        self.denied[kind] = self.denied.get(kind, 0) + 1

    def count_error(self, code: str) -> None:
        """Count an error reply."""
        self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(row.calls for row in self.commands.values())

    @property
    def seconds(self) -> float:
        """The time of all calls."""
        return sum(row.seconds for row in self.commands.values())

    @property
    def changes(self) -> int:
        """The number of calls since the start that changed, or may have changed, something."""
        rows = (self.commands[name] for name in self._writes if name in self.commands)
        return self._changes_before + sum(row.calls - row.failed - row.idle for row in rows)

    @property
    def error_replies(self) -> int:
        return sum(self.errors.values())

    def sample(self, now: float) -> None:
        """Sample the counters for ``rates``; call it once a second."""
        counters = (self.calls, self.bytes_in, self.bytes_out, self.turns, self.turn_seconds)
        self._samples.append((now, *counters))

    def note_peak(self, peak: int) -> int:
        """Return the Unix time at which a peak of memory was first seen."""
        if peak > self._peak[0]:
            self._peak = peak, int(time.time())
        return self._peak[1]

    def count_turn(self, requests: int, seconds: float) -> None:
        """Count a turn and its requests."""
        self.requests += requests
        self.turns += 1
        self.turn_seconds += seconds

    def rates(self) -> list[float]:
        """Return calls, bytes in, bytes out, turns and time in turns, each per second."""
        if len(self._samples) < 2:
            return [0.0] * 5
        first, last = self._samples[0], self._samples[-1]
        seconds = max(last[0] - first[0], 1e-3)
        return [(after - before) / seconds for before, after in zip(first, last, strict=True)][1:]

    def reset(self) -> None:
        """Reset all but the changes since the last save, as CONFIG RESETSTAT does."""
        changes = self.changes
        self.__init__(self._writes)  # type: ignore[misc]
        self._changes_before = changes


EVENT_SAMPLES = 160
"""Seconds kept of each event."""
_MS = 1000


@dataclass(slots=True)
class Event:
    """The spikes of one event, oldest first; one a second, the longest."""

    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EVENT_SAMPLES))
    """Unix seconds, and milliseconds."""
    longest_ms: int = 0

    def add(self, at: int, ms: int) -> None:
        self.longest_ms = max(self.longest_ms, ms)
        if self.samples and self.samples[-1][0] == at:
            self.samples[-1] = at, max(ms, self.samples[-1][1])
        else:
            self.samples.append((at, ms))


class Latency:
    """The events of one server."""

    def __init__(self) -> None:
        self.threshold_ms = 0
        """Events of this length are noted; 0: none."""
        self.events: dict[str, Event] = {}
        self._engine: Engine | None = None

    def add(self, event: str, seconds: float) -> None:
        """Note an event if it reaches the threshold; from any thread."""
        ms = int(seconds * _MS)
        if 0 < self.threshold_ms <= ms:
            now, fresh = int(time.time()), Event()
            fresh.add(now, ms)
            known = self.events.setdefault(event, fresh)  # readers see no event without a spike
            if known is not fresh:
                known.add(now, ms)

    def reset(self, names: set[str]) -> int:
        """Reset the named events, or all if none is named; return their number."""
        chosen = [name for name in list(self.events) if not names or name in names]
        return sum(self.events.pop(name, None) is not None for name in chosen)

    def watch(self, engine: Engine, threshold_ms: int) -> None:
        """Set the threshold; also watch commits and fsyncs of the store from now on."""
        self.threshold_ms = threshold_ms
        if not threshold_ms or self._engine is engine:
            return
        self._engine = engine
        engine.watch_commits(partial(self.add, "aof-write"))
        engine.committer.watch_fsyncs(self._note_fsync)

    def _note_fsync(self, seconds: float) -> None:
        if self._engine is not None and self._engine.durability in WAITING:
            self.add("aof-fsync-always", seconds)  # at other levels no client waits for it


# --- SLOWLOG ------------------------------------------------------------------------------------

# Limits, replies and the counters of INFO as in Redis 8.10: https://redis.io/commands/slowlog-get


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """One entry of SLOWLOG GET."""

    number: int
    at: int
    """Unix seconds."""
    microseconds: int
    argv: list[bytes]
    address: str
    name: bytes
    words: int
    """The words of the request; ``argv`` may have fewer."""


class Slowlog:
    """The slow commands, newest first."""

    def __init__(self, length: int, words_max: int, bytes_max: int) -> None:
        """Keep ``length`` commands, each with its first words and their first bytes."""
        self._entries: deque[SlowCommand] = deque(maxlen=length)
        self.words_max, self.bytes_max = words_max, bytes_max
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_off(self) -> bool:
        """Whether it keeps no command."""
        return self._entries.maxlen == 0

    def add(self, at: int, microseconds: int, argv: list[bytes], address: str, name: bytes) -> None:
        """Add a command; ``address`` and ``name`` are its client's."""
        kept = cut(argv, self.words_max, self.bytes_max)
        entry = SlowCommand(self._next, at, microseconds, kept, address, name, len(argv))
        self._entries.appendleft(entry)
        self._next += 1

    def newest(self, count: int) -> list[SlowCommand]:
        """Return the newest entries; all of them for a negative count."""
        return list(islice(self._entries, len(self) if count < 0 else count))

    def resize(self, length: int) -> None:
        """Set the length of the log."""
        self._entries = deque(islice(self._entries, length), maxlen=length)

    def clear(self) -> None:
        self._entries.clear()


def cut(
    argv: Sequence[bytes], words_max: int = WORDS_MAX, bytes_max: int = BYTES_MAX
) -> list[bytes]:
    """Return the words of a request; the last one says how many were left out."""
    words = [_cut_word(word, bytes_max) for word in argv[:words_max]]
    if len(argv) > words_max:
        words[-1] = b"... (%d more arguments)" % (len(argv) - words_max + 1)
    return words


def _cut_word(word: bytes, bytes_max: int) -> bytes:
    if len(word) <= bytes_max:
        return word
    return b"%b... (%d more bytes)" % (word[:bytes_max], len(word) - bytes_max)
