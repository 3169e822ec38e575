"""Check the queue tree of one stream: its timers, and other rows of queues.

A timer is the truth; the time in the stream's record must not be later than its first one. Each tag
of other rows has a check of its own in ``TAGS``.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from kvstream.layout.keys import ID_BYTES, U64, tree_prefix
from kvstream.meta import timers
from kvstream.meta.policy import (
    CURSOR_ROW,
    DIGEST_BYTES,
    LATEST_ROWS,
    REAP_ROWS,
    RULES_ROW,
    TIMER_ROW,
    Retention,
)
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.operations import delayed, unique
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.operations.queues import redrive, schedules
from kvstream.operations.queues.redrive import Job, State
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID

_TREES = Family.TREES
_DAMAGED = "a timer cannot be decoded"
_UNKNOWN_ROW = "a row of queues of an unknown kind"

RowCheck = Callable[[Survey, StreamMeta, str, bytes, bytes], bool]
"""Return whether a row of a stream, given by its suffix and value, is sound."""


def _redrive(survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes) -> bool:
    """Return whether a row of a redrive can be read, and a timer goes on with one that runs."""
    if suffix == redrive.IDS:
        return len(value) % ID_BYTES == 0
    try:
        job = Job.decode(value)
    except DECODING_ERRORS:
        return False
    row = timers.row(stream, job.next_ms, Kind.REDRIVE, b"")
    is_due = survey.rows.get(_TREES, row) is not None
    return suffix == redrive.JOB and (is_due or job.state != State.RUNNING)


def _is_known(survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes) -> bool:
    """Return whether it is the count that ``check_queue`` compares with the timers."""
    return suffix == delayed.COUNT_ROW


def _is_schedule(
    survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes
) -> bool:
    """Return whether a schedule can be read; it needs a timer at its next time."""
    try:
        schedule = schedules.decode(suffix[1:], value)
    except DECODING_ERRORS:
        return False
    _need_timer(survey, stream, place, schedule.next_ms, Kind.CRON, schedule.name)
    return True


def _is_unique(survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes) -> bool:
    """Return whether the row of a unique ID can be read; it needs a timer, which frees it."""
    try:
        row = unique.decode(suffix[1:], value)
    except DECODING_ERRORS:
        return False
    _need_timer(survey, stream, place, row.check_ms, Kind.UNIQUE, suffix[1:])
    return True


def _is_start(survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes) -> bool:
    """Return whether the row of a group's first position has an ID."""
    return len(value) == ID_BYTES


def _is_retention(
    survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes
) -> bool:
    """Return whether a row of retention is sound; no ID may be above the stream's last one."""
    if suffix == RULES_ROW:
        try:
            return not Retention.decode(value).is_empty
        except ValueError:
            return False
    if suffix == CURSOR_ROW:
        return len(value) == ID_BYTES
    if suffix == TIMER_ROW or suffix.startswith(REAP_ROWS):
        return len(value) == U64.size
    if suffix.startswith(LATEST_ROWS):
        sound = len(suffix) == len(LATEST_ROWS) + DIGEST_BYTES and len(value) == ID_BYTES
        return sound and StreamID.unpack(value) <= max(stream.last, stream.max_deleted)
    return False


def _need_timer(
    survey: Survey, stream: StreamMeta, place: str, at_ms: int, kind: Kind, rest: bytes
) -> None:
    """Report a timer that a row needs and that is missing, and write it."""
    key = timers.row(stream, at_ms, kind, rest)
    if at_ms and survey.rows.get(_TREES, key) is None:
        survey.findings.fault(place, "a timer is missing", f"{kind.name} {rest[:40]!r}")
        survey.findings.put(_TREES, key, b"")
        if not 0 < stream.due_at <= at_ms:
            stream.due_at = at_ms


TAGS: Mapping[bytes, RowCheck] = {
    delayed.COUNT_ROW: _is_known,
    b"P": _is_retention,
    redrive.JOB: _redrive,
    schedules.ROW_TAG: _is_schedule,
    unique.ROW_TAG: _is_unique,
    unique.START_TAG: _is_start,
}
"""By the tag of the row."""

_DECODERS: Mapping[int, Callable[[Timer], object]] = {
    Kind.DELAYED: delayed.decode_timer,
    Kind.EXPIRED: lambda timer: StreamID.unpack(timer.rest),
}
"""Raise one of DECODING_ERRORS if a timer of a kind is damaged."""


def check_queue(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check the rows of a stream's queue tree, and set the time of its first timer."""
    if not stream.queue_tree:
        return
    survey.claim_tree(place, stream.queue_tree)
    first = 0
    kinds: Counter[int] = Counter()
    for suffix, value in survey.tree(stream.queue_tree):
        if suffix.startswith(timers.TIMER):
            timer = _timer(survey, stream, place, suffix, value)
            if timer is not None:
                first = first or timer.at_ms
                kinds[timer.kind] += 1
            continue
        check = TAGS.get(suffix[:1])
        if check is None or not check(survey, stream, place, suffix, value):
            _drop(survey, stream, place, _UNKNOWN_ROW, suffix)
    if first and not 0 < stream.due_at <= first:
        survey.findings.corrected(place, "the time of the first timer", stream.due_at, first)
        stream.due_at = first
    _check_count(survey, stream, place, kinds[Kind.DELAYED])


def _check_count(survey: Survey, stream: StreamMeta, place: str, true: int) -> None:
    """Check the row that counts the delayed messages."""
    key = tree_prefix(stream.queue_tree) + delayed.COUNT_ROW
    recorded, value = survey.rows.get(_TREES, key), U64.pack(true) if true else None
    if recorded == value:
        return
    survey.findings.fault(place, "the number of delayed messages is wrong", f"{true} by count")
    if value is None:
        survey.findings.delete(_TREES, key)
    else:
        survey.findings.put(_TREES, key, value)


def _timer(
    survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes
) -> Timer | None:
    try:
        timer = timers.decode(suffix, value)
        _DECODERS.get(Kind(timer.kind), bool)(timer)
    except DECODING_ERRORS:
        _drop(survey, stream, place, _DAMAGED, suffix)
        return None
    return timer


def _drop(survey: Survey, stream: StreamMeta, place: str, kind: str, suffix: bytes) -> None:
    survey.findings.fault(place, kind, suffix[:40].hex())
    survey.findings.delete(_TREES, tree_prefix(stream.queue_tree) + suffix)
