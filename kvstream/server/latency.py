"""What LATENCY tells: when something took longer than ``latency-monitor-threshold``, by events."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstream.engine import Engine
from kvstream.options import Durability

SAMPLES = 160
"""Seconds kept of each event."""
_MS = 1000


@dataclass(slots=True)
class Event:
    """The spikes of one event, oldest first; those of one second count as the longest of them."""

    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
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
