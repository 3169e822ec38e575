"""Plots, parsed from the SVG: every name, number and axis exists. No Spark."""

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

LONG = [f"tenant-{at:03}:orders:europe-west-1:settled:payments:v2" for at in range(24)]
ALIKE = ["x" * 200 + f"{at}" + "y" * 200 for at in range(3)]
NAMES = [
    ["one"],
    ["_orders", "$a$ \\b", "{x}"],
    LONG,
    ALIKE,
    ["\u6f22\u5b57" * 40, "\x07<b>&'\udcff"],
]
SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2023, 11, 14, 22, tzinfo=UTC)
MINUTES = [START + timedelta(minutes=minute) for minute in range(100)]


def bars(*values: Any, **options: Any) -> str:
    from kvstream.spark.jobs import plots  # not at the top: it imports matplotlib

    return plots.bars(*values, **options)


def lines(*values: Any, **options: Any) -> str:
    from kvstream.spark.jobs import plots

    return plots.lines(*values, **options)


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> None:
    """Fail if matplotlib has no room for a plot, or no glyph."""
    warnings.simplefilter("error")


def texts(svg: str) -> list[str]:
    """Return the texts of a plot; a plot that is no XML, or needs another file, is none."""
    root = ElementTree.fromstring(svg.encode("utf-8"))
    assert root.tag == f"{SVG}svg"
    links = [value for each in root.iter() for name, value in each.items() if "href" in name]
    assert all(link.startswith("#") for link in links)
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def line_plot(names: list[str]) -> str:
    points = [(moment, 1000 * at) for at, moment in enumerate(MINUTES)]
    return lines("t", [(name, points) for name in names[:8]], x="x", y="y", legend="stream")


@pytest.mark.parametrize("names", NAMES)
def test_each_line_and_bar_has_its_own_label(names: list[str]) -> None:
    shown = texts(line_plot(names))
    labels = shown[shown.index("stream") + 1 :]
    assert len(set(labels)) == len(labels) == min(len(names), 8)
    shown = texts(bars("t", [(name, 10**15 + 7) for name in names], x="x"))
    assert shown.count("1,000,000,000,000,007") == len(names)


def test_a_short_name_is_complete_and_a_long_one_has_both_ends() -> None:
    from kvstream.spark.jobs.plots import LABEL_MAX

    given = [("orders/billing/w", 3), ("_$x$_^2", 3), (LONG[7], 2)]
    shown = texts(bars("t", given, x="pending"))
    assert {"t", "pending", "orders/billing/w", "_$x$_^2"} <= set(shown)
    (long,) = (text for text in shown if text.startswith("tenant-007"))
    assert long.endswith(":v2")
    assert len(long) == LABEL_MAX


def test_the_axes_have_names_round_numbers_and_times_in_utc() -> None:
    shown = texts(line_plot(["orders"]))
    assert {"t", "x", "y", "stream", "orders"} <= set(shown)
    assert {"0", "20,000", "100,000"} <= set(shown)
    assert {"22:00", "23:00"} <= set(shown)


def test_lines_differ_in_their_marks_and_their_colours() -> None:
    root = ElementTree.fromstring(line_plot(list("abcdefgh")))
    marks = {
        each.attrib["d"]
        for group in root.iter(f"{SVG}g")
        if group.get("id", "").startswith("line2d")
        for each in group.iter(f"{SVG}path")
        if each.get("id") and "z" in each.attrib["d"]
    }
    assert len(marks) == 8


def test_a_plot_of_zeros_has_an_axis() -> None:
    assert "0" in texts(bars("t", [("a", 0), ("b", 0)], x="x"))
    assert "0" in texts(lines("t", [("a", [(5.0, 0.0), (6.0, 0.0)])], x="x", y="y", legend="l"))


def test_the_same_plot_is_the_same_text() -> None:
    assert line_plot(["a"]) == line_plot(["a"])
