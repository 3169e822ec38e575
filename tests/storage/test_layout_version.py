"""The layout's version changes with the kinds of rows and records that the code writes."""

from kvstream.layout import keys
from kvstream.meta import records, strings, timers
from kvstream.storage.directory import LAYOUT_VERSION

KINDS = {
    3: (
        "ABCDFGLNORSTUX",  # tags of metadata rows
        [1, 2, 3, 4, 5, 6, 7, 8, 9],  # kinds of timers
        {records.STREAM_KIND: (1, 2), strings.STRING_KIND: (1, 2, 3)},  # versions of records
        (2, 3),  # of groups and consumers
    )
}
"""What the newest layout may hold. A new kind of row belongs under a new number: older code would
take it for damage, and must refuse the store."""


def test_a_new_kind_of_row_raises_the_layout() -> None:
    tags = [value for name, value in vars(keys).items() if name.endswith(("_TAG", "_KEY"))]
    streams = records.RECORD_VERSION, records.QUEUE_VERSION
    texts = strings.WHOLE_VERSION, strings.PIECES_VERSION, strings.PARTS_VERSION
    assert KINDS[LAYOUT_VERSION] == (
        b"".join(sorted(tags)).decode(),
        sorted(timers.Kind),
        {records.STREAM_KIND: streams, strings.STRING_KIND: texts},
        (records.MEMBER_VERSION, records.POLICY_VERSION),
    )
