"""Notes of a running job: its progress, and lines of text.

Both are entries of one stream a job, ``<name>:notes:<id>``, which keeps the last 1000 and expires a
day after the last one, or after ``result_ttl`` if that is longer.
"""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvstream.errors import InvalidArgument, show, stored_text

if TYPE_CHECKING:
    from kvstream.store import Store
    from kvstream.stream import Stream
    from kvstream.types.records import Entry

NOTES = "notes"
NOTES_MAX = 1000
KEPT_S = 86_400.0
_FRACTION, _TEXT = b"progress", b"text"
_PAGE = 100


class Place(Protocol):
    """The Jobs, as notes see it."""

    name: str

    @property
    def store(self) -> Store: ...


class Progress(NamedTuple):
    """How far a job is."""

    fraction: float
    """From 0 to 1."""
    text: str
    """What it does now."""
    at: datetime
    """When the job said so, in UTC."""


class LogLine(NamedTuple):
    """A line that a job has logged."""

    text: str
    """The line, without its end."""
    at: datetime
    """When it was logged, in UTC."""


def _stream(jobs: Place, job_id: str) -> Stream[bytes]:
    return jobs.store.stream(f"{jobs.name}:{NOTES}:{job_id}")


def add_note(jobs: Place, job_id: str, text: str, fraction: float | None, ttl_s: float) -> None:
    """Add a line, or the progress if there is a fraction; in the open transaction, if any."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a line is a text, not {show(text)}")
    fields: dict[bytes, bytes] = {_TEXT: stored_text(text)}
    if fraction is not None:
        fields[_FRACTION] = str(_check(fraction)).encode()
    stream, store = _stream(jobs, job_id), jobs.store
    with nullcontext() if store.has_transaction() else store.brief_transaction():
        stream.add(fields, maxlen=NOTES_MAX, approximate=True)
        store.expire(stream.key, max(ttl_s, KEPT_S))


def _check(fraction: float) -> float:
    is_number = isinstance(fraction, int | float) and type(fraction) is not bool
    if not is_number or not 0 <= fraction <= 1:
        raise InvalidArgument(f"progress is a number from 0 to 1, not {show(fraction)}")
    return float(fraction)


def progress_of(jobs: Place, job_id: str) -> Progress | None:
    """Return the last progress that a job has reported; None if there is none."""
    end = "+"
    while page := _stream(jobs, job_id).revrange(end, count=_PAGE):
        for entry in page:
            if _FRACTION in entry.fields:
                return Progress(float(entry.fields[_FRACTION]), *_line(entry))
        end = f"({page[-1].id}"
    return None


def lines_of(jobs: Place, job_id: str) -> list[LogLine]:
    """Return the last lines of a job, oldest first."""
    entries = _stream(jobs, job_id).range()
    return [LogLine(*_line(entry)) for entry in entries if _FRACTION not in entry.fields]


def _line(entry: Entry[bytes]) -> tuple[str, datetime]:
    text = entry.fields.get(_TEXT, b"").decode("utf-8", "backslashreplace")
    return text, datetime.fromtimestamp(entry.id.ms / 1000, UTC)
