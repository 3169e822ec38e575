"""The tries of a job: when each ran, where, for how long, and how it ended.

The record of an outcome (results.py) is also that of a try, so keeping tries costs some fields. Of
many tries only the last ones are kept. A try without a record was cut short: its worker died, or
lost the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from kvstream.jobs.results import OWN_MAX

if TYPE_CHECKING:
    from kvstream.types.records import Entry, PendingEntry

LOST_MAX = 50
"""Tries without a record that are shown between two others."""
ATTEMPT, TOOK, WORKER = "attempt", "took", "worker"
_RUNNING, _DONE, _FAILED, _LOST = "running", "done", "failed", "lost"
_OUTCOMES = {b"done": _DONE, b"retry": _FAILED, b"failed": _FAILED}


class Try(NamedTuple):
    """One try of a job."""

    attempt: int
    """1 for the first one. It counts on after ``handle.retry``, unlike that of the job."""
    outcome: str
    """``"done"``, ``"failed"``, ``"running"``, or ``"lost"``: it was cut short."""
    begun: datetime | None
    """None if that is not known."""
    ended: datetime | None
    """When it ended, in UTC; None: it has not, or that is not known."""
    seconds: float | None
    """How long it took; None if that is not known."""
    worker: str | None
    """The name of the worker; None if that is not known."""
    error: str | None
    """Its error; None: it has not failed."""
    traceback: str | None
    """The traceback of that error; None if none is kept."""


def tries_of(records: Sequence[Entry[bytes]], running: PendingEntry | None) -> list[Try]:
    """Return the tries of a job, the first one first, from its records and pending entry."""
    found: list[Try] = []
    last = before = 0
    for record in records:
        outcome = _OUTCOMES.get(record.fields.get(b"status", b""))
        stored = record.fields.get(ATTEMPT.encode(), b"")
        if outcome is None or (not stored.isdigit() and outcome != _DONE):
            before = last  # a cancellation, or a retry by hand
            continue
        number, before = _number_on(last, before, int(stored) if stored.isdigit() else 1)
        is_first_kept = not found and len(records) >= OWN_MAX
        found += [] if is_first_kept else _lost(last, number)
        found.append(_try(record, number, outcome))
        last = number
    if running is not None and running.deliveries:
        number, _ = _number_on(last, before, running.deliveries)
        found += _lost(last, number)
        found.append(_bare(number, _RUNNING)._replace(worker=_text(running.consumer)))
    return found


def _number_on(last: int, before: int, attempt: int) -> tuple[int, int]:
    """Return the number of a try, and how many tries there were before its attempts began at 1.

    They do so after a retry by hand; a redrive of many writes no record of it.
    """
    before = last if before + attempt <= last else before
    return before + attempt, before


def _lost(before: int, attempt: int) -> list[Try]:
    """Return the tries without a record between two others."""
    first = max(before + 1, attempt - LOST_MAX)
    return [_bare(each, _LOST) for each in range(first, attempt)]


def _bare(attempt: int, outcome: str) -> Try:
    return Try(attempt, outcome, None, None, None, None, None, None)


def _try(record: Entry[bytes], attempt: int, outcome: str) -> Try:
    fields = record.fields
    ended = datetime.fromtimestamp(record.id.ms / 1000, UTC)
    took = fields.get(TOOK.encode(), b"")
    seconds = int(took) / 1000 if took.isdigit() else None
    return Try(
        attempt,
        outcome,
        None if seconds is None else ended - timedelta(seconds=seconds),
        ended,
        seconds,
        _text(fields.get(WORKER.encode())),
        _text(fields.get(b"error")),
        _text(fields.get(b"traceback")),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
