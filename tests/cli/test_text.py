"""Texts are shown on one line that any terminal can print, with any stored data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.cli.tables import duration, number, plural, printable, shorten, size, time_of
from kvstream.types.ids import MAX_ID, StreamID


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"plain text", "plain text"),
        ("Grüße ☃".encode(), "Grüße ☃"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"\x1b[31mred\x07", r"\x1b[31mred\x07"),
        (b"a\nb\tc\r\0", r"a\nb\tc\r\x00"),
        ("right\u202eto left".encode(), r"right\u202eto left"),
        ("bad \udcff name", r"bad \xff name"),
        ("half \ud800 pair", r"half \ud800 pair"),
        (b"", ""),
    ],
)
def test_unprintable_characters_are_escaped(value: bytes | str, shown: str) -> None:
    assert printable(value) == shown


@given(st.binary() | st.text(st.characters()))
def test_every_value_is_shown_in_printable_unicode(value: bytes | str) -> None:
    shown = printable(value)
    assert shown.isprintable()
    shown.encode()


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abcdef", None, "abcdef"), ("abcdef", 6, "abcdef"), ("abcdef", 5, "abcd…"), ("ab", 1, "…")],
)
def test_long_values_are_cut_with_an_ellipsis(text: str, width: int | None, shown: str) -> None:
    assert shorten(text, width) == shown


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (StreamID(1_700_000_000_123, 7), "2023-11-14 22:13:20.123Z"),
        (1_700_000_000_000, "2023-11-14 22:13:20.000Z"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999Z"),
        (253_402_300_800_000, ""),
        (StreamID(5, 1), ""),
        (MAX_ID, ""),
        (-1, ""),
        (None, ""),
    ],
)
def test_only_ids_that_can_be_times_are_shown_as_times(
    moment: StreamID | int | None, shown: str
) -> None:
    assert time_of(moment) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (100_000, "1m 40s"),
        (12_000_000, "3h 20m"),
        (90_061_000, "1d 1h"),
        (86_400_000, "1d"),
        (-1, "never"),
        (None, "never"),
    ],
)
def test_durations_are_shown_in_their_two_greatest_units(ms: int | None, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (10**18, "1000.0 PB")],
)
def test_sizes_are_shown_in_decimal_units(count: int, shown: str) -> None:
    assert size(count) == shown


def test_counts_are_shown_with_thousands_apart_and_their_nouns() -> None:
    assert number(1_234_567) == "1,234,567"
    assert number(None) == "unknown"
    assert plural(1, "entry") == "1 entry"
    assert plural(2000, "entry") == "2,000 entries"
    assert plural(0, "row") == "0 rows"
