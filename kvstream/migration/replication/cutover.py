"""The cut-over: the source stands still, what is left is copied, both are compared, and it is done.

Until the comparison has found both equal nothing is final: the source is let go, and followed on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kvstream.errors import RequestError
from kvstream.migration.followers import Phase
from kvstream.migration.items import Selection, Source
from kvstream.migration.paging import INEXACT_MS
from kvstream.migration.replication.following import Follower, source_offset
from kvstream.migration.replication.meaning import Name
from kvstream.migration.replication.pausing import Paused, PauseRefused
from kvstream.migration.replication.settling import Settled
from kvstream.migration.server import Server
from kvstream.migration.server_source import ServerSource
from kvstream.migration.verifying import Comparing, Verification, verify

NEAR_BYTES = 64 << 10
"""So little is left to be applied when the source is paused: a moment's work."""
QUIET_S = 3.0
"""A source that cannot be paused must have been silent for so long."""


class SourceWritten(RequestError):
    """The source was written to while it had to stand still."""


@dataclass(frozen=True, slots=True)
class CutOver:
    """What a cut-over has done."""

    is_paused: bool
    """The source was paused, and is for as long as was asked for."""
    stood_s: float
    """For how long nothing could be written before the target was ready."""
    settled: Settled
    verification: Verification

    @property
    def is_done(self) -> bool:
        return self.verification.equal


class Arrival(Protocol):
    """The target of a cut-over."""

    existing: Source
    """What it has."""

    def settle(self, again: set[Name]) -> Settled:
        """Copy what the command stream does not tell, and whole the keys of ``again``."""
        ...


class Switch:
    """Leads one follower over."""

    def __init__(
        self,
        follower: Follower,
        server: Server,
        arrival: Arrival,
        selection: Selection,
        said: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``server`` is the source, over connections beside the one that is followed."""
        self._follower = follower
        self._server = server
        self._arrival = arrival
        self._selection = selection
        self._said = said

    def run(self, leave_paused_s: float, watch: Callable[[], object] = lambda: None) -> CutOver:
        """Lead over, and leave the source paused for some time.

        ``watch`` is called now and then until the source is paused. Where both differ the result
        says so, and the source is as it was before; so it is where something fails.
        """
        self._follow_until(lambda: (watch(), self._behind() <= NEAR_BYTES)[1])
        paused = Paused(self._server.connection(0))
        try:
            with paused, self._leading():
                done = self._lead(is_paused=True)
                if done.is_done:
                    paused.leave(leave_paused_s)
                else:
                    paused.end()
        except PauseRefused as error:
            self._said(f"{error}; stop all that writes to it: waiting for it to be silent")
            self._await_silence()
            with self._leading():
                done = self._lead(is_paused=False)
        if done.is_done:
            self._follower.target.finish()
            self._follower.enter(Phase.DONE)
        return done

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Be known to lead over; afterwards the source is followed, unless all is done."""
        self._follower.enter(Phase.LEADING)
        try:
            yield
        finally:
            self._follower.enter(Phase.FOLLOWING)

    def _lead(self, is_paused: bool) -> CutOver:
        began = time.monotonic()
        self._follow_to(self._offset())
        written = self._follower.writes
        journal = self._follower.target.journal
        self._said("copying the state of groups")
        with self._follower.kept_alive():
            settled = self._arrival.settle(journal.again)
            self._said("comparing source and target")
            how = Comparing(self._selection, tolerance_ms=INEXACT_MS)
            verification = verify(ServerSource(self._server), self._arrival.existing, how)
        self._follow_to(self._offset())
        if self._follower.writes != written:
            raise SourceWritten("the source was written to during the cut-over: nothing is final")
        return CutOver(is_paused, time.monotonic() - began, settled, verification)

    def _behind(self) -> int:
        return self._offset() - self._follower.offset

    def _offset(self) -> int:
        return source_offset(self._server.connection(0).ask)

    def _follow_to(self, offset: int) -> None:
        self._follow_until(lambda: self._follower.offset >= offset)

    def _follow_until(self, done: Callable[[], bool]) -> None:
        self._follower.follow(lambda: self._follower.is_following and done())

    def _await_silence(self) -> None:
        """Follow until nothing has been written for some time."""
        seen, since = self._follower.writes, time.monotonic()

        def is_silent() -> bool:
            nonlocal seen, since
            if self._follower.writes != seen or not self._follower.is_following:
                seen, since = self._follower.writes, time.monotonic()
            return time.monotonic() - since >= QUIET_S

        self._follower.follow(is_silent)
