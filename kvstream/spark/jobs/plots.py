"""Plots as SVG text: lines over time, and bars."""

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from unicodedata import east_asian_width

WIDTH = 720
_LEFT, _RIGHT, _BOTTOM = 64, 36, 34
_TITLE_Y, _HEAD = 16, 38
"""The vertical positions of the title and of the legend or plot."""
_LINES_HEIGHT = 168
_ROW = 22
"""The height of a bar with its gap."""
_LEGEND_ROW = 16
_MARK = 13
"""The width of a colour mark in the legend."""
_LABEL_MAX = 300.0
"""The width of a label in pixels, at most."""
_COLOURS = ("#2563eb", "#db2777", "#059669", "#d97706", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_TICKS = 4
_FONT = "font-family='system-ui, sans-serif' font-size='11'"
_NARROW, _BROAD = frozenset("fijlrt.,:;|!'()[]- "), frozenset("mwMW@%")

Points = Sequence[tuple[float, float]]


def lines(
    title: str, series: Sequence[tuple[str, Points]], labels: Sequence[tuple[float, str]] = ()
) -> str:
    """Return a line plot; ``labels`` are pairs of an x value and its text."""
    points = [point for _, each in series for point in each]
    if not points:
        return _empty(title)
    legend, head = _legend([name for name, _ in series])
    bottom = head + _LINES_HEIGHT
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = _nice(max(y for _, y in points))

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - low) / (high - low or 1) * (WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{bottom - y / top * _LINES_HEIGHT:.1f}"

    drawn = [legend]
    for value in _ticks(top):
        y = bottom - value / top * _LINES_HEIGHT
        drawn.append(_rule(_LEFT, WIDTH - _RIGHT, y, y))
        drawn.append(_text(_number(value), _LEFT - 6, y + 4, "end"))
    for at, (_, each) in enumerate(series):
        path = " ".join(place(x, y) for x, y in each)
        colour = _COLOURS[at % len(_COLOURS)]
        drawn.append(
            f"<polyline fill='none' stroke='{colour}' stroke-width='1.5' points='{path}'/>"
        )
    for x, label in labels:
        drawn.append(_text(label, float(place(x, 0).partition(",")[0]), bottom + 20, "middle"))
    return _framed(title, drawn, bottom + _BOTTOM)


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """Return a horizontal bar plot, each bar with its name and value."""
    if not values:
        return _empty(title)
    names = _labels([name for name, _ in values])
    left = max(_LEFT, 8 + max(map(_extent, names)))
    top = _nice(max(value for _, value in values))
    bottom = _HEAD + _ROW * len(values)
    room = WIDTH - left - 8 - max(_extent(_exact(value)) for _, value in values)  # and the values
    drawn = []
    for value in _ticks(top):
        x = left + value / top * room
        drawn.append(_rule(x, x, _HEAD, bottom))
        drawn.append(_text(_number(value), x, bottom + 16, "middle"))
    for at, ((name, value), label) in enumerate(zip(values, names, strict=True)):
        y = _HEAD + at * _ROW
        length = value / top * room
        drawn.append(
            f"<rect x='{left:.1f}' y='{y + 4}' width='{length:.1f}' height='{_ROW - 8}' "
            f"fill='{_COLOURS[0]}'><title>{_escaped(name)}: {_exact(value)}</title></rect>"
        )
        drawn.append(_text(label, left - 6, y + 15, "end"))
        drawn.append(_text(_exact(value), left + length + 4, y + 15))
    return _framed(title, drawn, bottom + _BOTTOM)


def _empty(title: str) -> str:
    return _framed(title, [_text("nothing to show", _LEFT, _HEAD + 4)], _HEAD + _ROW)


def _framed(title: str, drawn: Sequence[str], height: float) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' "
        f"width='{WIDTH}' height='{height}' role='img'><title>{_escaped(title)}</title>"
        f"<rect width='100%' height='100%' fill='white'/>"
        f"<text x='{_LEFT}' y='{_TITLE_Y}' {_FONT} font-weight='600' fill='#111'>"
        f"{_escaped(title)}</text>{''.join(drawn)}</svg>"
    )


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """Return the legend, in rows below the title, and the vertical position of the plot."""
    drawn = []
    x, y = float(_LEFT), _HEAD
    for at, name in enumerate(_labels(names)):
        width = _MARK + _extent(name)
        if x > _LEFT and x + width > WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LEGEND_ROW
        colour = _COLOURS[at % len(_COLOURS)]
        drawn.append(
            f"<rect x='{x:.1f}' y='{y - 9}' width='9' height='9' fill='{colour}'/>"
            f"{_text(name, x + _MARK, y)}"
        )
        x += width + _LEGEND_ROW
    return "".join(drawn), y + _LEGEND_ROW


def _rule(x1: float, x2: float, y1: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' x2='{x2:.1f}' y1='{y1:.1f}' y2='{y2:.1f}' stroke='#e5e7eb'/>"


def _text(text: str, x: float, y: float, anchor: str = "start") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {_FONT} fill='#444'>"
        f"{_escaped(text)}</text>"
    )


def _escaped(text: str) -> str:
    """Escape a text for XML, which allows no control characters."""
    return escape("".join(char if char.isprintable() else "\ufffd" for char in text))


def _exact(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _ticks(top: float) -> list[float]:
    return [top * tick / _TICKS for tick in range(_TICKS + 1)]


def _extent(text: str) -> float:
    """Estimate the width of a text in pixels, rather too wide."""
    return sum(map(_extent_of, text))


def _extent_of(char: str) -> float:
    if char in _NARROW:
        return 4.5
    if char in _BROAD or char.isupper():
        return 9.5
    return 11.5 if east_asian_width(char) in "WF" else 7.0


def _labels(names: Sequence[str]) -> list[str]:
    """Shorten names to fit, and keep them distinct."""
    labels = [_shortened(name) for name in names]
    counts = Counter(labels)
    return [f"{at}: {label}" if counts[label] > 1 else label for at, label in enumerate(labels, 1)]


def _shortened(name: str) -> str:
    """Cut the middle out of a long name: its ends are what distinguishes it."""
    if _extent(name) <= _LABEL_MAX:
        return name
    half = len(name) // 2
    while _extent(f"{name[:half]}…{name[-half:]}") > _LABEL_MAX:
        half -= 1
    return f"{name[:half]}…{name[-half:]}"


def _nice(value: float) -> float:
    """Return a round number of at least a value, whose quarters are round too."""
    if value <= 0:
        return 1
    unit: float = 10 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value)


def _number(value: float) -> str:
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
