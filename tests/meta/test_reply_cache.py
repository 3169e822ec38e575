"""Recently read entries: the cached ones are current, and within their limit."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.layout.rows import TEXT_BYTES_MAX, EncodedEntries, Rows, Text, below, below_in_python
from kvstream.layout.values import encode_flat
from kvstream.meta.reply_cache import ReplyCache, following
from kvstream.resp.replies import write_rows, write_rows_in_python
from kvstream.storage.batch import Row
from kvstream.types.ids import MAX_ID, StreamID
from kvstream.types.records import Entry, RepeatedFields

PREFIX = b"prefix"


def packed(number: int) -> bytes:
    return StreamID(0, number).packed


def row(number: int) -> Row:
    value, _ = encode_flat([b"number", b"%d" % number])
    return PREFIX + packed(number), value


def text_of(numbers: list[int]) -> Text:
    text = write_rows([row(number) for number in numbers], len(PREFIX), TEXT_BYTES_MAX)
    assert text is not None
    return text


def read(cache: ReplyCache, live: list[int], start: int, end: int, count: int) -> bytes:
    """Read as operations do: first the cached entries, then the rows after them."""
    wanted = [number for number in live if start <= number <= end]
    if not wanted:
        return b""
    found = cache.find(PREFIX, packed(start), packed(end), count)
    left = count - found.count
    if left and found.start <= packed(end):
        rest = [number for number in wanted if packed(number) >= found.start][:left]
        if rest:
            text = cache.keep(PREFIX, found.start, [row(number) for number in rest])
            found.parts.append(text_of(rest).data if text is None else text.data)
    return b"".join(found.parts)


def assert_sound(cache: ReplyCache, live: list[int]) -> None:
    """Assert that stretches are ordered, complete, counted, and within their limit."""
    stretches = cache.of(PREFIX)
    for one, other in pairwise(stretches):
        assert one.lower < one.until <= other.lower
    for each in stretches:
        inside = [packed(number) for number in live if each.lower <= packed(number) < each.until]
        kept = [each.text.ids[at : at + 16] for at in range(0, len(each.text.ids), 16)]
        assert [eid for eid in kept if eid >= packed(live[0])] == inside
    assert cache.memory == sum(each.size for each in stretches) <= cache.memory_max


NUMBER = st.integers(1, 80)
STEPS = st.lists(
    st.tuples(st.just("add"), st.lists(st.integers(1, 3), min_size=1, max_size=12))
    | st.tuples(st.just("delete"), NUMBER, st.integers(0, 9))
    | st.tuples(st.just("trim"), st.integers(1, 20))
    | st.tuples(st.just("read"), NUMBER, NUMBER, st.integers(1, 25)),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS, st.sampled_from([600, 1500, 4000, 1 << 20]), st.integers(1, 4))
def test_cached_reads_equal_the_rows(steps: list[tuple], memory: int, least: int) -> None:  # type: ignore[type-arg]
    cache = ReplyCache(memory, write_rows)
    cache.rows_min = least
    live, last = [1], 1
    for what, *how in steps:
        if what == "add":
            for gap in how[0]:
                last += gap
                live.append(last)
        elif what == "delete":
            chosen = [number for number in live if how[0] <= number <= how[0] + how[1]]
            live = [number for number in live if number not in chosen]
            if chosen:
                cache.drop_between(PREFIX, packed(chosen[0]), packed(chosen[-1]))
        elif what == "trim":
            live = live[how[0] :]
            if live:
                cache.drop_before(PREFIX, packed(live[0]))
        if not live:
            cache.forget(PREFIX)
            last += 1
            live = [last]
        if what == "read":
            start, end, count = max(how[0], live[0]), min(how[1], last), how[2]
            expected = [number for number in live if start <= number <= end][:count]
            assert read(cache, live, start, end, count) == text_of(expected).data
        assert_sound(cache, live)


def test_a_second_reader_needs_no_rows() -> None:
    cache = ReplyCache(1 << 20, write_rows)
    live = list(range(1, 301))
    first = read(cache, live, 1, 300, 100) + read(cache, live, 101, 300, 100)
    found = cache.find(PREFIX, packed(51), packed(300), 100)
    assert (found.count, found.start) == (100, packed(201))
    assert b"".join(found.parts) == text_of(live[50:150]).data
    assert first == text_of(live[:200]).data
    assert cache.find(PREFIX, packed(201), packed(300), 9).count == 0


def test_a_few_rows_are_not_cached() -> None:
    cache = ReplyCache(1 << 20, write_rows)
    read(cache, [1, 2, 3], 1, 3, 100)
    assert cache.of(PREFIX) == []
    assert cache.memory == 0


def test_the_least_recently_read_leave_first() -> None:
    live = list(range(1, 41))
    cache = ReplyCache(1 << 20, write_rows)
    for start in (1, 11, 21):
        read(cache, live, start, 40, 10)
    read(cache, live, 1, 40, 10)
    cache.bound(2 * cache.memory // 3 + 1)
    assert [each.lower for each in cache.of(PREFIX)] == [packed(1), packed(21)]
    cache.bound(0)
    assert (cache.of(PREFIX), cache.memory) == ([], 0)


def test_entries_of_another_stream_stay() -> None:
    cache = ReplyCache(1 << 20, write_rows)
    read(cache, list(range(1, 41)), 1, 40, 20)
    cache.drop_between(b"other", packed(1), packed(40))
    cache.drop_before(b"other", packed(40))
    cache.forget(b"other")
    assert len(cache.of(PREFIX)) == 1
    cache.clear()
    assert (cache.of(PREFIX), cache.memory) == ([], 0)


def test_what_follows_the_greatest_id_is_above_all() -> None:
    assert following(StreamID(1, 2**64 - 1).packed) == StreamID(2, 0).packed
    assert following(MAX_ID.packed) > MAX_ID.packed


IDS = st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=20).map(sorted)


@given(IDS, st.binary(min_size=16, max_size=17))
def test_ids_are_found_alike(ids: list[bytes], wanted: bytes) -> None:
    for eid in (wanted, *ids):
        expected = sum(each < eid for each in ids)
        assert below(b"".join(ids), eid) == below_in_python(b"".join(ids), eid) == expected


FLAT = st.lists(st.binary(max_size=40), min_size=2, max_size=12).map(
    lambda parts: parts[: len(parts) // 2 * 2]
)


@given(st.lists(FLAT, max_size=8), st.integers(0, 600) | st.just(TEXT_BYTES_MAX))
def test_rows_become_text_and_text_entries_again(entries: list[list[bytes]], most: int) -> None:
    page = [(PREFIX + packed(at), encode_flat(flat)[0]) for at, flat in enumerate(entries, 1)]
    text = write_rows(page, len(PREFIX), most)
    assert text == write_rows_in_python(page, len(PREFIX), most)
    if text is None:
        assert most < 4 + sum(len(value) * 6 + 60 for _, value in page)
        return
    assert text.length == len(page)
    halves = [text.part(0, len(page) // 2), text.part(len(page) // 2, len(page))]
    written = EncodedEntries(len(page), halves, [text.ids[:16], text.ids[16:]])
    assert list(written) == list(Rows(page, len(PREFIX)))
    assert [entry.flat for entry in written] == [tuple(flat) for flat in entries]
    assert written[:1] == list(written)[:1]
    assert written.packed_ids() == [key[-16:] for key, _ in page]


def test_entries_read_back_are_of_the_kinds_that_they_were() -> None:
    page = [(PREFIX + packed(1), encode_flat([b"a", b"1", b"a", b"2"])[0]), row(2)]
    text = write_rows(page, len(PREFIX), 1 << 20)
    assert text is not None
    twice, once = EncodedEntries(2, [text.data], [text.ids])
    assert type(twice.fields) is RepeatedFields
    assert once == Entry(StreamID(0, 2), {b"number": b"2"})


@pytest.mark.parametrize("value", [b"", b"\x01\x80", b"\x01\x81\xa1a\x05"])
def test_damaged_rows_become_no_text(value: bytes) -> None:
    page = [row(1), (PREFIX + packed(2), value)]
    assert write_rows(page, len(PREFIX), 1 << 20) is None
    assert write_rows_in_python(page, len(PREFIX), 1 << 20) is None
