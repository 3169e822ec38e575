"""Stream IDs: valid and invalid ones, and how they are ordered, packed and incremented."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream import IDsExhausted, InvalidArgument, InvalidID, StreamID
from kvstream.errors import show
from kvstream.types.ids import (
    MAX_ID,
    MIN_ID,
    U64_MAX,
    AddID,
    IDLike,
    parse_add_id,
    range_end,
    range_start,
    time_ms,
)

U64 = st.integers(0, U64_MAX)
IDS = st.builds(StreamID, U64, U64)

NO_IDS: list[object] = [
    "", "-", "+", "*", "$", ">", "x", "1-", "-1", "1-x", "x-1", "1-1-1", "1--1", "-1-1", "1-*",
    " 1", "1 ", "1 -1", "1-1\n", "+1", "1-+1", "1.5", "1e3", "0x1", "1_0", "\u0661", "\udcff",
    "(1", "(1-1", str(U64_MAX + 1), f"1-{U64_MAX + 1}", "9" * 200,
    b"", b"-", b"+", b"*", b"1-", b"\xff", b"1-\x00", b"(1-1",
    -1, U64_MAX + 1, True, False, None, 1.0, [], [1, 2], {}, object(),
    (), (1,), (1, 2, 3), (-1, 0), (0, -1), (U64_MAX + 1, 0), (0, U64_MAX + 1),
    ("1", "2"), (1.0, 2), (1, None), (True, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0-0", (0, 0)),
        ("1-2", (1, 2)),
        ("1", (1, 0)),
        (b"1-2", (1, 2)),
        (b"1", (1, 0)),
        ("007-0008", (7, 8)),
        (f"{U64_MAX}-{U64_MAX}", (U64_MAX, U64_MAX)),
        (7, (7, 0)),
        (U64_MAX, (U64_MAX, 0)),
        ((3, 4), (3, 4)),
        (StreamID(5, 6), (5, 6)),
        (datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), (1500, 0)),
        (datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1))), (1000, 0)),
    ],
)
def test_an_id_is_parsed_from_several_forms(value: IDLike, expected: tuple[int, int]) -> None:
    parsed = StreamID.parse(value)
    assert parsed == StreamID(*expected)
    assert type(parsed) is StreamID


@pytest.mark.parametrize("value", NO_IDS)
def test_an_invalid_id_is_refused(value: IDLike) -> None:
    with pytest.raises(InvalidID) as caught:
        StreamID.parse(value)
    redis = "Invalid stream ID specified as stream command argument"
    assert caught.value.reply == f"ERR {redis}"
    assert str(caught.value).startswith(f"{redis}: {show(value)} (")


@pytest.mark.parametrize("value", ["5", b"5", 5])
def test_a_missing_sequence_is_chosen_by_the_caller(value: IDLike) -> None:
    assert StreamID.parse(value, U64_MAX) == StreamID(5, U64_MAX)


@pytest.mark.parametrize("ms", [1, 999, 1001, 1_700_000_000_123, 1_753_900_000_057])
def test_a_datetime_becomes_its_exact_millisecond(ms: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert StreamID.parse(moment) == StreamID(ms, 0)
    assert StreamID.parse(moment + timedelta(microseconds=999)) == StreamID(ms, 0)


def test_a_datetime_without_a_zone_and_a_date_are_utc() -> None:
    noon = StreamID.parse(datetime(2024, 7, 1, 12, tzinfo=UTC))
    assert StreamID.parse(datetime(2024, 7, 1, 12)) == noon
    assert StreamID.parse(date(2024, 7, 1)) == StreamID(noon.ms - 12 * 3_600_000, 0)


def test_a_datetime_before_1970_is_no_id() -> None:
    with pytest.raises(InvalidID):
        StreamID.parse(datetime(1969, 12, 31, tzinfo=UTC))


@given(IDS)
def test_text_and_bytes_of_an_id_are_parsed_back(eid: StreamID) -> None:
    assert StreamID.parse(str(eid)) == eid
    assert StreamID.parse(bytes(eid)) == eid
    assert StreamID.unpack(eid.packed) == eid
    assert eval(repr(eid)[len("StreamID") :]) == str(eid)


@given(IDS, IDS)
def test_ids_sort_as_128_bit_numbers_and_so_do_their_bytes(one: StreamID, two: StreamID) -> None:
    numbers = [(eid.ms << 64) + eid.seq for eid in (one, two)]
    assert (one < two) == (numbers[0] < numbers[1]) == (one.packed < two.packed)
    assert one.packed == numbers[0].to_bytes(16, "big")


@given(IDS)
def test_next_and_previous_are_one_apart(eid: StreamID) -> None:
    number = (eid.ms << 64) + eid.seq
    if eid != MAX_ID:
        assert int.from_bytes(eid.next().packed, "big") == number + 1
    if eid != MIN_ID:
        assert int.from_bytes(eid.previous().packed, "big") == number - 1


def test_next_and_previous_carry_into_the_milliseconds() -> None:
    assert StreamID(1, U64_MAX).next() == StreamID(2, 0)
    assert StreamID(2, 0).previous() == StreamID(1, U64_MAX)
    assert StreamID(U64_MAX, U64_MAX - 1).next() == MAX_ID
    assert StreamID(0, 1).previous() == MIN_ID


def test_there_is_no_id_above_the_greatest_or_below_the_least() -> None:
    with pytest.raises(IDsExhausted):
        MAX_ID.next()
    with pytest.raises(InvalidID):
        MIN_ID.previous()


@pytest.mark.parametrize(
    ("value", "start", "end"),
    [
        ("-", MIN_ID, MIN_ID),
        ("+", MAX_ID, MAX_ID),
        (b"-", MIN_ID, MIN_ID),
        (b"+", MAX_ID, MAX_ID),
        ("5", StreamID(5, 0), StreamID(5, U64_MAX)),
        (b"5", StreamID(5, 0), StreamID(5, U64_MAX)),
        (5, StreamID(5, 0), StreamID(5, U64_MAX)),
        ("5-3", StreamID(5, 3), StreamID(5, 3)),
        (StreamID(5, 3), StreamID(5, 3), StreamID(5, 3)),
        ("(5-3", StreamID(5, 4), StreamID(5, 2)),
        (b"(5-3", StreamID(5, 4), StreamID(5, 2)),
        ("(5", StreamID(5, 1), StreamID(5, U64_MAX - 1)),
        (f"(5-{U64_MAX}", StreamID(6, 0), StreamID(5, U64_MAX - 1)),
        ("(5-0", StreamID(5, 1), StreamID(4, U64_MAX)),
    ],
)
def test_a_bound_of_a_range_is_completed_and_may_be_excluded(
    value: IDLike, start: StreamID, end: StreamID
) -> None:
    assert range_start(value) == start
    assert range_end(value) == end


@pytest.mark.parametrize("bound", ["(", "(-", "(+", "((1-1", "(x", b"(", b"(-", "--", "$", ">", ""])
def test_a_malformed_bound_is_no_id(bound: IDLike) -> None:
    with pytest.raises(InvalidID):
        range_start(bound)
    with pytest.raises(InvalidID):
        range_end(bound)


def test_nothing_can_be_excluded_at_either_end_of_all_ids() -> None:
    with pytest.raises(InvalidArgument, match=r"^invalid start ID for the interval$"):
        range_start(f"({U64_MAX}-{U64_MAX}")
    with pytest.raises(InvalidArgument, match=r"^invalid end ID for the interval$"):
        range_end("(0-0")
    assert range_start("(0-0") == StreamID(0, 1)
    assert range_end(f"({U64_MAX}-{U64_MAX}") == MAX_ID.previous()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("*", None),
        (b"*", None),
        ("7-*", 7),
        (b"7-*", 7),
        (f"{U64_MAX}-*", U64_MAX),
        ("7", StreamID(7, 0)),
        ("7-8", StreamID(7, 8)),
        (7, StreamID(7, 0)),
        ((7, 8), StreamID(7, 8)),
    ],
)
def test_an_id_to_add_is_complete_or_left_to_the_store(value: IDLike, expected: AddID) -> None:
    assert parse_add_id(value) == expected
    assert type(parse_add_id(value)) is type(expected)


@pytest.mark.parametrize(
    "value",
    ["-*", "*-*", "x-*", "1-2-*", "**", "*-1", "1-**", f"{U64_MAX + 1}-*", "\udcff", "", 1.5],
)
def test_a_malformed_id_to_add_is_no_id(value: IDLike) -> None:
    with pytest.raises(InvalidID):
        parse_add_id(value)


NOON = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1h ago", NOON - timedelta(hours=1)),
        ("1 hour ago", NOON - timedelta(hours=1)),
        ("an hour ago", NOON - timedelta(hours=1)),
        ("2 days ago", NOON - timedelta(days=2)),
        ("90s ago", NOON - timedelta(seconds=90)),
        ("250ms ago", NOON - timedelta(milliseconds=250)),
        ("10 mins ago", NOON - timedelta(minutes=10)),
        ("1.5 hrs ago", NOON - timedelta(minutes=90)),
        ("2w ago", NOON - timedelta(weeks=2)),
        ("last hour", NOON - timedelta(hours=1)),
        ("Last 15 Minutes", NOON - timedelta(minutes=15)),
        ("past week", NOON - timedelta(weeks=1)),
        ("today", MIDNIGHT),
        ("yesterday", MIDNIGHT - timedelta(days=1)),
        ("Yesterday 14:05", MIDNIGHT - timedelta(hours=9, minutes=55)),
        ("today 9:30:10", MIDNIGHT + timedelta(hours=9, minutes=30, seconds=10)),
    ],
)
def test_words_name_times_in_utc(text: str, moment: datetime) -> None:
    assert time_ms(text, lambda: time_ms(NOON) or 0) == time_ms(moment)


@pytest.mark.parametrize(
    "text",
    ["ago", "5 ago", "last", "5m", "hour", "last hour ago", "yesterday 25:00", "1 x ago", "todays"],
)
def test_other_words_are_no_times(text: str) -> None:
    assert time_ms(text) is None
