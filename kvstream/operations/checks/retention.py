"""Check the rows of a stream's retention, which all begin with the tag ``P``.

Rules that cannot be decoded, and rows of an unknown form, are faults; so is an ID that is above the
cursor, since only entries up to the cursor were compacted.
"""

from kvstream.layout.keys import U64
from kvstream.meta.records import StreamMeta
from kvstream.meta.retention import (
    CURSOR_ROW,
    DIGEST_BYTES,
    LATEST_ROWS,
    REAP_ROWS,
    RULES_ROW,
    TIMER_ROW,
    Retention,
)
from kvstream.operations.checks.survey import Survey
from kvstream.types.ids import MIN_ID, StreamID

_ID_BYTES = len(MIN_ID.packed)


def is_sound(survey: Survey, stream: StreamMeta, place: str, suffix: bytes, value: bytes) -> bool:
    """Return whether a row of retention, given by its suffix and value, is sound."""
    if suffix == RULES_ROW:
        return _decodes(value)
    if suffix == CURSOR_ROW:
        return len(value) == _ID_BYTES
    if suffix == TIMER_ROW or suffix.startswith(REAP_ROWS):
        return len(value) == U64.size
    if suffix.startswith(LATEST_ROWS):
        sound = len(suffix) == len(LATEST_ROWS) + DIGEST_BYTES and len(value) == _ID_BYTES
        return sound and StreamID.unpack(value) <= max(stream.last, stream.max_deleted)
    return False


def _decodes(value: bytes) -> bool:
    try:
        return not Retention.decode(value).is_empty
    except ValueError:
        return False
