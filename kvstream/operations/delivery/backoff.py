"""Entries that wait before they are delivered again, in a group that has a policy.

An entry that was given back waits if a delay was asked for or the policy has a backoff. It then has
no owner, and its time is when it will be ready. A timer makes all entries of a group ready that
wait for the same millisecond::

    timer := time kind=RETRY group -> empty

``GivenBack`` decides for XNACK and KVSTREAM.NACK whether entries become ready, wait, or are given
up. A timer for which no entry waits does nothing.
"""

from collections.abc import Sequence
from itertools import islice

from kvstream.meta import timers
from kvstream.meta.events.queues import Reason
from kvstream.meta.pel import Targets, release_runs, runs_waiting_for
from kvstream.meta.records import GroupMeta, StreamMeta
from kvstream.meta.runs import HELD_MS, Run
from kvstream.meta.timers import Kind, Timer
from kvstream.meta.txn import Txn
from kvstream.meta.wakeups import Wake
from kvstream.operations.delivery import dead
from kvstream.operations.delivery.dead import Cause
from kvstream.types.images import PackedID


def fire(txn: Txn, name: bytes, stream: StreamMeta, due: list[Timer]) -> None:
    """Make the entries ready whose timers are due."""
    left = txn.thresholds.ready_runs
    for timer in due:
        group = txn.catalog.group(txn, stream, timer.rest)
        if group is None:
            continue
        runs = list(islice(runs_waiting_for(txn, group, timer.at_ms), left + 1))
        if len(runs) > left:  # a later step goes on
            timers.put(txn, stream, timer.at_ms, Kind.RETRY, timer.rest)
            runs = runs[:left]
        left -= len(runs)
        if runs:
            make_ready(txn, name, group, runs)


def make_ready(txn: Txn, name: bytes, group: GroupMeta, runs: list[Run]) -> None:
    """Make runs without an owner ready, after those that already are, and wake the readers."""
    group.nack_rank = rank = group.nack_rank + 1
    release_runs(txn, group, runs, rank)
    txn.member_changed(group)
    txn.signal(name, Wake.RETRY)
    txn.catalog.queue_events.retries += sum(run.length for run in runs)


class GivenBack:
    """The states of entries that are given back together.

    The caller calls ``share`` for each run, then ``bury``, which moves those that are given up to
    the dead letters. It changes the others, and calls ``set_timers`` last.
    """

    def __init__(
        self,
        txn: Txn,
        group: GroupMeta,
        delay_ms: int | None = None,
        fatal: bool = False,
        max_deliveries: int = 0,
    ) -> None:
        """``delay_ms`` and ``max_deliveries`` above 0 override the rules of the policy.

        ``fatal``: all entries are given up.
        """
        self._txn, self._group = txn, group
        self._delay_ms, self._fatal = delay_ms, fatal
        policy_max = 0 if group.policy is None else group.policy.max_deliveries
        self._max_deliveries = max_deliveries or policy_max
        self._times: set[int] = set()
        self._dead: list[tuple[Run, Sequence[PackedID]]] = []

    def share(
        self, run: Run, ids: Sequence[PackedID], deliveries: int, rank: int, tried: bool = True
    ) -> Targets:
        """Return the new states of IDs of a run; if not ``tried``, none waits or is given up."""
        policy = self._group.policy
        if tried and (self._fatal or 0 < self._max_deliveries <= deliveries):
            self._dead.append((run, ids))
            return {}
        if self._delay_ms is None and (policy is None or not tried):
            return dict.fromkeys(ids, (b"", 0, deliveries, rank))
        if self._delay_ms is not None or policy is None or not policy.jitter_percent:
            ready_ms = self._ready_ms(deliveries)
            return dict.fromkeys(ids, (b"", ready_ms, deliveries, rank))
        return {eid: (b"", self._ready_ms(deliveries), deliveries, rank) for eid in ids}

    def _ready_ms(self, deliveries: int) -> int:
        """Return when an entry is ready; 0: at once."""
        delay_ms, policy = self._delay_ms, self._group.policy
        if delay_ms is None:
            delay_ms = 0 if policy is None else policy.delay_ms(deliveries)
        if delay_ms <= 0:
            return 0
        ready_ms = min(self._txn.now_ms + delay_ms, HELD_MS - 1)
        self._times.add(ready_ms)
        return ready_ms

    def bury(
        self, name: bytes, stream: StreamMeta, error: bytes = b"", traceback: bytes = b""
    ) -> int:
        """Move the entries that are given up to the dead letters; return how many there were.

        Raise RequestError, before any change, if the dead letters cannot be written.
        """
        if not self._dead:
            return 0
        reason = Reason.FATAL if self._fatal else Reason.MAX_DELIVERIES
        cause = Cause(reason, error, traceback)
        dead.bury(self._txn, name, stream, self._group, self._dead, cause)
        return sum(len(ids) for _, ids in self._dead)

    def set_timers(self, stream: StreamMeta) -> None:
        """Set the timers of the entries that wait."""
        for ready_ms in self._times:
            timers.put(self._txn, stream, ready_ms, Kind.RETRY, self._group.name)
