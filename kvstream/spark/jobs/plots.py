"""Plots as SVG text, drawn by matplotlib: lines over a time or a number, and bars.

Names of streams and consumers may be any text: they are drawn as they are, without mathematical
markup, and shortened in the middle if they are long.
"""

import io
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 8.0, 3.4
"""The size of a plot of lines in inches; the height is without the names in its legend."""
_ROW = 0.27
"""The height of a bar or a row of the legend, in inches."""
LABEL_MAX = 40
"""The longest label, in characters."""
_COLUMNS_MAX = 32
"""The longest label, in characters, of a legend with two columns."""
_MARKS = 24
"""Marks of a line at most."""
_COLOURS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=_COLOURS) + cycler(marker="os^DvPX*"),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "date.converter": "concise",
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.size": 9,
    "grid.color": "#e5e7eb",
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "kvstream",  # the same plot is the same text
    "text.parse_math": False,
}

Points = Sequence[tuple[datetime | float, float]]


def lines(title: str, series: Sequence[tuple[str, Points]], *, x: str, y: str, legend: str) -> str:
    """Return a plot of named lines; ``x`` and ``y`` name the axes, ``legend`` what a line is."""
    names = _labels([name for name, _ in series])
    columns = 2 if max(map(len, names)) <= _COLUMNS_MAX else 1
    with _figure(title, HEIGHT + _ROW * -(-len(names) // columns)) as (figure, axes):
        drawn = []
        for _, points in series:
            every = max(1, len(points) // _MARKS)
            drawn += axes.plot(*zip(*points, strict=True), markevery=every)
        axes.set(xlabel=x, ylabel=y)
        axes.set_ylim(0, 1.05 * max(value for _, points in series for _, value in points) or 1)
        axes.yaxis.set_major_formatter(_number)
        if isinstance(series[0][1][0][0], datetime):
            axes.xaxis.get_offset_text().set_visible(False)  # the label has the dates
        else:
            axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 3, 6, 10]))
        shown = figure.legend(
            drawn,
            ["name"] * len(names),
            loc="outside lower left",
            title=legend,
            ncols=columns,
            alignment="left",
            frameon=False,
        )
        for text, name in zip(shown.get_texts(), names, strict=True):
            text.set_text(name)  # a label given before may be dropped for its first character
        return _svg(figure)


def bars(title: str, values: Sequence[tuple[str, int]], *, x: str) -> str:
    """Return a plot of horizontal bars, each with its name and value, the first on top."""
    with _figure(title, 1.1 + _ROW * len(values)) as (figure, axes):
        places = range(len(values))
        drawn = axes.barh(places, [value for _, value in values], color=_COLOURS[0], height=0.7)
        axes.bar_label(drawn, [f"{value:,}" for _, value in values], padding=4)
        axes.set_yticks(places, _labels([name for name, _ in values]))
        axes.set_xlabel(x)
        axes.set_xlim(0, 1.2 * max(value for _, value in values) or 1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(_number)
        axes.grid(axis="y", visible=False)
        axes.invert_yaxis()
        return _svg(figure)


@contextmanager
def _figure(title: str, height: float) -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # the reader's browser has other fonts
        figure = Figure((WIDTH, height))
        figure.suptitle(title, x=0.005, horizontalalignment="left")
        yield figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    """Return a figure as an SVG element, without metadata and XML declaration."""
    text = io.StringIO()
    absent = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=absent)
    return text.getvalue().partition("<svg")[2].join(("<svg", ""))


def _number(value: float, _: object = None) -> str:
    return f"{value:,.10g}"


def _labels(names: Sequence[str]) -> list[str]:
    """Shorten names in the middle, and keep them distinct."""
    labels = [_shorten(name) for name in names]
    counts = Counter(labels)
    return [f"{at}: {label}" if counts[label] > 1 else label for at, label in enumerate(labels, 1)]


def _shorten(name: str) -> str:
    text = "".join(char if char.isprintable() else "\ufffd" for char in name)  # as XML requires
    half = LABEL_MAX // 2
    return text if len(text) <= LABEL_MAX else f"{text[: half - 1]}…{text[-half:]}"
