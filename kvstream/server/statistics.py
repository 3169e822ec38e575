"""What INFO tells of the commands that ran, the errors that were answered, and the load."""

import time
from collections import deque
from dataclasses import dataclass, field

from kvstream.server.durations import RECENT, Durations

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
