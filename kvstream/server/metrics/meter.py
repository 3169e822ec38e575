"""What is measured as it happens: turns, commits, fsyncs, and how long the loop is held.

Nothing of it is asked for where metrics are off, and the hooks then cost a comparison each.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter

from kvstream.server.metrics.histogram import GAP_SECONDS, REQUESTS, SECONDS, Histogram
from kvstream.server.net import Listener

PROBE_S = 0.05
"""How often the loop is looked at: twenty times a second take 0.3 % of a core."""


class Meter:
    """The histograms of one server."""

    def __init__(self) -> None:
        self.turn_seconds = Histogram(SECONDS)
        self.turn_requests = Histogram(REQUESTS)
        self.commit_seconds = Histogram(SECONDS)
        self.fsync_seconds = Histogram(SECONDS)
        self.loop_gap_seconds = Histogram(GAP_SECONDS)
        self._seen = monotonic()
        self._probe: asyncio.TimerHandle | None = None

    def start(self, listener: Listener) -> None:
        """Begin to measure, in the loop of the server."""
        executor = listener.executor
        executor.engine.on_commit = self.commit_seconds.add
        executor.engine.committer.on_fsync = self.fsync_seconds.add
        statistics, run = executor.statistics, listener.run_turn

        def timed_turn() -> None:
            before, begun = statistics.requests, perf_counter()
            run()
            requests = statistics.requests - before
            if requests > 0:  # none: nothing was left to be run, or CONFIG RESETSTAT was
                self.turn_seconds.add(perf_counter() - begun)
                self.turn_requests.add(requests)

        listener.run_turn = timed_turn
        self._await_next(asyncio.get_running_loop())

    def stop(self) -> None:
        """Look at the loop no more."""
        if self._probe is not None:
            self._probe.cancel()

    def silence(self) -> float:
        """Return the seconds since the loop was last seen at work; for any thread."""
        return monotonic() - self._seen

    def _await_next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._seen = monotonic()
        come: Callable[[], None] = partial(self._come, loop, self._seen + PROBE_S)
        self._probe = loop.call_later(PROBE_S, come)

    def _come(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Note by how much a timer was late: so late would a request have been, had it come."""
        self.loop_gap_seconds.add(max(0.0, monotonic() - due))
        self._await_next(loop)
