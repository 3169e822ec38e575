"""Cron expressions: their times in a zone, on days of clock changes, and their errors."""

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from kvstream import InvalidArgument
from kvstream.types import cron

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = (2026, 3, 29), (2026, 10, 25)
"""Clocks go from 2 to 3 there, and from 3 to 2."""


def ms(*parts: int, zone: str = BERLIN, fold: int = 0) -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp() * 1000)  # type: ignore[arg-type,misc]


def times(expression: str, start: int, count: int, zone: str = BERLIN) -> list[str]:
    """Return the next times as the clocks of the zone show them."""
    planned, found = cron.parse(expression, zone), [start]
    for _ in range(count):
        following = planned.after(found[-1])
        assert following is not None
        found.append(following)
    where = ZoneInfo(zone)
    return [datetime.fromtimestamp(each / 1000, where).isoformat() for each in found[1:]]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_in_the_gap_of_spring_occurs_once_right_after_it(expression: str) -> None:
    assert times(expression, ms(2026, 3, 28, 12), 3) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_repeated_time_in_autumn_occurs_once(expression: str) -> None:
    expected = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert times(expression, ms(2026, 10, 24, 12), 2) == expected
    assert times(expression, ms(*AUTUMN, 2, 15, fold=1), 1) == expected[1:]


@pytest.mark.parametrize(("day", "hours"), [(SPRING, 23), (AUTUMN, 25)])
def test_intervals_count_real_time_on_days_of_change(day: tuple[int, int, int], hours: int) -> None:
    planned, start = cron.parse("*/30 * * * *", BERLIN), ms(*day)
    end = ms(day[0], day[1], day[2] + 1)
    found, at_ms = [], start
    while at_ms < end:
        found.append(at_ms)
        following = planned.after(at_ms)
        assert following is not None
        at_ms = following
    assert found == [start + n * 1_800_000 for n in range(hours * 2)]


@pytest.mark.parametrize(
    "expression",
    ["30 2 * * *", "7 30 2 * * *", "*/20 * * * *", "*/15 0 2 * * *", "0 0 1 * *", "@every 90s"],
)
@pytest.mark.parametrize("day", [SPRING, AUTUMN, (2026, 1, 1)])
def test_times_backwards_are_the_times_forwards(expression: str, day: tuple[int, int, int]) -> None:
    planned = cron.parse(expression, BERLIN)
    end = ms(day[0], day[1], day[2] + 2, 5)
    back = list(islice(planned.until(end), 40))
    assert back == sorted(set(back), reverse=True)
    at_ms, forwards = back[-1] - 1, []
    while (following := planned.after(at_ms)) is not None and following <= end:
        forwards.append(following)
        at_ms = following
    assert forwards == back[::-1]
    assert next(planned.until(back[0])) == back[0]
    assert next(planned.until(back[0] - 1)) == back[1]


def test_every_counts_from_the_epoch() -> None:
    planned = cron.parse("@every 10s")
    assert planned.after(1_700_000_000_000) == 1_700_000_010_000
    assert planned.after(1_700_000_009_999) == 1_700_000_010_000
    assert cron.parse("@EVERY 1.5h") == cron.Every(5_400_000)
    assert cron.parse("@every 7", BERLIN) == cron.Every(7000)


@pytest.mark.parametrize(
    ("word", "same"), [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@Yearly", "0 0 1 1 *")]
)
def test_words_are_expressions(word: str, same: str) -> None:
    assert cron.parse(word, BERLIN) == cron.parse(same, BERLIN)


def test_without_a_zone_times_are_those_of_utc() -> None:
    found = cron.parse("0 3 * * *").after(ms(2026, 7, 1, zone="UTC"))
    assert found == ms(2026, 7, 1, 3, zone="UTC")
    assert cron.parse("0 3 * * *", "UTC") == cron.Fields("0 3 * * *", UTC)


def test_an_expression_without_times_has_none() -> None:
    assert cron.parse("0 0 31 2 1#5,MON#5").after(0) is not None
    assert cron.parse("0 0 * 2 MON#5").after(ms(2026, 1, 1)) == ms(2044, 2, 29, zone="UTC")


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("", "it has 0 fields, not 5, or 6 with seconds"),
        ("* * * *", "it has 4 fields"),
        ("60 * * * *", "bad field: minute"),
        ("61 0 0 * * *", "bad field: second"),
        ("0 0 * * BAD", "bad field: day-of-week"),
        ("0 0 31 2 *", "bad field: day-of-month"),
        ("@sometimes", "the words are @yearly, .* and @every 10s"),
        ("@every", "the words are"),
        ("@every soon", "after @every comes a time from 1s to 366d"),
        ("@every 10ms", "after @every comes a time"),
        ("* " * 300, "at most 256 characters"),
    ],
)
def test_an_error_names_the_problem(expression: str, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        cron.parse(expression)


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "../passwd", "Europe", "\0", "é", "x" * 5000])
def test_an_unknown_zone_is_named(zone: str) -> None:
    with pytest.raises(InvalidArgument, match=r"the time zone .* is unknown: give a name such as"):
        cron.parse("@daily", zone)


def test_the_error_of_a_system_without_zones_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import zoneinfo

    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(InvalidArgument, match="install the package tzdata"):
        cron.parse("@daily", "Europe/Utopia")
