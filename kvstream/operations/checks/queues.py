"""Check the queue tree of one stream: its timers, and other rows of queues.

A timer is the truth; the time in the stream's record must not be later than its first one. Each tag
of other rows has a check of its own in ``_TAGS``.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from kvstream.layout.keys import ID_BYTES, U64, tree_prefix
from kvstream.meta import timers
from kvstream.meta.policy import (
    ADDED_ROW,
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
from kvstream.operations.delivery import failures
from kvstream.operations.queues import redrive, schedules
from kvstream.operations.queues.redrive import Job, State
from kvstream.storage.batch import Family
from kvstream.types.ids import StreamID, Ticket

_TREES = Family.TREES
_DAMAGED = "a timer cannot be decoded"
_UNKNOWN_ROW = "a row of queues of an unknown kind"
_NO_HOLDER = "a unique ID is held by a delayed message that does not exist"
_NOT_ITS_TIMER = "a row of queues has not the time of its timer"


def check_queue(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check the rows of a stream's queue tree, and set the time of its first timer."""
    if stream.queue_tree:
        survey.claim_tree(place, stream.queue_tree)
        _QueueCheck(survey, stream, place).run()


class _QueueCheck:
    def __init__(self, survey: Survey, stream: StreamMeta, place: str) -> None:
        self._survey = survey
        self._findings = survey.findings
        self._stream = stream
        self._place = place
        self._tree = tree_prefix(stream.queue_tree)
        self._times: dict[bytes, bytes] = {}
        """The rows with the time of the only timer of a kind and rest, by their suffixes."""
        self._armed: dict[bytes, set[int]] = {}
        """The times of such timers, by the suffix of their row."""

    def run(self) -> None:
        stream, first = self._stream, 0
        kinds: Counter[int] = Counter()
        for suffix, value in self._survey.tree(stream.queue_tree):
            if suffix.startswith(timers.TIMER):
                timer = self._timer(suffix, value)
                if timer is not None:
                    first = first or timer.at_ms
                    kinds[timer.kind] += 1
                    time_row = timers.time_row(timer.kind, timer.rest)
                    if time_row is not None:
                        self._armed.setdefault(time_row, set()).add(timer.at_ms)
                continue
            is_sound = _TAGS.get(suffix[:1])
            if is_sound is None or not is_sound(self, suffix, value):
                self._drop(_UNKNOWN_ROW, suffix)
        if first and not 0 < stream.due_at <= first:
            self._findings.correct(self._place, "the time of the first timer", stream.due_at, first)
            stream.due_at = first
        self._check_times()
        self._check_count(kinds[Kind.DELAYED])

    def _timer(self, suffix: bytes, value: bytes) -> Timer | None:
        try:
            timer = timers.decode(suffix, value)
            _DECODERS.get(Kind(timer.kind), bool)(timer)
        except DECODING_ERRORS:
            self._drop(_DAMAGED, suffix)
            return None
        return timer

    def _check_times(self) -> None:
        """Check the rows with the time of a timer: one without its timer is never due."""
        for suffix in sorted(self._times.keys() | self._armed.keys()):
            value, armed = self._times.get(suffix, b""), self._armed.get(suffix)
            if armed is None:
                self._arm(suffix, value)
            elif value not in map(U64.pack, armed):
                self._findings.fault(self._place, _NOT_ITS_TIMER, suffix[:40].hex())
                self._findings.put(_TREES, self._tree + suffix, U64.pack(min(armed)))

    def _arm(self, suffix: bytes, value: bytes) -> None:
        """Report a row whose timer is missing, and set a timer that is due now."""
        if len(value) != U64.size:
            self._drop(_UNKNOWN_ROW, suffix)
            return
        at_ms = self._survey.now_ms
        if suffix == TIMER_ROW:
            self._need_timer(at_ms, Kind.RETENTION, b"")
        else:
            self._need_timer(at_ms, Kind.REAP, suffix.removeprefix(REAP_ROWS))
        self._findings.put(_TREES, self._tree + suffix, U64.pack(at_ms))

    def _check_count(self, true: int) -> None:
        """Check the row that counts the delayed messages."""
        key = self._tree + delayed.COUNT_ROW
        recorded, value = self._survey.rows.get(_TREES, key), U64.pack(true) if true else None
        if recorded == value:
            return
        kind = "the number of delayed messages is wrong"
        self._findings.fault(self._place, kind, f"{true} by count")
        if value is None:
            self._findings.delete(_TREES, key)
        else:
            self._findings.put(_TREES, key, value)

    def _drop(self, kind: str, suffix: bytes) -> None:
        self._findings.fault(self._place, kind, suffix[:40].hex())
        self._findings.delete(_TREES, self._tree + suffix)

    # --- whether a row, given by its suffix and value, is sound ---------------------------------

    def _is_redrive(self, suffix: bytes, value: bytes) -> bool:
        """Return whether a row of a redrive can be read; a timer goes on with one that runs."""
        if suffix == redrive.IDS:
            return len(value) % ID_BYTES == 0
        try:
            job = Job.decode(value)
        except DECODING_ERRORS:
            return False
        row = timers.row(self._stream, job.next_ms, Kind.REDRIVE, b"")
        is_due = self._survey.rows.get(_TREES, row) is not None
        return suffix == redrive.JOB and (is_due or job.state != State.RUNNING)

    def _is_count(self, suffix: bytes, value: bytes) -> bool:
        return suffix == delayed.COUNT_ROW  # ``_check_count`` compares it with the timers

    def _is_schedule(self, suffix: bytes, value: bytes) -> bool:
        """Return whether a schedule can be read; it needs a timer at its next time."""
        try:
            schedule = schedules.decode(suffix[1:], value)
        except DECODING_ERRORS:
            return False
        self._need_timer(schedule.next_ms, Kind.CRON, schedule.name)
        return True

    def _is_unique(self, suffix: bytes, value: bytes) -> bool:
        """Return whether the row of a unique ID can be read; it needs a timer, which frees it.

        A delayed message that is not there would hold the ID for ever.
        """
        try:
            row = unique.decode(suffix[1:], value)
        except DECODING_ERRORS:
            return False
        if not row.check_ms:
            return False
        if isinstance(row.holder, Ticket) and not self._is_delayed(row.holder, suffix[1:]):
            self._drop(_NO_HOLDER, suffix)
            return True
        self._need_timer(row.check_ms, Kind.UNIQUE, suffix[1:])
        return True

    def _is_delayed(self, ticket: Ticket, unique_id: bytes) -> bool:
        """Return whether a delayed message has a ticket and a unique ID."""
        rest = U64.pack(ticket.number)
        suffix = timers.suffix_of(ticket.at_ms, Kind.DELAYED, rest)
        value = self._survey.rows.get(_TREES, self._tree + suffix)
        try:
            _, message, _ = delayed.decode_timer(timers.decode(suffix, value or b""))
        except DECODING_ERRORS:
            return False
        return message.unique_id == unique_id

    def _is_failure(self, suffix: bytes, value: bytes) -> bool:
        """Return whether the last error of an entry can be read; a timer deletes it."""
        try:
            failures.parse(suffix[1:])
            failure = failures.decode(value)
        except DECODING_ERRORS:
            return False
        self._need_timer(failure.check_ms, Kind.FAILURE, suffix[1:])
        return failure.check_ms > 0

    def _is_start(self, suffix: bytes, value: bytes) -> bool:
        """Return whether the row of a group's first position has an ID."""
        return len(value) == ID_BYTES

    def _is_retention(self, suffix: bytes, value: bytes) -> bool:
        """Return whether a row of retention is sound; no ID may be above the stream's last one."""
        if suffix == RULES_ROW:
            try:
                return not Retention.decode(value).is_empty
            except ValueError:
                return False
        if suffix == CURSOR_ROW:
            return len(value) == ID_BYTES
        if suffix == ADDED_ROW:
            return len(value) == U64.size
        if suffix == TIMER_ROW or suffix.startswith(REAP_ROWS):
            self._times[suffix] = value  # ``_check_times`` compares it with its timer
            return True
        if suffix.startswith(LATEST_ROWS):
            sound = len(suffix) == len(LATEST_ROWS) + DIGEST_BYTES and len(value) == ID_BYTES
            last = max(self._stream.last, self._stream.max_deleted)
            return sound and StreamID.unpack(value) <= last
        return False

    def _need_timer(self, at_ms: int, kind: Kind, rest: bytes) -> None:
        """Report and write a timer that a row needs, if it is missing."""
        stream = self._stream
        key = timers.row(stream, at_ms, kind, rest)
        if at_ms and self._survey.rows.get(_TREES, key) is None:
            self._findings.fault(self._place, "a timer is missing", f"{kind.name} {rest[:40]!r}")
            self._findings.put(_TREES, key, b"")
            if not 0 < stream.due_at <= at_ms:
                stream.due_at = at_ms


_TAGS: Mapping[bytes, Callable[[_QueueCheck, bytes, bytes], bool]] = {
    delayed.COUNT_ROW: _QueueCheck._is_count,
    RULES_ROW: _QueueCheck._is_retention,
    redrive.JOB: _QueueCheck._is_redrive,
    schedules.ROW_TAG: _QueueCheck._is_schedule,
    unique.ROW_TAG: _QueueCheck._is_unique,
    unique.START_TAG: _QueueCheck._is_start,
    failures.ROW_TAG: _QueueCheck._is_failure,
}
"""By the tag of the row."""

_DECODERS: Mapping[int, Callable[[Timer], object]] = {
    Kind.DELAYED: delayed.decode_timer,
    Kind.EXPIRED: lambda timer: StreamID.unpack(timer.rest),
    Kind.FAILURE: lambda timer: failures.parse(timer.rest),
}
"""Raise one of DECODING_ERRORS if a timer of a kind is damaged."""
