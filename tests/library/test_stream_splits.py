"""Splitting a stream for parallel readers, compared with the entries themselves."""

from itertools import pairwise

import pytest

from kvstream import Store
from kvstream.operations.reads import counts as splitting
from kvstream.operations.reads.counts import Ends, Span
from kvstream.stream import Stream
from kvstream.types.ids import MAX_ID, MIN_ID, StreamID

NAME = b"\x00\x00orders"


def cut(store: Store, start: StreamID, end: StreamID, size: int) -> list[Span]:
    return store.engine.run(splitting.spans, NAME, start, end, size)


def fill(store: Store, count: int = 2500) -> Stream:
    stream = store.stream("orders")
    with store.transaction():
        for number in range(count):
            stream.add(
                {"n": str(number), "more": "x" * (number % 37)},
                id=(1000 + number // 3, 1 + number % 3),
            )
    return stream


@pytest.mark.parametrize("size", [1, 100, 700, 10_000])
@pytest.mark.parametrize(
    ("start", "end"),
    [(MIN_ID, MAX_ID), (StreamID(1111, 2), StreamID(1500, 1)), (StreamID(1500, 2), MAX_ID)],
)
def test_spans_cover_a_range_once_and_count_its_entries(
    store: Store, start: StreamID, end: StreamID, size: int
) -> None:
    stream = fill(store)
    stream.delete((1200, 1), (1200, 2), (1499, 3))
    found = cut(store, start, end, size)
    for one, following in pairwise(found):
        assert one.end.next() == following.start
    read = [stream.range(span.start, span.end) for span in found]
    assert [entry for page in read for entry in page] == stream.range(start, end)
    for span, page in zip(found, read, strict=True):
        if span.exact:
            assert span.entries == len(page)
        assert abs(span.entries - len(page)) <= 200
    assert all(span.exact for span in found[1:-1])


def test_a_whole_stream_is_counted_exactly_also_behind_a_trim(store: Store) -> None:
    stream = fill(store)
    stream.trim(maxlen=777)
    found = cut(store, MIN_ID, MAX_ID, 100)
    assert all(span.exact for span in found)
    assert sum(span.entries for span in found) == 777
    assert found[0].start == stream.range(count=1)[0].id


def test_an_empty_range_has_no_spans(store: Store) -> None:
    assert cut(store, MIN_ID, MAX_ID, 10) == []
    fill(store, 10)
    assert cut(store, StreamID(5000, 0), MAX_ID, 10) == []
    store.stream("orders").trim(maxlen=0)
    assert cut(store, MIN_ID, MAX_ID, 10) == []


def test_the_nth_entry_after_an_id_is_found_by_nodes(store: Store) -> None:
    stream = fill(store)
    stream.trim(maxlen=2300)
    stream.delete((1200, 1), (1300, 2))
    ids = [entry.id for entry in stream.range()]
    for after in (MIN_ID, ids[0], ids[99], ids[1234], StreamID(1200, 1), ids[-2]):
        for count in (1, 2, 99, 100, 101, 1000, 5000):
            following = [eid for eid in ids if eid > after][:count]
            found = store.engine.run(splitting.nth_after, NAME, after, count)
            assert found == following[-1]
    assert store.engine.run(splitting.nth_after, NAME, ids[-1], 5) == ids[-1]


def test_the_ends_of_a_stream_are_returned(store: Store) -> None:
    assert store.engine.run(splitting.ends, NAME) is None
    stream = fill(store, 10)
    stream.trim(maxlen=4)
    ids = [entry.id for entry in stream.range()]
    assert store.engine.run(splitting.ends, NAME) == Ends(4, 10, ids[0], ids[-1])
    stream.trim(maxlen=0)
    assert store.engine.run(splitting.ends, NAME) == Ends(0, 10, ids[-1], ids[-1])
