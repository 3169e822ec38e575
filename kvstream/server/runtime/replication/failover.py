"""FAILOVER: a primary hands over to one of its replicas without losing a write.

::

    no-failover -> waiting-for-sync           FAILOVER; writes are held
    waiting-for-sync -> failover-in-progress  a replica has all rows, or FORCE and no time is left
    failover-in-progress -> no-failover       the replica is the primary now, this server follows it
    both -> no-failover                       no time is left, the replica refuses, or ABORT

Without TIMEOUT it goes on until a replica has all, as in Redis; but writes are held for HOLD_S at a
time, and go on in between. All steps are done between turns: a script that is suspended belongs to
its turn, and so do its writes.
"""

import logging
from dataclasses import dataclass
from enum import StrEnum

from kvstream.engine.engine import Engine
from kvstream.engine.following import Source
from kvstream.errors import KVStreamError, RequestError
from kvstream.logs import NOTICE
from kvstream.server.runtime.blocked_clients import Pause
from kvstream.server.runtime.replication.replicas import LinkState, Replica, Replicas
from kvstream.server.runtime.replication.role import Role
from kvstream.storage.changes import read_history
from kvstream.types.clock import monotonic

HOLD_S = 3.0
"""How long writes are held at a time, and how long a silent replica is asked."""

_log = logging.getLogger(__name__)


class FailoverState(StrEnum):
    """The state of a failover, in the words of INFO."""

    NONE = "no-failover"
    WAITING = "waiting-for-sync"
    HANDING = "failover-in-progress"


@dataclass(slots=True)
class _Asked:
    """What FAILOVER was asked for."""

    target: Source | None
    """The replica that is to be the primary; None: any that has all."""
    until: float | None
    """When it stops waiting for a replica; None: never."""
    forced: bool
    """It then hands over to a replica that lacks rows."""


class Failover:
    """The failover of one server, if one is under way."""

    def __init__(self, engine: Engine, pause: Pause, role: Role, replicas: Replicas) -> None:
        self._engine, self._pause, self._role, self._replicas = engine, pause, role, replicas
        self.state = FailoverState.NONE
        self._asked = _Asked(None, None, False)
        self._held_at = self._called_at = 0.0
        """When writes began to be held, or to go on; and when the replica was first asked."""
        self._has_all = False
        """The replica had all rows at the hand-over."""
        self._abort_by = ""
        """Why the next step ends it; empty: it goes on."""

    @property
    def is_under_way(self) -> bool:
        """Whether one was begun and has not ended."""
        return self.state is not FailoverState.NONE

    @property
    def keeps_all(self) -> bool:
        """Whether the next primary has all rows of this one."""
        return self.state is FailoverState.HANDING and self._has_all

    def begin(self, target: Source | None, timeout_s: float | None, forced: bool) -> None:
        """Hold writes, and hand over once a replica has all; RequestError if that cannot be."""
        if self.is_under_way:
            raise RequestError("FAILOVER already in progress.")
        if self._role.source is not None:
            raise RequestError("FAILOVER is not valid when server is a replica.")
        if not len(self._replicas):
            raise RequestError("FAILOVER requires connected replicas.")
        if forced and (target is None or timeout_s is None):
            raise RequestError(
                "FAILOVER with force option requires both a timeout and target HOST and IP."
            )
        if target is not None:
            replica = self._find(target)
            if replica is None:
                raise RequestError("FAILOVER target HOST and PORT is not a replica.")
            if replica.state is not LinkState.ONLINE:
                raise RequestError("FAILOVER target replica is not online.")
        now = monotonic()
        self._asked = _Asked(target, None if timeout_s is None else now + timeout_s, forced)
        self.state, self._abort_by = FailoverState.WAITING, ""
        self._hold(True, now)
        _log.log(NOTICE, "a failover to %s was asked for", _name(target))

    def abort(self) -> None:
        """End it at the next step; RequestError if there is none."""
        if not self.is_under_way:
            raise RequestError("No failover in progress.")
        self._abort_by = "it was asked for"

    def step(self) -> None:
        """Go on with it; the caller is between two turns."""
        if self.state is FailoverState.WAITING:
            self._wait(monotonic())
        if self.state is FailoverState.HANDING:
            self._look_at_link(monotonic())

    # --- waiting for a replica ------------------------------------------------------------------

    def _wait(self, now: float) -> None:
        asked = self._asked
        history, sequence = read_history(self._engine.database), self._engine.database.sequence
        if self._abort_by or history is None:
            self._end(f"aborted: {self._abort_by or 'the store has no history'}")
        elif (ready := self._find_ready(history.lsn_of(sequence))) is not None:
            self._hand_over(Source(ready.address, ready.port), sequence)
        elif asked.until is None:
            if now - self._held_at >= HOLD_S:
                self._hold(not self._pause.holds_writes, now)
        elif now >= asked.until:
            if asked.forced and asked.target is not None:
                self._hand_over(asked.target, None)
            else:
                self._end("aborted: no replica had all in time")

    def _hold(self, holds: bool, now: float) -> None:
        self._pause.hold_writes(holds)
        self._held_at = now

    def _find_ready(self, lsn: int) -> Replica | None:
        """Return a replica that has all rows, while no others are written."""
        if not self._pause.holds_writes:
            return None
        target = self._asked.target
        for replica in self._replicas.online():
            is_wanted = target is None or _is_at(replica, target)
            if is_wanted and replica.lsn >= lsn and replica.port:
                return replica
        return None

    def _find(self, target: Source) -> Replica | None:
        return next((each for each in self._replicas if _is_at(each, target)), None)

    # --- the change of both roles ---------------------------------------------------------------

    def _hand_over(self, target: Source, sequence: int | None) -> None:
        """Follow the replica, unless a row was written after ``sequence``."""
        try:
            follows = self._role.hand_over(target, sequence)
        except (KVStreamError, OSError) as error:
            self._end(f"aborted: the role cannot be changed: {error}")
            return
        if follows:
            _log.log(NOTICE, "hands over to %s", _name(target))
            self.state, self._called_at = FailoverState.HANDING, monotonic()
            self._has_all = sequence is not None

    def _look_at_link(self, now: float) -> None:
        """End it once the replica has answered, or if nobody can be asked.

        If it was asked and has not answered, it may be a primary: this server does not become one.
        """
        link = self._role.follower
        if link is None or not link.hands_over:
            self._end("has ended")
        elif self._abort_by or link.refusal:
            self._take_back(self._abort_by or link.refusal)
        elif not link.is_asked and now - self._called_at >= HOLD_S:
            self._take_back(f"it cannot be reached: {link.error}")

    def _take_back(self, why: str) -> None:
        self._role.take_back()
        self._end(f"aborted: {why}")

    def _end(self, how: str) -> None:
        self.state = FailoverState.NONE
        self._pause.hold_writes(False)
        _log.log(NOTICE, "the failover to %s %s", _name(self._asked.target), how)


def _is_at(replica: Replica, place: Source) -> bool:
    return (replica.address, replica.port) == place


def _name(target: Source | None) -> str:
    return "any replica" if target is None else f"{target.host}:{target.port}"
