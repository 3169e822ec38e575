"""How single arguments are parsed."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.commands.args import (
    I64_MAX,
    I64_MIN,
    Args,
    integer,
    range_end,
    range_start,
    stream_id,
)
from kvstream.errors import InvalidArgument, InvalidID
from kvstream.types.ids import MAX_ID, MIN_ID, U64_MAX, StreamID

MAX = str(U64_MAX).encode()


@given(st.integers(I64_MIN, I64_MAX))
def test_an_integer_reads_back_from_its_own_text(number: int) -> None:
    assert integer(b"%d" % number) == number


@given(st.text("-+0129 _.", max_size=21))
def test_only_the_text_of_a_64_bit_integer_is_one(text: str) -> None:
    raw = text.encode()
    number = None
    with suppress(InvalidArgument):
        number = integer(raw)
    canonical = text.removeprefix("-").isdecimal() and text == str(int(text))
    assert number == (int(text) if canonical and I64_MIN <= int(text) <= I64_MAX else None)


NO_INTEGERS = [
    *(b"", b"-", b"-0", b"+1", b"01", b" 1", b"1 ", b"1_0", b"1.5", b"1e3", "\u0661".encode()),
    *(b"9223372036854775808", b"-9223372036854775809", b"1" * 30),
]


@pytest.mark.parametrize("raw", NO_INTEGERS)
def test_integers_in_other_forms_of_python_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        integer(raw, "not a number")
    assert str(refused.value) == "not a number"


@pytest.mark.parametrize(
    ("raw", "eid"),
    [
        (b"5", (5, 7)),
        (b"5-3", (5, 3)),
        (b"005-03", (5, 3)),
        (b"+5-+3", (5, 3)),
        (b" 5-\t3", (5, 3)),
        (b"5--03", (5, U64_MAX - 2)),
        (MAX + b"-" + MAX, (U64_MAX, U64_MAX)),
    ],
)
def test_an_id_is_parsed_as_loosely_as_by_redis(raw: bytes, eid: tuple[int, int]) -> None:
    assert stream_id(raw, 7) == StreamID(*eid)


NO_IDS = [
    *(b"", b"-", b"+", b"*", b"5-", b"-5", b"5--3", b"5-3-1", b"5 ", b"5-3 ", b"x", b"5_0", b"(5"),
    *(b"18446744073709551616", b"5-18446744073709551616", b"0" * 100 + b"-" + b"0" * 30, b"5-*"),
]


@pytest.mark.parametrize("raw", NO_IDS)
def test_an_invalid_id_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidID):
        stream_id(raw)


def test_bounds_complete_and_exclude_ids() -> None:
    assert range_start(b"-") == MIN_ID
    assert range_start(b"+") == MAX_ID
    assert range_end(b"+") == MAX_ID
    assert range_end(b"-") == MIN_ID
    assert range_start(b"5") == StreamID(5, 0)
    assert range_end(b"5") == StreamID(5, U64_MAX)
    assert range_start(b"(5") == StreamID(5, 1)
    assert range_start(b"(5-" + MAX) == StreamID(6, 0)
    assert range_end(b"(5") == StreamID(5, U64_MAX - 1)
    assert range_end(b"(5-0") == StreamID(4, U64_MAX)


def test_a_cursor_returns_arguments_and_refuses_to_pass_the_last() -> None:
    args = Args([b"XRANGE", b"count", b"5"], 1)
    assert len(args) == 2
    assert args.peek() == b"count"
    assert args.option() == b"COUNT"
    assert args.integer() == 5
    assert not args
    with pytest.raises(InvalidArgument, match="syntax error"):
        args.next()
