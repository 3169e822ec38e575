"""Check the queue tree of one stream: its timers, and other rows of queues.

A timer is the truth; the time in the stream's record must not be later than its first one. Each tag
of other rows has a check of its own in ``TAGS``.
"""

from collections.abc import Callable, Mapping

from kvstream.layout.keys import tree_prefix
from kvstream.meta import timers
from kvstream.meta.records import StreamMeta
from kvstream.meta.timers import Kind, Timer
from kvstream.operations.checks.survey import DECODING_ERRORS, Survey
from kvstream.storage.batch import Family

_TREES = Family.TREES
_DAMAGED = "a timer cannot be decoded"
_UNKNOWN_ROW = "a row of queues of an unknown kind"

RowCheck = Callable[[Survey, StreamMeta, str, bytes, bytes], bool]
"""Return whether a row of a stream, given by its suffix and value, is sound."""

TAGS: Mapping[bytes, RowCheck] = {}
"""By the tag of the row."""


def check_queue(survey: Survey, stream: StreamMeta, place: str) -> None:
    """Check the rows of a stream's queue tree, and set the time of its first timer."""
    if not stream.queue_tree:
        return
    survey.claim_tree(place, stream.queue_tree)
    first = 0
    for suffix, value in survey.tree(stream.queue_tree):
        if suffix.startswith(timers.TIMER):
            timer = _timer(survey, stream, place, suffix, value)
            if timer is not None:
                first = first or timer.at_ms
            continue
        check = TAGS.get(suffix[:1])
        if check is None or not check(survey, stream, place, suffix, value):
            _drop(survey, stream, place, _UNKNOWN_ROW, suffix)
    if first and not 0 < stream.due_at <= first:
        survey.findings.settle(place, "the time of the first timer", stream.due_at, first)
        stream.due_at = first


def _timer(
    survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes
) -> Timer | None:
    try:
        timer = timers.decode(suffix, value)
        Kind(timer.kind)
    except DECODING_ERRORS:
        _drop(survey, stream, place, _DAMAGED, suffix)
        return None
    return timer


def _drop(survey: Survey, stream: StreamMeta, place: str, kind: str, suffix: bytes) -> None:
    survey.findings.fault(place, kind, suffix[:40].hex())
    survey.findings.delete(_TREES, tree_prefix(stream.queue_tree) + suffix)
