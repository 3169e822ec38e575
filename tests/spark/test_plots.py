"""Plots: what stands beside what, read from the SVG as a browser would. No Spark is needed."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from kvstream.spark.jobs.plots import WIDTH, bars, lines

LONG = [f"tenant-{at:03}:orders:europe-west-1:settled:payments:v2" for at in range(24)]
ALIKE = ["x" * 200 + f"{at}" + "y" * 200 for at in range(3)]
NAMES = [["one"], ["orders", "payments"], LONG, ALIKE, ["\u6f22\u5b57" * 40, "\x07<b>&'\udcff"]]
CHAR_WIDTH = 5.0
"""Pixels that a character takes at least, on the average."""


def texts(svg: str) -> list[tuple[str, float, float, str | None]]:
    """Return the texts of a plot: each with its place, and the side that is there."""
    root = ElementTree.fromstring(svg.encode("utf-8"))
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return [
        (each.text or "", float(each.attrib["x"]), float(each.attrib["y"]), each.get("text-anchor"))
        for each in found
    ]


def spans(svg: str) -> list[tuple[str, float, float, float]]:
    """Return each text with its line, and where it begins and ends there."""
    shares = {"start": 0.0, None: 0.0, "middle": 0.5, "end": 1.0}
    placed = []
    for text, x, y, anchor in texts(svg):
        size = len(text) * CHAR_WIDTH
        placed.append((text, y, x - shares[anchor] * size, x + (1 - shares[anchor]) * size))
    return placed


def assert_apart(svg: str) -> None:
    """Assert that no text lies on another, and all in the picture."""
    height = float(ElementTree.fromstring(svg.encode("utf-8")).attrib["height"])
    for one, other in combinations(spans(svg), 2):
        beside = one[3] <= other[2] or other[3] <= one[2]
        assert beside or abs(one[1] - other[1]) >= 11, (one, other)
    for text, y, start, end in spans(svg):
        assert 0 <= y < height, text
        assert start >= 0, text
        assert end <= WIDTH, text


@pytest.mark.parametrize("names", NAMES)
def test_no_text_of_a_plot_of_lines_lies_on_another(names: list[str]) -> None:
    series = [(name, [(0.0, 1.0), (10.0, 2.0)]) for name in names[:8]]
    svg = lines("Mean temperature by hour of the day", series, [(0, "00:00"), (10, "23:00")])
    assert_apart(svg)
    assert len(texts(svg)) == 1 + len(series) + 5 + 2


@pytest.mark.parametrize("names", NAMES)
def test_no_text_of_a_plot_of_bars_lies_on_another(names: list[str]) -> None:
    svg = bars("Pending entries by consumer", [(name, 10**15 + 7) for name in names])
    assert_apart(svg)
    assert [text for text, *_ in texts(svg)].count("1,000,000,000,000,007") == len(names)


@pytest.mark.parametrize("names", NAMES)
def test_different_names_have_different_labels(names: list[str]) -> None:
    for svg in (
        bars("t", [(name, 1) for name in names]),
        lines("t", [(name, [(0.0, 1.0)]) for name in names[:8]]),
    ):
        shown = [text for text, *_ in texts(svg)[1:] if not text.replace(".", "").isdigit()]
        assert len(set(shown)) == len(shown) == min(len(names), len(shown))


def test_a_short_name_is_shown_whole_and_a_long_one_with_both_ends() -> None:
    shown = [text for text, *_ in texts(bars("t", [("orders/billing/w", 3), (LONG[7], 2)]))]
    assert "orders/billing/w" in shown
    assert any(text.startswith("tenant-007") and text.endswith(":v2") for text in shown)


def test_a_plot_of_nothing_says_so() -> None:
    for svg in (lines("t", ()), lines("t", [("s", ())]), bars("t", ())):
        assert [text for text, *_ in texts(svg)] == ["t", "nothing to show"]


def test_a_plot_of_zeros_has_an_axis() -> None:
    assert_apart(bars("t", [("a", 0), ("b", 0)]))
    assert_apart(lines("t", [("a", [(5.0, 0.0)])]))
