"""Retries by hand: move dead letters back to their queue, and record that their jobs run again.

Both are one commit. With the record alone, a job that is still a dead letter would look as if it
were retried. With the redrive alone, a worker could end the job before the record is written, and
the record would come last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvstream.errors import RequestError
from kvstream.jobs.history.events import FAILED
from kvstream.jobs.history.log import WorkflowLog
from kvstream.jobs.job import expires_ms_of
from kvstream.jobs.results import RETRY
from kvstream.operations.queues import redrive
from kvstream.types.clock import monotonic

if TYPE_CHECKING:
    from kvstream.jobs.job import AnyJobs
    from kvstream.queue import Queue
    from kvstream.types.ids import StreamID

_WAIT_S = 5.0
"""For how long a retry waits for another redrive of the same dead letters."""
_LOOK_S = 0.02


class Letter(NamedTuple):
    """A dead letter to move back."""

    place: StreamID
    job_id: str
    failure: dict[str, str | bytes | int] | None
    """The error and traceback of the last try; None: no record of the job is kept."""
    ttl_s: float | None = None
    """How long the record is kept; None: as the Jobs says."""


def move_back(jobs: AnyJobs, queue: Queue, letters: Sequence[Letter]) -> set[StreamID]:
    """Move dead letters of a queue back; return the places of those that were there.

    Another redrive of them is waited for, but not in an open transaction: RequestError. What is too
    large for one step of a redrive moves in the background.
    """
    store = jobs.store
    until = monotonic() + _WAIT_S

    def move() -> set[StreamID] | None:
        stream = queue.dead_stream()
        found = [(each, stream.get(each.place)) for each in letters]
        there = [(each, letter) for each, letter in found if letter is not None]
        if not there:
            return set()
        if _is_busy(queue):
            return None
        for each, letter in there:
            if each.failure is not None:
                jobs.record(each.job_id, RETRY, each.ttl_s, each.failure)
            elif expires_ms_of(letter.fields):  # a worker runs one that has failed all the same
                for status in (FAILED.encode(), RETRY):
                    jobs.record(each.job_id, status, each.ttl_s, {"error": "", "traceback": ""})
        places = [each.place for each, _ in there]
        store.run(redrive.move, stream.key, places)
        return set(places)

    while (moved := WorkflowLog(jobs, "").commit(move)) is None:
        if store.has_transaction() or monotonic() >= until:
            raise RequestError("another redrive of these dead letters runs: try again after it")
        time.sleep(_LOOK_S)
    while not store.has_transaction() and _is_busy(queue):
        time.sleep(_LOOK_S)
    return moved


def _is_busy(queue: Queue) -> bool:
    """Return whether a redrive of the dead letters of a queue runs."""
    run = queue.redrive_status()
    return run is not None and run.state == redrive.State.RUNNING
