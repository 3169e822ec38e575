"""Notes of commits with their times, until a piece takes them."""

import pytest

from kvstream.archive.times import CLOCK_BACK_MAX_MS, TIMES_MAX, Times


def test_notes_are_bounded() -> None:
    times = Times()
    for number in range(TIMES_MAX + 1):
        times.note(number, number)
    assert len(times) == TIMES_MAX // 2 + 1
    assert times.last == TIMES_MAX


def test_a_piece_takes_the_notes_of_its_commits() -> None:
    times = Times()
    for ms, sequence in ((10, 1), (20, 5), (30, 9)):
        times.note(ms, sequence)
    assert times.until(40, 5) == [(10, 1), (20, 5)]
    assert times.until(40, 7) == [(10, 1), (20, 5)]  # the commit 9 is known to be later
    assert times.until(40, 12) == [(10, 1), (20, 5), (30, 9), (40, 12)]
    times.drop(7)
    assert (len(times), times.last) == (1, 9)
    times.drop(9)
    assert (len(times), times.last) == (0, -1)


@pytest.mark.parametrize(
    ("latest_ms", "now_ms", "noted_ms"),
    [
        (0, 5, 5),
        (5_000, 4_000, 5_000),
        (CLOCK_BACK_MAX_MS, 0, CLOCK_BACK_MAX_MS),
        (CLOCK_BACK_MAX_MS + 1, 0, 0),
    ],
)
def test_times_do_not_go_back_by_less_than_an_hour(
    latest_ms: int, now_ms: int, noted_ms: int
) -> None:
    assert Times(latest_ms).after(now_ms) == noted_ms
